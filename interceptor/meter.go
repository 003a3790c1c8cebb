package interceptor

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Meter counts every metered call, and keeps a branch within its budget and all calls within the
// limits. The arguments, or the parameters of a server's question, are charged before the call has
// an effect. Of the result, no more is delivered than the branch and the limits have left: a result
// that Fold could not make fit is cut with a notice. If the branch had too little, it ends as
// exhausted. The end of the branch cancels its calls.
func Meter(m *folding.Manager, inForce func() *Limits, tm TokenMeter) Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if !c.Target.Metered {
				return next(ctx, c)
			}
			tokens := &c.Outcome.Tokens
			if tokens.In = c.Outcome.args; !c.Outcome.weighed {
				tokens.In = tm.request(c)
			}
			if l := inForce(); !c.Target.Control && (l != nil || c.Attribution.Branch != nil) {
				return meterPaid(ctx, c, m, l, tm, next)
			}
			c.Outcome.charged = true
			res, err := next(ctx, c)
			if res != nil {
				tokens.Delivered = tm.Result(res)
				tokens.Out = max(tokens.Out, tokens.Delivered)
			}
			return res, err
		}
	}
}

// meterPaid runs a call that is charged to its branch, if it has one, and to the limits. It charges the
// arguments before, and the result after.
func meterPaid(ctx context.Context, c *Call, m *folding.Manager, l *Limits, tm TokenMeter, next Handler) (res *Result, err error) {
	o := &c.Outcome
	tokens, outcome := &o.Tokens, folding.CallOutcome{Tool: c.Target.NameOrMethod()}
	if c.Attribution.Branch != nil {
		cancel := c.Cancel
		if cancel == nil {
			ctx, cancel = context.WithCancelCause(ctx)
			defer cancel(nil)
		}
		lease, refused := m.Acquire(ctx, cancel, c.Attribution.Branch.ID)
		if refused != nil {
			return nil, refuse(c, refused)
		}
		o.lease = lease
		defer func() { // the release has no effect if take has released already
			if err != nil {
				outcome.Err = err.Error()
			}
			tokens.BranchUsed, tokens.BranchBudget = lease.Release(outcome)
		}()
		if err := lease.Charge(tokens.In); err != nil {
			return nil, refuse(c, err)
		}
	}
	if o.spend, err = l.begin(ctx, c); err != nil {
		if o.lease != nil {
			o.lease.Refund(tokens.In)
		}
		return nil, err
	}
	o.charged, o.Unconfirmed = true, !o.spend.Confirmed()
	res, err = next(ctx, c)
	if err != nil {
		if ended, ok := errors.AsType[*folding.EndedError](context.Cause(ctx)); ok {
			o.Late = true
			return nil, refuse(c, ended)
		}
		return nil, err
	}
	if res.Failed() {
		outcome.Err = res.Fault()
	}
	return c.chargeResult(ctx, l, tm, res, outcome)
}

// chargeResult charges a result to the branch and the limits, and returns as much of it as they grant.
func (c *Call) chargeResult(ctx context.Context, l *Limits, tm TokenMeter, res *Result, outcome folding.CallOutcome) (*Result, error) {
	o, want := &c.Outcome, tm.Result(res)
	o.Tokens.Out = max(o.Tokens.Out, want)
	if l != nil && o.Read != nil { // it read a stored result: the limits of the tool that made it count, too
		o.spend = l.Continue(o.spend, l.useOf(c))
	}
	granted, spent, err := o.take(ctx, want, outcome)
	o.Unconfirmed = o.Unconfirmed || !o.spend.Confirmed()
	switch {
	case o.Late: // the branch has ended: nothing is charged or delivered
		return nil, refuse(c, err)
	case err != nil && err == context.Cause(ctx): // the host has cancelled while the call waited for tokens that others hold
		return nil, err
	case errors.Is(err, folding.ErrStorage): // what the branch used could not be stored
		c.keep()
		return nil, refuse(c, fmt.Errorf("%w%s", err, c.stored()))
	case err != nil:
		o.refund(granted)
		c.keep()
		return nil, c.limitRefusal(err, "but what its result costs could not be counted")
	}
	if o.Tokens.Delivered = granted; granted == want {
		return res, nil
	}
	return c.deliverLess(ctx, tm, res, spent, outcome)
}

// deliverLess returns what fits into the tokens of a result that were granted, Tokens.Delivered: the result
// made smaller, or cut. spent is the limit that ran out. If it is nil, the branch ran out: then a cut
// ends the call, with outcome, and the branch.
func (c *Call) deliverLess(ctx context.Context, tm TokenMeter, res *Result, spent *limits.ExceededError, outcome folding.CallOutcome) (*Result, error) {
	o, branch, granted := &c.Outcome, c.Attribution.Branch, c.Outcome.Tokens.Delivered
	if o.Shrink != nil { // only now is it known how much is left
		if small := o.Shrink(granted); small != nil && tm.Result(small) <= granted {
			o.Tokens.Delivered = tm.Result(small)
			o.refund(granted - o.Tokens.Delivered)
			return small, nil
		}
	}
	var cut *Result
	o.Tokens.Delivered = 0
	if c.foldable(res) && !res.opaque() { // the host can't use anything else in another form
		why := ""
		if spent != nil {
			why = fmt.Sprintf("limit %s of %d %s exhausted%s", spent.Limit, spent.Total, spent.Unit, until(spent.Reset))
		} else {
			why = fmt.Sprintf("branch budget of %d tokens exhausted", branch.BudgetTotal)
		}
		cut, o.Tokens.Delivered = cutResult(tm, res, granted, "\n[cut by foldgate: "+why+"]")
	}
	o.refund(granted - o.Tokens.Delivered)
	o.Truncated, o.Decision = true, trace.ReasonLimit
	if cut == nil {
		outcome.Err = "the result did not fit"
	}
	if spent != nil {
		if o.rule, o.limit = spent.Limit, spent.Limit; cut == nil {
			c.keep()
			return nil, c.limitRefusal(spent, fmt.Sprintf("but its result of %d tokens does not fit", tm.Result(res)))
		}
		return cut, nil
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

// cutResult cuts the text of a result and appends the notice. It returns the cut result, of at most limit
// tokens, and its tokens. The result keeps a workflow's handle, which the next call needs, if that fits,
// too. It returns nil if not even the notice fits.
func cutResult(tm TokenMeter, res *Result, limit int, notice string) (cut *Result, tokens int) {
	p := split(res, true)
	text := p.text
	if len(p.structured) > len(text) {
		text = string(p.structured)
	}
	for {
		over := 0
		for room := limit - tm.Counter.Count(notice); room > 0; room -= max(over, 1) { // the tokens at the seam may merge to more
			kept, _ := tm.Counter.Truncate(text, room)
			cut = p.with(kept+notice, nil)
			if over = tm.Result(cut) - limit; over <= 0 {
				return cut, tm.Result(cut)
			}
		}
		if p.kept == nil {
			return nil, 0
		}
		p.kept = nil
	}
}
