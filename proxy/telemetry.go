package proxy

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/replicas"
)

// Option changes how a [Gateway] is made.
type Option func(*Gateway, *engine.Options)

// WithTelemetry sends spans and metrics to the providers, either of which may be nil. They are for
// this gateway alone and must outlive it: the last spans end with [Gateway.Close], and its state is
// read until the meters are shut down.
func WithTelemetry(traces oteltrace.TracerProvider, meters metric.MeterProvider) Option {
	return func(_ *Gateway, o *engine.Options) { o.Traces, o.Meters = traces, meters }
}

// SpanIDs returns the id generator that the provider of traces must have, so that spans carry the
// ids that `foldgate trace --format otlp` gives them.
func SpanIDs() sdktrace.IDGenerator { return interceptor.SpanIDs{} }

// watchState makes the metrics of the gateway's state: sessions, upstreams, the journal.
func (g *Gateway) watchState() error {
	if g.Meters == nil {
		return nil
	}
	m := g.Meters.Meter("github.com/foldgate/foldgate")
	sessions, err1 := m.Int64ObservableGauge("foldgate.sessions.active", metric.WithUnit("{session}"),
		metric.WithDescription("Host sessions that are open. The modern era has none on HTTP."))
	up, err2 := m.Int64ObservableGauge("foldgate.upstream.up", metric.WithUnit("{upstream}"),
		metric.WithDescription("0 for an upstream that could not be reached, 1 for one that could; none for one not yet tried."))
	journal, err3 := m.Int64ObservableGauge("foldgate.trace.failing", metric.WithUnit("{journal}"),
		metric.WithDescription("1 while the trace can't be written."))
	faulty, err4 := m.Int64ObservableGauge("foldgate.config.faulty", metric.WithUnit("{configuration}"),
		metric.WithDescription("1 while the configuration file can't be used, and the configuration of before stays in force."))
	counting, err5 := m.Int64ObservableGauge("foldgate.limits.failing", metric.WithUnit("{store}"),
		metric.WithDescription("1 while the store of the limits can't be reached."))
	known, err6 := m.Int64ObservableGauge("foldgate.replicas", metric.WithUnit("{replica}"),
		metric.WithDescription("Replicas as this one knows them, by state: up, draining, stopped, down."))
	forwarded, err7 := m.Int64ObservableCounter("foldgate.replicas.forwarded", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that were passed on to the replica that owns them. Those that failed found it down, or it went away."))
	err := errors.Join(err1, err2, err3, err4, err5, err6, err7)
	if err == nil {
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
