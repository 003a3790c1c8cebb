//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// childProcesses is how many child processes the gateway has.
func (g *gateway) childProcesses() int {
	g.t.Helper()
	n := 0
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", g.pid))
	if err != nil {
		g.t.Fatal(err)
	}
	for _, task := range tasks {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", g.pid, task.Name())) // a thread may end
		n += len(strings.Fields(string(children)))
	}
	return n
}

func limitedFake(t *testing.T, file, keys string) *gateway {
	return newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both, -record, %q], %s}\n", fakeserverBin, file, keys))
}

// TestMaxConnections: however many sessions call a server, it has no more processes than allowed. A
// new connection takes the place of the longest idle one; if all are in use, the call is refused with
// the name of the key.
func TestMaxConnections(t *testing.T) {
	t.Parallel()
	file := recordFile(t)
	g := limitedFake(t, file, "max_connections: 3")
	ctx := testContext(t)
	var sessions []*mcpclient.Client
	url := g.http()
	for n := range 12 {
		c := g.dial(ctx, url, mcpclient.Legacy)
		sessions = append(sessions, c)
		pidOf(t, c, ctx, "fake__pid")
		if got := g.childProcesses(); got > 3 {
			t.Fatalf("%d sessions have %d processes, want at most 3", n+1, got)
		}
	}
	pidOf(t, sessions[0], ctx, "fake__pid") // its connection was closed
	var waits []func() (mcpclient.Message, error)
	end := filepath.Join(t.TempDir(), "end")
	before := len(recordedMethod(t, file, "tools/call"))
	for _, c := range sessions[1:4] {
		_, wait, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{"wait":%q,"result":{"content":[]}}}`, end))
		if err != nil {
			t.Fatal(err)
		}
		waits = append(waits, wait)
	}
	until(t, "the calls are at the server", func() bool { return len(recordedMethod(t, file, "tools/call")) == before+3 })
	m := tool(t, sessions[5], ctx, "fake__pid", `{}`)
	if s := string(m.Result); !parseResult(t, m).IsError || !strings.Contains(s, "upstream fake: ") || !strings.Contains(s, "(max_connections)") || !strings.Contains(s, "too_many_connections") {
		t.Errorf("over the limit: %s", s)
	}
	write(t, end, "")
	for _, wait := range waits {
		if m, err := wait(); err != nil || parseResult(t, m).IsError {
			t.Errorf("a call that has its place: %s, %v", m.Result, err)
		}
	}
	pidOf(t, sessions[5], ctx, "fake__pid")
}

// TestMaxConnectionsOfAPrincipal: one of several principals has half of the connections at most.
func TestMaxConnectionsOfAPrincipal(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both], max_connections: 4}\n", fakeserverBin))
	ctx, url := testContext(t), g.http()
	pids := map[string]map[int]bool{}
	for n := range 12 {
		name := []string{"alice", "alice", "bob"}[n%3]
		c := g.as(t, url, mcpclient.Legacy, name)
		if pids[name] == nil {
			pids[name] = map[int]bool{}
		}
		pids[name][pidOf(t, c, ctx, "fake__pid")] = true
		alive := 0
		for pid := range pids[name] {
			if !gone(pid) {
				alive++
			}
		}
		if alive > 2 || g.childProcesses() > 4 {
			t.Errorf("%s has %d processes, all have %d; want at most 2 and 4", name, alive, g.childProcesses())
		}
	}
}

// TestIdleConnection: a connection that nothing uses is closed. The next call opens another one with
// the log level of the host. A call, a subscription, a task and a question keep it open.
func TestIdleConnection(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			file := recordFile(t)
			g := limitedFake(t, file, "idle_seconds: 1")
			ctx := testContext(t)
			c := g.connect(ctx, transport, mcpclient.Legacy)
			call(t, c, ctx, "logging/setLevel", `{"level":"error"}`)
			pid := pidOf(t, c, ctx, "fake__pid")
			tool(t, c, ctx, "fake__slow", `{"ms":2500}`)
			if gone(pid) {
				t.Error("a call was open and its process ended")
			}
			until(t, "the idle process ends", func() bool { return gone(pid) })
			levels := len(recordedMethod(t, file, "logging/setLevel"))
			pid = pidOf(t, c, ctx, "fake__pid")
			if got := len(recordedMethod(t, file, "logging/setLevel")); got != levels+1 {
				t.Errorf("the new connection has no log level: %d of %d", got, levels+1)
			}
			call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
			stays(t, pid, "a subscription")
			call(t, c, ctx, "resources/unsubscribe", `{"uri":"fake://a"}`)
			until(t, "the process ends after the subscription", func() bool { return gone(pid) })

			pid = pidOf(t, c, ctx, "fake__pid")
			call(t, c, ctx, "tools/call", `{"name":"fake__raw","arguments":{"result":{"task":{"taskId":"t1","status":"working","ttl":60000}}},"task":{}}`)
			stays(t, pid, "a task")
			call(t, c, ctx, "tools/call", `{"name":"fake__raw","arguments":{"result":{"task":{"taskId":"t1","status":"completed","ttl":60000}}},"task":{}}`)
			stays(t, pid, "a task whose result the host has not fetched")
			call(t, c, ctx, "tasks/result", `{"taskId":"t1"}`)
			until(t, "the process ends after the task", func() bool { return gone(pid) })
		})
	}
}

// TestIdleConnectionOfAQuestion: the server's question is open, although its call is over for the
// connection of a modern server.
func TestIdleConnectionOfAQuestion(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, modern], idle_seconds: 1}\n", fakeserverBin))
	ctx := testContext(t)
	c := g.unstarted("stdio", mcpclient.Legacy)
	pid := 0
	c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
		if m.Method == "elicitation/create" {
			stays(t, pid, "a question")
			return []byte(`{"action":"decline"}`), nil
		}
		return []byte(`{}`), nil
	}
	startHost(t, ctx, c)
	pid = pidOf(t, c, ctx, "fake__pid")
	tool(t, c, ctx, "fake__elicit", `{"params":{"message":"?"}}`)
	until(t, "the idle process ends", func() bool { return gone(pid) })
}

// stays fails if a process ends within the time in which an idle one does.
func stays(t *testing.T, pid int, because string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; {
		select {
		case <-tick.C:
			if gone(pid) {
				t.Errorf("%s was open and the process ended", because)
				return
			}
		case <-ctx.Done():
			return
		}
	}
}
