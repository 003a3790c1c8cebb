package interceptor

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Labels that several instruments share.
const (
	methodKey  attribute.Key = "mcp.method.name"
	toolKey    attribute.Key = "gen_ai.tool.name"
	errorKey   attribute.Key = "error.type"
	serverKey  attribute.Key = "foldgate.server"
	outcomeKey attribute.Key = "foldgate.outcome"
	reasonKey  attribute.Key = "foldgate.reason"
)

// other stands for values that are not told apart, so that no client can make
// a metric grow by inventing names.
const other = "_OTHER"

// toolError is the semantic conventions' word for a result with isError.
const toolError = "tool_error"

// methods are those that MCP defines, in any revision.
var methods = map[string]bool{
	"initialize": true, "server/discover": true, "ping": true,
	"tools/list": true, "tools/call": true,
	"prompts/list": true, "prompts/get": true,
	"resources/list": true, "resources/templates/list": true, "resources/read": true,
	"resources/subscribe": true, "resources/unsubscribe": true, "subscriptions/listen": true,
	"completion/complete": true, "logging/setLevel": true,
	"sampling/createMessage": true, "elicitation/create": true, "roots/list": true,
	"tasks/list": true, "tasks/get": true, "tasks/result": true, "tasks/cancel": true, "tasks/update": true,
}

func methodLabel(method string) string {
	if methods[method] {
		return method
	}
	return other
}

// maxToolLabels bounds the tools that metrics tell apart, all upstreams
// together. Spans and the journal name every tool.
const maxToolLabels = 500

// toolLabels are the tools that metrics name: foldgate's own, and those that
// an upstream has answered for.
type toolLabels struct {
	own func(string) bool

	mu    sync.RWMutex
	known map[[2]string]bool // by upstream and tool
}

// label names the tool of a call that ended with err; "" where it calls none.
func (l *toolLabels) label(c *Call, err error) string {
	if c.Target.Method != "tools/call" {
		return ""
	}
	if c.Target.Server == "" {
		if l.own != nil && l.own(c.Target.Name) {
			return c.Target.Name
		}
		return other
	}
	key := [2]string{c.Target.Server, c.Target.Name}
	l.mu.RLock()
	known := l.known[key]
	l.mu.RUnlock()
	if known {
		return c.Target.Name
	}
	var r *Refusal
	if errors.As(err, &r) && r.Reason == "upstream" { // nobody has said that there is such a tool
		return other
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.known) >= maxToolLabels {
		return other
	}
	if l.known == nil {
		l.known = map[[2]string]bool{}
	}
	l.known[key] = true
	return c.Target.Name
}

// errorType is the error.type of what a call came to, "" for a success: the
// code of a JSON-RPC error, tool_error, or the code of foldgate's own refusal.
func errorType(res *Result, err error) string {
	var rpc interface{ JSONRPCCode() string }
	var r *Refusal
	switch {
	case errors.As(err, &rpc):
		return rpc.JSONRPCCode()
	case errors.As(err, &r):
		return r.Code
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	case err != nil:
		return other
	case res.Error != nil:
		code, _ := rawjson.Get(res.Error, "code")
		return codeLabel(string(code))
	}
	if failed, _ := rawjson.Get(res.Body, "isError"); string(failed) == "true" {
		return toolError
	}
	return ""
}

// codeLabel keeps the codes that JSON-RPC and MCP define; a server may use any
// other number.
func codeLabel(code string) string {
	if len(code) == 6 && code[:3] == "-32" {
		return code
	}
	return other
}

// outcome sums an error.type up for counters.
func outcome(c *Call, err error, kind string) string {
	switch {
	case kind == "":
		return "ok"
	case refusal(c, err) != "":
		return "refused"
	case kind == toolError, kind == "cancelled":
		return kind
	}
	return "error"
}

// refusal is the reason for which foldgate itself refused or cut a call, one
// of a fixed few; "" where it did not.
func refusal(c *Call, err error) string {
	var r *Refusal
	switch {
	case c.Outcome.Decision != "":
		return c.Outcome.Decision
	case errors.As(err, &r) && r.Reason != "upstream":
		return r.Reason
	}
	return ""
}
