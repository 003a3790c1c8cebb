package interceptor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Refusal is the error of a call that foldgate refuses or ends, for a model to read. The router
// turns it into a tool result with isError for tools/call, else into an error object.
type Refusal struct {
	Reason     string // a Reason constant of package trace
	Code       string // for programs, such as "branch_not_found"
	Rule       string // what decided, for the trace; "" means Code
	Status     int    // as of HTTP, such as 404
	Message    string // what happened and what to do next
	RetryAfter int    // in seconds, 0 if it does not apply
	Scopes     string // with which the caller would be allowed, separated by spaces; "" if none would do
	ContextID  string // the handle of the call's workflow, needed to try again; "" for none
	Err        error  // the cause, for errors.Is; may be nil
}

// Error returns the code and the message, for logs.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Code, r.Message) }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// decide notes why foldgate refused the call that ended with err, unless a reason was noted before.
// Other errors, such as a cancellation, are no refusals.
func (o *Outcome) decide(err error) {
	if err == nil {
		return
	}
	var r *Refusal
	var rpc interface{ JSONRPCCode() string }
	switch {
	case errors.As(err, &r):
		o.Decision, o.rule = cmp.Or(o.Decision, r.Reason), cmp.Or(r.Rule, r.Code)
	case errors.As(err, &rpc):
		o.Decision, o.rule = cmp.Or(o.Decision, trace.ReasonInvalid), rpc.JSONRPCCode()
	}
	o.refused = o.Decision != ""
}

// FoldingRefusal returns the [Refusal] for an error of package folding.
func FoldingRefusal(err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	reason := trace.ReasonInvalid
	switch ended, isEnd := errors.AsType[*folding.EndedError](err); {
	case isEnd && ended.Reason == folding.ReasonTimeout:
		reason = trace.ReasonTimeout
	case isEnd && ended.Reason == folding.ReasonBudgetExhausted, errors.Is(err, folding.ErrBudgetExhausted),
		errors.Is(err, folding.ErrRateLimited), errors.Is(err, folding.ErrTooManyBranches), errors.Is(err, folding.ErrInstanceFull):
		reason = trace.ReasonLimit
	case errors.Is(err, folding.ErrScrubbingFailed):
		reason = trace.ReasonUnsafe
	}
	return &Refusal{
		Reason: reason, Code: folding.Code(err), Status: folding.StatusCode(err), Message: err.Error(),
		RetryAfter: folding.Seconds(folding.RetryAfter(err)), Err: err,
	}
}

// ToolResult returns the refusal as a tool result. Its text has everything, because some hosts
// drop the structured content of failed results. typed adds the resultType of the modern era.
func (r *Refusal) ToolResult(typed bool) json.RawMessage {
	body := append(append([]byte(`{"error":`), r.JSON()...), '}')
	if r.ContextID == "" {
		return ToolResult(body, true, typed)
	}
	id := rawjson.Quote(r.ContextID)
	return rawjson.Set(ToolResult(rawjson.Set(body, id, "context_id"), true, typed), id, "_meta", MetaContextID)
}

// JSON returns the refusal for programs: code, status, message and retry_after_seconds.
func (r *Refusal) JSON() json.RawMessage {
	return rawjson.Marshal(struct {
		Code       string `json:"code"`
		Status     int    `json:"status"`
		Message    string `json:"message"`
		RetryAfter int    `json:"retry_after_seconds,omitempty"`
	}{r.Code, r.Status, r.Message, r.RetryAfter})
}
