//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// noted collects the messages to a host, as method and params.
type noted struct {
	mu   sync.Mutex
	list []string
}

func (n *noted) handle(answer func(mcpclient.Message) (json.RawMessage, json.RawMessage)) func(mcpclient.Message) (json.RawMessage, json.RawMessage) {
	return func(m mcpclient.Message) (json.RawMessage, json.RawMessage) {
		n.mu.Lock()
		n.list = append(n.list, m.Method+" "+string(m.Params))
		n.mu.Unlock()
		if answer != nil {
			return answer(m)
		}
		return nil, nil
	}
}

// has reports how often something that matches was heard.
func (n *noted) has(pattern string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	re, found := regexp.MustCompile(pattern), 0
	for _, s := range n.list {
		if re.MatchString(s) {
			found++
		}
	}
	return found
}

// TestEras holds hosts of both eras against upstreams of both eras, on every
// pair of transports, two upstreams at once: tools, rounds of questions,
// progress, logging, subscriptions, changes of lists, resources, prompts.
func TestEras(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		for n := range 4 {
			upstream, share := []string{"stdio", "http"}[n/2], []string{"session", "principal"}[n%2]
			t.Run("on "+upstream+" of a "+share, func(t *testing.T) {
				ctx := testContext(t)
				g := newGateway(t, fmt.Sprintf("upstreams:\n  old: {share: %s, %s}\n  new: {share: %[1]s, %[3]s}\n",
					share, fakeUpstream(t, upstream, "legacy"), fakeUpstream(t, upstream, "modern")))
				c := g.unstarted(transport, era)
				var heard noted
				answer := echoAnswer(func(string) {})
				c.Handle, c.Capabilities = heard.handle(answer), `{"elicitation":{}}`
				startHost(t, ctx, c)
				if transport == "http" && era == mcpclient.Legacy {
					if err := c.Listen(); err != nil {
						t.Fatal(err)
					}
				}
				if era == mcpclient.Modern {
					listens(t, c, `{"toolsListChanged":true,"resourceSubscriptions":["fake://a"]}`)
					until(t, "listen is acknowledged", func() bool { return heard.has("acknowledged") == 1 })
				} else {
					call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
				}
				for _, up := range []string{"old", "new"} {
					eraCalls(t, c, era, up, &heard, answer)
				}
				eraSubscriptions(t, c, &heard)
			})
		}
	})
}

// listens opens a subscriptions/listen that lasts as long as the test.
func listens(t *testing.T, c *mcpclient.Client, wishes string) {
	t.Helper()
	if _, _, err := c.Send(t.Context(), "subscriptions/listen", `{"notifications":`+wishes+`}`); err != nil {
		t.Fatal(err)
	}
}

func eraCalls(t *testing.T, c *mcpclient.Client, era mcpclient.Era, up string, heard *noted, answer func(mcpclient.Message) (json.RawMessage, json.RawMessage)) {
	ctx := testContext(t)
	if got := text(t, c, ctx, up+"__echo", `{"n":9007199254740993}`); !strings.Contains(got, "9007199254740993") || strings.Contains(got, "io.modelcontextprotocol") != (up == "new") {
		t.Errorf("%s: echo = %s", up, got)
	}
	if got, want := elicits(t, c, ctx, up+"__elicit", up+"?", answer), `{"said":"`+up+`?"}`; !strings.Contains(got, want) {
		t.Errorf("%s: elicit = %s, want %s", up, got, want)
	}
	token := "token of " + up
	call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"%s__progress","arguments":{"count":3},"_meta":{"progressToken":%q}}`, up, token))
	if n := heard.has(`^notifications/progress \{"progressToken":"` + token + `","progress":\d,"total":3,"message":"","future":1\.0\}`); n != 3 {
		t.Errorf("%s: %d progress notifications before the result, want 3", up, n)
	}
	eraLogging(t, c, era, up, heard)
	if m := call(t, c, ctx, "prompts/get", `{"name":"`+up+`__greet","arguments":{"who":"x"}}`); !strings.Contains(string(m.Result), `\"name\":\"greet\"`) {
		t.Errorf("%s: prompt = %s", up, m.Result)
	}
	if m := call(t, c, ctx, "completion/complete", `{"ref":{"type":"ref/prompt","name":"`+up+`__greet"},"argument":{"name":"who","value":"o"}}`); !strings.Contains(string(m.Result), `"two"`) {
		t.Errorf("%s: completion = %s", up, m.Result)
	}
}

