package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy"
)

// flushWait bounds how long the shutdown waits for a collector.
const flushWait = 5 * time.Second

// startTelemetry starts the exporters that the OTEL_* variables name. flush sends the remaining data
// and ends them. Without such variables there are none. A host may pass on wrong variables, and they
// must not keep the gateway from serving it: the fault is logged, and the signal is not exported.
func startTelemetry(ctx context.Context, console io.Writer, log *slog.Logger) (options []proxy.Option, flush func()) {
	if !signalWanted("TRACES") && !signalWanted("METRICS") {
		return nil, func() {}
	}
	self := serviceResource(ctx, log)
	var ends []func(context.Context) error
	var tracers oteltrace.TracerProvider
	var meters metric.MeterProvider
	if signalWanted("TRACES") {
		if exporter, err := spanExporter(ctx, console); err != nil {
			log.Error("no spans are exported: check the OTEL_* variables", "OTEL_TRACES_EXPORTER", os.Getenv("OTEL_TRACES_EXPORTER"), "err", err)
		} else {
			p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithIDGenerator(proxy.SpanIDs()), sdktrace.WithResource(self))
			tracers, ends = p, append(ends, p.Shutdown)
		}
	}
	if signalWanted("METRICS") {
		if reader, err := metricReader(ctx, console); err != nil {
			log.Error("no metrics are exported: check the OTEL_* variables", "OTEL_METRICS_EXPORTER", os.Getenv("OTEL_METRICS_EXPORTER"), "err", err)
		} else {
			p := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader), sdkmetric.WithResource(self))
			meters, ends = p, append(ends, p.Shutdown)
		}
	}
	if len(ends) == 0 {
		return nil, func() {}
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("telemetry", "err", err) }))
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

// signalWanted reports whether the environment asks for TRACES or METRICS. An endpoint is enough,
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

// spanExporter returns the exporter that the variables name. The console is standard error: on stdio,
// standard output carries only the protocol.
func spanExporter(ctx context.Context, console io.Writer) (sdktrace.SpanExporter, error) {
	if os.Getenv("OTEL_TRACES_EXPORTER") == "console" {
		return stdouttrace.New(stdouttrace.WithWriter(console))
	}
	return autoexport.NewSpanExporter(ctx)
}

func metricReader(ctx context.Context, console io.Writer) (sdkmetric.Reader, error) {
	if os.Getenv("OTEL_METRICS_EXPORTER") == "console" {
		exporter, err := stdoutmetric.New(stdoutmetric.WithWriter(console))
		if err != nil {
			return nil, err
		}
		return sdkmetric.NewPeriodicReader(exporter), nil
	}
	return autoexport.NewMetricReader(ctx)
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
