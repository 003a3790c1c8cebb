package interceptor

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

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
