package interceptor

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Telemetry turns calls and branches into OpenTelemetry spans and metrics. The chain has it only
// if an exporter is configured. It is safe for concurrent use.
//
// Spans carry ids and figures, never contents. Sessions, principals and branches are attributes of
// spans. Sessions and branches are never labels of metrics, principals only with ByPrincipal.
type Telemetry struct {
	tracer oteltrace.Tracer // nil: metrics only
	*instruments
	ownTool func(string) bool // finds foldgate's own tools; may be nil
	// ByPrincipal adds the principal to the labels of what limits count. Set it before use.
	ByPrincipal bool
	// Short returns a text that a host or a server chooses as it is exported: [Recorder.Short]. Set it before use.
	Short func(string) string

	mu       sync.Mutex
	branches map[string]oteltrace.Span // of active branches, by context path
	tools    map[[2]string]bool        // that upstreams answered for, by upstream and tool
}

// NewTelemetry makes the instruments. Either provider may be nil. Spans have the ids of the OTLP
// export of the journal only if traces was made with [SpanIDs].
func NewTelemetry(traces oteltrace.TracerProvider, meters metric.MeterProvider, ownTool func(string) bool) (*Telemetry, error) {
	in, err := newInstruments(meters)
	if err != nil {
		return nil, err
	}
	t := &Telemetry{instruments: in, ownTool: ownTool, tools: map[[2]string]bool{}, branches: map[string]oteltrace.Span{},
		Short: func(text string) string { return text }}
	if traces != nil {
		t.tracer = traces.Tracer(telemetryScope)
	}
	return t, nil
}

// Calls returns the layer that observes every call as a whole. It is installed outside Trace, so
// that it sees the time and the refusals of Trace too.
func (t *Telemetry) Calls() Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (res *Result, err error) {
			ctx, span := t.startCall(ctx, c)
			busy := metric.WithAttributes(methodKey.String(methodLabel(c.Target.Method)), serverKey.String(c.serverName()))
			t.inFlight.Add(ctx, 1, busy)
			kind := other // of a panic
			defer func() {
				t.inFlight.Add(ctx, -1, busy)
				if span != nil {
					endCall(span, c, err, kind)
				}
			}()
			res, err = next(ctx, c)
			c.Outcome.decide(err)
			kind = errorType(res, err)
			t.countCall(ctx, c, err, kind)
			return res, err
		}
	}
}

// Upstream observes one request of a call to an upstream. transport is "pipe" or "tcp", or "" for
// a server inside foldgate. Call end with the response. A nil Telemetry observes nothing.
func (t *Telemetry) Upstream(ctx context.Context, c *Call, transport, revision string) (_ context.Context, end func(*Result, error)) {
	if t == nil {
		return ctx, func(*Result, error) {}
	}
	start := time.Now()
	var span oteltrace.Span
	if t.tracer != nil {
		kind := oteltrace.SpanKindClient
		attrs := []attribute.KeyValue{methodKey.String(t.Short(c.Target.Method)), serverKey.String(c.Target.Server), attribute.String("mcp.protocol.version", revision)}
		if transport == "" {
			kind = oteltrace.SpanKindInternal
		} else {
			attrs = append(attrs, transportKey.String(transport))
		}
		if c.Target.Method == "tools/call" {
			attrs = append(attrs, toolKey.String(t.Short(c.Target.Name)), attribute.String("gen_ai.operation.name", "execute_tool"))
		}
		ctx, span = t.tracer.Start(ctx, t.spanName(c), oteltrace.WithSpanKind(kind), oteltrace.WithAttributes(attrs...))
		c.Outcome.span = span.SpanContext()
	}
	return ctx, func(res *Result, err error) {
		kind := errorType(res, err)
		labels := append(t.callLabels(c, err), durationLabels(transport, kind)...)
		t.clientTime.Record(ctx, time.Since(start).Seconds(), metric.WithAttributes(labels...))
		if span != nil {
			setError(span, "", kind, err)
			span.End()
		}
	}
}

// startCall starts the span of a call. Its id and its parent are the ones that the journal's
// export derives and the journal records.
func (t *Telemetry) startCall(ctx context.Context, c *Call) (context.Context, oteltrace.Span) {
	if t.tracer == nil {
		return ctx, nil
	}
	branch, kind := c.Attribution.Branch, oteltrace.SpanKindServer
	if c.Origin.Direction == Internal {
		kind = oteltrace.SpanKindClient
		if own := oteltrace.SpanContextFromContext(ctx); c.Origin.Traceparent == "" && own.IsValid() {
			c.Origin.Traceparent = traceparent(own)
		}
	}
	want := wantedIDs{span: trace.SpanID(c.Outcome.Record)}
	options := []oteltrace.SpanStartOption{oteltrace.WithTimestamp(c.began), oteltrace.WithSpanKind(kind), oteltrace.WithAttributes(t.callAttributes(c)...)}
	if tp, ok := trace.ParseTraceparent(c.Origin.Traceparent); ok {
		state, _ := rawjson.GetString(c.Target.Params, "_meta", "tracestate")
		ctx = remote(ctx, tp, t.Short(state))
		if branch != nil && tp.Parent != trace.BranchSpanID(branch.Context) {
			options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: t.branch(branch.Context)}))
		}
	} else if branch != nil {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, t.branch(branch.Context))
	} else {
		want.trace = trace.TraceID(c.Outcome.Record, c.Origin.Principal, c.Origin.Session, c.Attribution.Context)
		options = append(options, oteltrace.WithNewRoot())
	}
	// The context that Start returns has the wanted ids, which are for this span only.
	_, span := t.tracer.Start(context.WithValue(ctx, wantedKey{}, want), t.spanName(c), options...)
	for _, id := range c.Origin.Correlates {
		span.AddLink(oteltrace.Link{SpanContext: span.SpanContext().WithSpanID(trace.SpanID(id)).WithRemote(true)})
	}
	c.Outcome.span = span.SpanContext()
	return oteltrace.ContextWithSpan(ctx, span), span
}

