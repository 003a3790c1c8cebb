package interceptor

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const telemetryScope = "github.com/foldgate/foldgate" // the name of this package in OpenTelemetry

// instruments are the metrics of calls. docs/telemetry.md lists them.
type instruments struct {
	calls, refusals, tokens, saved, reduced, findings metric.Int64Counter
	used, overLimit, unconfirmed, crossings, logins   metric.Int64Counter
	definitions                                       metric.Int64Counter
	inFlight                                          metric.Int64UpDownCounter
	serverTime, clientTime, layerTime                 metric.Float64Histogram
}

func newInstruments(meters metric.MeterProvider) (*instruments, error) {
	if meters == nil {
		meters = noop.NewMeterProvider()
	}
	m := meters.Meter(telemetryScope)
	var faults []error
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		faults = append(faults, err)
		return c
	}
	seconds := func(name, description string, bounds ...float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		faults = append(faults, err)
		return h
	}
	// The bounds that the semantic conventions for MCP advise.
	operation := []float64{0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300}
	in := &instruments{
		calls:       counter("foldgate.calls", "{call}", "Calls by what became of them."),
		refusals:    counter("foldgate.refusals", "{call}", "Calls that foldgate itself refused or cut, by reason; resource_limit is a budget or another limit."),
		tokens:      counter("foldgate.tokens", "{token}", "Tokens of arguments (in), of results as they came (out) and as the host got them (delivered)."),
		saved:       counter("foldgate.tokens.saved", "{token}", "Tokens of results that were folded or truncated instead of delivered."),
		reduced:     counter("foldgate.results.reduced", "{result}", "Results that were folded or truncated."),
		findings:    counter("foldgate.scrub.findings", "{finding}", "Secrets found, by rule and place."),
		used:        counter("foldgate.used", "{token}", "Tokens of the arguments and the delivered results of calls, by team."),
		overLimit:   counter("foldgate.limit.refusals", "{call}", "Calls that a limit refused or cut, by limit and team."),
		unconfirmed: counter("foldgate.limit.unconfirmed", "{call}", "Calls that budgets.on_error let pass while the store of the limits could not be reached, by team."),
		crossings:   counter("foldgate.limit.crossings", "{crossing}", "Limits that came near to their end, refused, or were exceeded, once for a subject and window."),
		logins:      counter("foldgate.logins.failed", "{login}", "Requests without a valid token, by the check that failed."),
		definitions: counter("foldgate.definitions", "{definition}", "Definitions of upstreams that are new or changed, look wrong at the first contact, or were approved."),
		serverTime:  seconds("mcp.server.operation.duration", "How long hosts waited for foldgate.", operation...),
		clientTime:  seconds("mcp.client.operation.duration", "How long foldgate waited for upstreams.", operation...),
		layerTime: seconds("foldgate.layer.duration", "What each layer of the chain took itself.",
			0.00001, 0.0001, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
	}
	var err error
	in.inFlight, err = m.Int64UpDownCounter("foldgate.calls.in_flight", metric.WithUnit("{call}"), metric.WithDescription("Calls under way."))
	return in, errors.Join(append(faults, err)...)
}

// LoginFailed counts a request without a valid token, by the check that failed. A nil Telemetry counts
// nothing.
func (t *Telemetry) LoginFailed(rule string) {
	if t != nil {
		t.logins.Add(context.Background(), 1, metric.WithAttributes(attribute.String("foldgate.rule", rule)))
	}
}

// Definition counts a definition of a server that is new, changed or approved; held means that hosts do
// not get it. A nil Telemetry counts nothing.
func (t *Telemetry) Definition(server, state string, held bool) {
	if t != nil {
		t.definitions.Add(context.Background(), 1, metric.WithAttributes(serverKey.String(server), reasonKey.String(state),
			outcomeKey.String(map[bool]string{true: "held", false: "passed"}[held])))
	}
}

