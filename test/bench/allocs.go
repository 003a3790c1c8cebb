//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/foldgate/foldgate/test/bench/allocprobe"
	"github.com/foldgate/foldgate/test/testbin"
)

// allocated returns the allocations so far of a Go process with the probe. ok is false for other
// processes, such as those from npm.
func (r *rig) allocated(pid int) (got allocprobe.Reading, ok bool) {
	file := allocprobe.File(r.dir, pid)
	before, err := allocprobe.Last(file)
	if err != nil || syscall.Kill(pid, syscall.SIGUSR1) != nil {
		return got, false
	}
	for range 2000 {
		if got, err = allocprobe.Last(file); err == nil && got.Count > before.Count {
			return got, true
		}
		time.Sleep(time.Millisecond)
	}
	return got, false
}

// overlay returns the flag for go build that adds the probe to foldgate.
func (r *rig) overlay() (string, error) {
	root, err := testbin.Root()
	if err != nil {
		return "", err
	}
	source, list := filepath.Join(r.dir, "probe.go"), filepath.Join(r.dir, "overlay.json")
	err = os.WriteFile(source, []byte("package main\n\nimport _ \"github.com/foldgate/foldgate/test/bench/allocprobe\"\n"), 0o600)
	if err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "cmd", "foldgate", "bench_probe.go"): source}})
	if err != nil {
		return "", err
	}
	return "-overlay=" + list, os.WriteFile(list, replace, 0o600)
}

// buildFoldgate builds foldgate as it is released, with the probe.
func (r *rig) buildFoldgate() (string, error) {
	overlay, err := r.overlay()
	if err != nil {
		return "", err
	}
	return testbin.Build(r.dir, foldgatePackage, "-trimpath", overlay, "-ldflags", "-s -w")
}

// perCall renders the median of f over the samples, "" if they have no allocations.
func perCall(samples []sample, format string, f func(sample) float64) string {
	for _, s := range samples {
		if !s.counted {
			return ""
		}
	}
	return fmt.Sprintf(format, median(pick(samples, f)))
}
