package interceptor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Trace records every call: the request before it has any effect, and the response or the refusal
// after it. Only layers that observe stand outside it, so refusals and panics are recorded.
func Trace(r *Recorder) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if err := r.request(ctx, c); err != nil {
				c.Outcome.Decision = "trace"
				return nil, &Refusal{Reason: "trace", Code: "trace_unavailable", Status: 500, Err: err,
					Message: "the call was not made because its trace record could not be written; the operator must free space or repair the state directory"}
			}
			res, err := next(ctx, c)
			if rerr := r.response(ctx, c, res, err); rerr != nil {
				r.Log.Error("response record lost: the call had already been made", "method", c.Target.Method, "server", c.Target.Server, "err", rerr)
			}
			return res, err
		}
	}
}

// Recorder writes the trace records of calls, notifications and branches, also concurrently.
type Recorder struct {
	Journal *trace.Journal
	Scrub   *scrub.Scrubber
	Payload bool // store payloads, scrubbed; else records have none
	// Refuse makes a journal that can't be written refuse calls before they have an effect.
	// Otherwise the fault is only logged.
	Refuse  bool
	Counter string // the name of the token counter
	Log     *slog.Logger

	mu         sync.Mutex
	deprecated map[string]int // uses of deprecated forms, by code
}

func (r *Recorder) request(ctx context.Context, c *Call) error {
	e := r.entry(c)
	defer e.release()
	e.rec.Kind, e.rec.From, e.to[0] = trace.KindRequest+c.Target.Method, c.Origin.From, c.Target.To
	e.rec.ID, e.rec.CorrelationID = c.Outcome.Record, c.Origin.Correlates
	params := c.Target.Params
	e.audit.Bytes = int64(len(params))
	if !r.Payload {
		return r.write(&e.rec)
	}
	var member []byte
	if len(params) > 0 {
		found, ok := &c.Outcome.ArgumentFindings, false
		if c.Origin.Direction == FromUpstream {
			found = &c.Outcome.Findings
		}
		member = []byte(`,"params":`)
		params, *found, ok = r.check(ctx, params)
		c.Outcome.paramsClean = ok && len(*found) == 0
	}
	return r.write(&e.rec, rpcHead, r.id(ctx, c.Origin.ID), methodMember, rawjson.Quote(c.Target.Method), member, params, closing)
}

// rpcHead, methodMember and closing are the fixed pieces of a JSON-RPC payload.
var rpcHead, methodMember, closing = []byte(`{"jsonrpc":"2.0","id":`), []byte(`,"method":`), []byte(`}`)

func (r *Recorder) response(ctx context.Context, c *Call, res *Result, err error) error {
	e := r.entry(c)
	defer e.release()
	e.rec.Kind, e.rec.From, e.to[0] = trace.KindResponse+c.Target.Method, c.Target.To, c.Origin.From
	e.answers[0] = c.Outcome.Record
	e.rec.CorrelationID = e.answers[:]
	a := &e.audit
	a.MS = float64(time.Since(c.began).Microseconds()) / 1000
	member, body := `,"error":`, json.RawMessage(nil)
	switch {
	case err != nil: // its text may quote the agent
		text, _, serr := r.Scrub.Text(context.WithoutCancel(ctx), err.Error())
		if serr != nil {
			text = withheldRecord
		}
		a.IsError, body = true, append(rawjson.AppendQuote([]byte(`{"message":`), text), '}')
	case res.Error != nil:
		a.IsError, body = true, res.Error
	default:
		a.IsError, body, member = res.Failed(), res.Body, `,"result":`
	}
	if err == nil {
		a.Bytes = int64(len(body))
		if r.Payload && !c.Outcome.Clean {
			clean, found, _ := r.check(ctx, body)
			if body = clean; len(c.Outcome.Findings) == 0 {
				c.Outcome.Findings = found
			}
		}
	}
	a.Scrub = findings(c.Outcome.Findings, c.Outcome.ArgumentFindings)
	return r.write(&e.rec, rpcHead, r.id(ctx, c.Origin.ID), []byte(member), body, closing)
}

// entry is a record with everything that it points to, in one allocation.
type entry struct {
	rec         trace.Record
	audit       trace.Audit
	tokens      trace.Tokens
	to, answers [1]string
}

// entries are reused, because the journal keeps nothing of a record.
var entries = sync.Pool{New: func() any { return new(entry) }}

func (e *entry) release() {
	*e = entry{}
	entries.Put(e)
}

// entry begins a record of a call with the facts noted so far. The caller releases it.
func (r *Recorder) entry(c *Call) *entry {
	e, o := entries.Get().(*entry), &c.Outcome
	e.rec.To, e.rec.Context, e.rec.Audit = e.to[:], c.Attribution.Context, &e.audit
	a := &e.audit
	*a = trace.Audit{
		Session: c.Origin.Session, Principal: c.Origin.Principal, Server: c.Target.Server, Method: c.Target.Method, Era: c.Origin.Revision,
		Rung: string(c.Attribution.Source), Thread: c.Origin.Thread, Traceparent: c.Origin.Traceparent,
		Late: o.Late, Ambiguous: c.Attribution.Ambiguous, OverBudget: o.Decision == "resource_limit", Workflow: c.Target.Workflow.audit(),
		Deprecated: c.Origin.Deprecated, Read: o.Read,
	}
	if c.ofTool() {
		a.Tool = c.Target.Name
	}
	if o.Decision != "" {
		a.Decision = &trace.Decision{Result: trace.Blocked, Reason: o.Decision}
		if o.Truncated || o.Folded {
			a.Decision.Result = trace.Allowed
		}
	}
	if u := o.Tokens; u != (Usage{}) {
		a.Tokens = &e.tokens
		e.tokens = trace.Tokens{Counter: r.Counter, In: u.In, Out: u.Out, Delivered: u.Delivered, Used: u.BranchUsed, Budget: u.BranchBudget}
	}
	if o.Fold != "" {
		a.Fold = &trace.Fold{Handle: o.Fold, Saved: o.Saved}
	}
	return e
}

