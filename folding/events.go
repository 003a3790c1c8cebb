package folding

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Event is one moment in the life of a branch. The events of a branch arrive in order, and the
// ends of its children arrive before its own.
type Event struct {
	Kind EventKind
	// Branch is the branch just after the event.
	Branch Branch
	// Cause is CreateRequest.Cause if Kind is EventCreated.
	Cause any
}

// EventKind names a moment in the life of a branch.
type EventKind string

// The kinds of events, in the order in which a branch can meet them.
const (
	// EventCreated: the branch is open and is being stored. If that fails, EventEnded follows.
	EventCreated EventKind = "created"
	// EventRecovered: the branch was active when the process died and goes on.
	EventRecovered EventKind = "recovered"
	// EventWarned: 80 % of the budget are used.
	EventWarned EventKind = "warned"
	// EventExhausted: the budget is used up; EventEnded follows.
	EventExhausted EventKind = "exhausted"
	// EventConcluded: the agent returned the branch.
	EventConcluded EventKind = "concluded"
	// EventEnded: the branch was ended by force.
	EventEnded EventKind = "ended"
	// EventLate: a message came after a forced end and was stored.
	EventLate EventKind = "late"
)

// emit queues an event. m.mu is held.
func (m *Manager) emit(e Event) { m.events = append(m.events, e) }

// unlock releases m.mu and returns when all queued events are delivered, by this goroutine or
// another. One goroutine delivers at a time, which keeps the order.
func (m *Manager) unlock() {
	pending := len(m.events) > 0
	m.mu.Unlock()
	if !pending {
		return
	}
	m.publishing.Lock()
	defer m.publishing.Unlock()
	m.mu.Lock()
	events := m.events
	m.events = nil
	m.mu.Unlock()
	for _, e := range events {
		m.deliver(e)
	}
}

// deliver survives a handler that panics, so that the next event is delivered.
func (m *Manager) deliver(e Event) {
	defer func() {
		if r := recover(); r != nil {
			m.log.Error("event handler panicked", "event", e.Kind, "branch_id", e.Branch.ID, "panic", fmt.Sprint(r))
		}
	}()
	m.report(e)
	m.telemetry.observe(e)
	if m.opts.OnEvent != nil {
		m.opts.OnEvent(e)
	}
}

// report logs the begin and the end of a branch, without its texts.
func (m *Manager) report(e Event) {
	what := map[EventKind]string{EventCreated: "created", EventRecovered: "recovered", EventConcluded: "returned", EventEnded: "ended"}[e.Kind]
	if b := e.Branch; what != "" {
		m.log.Info("branch "+what, "context", b.Context, "principal", b.Principal, "status", cmp.Or(b.Reason, string(b.Status)), "tokens", b.BudgetUsed, "budget", b.BudgetTotal)
	}
}

const scope = "github.com/foldgate/foldgate/folding" // of instrumentation, in OpenTelemetry's terms

// telemetry makes metrics of events, and spans of operations. The ids of sessions and branches
// are attributes of spans only: as labels of metrics they would grow without bound.
type telemetry struct {
	tracer                              trace.Tracer
	created, returned, timedOut, failed metric.Int64Counter
	warned, late, refused               metric.Int64Counter
	active                              metric.Int64UpDownCounter
	duration, consumed, utilisation     metric.Float64Histogram
}

func newTelemetry(meters metric.MeterProvider, tracers trace.TracerProvider) (*telemetry, error) {
	m := cmp.Or[metric.MeterProvider](meters, metricnoop.NewMeterProvider()).Meter(scope)
	var faults []error
	counter := func(name, description string) metric.Int64Counter {
		c, err := m.Int64Counter(name, metric.WithUnit("{branch}"), metric.WithDescription(description))
		faults = append(faults, err)
		return c
	}
	histogram := func(name, unit, description string, bounds ...float64) metric.Float64Histogram {
		h, err := m.Float64Histogram(name, metric.WithUnit(unit), metric.WithDescription(description), metric.WithExplicitBucketBoundaries(bounds...))
		faults = append(faults, err)
		return h
	}
	t := &telemetry{
		tracer:   cmp.Or[trace.TracerProvider](tracers, tracenoop.NewTracerProvider()).Tracer(scope),
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

// observe counts an event. The active count goes up and down with the same label, so that it
// returns to zero.
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
		t.duration.Record(ctx, e.Branch.CompletedAt.Sub(e.Branch.CreatedAt).Seconds(), depth)
		t.consumed.Record(ctx, float64(e.Branch.BudgetUsed), depth)
		t.utilisation.Record(ctx, float64(e.Branch.BudgetUsed)/float64(max(e.Branch.BudgetTotal, 1)), depth)
	}
}

// span starts the span of an operation. The caller ends it by calling the function with the
// operation's branch and error.
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
