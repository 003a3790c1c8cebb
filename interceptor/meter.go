package interceptor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Meter counts every metered call and keeps a branch within its budget. The arguments, or the
// parameters of a server's question, are charged before the call has an effect. Of the result, no
// more is delivered than the branch has left: a result that Fold could not make fit is cut with a
// notice, and the branch ends as exhausted. The end of the branch cancels its calls.
func Meter(m *folding.Manager, tm TokenMeter) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if !c.Target.Metered {
				return next(ctx, c)
			}
			tokens := &c.Outcome.Tokens
			tokens.In = tm.request(c)
			if c.Attribution.Branch != nil && !c.Target.Control {
				return meterBranch(ctx, c, m, tm, next)
			}
			res, err := next(ctx, c)
			if res != nil {
				tokens.Delivered = tm.Result(res)
				tokens.Out = max(tokens.Out, tokens.Delivered)
			}
			return res, err
		}
	}
}

func meterBranch(ctx context.Context, c *Call, m *folding.Manager, tm TokenMeter, next Handler) (res *Result, err error) {
	lease, err := m.Acquire(ctx, c.Attribution.Branch.ID)
	if err != nil {
		return nil, refuse(c, err)
	}
	c.Outcome.lease = lease
	tokens, outcome := &c.Outcome.Tokens, folding.CallOutcome{Tool: cmp.Or(c.Target.Name, c.Target.Method)}
	defer func() {
		if err != nil {
			outcome.Err = err.Error()
		}
		b := lease.Branch()
		tokens.BranchUsed, tokens.BranchBudget = b.BudgetUsed, b.BudgetTotal
		lease.Release(outcome)
	}()
	if err := lease.Charge(tokens.In); err != nil {
		return nil, refuse(c, err)
	}
	res, err = next(lease.Context(), c)
	if err != nil {
		var ended *folding.EndedError
		if errors.As(context.Cause(lease.Context()), &ended) {
			c.Outcome.Late = true
			return nil, refuse(c, ended)
		}
		return nil, err
	}
	want := tm.Result(res)
	tokens.Out = max(tokens.Out, want)
	if res.Failed() {
		if outcome.Err = strings.TrimSpace(flatText(res)); outcome.Err == "" {
			outcome.Err = "the tool answered with an error and no text"
		}
	}
	granted, err := lease.ChargeUpTo(want)
	if err != nil { // the branch has ended: nothing is charged or delivered
		c.Outcome.Late = true
		return nil, refuse(c, err)
	}
	if tokens.Delivered = granted; granted == want {
		return res, nil
	}
	return c.deliverLess(ctx, tm, res, granted, outcome)
}

// deliverLess returns what fits into the tokens granted of a result that needs more: the result
// made smaller, or cut. A cut ends the call with outcome, and the branch.
func (c *Call) deliverLess(ctx context.Context, tm TokenMeter, res *Result, granted int, outcome folding.CallOutcome) (*Result, error) {
	o, branch := &c.Outcome, c.Attribution.Branch
	if o.Shrink != nil { // another call of the branch took the rest meanwhile
		if small := o.Shrink(granted); small != nil && tm.Result(small) <= granted {
			o.Tokens.Delivered = tm.Result(small)
			o.lease.Refund(granted - o.Tokens.Delivered)
			return small, nil
		}
	}
	var cut *Result
	o.Tokens.Delivered = 0
	if c.ofTool() && !res.interim() { // the host can't use anything else in another form
		cut, o.Tokens.Delivered = cutResult(tm, res, granted, branch)
	}
	o.lease.Refund(granted - o.Tokens.Delivered)
	o.Truncated, o.Decision = true, trace.ReasonLimit
	if cut == nil {
		outcome.Err = "the result did not fit"
	}
	o.lease.Exhaust(ctx, outcome)
	if cut == nil {
		return nil, refuse(c, fmt.Errorf("%w: the result of %s needs %d tokens and branch %s has %d left; return a summary to the parent and open a new branch with a larger budget",
			folding.ErrBudgetExhausted, outcome.Tool, tm.Result(res), branch.ID, granted))
	}
	return cut, nil
}

// refuse returns the refusal of a call, with the handle of its workflow.
func refuse(c *Call, err error) error {
	r := *FoldingRefusal(err)
	r.ContextID = cmp.Or(c.Target.Workflow.handle(), r.ContextID)
	return &r
}

// cutResult returns a result as one text block that ends with a notice, in at most limit tokens,
// and its tokens. It keeps a workflow's handle, which the next call needs, if that fits too. It
// returns nil if not even the notice fits.
func cutResult(tm TokenMeter, res *Result, limit int, b *folding.Branch) (*Result, int) {
	notice := fmt.Sprintf("\n[cut by foldgate: branch budget of %d tokens exhausted]", b.BudgetTotal)
	rest, handle := takeHandle(res)
	text := flatText(rest)
	if handle != nil {
		if cut, n := cutText(tm, res, text, limit, notice, handle); cut != nil {
			return cut, n
		}
	}
	return cutText(tm, res, text, limit, notice, nil)
}

// cutText is cutResult for the text of a result, beside a handle.
func cutText(tm TokenMeter, res *Result, text string, limit int, notice string, handle []byte) (*Result, int) {
	over := 0
	for room := limit - tm.Counter.Count(notice); room > 0; room -= max(over, 1) { // the tokens at the seam may merge to more
		kept, _ := tm.Counter.Truncate(text, room)
		blocks := textBlock(kept + notice)
		if handle != nil {
			blocks = append(append(blocks, ','), handle...)
		}
		body := contentOf(blocks)
		if res.Failed() {
			body = append(body, `,"isError":true`...)
		}
		body = appendMembers(body, res.Body, "resultType")
		if id, ok := rawjson.Get(res.Body, "_meta", MetaContextID); ok {
			body = rawjson.Set(body, id, "_meta", MetaContextID)
		}
		if _, at := inTask(res.Body); at != nil {
			_, task := unnamed(res.Body)
			body = rawjson.Set(task, body, at...)
		}
		cut := &Result{Body: body}
		if over = tm.Result(cut) - limit; over <= 0 {
			return cut, tm.Result(cut)
		}
	}
	return nil, 0
}
