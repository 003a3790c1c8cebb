//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

func gone(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return errors.Is(err, os.ErrNotExist)
}

func pidOf(t *testing.T, c *mcpclient.Client, ctx context.Context, tool string) int {
	t.Helper()
	pid, err := strconv.Atoi(text(t, c, ctx, tool, `{}`))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// TestKilledUpstream: kill -9 in the middle of a call, behind a shell that has more children. The
// call fails within a second; nothing of the process group is left, not even a zombie. The next
// call in the same session succeeds. foldgate subscribes again for the host and tells it that the
// lists may have changed.
func TestKilledUpstream(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [sh, -c, 'sleep 1000 & %s -era both -record %s; true']}\n", fakeserverBin, file))
		c := g.unstarted(transport, era)
		var heard noted
		c.Handle = heard.handle(nil)
		startHost(t, ctx, c)
		method := "resources/subscribe"
		if era == mcpclient.Modern {
			method = "subscriptions/listen"
			listens(t, c, `{"toolsListChanged":true,"resourceSubscriptions":["fake://a"]}`)
		} else {
			if transport == "http" {
				if err := c.Listen(); err != nil {
					t.Fatal(err)
				}
			}
			call(t, c, ctx, method, `{"uri":"fake://a"}`)
		}
		subscribed := func() int { return strings.Count(strings.Join(recordedMethod(t, file, method), "\n"), "fake://a") }
		until(t, "the subscription reaches the upstream", func() bool { return subscribed() >= 1 })
		before := subscribed()
		pid := pidOf(t, c, ctx, "fake__pid")
		group, err := syscall.Getpgid(pid)
		if err != nil {
			t.Fatal(err)
		}
		_, wait, err := c.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":50000}}`)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the upstream has the call", func() bool {
			return strings.Contains(strings.Join(recordedMethod(t, file, "tools/call"), "\n"), `"slow"`)
		})
		start := time.Now()
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		m, err := wait()
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Second || !parseResult(t, m).IsError || !strings.Contains(string(m.Result), "upstream_crashed") {
			t.Errorf("after %v: %s", took, m.Result)
		}
		if next := pidOf(t, c, ctx, "fake__pid"); next == pid {
			t.Errorf("the next call came from the dead process %d", pid)
		}
		until(t, "the group is gone", func() bool { return syscall.Kill(-group, 0) == syscall.ESRCH })
		until(t, "the process is no zombie", func() bool { return gone(pid) })
		until(t, "the subscription is made again", func() bool { return subscribed() > before })
		until(t, "list_changed arrives", func() bool { return heard.has("notifications/tools/list_changed") >= 1 })
		text(t, c, ctx, "fake__touch", `{}`)
		until(t, "updates arrive again", func() bool { return heard.has("resources/updated") >= 1 })
	})
}

// TestSubscriptionOutlivesIdleCrash: there are no calls, but the host waits for updates.
func TestSubscriptionOutlivesIdleCrash(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
	if err := syscall.Kill(pidOf(t, c, ctx, "fake__pid"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "the subscription is made again without a call", func() bool {
		return len(recordedMethod(t, file, "resources/subscribe")) == 2
	})
}

// A server that dies of each subscription is started again with growing pauses, and the log tells.
func TestSubscriptionThatKills(t *testing.T) {
	t.Parallel()
	for _, upstream := range []string{"legacy", "modern"} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			t.Run(fmt.Sprint(upstream, " for ", era), func(t *testing.T) {
				t.Parallel()
				ctx, file := testContext(t), recordFile(t)
				g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, "stdio", upstream, "-record", file)+"}\n")
				c := g.connect(ctx, "stdio", era)
				method, params := "resources/subscribe", `{"uri":"fake://dies"}`
				if era == mcpclient.Modern {
					method, params = "subscriptions/listen", `{"notifications":{"resourceSubscriptions":["fake://dies"]}}`
				}
				if _, _, err := c.Send(ctx, method, params); err != nil {
					t.Fatal(err)
				}
				time.Sleep(4 * time.Second) // at most starts with pauses of 0, 0.25, 0.5, 1 and 2 s, and the first
				n := len(recordedMethod(t, file, "resources/subscribe"))
				for _, line := range recordedMethod(t, file, "subscriptions/listen") {
					if strings.Contains(line, "fake://dies") {
						n++
					}
				}
				if n < 2 || n > 8 {
					t.Errorf("the server got %d subscriptions in 4 s, want a few", n)
				}
				g.stop()
				if log := g.log.String(); !strings.Contains(log, "an upstream was lost") {
					t.Errorf("the log does not tell: %s", log)
				}
			})
		}
	}
}

