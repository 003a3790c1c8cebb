package router

import (
	"context"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// refusal returns the reply to a request that foldgate refuses or fails: a tool
// result for the model to act on, or a JSON-RPC error. Nothing else decides this.
func (rt *Router) refusal(r *request, err error) server.Reply {
	var rpc *wire.Error
	if errors.As(err, &rpc) {
		return rt.clean(server.Reply{Error: rpc.JSON()})
	}
	var ref *interceptor.Refusal
	if !errors.As(err, &ref) {
		ref = &interceptor.Refusal{Code: "upstream_failed", Status: 502, Message: err.Error()}
		if cause := context.Cause(r.lifetime); cause != nil && errors.Is(err, cause) { // no server is to blame
			ref = &interceptor.Refusal{Code: "session_ended", Status: 503,
				Message: fmt.Sprintf("the request was cut off with its session (%v). It may have had an effect; ask again in another session", cause)}
		}
	}
	if r.Msg.Method != "tools/call" {
		return rt.clean(server.Reply{Error: (&wire.Error{Code: wire.CodeInternal, Message: ref.Message, Data: ref.JSON()}).JSON()})
	}
	return rt.clean(server.Reply{Result: ref.ToolResult(r.s.Era.TypedResults)})
}

// clean removes secrets from a refusal. It may quote what an agent wrote, and
// come from a layer outside Scrub.
func (rt *Router) clean(reply server.Reply) server.Reply {
	part := &reply.Error
	if reply.Error == nil {
		part = &reply.Result
	}
	msg := interceptor.Message{Body: *part, Always: true}
	if rt.Boundary.Inbound(rt.lifetime, &msg); msg.Verdict == interceptor.Withheld {
		return server.Reply{Error: (&wire.Error{Code: wire.CodeInternal,
			Message: "the request failed, and why could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms"}).JSON()}
	}
	*part = msg.Body
	return reply
}
