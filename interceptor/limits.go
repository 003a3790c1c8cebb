package interceptor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Limits are the limits above all branches. A nil *Limits has none. All methods are safe for
// concurrent use.
type Limits struct {
	*limits.Limits
	// Shown returns the name under which hosts see a tool of a server.
	Shown func(server, tool string) string
	// Stateless is the first revision whose requests have no session: they are one subject per
	// principal, which lasts over connections.
	Stateless string
}

// begin charges the arguments of a call. It refuses a call for which a limit has too little left.
func (l *Limits) begin(ctx context.Context, c *Call) (*limits.Spend, error) {
	if l == nil {
		return nil, nil
	}
	spend, err := l.Begin(ctx, l.useOf(c), c.Outcome.Tokens.In)
	if err == nil {
		return spend, nil
	}
	return nil, c.limitRefusal(err, "")
}

// useOf says who uses what in a call.
func (l *Limits) useOf(c *Call) limits.Use {
	u := l.Use(&c.Origin, c.Target.Server, c.Tool(), c.Attribution.Branch != nil)
	if c.Target.Shown != "" {
		u.Tool = c.Target.Shown
	}
	return l.Reading(u, c.Outcome.Read)
}

// Reading adds to a use the tools that made the stored result that a call reads; read is nil if it reads none.
func (l *Limits) Reading(u limits.Use, read *trace.Read) limits.Use {
	for _, t := range read.Makers() {
		u = u.MadeBy(t.Server, l.shown(t.Server, t.Tool))
	}
	return u
}

// Use says who uses what, in a branch or in main. tool is the server's own name.
func (l *Limits) Use(o *Origin, server, tool string, branch bool) limits.Use {
	u := limits.Use{Principal: o.Principal, Team: o.Team, Session: o.Session, Server: server, Tool: l.shown(server, tool), Branch: branch}
	if o.Revision >= l.Stateless {
		u.Session = ""
	}
	return u
}

// shown returns the name under which hosts see a tool, one of foldgate's own if server is "".
func (l *Limits) shown(server, tool string) string {
	if tool == "" || server == "" {
		return tool
	}
	return l.Shown(server, tool)
}

// Pay charges n tokens of a message that is no call's result. refused is "" if all limits had them; else
// it says for the trace what refused the message, which must not be delivered, and nothing is charged.
// The Spend can give the tokens back. It is nil if no limit matches.
func (l *Limits) Pay(ctx context.Context, o *Origin, server, tool string, branch bool, n int) (s *limits.Spend, refused string) {
	if l == nil || n == 0 {
		return nil, ""
	}
	s, err := l.Limits.Pay(ctx, l.Use(o, server, tool, branch), n)
	if err == nil {
		return s, ""
	}
	if _, unavailable := errors.AsType[*limits.UnavailableError](err); unavailable || !s.Confirmed() {
		return nil, trace.RuleUnavailable
	}
	return nil, "limit_exceeded"
}

// BeginModel takes n tokens of a model from the limits of model tokens, or refuses the call. What the model
// does not use is given back. The Spend is nil if no limit matches.
func (l *Limits) BeginModel(ctx context.Context, c *Call, n int) (*limits.Spend, error) {
	if l == nil {
		return nil, nil
	}
	u := l.Use(&c.Origin, "", "", c.Attribution.Branch != nil)
	u.Model = true
	spend, err := l.Begin(ctx, u, n)
	if err != nil {
		return nil, c.limitRefusal(err, "")
	}
	return spend, nil
}

// States returns the limits of a caller, in a branch or in main, that are not those of single tools or servers.
func (l *Limits) States(ctx context.Context, o *Origin, branch bool) ([]limits.State, error) {
	if l == nil {
		return nil, nil
	}
	u := l.Use(o, "", "", branch)
	states, err := l.Status(ctx, u)
	if err != nil {
		return states, err
	}
	u.Model = true
	models, err := l.Status(ctx, u)
	return append(states, models...), err
}

// limitRefusal returns the refusal of a call by a limit, or because the store of limits failed. lost
// says what became of the result of a call that was made, "" for one that was not.
func (c *Call) limitRefusal(err error, lost string) error {
	what, made := "the call was not made", lost != ""
	if made {
		what = "the call was made, " + lost + c.stored()
	}
	r := Refusal{Reason: trace.ReasonLimit, Code: trace.RuleUnavailable, Status: 503, Message: what + ": the store of the limits can't be reached", Err: err} // the log has the cause, with addresses
	exceeded, ok := errors.AsType[*limits.ExceededError](err)
	if ok {
		c.Outcome.limit = exceeded.Limit
		whose := exceeded.Limit
		if exceeded.Subject != "" && !exceeded.Main { // it may be spent by others: of a team, a tool
			whose += " of " + exceeded.Subject
		}
		r = Refusal{Reason: trace.ReasonLimit, Code: "limit_exceeded", Status: 429, Rule: exceeded.Limit, Err: exceeded,
			Message: fmt.Sprintf("limit %s has %d of %d %s left%s: %s; %s", whose, exceeded.Left, exceeded.Total, exceeded.Unit, until(exceeded.Reset), what, remedy(exceeded, made))}
	}
	switch {
	case made: // a repeated call would have its effect twice
	case !ok:
		r.RetryAfter, r.Message = 1, r.Message+"; try again in a while"
	default:
		r.RetryAfter = folding.Seconds(exceeded.RetryAfter(time.Now()))
	}
	return refuse(c, &r)
}