// id returns a request's id for a payload. A string may hold a secret.
func (r *Recorder) id(ctx context.Context, id json.RawMessage) json.RawMessage {
	if id == nil {
		return json.RawMessage("null")
	}
	if r.Payload && rawjson.KindOf(id) == rawjson.String {
		id, _, _ = r.check(ctx, id)
	}
	return id
}

// Notification describes a message that expects no answer.
type Notification struct {
	From, To, Session string
	Context           string   // the branch's path, "" for main
	Correlates        []string // ids of the records that caused it
	Method            string
	Branch            string // id of the branch that pays for it, "" for main
	Tokens            int    // of the text that a model can read
	Refused           bool   // the branch can't pay for it
}

// Notification records a notification once the boundary has decided on its params, m. It is the
// only place that records messages other than calls.
func (r *Recorder) Notification(ctx context.Context, n Notification, m *Message) error {
	rec := &trace.Record{
		From: n.From, To: []string{n.To}, Kind: trace.KindNotification + n.Method, CorrelationID: n.Correlates, Context: n.Context,
		Audit: &trace.Audit{Session: n.Session, Method: n.Method, Bytes: int64(len(m.Body)), Scrub: findings(m.Found)},
	}
	if n.Tokens > 0 {
		rec.Audit.Tokens = &trace.Tokens{Counter: r.Counter, Out: n.Tokens, Delivered: n.Tokens}
	}
	if n.Refused {
		rec.Audit.Tokens.Delivered = 0
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: "resource_limit"}
	}
	if m.Verdict >= Blocked {
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: "unsafe"}
	}
	if r.Payload {
		msg := rawjson.AppendQuote([]byte(`{"jsonrpc":"2.0","method":`), n.Method)
		if params := m.Body; params != nil {
			if !m.clean {
				params, _, _ = r.check(ctx, params)
			}
			msg = append(append(msg, `,"params":`...), params...)
		}
		rec.Payload = append(msg, '}')
	}
	return r.write(rec)
}

// check is the recorder's own look at JSON that the boundary has not seen yet, or lets pass with
// secrets. ok is false if the JSON could not be checked; the record then has a notice instead.
func (r *Recorder) check(ctx context.Context, raw json.RawMessage) (clean json.RawMessage, found []scrub.Finding, ok bool) {
	clean, found, err := r.Scrub.JSON(context.WithoutCancel(ctx), raw)
	if err != nil {
		return rawjson.Quote(withheldRecord), nil, false
	}
	return clean, found, true
}

const withheldRecord = "withheld: could not be checked for secrets"

func findings(lists ...[]scrub.Finding) (out []trace.Finding) {
	for _, f := range slices.Concat(lists...) {
		i := slices.IndexFunc(out, func(o trace.Finding) bool { return o.Rule == f.Rule && o.Field == f.Where })
		if i < 0 {
			i, out = len(out), append(out, trace.Finding{Rule: f.Rule, Field: f.Where})
		}
		out[i].Count++
	}
	return out
}

// Deprecated counts one use of a deprecated form, by its code. Only the first, tenth, hundredth,
// … use is recorded and logged, so that a busy host does not flood the trace.
func (r *Recorder) Deprecated(code string) {
	r.mu.Lock()
	if r.deprecated == nil {
		r.deprecated = map[string]int{}
	}
	n := r.deprecated[code] + 1
	r.deprecated[code] = n
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

// LeftOut records that count notifications of a server, of so many bytes, have no record: it sent too
// many.
func (r *Recorder) LeftOut(principal, server string, count int, bytes int64) {
	r.Note(&trace.Record{
		From: "upstream:" + server, To: []string{"foldgate"}, Kind: trace.KindWarning,
		Payload: rawjson.Marshal(map[string]any{"code": "notifications_left_out", "count": count, "bytes": bytes}),
		Audit:   &trace.Audit{Principal: principal, Server: server, LeftOut: count, Bytes: bytes},
	})
}

// Note records an event that has already happened. A fault is only logged.
func (r *Recorder) Note(rec *trace.Record) {
	if err := r.write(rec); err != nil {
		r.Log.Error("record lost", "kind", rec.Kind, "err", err)
	}
}

// write writes one record. If there are pieces of payload, they replace the record's; see
// [trace.Journal.Append]. Without Refuse a fault is logged, and nil returned.
func (r *Recorder) write(rec *trace.Record, payload ...[]byte) error {
	if !r.Payload {
		rec.Payload, payload = nil, nil
	}
	err := r.Journal.Append(rec, payload...)
	if err != nil && r.Refuse {
		return fmt.Errorf("the trace can't be written: %w", err)
	}
	if err != nil {
		r.Log.Error("trace record lost", "kind", rec.Kind, "err", err)
	}
	return nil
}
