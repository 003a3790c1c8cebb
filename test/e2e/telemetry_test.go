//go:build e2e

package e2e

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	collectmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	collecttrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// collector is an OTLP receiver on HTTP that keeps all spans and metrics.
type collector struct {
	url      string
	mu       sync.Mutex
	requests int
	service  map[string]bool
	spans    []*tracepb.Span
	metrics  map[string]*metricspb.Metric // the newest of each name
}

func newCollector(t *testing.T) *collector {
	c := &collector{service: map[string]bool{}, metrics: map[string]*metricspb.Metric{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", func(w http.ResponseWriter, r *http.Request) {
		var m collecttrace.ExportTraceServiceRequest
		c.take(t, r, &m)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rs := range m.ResourceSpans {
			for _, a := range rs.Resource.Attributes {
				c.service[a.Key+"="+a.Value.GetStringValue()] = true
			}
			for _, ss := range rs.ScopeSpans {
				c.spans = append(c.spans, ss.Spans...)
			}
		}
	})
	mux.HandleFunc("POST /v1/metrics", func(w http.ResponseWriter, r *http.Request) {
		var m collectmetrics.ExportMetricsServiceRequest
		c.take(t, r, &m)
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, rm := range m.ResourceMetrics {
			for _, sm := range rm.ScopeMetrics {
				for _, metric := range sm.Metrics {
					c.metrics[metric.Name] = metric
				}
			}
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func (c *collector) take(t *testing.T, r *http.Request, m proto.Message) {
	c.mu.Lock()
	c.requests++
	c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, m)
	}
	if err != nil {
		t.Errorf("%s: %v", r.URL.Path, err)
	}
}

func spanAttr(s *tracepb.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// node is a span as the tests compare it: trace, id and parent in hex.
type spanNode struct{ trace, id, parent, name string }

func nodeOf(s *tracepb.Span) spanNode {
	return spanNode{hex.EncodeToString(s.TraceId), hex.EncodeToString(s.SpanId), hex.EncodeToString(s.ParentSpanId), s.Name}
}

// tree draws the spans of one trace below a parent, and says how many there are.
func tree(nodes []spanNode, parent, indent string) (out string, n int) {
	for _, s := range nodes {
		if s.parent == parent {
			below, more := tree(nodes, s.id, indent+"  ")
			out += indent + s.name + "\n" + below
			n += 1 + more
		}
	}
	return out, n
}

// explore does one folded exploration: a branch, calls in it, a branch in the
// branch with a call in it, and the way back. meta goes with every call.
func explore(t *testing.T, ctx context.Context, c *mcpclient.Client, meta string) (outer created) {
	t.Helper()
	do := func(name, args string) mcpclient.Message {
		m := call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s%s}`, name, args, meta))
		return m
	}
	outer = own[created](t, do("branch_create", `{"description":"outer"}`))
	do("fake__text", fmt.Sprintf(`{"text":"one","branch_id":%q}`, outer.BranchID))
	do("fake__raw", fmt.Sprintf(`{"result":{"content":[],"isError":true,"resultType":"complete"},"branch_id":%q}`, outer.BranchID))
	inner := own[created](t, do("branch_create", fmt.Sprintf(`{"description":"inner","parent_branch_id":%q}`, outer.BranchID)))
	do("fake__slow", fmt.Sprintf(`{"ms":5,"branch_id":%q}`, inner.BranchID))
	do("branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"inner done"}`, inner.BranchID))
	do("branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"outer done"}`, outer.BranchID))
	return outer
}

// The spans of one folded exploration arrive at a collector as one tree, and
// are those that `foldgate trace --format otlp` makes of the journal.
func TestTelemetryIsOneTree(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		for _, hosted := range []bool{false, true} {
			t.Run(fmt.Sprintf("hosted=%v", hosted), func(t *testing.T) { oneTree(t, transport, era, hosted) })
		}
	})
}

