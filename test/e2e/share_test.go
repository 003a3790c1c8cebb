//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// sharer is one session of a principal, with everything that it hears.
type sharer struct {
	*mcpclient.Client
	name  string
	heard noted
}

// sharers returns two sessions of alice and one of bob at a server with the key share.
func sharers(t *testing.T, share, transport, era string) (first, second, bob *sharer) {
	g := newGateway(t, principals()+fmt.Sprintf("upstreams:\n  fake: {share: %s, %s}\n", share, fakeUpstream(t, transport, era)))
	url := g.http()
	for n, s := range []**sharer{&first, &second, &bob} {
		name := []string{"alice", "alice", "bob"}[n]
		c := &sharer{Client: mcpclient.HTTP(url, mcpclient.Legacy, "Authorization", "Bearer "+tokenOf[name]), name: fmt.Sprint(name, n)}
		c.Capabilities = `{"elicitation":{}}`
		c.Handle = c.heard.handle(func(m mcpclient.Message) (json.RawMessage, json.RawMessage) {
			return json.RawMessage(fmt.Sprintf(`{"action":"accept","content":{"by":%q}}`, c.name)), nil
		})
		startHost(t, testContext(t), c.Client)
		if err := c.Listen(); err != nil {
			t.Fatal(err)
		}
		g.closes(c.Client)
		*s = c
	}
	return first, second, bob
}

