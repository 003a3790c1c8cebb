package interceptor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Workflows keeps the workflows of calls. A nil one leaves calls alone.
type Workflows struct {
	Engine   *workflow.Engine
	Recorder *Recorder
	Log      *slog.Logger
}

// Layer returns the layer for workflows, nil if there are none. It creates the step before
// the call leaves, notes the step's outcome afterwards, and adds the handle to the result.
func (w *Workflows) Layer() Layer {
	if w == nil {
		return nil
	}
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			s := c.Target.Workflow
			if s == nil {
				return next(ctx, c)
			}
			if s.err != nil {
				return nil, w.refuse(ctx, c, s.err)
			}
			if s.Rule.Role == workflow.RoleOpen {
				w.sweep(ctx)
			}
			record := trace.NewID()
			if err := w.Engine.Begin(ctx, s.step, c.Outcome.Record, record); err != nil {
				return nil, w.refuse(ctx, c, err)
			}
			s.begun = true
			w.recordBegin(c, record)
			res, err := next(ctx, c)
			out := workflow.Outcome{Status: statusOf(ctx, res, err)}
			if res != nil && res.Error == nil {
				out.Result, out.NativeID = res.Body, s.nativeID(res.Body)
			}
			ctx = context.WithoutCancel(ctx)
			if eerr := w.Engine.End(ctx, s.step, out); eerr != nil {
				w.Log.Error("outcome of a workflow step lost: the call had already been made", "step", s.step.ID, "err", eerr)
			}
			if s.Rule.Role == workflow.RoleClose && out.Status == workflow.Completed {
				w.recordClose(ctx, c)
			}
			return s.addHandle(res, err)
		}
	}
}

// WorkflowStep is a call's step in a workflow.
type WorkflowStep struct {
	Rule   *workflow.Rule // names the tool
	Handle string         // from the host, for foldgate
	Native string         // the id from the host for the server, in a parameter of the server's own
	Output Output
	Opener string // the hosts' name for the tool that starts the workflow

	step  *workflow.Step // found by Locate
	err   error          // why there is no step; the layer refuses the call
	begun bool           // the step is stored
}

// Output says where a result carries the handle. The zero value leaves results as they are.
type Output struct {
	Argument string // the name of the parameter, and of the handle in results
	// Key is the member of structuredContent that foldgate added to the tool's output schema, ""
	// for none. If it differs from Argument it holds an object.
	Key string
	// Content adds a text block if the handle is new or a retry needs it. Meta sets a key of
	// _meta on every result.
	Content, Meta bool
}

// MetaContextID is the key of _meta that carries a workflow's handle, on calls and on results.
const MetaContextID = "io.github.foldgate/context_id"

// Locate finds the call's step. If there is none, the layer refuses the call later.
func (w *Workflows) Locate(ctx context.Context, c *Call) {
	s := c.Target.Workflow
	if w == nil || s == nil {
		return
	}
	s.step, s.err = w.Engine.Plan(ctx, workflow.Request{
		Rule: s.Rule, Principal: c.Origin.Principal, Session: c.Origin.Session, Host: w.Recorder.Short(c.Origin.From), ID: s.Handle,
		NativeID: cmp.Or(s.Native, roundTrip(c.Target.Params)), Arguments: c.Target.Arguments,
		Secret: w.Recorder.Secret,
	})
	if s.err != nil {
		return
	}
	for _, id := range []string{s.step.Opened, s.step.Started} {
		if id != "" && len(c.Origin.Correlates) < trace.MaxIDs { // the host's own come first
			c.Origin.Correlates = trace.IDs(c.Origin.Correlates).Union(trace.IDs{id})
		}
	}
}

// refuse returns the error that the model reads. A call that is over gets the cause of its end: the
// store can't be asked then, but has no fault.
func (w *Workflows) refuse(ctx context.Context, c *Call, err error) error {
	s := c.Target.Workflow
	r := &Refusal{Reason: trace.ReasonInvalid, Code: "context_not_found", Status: 404, Err: err}
	arg := cmp.Or(s.Output.Argument, "context_id")
	switch {
	case errors.Is(err, workflow.ErrRequired):
		r.Code, r.Status = "context_required", 400
		r.Message = fmt.Sprintf("%s continues a workflow and the call names none; pass the %s that %s returned, or call %s to start one", c.Target.Name, arg, s.Opener, s.Opener)
	case errors.Is(err, workflow.ErrUnknown) && workflow.ValidID(s.Handle):
		r.Message = fmt.Sprintf("context %s is unknown or expired; call %s to start a new one", s.Handle, s.Opener)
	case errors.Is(err, workflow.ErrUnknown):
		r.Message = fmt.Sprintf("%s is not a handle that %s returned; pass one as it was returned, or leave it out", arg, s.Opener)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		w.Log.Error("workflow store", "err", err)
		r.Reason, r.Code, r.Status = trace.ReasonWorkflow, "workflow_unavailable", 500
		r.Message = "the call was not made because its workflow could not be kept; the operator must free space or repair the state directory"
	}
	return r
}

