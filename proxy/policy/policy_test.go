package policy

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
)

var (
	alice = interceptor.Identity{Principal: "alice", Team: "data", Roles: []string{"analyst"}, Scopes: []string{"db:read"}}
	bob   = interceptor.Identity{Principal: "bob", Team: "web"}
)

func policyOf(t testing.TB, c Config) *Policy {
	t.Helper()
	p, faults := Compile(c)
	if len(faults) > 0 {
		t.Fatalf("faults: %v", faults)
	}
	return p
}

func TestDecide(t *testing.T) {
	p := policyOf(t, Config{Default: "deny", Rules: []Rule{
		{Name: "readers", Who: Who{Team: "data"}, Allow: []string{"db__*"}, When: `args.sql.startsWith("SELECT")`},
		{Name: "no-drop", Allow: []string{"db__list"}, Deny: []string{"*__drop*"}},
		{Name: "short", Allow: []string{"db__list_0123abcd", "db__list_x"}},
		{Name: "no-limit", Deny: []string{"db__*"}, When: `has(args.limit) && args.limit > 100`},
		{Name: "web", Who: Who{Principal: "{alice,bob}"}, Allow: []string{"web__*"}, Require: "branch"},
		{Name: "safe", Who: Who{Role: "ana*", Scope: "db:*"}, Allow: []string{"git__*"}, When: `annotations.readOnlyHint`},
		{Name: "docs", Prompts: Globs{Allow: []string{"docs__*"}, Deny: []string{"*secret*"}}, Resources: Globs{Allow: []string{"file:///docs/*"}, Deny: []string{"*/private/*"}}},
	}})
	for _, tt := range []struct {
		r     Request
		allow bool
		rule  string
		says  string
	}{
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1"}`)}, true, "readers", ""},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"DELETE"}`)}, false, "readers", `only if args.sql.startsWith("SELECT")`},
		{Request{Identity: alice, Name: "db__query"}, false, "readers", "no such key: sql"},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"SQL":"SELECT 1"}`)}, false, "readers", `write "sql"`},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","\u017fql":"DROP"}`)}, false, "readers", `write "sql"`},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","x":{"Sql":"DROP"}}`)}, false, "readers", `write "sql"`},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"DROP","sql":"SELECT 1"}`)}, false, "readers", `"sql" twice`},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","x":[{"a":1,"\u0061":2}]}`)}, false, "readers", `"a" twice`},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","PATH":1,"Path":2}`)}, true, "readers", ""},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":7}`)}, false, "readers", "no such overload"},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`[]`)}, false, "readers", "not an object"},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","n":1e999}`)}, false, "readers", "too large"},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","limit":101}`)}, false, "no-limit", "has(args.limit)"},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","limit":1e2}`)}, true, "readers", ""},
		{Request{Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1","LIMIT":101}`)}, false, "no-limit", `write "limit"`},
		{Request{Identity: alice, Name: "db__drop_all", Arguments: []byte(`{"sql":"SELECT 1"}`)}, false, "no-drop", "forbids the tool db__drop_all"},
		{Request{Identity: alice, Name: "db__aaa_0123abcd", Full: "db__aaa_then__drop", Arguments: []byte(`{"sql":"SELECT 1"}`)}, false, "no-drop", ""},
		{Request{Identity: bob, Name: "db__list_0123abcd", Full: "db__list_and_more"}, true, "short", ""},
		{Request{Identity: bob, Name: "db__list_89abcdef", Full: "db__list_and_more"}, false, DefaultRule, ""},
		{Request{Identity: bob, Name: "db__list_x", Full: "db__list_and_x__drop"}, false, "no-drop", ""},
		{Request{Identity: bob, Name: "db__query", Arguments: []byte(`{"sql":"SELECT 1"}`)}, false, DefaultRule, "no rule"},
		{Request{Identity: bob, Name: "db__list"}, true, "no-drop", ""},
		{Request{Identity: bob, Name: "web__fetch"}, false, "web", "branch_create"},
		{Request{Identity: bob, Name: "web__fetch", Branch: "br_1"}, true, "web", ""},
		{Request{Identity: bob, Name: "web__fetch", Listing: true}, true, "web", ""},
		{Request{Identity: alice, Name: "git__log", Annotations: []byte(`{"readOnlyHint":true}`)}, true, "safe", ""},
		{Request{Identity: alice, Name: "git__log", Annotations: []byte(`{"readOnlyHint":"true"}`)}, false, "safe", ""},
		{Request{Identity: alice, Kind: Resource, Name: "postgres://app:" + strings.Repeat("x", 300) + "@db/"}, false, DefaultRule, "the resource … (319 bytes)"}, // no part of a password
		{Request{Identity: alice, Name: "git__log"}, false, "safe", "only if annotations.readOnlyHint"},
		{Request{Identity: alice, Name: "git__log", Unlisted: true}, false, "safe", "try again"},
		{Request{Identity: alice, Name: "git__log", Unlisted: true, Listing: true}, true, "safe", ""},
		{Request{Identity: alice, Name: "git__log", Listing: true}, false, "safe", ""},
		{Request{Identity: bob, Name: "git__log", Annotations: []byte(`{"readOnlyHint":true}`)}, false, DefaultRule, ""},
		{Request{Identity: alice, Name: "db__query", Listing: true}, true, "readers", ""},
		{Request{Identity: alice, Kind: Prompt, Name: "docs__howto"}, true, "docs", ""},
		{Request{Identity: alice, Kind: Prompt, Name: "docs__secrets"}, false, "docs", "forbids the prompt"},
		{Request{Identity: alice, Kind: Prompt, Name: "db__list"}, false, DefaultRule, ""},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/a.md"}, true, "docs", ""},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/../etc/passwd"}, false, DefaultRule, ""},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/%2e%2e/etc/passwd"}, false, DefaultRule, ""},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/%252e%252e/etc/passwd"}, false, "docs", "two ways"},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/%70rivate/x"}, false, "docs", "forbids"},
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs//private/x"}, false, "docs", "forbids"},
		{Request{Identity: alice, Kind: Resource, Name: "FILE:///docs/a.md"}, false, DefaultRule, ""}, // allowed by all spellings, or not at all
		{Request{Identity: alice, Kind: Resource, Name: "file:///docs/{name}", Listing: true}, true, "docs", ""},
		{Request{Identity: alice, Kind: Method, Name: "x/unknown"}, false, DefaultRule, "the method x/unknown"},
	} {
		got := p.Decide(tt.r)
		if got.Allowed != tt.allow || got.Rule != tt.rule || !strings.Contains(got.Message, tt.says) || (got.Code == "") != got.Allowed {
			t.Errorf("%s %s %s %s: %+v, want %v by %s, %q", tt.r.Principal, tt.r.Name, tt.r.Arguments, tt.r.Annotations, got, tt.allow, tt.rule, tt.says)
		}
	}
}

