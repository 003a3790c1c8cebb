package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutlog"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/metric"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace/export"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy"
)

// flushWait bounds how long the shutdown waits for a collector.
const flushWait = 5 * time.Second

// startTelemetry starts the exporters that the OTEL_* variables name. flush sends the remaining data
// and ends them. Without such variables there are none. A host may pass on wrong variables, and they
// must not keep the gateway from serving it: the fault is logged, and the signal is not exported.
func startTelemetry(ctx context.Context, self func() *resource.Resource, console io.Writer, log *slog.Logger) (options []proxy.Option, flush func()) {
	otel.SetLogger(logr.FromSlogHandler(log.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", "err", err) })) // also of wrong variables
	var ends []func(context.Context) error
	var tracers oteltrace.TracerProvider
	var meters metric.MeterProvider
	if exporter, ok := exporterOf("TRACES", "spans", log,
		func() (sdktrace.SpanExporter, error) { return stdouttrace.New(stdouttrace.WithWriter(console)) },
		func() (sdktrace.SpanExporter, error) { return autoexport.NewSpanExporter(ctx) },
	); ok {
		p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithIDGenerator(interceptor.SpanIDs{}), sdktrace.WithResource(self()))
		tracers, ends = p, append(ends, p.Shutdown)
	}
	if reader, ok := exporterOf("METRICS", "metrics", log,
		func() (sdkmetric.Reader, error) {
			exporter, err := stdoutmetric.New(stdoutmetric.WithWriter(console))
			if err != nil {
				return nil, err
			}
			return sdkmetric.NewPeriodicReader(exporter), nil
		},
		func() (sdkmetric.Reader, error) { return autoexport.NewMetricReader(ctx) },
	); ok {
		p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(self()))
		meters, ends = p, append(ends, p.Shutdown)
	}
	if len(ends) == 0 {
		return nil, func() {}
	}
	return []proxy.Option{proxy.WithTelemetry(tracers, meters)}, func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushWait)
		defer cancel()
		var faults []error
		for _, end := range ends {
			faults = append(faults, end(ctx))
		}
		if err := errors.Join(faults...); err != nil {
			log.Warn("the last telemetry was lost", "err", err)
		}
	}
}

// variableHider is a log handler that hides keys of collectors. The SDK quotes a variable that it can't read, and a
// header says nothing that rules for secrets know.
type variableHider struct{ slog.Handler }

// Handle passes a copy of r without the values of variables on.
func (h variableHider) Handle(ctx context.Context, r slog.Record) error {
	hidden := collectorKeys(os.Environ())
	out := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		out.AddAttrs(slog.String(a.Key, hidden.Replace(a.Value.String())))
		return true
	})
	return h.Handler.Handle(ctx, out)
}

// WithAttrs implements [slog.Handler].
func (h variableHider) WithAttrs(attrs []slog.Attr) slog.Handler {
	return variableHider{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements [slog.Handler].
func (h variableHider) WithGroup(name string) slog.Handler {
	return variableHider{h.Handler.WithGroup(name)}
}

const minKey = 6 // bytes of the shortest key of a collector

// collectorKeys replaces the values of the headers in OTEL_* variables, and the user and password in their URLs.
func collectorKeys(environ []string) *strings.Replacer {
	from := map[string]string{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		var keys []string
		switch {
		case !strings.HasPrefix(name, "OTEL_"):
		case strings.HasSuffix(name, "_HEADERS"):
			for header := range strings.SplitSeq(value, ",") {
				if _, of, ok := strings.Cut(header, "="); ok {
					header = of
				}
				keys = append(keys, header)
			}
		case strings.HasSuffix(name, "_ENDPOINT"):
			if at := strings.LastIndexByte(value, '@'); at > 0 {
				_, user, _ := strings.Cut(value[:at], "://")
				keys = append(keys, user)
			}
		}
		for _, key := range keys {
			if key = strings.TrimSpace(key); len(key) >= minKey {
				from[key] = name
			}
		}
	}
	var pairs []string
	for _, key := range slices.SortedFunc(maps.Keys(from), func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) }) {
		pairs = append(pairs, key, "[hidden: a part of "+from[key]+"]") // one key can begin as another one does
	}
	return strings.NewReplacer(pairs...)
}

