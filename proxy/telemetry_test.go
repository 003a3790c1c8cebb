package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	hostTrace  = "0af7651916cd43dd8448eb211c80319c"
	hostParent = "00-" + hostTrace + "-b7ad6b7169203331-01"
)

// sink is who telemetry goes to in a test.
type sink struct {
	spans  *tracetest.InMemoryExporter
	reader *sdkmetric.ManualReader
	option Option
}

func newSink() *sink {
	l := &sink{spans: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	l.option = WithTelemetry(
		sdktrace.NewTracerProvider(sdktrace.WithSyncer(l.spans), sdktrace.WithIDGenerator(interceptor.SpanIDs{})),
		sdkmetric.NewMeterProvider(sdkmetric.WithReader(l.reader)))
	return l
}

// named returns the spans of one name.
func (l *sink) named(name string) (out []tracetest.SpanStub) {
	for _, s := range l.spans.GetSpans() {
		if s.Name == name {
			out = append(out, s)
		}
	}
	return out
}

func attr(s tracetest.SpanStub, key string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

func opened(t *testing.T, result string) string {
	t.Helper()
	id, ok := rawjson.GetString([]byte(result), "structuredContent", "branch_id")
	if !ok {
		t.Fatalf("branch_create = %s", result)
	}
	return id
}

// exported returns the spans that the journal's OTLP export makes, by id: their
// trace and parent.
func exported(t *testing.T, g *Gateway) map[string][2]string {
	t.Helper()
	var out bytes.Buffer
	if err := render.Write(&out, render.OTLP, query.Scan(t.Context(), filepath.Join(g.Start.Path(g.Start.StateDir), "trace"), query.Filter{})); err != nil {
		t.Fatal(err)
	}
	spans := map[string][2]string{}
	for line := range strings.Lines(out.String()) {
		var export struct {
			ResourceSpans []struct {
				ScopeSpans []struct {
					Spans []struct{ TraceID, SpanID, ParentSpanID string }
				}
			}
		}
		if err := json.Unmarshal([]byte(line), &export); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		for _, s := range export.ResourceSpans[0].ScopeSpans[0].Spans {
			spans[s.SpanID] = [2]string{s.TraceID, s.ParentSpanID}
		}
	}
	return spans
}

// Live spans of calls and branches and those that are made of the journal have
// the same ids, traces and parents, with and without a trace of the host's.
func TestSpansAgreeWithTheJournal(t *testing.T) {
	for _, meta := range []string{"", `,"_meta":{"traceparent":"` + hostParent + `"}`} {
		l := newSink()
		r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, l.option)
		r.initialize()
		call := func(name, args string) string {
			return r.ok("tools/call", `{"name":"`+name+`","arguments":`+args+meta+`}`)
		}
		outer := opened(t, call("branch_create", `{"description":"outer"}`))
		call("up__echo", `{"x":1,"branch_id":"`+outer+`"}`)
		inner := opened(t, call("branch_create", `{"description":"inner","parent_branch_id":"`+outer+`"}`))
		call("up__echo", `{"x":2,"branch_id":"`+inner+`"}`)
		r.ok("tools/call", `{"name":"up__echo","arguments":{"x":3,"branch_id":"`+inner+`"}}`) // never with a traceparent
		call("branch_return", `{"branch_id":"`+outer+`","message":"done"}`)
		call("up__echo", `{"x":4}`)
		want := exported(t, r.g)
		n := 0
		for _, s := range l.spans.GetSpans() {
			id := s.SpanContext.SpanID().String()
			if attr(s, "foldgate.envelope.id") == "" && !strings.HasPrefix(s.Name, "branch ") {
				continue // of no record
			}
			parent := ""
			if s.Parent.IsValid() {
				parent = s.Parent.SpanID().String()
			}
			if got := [2]string{s.SpanContext.TraceID().String(), parent}; got != want[id] {
				t.Errorf("host's _meta %q: span %s %s = %v, the journal's export says %v", meta, s.Name, id, got, want[id])
			}
			n++
		}
		if n < 9 || n != len(want) {
			t.Errorf("host's _meta %q: %d spans live, %d from the journal, want the same and at least 9", meta, n, len(want))
		}
	}
}

// What a span of a call says, and that of the request to the upstream.
func TestSpansOfACall(t *testing.T) {
	l := newSink()
	r := newRig(t, true, map[string]fakeUpstream{"up": echoUpstream("2026-07-28")}, l.option)
	meta := `"_meta":{"traceparent":"` + hostParent + `","tracestate":"vendor=1","baggage":"k=v","io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
	r.ok("tools/list", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`)
	l.spans.Reset()
	r.exchangeID(context.Background(), `"q-7"`, "tools/call", `{"name":"up__echo","arguments":{"x":1},`+meta+`}`)
	both := l.named("tools/call echo")
	if len(both) != 2 {
		t.Fatalf("%d spans, want the server's and the client's: %v", len(both), both)
	}
	client, server := both[0], both[1]
	if client.SpanKind.String() != "client" || server.SpanKind.String() != "server" || client.Parent.SpanID() != server.SpanContext.SpanID() {
		t.Errorf("kinds %s and %s, want a client span below a server span", client.SpanKind, server.SpanKind)
	}
	if got := server.SpanContext.TraceID().String() + "-" + server.Parent.SpanID().String(); !strings.Contains(hostParent, got) {
		t.Errorf("the call is in %s, want the host's %s", got, hostParent)
	}
	if got := server.SpanContext.TraceState().String(); got != "vendor=1" {
		t.Errorf("tracestate = %q", got)
	}
	for key, want := range map[string]string{
		"mcp.method.name": "tools/call", "gen_ai.tool.name": "echo", "gen_ai.operation.name": "execute_tool",
		"jsonrpc.request.id": "q-7", "mcp.protocol.version": "2026-07-28", "network.transport": "tcp", "foldgate.server": "up",
		"foldgate.principal": "local", "error.type": "",
	} {
		if got := attr(server, key); got != want {
			t.Errorf("attribute %s = %q, want %q", key, got, want)
		}
	}
	sent := r.last("up").sent("tools/call")[0]
	forwarded, _ := rawjson.GetString([]byte(sent), "_meta", "traceparent")
	if want := "00-" + hostTrace + "-" + client.SpanContext.SpanID().String() + "-01"; forwarded != want {
		t.Errorf("forwarded traceparent = %s, want the client span's %s", forwarded, want)
	}
	if !strings.Contains(sent, `"tracestate":"vendor=1","baggage":"k=v"`) {
		t.Errorf("forwarded %s, want tracestate and baggage untouched", sent)
	}
}