// What a rule forbids is forbidden whatever the order of the rules.
func TestOrderDoesNotMatter(t *testing.T) {
	rules := []Rule{
		{Name: "a", Allow: []string{"**"}},
		{Name: "b", Deny: []string{"x"}, When: `args.v == 1`},
		{Name: "c", Allow: []string{"x"}, Require: "branch", When: `args.v == 2`},
		{Name: "d", Deny: []string{"x"}, When: `args.v == 3`},
	}
	for range 20 {
		rand.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		p := policyOf(t, Config{Default: "deny", Rules: rules})
		for v, want := range map[int]string{0: "", 1: "b", 2: "c", 3: "d"} {
			d := p.Decide(Request{Name: "x", Arguments: fmt.Appendf(nil, `{"v":%d}`, v)})
			if d.Allowed != (want == "") || want != "" && d.Rule != want {
				t.Errorf("%d in %v: %+v, want %q", v, rules, d, want)
			}
		}
		if d := p.Decide(Request{Name: "x"}); d.Allowed || !strings.Contains(d.Message, "no such key") {
			t.Errorf("without the argument: %+v", d)
		}
	}
}

func TestDefaultAllow(t *testing.T) {
	p := policyOf(t, Config{Default: "allow", Rules: []Rule{
		{Name: "select", Deny: []string{"db__*"}, When: `!args.sql.startsWith("SELECT")`},
		{Name: "web", Allow: []string{"web__*"}, Require: "branch"},
	}})
	for call, want := range map[string]bool{
		`db__q {"sql":"SELECT"}`: true, `db__q {"sql":"DROP"}`: false, `db__q {}`: false, `db__q {"Sql":"SELECT"}`: false, `web__x {}`: false, `git__x {}`: true,
	} {
		name, args, _ := strings.Cut(call, " ")
		d := p.Decide(Request{Name: name, Arguments: []byte(args)})
		if d.Allowed != want || d.Warned {
			t.Errorf("%s: %+v", call, d)
		}
		p.warns = true
		warned := p.Decide(Request{Name: name, Arguments: []byte(args)})
		p.warns = false
		if warned.Allowed, warned.Warned = d.Allowed, !warned.Warned; warned.Warned != want {
			t.Errorf("%s, with the action warn: %+v", call, warned)
		}
		if warned.Warned = false; warned != d {
			t.Errorf("%s: %+v, and with the action warn %+v", call, d, warned)
		}
	}
	if p, faults := Compile(Config{Default: "allow"}); p != nil || len(faults) > 0 || !p.Decide(Request{Name: "x"}).Allowed || p.HidesUnlisted() {
		t.Errorf("an empty policy is %v, %v", p, faults)
	}
}