// TestForgottenSession: if an HTTP upstream answers 404 for its session, foldgate initializes a
// new one within the same host session, and the call succeeds.
func TestForgottenSession(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		target, err := url.Parse(fakeserverHTTP(t, "-record", file))
		if err != nil {
			t.Fatal(err)
		}
		target.Path = ""
		var epoch atomic.Int64
		proxy := httputil.NewSingleHostReverseProxy(target)
		proxy.FlushInterval = -1
		proxy.ModifyResponse = func(r *http.Response) error {
			if id := r.Header.Get("Mcp-Session-Id"); id != "" {
				r.Header.Set("Mcp-Session-Id", fmt.Sprintf("%d.%s", epoch.Load(), id))
			}
			return nil
		}
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n, id, ok := strings.Cut(r.Header.Get("Mcp-Session-Id"), "."); ok {
				if n != fmt.Sprint(epoch.Load()) {
					http.NotFound(w, r)
					return
				}
				r.Header.Set("Mcp-Session-Id", id)
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
		g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {url: %q}\n", srv.URL+"/mcp"))
		c := g.connect(ctx, transport, era)
		if era == mcpclient.Legacy {
			call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
		}
		text(t, c, ctx, "fake__text", `{"text":"one"}`)
		epoch.Add(1)
		if got := text(t, c, ctx, "fake__text", `{"text":"two"}`); got != "two" {
			t.Errorf("after the upstream forgot the session: %q", got)
		}
		if era == mcpclient.Legacy {
			until(t, "the subscription is made again", func() bool { return len(recordedMethod(t, file, "resources/subscribe")) == 2 })
		}
	})
}

// TestServerWithoutGET: a server whose only route is POST answers 404 to a GET also for a session that it knows. If it
// forgets the session while it works on a call, and has sent no header yet, the call is made once.
func TestServerWithoutGET(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		var forgets, slow, gets atomic.Int64
		begun, goOn := make(chan bool, 9), make(chan bool)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			raw, _ := io.ReadAll(r.Body)
			m, _ := mcpclient.Parse(raw)
			if r.Method == http.MethodGet {
				gets.Add(1)
			}
			if r.Method != http.MethodPost || m.Method != "initialize" && r.Header.Get("Mcp-Session-Id") != fmt.Sprint(forgets.Load()) {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			result := `{"content":[{"type":"text","text":"done"}]}`
			switch {
			case m.ID == nil:
				w.WriteHeader(http.StatusAccepted)
				return
			case m.Method == "initialize":
				w.Header().Set("Mcp-Session-Id", fmt.Sprint(forgets.Load()))
				result = `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"p","version":"1"}}`
			case m.Method == "tools/list":
				result = `{"tools":[` + toolItem("slow") + `,` + toolItem("quick") + `]}`
			case strings.Contains(string(m.Params), "slow"):
				slow.Add(1)
				begun <- true
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
		}))
		t.Cleanup(srv.Close)
		g := newGateway(t, fmt.Sprintf("upstreams:\n  web: {url: %q}\n", srv.URL+"/mcp"))
		c := g.connect(ctx, transport, era)
		until(t, "foldgate asks for a stream", func() bool { text(t, c, ctx, "web__quick", `{}`); return gets.Load() > 0 })
		answer := make(chan string, 1)
		go func() { answer <- text(t, c, ctx, "web__slow", `{}`) }()
		<-begun
		forgets.Add(1)
		if got := text(t, c, ctx, "web__quick", `{}`); got != "done" {
			t.Errorf("the call in a new session: %q", got)
		}
		close(goOn)
		if got := <-answer; got != "done" || slow.Load() != 1 {
			t.Errorf("the call in the session that was forgotten: %q, made %d times", got, slow.Load())
		}
	})
}