func oneTree(t *testing.T, transport string, era mcpclient.Era, hosted bool) {
	const hostTrace, hostSpan = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	meta := ""
	if hosted {
		meta = `,"_meta":{"traceparent":"00-` + hostTrace + `-` + hostSpan + `-01","tracestate":"vendor=1","baggage":"k=v"}`
	}
	ctx := testContext(t)
	col := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", col.url)
	t.Setenv("OTEL_SERVICE_NAME", "foldgate-under-test")
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, ""))
	c := g.connect(ctx, transport, era)
	call(t, c, ctx, "tools/list", `{}`)
	outer := explore(t, ctx, c, meta)
	g.stop() // the last spans are sent on the way out

	root := fmt.Sprintf("branch %s", outer.BranchID)
	i := slices.IndexFunc(col.spans, func(s *tracepb.Span) bool { return s.Name == root })
	if i < 0 {
		t.Fatalf("no span %q among %d", root, len(col.spans))
	}
	in := nodeOf(col.spans[i]).trace
	above := ""
	if hosted {
		above = hostSpan
		if in != hostTrace {
			t.Errorf("the branch is in trace %s, want the host's %s", in, hostTrace)
		}
	}
	var nodes []spanNode
	for _, s := range col.spans {
		if n := nodeOf(s); n.trace == in {
			nodes = append(nodes, n)
		}
	}
	drawn, n := tree(nodes, above, "")
	if n != len(nodes) {
		t.Errorf("%d of %d spans hang below the root:\n%s", n, len(nodes), drawn)
	}
	if roots := strings.Count("\n"+drawn, "\n") - strings.Count("\n"+drawn, "\n ") - 1; !hosted && roots != 1 {
		t.Errorf("the trace has %d roots, want 1", roots)
	}
	for _, want := range []string{"branch br_", "tools/call text", "tools/call raw", "tools/call slow", "tools/call branch_return", "folding.branch.return"} {
		if !strings.Contains(drawn, want) {
			t.Errorf("no span %q in the tree", want)
		}
	}
	t.Logf("one tree of %d spans:\n%s", n, drawn)
	sameAsJournal(t, g, col)
	if !col.service["service.name=foldgate-under-test"] {
		t.Errorf("resource attributes %v lack the service name of the environment", col.service)
	}
	forwardedParents(t, file, nodes, hosted)
}

// sameAsJournal compares every span of a call or branch with the journal's.
func sameAsJournal(t *testing.T, g *gateway, col *collector) {
	t.Helper()
	journal := map[string]spanNode{}
	for line := range strings.Lines(g.output("trace", "--format", "otlp")) {
		var export struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct{ TraceID, SpanID, ParentSpanID, Name string }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &export); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for _, s := range export.ResourceSpans[0].ScopeSpans[0].Spans {
			journal[s.SpanID] = spanNode{s.TraceID, s.SpanID, s.ParentSpanID, s.Name}
		}
	}
	matched := 0
	for _, s := range col.spans {
		n := nodeOf(s)
		if spanAttr(s, "foldgate.envelope.id") == "" && spanAttr(s, "foldgate.branch.id") == "" {
			continue
		}
		if want := journal[n.id]; n != want {
			t.Errorf("span %+v, the journal's export has %+v", n, want)
		}
		matched++
	}
	if matched != len(journal) {
		t.Errorf("%d spans of calls and branches were exported live, %d from the journal", matched, len(journal))
	}
}

// forwardedParents checks that the upstream was told our client span as the parent.
func forwardedParents(t *testing.T, file string, nodes []spanNode, hosted bool) {
	t.Helper()
	calls := recordedMethod(t, file, "tools/call")
	if len(calls) != 3 {
		t.Errorf("the upstream got %d calls, want 3", len(calls))
	}
	for _, line := range calls {
		var m struct {
			Params struct {
				Meta struct{ Traceparent, Tracestate, Baggage string } `json:"_meta"`
			}
		}
		unmarshal(t, []byte(line), &m)
		got := m.Params.Meta
		if !slices.ContainsFunc(nodes, func(n spanNode) bool { return got.Traceparent == "00-"+n.trace+"-"+n.id+"-01" }) {
			t.Errorf("the upstream was told traceparent %q, which is no span of the tree", got.Traceparent)
		}
		if hosted && (got.Tracestate != "vendor=1" || got.Baggage != "k=v") {
			t.Errorf("tracestate and baggage arrived as %q and %q", got.Tracestate, got.Baggage)
		}
	}
}

