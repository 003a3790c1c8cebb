package folding

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// scope names this package to OpenTelemetry.
const scope = "github.com/foldgate/foldgate/folding"

// telemetry turns events into metrics, and operations into spans. Sessions
// and branches are in spans only: as labels they would grow without bound.
type telemetry struct {
	tracer                              trace.Tracer
	created, returned, timedOut, failed metric.Int64Counter
	warned, late, refused               metric.Int64Counter
	active                              metric.Int64UpDownCounter
	duration, consumed, utilisation     metric.Float64Histogram
}

func newTelemetry(meters metric.MeterProvider, tracers trace.TracerProvider) (*telemetry, error) {
	if meters == nil {
		meters = metricnoop.NewMeterProvider()
	}
	if tracers == nil {
		tracers = tracenoop.NewTracerProvider()
	}
	m := meters.Meter(scope)
	var faults []error
	counter := func(name, what string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit("{branch}"), metric.WithDescription(what))
		faults = append(faults, err)
		return c
	}
	histogram := func(name, unit, what string, bounds ...float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(what), metric.WithExplicitBucketBoundaries(bounds...))
		faults = append(faults, err)
		return h
	}
	t := &telemetry{
		tracer:   tracers.Tracer(scope),
		created:  counter("folding.branch.created.total", "Branches created."),
		returned: counter("folding.branch.returned.total", "Branches returned by their agent."),
		timedOut: counter("folding.branch.timeout.total", "Branches ended by their deadline."),
		failed:   counter("folding.branch.failed.total", "Branches ended by force for another reason."),
		warned:   counter("folding.budget.warning.total", "Crossings of 80 % of a budget."),
		late:     counter("folding.branch.late.total", "Returns that came after a forced end."),
		refused:  counter("folding.branch.refused.total", "Operations refused, by error code."),
		duration: histogram("folding.branch.duration.seconds", "s", "How long branches lived, however they ended.",
			0.1, 0.5, 1, 5, 10, 30, 60, 120, 300, 600),
		consumed: histogram("folding.budget.consumed.tokens", "{token}", "Tokens used by ended branches.",
			100, 500, 1000, 2000, 4000, 8000, 16000, 32000),
		utilisation: histogram("folding.budget.utilization.ratio", "1", "Share of their budget that ended branches used.",
			0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1),
	}
	var err error
	t.active, err = m.Int64UpDownCounter("folding.branch.active.count", metric.WithUnit("{branch}"), metric.WithDescription("Branches that are open."))
	return t, errors.Join(append(faults, err)...)
}

// observe counts an event. The gauge carries the same label up and down, so
// that it returns to zero.
func (t *telemetry) observe(e Event) {
	ctx := context.Background()
	depth := metric.WithAttributes(attribute.Int("depth", e.Branch.Depth))
	switch e.Kind {
	case EventCreated:
		t.created.Add(ctx, 1, depth)
		t.active.Add(ctx, 1, depth)
	case EventRecovered:
		t.active.Add(ctx, 1, depth)
	case EventWarned:
		t.warned.Add(ctx, 1, depth)
	case EventLate:
		t.late.Add(ctx, 1, depth)
	case EventConcluded, EventEnded:
		t.active.Add(ctx, -1, depth)
		switch e.Branch.Status {
		case StatusCompleted:
			t.returned.Add(ctx, 1, depth)
		case StatusTimeout:
			t.timedOut.Add(ctx, 1, depth)
		default:
			t.failed.Add(ctx, 1, depth, metric.WithAttributes(attribute.String("failure_reason", e.Branch.Reason)))
		}
		t.duration.Record(ctx, e.Branch.Duration().Seconds(), depth)
		t.consumed.Record(ctx, float64(e.Branch.BudgetUsed), depth)
		t.utilisation.Record(ctx, float64(e.Branch.BudgetUsed)/float64(max(e.Branch.BudgetTotal, 1)), depth)
	}
}

// span starts a span around an operation; call the function it returns with
// the operation's branch and error.
func (t *telemetry) span(ctx context.Context, name, session string) (context.Context, func(Branch, error)) {
	ctx, span := t.tracer.Start(ctx, name)
	return ctx, func(b Branch, err error) {
		defer span.End()
		if b.Session != "" {
			session = b.Session
		}
		if span.IsRecording() {
			span.SetAttributes(attribute.String("folding.session_id", session),
				attribute.String("folding.branch_id", b.ID), attribute.Int("folding.depth", b.Depth))
		}
		if err == nil {
			return
		}
		span.SetStatus(codes.Error, Code(err))
		t.refused.Add(ctx, 1, metric.WithAttributes(attribute.String("code", Code(err))))
	}
}