// TestHangingUpstreams: one upstream answers nothing, one hangs in a call, one
// can't be started; the fourth serves as if it were alone.
func TestHangingUpstreams(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		t.Parallel()
		ctx := testContext(t)
		g := newGateway(t, fmt.Sprintf(`upstreams:
  mute: {command: [sleep, "1000"]}
  gone: {url: "http://127.0.0.1:1/none"}
  slow: {command: [%q], timeout_seconds: 1}
  fake: {command: [%q]}
`, fakeserverBin, fakeserverBin))
		c := g.connect(ctx, transport, era)
		_, wait, err := c.Send(ctx, "tools/call", `{"name":"slow__slow","arguments":{"ms":50000}}`)
		if err != nil {
			t.Fatal(err)
		}
		text(t, c, ctx, "fake__text", `{"text":"first"}`) // the first waits for the lists
		start := time.Now()
		for range 10 {
			text(t, c, ctx, "fake__text", `{"text":"x"}`)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("ten calls beside hanging upstreams took %v", took)
		}
		m, err := wait()
		if err != nil {
			t.Fatal(err)
		}
		if r := string(m.Result); !strings.Contains(r, "upstream_timeout") || !strings.Contains(r, "timeout_seconds") {
			t.Errorf("the hanging call = %s, want upstream_timeout and the setting to change", r)
		}
		if got := text(t, c, ctx, "slow__text", `{"text":"after"}`); got != "after" {
			t.Errorf("after the timeout the upstream says %q", got)
		}
		m = tool(t, c, ctx, "gone__x", `{}`)
		if r := string(m.Result); !strings.Contains(r, "upstream_unavailable") {
			t.Errorf("a tool of an upstream that is down = %s", r)
		}
	})
}

// TestMonstrousMessages: a frame beyond the limit and nesting beyond it fail
// the call they belong to, at most; the session goes on.
func TestMonstrousMessages(t *testing.T) {
	t.Parallel()
	for _, upstream := range []string{"stdio", "http"} {
		t.Run(upstream, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, upstream, "legacy")+"}\n")
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			pid := pidOf(t, c, ctx, "fake__pid")
			m := tool(t, c, ctx, "fake__huge", fmt.Sprintf(`{"bytes":%d}`, 65<<20))
			if r := string(m.Result); len(r) > 10000 || !strings.Contains(r, "error") {
				t.Errorf("65 MiB = %.300s", r)
			}
			deep := strings.Repeat("[", 1000) + strings.Repeat("]", 1000)
			if m := tool(t, c, ctx, "fake__raw", `{"result":{"content":[],"structuredContent":`+deep+`}}`); !strings.Contains(string(m.Result), deep) {
				t.Errorf("1,000 levels = %.300s", m.Result)
			}
			m, err := c.Call(ctx, "tools/call", `{"name":"fake__deep","arguments":{"count":5000}}`)
			if err != nil || m.Error == nil && !parseResult(t, m).IsError {
				t.Errorf("5,000 levels = %.300s %.300s, %v", m.Result, m.Error, err)
			}
			deep = strings.Repeat("[", 2001) + strings.Repeat("]", 2001)
			m, err = c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"text":`+deep+`}}`)
			if err != nil || !strings.Contains(string(m.Error), "nests deeper than 2000 levels") {
				t.Errorf("2,001 levels of the host = %.300s, %v", m.Error, err)
			}
			if next := pidOf(t, c, ctx, "fake__pid"); next != pid {
				t.Errorf("the upstream was restarted: %d, then %d", pid, next)
			}
		})
	}
}