// The metrics of docs/telemetry.md arrive, with the right figures.
func TestTelemetryMetrics(t *testing.T) {
	ctx := testContext(t)
	col := newCollector(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", col.url)
	t.Setenv("OTEL_TRACES_EXPORTER", "none")
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "http", mcpclient.Modern)
	call(t, c, ctx, "tools/list", `{}`)
	explore(t, ctx, c, "")
	g.stop()
	if len(col.spans) != 0 {
		t.Errorf("OTEL_TRACES_EXPORTER=none: %d spans arrived", len(col.spans))
	}
	sum := func(name, label string) (total int64) {
		for _, p := range col.metrics[name].GetSum().GetDataPoints() {
			for _, a := range p.Attributes {
				if a.Key+"="+a.Value.GetStringValue() == label {
					total += p.GetAsInt()
				}
			}
		}
		return total
	}
	for _, want := range []struct {
		name, label string
		n           int64
	}{
		{"foldgate.calls", "gen_ai.tool.name=text", 1},
		{"foldgate.calls", "foldgate.outcome=tool_error", 1},
		{"foldgate.calls", "gen_ai.tool.name=branch_create", 2},
		{"foldgate.calls.in_flight", "mcp.method.name=tools/call", 0},
	} {
		if got := sum(want.name, want.label); got != want.n {
			t.Errorf("%s{%s} = %d, want %d", want.name, want.label, got, want.n)
		}
	}
	for _, name := range []string{"foldgate.tokens", "mcp.server.operation.duration", "mcp.client.operation.duration", "foldgate.layer.duration",
		"folding.branch.created.total", "folding.branch.returned.total", "folding.branch.active.count", "folding.branch.duration.seconds", "foldgate.upstream.up"} {
		if col.metrics[name] == nil {
			t.Errorf("metric %s did not arrive", name)
		}
	}
}

// Nothing is sent if the SDK is disabled, whatever else is set, nor if no variable asks for it.
// The console exporter never writes to stdout, which the client would report as a fault. The log has no keys of a
// collector.
func TestTelemetryOff(t *testing.T) {
	const key = "zq7keyofthecollector4417" // looks like no secret that a rule knows
	col := newCollector(t)
	for name, env := range map[string]map[string]string{
		"disabled": {"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": col.url},
		"none":     {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": col.url},
		"unset":    {"OTEL_SERVICE_NAME": "x"},
		"console":  {"OTEL_TRACES_EXPORTER": "console", "OTEL_METRICS_EXPORTER": "console"},
		"keys":     {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:" + key + "@127.0.0.1:1/%zz", "OTEL_EXPORTER_OTLP_HEADERS": "x-team=" + key + "%zz"},
		"wrong":    {"OTEL_TRACES_EXPORTER": "carrier-pigeon", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": col.url + "/v1/metrics", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/morse"},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range env {
				t.Setenv(k, v)
			}
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, fakeConfig(file, ""))
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			call(t, c, ctx, "tools/list", `{}`)
			explore(t, ctx, c, "")
			g.stop()
			if col.requests != 0 {
				t.Errorf("%d requests reached the collector", col.requests)
			}
			if sent, _ := os.ReadFile(file); name != "console" && name != "keys" && strings.Contains(string(sent), "traceparent") {
				t.Errorf("the upstream was sent a traceparent: %s", sent)
			}
			switch log := g.log.String(); name {
			case "keys":
				if strings.Contains(log, key) || !strings.Contains(log, "hidden") {
					t.Errorf("the log has keys of a collector, or no fault:\n%s", log)
				}
			case "console":
				if !strings.Contains(log, `"Name":"tools/call text"`) || !strings.Contains(log, "foldgate.calls") {
					t.Error("no spans or no metrics on standard error")
				}
			case "wrong":
				if !strings.Contains(log, "no spans are exported") || !strings.Contains(log, "no metrics are exported") {
					t.Errorf("the log does not name the fault:\n%s", log)
				}
			}
		})
	}
}
