package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/sdk/resource"
	collecttrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/foldgate/foldgate/proxy/config"
)

// clearOTEL takes the variables of the test's own environment away.
func clearOTEL(t *testing.T) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
}

func TestSignalWanted(t *testing.T) {
	for _, c := range []struct {
		env             string // of space-separated assignments
		traces, metrics bool
	}{
		{"", false, false},
		{"OTEL_SERVICE_NAME=x OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://h", true, true},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://h", true, false},
		{"OTEL_METRICS_EXPORTER=prometheus", false, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://h OTEL_TRACES_EXPORTER=none", false, true},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://h OTEL_SDK_DISABLED=True", false, false},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://h OTEL_SDK_DISABLED=no", true, true},
	} {
		t.Run(c.env, func(t *testing.T) {
			clearOTEL(t)
			for _, kv := range strings.Fields(c.env) {
				name, value, _ := strings.Cut(kv, "=")
				t.Setenv(name, value)
			}
			if traces, metrics := signalWanted("TRACES"), signalWanted("METRICS"); traces != c.traces || metrics != c.metrics {
				t.Errorf("wanted traces %v, metrics %v; want %v, %v", traces, metrics, c.traces, c.metrics)
			}
		})
	}
}

// An endpoint without a scheme is told at the start, not at the first export.
func TestEndpointWithoutScheme(t *testing.T) {
	clearOTEL(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://localhost:4318")
	var log strings.Builder
	_, flush := startTelemetry(t.Context(), func() *resource.Resource { return nil }, io.Discard, slog.New(slog.NewTextHandler(&log, nil)))
	flush()
	if text := log.String(); strings.Count(text, "OTEL_EXPORTER_OTLP_ENDPOINT has no scheme: write http://localhost:4318") != 1 {
		t.Errorf("the log:\n%s", text)
	}
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	if err := checkEndpoint("TRACES"); err != nil {
		t.Errorf("over gRPC: %v", err)
	}
}

func TestNoTelemetryNoGoroutine(t *testing.T) {
	clearOTEL(t)
	before := ownGoroutines(t)
	options, flush := startTelemetry(t.Context(), nil, io.Discard, slog.New(slog.DiscardHandler))
	if after := ownGoroutines(t); len(options) != 0 || after != before {
		t.Errorf("%d options and %d goroutines more, want none", len(options), after-before)
	}
	flush()
}

// ownGoroutines counts the goroutines that the caller's started, and not those
// of earlier tests, which may end at any time.
func ownGoroutines(t *testing.T) int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	id, _, ok := strings.Cut(strings.TrimPrefix(string(stacks), "goroutine "), " ") // the first is the caller's
	if !ok {
		t.Fatalf("no goroutine id in %.80q", stacks)
	}
	return strings.Count(string(stacks), " in goroutine "+id+"\n")
}

// spanServer is a collector on gRPC.
type spanServer struct {
	collecttrace.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names []string
}

func (s *spanServer) Export(_ context.Context, m *collecttrace.ExportTraceServiceRequest) (*collecttrace.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range m.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, span := range ss.Spans {
				s.names = append(s.names, span.Name)
			}
		}
	}
	return &collecttrace.ExportTraceServiceResponse{}, nil
}

// A gateway that serves one ping exports its span over gRPC.
func TestExportOverGRPC(t *testing.T) {
	clearOTEL(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	collector, server := &spanServer{}, grpc.NewServer()
	collecttrace.RegisterTraceServiceServer(server, collector)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://"+ln.Addr().String())
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
	cfg := config.Default()
	cfg.StateDir, cfg.Dir = t.TempDir(), t.TempDir()
	var out strings.Builder
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	if err := new(app).serve(t.Context(), cfg, nil, in, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	collector.mu.Lock()
	defer collector.mu.Unlock()
	// On a busy machine a layer may be slow enough for a span of its own.
	if !slices.Contains(collector.names, "ping") || !strings.Contains(out.String(), `"result":{}`) {
		t.Errorf("the collector got %v, the host %s; want the span of the ping and its answer", collector.names, out.String())
	}
}

// Spans and records say that they come from the same process.
func TestOneInstanceID(t *testing.T) {
	clearOTEL(t)
	t.Setenv("OTEL_TRACES_EXPORTER", "console")
	t.Setenv("OTEL_LOGS_EXPORTER", "console")
	file := filepath.Join(t.TempDir(), "errors")
	errOut, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config.Default()
	cfg.StateDir, cfg.Dir = t.TempDir(), t.TempDir()
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	if err := errors.Join(new(app).serve(t.Context(), cfg, nil, in, io.Discard, errOut), errOut.Close()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range regexp.MustCompile(`"service.instance.id","Value":{"Type":"STRING","Value":"([^"]+)"`).FindAllSubmatch(text, -1) {
		ids = append(ids, string(m[1]))
	}
	all := len(ids)
	slices.Sort(ids)
	if ids = slices.Compact(ids); all < 2 || len(ids) != 1 {
		t.Errorf("%d spans and records have the ids %q, want one:\n%.2000s", all, ids, text)
	}
}

// Of a collector's keys no part is shown, also if one has a / in it or begins as another does.
func TestCollectorKeys(t *testing.T) {
	hidden := collectorKeys([]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:abc12345/DEFGHIJ678@host:4318", "OTEL_EXPORTER_OTLP_HEADERS=a=tokenA,b=tokenAtokenB", "PATH=/usr/bin:/tokenless",
	})
	for text, want := range map[string]string{
		"of http://user:abc12345/DEFGHIJ678@host:4318": "of http://[hidden: a part of OTEL_EXPORTER_OTLP_ENDPOINT]@host:4318",
		"b=tokenAtokenB":      "b=[hidden: a part of OTEL_EXPORTER_OTLP_HEADERS]",
		"a=tokenA, /usr/bin:": "a=[hidden: a part of OTEL_EXPORTER_OTLP_HEADERS], /usr/bin:",
	} {
		if got := hidden.Replace(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