func (t *Telemetry) countCall(ctx context.Context, c *Call, err error, kind string) {
	o, base := &c.Outcome, t.callLabels(c, err)
	with := func(more ...attribute.KeyValue) metric.MeasurementOption {
		return metric.WithAttributes(append(base[:len(base):len(base)], more...)...)
	}
	t.calls.Add(ctx, 1, with(outcomeKey.String(outcome(c, kind))))
	if c.Origin.Direction == FromHost {
		t.serverTime.Record(ctx, time.Since(c.began).Seconds(), with(durationLabels(c.Origin.Transport, kind)...))
	}
	if reason := refusalReason(c); reason != "" {
		t.refusals.Add(ctx, 1, with(reasonKey.String(reason)))
	}
	tokens := func(direction string, n int) {
		if n > 0 {
			t.tokens.Add(ctx, int64(n), with(attribute.String("foldgate.direction", direction)))
		}
	}
	tokens("in", o.Tokens.In)
	tokens("out", o.Tokens.Out)
	tokens("delivered", o.Tokens.Delivered)
	if o.Folded || o.Truncated {
		how := with(attribute.String("foldgate.how", map[bool]string{true: "folded", false: "truncated"}[o.Folded]))
		t.reduced.Add(ctx, 1, how)
		if saved := o.Tokens.Out - o.Tokens.Delivered; saved > 0 {
			t.saved.Add(ctx, int64(saved), how)
		}
	}
	t.countUse(ctx, c)
	for place, found := range map[string][]trace.Finding{"result": o.Findings, "arguments": o.ArgumentFindings} {
		for _, f := range found {
			t.findings.Add(ctx, 1, metric.WithAttributes(attribute.String("foldgate.rule", f.Rule),
				attribute.String("foldgate.place", place), serverKey.String(c.serverName())))
		}
	}
}

func (t *Telemetry) callLabels(c *Call, err error) []attribute.KeyValue {
	out := append(make([]attribute.KeyValue, 0, 8), methodKey.String(methodLabel(c.Target.Method)), serverKey.String(c.serverName()))
	if tool := t.toolLabel(c, err); tool != "" {
		out = append(out, toolKey.String(tool))
	}
	return out
}

// durationLabels returns the labels that the semantic conventions add to durations.
func durationLabels(transport, kind string) (out []attribute.KeyValue) {
	if transport != "" {
		out = append(out, transportKey.String(transport))
	}
	if kind != "" {
		out = append(out, errorKey.String(kind))
	}
	return out
}

// Labels that several instruments share.
const (
	methodKey    attribute.Key = "mcp.method.name"
	toolKey      attribute.Key = "gen_ai.tool.name"
	errorKey     attribute.Key = "error.type"
	transportKey attribute.Key = "network.transport"
	serverKey    attribute.Key = "foldgate.server"
	outcomeKey   attribute.Key = "foldgate.outcome"
	reasonKey    attribute.Key = "foldgate.reason"
)

// other replaces values that are not told apart, so that invented names make no metric grow.
const other = "_OTHER"

const toolError = "tool_error" // the semantic conventions' word for a result with isError

// methods are the methods that MCP defines, in any revision.
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

// maxToolLabels is the largest number of tools that metrics tell apart, of all upstreams
// together. Spans and the journal name every tool.
const maxToolLabels = 500

// toolLabel returns the label for the tool of a call that ended with err, "" if there is no tool.
// It names foldgate's own tools, and those that upstreams answered for.
func (t *Telemetry) toolLabel(c *Call, err error) string {
	tool := c.Target.Name
	switch {
	case c.Target.Method != "tools/call":
		return ""
	case c.Target.Server == "" && t.ownTool != nil && t.ownTool(tool):
		return tool
	case c.Target.Server == "":
		return other
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	key := [2]string{c.Target.Server, tool}
	if t.tools[key] {
		return t.Short(tool)
	}
	if r, ok := errors.AsType[*Refusal](err); ok && r.Reason == trace.ReasonUpstream || c.Outcome.Decision == trace.ReasonPolicy || len(t.tools) >= maxToolLabels { // there may be no such tool
		return other
	}
	t.tools[key] = true
	return t.Short(tool)
}

// errorType returns the error.type of a call's outcome: the code of a JSON-RPC error, tool_error
// or the code of a refusal, "" for a success.
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
		if len(code) == 6 && string(code[:3]) == "-32" { // defined by JSON-RPC or MCP; a server may use any number
			return string(code)
		}
		return other
	case res.Failed():
		return toolError
	}
	return ""
}

// outcome returns the sum of an error.type for counters.
func outcome(c *Call, kind string) string {
	switch {
	case kind == "":
		return "ok"
	case refusalReason(c) != "":
		return "refused"
	case kind == toolError, kind == "cancelled":
		return kind
	}
	return "error"
}

// refusalReason returns why foldgate itself refused or cut a call, one of a fixed few, or "". A
// server that failed is an error, not a refusal.
func refusalReason(c *Call) string {
	if c.Outcome.Decision == trace.ReasonUpstream {
		return ""
	}
	return c.Outcome.Decision
}
