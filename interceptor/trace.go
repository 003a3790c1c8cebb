package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Recorder writes the trace records of calls, notifications and branch events.
// It is safe for concurrent use.
type Recorder struct {
	// Journal takes the records; Scrub takes the secrets out of them.
	Journal *trace.Journal
	Scrub   *scrub.Scrubber
	// Payload says whether payloads are stored (scrubbed) or left out.
	Payload bool
	// Refuse makes a journal that can't be written refuse calls before they
	// have an effect; otherwise the fault is only logged.
	Refuse bool
	// Counter is the name of the token counter, for the records.
	Counter string
	Log     *slog.Logger

	mu         sync.Mutex
	deprecated map[string]int // uses of deprecated forms, by code
}

// ErrTrace marks a call that was refused because its record could not be written.
var ErrTrace = errors.New("the trace can't be written")

// Append writes one record, with the payload in pieces if there are any; see
// [trace.Journal.Append]. Where the policy is to go on without a trace, a
// fault is logged and nil returned.
func (r *Recorder) Append(rec *trace.Record, payload ...[]byte) error {
	if !r.Payload {
		rec.Payload, payload = nil, nil
	}
	err := r.Journal.Append(rec, payload...)
	if err == nil {
		return nil
	}
	if r.Refuse {
		return fmt.Errorf("%w: %w", ErrTrace, err)
	}
	r.Log.Error("trace record lost", "kind", rec.Kind, "err", err)
	return nil
}

// Note writes a record about something that has already happened: a fault is
// only logged.
func (r *Recorder) Note(rec *trace.Record) {
	if err := r.Append(rec); err != nil {
		r.Log.Error("record lost", "kind", rec.Kind, "err", err)
	}
}

// Deprecated counts one use of a deprecated form, by its code. The first, tenth,
// hundredth, … is recorded and logged, so that a busy host does not flood the trace.
func (r *Recorder) Deprecated(code string) {
	r.mu.Lock()
	if r.deprecated == nil {
		r.deprecated = map[string]int{}
	}
	r.deprecated[code]++
	n := r.deprecated[code]
	r.mu.Unlock()
	for m := n; m > 1; m /= 10 {
		if m%10 != 0 {
			return
		}
	}
	r.Log.Warn("a host uses a deprecated form", "code", code, "count", n)
	r.Note(&trace.Record{
		From: "foldgate", To: []string{"host"}, Kind: trace.KindWarning,
		Payload: rawjson.Marshal(map[string]any{"code": code, "count": n}), Audit: &trace.Audit{Deprecated: []string{code}},
	})
}

// Trace records every call: the request before it has any effect, the response
// after whatever happened. It is the outermost layer, so refusals and panics
// are recorded like everything else. locate finds the call's branch and its
// workflow first, without effects, because the request record carries them.
func Trace(r *Recorder, locate func(context.Context, *Call)) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			start := time.Now()
			locate(ctx, c)
			if c.Outcome.Record == "" {
				c.Outcome.Record = trace.NewID()
			}
			if err := r.request(ctx, c); err != nil {
				c.Outcome.Decision = "trace"
				return nil, &Refusal{Reason: "trace", Code: "trace_unavailable", Status: 500, Err: err,
					Message: "the call was not made because its trace record could not be written; the operator must free space or repair the state directory"}
			}
			res, err := next(ctx, c)
			if aerr := r.response(ctx, c, res, err, time.Since(start)); aerr != nil {
				r.Log.Error("response record lost: the call had already been made", "method", c.Target.Method, "server", c.Target.Server, "err", aerr)
			}
			return res, err
		}
	}
}

// request records the request.
func (r *Recorder) request(ctx context.Context, c *Call) error {
	e := r.entry(c)
	defer e.release()
	rec := &e.rec
	rec.ID, rec.Kind, rec.From, e.to[0], rec.CorrelationID = c.Outcome.Record, trace.KindRequest+c.Target.Method, c.Origin.From, c.Target.To, c.Origin.Correlates
	e.audit.Bytes = int64(len(c.Target.Params))
	if !r.Payload {
		return r.Append(rec)
	}
	member, params := []byte(`,"params":`), r.params(ctx, c)
	if params == nil {
		member = nil
	}
	var method [64]byte
	return r.Append(rec, rpcHead, r.id(ctx, c.Origin.ID), methodMember, rawjson.AppendQuote(method[:0], c.Target.Method), member, params, closing)
}