// spanName returns "tools/call echo" for a tool, else the method.
func (t *Telemetry) spanName(c *Call) string {
	if c.Target.Method == "tools/call" && c.Target.Name != "" {
		return c.Target.Method + " " + t.Short(c.Target.Name)
	}
	return t.Short(c.Target.Method)
}

// callAttributes returns the attributes that are known when a call starts. Their names come from the
// semantic conventions for MCP, or start with foldgate.
func (t *Telemetry) callAttributes(c *Call) []attribute.KeyValue {
	out := make([]attribute.KeyValue, 0, 16)
	text := func(key attribute.Key, value string) {
		if value != "" {
			out = append(out, key.String(t.Short(value)))
		}
	}
	out = append(out, attribute.String("foldgate.envelope.id", c.Outcome.Record))
	text(methodKey, c.Target.Method)
	switch c.Target.Method {
	case "tools/call":
		text("gen_ai.operation.name", "execute_tool")
		text(toolKey, c.Target.Name)
	case "prompts/get":
		text("gen_ai.prompt.name", c.Target.Name)
	}
	id := string(c.Origin.ID)
	if rawjson.KindOf(c.Origin.ID) == rawjson.String { // the semantic conventions demand a string
		id = rawjson.Unquote(c.Origin.ID)
	}
	text("jsonrpc.request.id", id)
	text("mcp.session.id", c.Origin.Session)
	text("mcp.protocol.version", c.Origin.Revision)
	text(transportKey, c.Origin.Transport)
	text(serverKey, c.Target.Server)
	text("foldgate.principal", c.Origin.Principal)
	text("foldgate.context", c.Attribution.Context)
	text("foldgate.attribution", string(c.Attribution.Source))
	return out
}

func endCall(span oteltrace.Span, c *Call, err error, kind string) {
	o := &c.Outcome
	if c.Target.Metered {
		span.SetAttributes(attribute.Int("foldgate.tokens.in", o.Tokens.In), attribute.Int("foldgate.tokens.out", o.Tokens.Out),
			attribute.Int("foldgate.tokens.delivered", o.Tokens.Delivered))
	}
	if n := len(o.Findings) + len(o.ArgumentFindings); n > 0 {
		span.SetAttributes(attribute.Int("foldgate.scrub.findings", n))
	}
	flag := func(key attribute.Key, on bool) {
		if on {
			span.SetAttributes(key.Bool(true))
		}
	}
	flag("foldgate.late", o.Late)
	flag("foldgate.truncated", o.Truncated)
	flag("foldgate.folded", o.Folded)
	flag("foldgate.ambiguous", c.Attribution.Ambiguous)
	if reason := refusalReason(c); reason != "" {
		span.SetAttributes(attribute.String("foldgate.blocked", reason))
	}
	setError(span, c.Target.Method, kind, err)
	span.End()
}

// setError marks a span as failed, without the error's text, which may quote an agent or a server.
func setError(span oteltrace.Span, method, kind string, err error) {
	if kind == "" {
		return
	}
	if r, ok := errors.AsType[*Refusal](err); ok {
		span.SetAttributes(attribute.String("foldgate.error.code", r.Code))
		if method == "tools/call" { // the host reads a tool result
			kind = toolError
		}
	}
	if _, numeric := strconv.Atoi(kind); numeric == nil {
		span.SetAttributes(attribute.String("rpc.response.status_code", kind))
	}
	span.SetAttributes(errorKey.String(kind))
	span.SetStatus(codes.Error, "")
}

// Outgoing returns the traceparent for everything that the call causes: the request to the upstream,
// foldgate's own requests, questions to the host. Its parent is the call's span, which the journal
// knows also without telemetry. It is "" without telemetry and a traceparent of the call.
func (c *Call) Outgoing() string {
	if c.Outcome.span.IsValid() {
		return traceparent(c.Outcome.span)
	}
	tp, ok := trace.ParseTraceparent(c.Origin.Traceparent)
	if !ok {
		return ""
	}
	tp.Parent = trace.SpanID(c.Outcome.Record)
	return tp.String()
}