func TestFaults(t *testing.T) {
	type wanted struct{ Key, Msg string }
	for _, tt := range []struct {
		c    Config
		want []wanted
	}{
		{Config{Default: "maybe", Unlisted: "hidden", Action: "fold"}, []wanted{{"default", "not one of"}, {"unlisted", "not one of"}, {"action", "not one of"}}},
		{Config{Rules: []Rule{{Deny: []string{"x"}}, {Name: "default", Deny: []string{"x"}}, {Name: "a b", Deny: []string{"x"}}}},
			[]wanted{{"rules[0].name", "1 to 64"}, {"rules[1].name", "1 to 64"}, {"rules[2].name", "1 to 64"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}}, {Name: "a", Deny: []string{"y"}}}}, []wanted{{"rules[1].name", "also the name of rules[0]"}}},
		{Config{Rules: []Rule{{Name: "a"}}}, []wanted{{"rules[0]", "names nothing"}}},
		{Config{Rules: []Rule{{Name: "a", Allow: []string{"x"}}}}, []wanted{{"rules[0].allow", "no effect"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"["}, Who: Who{Team: "{"}}}}, []wanted{{"rules[0].deny", "not a valid glob"}, {"rules[0].who.team", "not a valid glob"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, Require: "branch"}}}, []wanted{{"rules[0].require", "needs allow"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, Require: "session"}}}, []wanted{{"rules[0].require", "is not branch"}, {"rules[0].require", "needs allow"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, When: "args.sql."}}}, []wanted{{"rules[0].when", "1:10: Syntax error"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, When: "arg.sql == 1"}}}, []wanted{{"rules[0].when", "undeclared reference to 'arg'"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, When: "team == 1"}}}, []wanted{{"rules[0].when", "no matching overload"}}},
		{Config{Rules: []Rule{{Name: "a", Deny: []string{"x"}, When: "team"}}}, []wanted{{"rules[0].when", "must be true or false"}}},
	} {
		p, got := Compile(tt.c)
		if len(got) != len(tt.want) || p != nil {
			t.Errorf("%+v: %v, want %v", tt.c, got, tt.want)
			continue
		}
		for i, w := range tt.want {
			if got[i].Key != w.Key || !strings.Contains(got[i].Msg, w.Msg) || strings.Contains(got[i].Msg, "\n") {
				t.Errorf("fault %v, want %v", got[i], w)
			}
		}
	}
}

