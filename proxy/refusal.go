package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// cutOff makes a refusal of err where a request failed because its session, or
// foldgate, came to its end: nobody's server is to blame.
func cutOff(ctx context.Context, err error) error {
	var ref *interceptor.Refusal
	cause := context.Cause(ctx)
	if cause == nil || !errors.Is(err, cause) || errors.As(err, &ref) {
		return err
	}
	return &interceptor.Refusal{Code: "session_ended", Status: 503, Err: err,
		Message: fmt.Sprintf("the request was cut off with its session (%v). It may have had an effect; ask again in another session", cause)}
}

// refusalReply is what a host reads when foldgate refuses or fails a request:
// a tool result that the model can act on, or a JSON-RPC error. It is the one
// place that decides this.
func refusalReply(method string, modern bool, err error) edge.Reply {
	var rpc *wire.Error
	if errors.As(err, &rpc) {
		return edge.Reply{Error: errorObject(rpc)}
	}
	var ref *interceptor.Refusal
	if !errors.As(err, &ref) {
		ref = &interceptor.Refusal{Code: "upstream_failed", Status: 502, Message: err.Error()}
	}
	if method != "tools/call" {
		return edge.Reply{Error: errorObject(&wire.Error{Code: wire.CodeInternal, Message: ref.Message, Data: faultJSON(ref)})}
	}
	return edge.Reply{Result: toolError(ref, modern)}
}

// readable takes the secrets out of a refusal: it may quote what an agent wrote,
// and come from a layer that Scrub does not see.
func (g *Gateway) readable(r edge.Reply) edge.Reply {
	part := &r.Error
	if r.Error == nil {
		part = &r.Result
	}
	m := interceptor.Message{Body: *part, Always: true}
	if g.boundary.Inbound(g.ctx, &m); m.Verdict == interceptor.Withheld {
		return edge.Reply{Error: errorObject(&wire.Error{Code: wire.CodeInternal,
			Message: "the request failed, and why could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms"})}
	}
	*part = m.Body
	return r
}

// errorObject is the JSON-RPC error object of any error.
func errorObject(err error) json.RawMessage {
	var rpc *wire.Error
	if !errors.As(err, &rpc) {
		rpc = &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
	return rpc.JSON()
}

// faultJSON is a refusal for programs: code, status, message, retry_after_seconds.
func faultJSON(r *interceptor.Refusal) json.RawMessage {
	out := append([]byte(`{"code":`), rawjson.Quote(r.Code)...)
	out = fmt.Appendf(out, `,"status":%d,"message":`, r.Status)
	out = rawjson.AppendQuote(out, r.Message)
	if r.RetryAfter > 0 {
		out = fmt.Appendf(out, `,"retry_after_seconds":%d`, r.RetryAfter)
	}
	return append(out, '}')
}

// toolError is a refusal as a tool result. The text carries everything: some
// hosts drop structured content from failed results.
func toolError(r *interceptor.Refusal, modern bool) json.RawMessage {
	body := append([]byte(`{"error":`), faultJSON(r)...)
	body = append(body, '}')
	if r.ContextID == "" {
		return toolResult(body, true, modern)
	}
	id := rawjson.Quote(r.ContextID)
	return rawjson.Set(toolResult(rawjson.Set(body, id, "context_id"), true, modern), id, "_meta", interceptor.MetaContextID)
}

// toolResult is a tool result whose text and structured content are the same
// compact JSON, because hosts show one of the two.
func toolResult(body json.RawMessage, isError, modern bool) json.RawMessage {
	out := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(string(body))...)
	out = append(append(out, `}],"structuredContent":`...), body...)
	if isError {
		out = append(out, `,"isError":true`...)
	}
	if modern {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}