// What the JSON-RPC messages in payloads have in common.
var rpcHead, methodMember, closing = []byte(`{"jsonrpc":"2.0","id":`), []byte(`,"method":`), []byte(`}`)

// response records what came back, or the refusal.
func (r *Recorder) response(ctx context.Context, c *Call, res *Result, err error, took time.Duration) error {
	e := r.entry(c)
	defer e.release()
	rec, a := &e.rec, &e.audit
	rec.Kind, rec.From, e.to[0], e.answers[0] = trace.KindResponse+c.Target.Method, c.Target.To, c.Origin.From, c.Outcome.Record
	rec.CorrelationID = e.answers[:]
	a.MS = float64(took.Microseconds()) / 1000
	var member string
	var body json.RawMessage
	switch {
	case err != nil:
		member, body = `,"error":`, append(rawjson.AppendQuote([]byte(`{"message":`), r.text(ctx, err)), '}')
		a.IsError = true
	case res.Error != nil:
		member, body = `,"error":`, r.stored(ctx, c, res.Error)
		a.Bytes, a.IsError = int64(len(res.Error)), true
	default:
		member, body = `,"result":`, r.stored(ctx, c, res.Body)
		a.Bytes = int64(len(res.Body))
		failed, _ := rawjson.Get(res.Body, "isError")
		a.IsError = string(failed) == "true"
	}
	a.Scrub = findings(c.Outcome.Findings, c.Outcome.ArgumentFindings)
	return r.Append(rec, rpcHead, r.id(ctx, c.Origin.ID), []byte(member), body, closing)
}

// params returns the call's parameters as the trace may store them.
func (r *Recorder) params(ctx context.Context, c *Call) json.RawMessage {
	o := &c.Outcome
	if len(c.Target.Params) == 0 || o.paramsScrubbed {
		return o.scrubbedParams
	}
	found := &o.ArgumentFindings
	if c.Origin.Direction == FromUpstream {
		found = &o.Findings
	}
	o.paramsScrubbed = true
	o.scrubbedParams, *found = r.check(ctx, c.Target.Params)
	return o.scrubbedParams
}

// stored returns a result as the trace may store it: without secrets, also
// if the policy lets them pass to the host.
func (r *Recorder) stored(ctx context.Context, c *Call, raw json.RawMessage) json.RawMessage {
	if !r.Payload || c.Outcome.resultScrubbed || c.Outcome.Clean && !c.Outcome.Open {
		return raw
	}
	clean, found := r.check(context.WithoutCancel(ctx), raw)
	if len(c.Outcome.Findings) == 0 {
		c.Outcome.Findings = found
	}
	return clean
}

// check is the recorder's own look at JSON that the boundary lets pass with
// secrets, or that has not been there yet.
func (r *Recorder) check(ctx context.Context, raw json.RawMessage) (json.RawMessage, []scrub.Finding) {
	clean, found, err := r.Scrub.JSON(ctx, raw)
	if err != nil {
		return withheldJSON, nil
	}
	return clean, found
}

var withheldJSON = json.RawMessage(`"withheld: could not be checked for secrets"`)

// text returns an error's text as the trace may store it: it can quote what an
// agent wrote.
func (r *Recorder) text(ctx context.Context, err error) string {
	clean, _, serr := r.Scrub.Text(context.WithoutCancel(ctx), err.Error())
	if serr != nil {
		return "withheld: could not be checked for secrets"
	}
	return clean
}

// id returns a request's id as the trace may store it: a string may hold
// anything.
func (r *Recorder) id(ctx context.Context, id json.RawMessage) json.RawMessage {
	switch {
	case id == nil:
		return json.RawMessage("null")
	case r.Payload && rawjson.KindOf(id) == rawjson.String:
		id, _ = r.check(context.WithoutCancel(ctx), id)
	}
	return id
}

