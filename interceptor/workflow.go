package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Flow is a call's part in a workflow.
type WorkflowStep struct {
	// Rule is the rule that names the tool.
	Rule *workflow.Rule
	// Handle is the handle that the host gave for foldgate; Native the id that it
	// gave to the server, in a parameter of the server's own.
	Handle, Native string
	// Echo says where a result carries the handle.
	Echo Echo
	// Opener is the name under which hosts know the tool that starts the workflow.
	Opener string

	step  *workflow.Step
	err   error
	begun bool // the step exists
}

// handle returns the handle of the call's step, "" where it has none yet.
func (f *WorkflowStep) handle() string {
	if f == nil || !f.begun || f.Echo == (Echo{Argument: f.Echo.Argument}) {
		return ""
	}
	return f.step.HostID()
}

// Echo says where a result carries the handle. The zero value leaves results
// as they are.
type Echo struct {
	// Argument is the name of the parameter, and of the handle in results.
	Argument string
	// Key is the member of structuredContent that the tool's output schema was
	// extended by; "" for none. One that differs from Argument holds an object.
	Key string
	// Content adds a text block where a handle is new or needed for a retry;
	// Meta sets a key of _meta on every result.
	Content, Meta bool
}

// MetaContextID is the key of _meta that carries a workflow's handle, on a
// call as on a result.
const MetaContextID = "io.github.foldgate/context_id"

// Workflows is what the workflow layer works with. A nil one leaves calls alone.
type Workflows struct {
	Engine   *workflow.Engine
	Recorder *Recorder
	Boundary *Boundary
	Log      *slog.Logger
}

// Locate finds out which step of which workflow c is. It has no effect beyond
// c, so that Trace can record it before anything happens; a call that may not
// go on is remembered and refused by the layer.
func (w *Workflows) Locate(ctx context.Context, c *Call) {
	f := c.Target.Workflow
	if w == nil || f == nil || f.step != nil || f.err != nil {
		return
	}
	native := f.Native
	if native == "" {
		native = roundTrip(c.Target.Params)
	}
	f.step, f.err = w.Engine.Plan(ctx, workflow.Request{
		Rule: f.Rule, Principal: c.Origin.Principal, Session: c.Origin.Session, ID: f.Handle, NativeID: native, Arguments: c.Target.Arguments,
		Secret: func(text string) bool {
			m := Message{Text: text, Always: true}
			w.Boundary.Inbound(ctx, &m)
			return m.Verdict != Passed
		},
	})
	if f.err == nil {
		for _, id := range []string{f.step.Opened, f.step.Started} {
			if id != "" && len(c.Origin.Correlates) < trace.MaxIDs { // the host's own come first
				c.Origin.Correlates = trace.IDs(c.Origin.Correlates).Union(trace.IDs{id})
			}
		}
	}
}

// Middleware keeps workflows: the step exists before the call leaves, its
// outcome is noted after, and the result carries the handle. It is installed
// outside Scrub, so that handles are added to clean results and captured values
// hold no secret, and inside Meter, because what it adds is delivered. It is nil
// where there are no workflows.
func (w *Workflows) Middleware() Middleware {
	if w == nil {
		return nil
	}
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if c.Target.Workflow == nil {
				return next(ctx, c)
			}
			return w.call(ctx, c, next)
		}
	}
}

func (w *Workflows) call(ctx context.Context, c *Call, next Handler) (*Result, error) {
	w.Locate(ctx, c)
	f := c.Target.Workflow
	if f.err != nil {
		return nil, w.refuse(ctx, c, f.err)
	}
	if f.Rule.Role == workflow.RoleOpen {
		w.sweep(ctx)
	}
	record := trace.NewID()
	if err := w.Engine.Begin(ctx, f.step, c.Outcome.Record, record); err != nil {
		return nil, w.refuse(ctx, c, err)
	}
	f.begun = true
	w.began(c, record)
	res, err := next(ctx, c)
	native, status := "", statusOf(ctx, res, err)
	var body json.RawMessage
	if res != nil && res.Error == nil {
		body = res.Body
		native = nativeID(f, body)
	}
	after := context.WithoutCancel(ctx)
	if eerr := w.Engine.End(after, f.step, workflow.Outcome{Status: status, Result: body, NativeID: native}); eerr != nil {
		w.Log.Error("outcome of a workflow step lost: the call had already been made", "step", f.step.ID, "err", eerr)
	}
	if f.Rule.Role == workflow.RoleClose && status == workflow.Completed {
		w.completed(after, c)
	}
	return f.echo(res, err)
}

// refuse notes the decision on the call and returns what the model reads. Of a
// call that is over it is why: the store can't be asked any more, but has no fault.
func (w *Workflows) refuse(ctx context.Context, c *Call, err error) error {
	f := c.Target.Workflow
	r := &Refusal{Reason: "invalid", Code: "context_not_found", Status: 404, Err: err}
	arg := f.Echo.Argument
	if arg == "" {
		arg = "context_id"
	}
	switch {
	case errors.Is(err, workflow.ErrRequired):
		r.Code, r.Status = "context_required", 400
		r.Message = fmt.Sprintf("%s continues a workflow and the call names none; pass the %s that %s returned, or call %s to start one", c.Target.Name, arg, f.Opener, f.Opener)
	case errors.Is(err, workflow.ErrUnknown) && workflow.ValidID(f.Handle):
		r.Message = fmt.Sprintf("context %s is unknown or expired; call %s to start a new one", f.Handle, f.Opener)
	case errors.Is(err, workflow.ErrUnknown):
		r.Message = fmt.Sprintf("%s is not a handle that %s returned; pass one as it was returned, or leave it out", arg, f.Opener)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		w.Log.Error("workflow store", "err", err)
		r.Reason, r.Code, r.Status = "workflow", "workflow_unavailable", 500
		r.Message = "the call was not made because its workflow could not be kept; the operator must free space or repair the state directory"
	}
	c.Outcome.Decision = r.Reason
	return r
}

// nativeID returns the id of the server's own in a result: its handle, or the
// state by which the next round of an unfinished call is known.
func nativeID(f *WorkflowStep, body json.RawMessage) string {
	if f.Echo.Argument != "" && f.Echo.Key != f.Echo.Argument {
		if id, ok := rawjson.GetString(body, "structuredContent", f.Echo.Argument); ok {
			return id
		}
	}
	return roundTrip(body)
}

// roundTrip returns an alias for the requestState that ties the rounds of a
// call together in revision 2026-07-28, "" where there is none.
func roundTrip(v json.RawMessage) string {
	state, ok := rawjson.GetString(v, "requestState")
	if !ok || state == "" {
		return ""
	}
	return workflow.StateAlias(state)
}

// statusOf is what a call came to.
func statusOf(ctx context.Context, res *Result, err error) string {
	var refusal *Refusal
	var ended *folding.EndedError
	switch {
	case err == nil && res.Error != nil:
		return workflow.Failed
	case err == nil:
		if failed, _ := rawjson.Get(res.Body, "isError"); string(failed) == "true" {
			return workflow.Failed
		}
		if kind, _ := rawjson.GetString(res.Body, "resultType"); kind == "input_required" {
			return workflow.InputRequired
		}
		return workflow.Completed
	case errors.As(err, &ended), errors.As(context.Cause(ctx), &ended):
		return workflow.Canceled
	case errors.As(err, &refusal):
		if refusal.Reason == "unsafe" || refusal.Reason == "policy" {
			return workflow.Rejected
		}
		return workflow.Failed
	case ctx.Err() != nil:
		return workflow.Canceled
	}
	return workflow.Failed
}
