package interceptor

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"
)

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
