package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/policy"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A request without an id reaches no server, whatever its method: nothing would decide and count
// it. A notification that foldgate does not know reaches a server if the policy allows its method.
func TestRequestsWithoutIDReachNoServer(t *testing.T) {
	requests := []string{"tools/call", "tools/list", "prompts/get", "resources/read", "tasks/cancel", "x/other", "Notifications/x", "notifications", "notification/x", ""}
	for _, tt := range []struct {
		byDefault string
		want      []string // that the server gets
		refused   []string // the rules in the trace
	}{
		{"allow", []string{"notifications/roots/list_changed", "notifications/x"}, nil},
		{"deny", []string{"notifications/roots/list_changed"}, []string{"notifications/x default"}},
	} {
		for _, modern := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRigWith(t, modern, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, func(c *config.Config) { c.Policy.Default = tt.byDefault })
				if !modern {
					r.initialize()
				}
				r.ok("tools/list", "{"+elicitMeta+"}") // opens a connection
				for _, method := range append(requests, "notifications/roots/list_changed", "notifications/x") {
					m := wire.Message{Method: method, Params: json.RawMessage(`{"name":"echo","arguments":{}}`)}
					m.Raw = m.Encode()
					r.s.Notify(m)
				}
				synctest.Wait()
				got := r.last("up")
				got.mu.Lock()
				notes := slices.DeleteFunc(slices.Clone(got.notes), func(m string) bool { return m == wire.MethodInitialized })
				got.mu.Unlock()
				if diff := cmp.Diff(tt.want, notes); diff != "" {
					t.Errorf("default: %s, modern: %v: the server gets (-want +got):\n%s", tt.byDefault, modern, diff)
				}
				r.close()
				var refused []string
				for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{"mcp/reject"}}) {
					refused = append(refused, rec.Audit.Method+" "+rec.Audit.Decision.Rule)
				}
				want := slices.Clone(tt.refused)
				for _, method := range requests[:min(len(requests), 10)] { // more in a minute are counted
					want = append(want, method+" -32600")
				}
				slices.Sort(refused)
				slices.Sort(want)
				if diff := cmp.Diff(want, refused); diff != "" {
					t.Errorf("default: %s, modern: %v: the trace has (-want +got):\n%s", tt.byDefault, modern, diff)
				}
			})
		}
	}
}

// A reference that servers could read in two ways is refused. The type of one says what it means.
func TestReferencesOfCompletion(t *testing.T) {
	up := echoUpstream("2025-11-25")
	up.caps = `{"prompts":{},"resources":{},"completions":{}}`
	up.serve = func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		switch c.Method {
		case "prompts/list":
			return result(`{"prompts":[{"name":"open"},{"name":"secret"}]}`)
		case "resources/templates/list":
			return result(`{"resourceTemplates":[{"name":"t","uriTemplate":"mem://{id}"}]}`)
		case "resources/list":
			return result(`{"resources":[]}`)
		}
		return result(`{"completion":{"values":["x"]}}`)
	}
	r := newRigWith(t, false, map[string]fakeUpstream{"up": up}, func(c *config.Config) {
		c.Policy = policy.Config{Default: "deny", Rules: []policy.Rule{{Name: "some", Prompts: policy.Globs{Allow: []string{"up__open"}}, Resources: policy.Globs{Allow: []string{"mem://*"}}}}}
	})
	r.initialize()
	for meta, want := range map[string]string{
		`{"progressToken":5}`: "", `{"progressToken":5,"progressToken":"x"}`: "two spellings", `{"ProgressToken":5}`: "two spellings", `{"progress\u0054oken":5,"progressToken":"x"}`: "two spellings",
	} {
		m := r.exchange(t.Context(), "completion/complete", `{"ref":{"type":"ref/prompt","name":"up__open"},"argument":{"name":"id","value":""},"_meta":`+meta+`}`)
		if (want == "") != (m.Error == nil) || !strings.Contains(string(m.Error), want) {
			t.Errorf("%s = %s %s, want %q", meta, m.Result, m.Error, want)
		}
	}
	for ref, want := range map[string]string{
		`{"type":"ref/prompt","name":"up__open"}`:                        "",
		`{"type":"ref/prompt","name":"up__open","uri":null,"x":1}`:       "",
		`{"type":"ref/resource","uri":"mem://{id}"}`:                     "",
		`{"type":"ref/prompt","name":"up__secret"}`:                      "no rule",
		`{"type":"ref/prompt","name":"up__secret","uri":"mem://{id}"}`:   "must not have",
		`{"type":"ref/resource","name":"up__secret","uri":"mem://{id}"}`: "must not have",
		`{"name":"up__open"}`:                                            "params.ref.type",
		`{"uri":"mem://{id}","name":"up__secret"}`:                       "params.ref.type",
		`{"type":"ref/other","uri":"mem://{id}"}`:                        "params.ref.type",
		`{"type":"ref/resource","type":"ref/prompt","name":"up__open"}`:  "two spellings",
		`{"Type":"ref/resource","type":"ref/prompt","name":"up__open"}`:  "two spellings",
		`{"type":"ref/prompt","name":"up__open","name":"up__open"}`:      "two spellings",
		`{"type":"ref/prompt","name":"up__open","NAME":"secret"}`:        "two spellings",
		`{"type":"ref/prompt","name":"up__open","n\u0061me":"secret"}`:   "two spellings",
		`{"type":"ref/prompt","name":"up__open","URI":"mem://{id}"}`:     "two spellings",
		`{"type":"ref/resource","uri":"mem://{id}","uri":"mem://x"}`:     "two spellings",
		`{"type":"ref/resource"}`:                                        "names no prompt",
		`"ref/prompt"`:                                                   "params.ref.type",
	} {
		m := r.exchange(t.Context(), "completion/complete", `{"ref":`+ref+`,"argument":{"name":"id","value":""}}`)
		if (want == "") != (m.Error == nil) || !strings.Contains(string(m.Error), want) {
			t.Errorf("%s = %s %s, want %q", ref, m.Result, m.Error, want)
		}
	}
	if n := len(r.last("up").sent("completion/complete")); n != 4 {
		t.Errorf("%d calls reach the server, want 4", n)
	}
}