// An entry is a record and what it points to, in one piece.
type entry struct {
	rec         trace.Record
	audit       trace.Audit
	tokens      trace.Tokens
	to, answers [1]string
}

// entries are for the next calls: the journal keeps nothing of a record.
var entries = sync.Pool{New: func() any { return new(entry) }}

func (e *entry) release() {
	*e = entry{}
	entries.Put(e)
}

// entry begins a record of c, with what the layers noted on it; release gives
// it back.
func (r *Recorder) entry(c *Call) *entry {
	e := entries.Get().(*entry)
	e.rec.To, e.rec.Context, e.rec.Audit = e.to[:], c.Attribution.Context, &e.audit
	a := &e.audit
	*a = trace.Audit{
		Session: c.Origin.Session, Principal: c.Origin.Principal, Server: c.Target.Server, Method: c.Target.Method, Era: c.Origin.Revision,
		Rung: string(c.Attribution.Source), Thread: c.Origin.Thread, Traceparent: c.Origin.Traceparent,
		Late: c.Outcome.Late, Ambiguous: c.Attribution.Ambiguous, OverBudget: c.Outcome.Decision == "resource_limit", Workflow: c.Target.Workflow.audit(),
		Deprecated: c.Origin.Deprecated,
	}
	if c.ofTool() {
		a.Tool = c.Target.Name
	}
	if c.Outcome.Decision != "" {
		a.Decision = &trace.Decision{Result: trace.Blocked, Reason: c.Outcome.Decision}
		if c.Outcome.Truncated || c.Outcome.Folded {
			a.Decision.Result = trace.Allowed
		}
	}
	if c.Outcome.Tokens != (Usage{}) {
		a.Tokens = &e.tokens
		e.tokens = trace.Tokens{
			Counter: r.Counter, In: c.Outcome.Tokens.In, Out: c.Outcome.Tokens.Out, Delivered: c.Outcome.Tokens.Delivered,
			Used: c.Outcome.Tokens.BranchUsed, Budget: c.Outcome.Tokens.BranchBudget,
		}
	}
	if c.Outcome.Fold != "" {
		a.Fold = &trace.Fold{Handle: c.Outcome.Fold, Saved: c.Outcome.Saved}
	}
	a.Read = c.Outcome.Read
	a.Scrub = findings(c.Outcome.Findings, c.Outcome.ArgumentFindings)
	return e
}

// findings sums scrub findings by rule and place.
func findings(lists ...[]scrub.Finding) []trace.Finding {
	var out []trace.Finding
	for _, list := range lists {
	next:
		for _, f := range list {
			for i := range out {
				if out[i].Rule == f.Rule && out[i].Field == f.Where {
					out[i].Count++
					continue next
				}
			}
			out = append(out, trace.Finding{Rule: f.Rule, Field: f.Where, Count: 1})
		}
	}
	return out
}

// Notification describes a message that expects no answer.
type Notification struct {
	// From and To are the two ends; Context is the branch's path, "" for main.
	From, To, Session, Context string
	// Correlates are ids of the records that caused it.
	Correlates []string
	Method     string
}

// Notification records m, the params of a notification, once the boundary has
// decided on it. It is the one place for messages that are not calls.
func (r *Recorder) Notification(ctx context.Context, n Notification, m *Message) error {
	rec := &trace.Record{
		From: n.From, To: []string{n.To}, Kind: trace.KindNotification + n.Method, CorrelationID: n.Correlates, Context: n.Context,
		Audit: &trace.Audit{Session: n.Session, Method: n.Method, Bytes: int64(len(m.Body)), Scrub: findings(m.Found)},
	}
	if m.Verdict >= Blocked {
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: "unsafe"}
	}
	if r.Payload {
		msg := rawjson.AppendQuote([]byte(`{"jsonrpc":"2.0","method":`), n.Method)
		if params := m.Body; params != nil {
			if !m.clean {
				params, _ = r.check(context.WithoutCancel(ctx), params)
			}
			msg = append(append(msg, `,"params":`...), params...)
		}
		rec.Payload = append(msg, '}')
	}
	return r.Append(rec)
}
