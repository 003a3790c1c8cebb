package interceptor

import (
	"bytes"
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
	// Output says where a result carries the handle.
	Output Output
	// Opener is the name under which hosts know the tool that starts the workflow.
	Opener string

	step  *workflow.Step
	err   error
	begun bool // the step exists
}

// handle returns the handle of the call's step, "" where it has none yet.
func (f *WorkflowStep) handle() string {
	if f == nil || !f.begun || f.Output == (Output{Argument: f.Output.Argument}) {
		return ""
	}
	return f.step.HostID()
}

// Output says where a result carries the handle. The zero value leaves results
// as they are.
type Output struct {
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
	return f.addHandle(res, err)
}

// refuse notes the decision on the call and returns what the model reads. Of a
// call that is over it is why: the store can't be asked any more, but has no fault.
func (w *Workflows) refuse(ctx context.Context, c *Call, err error) error {
	f := c.Target.Workflow
	r := &Refusal{Reason: "invalid", Code: "context_not_found", Status: 404, Err: err}
	arg := f.Output.Argument
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
	if f.Output.Argument != "" && f.Output.Key != f.Output.Argument {
		if id, ok := rawjson.GetString(body, "structuredContent", f.Output.Argument); ok {
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

// addHandle puts the handle where the host and its model can find it. Hosts that see
// an output schema show structured content only, the others text only.
func (f *WorkflowStep) addHandle(res *Result, err error) (*Result, error) {
	id := f.step.HostID()
	if id == "" || f.Output == (Output{Argument: f.Output.Argument}) {
		return res, err
	}
	if r, ok := err.(*Refusal); ok { // not one inside: its text may be withheld
		shown := *r
		shown.ContextID = id
		return nil, &shown
	}
	if err != nil || res.Error != nil || rawjson.KindOf(res.Body) != rawjson.Object {
		return res, err
	}
	body := res.Body
	if f.Output.Key != "" {
		body = f.addStructured(body, id)
	}
	kind, _ := rawjson.GetString(body, "resultType")
	failed, _ := rawjson.Get(body, "isError")
	announce := f.Rule.Role == workflow.RoleOpen || f.Rule.Role == workflow.RoleLink || string(failed) == "true"
	if f.Output.Content && announce && kind != "input_required" {
		body = appendHandle(body, f.Output.Argument, id)
	}
	if f.Output.Meta {
		body = rawjson.Set(body, rawjson.Quote(id), "_meta", MetaContextID)
	}
	return &Result{Body: body, Extra: res.Extra}, nil
}

// addStructured adds the handle to structured content that is an object, and
// never in place of something that the server wrote.
func (f *WorkflowStep) addStructured(body json.RawMessage, id string) json.RawMessage {
	structured, ok := rawjson.Get(body, "structuredContent")
	if !ok || rawjson.KindOf(structured) != rawjson.Object {
		return body
	}
	if _, taken := rawjson.Get(structured, f.Output.Key); taken {
		return body
	}
	value := rawjson.Quote(id)
	if f.Output.Key != f.Output.Argument {
		value = rawjson.Set([]byte(`{}`), value, f.Output.Argument)
	}
	return rawjson.Set(body, value, "structuredContent", f.Output.Key)
}

// handleText states facts: models refuse results that give orders.
func handleText(argument, id string) string {
	return argument + "=" + id + " — handle for this workflow. Tools that declare an optional " + argument + " parameter accept this value."
}

// maxHandleBlock bounds what passes as a handle, in bytes.
const maxHandleBlock = 512

// isHandle reports whether a block of content is the one that carries a
// workflow's handle: folding leaves it, because it is needed for the next call.
func isHandle(block []byte) bool {
	_, marked := rawjson.Get(block, "_meta", MetaContextID)
	return marked && len(block) <= maxHandleBlock
}

// takeHandle takes the block that carries the handle out of a result; nil where
// there is none.
func takeHandle(res *Result) (rest *Result, handle []byte) {
	content, _ := rawjson.Get(res.Body, "content")
	var blocks [][]byte
	rawjson.Elements(content, func(v []byte) bool {
		if handle == nil && isHandle(v) {
			handle = v
		} else {
			blocks = append(blocks, v)
		}
		return true
	})
	if handle == nil {
		return res, nil
	}
	list := append(append([]byte{'['}, bytes.Join(blocks, []byte{','})...), ']')
	return &Result{Body: rawjson.Set(res.Body, list, "content"), Extra: res.Extra}, handle
}

// contentOf is a result with one block.
func contentOf(block []byte) json.RawMessage {
	return append(append([]byte(`{"content":[`), block...), `]}`...)
}

// appendHandle adds the text block that carries the handle to a result's content.
func appendHandle(body json.RawMessage, argument, id string) json.RawMessage {
	block := append([]byte(`{"type":"text","text":`), rawjson.Quote(handleText(argument, id))...)
	block = rawjson.Set(append(block, '}'), rawjson.Quote(id), "_meta", MetaContextID)
	content, ok := rawjson.Get(body, "content")
	if ok && rawjson.KindOf(content) != rawjson.Array {
		return body
	}
	list := []byte{'['}
	rawjson.Elements(content, func(v []byte) bool {
		list = append(append(list, v...), ',')
		return true
	})
	return rawjson.Set(body, append(append(list, block...), ']'), "content")
}

// workflowAudit is the form of a record's audit.workflow.
type workflowAudit struct {
	Name      string            `json:"name"`
	ContextID string            `json:"context_id,omitempty"`
	Path      string            `json:"path,omitempty"`
	Role      workflow.Role     `json:"role,omitempty"`
	Step      string            `json:"step,omitempty"`
	Attempt   int               `json:"attempt,omitempty"`
	Status    string            `json:"status,omitempty"`
	Evidence  workflow.Evidence `json:"evidence,omitempty"`
	Ambiguous bool              `json:"ambiguous,omitempty"`
	A2A       *a2aIDs           `json:"a2a,omitempty"`
}

// a2aIDs are the ids by which the A2A protocol would know the step.
type a2aIDs struct {
	ContextID string `json:"contextId"`
	TaskID    string `json:"taskId"`
}

// audit is what the trace says of the call's workflow; nil for none.
func (f *WorkflowStep) audit() json.RawMessage {
	if f == nil {
		return nil
	}
	if f.step == nil { // refused: it is in no workflow
		return rawjson.Marshal(workflowAudit{Name: f.Rule.Workflow.Name, Role: f.Rule.Role})
	}
	s := f.step
	a := workflowAudit{
		Name: f.Rule.Workflow.Name, ContextID: s.ID, Path: s.Path, Role: f.Rule.Role, Evidence: s.Evidence, Ambiguous: s.Ambiguous,
	}
	if s.ID != "" {
		a.Step, a.Attempt, a.Status = s.Name, s.Attempt, s.Status
		a.A2A = &a2aIDs{ContextID: s.Root, TaskID: s.ID}
		if s.Foreign != "" {
			a.A2A.ContextID = s.Foreign
		}
	}
	return rawjson.Marshal(a)
}

// began records that a workflow was started, or went on.
func (w *Workflows) began(c *Call, id string) {
	s := c.Target.Workflow.step
	kind := trace.KindFlowProceed
	switch {
	case s.ID == "" || c.Target.Workflow.Rule.Role == workflow.RoleStatus || c.Target.Workflow.Rule.Role == workflow.RoleClose:
		return
	case s.New && s.ID == s.Root:
		kind = trace.KindFlowStart
	}
	payload := map[string]any{"context_id": s.ID, "path": s.Path, "workflow": c.Target.Workflow.Rule.Workflow.Name, "step": s.Name, "attempt": s.Attempt, "evidence": s.Evidence}
	rec := w.record(c, kind, payload)
	rec.ID, rec.CorrelationID = id, trace.IDs{c.Outcome.Record}
	if s.Started != "" {
		rec.CorrelationID = append(rec.CorrelationID, s.Started)
	}
	w.Recorder.Note(rec)
}

// completed records that a workflow was closed: it correlates to the call, to
// the start and to every step.
func (w *Workflows) completed(ctx context.Context, c *Call) {
	if c.Target.Workflow.step.ID == "" {
		return
	}
	ended, err := w.Engine.Ending(ctx, c.Target.Workflow.step)
	if err != nil {
		w.Log.Error("end of a workflow not recorded", "workflow", c.Target.Workflow.step.Root, "err", err)
		return
	}
	rec := w.record(c, trace.KindFlowComplete, map[string]any{"context_id": ended.ID, "workflow": ended.Workflow, "reason": "closed", "steps": ended.Steps})
	rec.CorrelationID = fanIn(c.Outcome.Record, ended.Records)
	w.Recorder.Note(rec)
}

// Sweep ends all workflows that expired, and records it.
func (w *Workflows) Sweep(ctx context.Context) {
	for w.sweep(ctx) && ctx.Err() == nil {
	}
}

// sweep ends a few workflows that expired, and records it; it reports whether
// there were any.
func (w *Workflows) sweep(ctx context.Context) bool {
	all, err := w.Engine.Expire(ctx)
	if err != nil {
		if ctx.Err() == nil {
			w.Log.Error("expired workflows are still kept", "err", err)
		}
		return false
	}
	for _, ended := range all {
		w.Recorder.Note(&trace.Record{
			From: "foldgate", To: []string{"host"}, Kind: trace.KindFlowComplete, CorrelationID: fanIn("", ended.Records),
			Payload: rawjson.Marshal(map[string]any{"context_id": ended.ID, "workflow": ended.Workflow, "reason": "expired", "steps": ended.Steps}),
			Audit: &trace.Audit{
				Session: ended.Session, Principal: ended.Principal,
				Workflow: rawjson.Marshal(workflowAudit{Name: ended.Workflow, ContextID: ended.ID, Path: ended.ID}),
			},
		})
	}
	return len(all) > 0
}

// fanIn is what the end of a workflow correlates to, as far as a record can.
func fanIn(call string, records []string) trace.IDs {
	ids := trace.IDs{}
	if call != "" {
		ids = append(ids, call)
	}
	ids = ids.Union(records)
	return ids[:min(len(ids), trace.MaxIDs)]
}

// record is a record about the workflow of c, from foldgate itself.
func (w *Workflows) record(c *Call, kind string, payload map[string]any) *trace.Record {
	return &trace.Record{
		From: "foldgate", To: []string{c.Origin.From}, Kind: kind, Context: c.Attribution.Context, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: c.Origin.Session, Principal: c.Origin.Principal, Server: c.Target.Server, Tool: c.Target.Name, Workflow: c.Target.Workflow.audit()},
	}
}
