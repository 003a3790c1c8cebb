package tools

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	maxHandles  = 32               // that a branch is given
	kindMessage = "branch message" // of a stored result
)

// metaExpires is the key of _meta that says when a new branch ends at the latest.
const metaExpires = wire.MetaPrefix + "expires_at"

func (t *Tools) create(ctx context.Context, r *Request) ([]byte, error) {
	c := r.Call
	var in struct {
		Description, Prompt string
		Budget              float64
		SessionID           string  `json:"session_id"`
		ParentBranchID      string  `json:"parent_branch_id"`
		TimeoutSeconds      float64 `json:"timeout_seconds"`
		Handles             []string
		Run                 bool
		Wait                *bool
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(in.Handles, func(h string) bool { return !results.IsHandle(h) }); i >= 0 {
		return nil, folding.Errorf(folding.ErrInvalidInput, "handles: %.64q is not the handle of a folded result, such as res_…", in.Handles[i])
	}
	if len(in.Handles) > maxHandles {
		return nil, folding.Errorf(folding.ErrInvalidInput, "handles: %d handles, the limit is %d", len(in.Handles), maxHandles)
	}
	if in.Run {
		if err := t.checkRun(); err != nil {
			return nil, err
		}
	}
	// Argument, _meta and URL name a parent; the session's active branch does not.
	b, err := t.Branches.Create(ctx, c.Caller(), folding.CreateRequest{
		SessionID: in.SessionID, ParentID: cmp.Or(in.ParentBranchID, c.Attribution.BranchID), Description: in.Description, Prompt: in.Prompt, Handles: in.Handles,
		Budget: int(in.Budget), TimeoutSeconds: int(in.TimeoutSeconds), Claims: c.Origin.Claims(), Cause: c,
		Unattended: in.Run,
	})
	if err != nil {
		return nil, err
	}
	wait := in.Wait == nil || *in.Wait
	if !in.Run {
		body := t.opened(ctx, r, b)
		if t.asTask(r, false) {
			body = t.newTask(r, b, nil, body)
		}
		return body, nil
	}
	a := t.start(r, b)
	if t.asTask(r, wait) {
		return t.newTask(r, b, a, nil), nil
	}
	return t.awaitOne(ctx, r, a, wait)
}

// opened returns the answer of branch_create about a branch in which the host works.
func (t *Tools) opened(ctx context.Context, r *Request, b folding.Branch) []byte {
	c := r.Call
	out := struct {
		BranchID        string `json:"branch_id"`
		BudgetAllocated int    `json:"budget_allocated"`
		Depth           int    `json:"depth"`
		SessionID       string `json:"session_id,omitempty"`
		Context         string `json:"context,omitempty"`
		Memories        string `json:"memories,omitempty"` // the handle with which branch_read delivers them
	}{BranchID: b.ID, BudgetAllocated: b.BudgetTotal, Depth: b.Depth, Memories: t.keepMemories(ctx, r, b)}
	if b.Session != c.Origin.Session { // the model can't know the connection's own id, nor does it need it
		out.SessionID = b.Session
	}
	if b.Context != b.ID { // the context of a first-level branch is its id
		out.Context = b.Context
	}
	// A model has no clock, and branch_status has the time; programs read _meta.
	return rawjson.Set(structured(c, out), rawjson.Quote(stamp(b.ExpiresAt)), "_meta", metaExpires)
}

func (t *Tools) finish(ctx context.Context, r *Request) ([]byte, error) {
	c := r.Call
	var in struct {
		BranchID string  `json:"branch_id"`
		Message  *string `json:"message"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.BranchID == "" {
		return nil, folding.Errorf(folding.ErrInvalidInput, "branch_id is missing: give the one that branch_create returned")
	}
	if in.Message == nil { // there is no second return that could bring it
		return nil, folding.Errorf(folding.ErrInvalidInput, "message is missing, and nothing was closed: sum up the findings, or give \"\" where there are none")
	}
	defer t.Records.Returning(t.Branches, c, in.BranchID)()
	unpaid := ""
	ret, err := t.Branches.ReturnPaid(ctx, c.Caller(), in.BranchID, *in.Message, func(b folding.Branch, n int) (giveBack func()) {
		unpaid, giveBack = t.pay(ctx, c, b.ParentID != "", n)
		return giveBack
	})
	if err != nil {
		return nil, err
	}
	t.remember(r, ret.Branch)
	c.Outcome.Checked, c.Outcome.Clean = true, true // a second scan that failed would withhold the returned message
	out := struct {
		Success    bool   `json:"success"`
		TokensUsed int    `json:"tokens_used"`
		Message    string `json:"message"`
		Late       bool   `json:"late,omitempty"`
		Status     string `json:"status,omitempty"`
		Reason     string `json:"reason,omitempty"`
	}{Success: true, TokensUsed: ret.Branch.BudgetUsed, Message: ret.Branch.Message}
	switch {
	case unpaid != "":
		out.Message = t.keepMessage(ctx, c, ret.Branch, unpaid)
	case ret.Granted < ret.MessageTokens:
		out.Message, _ = t.Counter.Truncate(ret.Branch.Message, ret.Granted)
		c.Outcome.Truncated = true
	}
	if ret.Branch.Late {
		out.Success, out.Late, out.Status, out.Reason = false, true, string(ret.Branch.Status), ret.Branch.Reason
		c.Outcome.Late = true
	}
	return structured(c, out), nil
}

func (t *Tools) status(ctx context.Context, r *Request) ([]byte, error) {
	c := r.Call
	var in struct {
		BranchID    string   `json:"branch_id"`
		SessionID   string   `json:"session_id"`
		WaitSeconds *float64 `json:"wait_seconds"`
	}
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if in.WaitSeconds != nil && (in.BranchID != "" || in.SessionID == "") {
		limit := time.Duration(min(*in.WaitSeconds, answerWithin.Seconds())) * time.Second
		agents := t.agentsOf(c.Caller(), in.BranchID)
		if t.runsAsTask(in.BranchID) {
			if err := waitFor(ctx, r, agents, limit); err != nil {
				return nil, err
			}
		} else if len(agents) > 0 {
			return t.awaitAll(ctx, r, agents, limit)
		}
	}
	if in.BranchID == "" && in.SessionID == "" {
		if in.BranchID = c.Attribution.BranchID; in.BranchID == "" && c.Origin.Session == "" {
			return nil, folding.Errorf(folding.ErrInvalidInput, "give branch_id, or the session_id that branch_create returned")
		}
	}
	b, found, err := t.Branches.Status(ctx, c.Caller(), folding.StatusRequest{BranchID: in.BranchID, SessionID: in.SessionID})
	if err != nil {
		return nil, err
	}
	left := t.left(ctx, c, found && !b.Status.Terminal())
	if !found {
		none := struct {
			BranchID *string     `json:"branch_id"`
			Status   string      `json:"status"`
			Limits   []limitLeft `json:"limits,omitempty"`
		}{Status: "No active branch found", Limits: left}
		return structured(c, none), nil
	}
	return t.state(ctx, c, b, left)
}

// state returns the answer of branch_status about a branch.
func (t *Tools) state(ctx context.Context, c *interceptor.Call, b folding.Branch, left []limitLeft) (_ []byte, err error) {
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
		ModelTokens int    `json:"model_tokens,omitempty"`

		Limits []limitLeft `json:"limits,omitempty"`
	}{
		BranchID: b.ID, SessionID: b.Session, Status: string(b.Status), Depth: b.Depth, BudgetUsed: b.BudgetUsed, BudgetTotal: b.BudgetTotal,
		Description: b.Description, Context: b.Context, CreatedAt: stamp(b.CreatedAt), Reason: b.Reason, Error: b.Error, Digest: b.Digest,
		Folded: t.savings(ctx, b), ModelTokens: b.Activity.ModelInput + b.Activity.ModelOutput, Limits: left,
	}
	if b.Status.Terminal() {
		out.CompletedAt = stamp(b.CompletedAt)
	} else {
		out.ExpiresAt = stamp(b.ExpiresAt)
	}
	if out.Message, err = t.message(ctx, c, b); err != nil {
		return nil, err
	}
	return structured(c, out), nil
}

// limitLeft is what a limit has left.
type limitLeft struct {
	Limit      string `json:"limit"`
	TokensLeft *int64 `json:"tokens_left,omitempty"`
	CallsLeft  *int64 `json:"calls_left,omitempty"`
	ModelLeft  *int64 `json:"model_tokens_left,omitempty"`
	Resets     string `json:"resets_at,omitempty"`
}

// left returns what the limits of [interceptor.Limits.States] have left.
func (t *Tools) left(ctx context.Context, c *interceptor.Call, branch bool) (out []limitLeft) {
	states, err := t.Limits().States(ctx, &c.Origin, branch)
	if err != nil {
		t.Log.Warn("branch_status without the limits", "err", err)
	}
	for _, s := range states {
		l := limitLeft{Limit: s.Limit}
		switch {
		case s.Model:
			l.ModelLeft = new(max(s.Tokens-s.TokensUsed, 0))
		case s.Tokens > 0:
			l.TokensLeft = new(max(s.Tokens-s.TokensUsed, 0))
		}
		if s.Calls > 0 {
			l.CallsLeft = new(max(s.Calls-s.CallsUsed, 0))
		}
		if !s.Reset.IsZero() {
			l.Resets = stamp(s.Reset)
		}
		out = append(out, l)
	}
	return out
}

// message takes the message of a branch for its parent. It returns "" if the parent has read it, or reads it in
// the result of a task.
func (t *Tools) message(ctx context.Context, c *interceptor.Call, b folding.Branch) (string, error) {
	if t.runsAsTask(b.ID) {
		return "", nil
	}
	t.mu.Lock()
	a := t.agents[b.ID]
	t.mu.Unlock()
	if a != nil { // it was paid for when the branch returned
		return a.take(ctx).Message, nil
	}
	taken, err := t.Branches.TakeMessage(ctx, c.Caller(), b)
	if err != nil || !taken {
		return "", err
	}
	return t.paid(ctx, c, b), nil
}

// paid charges the message of a branch to the limits and to the branch of the call, and returns what
// both pay for.
func (t *Tools) paid(ctx context.Context, c *interceptor.Call, of folding.Branch) string {
	by, n := c.Attribution.Branch, t.Counter.Count(of.Message)
	if unpaid, _ := t.pay(ctx, c, by != nil, n); unpaid != "" {
		return t.keepMessage(ctx, c, of, unpaid)
	}
	if by != nil {
		if granted := t.Branches.Pay(by.ID, n); granted < n {
			c.Outcome.Truncated = true
			of.Message, _ = t.Counter.Truncate(of.Message, granted)
		}
	}
	return of.Message
}

// pay charges n tokens of the message of a branch to the limits. It returns why they do not pay, or "" and
// what gives the tokens back.
func (t *Tools) pay(ctx context.Context, c *interceptor.Call, branch bool, n int) (unpaid string, giveBack func()) {
	spend, refused := t.Limits().Pay(ctx, &c.Origin, "", c.Target.Name, branch, n)
	switch refused {
	case "":
		c.Outcome.Paid, c.Outcome.PaidInBranch, c.Outcome.Unconfirmed = n, branch, !spend.Confirmed()
		return "", func() {
			spend.Refund(n)
			c.Outcome.Paid = 0
		}
	case trace.RuleUnavailable:
		return "the limits can't be counted now", nil
	}
	return "a limit is spent", nil
}

// keepMessage stores the message of a branch that limits do not pay for. It returns a line that says
// where it is.
func (t *Tools) keepMessage(ctx context.Context, c *interceptor.Call, of folding.Branch, unpaid string) string {
	handle, n := t.Results.NewHandle(), t.Counter.Count(of.Message)
	err := t.Results.Put(context.WithoutCancel(ctx), results.Result{
		Handle: handle, Principal: c.Origin.Principal, Session: c.Origin.Session, Context: string(contextpath.Path(of.Context).Parent()),
		Kind: kindMessage, Text: of.Message, Tokens: n,
	})
	if err != nil {
		t.Log.Error("message of a branch not stored", "branch_id", of.ID, "err", err)
		where := "is in the trace only"
		if !t.Records.Recorder.Keeps() {
			where = "could not be stored"
		}
		return fmt.Sprintf("[%s: the message of %d tokens %s]", unpaid, n, where)
	}
	c.Outcome.Folded, c.Outcome.Fold = true, handle
	return fmt.Sprintf("[%s: the message of %d tokens is stored; branch_read {\"handle\":\"%s\"} in another branch, or later]", unpaid, n, handle)
}

// savings says in one line what folding saved a branch, less what was read back; "" for nothing.
func (t *Tools) savings(ctx context.Context, b folding.Branch) string {
	n, tokens, err := t.Results.Savings(ctx, b.Principal, b.Context)
	if err != nil {
		t.Log.Warn("savings of a branch", "branch_id", b.ID, "err", err)
	}
	if n == 0 && tokens == 0 {
		return ""
	}
	return counted(n, "result") + " folded, " + counted(tokens, "token") + " saved"
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
