package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// branchCreate serves branch_create.
func branchCreate(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		SessionID      string `json:"session_id"`
		ParentBranchID string `json:"parent_branch_id"`
		Description    string `json:"description"`
		Prompt         string `json:"prompt"`
		Budget         whole  `json:"budget"`
		TimeoutSeconds whole  `json:"timeout_seconds"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if in.ParentBranchID == "" {
		in.ParentBranchID = c.Attribution.BranchID // argument, _meta and URL name a parent, the session's active branch does not
	}
	g := fl.s.gw
	b, err := g.branches.Create(ctx, c.Caller(), folding.CreateRequest{
		SessionID: in.SessionID, ParentID: in.ParentBranchID, Description: in.Description, Prompt: in.Prompt,
		Budget: int(in.Budget), TimeoutSeconds: int(in.TimeoutSeconds), Cause: c,
	})
	if err != nil {
		return nil, refused(c, err)
	}
	out := struct {
		BranchID        string `json:"branch_id"`
		BudgetAllocated int    `json:"budget_allocated"`
		Depth           int    `json:"depth"`
		SessionID       string `json:"session_id,omitempty"`
		Context         string `json:"context,omitempty"`
	}{BranchID: b.ID, BudgetAllocated: b.BudgetTotal, Depth: b.Depth}
	if b.Session != c.Origin.Session { // the model can't know the connection's own id, nor does it need it
		out.SessionID = b.Session
	}
	if b.Context != b.ID { // the context of a first-level branch is its id
		out.Context = b.Context
	}
	// A model has no clock, and branch_status says it; programs read _meta.
	body := rawjson.Set(toolResult(rawjson.Marshal(out), false, fl.modern), rawjson.Quote(stamp(b.ExpiresAt)), "_meta", metaExpires)
	return &interceptor.Result{Body: body}, nil
}

// branchReturn serves branch_return.
func branchReturn(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		BranchID string  `json:"branch_id"`
		Message  *string `json:"message"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if in.BranchID == "" {
		return nil, refused(c, fmt.Errorf("%w: branch_id is missing: give the one that branch_create returned", folding.ErrNotFound))
	}
	if in.Message == nil { // there is no second return that could bring it
		return nil, refused(c, fmt.Errorf("%w: message is missing, and nothing was closed: sum up the findings, or give \"\" where there are none", folding.ErrInvalidInput))
	}
	g := fl.s.gw
	defer g.branchRecords.Returning(g.branches, c, in.BranchID)()
	ret, err := g.branches.Return(ctx, c.Caller(), in.BranchID, *in.Message)
	if err != nil {
		return nil, refused(c, err)
	}
	c.Outcome.Clean = true // a second scan that failed would withhold what was returned
	out := struct {
		Success    bool   `json:"success"`
		TokensUsed int    `json:"tokens_used"`
		Message    string `json:"message"`
		Late       bool   `json:"late,omitempty"`
		Status     string `json:"status,omitempty"`
		Reason     string `json:"reason,omitempty"`
	}{Success: true, TokensUsed: ret.Branch.BudgetUsed, Message: ret.Message}
	if ret.Granted < ret.MessageTokens {
		out.Message, _ = g.counter.Truncate(ret.Message, ret.Granted)
		c.Outcome.Truncated = true
	}
	if ret.Late {
		out.Success, out.Late, out.Status, out.Reason = false, true, string(ret.Branch.Status), ret.Branch.Reason
		c.Outcome.Late = true
	}
	return &interceptor.Result{Body: toolResult(rawjson.Marshal(out), false, fl.modern)}, nil
}

// branchStatus serves branch_status.
func branchStatus(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in struct {
		BranchID  string `json:"branch_id"`
		SessionID string `json:"session_id"`
	}
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if in.BranchID == "" && in.SessionID == "" {
		if in.BranchID = c.Attribution.BranchID; in.BranchID == "" && c.Origin.Session == "" {
			return nil, refused(c, fmt.Errorf("%w: give branch_id, or the session_id that branch_create returned", folding.ErrInvalidInput))
		}
	}
	b, found, err := fl.s.gw.branches.Status(ctx, c.Caller(), folding.StatusRequest{BranchID: in.BranchID, SessionID: in.SessionID})
	if err != nil {
		return nil, refused(c, err)
	}
	if !found {
		return &interceptor.Result{Body: toolResult(json.RawMessage(`{"branch_id":null,"status":"No active branch found"}`), false, fl.modern)}, nil
	}
	out := struct {
		BranchID    string `json:"branch_id"`
		SessionID   string `json:"session_id"`
		Status      string `json:"status"`
		Depth       int    `json:"depth"`
		BudgetUsed  int    `json:"budget_used"`
		BudgetTotal int    `json:"budget_total"`
		Description string `json:"description"`
		Context     string `json:"context"`
		CreatedAt   string `json:"created_at"`
		ExpiresAt   string `json:"expires_at,omitempty"`
		CompletedAt string `json:"completed_at,omitempty"`
		Reason      string `json:"reason,omitempty"`
		Error       string `json:"error,omitempty"`
		Digest      string `json:"digest,omitempty"`
		Message     string `json:"message,omitempty"`
		Folded      string `json:"folded,omitempty"`
	}{
		BranchID: b.ID, SessionID: b.Session, Status: string(b.Status), Depth: b.Depth, BudgetUsed: b.BudgetUsed, BudgetTotal: b.BudgetTotal,
		Description: b.Description, Context: b.Context, CreatedAt: stamp(b.CreatedAt), Reason: b.Reason, Error: b.Error, Digest: b.Digest,
	}
	if b.Status.Terminal() {
		out.CompletedAt = stamp(b.CompletedAt)
	} else {
		out.ExpiresAt = stamp(b.ExpiresAt)
	}
	out.Folded = fl.s.gw.savedLine(ctx, b)
	if b.Late { // nobody else has seen it
		out.Message = b.Message
	}
	return &interceptor.Result{Body: toolResult(rawjson.Marshal(out), false, fl.modern)}, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
