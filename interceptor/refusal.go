package interceptor

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Refusal is a call that foldgate refuses or ends in a way that the model must
// read: the edge turns it into a tool result with isError (for tools/call) or
// an error object (for other methods).
type Refusal struct {
	// Reason is the trace's word for it, e.g. "resource_limit" or "policy".
	Reason string
	// Code and Status name the fault for programs, e.g. "branch_not_found", 404.
	Code   string
	Status int
	// Message says what happened and what to do next.
	Message string
	// RetryAfter is in seconds, 0 where it does not apply.
	RetryAfter int
	// ContextID is the handle of the workflow that the call belongs to, with
	// which it can be tried again; "" for none.
	ContextID string
	// Err is the cause, for errors.Is; may be nil.
	Err error
}

// Error is for logs: the code and the message.
func (r *Refusal) Error() string { return fmt.Sprintf("%s: %s", r.Code, r.Message) }

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }

// FoldingRefusal turns an error of package folding into the [Refusal] that a
// model reads.
func FoldingRefusal(err error) *Refusal {
	var r *Refusal
	if errors.As(err, &r) {
		return r
	}
	reason := "invalid"
	switch {
	case errors.Is(err, folding.ErrRateLimited), errors.Is(err, folding.ErrTooManyBranches),
		errors.Is(err, folding.ErrInstanceFull), errors.Is(err, folding.ErrBudgetExhausted):
		reason = "resource_limit"
	case errors.Is(err, folding.ErrScrubbingFailed):
		reason = "unsafe"
	}
	var ended *folding.EndedError
	if errors.As(err, &ended) {
		switch ended.Reason {
		case folding.ReasonTimeout:
			reason = "timeout"
		case folding.ReasonBudgetExhausted:
			reason = "resource_limit"
		}
	}
	return &Refusal{
		Reason: reason, Code: folding.Code(err), Status: folding.StatusCode(err), Message: err.Error(),
		RetryAfter: folding.Seconds(folding.RetryAfter(err)), Err: err,
	}
}

// JSON returns the refusal for programs: code, status, message and
// retry_after_seconds.
func (r *Refusal) JSON() json.RawMessage {
	out := append([]byte(`{"code":`), rawjson.Quote(r.Code)...)
	out = fmt.Appendf(out, `,"status":%d,"message":`, r.Status)
	out = rawjson.AppendQuote(out, r.Message)
	if r.RetryAfter > 0 {
		out = fmt.Appendf(out, `,"retry_after_seconds":%d`, r.RetryAfter)
	}
	return append(out, '}')
}

// ToolResult returns the refusal as a tool result. Its text has everything,
// because some hosts drop structured content from failed results. typed adds the
// resultType of the modern era.
func (r *Refusal) ToolResult(typed bool) json.RawMessage {
	body := append(append([]byte(`{"error":`), r.JSON()...), '}')
	if r.ContextID == "" {
		return ToolResult(body, true, typed)
	}
	id := rawjson.Quote(r.ContextID)
	return rawjson.Set(ToolResult(rawjson.Set(body, id, "context_id"), true, typed), id, "_meta", MetaContextID)
}

// ToolResult returns a tool result with the same compact JSON as text and as
// structured content, because hosts show one of the two.
func ToolResult(body json.RawMessage, isError, typed bool) json.RawMessage {
	out := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(string(body))...)
	out = append(append(out, `}],"structuredContent":`...), body...)
	if isError {
		out = append(out, `,"isError":true`...)
	}
	if typed {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}
