package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// telemetryScope names this package to OpenTelemetry.
const telemetryScope = "github.com/foldgate/foldgate"

// Telemetry turns calls and branches into OpenTelemetry spans and metrics. It
// is installed only where somebody listens: without it the chain is the same
// as if this file did not exist. It is safe for concurrent use.
//
// Spans carry ids and figures, never contents. Sessions, principals and
// branches are attributes of spans and never labels of metrics.
type Telemetry struct {
	tracer oteltrace.Tracer // nil: metrics only
	*instruments
	tools toolLabels

	mu       sync.Mutex
	branches map[string]oteltrace.Span // of active branches, by context path
}

// NewTelemetry makes the instruments. Either provider may be nil. ownTool says
// which tools are foldgate's own.
//
// The spans have the ids that the journal's OTLP export derives only if the
// provider of traces was made with [SpanIDs].
func NewTelemetry(traces oteltrace.TracerProvider, meters metric.MeterProvider, ownTool func(string) bool) (*Telemetry, error) {
	in, err := newInstruments(meters)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{instruments: in, tools: toolLabels{own: ownTool}, branches: map[string]oteltrace.Span{}}
	if traces != nil {
		t.tracer = traces.Tracer(telemetryScope)
	}
	return t, nil
}

// callSpans are the span of a call and that of its last request to an upstream.
type callSpans struct{ own, sent oteltrace.SpanContext }

// Calls observes every call as a whole. It is installed outside Trace, so that
// it sees what the trace itself costs and refuses; locate is that of Trace.
func (t *Telemetry) Calls(locate func(context.Context, *Call)) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			start := time.Now()
			locate(ctx, c)
			c.Outcome.Record = trace.NewID()
			ctx, span := t.startCall(ctx, c, start)
			busy := metric.WithAttributes(methodKey.String(methodLabel(c.Target.Method)), serverKey.String(serverName(c)))
			t.inFlight.Add(ctx, 1, busy)
			done := false
			defer func() { // also where a panic passes
				t.inFlight.Add(ctx, -1, busy)
				if span != nil && !done {
					span.SetStatus(codes.Error, "")
					span.End()
				}
			}()
			res, err := next(ctx, c)
			done = true
			kind := errorType(res, err)
			t.countCall(ctx, c, err, kind, time.Since(start))
			if span != nil {
				endCall(span, c, err, kind)
			}
			return res, err
		}
	}
}

// startCall starts the span of c. It has the id that the journal's export
// derives, and its parent is the one that the journal records.
func (t *Telemetry) startCall(ctx context.Context, c *Call, start time.Time) (context.Context, oteltrace.Span) {
	if t.tracer == nil {
		return ctx, nil
	}
	if own := oteltrace.SpanContextFromContext(ctx); c.Origin.Traceparent == "" && c.Origin.Direction == Internal && own.IsValid() {
		c.Origin.Traceparent = traceparent(own)
	}
	var want wantedIDs
	want.span = trace.SpanID(c.Outcome.Record)
	options := []oteltrace.SpanStartOption{oteltrace.WithTimestamp(start), oteltrace.WithSpanKind(oteltrace.SpanKindServer)}
	if c.Origin.Direction == Internal {
		options[1] = oteltrace.WithSpanKind(oteltrace.SpanKindClient)
	}
	if tp, ok := trace.ParseTraceparent(c.Origin.Traceparent); ok {
		state, _ := rawjson.GetString(c.Target.Params, "_meta", "tracestate")
		ctx = remote(ctx, tp, state)
		if c.Attribution.Branch != nil && tp.Parent != trace.BranchSpanID(c.Attribution.Branch.Context) {
			options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: t.branch(c.Attribution.Branch.Context)}))
		}
	} else if c.Attribution.Branch != nil {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, t.branch(c.Attribution.Branch.Context))
	} else {
		want.trace = trace.TraceID(c.Outcome.Record, c.Origin.Principal, c.Origin.Session, c.Attribution.Context)
		options = append(options, oteltrace.WithNewRoot())
	}
	options = append(options, oteltrace.WithAttributes(callAttributes(c)...))
	// The context that Start returns holds the wanted ids, which are for this
	// span only.
	_, span := t.tracer.Start(want.in(ctx), spanName(c), options...)
	for _, id := range c.Origin.Correlates {
		span.AddLink(oteltrace.Link{SpanContext: span.SpanContext().WithSpanID(trace.SpanID(id)).WithRemote(true)})
	}
	c.Outcome.spans = &callSpans{own: span.SpanContext()}
	return oteltrace.ContextWithSpan(ctx, span), span
}

