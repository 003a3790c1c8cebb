//go:build linux

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// scenario is one kind of load.
type scenario struct {
	host, upstream string // "http" or "stdio"
	modern         bool
	clients, size  int
	branches       int // that the calls take turns in; 0 for main
}

func (sc scenario) String() string {
	era := "legacy"
	if sc.modern {
		era = "modern"
	}
	s := fmt.Sprintf("%s host, %s, %s upstream, %s, %s", sc.host, era, sc.upstream, plural(sc.clients, "client"), bytesName(sc.size))
	if sc.branches > 0 {
		s += ", in " + plural(sc.branches, "branch")
	}
	return s
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if what == "branch" {
		what += "e"
	}
	return strconv.Itoa(n) + " " + what + "s"
}

func bytesName(n int) string {
	switch {
	case n >= 1<<20:
		return strconv.Itoa(n>>20) + " MB"
	case n >= 1<<10:
		return strconv.Itoa(n>>10) + " KB"
	}
	return strconv.Itoa(n) + " B"
}

// sample is one window of one target.
type sample struct {
	rate     float64 // calls a second
	p50, p99 time.Duration
	cpu      time.Duration // of the process alone, per call
	rss      int64

	counted       bool    // the process says what it allocates:
	allocs, bytes float64 // per call
}

// lane is a target under one scenario: a session, in it the callers.
type lane struct {
	sc      scenario
	s       *server
	session string
	args    []string // of the calls, which take turns
	nextID  atomic.Int64
}

// openLane starts the session that all clients of the scenario share: as many
// sessions would be as many upstream processes, and the load theirs.
func openLane(s *server, sc scenario) (*lane, error) {
	l := &lane{sc: sc, s: s, args: []string{fmt.Sprintf(`{"size":%d}`, sc.size)}}
	l.nextID.Store(1)
	c, err := l.dial()
	if err != nil {
		return nil, err
	}
	defer c.close()
	if !sc.modern {
		if _, err := c.call(l.id(), "initialize", "", ""); err != nil {
			return nil, fmt.Errorf("initialize: %w", err)
		}
		note := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		if h, ok := c.(*httpCaller); ok {
			l.session = h.session
			_, err = h.post("notifications/initialized", "", note)
		} else {
			_, err = s.p.in.Write(append(note, '\n'))
		}
		if err != nil {
			return nil, fmt.Errorf("initialized: %w", err)
		}
	}
	if _, err := c.call(l.id(), "tools/list", "", ""); err != nil { // as hosts do before they call
		return nil, fmt.Errorf("tools/list: %w", err)
	}
	if sc.branches > 0 && s.config != "" { // the others have no branches: for them the load is the same without
		l.args = nil
		for range sc.branches {
			id, err := l.openBranch(c)
			if err != nil {
				return nil, err
			}
			l.args = append(l.args, fmt.Sprintf(`{"size":%d,"branch_id":%q}`, sc.size, id))
		}
	}
	return l, nil
}

// openCaller opens a lane and one caller in it.
func openCaller(s *server, sc scenario) (*lane, caller, error) {
	l, err := openLane(s, sc)
	if err != nil {
		return nil, nil, err
	}
	c, err := l.dial()
	return l, c, err
}

func (l *lane) id() int { return int(l.nextID.Add(1)) }

func (l *lane) openBranch(c caller) (string, error) {
	answer, err := c.call(l.id(), "tools/call", "branch_create", `{"description":"load"}`)
	if err != nil {
		return "", err
	}
	id, ok := rawjson.GetString(answer, "result", "structuredContent", "branch_id")
	if !ok {
		return "", fmt.Errorf("branch_create: %.500s", answer)
	}
	return id, nil
}

func (l *lane) dial() (caller, error) {
	if l.s.p != nil {
		return &stdioCaller{p: l.s.p, ch: make(chan []byte, 1)}, nil
	}
	return dialHTTP(l.s.endpoint, l.session, l.sc.modern)
}

// text makes the next call.
func (l *lane) text(c caller) ([]byte, error) {
	id := l.id()
	return c.call(id, "tools/call", "text", l.args[id%len(l.args)])
}

// call makes one call and checks that the answer is a text of the right size.
func (l *lane) call(c caller) error {
	answer, err := l.text(c)
	switch {
	case err != nil:
		return err
	case len(answer) < l.sc.size || !bytes.Contains(answer, []byte(`"call `)):
		return fmt.Errorf("not the text asked for: %.300s", answer)
	}
	return nil
}

// window loads the target for d and measures. The first warm of it do not count.
func (l *lane) window(warm, d time.Duration) (sample, error) {
	callers := make([]caller, l.sc.clients)
	for i := range callers {
		c, err := l.dial()
		if err != nil {
			return sample{}, err
		}
		defer c.close()
		callers[i] = c
	}
	if _, err := l.load(callers, warm); err != nil {
		return sample{}, err
	}
	heap, counted := l.s.rig.allocated(l.s.pid)
	before, start := cpuOf(l.s.pid), time.Now()
	times, err := l.load(callers, d)
	took := time.Since(start)
	if err != nil {
		return sample{}, err
	}
	n := len(times)
	slices.Sort(times)
	out := sample{
		rate: float64(n) / took.Seconds(), p50: times[n/2], p99: times[n*99/100],
		cpu: (cpuOf(l.s.pid) - before) / time.Duration(n), rss: rssOf(l.s.pid),
	}
	if after, ok := l.s.rig.allocated(l.s.pid); ok && counted {
		out.counted = true
		out.allocs, out.bytes = float64(after.Allocs-heap.Allocs)/float64(n), float64(after.Bytes-heap.Bytes)/float64(n)
	}
	return out, nil
}

// load calls from all callers at once until d is over, each at least once.
func (l *lane) load(callers []caller, d time.Duration) ([]time.Duration, error) {
	times := make([][]time.Duration, len(callers))
	errs := make([]error, len(callers))
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for i, c := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				start := time.Now()
				if err := l.call(c); err != nil {
					errs[i] = fmt.Errorf("%s: %w", l.s.name, err)
					return
				}
				now := time.Now()
				times[i] = append(times[i], now.Sub(start))
				if now.After(end) {
					return
				}
			}
		}()
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // the first tells enough
		}
	}
	return slices.Concat(times...), nil
}

// result holds the samples of all rounds of one target in one scenario.
type result struct {
	target  string
	samples []sample
	skipped string
}

func median[T int64 | float64 | time.Duration](values []T) T {
	if len(values) == 0 {
		return 0
	}
	v := slices.Sorted(slices.Values(values))
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

func pick[S, T any](s []S, f func(S) T) []T {
	out := make([]T, len(s))
	for i := range s {
		out[i] = f(s[i])
	}
	return out
}

// ratios divides round by round, because a disturbance of a round affects both.
func ratios(a, b []sample, f func(sample) float64) []float64 {
	var out []float64
	for i := range min(len(a), len(b)) {
		if d := f(b[i]); d > 0 {
			out = append(out, f(a[i])/d)
		}
	}
	return out
}
