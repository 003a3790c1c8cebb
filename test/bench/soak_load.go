//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// soakClients is how many connections of each era make the calls.
const soakClients = 8

// soakLoad makes mixed calls at a steady rate from clients of both eras.
type soakLoad struct {
	s      *server
	rate   int
	lanes  [2]*lane // legacy and modern; each is one session
	cancel context.CancelFunc

	begin time.Time
	turn  atomic.Int64 // calls that have been given their time

	mu     sync.Mutex
	calls  int
	failed int
	first  error
	times  []time.Duration // since the last sample
	byKind map[string]int
}

func newSoakLoad(s *server, rate int) (*soakLoad, error) {
	l := &soakLoad{s: s, rate: max(rate, 1), byKind: map[string]int{}, cancel: func() {}}
	for i := range l.lanes {
		lane, err := openLane(s, scenario{host: "http", upstream: "stdio", clients: soakClients, modern: i == 1})
		if err != nil {
			return nil, err
		}
		l.lanes[i] = lane
	}
	return l, nil
}

func (l *soakLoad) close() {
	for _, lane := range l.lanes {
		_ = lane.end()
	}
}

// start loads until stop is called or ctx ends. The channel is closed when all clients have
// finished.
func (l *soakLoad) start(ctx context.Context) <-chan struct{} {
	ctx, l.cancel = context.WithCancel(ctx)
	l.begin = time.Now()
	done := make(chan struct{})
	var wg sync.WaitGroup
	for _, lane := range l.lanes {
		for i := range soakClients {
			wg.Add(1)
			go func() {
				defer wg.Done()
				l.client(ctx, lane, rand.New(rand.NewPCG(uint64(i), 7)))
			}()
		}
	}
	go func() { wg.Wait(); close(done) }()
	return done
}

func (l *soakLoad) stop() { l.cancel() }

// client plays one script after the other. After a failure it connects again.
func (l *soakLoad) client(ctx context.Context, shared *lane, r *rand.Rand) {
	var c *soakClient
	for ctx.Err() == nil {
		if c == nil {
			conn, err := shared.dial()
			if err != nil {
				l.fail(err)
				return
			}
			c = &soakClient{load: l, ctx: ctx, lane: shared, conn: conn, r: r}
		}
		if err := c.script(); err != nil && ctx.Err() == nil {
			l.fail(err)
			c.conn.close()
			c = nil
		}
	}
	if c != nil {
		c.conn.close()
	}
}

func (l *soakLoad) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed++
	if l.first == nil {
		l.first = err
	}
}

func (l *soakLoad) firstError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first
}

// pace waits for the time of the next call.
func (l *soakLoad) pace(ctx context.Context) error {
	at := l.begin.Add(time.Duration(l.turn.Add(1)) * time.Second / time.Duration(l.rate))
	if wait := time.Until(at); wait > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
	return ctx.Err()
}

func (l *soakLoad) note(kind string, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	l.byKind[kind]++
	l.times = append(l.times, took)
}

// sample looks at the process, and begins the next interval.
func (l *soakLoad) sample(pid int, state string) soakSample {
	s := soakSample{at: time.Now(), cpu: cpuOf(pid), rss: rssOf(pid), threads: threadsOf(pid), files: filesOf(pid), state: sizeOf(state)}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.calls, s.failed = l.calls, l.failed
	if n := len(l.times); n > 0 {
		slices.Sort(l.times)
		s.p99 = l.times[n*99/100]
	}
	l.times = l.times[:0]
	return s
}

func (l *soakLoad) kinds() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(l.byKind)) {
		out = append(out, fmt.Sprintf("%d %s", l.byKind[k], k))
	}
	return strings.Join(out, ", ")
}