// spanName is "tools/call echo" for tools, else the method.
func spanName(c *Call) string {
	if c.Target.Method == "tools/call" && c.Target.Name != "" {
		return c.Target.Method + " " + c.Target.Name
	}
	return c.Target.Method
}

// callAttributes are known when a call starts. Names as in the semantic
// conventions for MCP, and under foldgate what these do not know.
func callAttributes(c *Call) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, 16)
	text := func(key attribute.Key, value string) {
		if value != "" {
			out = append(out, key.String(value))
		}
	}
	text("foldgate.envelope.id", c.Outcome.Record)
	text(methodKey, c.Target.Method)
	switch c.Target.Method {
	case "tools/call":
		text("gen_ai.operation.name", "execute_tool")
		text(toolKey, c.Target.Name)
	case "prompts/get":
		text("gen_ai.prompt.name", c.Target.Name)
	}
	text("jsonrpc.request.id", requestID(c.Origin.ID))
	text("mcp.session.id", c.Origin.Session)
	text("mcp.protocol.version", c.Origin.Revision)
	text("network.transport", c.Origin.Transport)
	text(serverKey, c.Target.Server)
	text("foldgate.principal", c.Origin.Principal)
	text("foldgate.context", c.Attribution.Context)
	text("foldgate.attribution", string(c.Attribution.Source))
	return out
}

// requestID is a JSON-RPC id as the semantic conventions want it: a string.
func requestID(id json.RawMessage) string {
	if rawjson.KindOf(id) == rawjson.String {
		return rawjson.Unquote(id)
	}
	return string(id)
}

// endCall adds what the layers found out, and ends the span.
func endCall(span oteltrace.Span, c *Call, err error, kind string) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	if c.Target.Metered {
		span.SetAttributes(attribute.Int("foldgate.tokens.in", c.Outcome.Tokens.In), attribute.Int("foldgate.tokens.out", c.Outcome.Tokens.Out),
			attribute.Int("foldgate.tokens.delivered", c.Outcome.Tokens.Delivered))
	}
	if n := len(c.Outcome.Findings) + len(c.Outcome.ArgumentFindings); n > 0 {
		span.SetAttributes(attribute.Int("foldgate.scrub.findings", n))
	}
	for _, flag := range []struct {
		key attribute.Key
		on  bool
	}{{"foldgate.late", c.Outcome.Late}, {"foldgate.truncated", c.Outcome.Truncated}, {"foldgate.folded", c.Outcome.Folded}, {"foldgate.ambiguous", c.Attribution.Ambiguous}} {
		if flag.on {
			span.SetAttributes(flag.key.Bool(true))
		}
	}
	if reason := refusal(c, err); reason != "" {
		span.SetAttributes(attribute.String("foldgate.blocked", reason))
	}
	setError(span, c.Target.Method, kind, err)
}

// setError marks a span as failed, without the error's text: it can quote what
// an agent or a server wrote.
func setError(span oteltrace.Span, method, kind string, err error) {
	if kind == "" {
		return
	}
	var r *Refusal
	if errors.As(err, &r) {
		span.SetAttributes(attribute.String("foldgate.error.code", r.Code))
		if method == "tools/call" { // what the host reads is a tool result
			kind = toolError
		}
	}
	if _, numeric := strconv.Atoi(kind); numeric == nil {
		span.SetAttributes(attribute.String("rpc.response.status_code", kind))
	}
	span.SetAttributes(errorKey.String(kind))
	span.SetStatus(codes.Error, "")
}

