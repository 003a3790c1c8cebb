//go:build linux

package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// soakPlan holds the flags of a soak.
type soakPlan struct {
	length, every time.Duration // of the run, of a sample
	rate          int           // calls a second
	bound         float64       // MB that the fitted line of memory may rise by after the warm-up
}

// soakConfig is the default configuration, with everything on and results folded. The limits are
// higher than the load, and lifetimes are so short that stored state reaches its plateau within
// the warm-up.
const soakConfig = `state_dir: state
attribution: {implicit: "off"}
folding: {default_budget: 100000, max_budget: 100000, max_concurrent_per_session: 100000,
  max_concurrent_per_instance: 100000, max_branches_per_minute: 1000000, retention: 2m}
results: {quota_mb: 64}
trace: {rotate_mb: 64, retain_files: 2}
`

// fileBound is how many open files the fitted line may rise by.
const fileBound = 16

// soak loads one foldgate for a long time and prints its memory, files and state meanwhile. It
// fails if a call fails, or if memory or open files keep growing.
func (r *rig) soak(p soakPlan) error {
	s, err := r.runSoaked()
	if err != nil {
		return err
	}
	state := filepath.Join(filepath.Dir(s.config), "state")
	load, err := newSoakLoad(s, p.rate)
	if err != nil {
		return err
	}
	defer load.close()
	warm := p.length / 6
	fmt.Printf("%s at %d calls/s; a sample each %s; the first %s are the warm-up; memory may rise by %.0f MB after it.\n\n",
		p.length, p.rate, p.every, warm, p.bound)
	fmt.Println("| minute | calls | failed | calls/s | p99 ms | CPU µs a call | RSS MB | threads | open files | state MB |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	done := load.start(r.ctx)
	defer func() { load.stop(); <-done }()

	begin := time.Now()
	var all []soakSample
	last := soakSample{at: begin, cpu: cpuOf(s.pid)}
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for last.at.Sub(begin) < p.length-p.every/2 {
		select {
		case <-r.ctx.Done():
			return r.ctx.Err()
		case <-s.exited:
			return fmt.Errorf("foldgate ended: %s", s.log.buf)
		case <-tick.C:
		}
		now := load.sample(s.pid, state)
		now.row(os.Stdout, begin, last)
		last, all = now, append(all, now)
	}
	return verdict(os.Stdout, p, warm, begin, all, load)
}

// runSoaked starts the foldgate of a soak: one server behind it on stdio, one on HTTP.
func (r *rig) runSoaked() (*server, error) {
	web, err := r.start("web", "", r.dir, nil, r.self, "upstream", "http")
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(r.dir, "gateways", "soak")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "foldgate.yaml")
	text := soakConfig + "upstreams:\n" + r.leanStdio() + fmt.Sprintf("  web: {url: %q}\n", web.endpoint)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := r.start("soak", "", dir, nil, r.foldgate, "run", "--listen", "127.0.0.1:0", "--config", file)
	if s != nil {
		s.config = file
	}
	return s, err
}

// soakSample holds the state of a foldgate at one moment. calls and failed count from the start;
// p99 covers the calls since the last sample.
type soakSample struct {
	at             time.Time
	calls, failed  int
	p99, cpu       time.Duration
	rss, state     int64
	threads, files int
}

func (s soakSample) row(w io.Writer, begin time.Time, last soakSample) {
	n := max(s.calls-last.calls, 1)
	fmt.Fprintf(w, "| %.1f | %d | %d | %.0f | %s | %.0f | %.1f | %d | %d | %.1f |\n",
		s.at.Sub(begin).Minutes(), s.calls, s.failed, float64(n)/s.at.Sub(last.at).Seconds(), ms(s.p99),
		micros(s.cpu-last.cpu)/float64(n), megabytes(s.rss), s.threads, s.files, megabytes(s.state))
}

func megabytes(n int64) float64 { return float64(n) / (1 << 20) }

// verdict prints the slopes after the warm-up, and returns an error for those that are too steep.
func verdict(w io.Writer, p soakPlan, warm time.Duration, begin time.Time, all []soakSample, load *soakLoad) error {
	all = slices.DeleteFunc(all, func(s soakSample) bool { return s.at.Sub(begin) < warm })
	if len(all) < 3 {
		return fmt.Errorf("%d samples after the warm-up are too few: make -soak longer or -every shorter", len(all))
	}
	hours := all[len(all)-1].at.Sub(all[0].at).Hours()
	fit := func(what, unit string, f func(soakSample) float64) float64 {
		slope := slopeOf(all, f) // a second
		values := pick(all, f)
		fmt.Fprintf(w, "%s after the warm-up: %+.2f %s an hour, the fitted line from end to end %+.2f; least %.1f, most %.1f.\n",
			what, slope*3600, unit, slope*3600*hours, slices.Min(values), slices.Max(values))
		return slope * 3600 * hours
	}
	fmt.Fprintln(w)
	rise := fit("Memory", "MB", func(s soakSample) float64 { return megabytes(s.rss) })
	files := fit("Open files", "files", func(s soakSample) float64 { return float64(s.files) })
	fit("State", "MB", func(s soakSample) float64 { return megabytes(s.state) })
	fmt.Fprintf(w, "Calls by kind: %s.\n", load.kinds())
	last := all[len(all)-1]
	switch {
	case last.failed > 0:
		return fmt.Errorf("%d of %d calls failed; the first: %w", last.failed, last.calls, load.firstError())
	case rise > p.bound:
		return fmt.Errorf("memory rose by %.1f MB in %.1f hours, more than %.1f", rise, hours, p.bound)
	case files > fileBound:
		return fmt.Errorf("open files rose by %.0f in %.1f hours, more than %d", files, hours, fileBound)
	}
	return nil
}

// slopeOf fits a line by least squares, in units of f a second.
func slopeOf(s []soakSample, f func(soakSample) float64) float64 {
	var sx, sy, sxx, sxy float64
	n := float64(len(s))
	for _, v := range s {
		x, y := v.at.Sub(s[0].at).Seconds(), f(v)
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if d := n*sxx - sx*sx; d != 0 {
		return (n*sxy - sx*sy) / d
	}
	return 0
}

// threadsOf returns how many threads process pid has.
func threadsOf(pid int) int {
	n, _ := strconv.Atoi(statusOf(pid, "Threads:"))
	return n
}

// filesOf returns how many files process pid has open.
func filesOf(pid int) int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(list)
}

// sizeOf sums the sizes of the files below dir. Files that vanish meanwhile are left out.
func sizeOf(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && !strings.HasSuffix(d.Name(), "-shm") {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}