// TestShare: sessions that share a connection hear only what is theirs.
func TestShare(t *testing.T) {
	t.Parallel()
	for _, share := range []string{"session", "principal", "everyone"} {
		for _, transport := range []string{"stdio", "http"} {
			for _, era := range []string{"legacy", "modern"} {
				t.Run(share+" "+transport+" "+era, func(t *testing.T) {
					t.Parallel()
					ctx := testContext(t)
					a, b, bob := sharers(t, share, transport, era)
					all := []*sharer{a, b, bob}
					if transport == "stdio" {
						one, two, three := pidOf(t, a.Client, ctx, "fake__pid"), pidOf(t, b.Client, ctx, "fake__pid"), pidOf(t, bob.Client, ctx, "fake__pid")
						if (one == two) != (share != "session") || (one == three) != (share == "everyone") {
							t.Errorf("processes of alice, alice and bob: %d, %d, %d", one, two, three)
						}
					}
					var wg sync.WaitGroup
					for _, s := range all { // the same token at the same time
						wg.Go(func() {
							call(t, s.Client, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__progress","arguments":{"count":20,"text":%q},"_meta":{"progressToken":"p"}}`, s.name))
						})
					}
					wg.Wait()
					for _, s := range all {
						if mine, sum := s.heard.has(`progress .*"progressToken":"p".*"message":"`+s.name+`"`), s.heard.has("notifications/progress"); mine != 20 || sum != 20 {
							t.Errorf("%s hears %d of its own progress and %d in all, want 20", s.name, mine, sum)
						}
					}

					call(t, a.Client, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
					until(t, "the subscriber hears of the update", func() bool { // a subscription at a modern server takes a moment
						text(t, b.Client, ctx, "fake__touch", `{}`)
						text(t, a.Client, ctx, "fake__touch", `{}`)
						return a.heard.has("resources/updated") > 0
					})
					call(t, b.Client, ctx, "logging/setLevel", `{"level":"debug"}`)
					call(t, a.Client, ctx, "logging/setLevel", `{"level":"error"}`)
					call(t, bob.Client, ctx, "logging/setLevel", `{"level":"error"}`)
					for _, s := range all {
						call(t, s.Client, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__log","arguments":{"params":{"level":"info","data":"by %s"}}}`, s.name))
					}
					text(t, bob.Client, ctx, "fake__list_changed", `{}`)
					for _, s := range all {
						if share == "everyone" || s == bob {
							until(t, s.name+" hears that the list changed", func() bool { return s.heard.has("tools/list_changed") > 0 })
						}
					}

					for _, s := range all {
						got := string(tool(t, s.Client, ctx, "fake__elicit", fmt.Sprintf(`{"params":{"message":"for %s"}}`, s.name)).Result)
						if share == "everyone" && transport == "stdio" && era == "legacy" {
							if !strings.Contains(got, "are not asked") {
								t.Errorf("a question that names no call: %s", got)
							}
						} else if !strings.Contains(got, s.name) {
							t.Errorf("the question for %s is answered with %s", s.name, got)
						}
					}

					time.Sleep(100 * time.Millisecond) // what is on its way arrives
					for _, s := range all {
						for _, other := range all {
							if s != other && s.heard.has("(by|for) "+other.name) > 0 {
								t.Errorf("%s hears what is for %s", s.name, other.name)
							}
						}
						if s != a && share != "session" && s.heard.has("resources/updated") > 0 {
							t.Errorf("%s hears of a resource without a subscription", s.name)
						}
					}
					for _, s := range []*sharer{a, bob} {
						if s.heard.has("by "+s.name) > 0 && share != "session" && era == "legacy" { // the fake server logs at any level
							t.Errorf("%s asked for errors and got an info", s.name)
						}
					}
					if n := b.heard.has("by " + b.name); n == 0 && !(share == "everyone" && transport == "stdio") {
						t.Error("alice's second session misses a log message")
					}
				})
			}
		}
	}
}

// TestShareOfTasks: over a connection of everyone no principal reaches the task of another one.
func TestShareOfTasks(t *testing.T) {
	t.Parallel()
	a, _, bob := sharers(t, "everyone", "stdio", "legacy")
	ctx := testContext(t)
	call(t, a.Client, ctx, "tools/call", `{"name":"fake__raw","arguments":{"result":{"task":{"taskId":"t1","status":"working","ttl":60000}}},"task":{}}`)
	for method, params := range map[string]string{"tasks/get": `{"taskId":"t1"}`, "tasks/result": `{"taskId":"t1"}`, "tasks/cancel": `{"taskId":"t1"}`, "tasks/list": `{}`} {
		m, err := bob.Call(ctx, method, params)
		if err != nil || !strings.Contains(string(m.Error), "Method not found") || strings.Contains(string(m.Error), "upstream") {
			t.Errorf("bob's %s: %s%s, %v", method, m.Result, m.Error, err)
		}
	}
}

// TestShareSurvivesTheEnd: a session that ends leaves the others their connection, and its own calls
// are cancelled. A connection that is lost is opened again for all, with their subscriptions.
func TestShareSurvivesTheEnd(t *testing.T) {
	t.Parallel()
	file := recordFile(t)
	g := newGateway(t, "upstreams:\n  fake: {share: principal, "+fakeUpstream(t, "stdio", "legacy", "-record", file)+"}\n")
	ctx := testContext(t)
	url := g.http()
	a, b := mcpclient.HTTP(url, mcpclient.Legacy), &sharer{Client: mcpclient.HTTP(url, mcpclient.Legacy)}
	b.Handle = b.heard.handle(nil)
	g.closes(b.Client)
	for _, c := range []*mcpclient.Client{a, b.Client} {
		startHost(t, ctx, c)
	}
	if err := b.Listen(); err != nil {
		t.Fatal(err)
	}
	pid := pidOf(t, b.Client, ctx, "fake__pid")
	if got := pidOf(t, a, ctx, "fake__pid"); got != pid {
		t.Errorf("two sessions have the processes %d and %d", pid, got)
	}
	if _, _, err := a.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":50000}}`); err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream has the call", func() bool {
		return strings.Contains(strings.Join(recordedMethod(t, file, "tools/call"), "\n"), `"slow"`)
	})
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream's call ends", func() bool { return strings.Contains(strings.Join(recorded(t, file), "\n"), "slow ended") })
	call(t, b.Client, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
	until(t, "the subscription arrives", func() bool { return len(recordedMethod(t, file, "resources/subscribe")) == 1 })
	if got := pidOf(t, b.Client, ctx, "fake__pid"); got != pid {
		t.Error("the connection ended with the other session")
	}
	tool(t, b.Client, ctx, "fake__crash", `{}`)
	until(t, "the subscription is made again without a call", func() bool { return len(recordedMethod(t, file, "resources/subscribe")) == 2 })
	until(t, "the host hears that it may have missed an update", func() bool { return b.heard.has("resources/updated") > 0 })
	until(t, "the host hears that the lists may have changed", func() bool { return b.heard.has("tools/list_changed") > 0 })
}

// A principal's first connection gets the lists that a server gave to another principal, also in an earlier
// process, while its own server starts.
func TestStoredListsOfSeveralPrincipals(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			hang := filepath.Join(t.TempDir(), "hang")
			server := fmt.Sprintf(`command: [sh, -c, "test -e %s && exec sleep 1000; exec %s -era legacy"]`, hang, fakeserverBin)
			config := "upstreams:\n  fake: {" + server + "}\nprincipals:\n"
			for n := range 4 {
				config += fmt.Sprintf("  user%d: {token: %s}\n", n, userToken(n))
			}
			g := newGateway(t, config)
			list := func(at string, n int) string {
				c := g.host(t, at, era, userToken(n))
				return string(call(t, c, testContext(t), "tools/list", "{}").Result)
			}
			at := g.http()
			until(t, "the list is stored", func() bool {
				text, _ := os.ReadFile(filepath.Join(g.dir, "state", "upstreams.json"))
				return strings.Contains(list(at, 0), "fake__echo") && strings.Contains(string(text), "tools/list")
			})
			write(t, hang, "")
			for _, n := range []int{1, 2} {
				if got := list(at, n); !strings.Contains(got, "fake__echo") || !strings.Contains(got, "branch_create") {
					t.Errorf("user%d, whose server does not answer, gets %.300s", n, got)
				}
			}
			g.stop()
			at = g.http()
			for _, n := range []int{0, 3} {
				if got := list(at, n); !strings.Contains(got, "fake__echo") || !strings.Contains(got, "branch_create") {
					t.Errorf("after a restart user%d, whose server does not answer, gets %.300s", n, got)
				}
			}
		})
	}
}
