//go:build e2e

package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

var soak = flag.Int("soak", 1000, "sessions that TestSoak opens and closes in each era")

// TestSoak opens and closes sessions with the binary and counts what remains: files, child
// processes, memory. Some sessions have an upstream process of their own; many end without
// notice.
func TestSoak(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	url := g.http()
	many(t, 50, func(i int) { soakSession(t, url, i, true) })
	before := g.footprint()
	many(t, *soak, func(i int) { soakSession(t, url, i, i%50 == 0) })
	var after footprint
	until(t, "sessions are gone", func() bool {
		after = g.footprint()
		return after.children <= before.children && after.files <= before.files+4 && after.threads <= before.threads+16
	})
	t.Logf("before %+v, after %d sessions of each era %+v", before, *soak, after)
	if after.rss > before.rss+before.rss/2+32<<10 {
		t.Errorf("resident memory grew from %d to %d KiB", before.rss, after.rss)
	}
}

// soakSession is one session of each era; own says whether the legacy one
// calls a tool, for which it gets an upstream process of its own.
func soakSession(t *testing.T, url string, i int, own bool) {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		c := mcpclient.HTTP(url, era)
		_, err := c.Start(ctx)
		if err == nil {
			_, err = c.Call(ctx, "tools/list", `{}`)
		}
		if err == nil && (own || era == mcpclient.Modern) {
			_, err = c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__text","arguments":{"text":"%d"}}`, i))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// many calls f n times, four at a time.
func many(t *testing.T, n int, f func(i int)) {
	t.Helper()
	work := make(chan int)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range work {
				f(i)
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
}

// footprint holds a process's files, children, threads and resident memory in KiB.
type footprint struct{ files, children, threads, rss int }

// footprint looks at the gateway's process.
func (g *gateway) footprint() (f footprint) {
	g.t.Helper()
	proc := fmt.Sprintf("/proc/%d", g.pid)
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		g.t.Fatal(err)
	}
	f.files = len(fds)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		g.t.Fatal(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		key, value, _ := strings.Cut(line, ":")
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch key {
		case "Threads":
			f.threads = n
		case "VmRSS":
			f.rss = n
		}
	}
	tasks, _ := filepath.Glob(proc + "/task/*/children")
	for _, file := range tasks {
		list, _ := os.ReadFile(file)
		f.children += len(strings.Fields(string(list)))
	}
	return f
}
