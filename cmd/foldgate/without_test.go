package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
)

// The ordinary binary has every layer; one that has not says so wherever it is asked.
func TestWithoutLayers(t *testing.T) {
	if withoutLayers != "" {
		t.Fatalf("withoutLayers = %q in the source, want only the linker to set it", withoutLayers)
	}
	said := func() (version, log string, options int) {
		var out, logged bytes.Buffer
		if code := run(t.Context(), []string{"version"}, nil, &out, io.Discard); code != 0 {
			t.Fatalf("foldgate version: exit code %d", code)
		}
		options = len(leftOut(slog.New(slog.NewTextHandler(&logged, nil))))
		return out.String(), logged.String(), options
	}
	if version, log, options := said(); strings.Contains(version, "without") || log != "" || options != 0 {
		t.Errorf("ordinary: version %q, log %q, %d options", version, log, options)
	}
	defer func() { withoutLayers = "" }()
	withoutLayers = "meter,scrub"
	if version, log, options := said(); !strings.Contains(version, "built without meter,scrub, for benchmarks only") ||
		!strings.Contains(log, "without=meter,scrub") || !strings.Contains(log, "level=WARN") || options != 1 {
		t.Errorf("without layers: version %q, log %q, %d options", version, log, options)
	}
}
