package proxy

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/replicas"
)

// Option changes how a [Gateway] is made.
type Option func(*Gateway, *engine.Options)

// WithTelemetry sends spans and metrics to the providers, either of which may be nil. They are for
// this gateway alone and must outlive it: the last spans end with [Gateway.Close], and its state is
// read until the meters are shut down. traces needs [interceptor.SpanIDs].
func WithTelemetry(traces oteltrace.TracerProvider, meters metric.MeterProvider) Option {
	return func(_ *Gateway, o *engine.Options) { o.Traces, o.Meters = traces, meters }
}

// watchState makes the metrics of the gateway's state: sessions, upstreams, the journal.
func (g *Gateway) watchState() error {
	if g.Meters == nil {
		return nil
	}
	m := g.Meters.Meter("github.com/foldgate/foldgate")
	var faults []error
	gauge := func(name, unit, description string) metric.Int64ObservableGauge {
		in, err := m.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description))
		faults = append(faults, err)
		return in
	}
	sessions := gauge("foldgate.sessions.active", "{session}", "Host sessions that are open. The modern era has none on HTTP.")
	up := gauge("foldgate.upstream.up", "{upstream}", "0 for an upstream that could not be reached, 1 for one that could; none for one not yet tried.")
	journal := gauge("foldgate.trace.failing", "{journal}", "1 while the trace can't be written.")
	faulty := gauge("foldgate.config.faulty", "{configuration}", "1 while the configuration file can't be used, and the configuration of before stays in force.")
	counting := gauge("foldgate.limits.failing", "{store}", "1 while the store of the limits can't be reached.")
	known := gauge("foldgate.replicas", "{replica}", "Replicas as this one knows them, by state: up, draining, stopped, down.")
	forwarded, err := m.Int64ObservableCounter("foldgate.replicas.forwarded", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that were passed on to the replica that owns them. Those that failed found it down, or it went away."))
	if err = errors.Join(append(faults, err)...); err == nil {
		_, err = m.RegisterCallback(func(_ context.Context, o metric.Observer) error {
			o.ObserveInt64(sessions, int64(len(g.router.Sessions(""))))
			for _, srv := range g.settings.Load().Servers {
				server := metric.WithAttributes(attribute.String("foldgate.server", srv.Key))
				switch state, _ := srv.Status(); state {
				case "ready":
					o.ObserveInt64(up, 1, server)
				case "failed":
					o.ObserveInt64(up, 0, server)
				}
			}
			o.ObserveInt64(journal, one(g.Journal.Err() != nil))
			o.ObserveInt64(faulty, one(g.reloadFault.Load() != nil))
			o.ObserveInt64(counting, one(g.limitsFault() != nil))
			if set := g.replicas.Load(); set != nil {
				st, by := set.Status(), map[string]int64{}
				for _, r := range st.Members {
					by[r.State]++
				}
				for _, state := range []string{replicas.Up, replicas.Draining, replicas.Stopped, replicas.Down} {
					o.ObserveInt64(known, by[state], metric.WithAttributes(attribute.String("foldgate.state", state)))
				}
				o.ObserveInt64(forwarded, st.Forwarded, metric.WithAttributes(attribute.String("foldgate.outcome", "ok")))
				o.ObserveInt64(forwarded, st.Failed, metric.WithAttributes(attribute.String("foldgate.outcome", "error")))
			}
			return nil
		}, sessions, up, journal, faulty, counting, known, forwarded)
	}
	if err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	return nil
}

// one returns 1 if on is true, else 0.
func one(on bool) int64 {
	if on {
		return 1
	}
	return 0
}