// stored says where the result of a call is that was not delivered, "" if it is not stored.
func (c *Call) stored() string {
	if c.Outcome.Fold == "" || c.Target.Batch != "" {
		return ""
	}
	return "; its result is stored, read it later with branch_read and the handle " + c.Outcome.Fold
}

func until(reset time.Time) string {
	if reset.IsZero() {
		return ""
	}
	return " until " + reset.UTC().Format(time.RFC3339)
}

// remedy says what an agent can do about a spent limit.
func remedy(e *limits.ExceededError, made bool) string {
	switch {
	case e.Main:
		return "it counts calls outside of branches only: open a branch with branch_create, pass its branch_id to your calls, and end it with branch_return"
	case e.Reset.IsZero() || made:
		return "go on with what you have"
	}
	return "go on with what you have, or try again after that time"
}

// take charges up to n tokens of a result to the branch of a call and to the limits. It returns how
// many may be delivered and, if that is fewer because of a limit, which. A call in main has no lease. of is
// what the branch keeps of the call.
func (o *Outcome) take(ctx context.Context, n int, of folding.CallOutcome) (granted int, spent *limits.ExceededError, err error) {
	if granted = n; o.lease != nil {
		if o.spend == nil { // no limit can refuse the result
			granted, err = o.lease.Deliver(n, of)
		} else {
			granted, err = o.lease.ChargeUpTo(n)
		}
		if err != nil {
			_, o.Late = errors.AsType[*folding.EndedError](err)
			return 0, nil, err
		}
	}
	if granted == 0 {
		return 0, nil, nil
	}
	inBranch := granted
	if granted, spent, err = o.spend.Take(ctx, inBranch); o.lease != nil && granted < inBranch {
		o.lease.Refund(inBranch - granted)
	}
	return granted, spent, err
}

// refund returns tokens that were taken and are not delivered.
func (o *Outcome) refund(n int) {
	if n == 0 {
		return
	}
	if o.lease != nil {
		o.lease.Refund(n)
	}
	o.spend.Refund(n)
}

// Crossed records that the use of a limit crossed a mark, once for each mark, subject and window.
func (r *Recorder) Crossed(x limits.Crossing) {
	payload := map[string]any{"limit": x.Limit, "subject": x.Subject, "action": x.Action}
	if x.Tokens > 0 {
		payload["tokens"], payload["tokens_used"] = x.Tokens, x.TokensUsed
	}
	if x.Calls > 0 {
		payload["calls"], payload["calls_used"] = x.Calls, x.CallsUsed
	}
	if !x.Reset.IsZero() {
		payload["resets_at"] = x.Reset.UTC().Format(time.RFC3339)
	}
	rec := &trace.Record{
		From: "foldgate", To: []string{"operator"}, Kind: trace.KindBudget + x.Kind, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: x.Use.Session, Principal: x.Use.Principal, Team: x.Use.Team, Server: x.Use.Server, Decision: &trace.Decision{Result: trace.Allowed, Reason: trace.ReasonLimit, Rule: x.Limit}},
	}
	if x.Kind == "refused" {
		rec.Audit.Decision.Result, rec.Audit.OverBudget = trace.Blocked, true
	}
	r.Note(rec)
}

// Crossed counts that the use of a limit crossed a mark. A nil Telemetry counts nothing.
func (t *Telemetry) Crossed(x limits.Crossing) {
	if t == nil {
		return
	}
	t.crossings.Add(context.Background(), 1, metric.WithAttributes(append(t.userLabels(x.Use.Principal, x.Use.Team),
		limitKey.String(x.Limit), attribute.String("foldgate.crossing", x.Kind))...))
}

// countUse counts what a call cost its team, and whether a limit refused or cut it.
func (t *Telemetry) countUse(ctx context.Context, c *Call) {
	labels := t.userLabels(c.Origin.Principal, c.Origin.Team)
	if c.Outcome.Unconfirmed {
		t.unconfirmed.Add(ctx, 1, metric.WithAttributes(labels...))
	}
	if n := c.Outcome.Tokens.In + c.Outcome.Tokens.Delivered; n > 0 && c.Target.Metered && !c.Target.Control {
		t.used.Add(ctx, int64(n), metric.WithAttributes(labels...))
	}
	if c.Outcome.limit != "" {
		t.overLimit.Add(ctx, 1, metric.WithAttributes(append(labels, limitKey.String(c.Outcome.limit))...))
	}
}

// userLabels returns the labels of who uses something.
func (t *Telemetry) userLabels(principal, team string) []attribute.KeyValue {
	labels := append(make([]attribute.KeyValue, 0, 4), attribute.String("foldgate.team", team))
	if t.ByPrincipal {
		labels = append(labels, attribute.String("foldgate.principal", principal))
	}
	return labels
}

const limitKey attribute.Key = "foldgate.limit"