// A condition that takes too long denies, and does not hold the call up.
func TestCost(t *testing.T) {
	p := policyOf(t, Config{Default: "deny", Rules: []Rule{{Name: "slow", Allow: []string{"**"}, When: `args.l.all(a, args.l.all(b, args.l.all(c, a + b + c >= 0)))`}}})
	list := json.RawMessage(`{"l":[` + strings.TrimSuffix(strings.Repeat("1,", 2000), ",") + `]}`)
	began := time.Now()
	d := p.Decide(Request{Name: "x", Arguments: list})
	if took := time.Since(began); d.Allowed || !strings.Contains(d.Message, "cost limit") || took > 5*time.Second {
		t.Errorf("%+v after %s", d, took)
	}
	for name, args := range map[string]string{
		"many bytes": `{"l":[],"x":"` + strings.Repeat("x", maxArguments) + `"}`,
		"deep":       `{"l":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
	} {
		if d := p.Decide(Request{Name: "x", Arguments: []byte(args)}); d.Allowed || d.Rule != "slow" {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

func TestFold(t *testing.T) {
	for _, pair := range [][2]string{{"sql", "SQL"}, {"sql", "ſql"}, {"key", "\u212aey"}, {"é", "É"}, {"Σ", "ς"}} {
		if fold(pair[0]) != fold(pair[1]) || !strings.EqualFold(pair[0], pair[1]) {
			t.Errorf("%q and %q differ", pair[0], pair[1])
		}
	}
	if fold("a_b") == fold("ab") {
		t.Error("a_b is ab")
	}
}

// random makes a policy, identities and names from a small vocabulary, so that rules meet.
type random struct{ *rand.Rand }

func (r random) pick(from ...string) string { return from[r.IntN(len(from))] }

func (r random) some(from ...string) (out []string) {
	for range r.IntN(3) {
		out = append(out, r.pick(from...))
	}
	return out
}

var tools = []string{"a__x", "a__y", "b__x", "b__y/z", "c"}

func (r random) policy(conditions ...string) Config {
	c := Config{Default: r.pick("allow", "deny")}
	globs := []string{"**", "a__*", "*x", "b__y*", "c", "{a,b}__x", "?__x"}
	for i := range 1 + r.IntN(5) {
		rule := Rule{Name: fmt.Sprint("r", i), Deny: r.some(globs...), Who: Who{
			Principal: r.pick("", "", "p1", "p*"), Team: r.pick("", "", "t1"), Role: r.pick("", "", "r1"), Scope: r.pick("", "", "s?")}}
		if len(conditions) > 0 {
			rule.When = r.pick(conditions...)
			rule.Require = r.pick("", "branch")
		}
		if c.Default == "deny" || rule.Require != "" {
			rule.Allow = r.some(globs...)
		}
		if len(rule.Allow) == 0 {
			rule.Require = ""
		}
		if len(rule.Allow)+len(rule.Deny) == 0 {
			rule.Deny = globs[:1]
		}
		c.Rules = append(c.Rules, rule)
	}
	return c
}

func (r random) identity() interceptor.Identity {
	return interceptor.Identity{Principal: r.pick("p1", "p2", "q"), Team: r.pick("", "t1", "t2"), Roles: r.some("r1", "r2"), Scopes: r.some("s1", "s22")}
}

// Without conditions on a call, what is listed can be called, and nothing else.
func TestListedIsCallable(t *testing.T) {
	r := random{rand.New(rand.NewPCG(1, 2))}
	seen := map[bool]int{}
	for range 3000 {
		p := policyOf(t, r.policy())
		id := r.identity()
		for _, tool := range tools {
			listed, called := p.Decide(Request{Identity: id, Name: tool, Listing: true}), p.Decide(Request{Identity: id, Name: tool, Arguments: []byte(`{"v":1}`)})
			if diff := cmp.Diff(listed, called); diff != "" {
				t.Fatalf("%v %s: listed and called differ:\n%s", id, tool, diff)
			}
			seen[listed.Allowed]++
		}
	}
	if seen[true] < 1000 || seen[false] < 1000 {
		t.Errorf("decisions: %v", seen)
	}
}

// With conditions, what is not listed can't be called with any arguments, in a branch or outside.
func FuzzListedIsCallable(f *testing.F) {
	for i := range uint64(50) {
		f.Add(i, `{"v":1}`)
		f.Add(i, `{"V":2}`)
	}
	f.Fuzz(func(t *testing.T, seed uint64, arguments string) {
		r := random{rand.New(rand.NewPCG(seed, 0))}
		p := policyOf(t, r.policy("", `args.v == 1`, `!has(args.v) || args.v < 2`, `team == "t1"`, `"r1" in roles && args.v == 2`, `annotations.readOnlyHint`, `branch != ""`, `tool.startsWith("a") == (server == "a")`))
		id := r.identity()
		for _, tool := range tools {
			server, _, _ := strings.Cut(tool, "__")
			listed := p.Decide(Request{Identity: id, Name: tool, Server: server, Listing: true})
			for _, args := range []string{arguments, `{"v":1}`, `{"v":2}`, `{}`} {
				for _, branch := range []string{"", "br_1"} {
					called := p.Decide(Request{Identity: id, Name: tool, Server: server, Arguments: []byte(args), Branch: branch})
					if called.Allowed && !listed.Allowed {
						t.Fatalf("%s %s in %q is allowed by %s, and not listed because of %s", tool, args, branch, called.Rule, listed.Rule)
					}
				}
			}
		}
	})
}

// Whatever the arguments are, a call passes only if every reading of them that a server may have is
// allowed.
func FuzzArguments(f *testing.F) {
	for _, seed := range []string{`{"v":"ok"}`, `{"v":"ok","V":"bad"}`, `{"v":"bad","v":"ok"}`, `{"\u0076":"ok"}`, `{"v":"ok"}x`, `null`, `{"v":{"v":"ok"}}`, `{"v":"ok","\ud800":1}`, `{"v":"ok","v\u0000":1}`} {
		f.Add(seed)
	}
	p := policyOf(f, Config{Default: "deny", Rules: []Rule{{Name: "ok", Allow: []string{"**"}, When: `args.v == "ok"`}}})
	f.Fuzz(func(t *testing.T, arguments string) {
		if d := p.Decide(Request{Name: "x", Arguments: []byte(arguments)}); !d.Allowed {
			return
		}
		var loose struct{ V any }
		var exact map[string]any
		if err := json.Unmarshal([]byte(arguments), &loose); err != nil || loose.V != "ok" {
			t.Errorf("%q is allowed, and a server in Go reads %v, %v", arguments, loose.V, err)
		}
		if err := json.Unmarshal([]byte(arguments), &exact); err != nil || exact["v"] != "ok" {
			t.Errorf("%q is allowed, and others read %v, %v", arguments, exact["v"], err)
		}
	})
}

// aliases are other spellings of file:///secret/key and https://docs.x/secret, which the libraries of
// servers read as those.
var aliases = []string{
	"file:/secret/key", "file:secret/key", "file://localhost/secret/key", "FILE:///secret/key", "file:////secret/key", "file:///pub/../secret/key", "file:///pub/%2e%2E/secret/key",
	"file:///secret/key ", " file:///secret/key", "file:///secret/key\t", "fi\nle:///secret/key", "file:///sec\tret/key", "\ufefffile:///secret/key", "file:///secret/key\u00a0", "file:///secret/key ?", "file:///secret/key #x",
	"file:///secret/key?x", "file:///secret/key#x", "file:///secret/key?", "file:///pub/x?/../../secret/key", "file:///pub/x#/../../secret/key", "file:///pub/x?/%2e%2e/../secret/key", "file:///s%65cret/key", "file:///s%2565cret/key", "file:///pub\\..\\secret/key",
	"https:docs.x/secret", "https:/docs.x/secret", "https:///docs.x/secret", "HTTPS://docs.x/secret", "https://Docs.X/secret", "https://docs.x:443/secret", "https://docs.x:/secret", "https://docs.x:0443/secret", "https://docs.x./secret",
	"https://@docs.x/secret", "https://a@docs.x/secret", "https://a:b@docs.x/secret", "https://docs.x//secret", "https://docs.x/a/../secret", "https://docs.x/%73ecret", "https://docs\u3002x/secret", "https://docs.x/secret#x", " https://docs.x/secret", "https://docs.x/secret ",
	"http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://0177.0.0.1/", "http://127.0.0.1:80/", "http://[0:0::1]/", "ws://docs.x:80/secret", "wss:docs.x/secret", "wss://docs.x:443/secret", "ftp://docs.x:21/secret",
}

// What a rule forbids can be read in no other spelling, and what it does not allow neither.
func TestSpellingsOfURIs(t *testing.T) {
	secrets := []string{"file:///secret/key", "http://127.0.0.1/", "http://[::1]/", "{https,ws,wss,ftp}://docs.x/secret"}
	for name, c := range map[string]Config{
		"deny":  {Default: "allow", Rules: []Rule{{Name: "r", Resources: Globs{Deny: secrets}}}},
		"allow": {Default: "deny", Rules: []Rule{{Name: "r", Resources: Globs{Allow: []string{"**"}, Deny: secrets}}}},
		"part":  {Default: "deny", Rules: []Rule{{Name: "r", Resources: Globs{Allow: []string{"file:///pub/*", "https://docs.x/a/*"}}}}},
	} {
		p := policyOf(t, c)
		for _, uri := range aliases {
			if d := p.Decide(Request{Kind: Resource, Name: uri}); d.Allowed {
				t.Errorf("%s: %q is allowed", name, uri)
			}
		}
	}
	p := policyOf(t, Config{Default: "deny", Rules: []Rule{{Name: "r", Resources: Globs{Allow: []string{"**"}, Deny: append(secrets, "file:///My Docs/*")}}}})
	for uri, want := range map[string]bool{
		"file:///pub/key": true, "file:///pub/a%20b": true, "file:///pub/a b": true, "https://docs.x/": true, "https://docs.x:8443/secret": true, "https://docs.x/a?q=1#f": true, "http://10.0.0.1/x": true, "http://[::2]:81/x": true,
		"note://MyNote": true, "urn:isbn:1": true, "db://user@host:5432/t": true, "mem:///": true, "file:///": true, "file:///My Docs/x": false, "file:///My%20Docs/x": false,
	} {
		if d := p.Decide(Request{Kind: Resource, Name: uri}); d.Allowed != want {
			t.Errorf("%q: %+v, want %v", uri, d, want)
		}
	}
}

// A glob that would miss URIs is a fault, and others are not.
func TestGlobsOnURIs(t *testing.T) {
	for glob, good := range map[string]bool{
		"file:///secret/*": true, "file:///My Docs/*": true, "file:///100%": true, "file://*": true, "https://*/x": true, "https://docs.x/*": true, "*://docs.x/*": true, "{http,https}://docs.x/{a,b}/*": true, "*secret*": true, "*/private/*": true, "**": true,
		"note://{My,Your}Note": true, "note://MyNote": true, "urn:isbn:*": true, "https://docs.x:8443/*": true, "[!f]*": true, "{file,x}:///a/*": true, "mem:///x*": true, "file:///Docs/[ab]?": true,
		"file:///My%20Docs/*": false, "*%2e%2e*": false, "https://Docs.x/*": false, "HTTPS://docs.x/*": false, "*://Docs.x/*": false, "{http,https}://Docs.x/*": false, "URN:isbn:*": false, "NOTE://x": false, "https://docs.x:443/*": false, "https://*:443/*": false,
		"file:/secret/*": false, "file://localhost/*": false, "https:docs.x/*": false, "file:///a/../b": false, "file:///a//b": false, "https://user@docs.x/*": false,
	} {
		for _, g := range []Globs{{Deny: []string{glob}}, {Allow: []string{glob}}} {
			_, faults := Compile(Config{Default: "deny", Rules: []Rule{{Name: "r", Resources: g}}})
			if good != (len(faults) == 0) {
				t.Errorf("%q: %v", glob, faults)
			}
		}
	}
}

func FuzzURI(f *testing.F) {
	for _, seed := range append(aliases, "file:///a/b", "file:///a/../b", "FILE://Host/%61", "a:b%2fc", "x://h?q=%61", "file:///a/%252e") {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		plain, bare, err := normalize(uri)
		if err != nil {
			return
		}
		if strings.Contains(plain, "/../") || strings.Contains(plain, "%2e") && !strings.Contains(plain, "@") || !strings.HasPrefix(plain, bare) {
			t.Errorf("%q is normalized to %q, %q", uri, plain, bare)
		}
		scheme, rest, _ := strings.Cut(plain, ":")
		if _, known := defaultPorts[scheme]; !known {
			return
		}
		host := strings.TrimPrefix(rest, "//")
		if i := strings.IndexAny(host, "/?#"); i >= 0 {
			host = host[:i]
		}
		if !strings.HasPrefix(rest, "//") || (host == "") != (scheme == "file") || strings.ContainsAny(host, "@ ") || host != strings.ToLower(host) {
			t.Errorf("%q is normalized to %q, of the host %q", uri, plain, host)
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	rules := []Rule{{Name: "select", Allow: []string{"db__*"}, When: `args.sql.startsWith("SELECT")`}}
	for i := range 20 {
		rules = append(rules, Rule{Name: fmt.Sprint("r", i), Who: Who{Team: fmt.Sprint("t", i)}, Allow: []string{"git__*", "web__*"}, Deny: []string{"*__delete_*"}})
	}
	p := policyOf(b, Config{Default: "deny", Rules: rules})
	for name, r := range map[string]Request{
		"globs":     {Identity: alice, Name: "git__log"},
		"condition": {Identity: alice, Name: "db__query", Arguments: []byte(`{"sql":"SELECT * FROM t WHERE id = 1","limit":10}`)},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p.Decide(r)
			}
		})
	}
}

// Missing names the scope with which a refused request would be allowed, and none if other things are
// missing too.
func TestMissing(t *testing.T) {
	p, faults := Compile(Config{Default: "deny", Rules: []Rule{
		{Name: "a", Who: Who{Role: "staff", Scope: "read"}, Allow: []string{"db__*"}, Deny: []string{"db__drop"}},
		{Name: "b", Who: Who{Scope: "x*"}, Allow: []string{"files__*"}},
		{Name: "c", Who: Who{Scope: "write"}, Allow: []string{"db__put"}, When: "args.n < 5"},
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for _, tt := range []struct {
		role, tool, args, want string
	}{
		{"staff", "db__get", `{}`, "read"}, {"guest", "db__get", `{}`, ""}, {"staff", "db__drop", `{}`, ""}, {"guest", "files__read", `{}`, ""},
		{"guest", "db__put", `{"n":1}`, "write"}, {"guest", "db__put", `{"n":9}`, ""}, {"guest", "other", `{}`, ""},
	} {
		q := Request{Identity: interceptor.Identity{Principal: "p", Roles: []string{tt.role}}, Kind: Tool, Name: tt.tool, Arguments: []byte(tt.args)}
		if got := p.Missing(q); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

// Missing decodes the arguments once for all scopes that it tries.
func TestMissingDecodesOnce(t *testing.T) {
	c := Config{Default: "deny"}
	for i := range maxMissing {
		c.Rules = append(c.Rules, Rule{Name: fmt.Sprint("r", i), Who: Who{Scope: fmt.Sprint("s", i)}, Allow: []string{"db__put"}, When: "args.n < 5"})
	}
	p, faults := Compile(c)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	arguments := []byte(`{"n":9,"list":["a"` + strings.Repeat(`,"a"`, 1<<15) + `]}`)
	allocations := func(scopes ...string) float64 {
		q := Request{Identity: interceptor.Identity{Scopes: scopes}, Kind: Tool, Name: "db__put", Arguments: arguments}
		return testing.AllocsPerRun(1, func() {
			if scopes != nil {
				p.Decide(q)
			} else if got := p.Missing(q); got != "" {
				t.Errorf("%q is said to be enough", got)
			}
		})
	}
	if all, one := allocations(), allocations("s1"); all > 2*one {
		t.Errorf("%v allocations to try %d scopes, %v to decide once", all, maxMissing, one)
	}
}