const slowLayer = time.Millisecond // a layer gets a span of its own if it takes longer

// Measure returns a layer that measures the own time of another one: before it passes a call
// inwards, and after it gets the result back.
func (t *Telemetry) Measure(name string, inner Layer) Layer {
	observe := func(phase string) func(ctx context.Context, from, to time.Time) {
		labels := metric.WithAttributeSet(attribute.NewSet(attribute.String("foldgate.layer", name), attribute.String("foldgate.phase", phase)))
		return func(ctx context.Context, from, to time.Time) {
			t.layerTime.Record(ctx, to.Sub(from).Seconds(), labels)
			if t.tracer != nil && to.Sub(from) >= slowLayer {
				_, span := t.tracer.Start(ctx, name+" "+phase, oteltrace.WithTimestamp(from))
				span.End(oteltrace.WithTimestamp(to))
			}
		}
	}
	request, response := observe("request"), observe("response")
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			entered := time.Now()
			var inward, outward time.Time // zero if next is not called
			h := inner(func(ctx context.Context, c *Call) (*Result, error) {
				inward = time.Now()
				res, err := next(ctx, c)
				outward = time.Now()
				return res, err
			})
			res, err := h(ctx, c)
			end := time.Now()
			if outward.IsZero() {
				request(ctx, entered, end)
			} else {
				request(ctx, entered, inward)
				response(ctx, outward, end)
			}
			return res, err
		}
	}
}

// branchOpened starts the span of a branch, the parent of the calls and branches in it. parent is
// the traceparent of a host's trace. If it is "", a branch of the first level is the root of a
// trace. cause is the call that opened the branch, nil for a branch of an earlier process. t may be
// nil.
func (t *Telemetry) branchOpened(b folding.Branch, parent string, cause *Call) {
	if t == nil || t.tracer == nil {
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
	if cause != nil {
		options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: cause.Outcome.span}))
	}
	if tp, ok := trace.ParseTraceparent(parent); ok {
		ctx = remote(ctx, tp, "")
	} else if up := contextpath.Path(b.Context).Parent(); up != contextpath.Main {
		ctx = oteltrace.ContextWithRemoteSpanContext(ctx, t.branch(string(up)))
	} else {
		want.trace = trace.TraceID("", "", "", b.Context)
	}
	_, span := t.tracer.Start(context.WithValue(ctx, wantedKey{}, want), "branch "+b.ID, options...)
	t.mu.Lock()
	t.branches[b.Context] = span
	t.mu.Unlock()
}

// branchEnded ends the span of a branch, if there is one. t may be nil.
func (t *Telemetry) branchEnded(b folding.Branch) {
	if t == nil {
		return
	}
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

// branch returns the span of a branch for its children, with derived ids if the branch has ended.
func (t *Telemetry) branch(context string) oteltrace.SpanContext {
	if span := t.branchSpan(context); span != nil {
		return span.SpanContext().WithRemote(true)
	}
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: trace.TraceID("", "", "", context), SpanID: trace.BranchSpanID(context), TraceFlags: oteltrace.FlagsSampled, Remote: true,
	})
}

func (t *Telemetry) branchSpan(context string) oteltrace.Span {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.branches[context]
}

// SpanIDs generates the ids of spans for the provider of traces. Calls and branches get the ids
// that the journal's OTLP export derives from their records, all other spans random ids.
type SpanIDs struct{}

// wantedIDs are the ids of the one span that is started in a context. trace is zero if the span
// has a parent, and so a trace.
type wantedIDs struct {
	trace oteltrace.TraceID
	span  oteltrace.SpanID
}

type wantedKey struct{}

// NewIDs returns the ids of a span without a parent. The random ones need not be secret.
func (g SpanIDs) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	w, _ := ctx.Value(wantedKey{}).(wantedIDs)
	for !w.trace.IsValid() {
		binary.NativeEndian.PutUint64(w.trace[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(w.trace[8:], rand.Uint64())
	}
	return w.trace, g.NewSpanID(ctx, w.trace)
}

// NewSpanID returns the id of a span with a parent.
func (SpanIDs) NewSpanID(ctx context.Context, _ oteltrace.TraceID) oteltrace.SpanID {
	w, _ := ctx.Value(wantedKey{}).(wantedIDs)
	for !w.span.IsValid() {
		binary.NativeEndian.PutUint64(w.span[:], rand.Uint64())
	}
	return w.span
}

func traceparent(sc oteltrace.SpanContext) string {
	return trace.Traceparent{Trace: sc.TraceID(), Parent: sc.SpanID(), Flags: byte(sc.TraceFlags())}.String()
}

// remote puts the parent of a message into ctx. Only the span loses a tracestate that is not valid.
func remote(ctx context.Context, tp trace.Traceparent, tracestate string) context.Context {
	state, _ := oteltrace.ParseTraceState(tracestate)
	return oteltrace.ContextWithRemoteSpanContext(ctx, oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: tp.Trace, SpanID: tp.Parent, TraceFlags: oteltrace.TraceFlags(tp.Flags), TraceState: state, Remote: true,
	}))
}
