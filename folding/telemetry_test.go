package folding_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"

	"github.com/foldgate/foldgate/folding"
)

type noopMeter = noop.Meter // a name that leaves Meter to the method

// meters sums measurements by instrument and labels.
type meters struct {
	noop.MeterProvider
	noopMeter
	mu   sync.Mutex
	sums map[string]float64
}

func (m *meters) Meter(string, ...metric.MeterOption) metric.Meter { return m }

func (m *meters) Int64Counter(name string, _ ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return counter{m: m, name: name}, nil
}

func (m *meters) Int64UpDownCounter(name string, _ ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	return gauge{m: m, name: name}, nil
}

func (m *meters) Float64Histogram(name string, _ ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return histogram{m: m, name: name}, nil
}

func (m *meters) add(name, labels string, v float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sums[name+"{"+labels+"}"] += v
}

type counter struct {
	noop.Int64Counter
	m    *meters
	name string
}

func (c counter) Add(_ context.Context, n int64, o ...metric.AddOption) {
	c.m.add(c.name, addLabels(o), float64(n))
}

type gauge struct {
	noop.Int64UpDownCounter
	m    *meters
	name string
}

func (g gauge) Add(_ context.Context, n int64, o ...metric.AddOption) {
	g.m.add(g.name, addLabels(o), float64(n))
}

type histogram struct {
	noop.Float64Histogram
	m    *meters
	name string
}

func (h histogram) Record(_ context.Context, v float64, _ ...metric.RecordOption) {
	h.m.add(h.name, "", v)
}

func addLabels(o []metric.AddOption) string {
	set := metric.NewAddConfig(o).Attributes()
	var out []string
	for _, kv := range set.ToSlice() {
		out = append(out, fmt.Sprintf("%s=%s", kv.Key, kv.Value.String()))
	}
	return strings.Join(out, ",")
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mm := &meters{sums: map[string]float64{}}
		m, _ := open(t, roomy(), folding.Options{Meters: mm})
		p := create(t, m, alice, folding.CreateRequest{Budget: 100})
		c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID, Budget: 100})
		create(t, m, alice, folding.CreateRequest{ParentID: p.ID, TimeoutSeconds: 1, Budget: 100})
		time.Sleep(2 * time.Second)
		call := begin(t, m, c.ID)
		if _, err := call.ChargeUpTo(99); err != nil {
			t.Fatal(err)
		}
		call.Release(folding.CallOutcome{})
		if _, err := m.Return(ctx, alice, p.ID, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Return(ctx, alice, c.ID, ""); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Return(ctx, alice, "br_none", ""); err == nil {
			t.Fatal("Return of nothing succeeded")
		}
		want := map[string]float64{
			"folding.branch.created.total{depth=1}":                                1,
			"folding.branch.created.total{depth=2}":                                2,
			"folding.branch.active.count{depth=1}":                                 0,
			"folding.branch.active.count{depth=2}":                                 0,
			"folding.branch.returned.total{depth=1}":                               1,
			"folding.branch.timeout.total{depth=2}":                                1,
			"folding.branch.failed.total{depth=2,failure_reason=budget_exhausted}": 1,
			"folding.branch.late.total{depth=2}":                                   1,
			"folding.branch.refused.total{code=branch_not_found}":                  1,
			"folding.budget.warning.total{depth=2}":                                1,
			"folding.branch.duration.seconds{}":                                    5, // 2 + 2 + 1
			"folding.budget.consumed.tokens{}":                                     102,
			"folding.budget.utilization.ratio{}":                                   1.02,
		}
		if diff := cmp.Diff(want, mm.sums); diff != "" {
			t.Errorf("metrics (-want +got):\n%s", diff)
		}
	})
}
