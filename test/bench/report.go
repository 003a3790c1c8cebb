//go:build linux

package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// table writes the rounds of one scenario as Markdown.
func table(w io.Writer, sc scenario, results []result) {
	fmt.Fprintf(w, "\n**%s**\n\n", sc)
	fmt.Fprintln(w, "| target | calls/s (least to most) | p50 ms | p99 ms | CPU µs a call | allocations a call | KB a call | RSS MB | calls/s ÷ direct | calls/s ÷ minproxy | CPU ÷ minproxy |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|")
	direct, minproxy := find(results, "direct"), find(results, "minproxy")
	for _, r := range results {
		if r.skipped != "" {
			fmt.Fprintf(w, "| %s | skipped: %s | | | | | | | | | |\n", r.target, r.skipped)
			continue
		}
		rates := pick(r.samples, func(s sample) float64 { return s.rate })
		fmt.Fprintf(w, "| %s | %.0f (%.0f to %.0f) | %s | %s | %.0f | %s | %s | %.0f | %s | %s | %s |\n", r.target,
			median(rates), slices.Min(rates), slices.Max(rates),
			ms(median(pick(r.samples, func(s sample) time.Duration { return s.p50 }))),
			ms(median(pick(r.samples, func(s sample) time.Duration { return s.p99 }))),
			micros(median(pick(r.samples, func(s sample) time.Duration { return s.cpu }))),
			perCall(r.samples, "%.0f", func(s sample) float64 { return s.allocs }),
			perCall(r.samples, "%.1f", func(s sample) float64 { return s.bytes / 1024 }),
			float64(median(pick(r.samples, func(s sample) int64 { return s.rss })))/(1<<20),
			ratio(r.samples, direct, rateOf), ratio(r.samples, minproxy, rateOf), ratio(r.samples, minproxy, cpuPerCall))
	}
	now := find(results, "foldgate")
	if limited := find(results, limitedName); limited != nil && now != nil {
		fmt.Fprintf(w, "\n%s ÷ foldgate: CPU a call %s\n", limitedName, ratio(limited, now, cpuPerCall))
	}
	if old := find(results, againstName); old != nil {
		fmt.Fprintf(w, "\nfoldgate ÷ %s: calls/s %s, CPU a call %s\n", againstName, ratio(now, old, rateOf), ratio(now, old, cpuPerCall))
	}
}

func rateOf(s sample) float64     { return s.rate }
func cpuPerCall(s sample) float64 { return micros(s.cpu) }

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func ms(d time.Duration) string      { return fmt.Sprintf("%.2f", micros(d)/1000) }

func find(results []result, name string) []sample {
	for _, r := range results {
		if r.target == name {
			return r.samples
		}
	}
	return nil
}

// ratio is the median of the ratios of the rounds, with the least and the most.
func ratio(a, b []sample, f func(sample) float64) string {
	v := ratios(a, b, f)
	if len(v) == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(v), slices.Min(v), slices.Max(v))
}