// With unlisted: unknown, a principal reads neither name, instructions nor faults of a server of
// which it sees nothing.
func TestServersAreHidden(t *testing.T) {
	for _, tt := range []struct {
		unlisted string
		want     []string // of the servers
	}{{"unknown", []string{"mine"}}, {"forbidden", []string{"mine", "others"}}} {
		for _, modern := range []bool{false, true} {
			r := newRigWith(t, modern, map[string]fakeUpstream{"mine": echoUpstream("2025-11-25"), "others": echoUpstream("2025-11-25")}, func(c *config.Config) {
				c.Policy = policy.Config{Default: "deny", Unlisted: tt.unlisted, Rules: []policy.Rule{{Name: "some", Allow: []string{"mine__echo"}}}}
			})
			method, params := "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"rig","version":"1"}}`
			if modern {
				method, params = "server/discover", "{"+elicitMeta+"}"
			}
			said := r.ok(method, params)
			for _, key := range []string{"mine", "others"} {
				if strings.Contains(said, "# "+key) != slices.Contains(tt.want, key) {
					t.Errorf("unlisted: %s: %s says %s, want only the instructions of %v", tt.unlisted, method, said, tt.want)
				}
			}
		}
	}
}

// With unlisted: unknown, an unknown tool names no server of which the principal sees nothing.
func TestFaultsOfServersAreHidden(t *testing.T) {
	for unlisted, want := range map[string]bool{"unknown": false, "forbidden": true} {
		r := newRigWith(t, false, map[string]fakeUpstream{"mine": echoUpstream("2025-11-25"), "others": {}}, func(c *config.Config) {
			c.Policy = policy.Config{Default: "deny", Unlisted: unlisted, Rules: []policy.Rule{{Name: "some", Allow: []string{"mine__echo"}}}}
		})
		dial := r.g.servers.Dial
		r.g.servers.Dial = func(ctx context.Context, c upstream.Config) (conn.Conn, error) {
			if c.Name == "others" {
				return nil, errors.New("exec: no such program")
			}
			return dial(ctx, c)
		}
		r.initialize()
		if said := r.tool("nothing", `{}`); !strings.Contains(said, "Unknown tool: nothing") || strings.Contains(said, "upstream others is down") != want {
			t.Errorf("unlisted: %s: an unknown tool says %s", unlisted, said)
		}
	}
}

