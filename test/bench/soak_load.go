package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
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

// start loads until stop is called or ctx ends; the channel is closed when all
// clients are through with what they did.
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

// client plays one script after the other. After a failure it connects anew.
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

// soakClient is one connection, and what it does on it.
type soakClient struct {
	load *soakLoad
	ctx  context.Context
	lane *lane
	conn caller
	r    *rand.Rand
}

// script does one of the things that hosts do.
func (c *soakClient) script() error {
	switch n := c.r.IntN(1000); {
	case n < 4 && !c.lane.sc.modern:
		return c.ownSession()
	case n < 50:
		return c.inBranch()
	}
	return c.text("")
}

// call makes one call in its time; an answer that is an error is a failure.
func (c *soakClient) call(kind, tool, args string) ([]byte, error) {
	if err := c.load.pace(c.ctx); err != nil {
		return nil, err
	}
	start := time.Now()
	answer, err := c.conn.call(c.lane.id(), "tools/call", tool, args)
	took := time.Since(start)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tool, err)
	}
	wrong, _ := rawjson.Get(answer, "result", "isError")
	if _, ok := rawjson.Get(answer, "result", "content"); !ok || string(wrong) == "true" {
		return nil, fmt.Errorf("%s %s: %.300s", tool, args, answer)
	}
	c.load.note(kind, took)
	return answer, nil
}

// text asks for a result: mostly small ones, some that are folded, of which a
// part is read. One in four comes from the server behind HTTP.
func (c *soakClient) text(branch string) error {
	size, more := 100, ""
	switch n := c.r.IntN(100); {
	case n < 1:
		size = 1 << 20
	case n < 8:
		size = 64 << 10
	case n < 30:
		size = 4 << 10
	}
	tool, kind := "text", bytesName(size)
	if c.r.IntN(4) == 0 {
		tool = "web__text"
	}
	if branch != "" {
		more = fmt.Sprintf(`,"branch_id":%q`, branch)
	}
	answer, err := c.call(kind, tool, fmt.Sprintf(`{"size":%d%s}`, size, more))
	if err != nil {
		return err
	}
	_, rest, folded := bytes.Cut(answer, []byte(`{\"handle\":\"`))
	switch {
	case folded != (size > 1<<14):
		return fmt.Errorf("a result of %d bytes, folded: %t: %.300s", size, folded, answer)
	case !folded && !bytes.Contains(answer, []byte(`"call `)):
		return fmt.Errorf("not the text asked for: %.300s", answer)
	case folded:
		handle, _, _ := bytes.Cut(rest, []byte(`\"`))
		_, err = c.call("branch_read", "branch_read", fmt.Sprintf(`{"handle":%q,"lines":"1-20"}`, handle))
	}
	return err
}

// inBranch opens a branch, calls in it and returns it. One in ten is left to
// its timeout.
func (c *soakClient) inBranch() error {
	abandon := c.r.IntN(10) == 0
	args := `{"description":"load"}`
	if abandon {
		args = `{"description":"load","timeout_seconds":20}`
	}
	answer, err := c.call("branch_create", "branch_create", args)
	if err != nil {
		return err
	}
	id, ok := rawjson.GetString(answer, "result", "structuredContent", "branch_id")
	if !ok {
		return fmt.Errorf("branch_create: %.300s", answer)
	}
	if abandon {
		return nil
	}
	for range 8 {
		if err := c.text(id); err != nil {
			return err
		}
	}
	_, err = c.call("branch_return", "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, id))
	return err
}

// ownSession opens a session, with a server process of its own, and ends it.
func (c *soakClient) ownSession() error {
	lane, err := openLane(c.load.s, c.lane.sc)
	if err != nil {
		return err
	}
	conn, err := lane.dial()
	if err != nil {
		return err
	}
	defer conn.close()
	own := &soakClient{load: c.load, ctx: c.ctx, lane: lane, conn: conn, r: c.r}
	for range 5 {
		if err := own.text(""); err != nil {
			_ = lane.end()
			return err
		}
	}
	if err := own.inBranch(); err != nil {
		_ = lane.end()
		return err
	}
	c.load.note("session", 0)
	return lane.end()
}

// end ends a legacy session over HTTP.
func (l *lane) end() error {
	if l.session == "" {
		return nil
	}
	req, err := http.NewRequest(http.MethodDelete, l.s.endpoint, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Mcp-Session-Id", l.session)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("end of session: %w", err)
	}
	_ = res.Body.Close()
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("end of session: %s", res.Status)
	}
	return nil
}