// eraLogging: a legacy host sets a level for all; a modern host asks with each
// request, and without asking gets nothing of a legacy upstream either.
func eraLogging(t *testing.T, c *mcpclient.Client, era mcpclient.Era, up string, heard *noted) {
	ctx := testContext(t)
	log := func(level, asked, data string) {
		meta := ""
		if asked != "" {
			meta = `,"_meta":{"io.modelcontextprotocol/logLevel":"` + asked + `"}`
		}
		call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"%s__log","arguments":{"params":{"level":%q,"data":%q}}%s}`, up, level, up+data, meta))
	}
	if era == mcpclient.Legacy {
		call(t, c, ctx, "logging/setLevel", `{"level":"info"}`)
		log("info", "", " plain")
		if heard.has(`notifications/message \{"level":"info","data":"`+up+` plain"\}`) != 1 {
			t.Errorf("%s: the log message did not come before the result", up)
		}
		return
	}
	log("warning", "info", " severe")
	if heard.has(`notifications/message \{"level":"warning","data":"`+up+` severe"\}`) != 1 {
		t.Errorf("%s: the log message asked for did not come before the result", up)
	}
	if up == "old" { // the modern upstream knows itself what was asked for
		log("debug", "info", " trifle")
		log("error", "", " unasked")
		if n := heard.has(`trifle|unasked`); n != 0 {
			t.Errorf("%s: %d log messages that were not asked for", up, n)
		}
	}
}

// eraSubscriptions: resource fake://a is both upstreams', and the first's by
// order; changes of lists come from either.
func eraSubscriptions(t *testing.T, c *mcpclient.Client, heard *noted) {
	ctx := testContext(t)
	text(t, c, ctx, "old__touch", `{}`)
	until(t, "resources/updated arrives", func() bool {
		return heard.has(`notifications/resources/updated .*"uri":"fake://a"`) >= 1
	})
	for _, up := range []string{"old", "new"} {
		before := heard.has(`notifications/tools/list_changed`)
		// Foldgate's own listen at a modern upstream may be a moment late.
		until(t, up+": list_changed arrives", func() bool {
			text(t, c, ctx, up+"__list_changed", `{}`)
			for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
				if heard.has(`notifications/tools/list_changed`) > before {
					return true
				}
			}
			return false
		})
	}
}

// TestSubscribeAtModernUpstream: a legacy host's subscription at a modern
// upstream, its end, and its life beyond a crash of the upstream.
func TestSubscribeAtModernUpstream(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, "upstreams:\n  new: {"+fakeUpstream(t, "stdio", "modern", "-record", file)+"}\n")
			c := g.connect(ctx, transport, mcpclient.Legacy)
			var heard noted
			c.Handle = heard.handle(nil)
			call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
			wanted := func() int {
				return strings.Count(strings.Join(recordedMethod(t, file, "subscriptions/listen"), "\n"), "fake://a")
			}
			until(t, "the upstream is asked", func() bool { return wanted() == 1 })
			text(t, c, ctx, "new__touch", `{}`)
			if transport == "http" {
				if err := c.Listen(); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the update arrives", func() bool { return heard.has(`resources/updated .*fake://a`) == 1 })
			if heard.has(`subscriptionId`) != 0 {
				t.Error("the update says what a legacy host does not know")
			}
			c.Call(ctx, "tools/call", `{"name":"new__crash","arguments":{}}`)
			until(t, "the upstream is asked again", func() bool { return wanted() == 2 })
			until(t, "the host is told of what it may have missed", func() bool { return heard.has(`resources/updated .*fake://a`) == 2 })
			call(t, c, ctx, "resources/unsubscribe", `{"uri":"fake://a"}`)
			until(t, "the upstream is told of the end", func() bool {
				return len(recordedMethod(t, file, "notifications/cancelled")) > 0
			})
			text(t, c, ctx, "new__touch", `{}`)
			if n := heard.has(`resources/updated`); n != 2 {
				t.Errorf("%d updates, want none after the end", n)
			}
		})
	}
}
