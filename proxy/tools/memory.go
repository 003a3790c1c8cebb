package tools

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/memory"
)

const (
	memoryTime   = 10 * time.Second // for a search, and for storing what a branch brought
	kindMemories = "memories"       // of a stored result
)

// own makes a call for foldgate itself, of a tool that the configuration names. It is recorded and scrubbed,
// and not charged: a branch pays for what it gets of the result.
func (t *Tools) own(ctx context.Context, r *Request, branch, tool string, arguments []byte) (*interceptor.Call, *interceptor.Result, error) {
	c := &interceptor.Call{
		Origin: derived(r.Call, "memory "+tool),
		Target: interceptor.Target{Method: "tools/call", Name: tool, Arguments: arguments},
	}
	c.Origin.Direction = interceptor.Internal
	if branch != "" {
		c.Attribution.BranchID, c.Attribution.Source = branch, interceptor.SourceCause
	}
	ctx, cancel := context.WithTimeout(ctx, memoryTime)
	defer cancel()
	res, err := r.CallTool(ctx, c)
	if err == nil && res.Failed() {
		text, structured := res.Text()
		err = errors.New(strings.TrimSpace(text + " " + structured))
	}
	return c, res, err
}

// memories returns the memories for a new branch as a text, and its tokens. What they are is in the trace. A
// branch begins without them if they can't be found.
func (t *Tools) memories(ctx context.Context, r *Request, b folding.Branch) (text string, cost int, found *interceptor.Call) {
	cfg := t.Config().Folding
	if !cfg.InjectMemories || cfg.Memory.Tool == "" {
		return "", 0, nil
	}
	c, res, err := t.own(ctx, r, b.ID, cfg.Memory.Tool, memory.Arguments(cfg.Memory.Arguments, map[string]string{"description": b.Description, "prompt": b.Prompt}))
	payload := map[string]any{"tool": cfg.Memory.Tool}
	if err != nil {
		payload["error"] = t.Boundary.Text(err.Error())
		t.Log.Warn("a branch begins without memories", "branch_id", b.ID, "err", err)
	} else {
		m := interceptor.Message{Body: res.Body, Always: true} // they are stored, also if the policy lets secrets pass
		t.Boundary.ToHost(ctx, &m)
		items := memory.Find(cfg, m.Body)
		budget := min(int(cfg.InjectionBudgetRatio*float64(b.BudgetTotal)), (b.BudgetTotal-b.BudgetUsed)/2)
		text, cost = memory.Write(cfg, items, budget, t.Counter.Count)
		payload["items"], payload["tokens"] = items, cost
		for _, i := range items {
			if len(i.Warnings) > 0 {
				t.Log.Warn("a memory looks like an instruction to the model", "branch_id", b.ID, "source", i.Source, "on_injection", cfg.Memory.OnInjection)
			}
		}
	}
	t.Records.Memories(b, c.Outcome.Record, payload)
	return text, cost, c
}

// keepMemories stores the memories for a branch in which a host works, so that branch_read delivers them
// there, and the branch pays. It returns their handle, "" without any: the answer of branch_create, which
// the parent reads, has nothing of them.
func (t *Tools) keepMemories(ctx context.Context, r *Request, b folding.Branch) (handle string) {
	text, cost, found := t.memories(ctx, r, b)
	if text == "" {
		return ""
	}
	handle = t.Results.NewHandle()
	err := t.Results.Put(context.WithoutCancel(ctx), results.Result{
		Handle: handle, Principal: b.Principal, Session: r.Call.Origin.Session, Context: b.Context, Server: found.Target.Server, Tool: found.Target.Name,
		Kind: kindMemories, Text: text, Tokens: cost,
	})
	if err != nil {
		t.Log.Error("memories of a branch not stored", "branch_id", b.ID, "err", err)
		return ""
	}
	return handle
}

// remember stores what a branch brought, in the background: its agent need not wait.
func (t *Tools) remember(r *Request, b folding.Branch) {
	cfg := t.Config().Folding.Remember
	if cfg.Tool == "" || !b.Status.Terminal() {
		return
	}
	outcome := "success"
	if b.Status != folding.StatusCompleted {
		outcome = "failure"
	}
	var made []string
	for _, tool := range b.Activity.Tools {
		made = append(made, tool.Tool)
	}
	arguments := memory.Arguments(cfg.Arguments, map[string]string{
		"description": b.Description, "prompt": b.Prompt, "message": b.Message, "digest": b.Digest, "outcome": outcome, "status": string(b.Status),
		"reason": b.Reason, "error": b.Error, "tools": strings.Join(made, ", "), "cost": fmt.Sprint(b.BudgetUsed), "branch": b.ID, "principal": b.Principal,
	})
	t.wg.Go(func() {
		if _, _, err := t.own(r.Lifetime(), r, "", cfg.Tool, arguments); err != nil {
			t.Log.Warn("what a branch brought was not remembered", "branch_id", b.ID, "err", err)
		}
	})
}