// exportRecords starts the export of a journal's records that the OTEL_* variables ask for. end sends
// those that are left. Only the variables for logs ask for it, and not OTEL_EXPORTER_OTLP_ENDPOINT: who
// has set that for spans and metrics has not agreed to send the names of principals and tools.
func exportRecords(ctx context.Context, self func() *resource.Resource, dir string, console io.Writer, log *slog.Logger) (end func()) {
	if os.Getenv("OTEL_LOGS_EXPORTER") == "" && os.Getenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT") == "" {
		return func() {}
	}
	exporter, ok := exporterOf("LOGS", "trace records", log,
		func() (sdklog.Exporter, error) { return stdoutlog.New(stdoutlog.WithWriter(console)) },
		func() (sdklog.Exporter, error) { return autoexport.NewLogExporter(ctx) },
	)
	if !ok {
		return func() {}
	}
	finish := export.Start(dir, exporter, self(), log)
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), flushWait)
		defer cancel()
		finish(ctx)
	}
}

// exporterOf returns the exporter of TRACES, METRICS or LOGS that the variables name. ok is false if they name
// none, or one that can't be had, which is logged. The console is standard error: on stdio, standard output
// carries only the protocol.
func exporterOf[T any](signal, what string, log *slog.Logger, console, other func() (T, error)) (exporter T, ok bool) {
	if !signalWanted(signal) {
		return exporter, false
	}
	name := "OTEL_" + signal + "_EXPORTER"
	err := checkEndpoint(signal)
	switch {
	case err != nil:
	case os.Getenv(name) == "console":
		exporter, err = console()
	default:
		exporter, err = other()
	}
	if err != nil {
		log.Error("no "+what+" are exported: check the OTEL_* variables", name, os.Getenv(name), "err", err)
	}
	return exporter, err == nil
}

// signalWanted reports whether the environment asks for TRACES, METRICS or LOGS. An endpoint is enough,
// since OTLP is the standard's default exporter. Without any variable nothing is exported, unlike in
// the standard: foldgate connects to a collector only if it is told to.
func signalWanted(signal string) bool {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") {
		return false
	}
	switch exporter := os.Getenv("OTEL_" + signal + "_EXPORTER"); exporter {
	case "none":
		return false
	case "":
		return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
	}
	return true
}

// checkEndpoint refuses an endpoint without a scheme, which the exporter over HTTP would take and send nothing to.
func checkEndpoint(signal string) error {
	of := func(suffix string) (name, value string) {
		name = "OTEL_EXPORTER_OTLP_" + signal + "_" + suffix
		if value = os.Getenv(name); value == "" {
			name = "OTEL_EXPORTER_OTLP_" + suffix
			value = os.Getenv(name)
		}
		return name, value
	}
	if exporter := os.Getenv("OTEL_" + signal + "_EXPORTER"); exporter != "" && exporter != "otlp" {
		return nil
	}
	name, endpoint := of("ENDPOINT")
	if _, protocol := of("PROTOCOL"); endpoint == "" || protocol == "grpc" || strings.Contains(endpoint, "://") {
		return nil
	}
	return fmt.Errorf("%s has no scheme: write http://%s", name, endpoint)
}

// serviceResource describes this process to collectors. OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES override foldgate's own values.
func serviceResource(ctx context.Context, log *slog.Logger) *resource.Resource {
	r, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "foldgate"), attribute.String("service.version", version.String()),
			attribute.String("service.instance.id", uuid.NewString())),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		log.Warn("OTEL_RESOURCE_ATTRIBUTES", "err", err)
	}
	return r
}