// Without telemetry the host's trace goes on with the span that the journal's
// export makes as its parent; where the host sent none, nothing is added.
func TestTraceparentWithoutTelemetry(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	r.ok("tools/call", `{"name":"up__echo","arguments":{"x":1},"_meta":{"a":1,"traceparent":"`+hostParent+`","tracestate":"v=1"}}`)
	r.ok("tools/call", `{"name":"up__echo","arguments":{"x":2},"_meta":{"traceparent":"nonsense"}}`)
	r.ok("tools/call", `{"name":"up__echo","arguments":{"x":3}}`)
	got := r.last("up").sent("tools/call")
	tp, _ := rawjson.GetString([]byte(got[0]), "_meta", "traceparent")
	parent := strings.Split(tp, "-")[2]
	if span, ok := exported(t, r.g)[parent]; !ok || span[0] != hostTrace {
		t.Errorf("forwarded traceparent %s: its parent is no span of the journal's export in the host's trace", tp)
	}
	want := []string{
		`{"name":"echo","arguments":{"x":1},"_meta":{"a":1,"traceparent":"` + tp + `","tracestate":"v=1"}}`,
		`{"name":"echo","arguments":{"x":2},"_meta":{"traceparent":"nonsense"}}`,
		`{"name":"echo","arguments":{"x":3}}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("forwarded\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// metrics returns the sums of counters and the counts of histograms, by name
// and labels.
func (l *sink) metrics(t *testing.T) map[string]float64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := l.reader.Collect(context.Background(), &data); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		out[fmt.Sprintf("%s{%s}", name, set.Encoded(attribute.DefaultEncoder()))] = v
	}
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch d := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range d.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Errorf("metric %s is a %T", m.Name, d)
			}
		}
	}
	return out
}

func TestMetricsOfCalls(t *testing.T) {
	l := newSink()
	up := echoUpstream("2025-11-25")
	serve := up.serve
	up.serve = func(ctx context.Context, fl *fakeConn, c *conn.Request) (wire.Message, error) {
		if strings.Contains(string(c.Params), `"fail"`) {
			return result(`{"content":[{"type":"text","text":"no"}],"isError":true}`)
		}
		if strings.Contains(string(c.Params), `"secret"`) {
			return result(`{"content":[{"type":"text","text":"key: ghp_` + "wJ7kQ2mX9vR4tB6nL1cZ8hF3dS5gP0yE" + "aU2o" + `"}]}`)
		}
		return serve(ctx, fl, c)
	}
	r := newRig(t, false, map[string]fakeUpstream{"up": up}, l.option)
	r.initialize()
	r.tool("up__echo", `{"x":1}`)
	r.tool("up__echo", `{"x":"fail"}`)
	r.tool("up__echo", `{"x":"secret"}`)
	r.exchange(context.Background(), "tools/call", `{"name":"invented-by-a-model","arguments":{}}`)
	r.exchange(context.Background(), "invented/method", `{}`)
	id := opened(t, r.tool("branch_create", `{"description":"small","budget":20}`))
	r.tool("up__echo", `{"x":"`+strings.Repeat("many words ", 200)+`","branch_id":"`+id+`"}`)
	got := l.metrics(t)
	for name, want := range map[string]float64{
		"foldgate.calls{foldgate.outcome=ok,foldgate.server=up,gen_ai.tool.name=echo,mcp.method.name=tools/call}":               2,
		"foldgate.calls{foldgate.outcome=tool_error,foldgate.server=up,gen_ai.tool.name=echo,mcp.method.name=tools/call}":       1,
		"foldgate.calls{foldgate.outcome=refused,foldgate.server=up,gen_ai.tool.name=echo,mcp.method.name=tools/call}":          1,
		"foldgate.calls{foldgate.outcome=refused,foldgate.server=foldgate,gen_ai.tool.name=_OTHER,mcp.method.name=tools/call}":  1,
		"foldgate.calls{foldgate.outcome=error,foldgate.server=up,mcp.method.name=_OTHER}":                                      1,
		"foldgate.refusals{foldgate.reason=resource_limit,foldgate.server=up,gen_ai.tool.name=echo,mcp.method.name=tools/call}": 1,
		"foldgate.scrub.findings{foldgate.place=result,foldgate.rule=github-pat,foldgate.server=up}":                            1,
		"foldgate.calls.in_flight{foldgate.server=up,mcp.method.name=tools/call}":                                               0,
		"foldgate.sessions.active{}":               1,
		"foldgate.upstream.up{foldgate.server=up}": 1,
		"foldgate.trace.failing{}":                 0,
		"foldgate.config.faulty{}":                 0,
		"foldgate.limits.failing{}":                0,
		"folding.branch.created.total{depth=1}":    1,
		"folding.branch.active.count{depth=1}":     0,
		"mcp.client.operation.duration{foldgate.server=up,gen_ai.tool.name=echo,mcp.method.name=tools/call,network.transport=pipe}": 2,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s = %v, %v; want %v", name, v, ok, want)
		}
	}
	for name := range got {
		for _, forbidden := range []string{"ses_", "br_", "local", "invented", "env_"} {
			if strings.Contains(name, forbidden) {
				t.Errorf("metric %s carries an id or a foreign name", name)
			}
		}
	}
	if t.Failed() {
		for name, v := range got {
			t.Log(name, v)
		}
	}
}

// Off is free: a call that nobody traces is forwarded without an allocation.
func TestTelemetryOffIsFree(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	if r.g.Telemetry != nil {
		t.Fatal("a gateway without providers has telemetry")
	}
	c := &interceptor.Call{}
	if n := testing.AllocsPerRun(100, func() {
		r.g.Records.Inherit(c)
		if c.Outgoing() != "" {
			t.Error("a call without a trace has a traceparent")
		}
	}); n != 0 {
		t.Errorf("forwarding a call without a trace allocates %.0f times for telemetry", n)
	}
}

// BenchmarkTelemetry is one call through the whole core, with telemetry off
// and on.
func BenchmarkTelemetry(b *testing.B) {
	for name, options := range map[string][]Option{"off": nil, "on": {newSink().option}} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, options...)
			r.initialize()
			b.ReportAllocs()
			for b.Loop() {
				r.tool("up__echo", `{"x":1}`)
			}
		})
	}
}
