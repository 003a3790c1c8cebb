//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// TestBrokenListenStreams: a modern upstream's streams break, twice. foldgate opens them again,
// and tells the waiting hosts of both eras that something may have changed meanwhile.
func TestBrokenListenStreams(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			const cached = `"resultType":"complete","ttlMs":0,"cacheScope":"public",`
			p := newPlayer(t, "http", mcpclient.Modern, map[string]string{
				"server/discover":          `{` + cached + `"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}}}`,
				"initialize":               `{"code":-32601,"message":"Method not found"}`,
				"tools/list":               `{` + cached + `"tools":[]}`,
				"resources/list":           `{` + cached + `"resources":[{"uri":"mem://a","name":"a"}]}`,
				"resources/templates/list": `{` + cached + `"resourceTemplates":[]}`,
			})
			p.listens = make(chan *heldListen, 100)
			g := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n")
			c := g.unstarted("http", era)
			// Its group has the connection that the gateway opens when it starts.
			c.Capabilities = `{"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}},"roots":{"listChanged":true}}`
			startHost(t, ctx, c)
			var heard noted
			c.Handle = heard.handle(nil)
			if era == mcpclient.Modern {
				listens(t, c, `{"toolsListChanged":true,"resourceSubscriptions":["mem://a"]}`)
			} else {
				if err := c.Listen(); err != nil {
					t.Fatal(err)
				}
				call(t, c, ctx, "resources/subscribe", `{"uri":"mem://a"}`)
			}
			for round := range 3 {
				// A legacy host has a connection of its own beside the catalog's, and is told of
				// list changes there.
				held := map[mcpclient.Era]int{mcpclient.Legacy: 3, mcpclient.Modern: 2}[era]
				var resource, lists *heldListen
				var all []*heldListen
				for range held {
					l := acknowledge(t, p)
					all = append(all, l)
					if strings.Contains(l.want, `"resourceSubscriptions":["mem://a"]`) {
						resource = l
					} else if strings.Contains(l.want, `"toolsListChanged":true`) {
						lists = l
					}
				}
				if resource == nil || lists == nil {
					t.Fatalf("foldgate does not listen for both, but %d times for one", held)
				}
				// Rounds after the first begin with the notices of possible changes.
				before, changes := heard.has("resources/updated"), heard.has("tools/list_changed")
				if round > 0 {
					until(t, "the host hears what it may have missed", func() bool {
						return heard.has("resources/updated") >= 2*round && heard.has("tools/list_changed") >= 2*round
					})
					before, changes = 2*round, 2*round
				}
				resource.say("notifications/resources/updated", `"uri":"mem://a","n":9007199254740993,`)
				for _, l := range all {
					if l != resource {
						l.say("notifications/tools/list_changed", "")
					}
				}
				until(t, "the news arrive", func() bool {
					return heard.has("resources/updated") > before && heard.has("tools/list_changed") > changes
				})
				for _, l := range all {
					l.hangUp()
				}
			}
			if n := heard.has(`resources/updated \{"uri":"mem://a","n":9007199254740993`); n != 3 {
				t.Errorf("%d updates with what the upstream said, want 3", n)
			}
		})
	}
}

// heldListen is a subscriptions/listen that foldgate holds at a player.
type heldListen struct {
	id, want string
	stream   func(string)
}

// acknowledge takes the next subscriptions/listen.
func acknowledge(t *testing.T, p *player) *heldListen {
	t.Helper()
	select {
	case l := <-p.listens:
		l.say("notifications/subscriptions/acknowledged", `"notifications":{},`)
		return l
	case raw := <-p.got:
		t.Fatalf("the upstream got %s, want subscriptions/listen", raw)
	case <-time.After(20 * time.Second):
		t.Fatal("no subscriptions/listen within 20 s")
	}
	return nil
}

