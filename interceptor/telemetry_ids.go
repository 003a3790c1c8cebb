package interceptor

import (
	"context"
	"math/rand/v2"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/interceptor/trace"
)

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
