//go:build e2e

package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to look into the store while no process has it open

	"github.com/foldgate/foldgate/test/mcpclient"
)

// keptResult is a stored result; the client got its preview.
type keptResult struct {
	handle  string
	n       int // tells its lines from others
	lines   int
	evicted bool
}

func (k keptResult) line(i int) string {
	return fmt.Sprintf("result %d line %d of %d", k.n, i, k.lines)
}

// The binary is killed while clients are getting large results. Of every
// result that a client was given a handle for, the next process has all, or
// says that it was evicted; and nothing in the store is half written.
func TestKilledWhileStoring(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), "results: {quota_mb: 2, main_threshold: 1000}\n"))
	var all []*keptResult
	var calls atomic.Int32
	rounds := max(*kills/2, 4)
	for k := range rounds {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		cmd := g.command("run")
		c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
		if err != nil {
			t.Fatal(err)
		}
		startHost(t, ctx, c)
		readsWhole(t, ctx, c, all)
		var mu sync.Mutex
		var wg sync.WaitGroup
		var first sync.Once
		for range 4 {
			wg.Go(func() {
				for {
					r := &keptResult{n: int(calls.Add(1)), lines: 500 + rand.IntN(10_000)}
					m, err := c.Call(ctx, "tools/call", r.call(t))
					if err != nil {
						return // it was killed
					}
					first.Do(func() {
						time.AfterFunc(time.Duration(rand.IntN(300_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
					})
					if r.handle = handleForm.FindString(string(m.Result)); r.handle == "" {
						t.Errorf("no preview: %.300s", m.Result)
						return
					}
					mu.Lock()
					all = append(all, r)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		_ = c.Close() // it was killed: the error is the point
		cancel()
		if k%2 == 1 { // else the next process finds the store as the killed one left it
			storeIsWhole(t, filepath.Join(g.dir, "state", "results.db"))
		}
		if t.Failed() {
			t.Fatalf("after kill %d", k+1)
		}
	}
	ctx := testContext(t)
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	readsWhole(t, ctx, c, all)
	g.stop()
	storeIsWhole(t, filepath.Join(g.dir, "state", "results.db"))
	evicted := 0
	for _, r := range all {
		if r.evicted {
			evicted++
		}
	}
	t.Logf("%d kills; %d results with a handle of %d asked for, %d of them evicted since", rounds, len(all), calls.Load(), evicted)
	if evicted == len(all) {
		t.Errorf("%d of %d results were evicted: none was read after the last kill", evicted, len(all))
	}
}

// call are the parameters of a call that returns the result.
func (k keptResult) call(t *testing.T) string {
	var text strings.Builder
	for i := range k.lines {
		text.WriteString(k.line(i+1) + "\n")
	}
	return fmt.Sprintf(`{"name":"fake__raw","arguments":{"result":{"content":[{"type":"text","text":%s}]}}}`, jsonText(text.String()))
}

// readsWhole reads the ends of all results that were not evicted when last seen.
func readsWhole(t *testing.T, ctx context.Context, c *mcpclient.Client, all []*keptResult) {
	t.Helper()
	for _, r := range all {
		if r.evicted {
			continue
		}
		m := readPart(t, c, ctx, map[string]any{"handle": r.handle, "grep": fmt.Sprintf("line (1|%d) of", r.lines)})
		got := said(t, m)
		if parseResult(t, m).IsError {
			if r.evicted = strings.Contains(got, "result_evicted"); !r.evicted {
				t.Errorf("result %d: %s", r.n, got)
			}
			continue
		}
		if want := fmt.Sprintf("1:%s\n%d:%s", r.line(1), r.lines, r.line(r.lines)); !strings.HasSuffix(got, "\n"+want) {
			t.Errorf("result %d: %.300q, want %q", r.n, got, want)
		}
	}
}

// storeIsWhole looks into the store of a process that has ended.
func storeIsWhole(t *testing.T, file string) {
	t.Helper()
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var verdict string
	var halves, rows, sum, size int
	if err := db.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("the store: %s, %v", verdict, err)
	}
	if err := db.QueryRow(`SELECT count(*), coalesce(sum(bytes), 0), (SELECT coalesce(sum(bytes), 0) FROM sizes),
		(SELECT count(*) FROM results WHERE bytes != length(CAST(text AS BLOB)) + length(CAST(structured AS BLOB))) FROM results`).Scan(&rows, &sum, &size, &halves); err != nil {
		t.Fatal(err)
	}
	if halves > 0 || sum != size || rows == 0 {
		t.Errorf("the store has %d results of %d bytes, %d of them half; its own sum is %d", rows, sum, halves, size)
	}
}
