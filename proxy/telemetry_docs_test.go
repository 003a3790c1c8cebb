package proxy

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/otlptranslator"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// catalogueProvider gives out one meter.
type catalogueProvider struct {
	noop.MeterProvider
	c *catalogueMeter
}

// catalogueMeter notes every instrument that is made.
type catalogueMeter struct {
	noop.Meter
	t      *testing.T
	stored map[string]bool // by Prometheus' names
	native map[string]bool // by ours
}

func (p catalogueProvider) Meter(string, ...metric.MeterOption) metric.Meter { return p.c }

func (c *catalogueMeter) add(name, unit string, kind otlptranslator.MetricType) {
	namer := otlptranslator.MetricNamer{WithMetricSuffixes: true}
	stored, err := namer.Build(otlptranslator.Metric{Name: name, Unit: unit, Type: kind})
	if err != nil {
		c.t.Errorf("metric %s: %v", name, err)
	}
	c.native[name] = true
	if kind == otlptranslator.MetricTypeHistogram {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			c.stored[stored+suffix] = true
		}
		return
	}
	c.stored[stored] = true
}

func (c *catalogueMeter) Int64Counter(name string, o ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	c.add(name, metric.NewInt64CounterConfig(o...).Unit(), otlptranslator.MetricTypeMonotonicCounter)
	return noop.Int64Counter{}, nil
}

func (c *catalogueMeter) Int64UpDownCounter(name string, o ...metric.Int64UpDownCounterOption) (metric.Int64UpDownCounter, error) {
	c.add(name, metric.NewInt64UpDownCounterConfig(o...).Unit(), otlptranslator.MetricTypeNonMonotonicCounter)
	return noop.Int64UpDownCounter{}, nil
}

func (c *catalogueMeter) Float64Histogram(name string, o ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	c.add(name, metric.NewFloat64HistogramConfig(o...).Unit(), otlptranslator.MetricTypeHistogram)
	return noop.Float64Histogram{}, nil
}

func (c *catalogueMeter) Int64ObservableGauge(name string, o ...metric.Int64ObservableGaugeOption) (metric.Int64ObservableGauge, error) {
	c.add(name, metric.NewInt64ObservableGaugeConfig(o...).Unit(), otlptranslator.MetricTypeGauge)
	return noop.Int64ObservableGauge{}, nil
}

func (c *catalogueMeter) Int64ObservableCounter(name string, o ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	c.add(name, metric.NewInt64ObservableCounterConfig(o...).Unit(), otlptranslator.MetricTypeMonotonicCounter)
	return noop.Int64ObservableCounter{}, nil
}

// Every metric that the dashboard and the alerts name exists, every metric is
// in the documentation, and every one is on the dashboard.
func TestDashboardNamesRealMetrics(t *testing.T) {
	c := &catalogueMeter{t: t, stored: map[string]bool{}, native: map[string]bool{}}
	newRig(t, false, nil, WithTelemetry(nil, catalogueProvider{c: c}))
	named := regexp.MustCompile(`\b(?:foldgate|folding|mcp_server|mcp_client)_[a-z_]+[a-z]\b`)
	label := regexp.MustCompile(`^foldgate_(server|outcome|reason|direction|how|rule|place|layer|phase|limit|team|crossing|state)$`)
	used := map[string]bool{}
	for _, expr := range append(dashboardExprs(t), alertExprs(t)...) {
		for _, name := range named.FindAllString(expr, -1) {
			if label.MatchString(name) {
				continue
			}
			used[name] = true
			if !c.stored[name] {
				t.Errorf("%s names %s, which foldgate does not export", expr, name)
			}
		}
	}
	page, err := os.ReadFile("../docs/telemetry.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(c.native)) {
		if !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("metric %s is not in docs/telemetry.md", name)
		}
		prefix := strings.NewReplacer(".", "_").Replace(strings.TrimSuffix(name, ".total"))
		if !slices.ContainsFunc(slices.Collect(maps.Keys(used)), func(u string) bool { return strings.HasPrefix(u, prefix) }) {
			t.Errorf("metric %s is on no panel and in no alert", name)
		}
	}
	if len(used) < 15 {
		t.Errorf("only %d metrics found in the dashboard and alerts: %v", len(used), used)
	}
}

func dashboardExprs(t *testing.T) (out []string) {
	t.Helper()
	raw, err := os.ReadFile("../docs/grafana/foldgate.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct{ List []struct{ Query string } }
	}
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || (p.Type != "row" && len(p.Targets) == 0) {
			t.Errorf("panel %q has the id %d of another, or no query", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, q := range p.Targets {
			out = append(out, q.Expr)
		}
	}
	for _, v := range d.Templating.List {
		out = append(out, v.Query)
	}
	return out
}

func alertExprs(t *testing.T) (out []string) {
	t.Helper()
	raw, err := os.ReadFile("../docs/grafana/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile("../docs/grafana/alerts_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.UnmarshalWithOptions(raw, &file, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			if r.Alert == "" || r.Expr == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("rule %+v lacks something", r)
			}
			if !strings.Contains(string(cases), "alertname: "+r.Alert) {
				t.Errorf("alert %s has no case in alerts_test.yaml", r.Alert)
			}
			out = append(out, r.Expr)
		}
	}
	return out
}