// Upstream observes one request that c makes of an upstream: transport is
// "pipe" or "tcp", or "" for one inside foldgate. Call end with what came back. A
// nil Telemetry observes nothing.
func (t *Telemetry) Upstream(ctx context.Context, c *Call, transport, revision string) (_ context.Context, end func(*Result, error)) {
	if t == nil {
		return ctx, func(*Result, error) {}
	}
	start := time.Now()
	var span oteltrace.Span
	if t.tracer != nil {
		kind := oteltrace.SpanKindClient
		if transport == "" {
			kind = oteltrace.SpanKindInternal
		}
		attrs := []attribute.KeyValue{methodKey.String(c.Target.Method), serverKey.String(c.Target.Server), attribute.String("mcp.protocol.version", revision)}
		if transport != "" {
			attrs = append(attrs, attribute.String("network.transport", transport))
		}
		if c.Target.Method == "tools/call" {
			attrs = append(attrs, toolKey.String(c.Target.Name), attribute.String("gen_ai.operation.name", "execute_tool"))
		}
		ctx, span = t.tracer.Start(ctx, spanName(c), oteltrace.WithSpanKind(kind), oteltrace.WithAttributes(attrs...))
		if c.Outcome.spans != nil {
			c.Outcome.spans.sent = span.SpanContext()
		}
	}
	return ctx, func(res *Result, err error) {
		kind := errorType(res, err)
		t.countUpstream(ctx, c, transport, err, kind, time.Since(start))
		if span != nil {
			setError(span, "", kind, err)
			span.End()
		}
	}
}

// Outgoing is the traceparent for what c causes: the request sent on, requests
// of foldgate's own, questions to the host. Its parent is c's span, also where
// no telemetry runs and only the journal knows that span. It is "" where c
// came without one and no telemetry runs.
func (c *Call) Outgoing() string {
	if s := c.Outcome.spans; s != nil {
		if s.sent.IsValid() {
			return traceparent(s.sent)
		}
		return traceparent(s.own)
	}
	tp, ok := trace.ParseTraceparent(c.Origin.Traceparent)
	if !ok {
		return ""
	}
	tp.Parent = trace.SpanID(c.Outcome.Record)
	return tp.String()
}

// slowLayer is how long a layer must work on a call to get a span of its own.
const slowLayer = time.Millisecond

// Layer measures what one layer of the chain does itself: before it hands a
// call inwards and after it gets the result back, without what lies between.
func (t *Telemetry) Layer(name string, mw Middleware) Middleware {
	before := metric.WithAttributeSet(layerSet(name, "request"))
	after := metric.WithAttributeSet(layerSet(name, "response"))
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			entered := time.Now()
			var inward, outward time.Time // zero where next is not reached
			h := mw(func(ctx context.Context, c *Call) (*Result, error) {
				inward = time.Now()
				res, err := next(ctx, c)
				outward = time.Now()
				return res, err
			})
			res, err := h(ctx, c)
			end := time.Now()
			if inward.IsZero() {
				inward = end
			}
			t.layer(ctx, name+" request", before, entered, inward)
			if !outward.IsZero() {
				t.layer(ctx, name+" response", after, outward, end)
			}
			return res, err
		}
	}
}

func (t *Telemetry) layer(ctx context.Context, name string, labels metric.MeasurementOption, from, to time.Time) {
	t.layerTime.Record(ctx, to.Sub(from).Seconds(), labels)
	if t.tracer == nil || to.Sub(from) < slowLayer {
		return
	}
	_, span := t.tracer.Start(ctx, name, oteltrace.WithTimestamp(from))
	span.End(oteltrace.WithTimestamp(to))
}

// BranchOpened starts the span of a branch's life, the parent of the calls and
// branches in it. parent is a traceparent, "" where the branch is in no trace
// of a host's: then a first-level branch is the root of a trace. cause is the
// call that opened it, nil for a branch of an earlier process.
func (t *Telemetry) BranchOpened(b folding.Branch, parent string, cause *Call) {
	if t.tracer == nil {
		return
	}
	ctx := context.Background()
	want := wantedIDs{span: trace.BranchSpanID(b.Context)}
	options := []oteltrace.SpanStartOption{
		oteltrace.WithTimestamp(b.CreatedAt),
		oteltrace.WithAttributes(
			attribute.String("foldgate.context", b.Context), attribute.String("foldgate.branch.id", b.ID),
			attribute.Int("foldgate.branch.depth", b.Depth), attribute.Int("foldgate.branch.budget", b.BudgetTotal),
			attribute.String("mcp.session.id", b.Session), attribute.String("foldgate.principal", b.Principal)),
	}
	if cause != nil && cause.Outcome.spans != nil {
		options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: cause.Outcome.spans.own}))
	}
	if tp, ok := trace.ParseTraceparent(parent); ok {
		ctx = remote(ctx, tp, "")
	} else if up := contextpath.Path(b.Context).Parent(); up != contextpath.Main {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, t.branch(string(up)))
	} else {
		want.trace = trace.TraceID("", "", "", b.Context)
	}
	_, span := t.tracer.Start(want.in(ctx), "branch "+b.ID, options...)
	t.mu.Lock()
	t.branches[b.Context] = span
	t.mu.Unlock()
}

