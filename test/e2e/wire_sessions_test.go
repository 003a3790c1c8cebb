//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// TestSessions: a legacy session has an upstream process of its own, the same
// one for all its calls, which ends with it. Modern hosts share one. A call is
// made once.
func TestSessions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, ""))
	url := g.http()
	pids := map[int]string{}
	var clients []*mcpclient.Client
	for i := range 3 {
		c := mcpclient.HTTP(url, mcpclient.Legacy)
		clients = append(clients, c)
		startHost(t, ctx, c)
		first := pidOf(t, c, ctx, "fake__pid")
		for range 3 {
			if next := pidOf(t, c, ctx, "fake__pid"); next != first {
				t.Errorf("session %d moved from process %d to %d", i, first, next)
			}
		}
		if other, taken := pids[first]; taken {
			t.Errorf("session %s shares process %d with %s", c.Session(), first, other)
		}
		pids[first] = c.Session()
	}
	shared := 0
	for range 3 {
		c := mcpclient.HTTP(url, mcpclient.Modern)
		g.closes(c)
		pid := pidOf(t, c, ctx, "fake__pid")
		if pids[pid] != "" || shared != 0 && pid != shared {
			t.Errorf("a modern host got process %d; sessions have %v, modern hosts %d", pid, pids, shared)
		}
		shared = pid
	}
	if n := len(recordedMethod(t, file, "tools/call")); n != 3*4+3 {
		t.Errorf("%d calls reached the upstream, want %d", n, 3*4+3)
	}
	for _, c := range clients {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for pid := range pids {
		until(t, "the session's process ends", func() bool { return gone(pid) })
	}
}

// TestForeignSessionIDs: an id that is made up, ended, or of an earlier process is unknown. A
// request without an id gets no session.
func TestForeignSessionIDs(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	first := g.http()
	c := mcpclient.HTTP(first, mcpclient.Legacy)
	startHost(t, ctx, c)
	ended := c.Session()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mcpclient.HTTP(first, mcpclient.Legacy)
	startHost(t, ctx, c)
	earlier := c.Session()
	g.stop()
	url := g.http()
	for id, want := range map[string]int{ended: 404, earlier: 404, "ses_00000000-0000-4000-8000-000000000000": 404, "local": 404, "": 400} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if id != "" {
			req.Header.Set("Mcp-Session-Id", id)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("session id %q: %s, want %d", id, res.Status, want)
		}
	}
}

// TestProbeStartsNothing: a host that only initializes starts no upstream that foldgate has
// connected before.
func TestProbeStartsNothing(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, fakeConfig(file, ""))
			call(t, g.connect(ctx, "stdio", era), ctx, "tools/list", `{}`)
			g.stop()
			before := len(recorded(t, file))
			c := g.connect(ctx, "stdio", era)
			if era == mcpclient.Legacy {
				call(t, c, ctx, "ping", `{}`)
			}
			g.stop()
			if after := len(recorded(t, file)); after != before {
				t.Errorf("the upstream got %d messages of a probe", after-before)
			}
		})
	}
}

// TestStderrFlood: more on stderr than a pipe holds does not stop an upstream.
func TestStderrFlood(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for range 5 {
		text(t, c, ctx, "fake__stderr", fmt.Sprintf(`{"text":%q}`, strings.Repeat("x", 1<<20)))
		text(t, c, ctx, "fake__stderr", fmt.Sprintf(`{"text":%q}`, strings.Repeat("y\n", 1<<16)))
	}
}

// TestRestartedHTTPUpstream: an HTTP upstream goes away and comes back, within
// one host session; another upstream never notices.
func TestRestartedHTTPUpstream(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		addr := "127.0.0.1:" + freeport.For(t)
		start := func() *exec.Cmd {
			cmd := exec.Command(fakeserverBin, "-http", addr, "-era", "both")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			until(t, "the upstream listens", func() bool {
				c, err := net.Dial("tcp", addr)
				if err == nil {
					_ = c.Close()
				}
				return err == nil
			})
			return cmd
		}
		kill := func(cmd *exec.Cmd) { _ = cmd.Process.Kill(); _ = cmd.Wait() }
		cmd := start()
		g := newGateway(t, fmt.Sprintf("upstreams:\n  web: {url: \"http://%s/mcp\"}\n  other: {command: [%q]}\n", addr, fakeserverBin))
		c := g.connect(ctx, transport, era)
		text(t, c, ctx, "web__text", `{"text":"one"}`)
		kill(cmd)
		if m := tool(t, c, ctx, "web__text", `{"text":"two"}`); !parseResult(t, m).IsError || !strings.Contains(string(m.Result), "upstream_") {
			t.Errorf("while the upstream is away: %s", m.Result)
		}
		if got := text(t, c, ctx, "other__text", `{"text":"here"}`); got != "here" {
			t.Errorf("the other upstream says %q", got)
		}
		cmd = start()
		t.Cleanup(func() { kill(cmd) })
		until(t, "the upstream serves again", func() bool {
			m := tool(t, c, ctx, "web__text", `{"text":"three"}`)
			r := parseResult(t, m)
			return !r.IsError && len(r.Content) == 1 && r.Content[0].Text == "three"
		})
	})
}

// A session keeps its initialize, which may have a MiB. What all sessions keep has a bound, of which one of several principals may
// have half. A session that ends makes room.
func TestWhatSessionsKeepIsBounded(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+"upstreams:\n  files: {builtin: files, roots: [.]}\n")
	url := g.http()
	initialize := func(who string, pad int) (session, body string) {
		status, h, body := answered(t, http.DefaultClient, "POST", url, fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1","pad":%q}}}`, strings.Repeat("word and ", pad/9)), bearer(tokenOf[who]))
		if status != 200 {
			t.Fatalf("%s: %d %s", who, status, body)
		}
		return h.Get("Mcp-Session-Id"), body
	}
	const large, most = 1_000_000, 128 << 20
	var sessions []string
	said := ""
	for !strings.Contains(said, `"error"`) && len(sessions) <= most/large {
		var session string
		session, said = initialize("alice", large)
		sessions = append(sessions, session)
	}
	if !strings.Contains(said, "half of them") || len(sessions) < most/large {
		t.Errorf("session %d of alice's: %.300s", len(sessions), said)
	}
	if _, said := initialize("bob", large); !strings.Contains(said, `"result"`) {
		t.Errorf("bob's first session: %.300s", said)
	}
	if status, _, body := answered(t, http.DefaultClient, "DELETE", url, "", http.Header{"Authorization": {"Bearer " + tokenOf["alice"]}, "Mcp-Session-Id": {sessions[0]}}); status != 204 {
		t.Fatalf("DELETE: %d %s", status, body)
	}
	if _, said := initialize("alice", large); !strings.Contains(said, `"result"`) {
		t.Errorf("after the end of one of alice's sessions: %.300s", said)
	}
}