// A subscription belongs to the server that took it: that one restores it after a restart, and gets
// the end of it.
func TestSubscriptionsBelongToWhoTookThem(t *testing.T) {
	known := func(key string) fakeUpstream {
		return fakeUpstream{version: "2025-11-25", caps: `{"resources":{"subscribe":true}}`, serve: func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
			if c.Method == "resources/list" {
				return result(`{"resources":[]}`)
			}
			if uri, _ := rawjson.GetString(c.Params, "uri"); c.Method == "resources/templates/list" || uri == "mem://"+key {
				return result(`{"resourceTemplates":[]}`)
			}
			return wire.Message{Error: json.RawMessage(`{"code":-32002,"message":"no such resource"}`)}, nil
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, map[string]fakeUpstream{"a": known("a"), "b": known("b")})
		r.initialize()
		r.ok("resources/subscribe", `{"uri":"mem://b"}`)
		asked := map[string]int{"a": len(r.last("a").sent("resources/subscribe")), "b": 1}
		for _, key := range []string{"a", "b"} {
			before := r.last(key)
			before.die()
			time.Sleep(time.Minute)
			synctest.Wait()
			again := 0
			if after := r.last(key); after != before {
				again = len(after.sent("resources/subscribe"))
			}
			if want := map[string]int{"a": 0, "b": 1}[key]; again != want {
				t.Errorf("%s, which was asked %d times, is asked %d times after a restart, want %d", key, asked[key], again, want)
			}
		}
		r.ok("resources/unsubscribe", `{"uri":"mem://b"}`)
		if n := len(r.last("b").sent("resources/unsubscribe")); n != 1 {
			t.Errorf("b gets the end of the subscription %d times, want 1", n)
		}
		if n := len(r.last("a").sent("resources/unsubscribe")); n != 0 {
			t.Errorf("a gets the end of the subscription of b")
		}
		r.close()
	})
}

// A resources/unsubscribe that is refused ends nothing: the subscription is restored after a restart.
func TestRefusedUnsubscribeEndsNothing(t *testing.T) {
	up := fakeUpstream{version: "2025-11-25", caps: `{"resources":{"subscribe":true}}`, serve: func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		switch c.Method {
		case "resources/list":
			return result(`{"resources":[{"name":"x","uri":"mem://x"}]}`)
		case "resources/templates/list":
			return result(`{"resourceTemplates":[]}`)
		}
		return result(`{}`)
	}}
	for name, refuse := range map[string]func(r *rig) string{
		"an unknown branch": func(*rig) string { return `{"uri":"mem://x","_meta":{"io.github.foldgate/branch_id":"br_gone"}}` },
		"the policy": func(r *rig) string {
			cfg := r.g.Start
			cfg.Policy.Default = "deny"
			r.apply(cfg)
			return `{"uri":"mem://x"}`
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, false, map[string]fakeUpstream{"up": up})
			r.initialize()
			r.ok("resources/subscribe", `{"uri":"mem://x"}`)
			if m := r.exchange(t.Context(), "resources/unsubscribe", refuse(r)); m.Error == nil {
				t.Errorf("%s: resources/unsubscribe = %s, want an error", name, m.Result)
			}
			before := r.last("up")
			if n := len(before.sent("resources/unsubscribe")); n != 0 {
				t.Errorf("%s: the server gets the end of the subscription %d times, want 0", name, n)
			}
			before.die()
			time.Sleep(time.Minute)
			synctest.Wait()
			if after := r.last("up"); after == before || len(after.sent("resources/subscribe")) != 1 {
				t.Errorf("%s: the subscription is not restored", name)
			}
			r.close()
		})
	}
}

// The record of a call of an unknown tool names a server, and the policy as the reason, only if that server
// hides the tool.
func TestUnknownToolIsOfTheServerThatHidesIt(t *testing.T) {
	none := ""
	r := newRigWith(t, false, map[string]fakeUpstream{"bare": echoUpstream("2025-11-25"), "b": echoUpstream("2025-11-25"), "b__c": echoUpstream("2025-11-25")}, func(c *config.Config) {
		c.Upstreams["bare"].Prefix = &none
		c.Upstreams["bare"].Tools.Allow = []string{"echo"}
		c.Upstreams["b"].Tools.Deny = []string{"own"}
		c.Upstreams["b__c"].Tools.Deny = []string{"own"}
	})
	r.initialize()
	r.ok("tools/list", `{}`)
	type named struct{ Reason, Server, Tool string }
	var want []named
	for _, tt := range []struct {
		tool string
		want named
	}{
		{"typo", named{trace.ReasonInvalid, "", "typo"}},
		{"b__typo", named{trace.ReasonInvalid, "", "b__typo"}},
		{"own", named{trace.ReasonPolicy, "bare", "own"}},
		{"b__own", named{trace.ReasonPolicy, "b", "own"}},
		{"b__c__own", named{trace.ReasonPolicy, "b__c", "own"}},
	} {
		r.exchange(t.Context(), "tools/call", `{"name":"`+tt.tool+`"}`)
		want = append(want, tt.want)
	}
	var got []named
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{trace.KindResponse + "tools/call"}}) {
		if d := rec.Audit.Decision; d != nil {
			got = append(got, named{d.Reason, rec.Audit.Server, rec.Audit.Tool})
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("recorded %+v, want %+v", got, want)
	}
}