// BranchEnded ends the span of a branch. One that is not known, or no more, is
// ignored.
func (t *Telemetry) BranchEnded(b folding.Branch) {
	t.mu.Lock()
	span := t.branches[b.Context]
	delete(t.branches, b.Context)
	t.mu.Unlock()
	if span == nil {
		return
	}
	span.SetAttributes(attribute.String("foldgate.branch.status", string(b.Status)),
		attribute.Int("foldgate.branch.used", b.BudgetUsed), attribute.Int("foldgate.branch.calls", b.Activity.Calls))
	if b.Reason != "" {
		span.SetAttributes(errorKey.String(b.Reason))
		span.SetStatus(codes.Error, "")
	}
	span.End(oteltrace.WithTimestamp(b.CompletedAt))
}

// branch returns the span of a branch for its children.
func (t *Telemetry) branch(context string) oteltrace.SpanContext {
	t.mu.Lock()
	span := t.branches[context]
	t.mu.Unlock()
	if span != nil {
		return span.SpanContext().WithRemote(true)
	}
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{ // it has ended
		TraceID: trace.TraceID("", "", "", context), SpanID: trace.BranchSpanID(context), TraceFlags: oteltrace.FlagsSampled, Remote: true,
	})
}

// BranchTraceparent is the traceparent of what happens in an active branch, ""
// where its span is not known.
func (t *Telemetry) BranchTraceparent(context string) string {
	t.mu.Lock()
	span := t.branches[context]
	t.mu.Unlock()
	if span == nil {
		return ""
	}
	return traceparent(span.SpanContext())
}

// SpanIDs returns the generator that gives calls and branches the ids that the
// journal's OTLP export derives from their records, and everything else random
// ones. Give it to the provider of traces.
func SpanIDs() sdktrace.IDGenerator { return spanIDs{} }

type spanIDs struct{}

// wantedIDs are the ids of the one span that is started in a context. A zero
// trace means that the span has a parent, whose trace it belongs to.
type wantedIDs struct {
	trace oteltrace.TraceID
	span  oteltrace.SpanID
}

type wantedKey struct{}

func (w wantedIDs) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, wantedKey{}, w)
}

// NewIDs is called for a span without a parent.
func (g spanIDs) NewIDs(ctx context.Context) (id oteltrace.TraceID, span oteltrace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wantedIDs); ok {
		id = w.trace
	}
	for !id.IsValid() {
		fill(id[:])
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID is called for a span with a parent.
func (spanIDs) NewSpanID(ctx context.Context, _ oteltrace.TraceID) (span oteltrace.SpanID) {
	if w, ok := ctx.Value(wantedKey{}).(wantedIDs); ok {
		span = w.span
	}
	for !span.IsValid() {
		fill(span[:])
	}
	return span
}

// fill makes up an id. Ids need to differ, not to be secret.
func fill(b []byte) {
	for i := 0; i < len(b); i += 8 {
		r := rand.Uint64()
		for j := range 8 {
			b[i+j] = byte(r >> (8 * j))
		}
	}
}

// traceparent is sc as it is sent on.
func traceparent(sc oteltrace.SpanContext) string {
	return trace.Traceparent{Trace: sc.TraceID(), Parent: sc.SpanID(), Flags: byte(sc.TraceFlags())}.String()
}

// remote puts the parent that came with a message into ctx. A tracestate that
// is not valid is left out of the span; the message keeps it.
func remote(ctx context.Context, tp trace.Traceparent, tracestate string) context.Context {
	state, _ := oteltrace.ParseTraceState(tracestate)
	return oteltrace.ContextWithRemoteSpanContext(ctx, oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: tp.Trace, SpanID: tp.Parent, TraceFlags: oteltrace.TraceFlags(tp.Flags), TraceState: state, Remote: true,
	}))
}