func statusOf(ctx context.Context, res *Result, err error) string {
	var refusal *Refusal
	var ended *folding.EndedError
	switch {
	case err == nil && res.Failed():
		return workflow.Failed
	case err == nil:
		if kind, _ := rawjson.GetString(res.Body, "resultType"); kind == "input_required" {
			return workflow.InputRequired
		}
		return workflow.Completed
	case errors.As(err, &ended), errors.As(context.Cause(ctx), &ended):
		return workflow.Canceled
	case errors.As(err, &refusal):
		if refusal.Reason == trace.ReasonUnsafe || refusal.Reason == trace.ReasonPolicy {
			return workflow.Rejected
		}
	case ctx.Err() != nil:
		return workflow.Canceled
	}
	return workflow.Failed
}

// nativeID returns the server's own id in a result: its handle, or the state that identifies the
// next round of an unfinished call.
func (s *WorkflowStep) nativeID(body json.RawMessage) string {
	if s.Output.Argument != "" && s.Output.Key != s.Output.Argument {
		if id, ok := rawjson.GetString(body, "structuredContent", s.Output.Argument); ok {
			return id
		}
	}
	return roundTrip(body)
}

// roundTrip returns an alias for the requestState that ties the rounds of a call together in
// revision 2026-07-28, or "".
func roundTrip(v json.RawMessage) string {
	if state, _ := rawjson.GetString(v, "requestState"); state != "" {
		return workflow.StateAlias(state)
	}
	return ""
}

// addHandle adds the handle to a result or refusal, where the host and its model find it. Hosts
// that know an output schema show only structured content, the others only text.
func (s *WorkflowStep) addHandle(res *Result, err error) (*Result, error) {
	id := s.handle()
	if id == "" {
		return res, err
	}
	if r, ok := err.(*Refusal); ok { // not errors.As: the text of a wrapped one may be withheld
		shown := *r
		shown.ContextID = id
		return nil, &shown
	}
	if err != nil || res.Error != nil || rawjson.KindOf(res.Body) != rawjson.Object {
		return res, err
	}
	body := res.Body
	if s.Output.Key != "" {
		body = s.addStructured(body, id)
	}
	kind, _ := rawjson.GetString(body, "resultType")
	announce := s.Rule.Role == workflow.RoleOpen || s.Rule.Role == workflow.RoleLink || res.Failed()
	if s.Output.Content && announce && kind != "input_required" {
		body = appendHandle(body, s.Output.Argument, id)
	}
	if s.Output.Meta {
		body = rawjson.Set(body, rawjson.Quote(id), "_meta", MetaContextID)
	}
	return &Result{Body: body, Extra: res.Extra}, nil
}

// handle returns the handle to show to the host, or "" if there is none or results are left as they
// are. s may be nil.
func (s *WorkflowStep) handle() string {
	if s == nil || !s.begun || s.Output == (Output{Argument: s.Output.Argument}) {
		return ""
	}
	return s.step.HostID()
}

// addStructured adds the handle to structured content, but replaces no member that is there.
func (s *WorkflowStep) addStructured(body json.RawMessage, id string) json.RawMessage {
	structured, _ := rawjson.Get(body, "structuredContent")
	if _, taken := rawjson.Get(structured, s.Output.Key); taken || rawjson.KindOf(structured) != rawjson.Object {
		return body
	}
	value := rawjson.Quote(id)
	if s.Output.Key != s.Output.Argument {
		value = rawjson.Set([]byte(`{}`), value, s.Output.Argument)
	}
	return rawjson.Set(body, value, "structuredContent", s.Output.Key)
}

// appendHandle adds the text block that carries the handle to a result's content.
func appendHandle(body json.RawMessage, argument, id string) json.RawMessage {
	content, ok := rawjson.Get(body, "content")
	if ok && rawjson.KindOf(content) != rawjson.Array {
		return body
	}
	block := rawjson.Set(textBlock(handleText(argument, id)), rawjson.Quote(id), "_meta", MetaContextID)
	return rawjson.Set(body, arrayOf(append(slices.Collect(rawjson.Elements(content)), block)), "content")
}

