package tools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/runner"
)

// Left implements [runner.Branch].
func (a *agent) Left() (line, why string, err error) {
	b, err := a.t.Branches.Resolve(a.caller(), a.branch.ID)
	if err == nil {
		left := a.t.Branches.TimeLeft(b.ID).Round(time.Second)
		return fmt.Sprintf("%d of %d tokens, %.0f s", b.BudgetTotal-b.BudgetUsed, b.BudgetTotal, max(left.Seconds(), 0)), "", nil
	}
	switch b.Reason {
	case folding.ReasonTimeout:
		return "", "the time of this branch is over", nil
	case folding.ReasonBudgetExhausted:
		return "", "the budget of this branch is spent", nil
	}
	return "", "", err
}

// Ask implements [runner.Branch]. The request to the model is a call down the chain, so it is recorded and
// scrubbed like a server's question to the model of a host.
func (a *agent) Ask(ctx context.Context, r *runner.Request, next runner.Message) (answer runner.Message, err error) {
	used := folding.CallOutcome{Tool: "model"}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lease, err := a.t.Branches.Acquire(ctx, cancel, a.branch.ID)
	switch {
	case err == nil:
		defer func() {
			if err != nil {
				used.Err = err.Error()
			}
			lease.Release(used)
		}()
	case r.Only == "":
		return answer, err
	default: // the last turn, in a branch that has ended
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lastTurn)
		defer cancel()
	}
	c, most := a.newTurn(r, next)
	c.Outcome.Late = lease == nil
	res, err := a.t.chain(ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		c.Outcome.Forwarded = true
		reply, err := a.turn(ctx, c, r, most)
		if err != nil {
			return nil, err
		}
		used.ModelInput, used.ModelOutput = reply.Usage.Input, reply.Usage.Output
		return &interceptor.Result{Body: rawjson.Marshal(map[string]any{
			"role": "assistant", "model": a.llm.Model, "stopReason": reply.Stop, "content": reply.Message.Content,
		})}, nil
	})
	if err != nil {
		return answer, err
	}
	if res.Error != nil {
		text, _ := res.Text()
		return answer, errors.New(text)
	}
	if err := json.Unmarshal(res.Body, &answer); err != nil {
		return answer, fmt.Errorf("the scrubbed answer of the model can't be read: %w", err)
	}
	kept := answer
	if len(kept.Content) == 0 { // endpoints refuse a message without content
		kept.Content = []runner.Block{runner.TextBlock("(nothing)")}
	}
	r.Messages = append(r.Messages, kept)
	a.endTurn(used.ModelInput + used.ModelOutput)
	if lease != nil {
		a.payWords(lease, answer)
	}
	return answer, nil
}

// endTurn notes that a turn is over, and how many tokens the conversation has.
func (a *agent) endTurn(sent int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = sent
	a.turnsDone++
	close(a.turned)
	a.turned = make(chan struct{})
}

// payWords charges what the model says to the branch: it stays in its context. Of calls, the arguments are charged
// when they are made.
func (a *agent) payWords(lease *folding.Lease, answer runner.Message) {
	said := 0
	for _, b := range answer.Content {
		if b.Type == runner.Text {
			said += a.t.Counter.Count(b.Text)
		}
	}
	if _, err := lease.ChargeUpTo(said); err != nil {
		a.t.Log.Debug("the words of a model were not charged", "branch_id", a.branch.ID, "err", err)
	}
}

// newTurn begins the call of a turn, with what is new in the request, and returns the most tokens that the turn
// can use, as far as known.
func (a *agent) newTurn(r *runner.Request, next runner.Message) (c *interceptor.Call, most int) {
	a.mu.Lock()
	a.turns++
	a.last = time.Now()
	turn, sent := a.turns, a.sent
	a.mu.Unlock()
	params := struct {
		Messages     []runner.Message `json:"messages"`
		SystemPrompt string           `json:"systemPrompt,omitempty"`
		MaxTokens    int              `json:"maxTokens"`
		Tools        []string         `json:"tools,omitempty"`
		ToolChoice   string           `json:"toolChoice,omitempty"`
	}{Messages: []runner.Message{next}, MaxTokens: r.MaxTokens, ToolChoice: r.Only}
	if len(r.Messages) == 0 {
		params.SystemPrompt = r.System
		for _, tool := range r.Tools {
			params.Tools = append(params.Tools, tool.Name)
			sent += a.t.Counter.Count(tool.Name) + a.t.Counter.Count(tool.Description) + a.t.Counter.CountBytes(tool.Schema)
		}
	}
	c = a.newCall(fmt.Sprintf("turn %d", turn), "sampling/createMessage")
	c.Origin.Direction, c.Target.Metered, c.Target.To = interceptor.ToHost, false, "model:"+a.llm.Model
	c.Target.Control = true // the last turn is in a branch that may have ended
	c.Target.Params = rawjson.Marshal(params)
	c.Target.Forward = c.Target.Params
	return c, sent + a.t.Counter.CountBytes(c.Target.Params) + r.MaxTokens
}

// turn has the model answer a request, with the scrubbed messages of its call. The limits reserve what the turn
// can use at most, and get back what it did not.
func (a *agent) turn(ctx context.Context, c *interceptor.Call, r *runner.Request, most int) (runner.Reply, error) {
	var clean struct{ Messages []runner.Message }
	if err := json.Unmarshal(c.Target.Forward, &clean); err != nil {
		return runner.Reply{}, fmt.Errorf("the scrubbed messages can't be read: %w", err)
	}
	spend, err := a.t.Limits().BeginModel(ctx, c, most)
	if err != nil {
		return runner.Reply{}, err
	}
	before := len(r.Messages)
	r.Messages = append(r.Messages, clean.Messages...)
	reply, err := a.model.Turn(ctx, r)
	if err != nil {
		r.Messages = r.Messages[:before] // the next turn may repeat it
		if ctx.Err() != nil {            // the endpoint has got it, and counts it
			most = r.MaxTokens
		}
		spend.Refund(most)
		return reply, err
	}
	reply.Message.Repair(a.turns)
	if reply.Usage == (runner.Usage{}) { // the endpoint does not say
		reply.Usage = runner.Usage{Input: most - r.MaxTokens, Output: a.t.Counter.CountBytes(rawjson.Marshal(reply.Message.Content))}
	}
	u := reply.Usage
	c.Outcome.Model = &trace.Model{Name: a.llm.Model, Input: u.Input, Output: u.Output, Cached: u.Cached}
	if more := u.Input + u.Output - most; more <= 0 {
		spend.Refund(-more)
	} else if _, _, err := spend.Take(context.WithoutCancel(ctx), more); err != nil {
		a.t.Log.Warn("model tokens were not counted", "tokens", more, "err", err)
	}
	return reply, nil
}
