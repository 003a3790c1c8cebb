package engine

import (
	"context"
	"errors"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Refusal returns the reply to a request of a host that foldgate refuses or fails: a tool result for the
// model to act on, or a JSON-RPC error. typed is as of [interceptor.Refusal.ToolResult].
func Refusal(b *interceptor.Boundary, method string, typed bool, err error) wire.Message {
	if rpc, ok := errors.AsType[*wire.Error](err); ok {
		return Clean(b, wire.Message{Error: rpc.JSON()})
	}
	ref, ok := errors.AsType[*interceptor.Refusal](err)
	if !ok {
		ref = &interceptor.Refusal{Code: "upstream_failed", Status: 502, Message: err.Error()}
	}
	if method != "tools/call" {
		return Clean(b, wire.Message{Error: (&wire.Error{Code: wire.CodeInternal, Message: ref.Message, Data: ref.JSON()}).JSON()})
	}
	return Clean(b, wire.Message{Result: ref.ToolResult(typed)})
}

// Clean removes secrets from a refusal. It may quote what an agent wrote, and come from a layer outside
// Scrub.
func Clean(b *interceptor.Boundary, reply wire.Message) wire.Message {
	part := &reply.Error
	if reply.Error == nil {
		part = &reply.Result
	}
	msg := interceptor.Message{Body: *part, Always: true}
	*part = nil
	if b.ToHost(context.Background(), &msg); msg.Verdict == interceptor.Withheld {
		part, msg.Body = &reply.Error, (&wire.Error{Code: wire.CodeInternal,
			Message: "the request failed, and why could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms"}).JSON()
	}
	*part = msg.Body
	return reply
}