func (l *heldListen) say(method, members string) {
	l.stream(fmt.Sprintf(`{"jsonrpc":"2.0","method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, method, members, l.id))
}

func (l *heldListen) hangUp() { l.stream("") }

// A legacy host is told that a modern server refuses its subscription.
func TestRefusedSubscription(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, modern]}\n", fakeserverBin))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for uri, refused := range map[string]bool{"fake://doc": false, "fake://refused": true} {
		m, err := c.Call(ctx, "resources/subscribe", jsonText(map[string]any{"uri": uri}))
		if err != nil || refused != strings.Contains(string(m.Error), "not this one") {
			t.Errorf("%s: %s%s, %v; refused should be %v", uri, m.Result, m.Error, err, refused)
		}
	}
}

// A listen is acknowledged as far as some server can serve it. What is no array of strings is refused.
func TestAcknowledgedSubset(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const all = `"toolsListChanged":true,"promptsListChanged":true,"resourcesListChanged":true`
	for _, tt := range []struct{ upstreams, wants, agreed string }{
		{"files: {builtin: files, roots: [.]}", `{` + all + `,"resourceSubscriptions":["nope:///x"]}`, `{"toolsListChanged":true}`},
		{fmt.Sprintf("fake: {command: [%q]}", fakeserverBin), `{` + all + `,"resourceSubscriptions":["fake://a"]}`, `{` + all + `,"resourceSubscriptions":["fake://a"]}`},
		{fmt.Sprintf("fake: {command: [%q]}", fakeserverBin), `{"resourceSubscriptions":"x"}`, ""},
		{fmt.Sprintf("fake: {command: [%q]}", fakeserverBin), `{"resourceSubscriptions":["fake://a",5]}`, ""},
	} {
		g := newGateway(t, "upstreams:\n  "+tt.upstreams+"\n")
		c := g.connect(ctx, "stdio", mcpclient.Modern)
		call(t, c, ctx, "tools/list", `{}`) // it knows the server then
		var heard noted
		c.Handle = heard.handle(nil)
		if tt.agreed != "" {
			listens(t, c, tt.wants)
			until(t, "acknowledged: "+tt.agreed, func() bool {
				return heard.has(regexp.QuoteMeta(`subscriptions/acknowledged {"notifications":`+tt.agreed)) == 1
			})
		} else if m, err := c.Call(ctx, "subscriptions/listen", `{"notifications":`+tt.wants+`}`); err != nil || !strings.Contains(string(m.Error), "-32602") {
			t.Errorf("%s is answered %s%s, %v; want -32602", tt.wants, m.Result, m.Error, err)
		}
	}
}

// Each resource that a listen names costs memory, and a message of a few KB can name a thousand. So all listens of one of several
// principals have a bound, and leave room for others. What ends makes room.
func TestListensOfAPrincipalAreBounded(t *testing.T) {
	t.Parallel()
	const each, most = 1000, 10_000
	ctx := testContext(t)
	g := newGateway(t, principals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
	url := g.http()
	bob, alice := g.as(t, url, mcpclient.Modern, "bob"), mcpclient.HTTP(url, mcpclient.Modern, "Authorization", "Bearer "+tokenOf["alice"])
	var heard noted
	alice.Handle = heard.handle(nil)
	startHost(t, ctx, alice)
	g.closes(alice)
	text(t, alice, ctx, "fake__pid", `{}`)
	uris := make([]string, each)
	for i := range uris {
		uris[i] = fmt.Sprint("fake://", i)
	}
	listen := func(ctx context.Context, c *mcpclient.Client, uris []string) (wait func() (mcpclient.Message, error)) {
		_, wait, err := c.Send(ctx, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":`+jsonText(uris)+`}}`)
		if err != nil {
			t.Fatal(err)
		}
		return wait
	}
	first, end := context.WithCancel(ctx)
	listen(first, alice, uris)
	for range most/each - 1 {
		listen(ctx, alice, uris)
	}
	refusal := func(c *mcpclient.Client, uris []string) string {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		m, _ := listen(ctx, c, uris)()
		return string(m.Error)
	}
	until(t, "alice has all that she may have", func() bool { return heard.has("acknowledged") == most/each })
	if said := refusal(alice, uris[:1]); !strings.Contains(said, "half of them") {
		t.Errorf("one more listen of alice's: %q", said)
	}
	if said := refusal(bob, uris); said != "" {
		t.Errorf("bob's listen: %s", said)
	}
	end()
	until(t, "what ended makes room", func() bool { return refusal(alice, uris[:1]) == "" })
	if said := refusal(bob, []string{"fake://" + strings.Repeat("x", 8<<10)}); !strings.Contains(said, "at most 8192 bytes") {
		t.Errorf("a listen for a URI of over 8 KiB: %s", said)
	}
}