// handleText states facts, because models refuse results that give orders.
func handleText(argument, id string) string {
	return argument + "=" + id + " — handle for this workflow. Tools that declare an optional " + argument + " parameter accept this value."
}

// recordBegin records that a workflow was started or continued.
func (w *Workflows) recordBegin(c *Call, id string) {
	s := c.Target.Workflow
	step, kind := s.step, trace.KindFlowProceed
	if step.ID == "" || s.Rule.Role == workflow.RoleStatus || s.Rule.Role == workflow.RoleClose {
		return
	}
	if step.New && step.ID == step.Root {
		kind = trace.KindFlowStart
	}
	rec := workflowRecord(c, kind, map[string]any{
		"context_id": step.ID, "path": step.Path, "workflow": s.Rule.Workflow.Name, "step": step.Name, "attempt": step.Attempt, "evidence": step.Evidence,
	})
	if rec.ID = id; step.Started != "" {
		rec.CorrelationID = append(rec.CorrelationID, step.Started)
	}
	w.Recorder.Note(rec)
}

// recordClose records the end of a workflow. It correlates to the call, the start and every step.
func (w *Workflows) recordClose(ctx context.Context, c *Call) {
	step := c.Target.Workflow.step
	if step.ID == "" {
		return
	}
	ended, err := w.Engine.Ending(ctx, step)
	if err != nil {
		w.Log.Error("end of a workflow not recorded", "workflow", step.Root, "err", err)
		return
	}
	rec := workflowRecord(c, trace.KindFlowComplete, endPayload(ended, "closed"))
	rec.CorrelationID = atMost(rec.CorrelationID.Union(ended.Records))
	w.Recorder.Note(rec)
}

// Sweep ends all workflows that have expired, and records their ends.
func (w *Workflows) Sweep(ctx context.Context) {
	for w.sweep(ctx) && ctx.Err() == nil {
	}
}

// sweep is Sweep for a few workflows. It reports whether any had expired.
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
			From: "foldgate", To: []string{ended.Host}, Kind: trace.KindFlowComplete,
			CorrelationID: atMost(trace.IDs{}.Union(ended.Records)), Payload: endPayload(ended, "expired"),
			Audit: &trace.Audit{
				Session: ended.Session, Principal: ended.Principal,
				Workflow: rawjson.Marshal(workflowAudit{Name: ended.Workflow, ContextID: ended.ID, Path: ended.ID, A2A: a2aIDs(ended.Foreign, ended.ID, ended.ID)}),
			},
		})
	}
	return len(all) > 0
}

func endPayload(e workflow.Ended, reason string) json.RawMessage {
	return rawjson.Marshal(map[string]any{"context_id": e.ID, "workflow": e.Workflow, "reason": reason, "steps": e.Steps})
}

func atMost(ids trace.IDs) trace.IDs { return ids[:min(len(ids), trace.MaxIDs)] }

// workflowRecord returns a record about the workflow of a call. It correlates to the call.
func workflowRecord(c *Call, kind string, payload any) *trace.Record {
	return &trace.Record{
		From: "foldgate", To: []string{c.Origin.From}, Kind: kind, Context: c.Attribution.Context,
		CorrelationID: trace.IDs{c.Outcome.Record}, Payload: rawjson.Marshal(payload),
		Audit: &trace.Audit{Session: c.Origin.Session, Principal: c.Origin.Principal, Server: c.Target.Server, Tool: c.Target.Name, Workflow: c.Target.Workflow.audit()},
	}
}

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
	A2A       map[string]string `json:"a2a,omitempty"` // the ids of the step in the A2A protocol
}

// audit returns a record's audit.workflow, nil if the call has no workflow.
func (s *WorkflowStep) audit() json.RawMessage {
	if s == nil {
		return nil
	}
	a := workflowAudit{Name: s.Rule.Workflow.Name, Role: s.Rule.Role}
	if step := s.step; step != nil { // else the call is refused, and in no workflow
		a.ContextID, a.Path, a.Evidence, a.Ambiguous = step.ID, step.Path, step.Evidence, step.Ambiguous
		if step.ID != "" {
			a.Step, a.Attempt, a.Status = step.Name, step.Attempt, step.Status
			a.A2A = a2aIDs(step.Foreign, step.Root, step.ID)
		}
	}
	return rawjson.Marshal(a)
}

func a2aIDs(foreign, root, step string) map[string]string {
	return map[string]string{"contextId": cmp.Or(foreign, root), "taskId": step}
}
