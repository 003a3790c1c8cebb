package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/proxy/policy"
)

func noEnv(string) (string, bool) { return "", false }

func parseFaults(t *testing.T, text string) []Fault {
	t.Helper()
	_, faults := parseText("", []byte(text), func(k string) (string, bool) {
		return "value of " + k, k == "SET"
	})
	return faults
}

func TestExampleShowsEveryKey(t *testing.T) {
	data, err := os.ReadFile("../../config.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, faults := parseText("", data, noEnv)
	if len(faults) > 0 {
		t.Fatalf("config.example.yaml: %v", faults)
	}
	// section returns the lines of a key of the first level, with or without a comment sign.
	section := func(key string) string {
		starts := regexp.MustCompile(`(?m)^(# )?[a-z_]+:`).FindAllIndex(data, -1)
		text := ""
		for i, at := range starts {
			end := len(data)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			if strings.TrimPrefix(string(data[at[0]:at[1]]), "# ") == key+":" {
				text += string(data[at[0]:end])
			}
		}
		return text
	}
	var walk func(v reflect.Type, text, path string)
	walk = func(v reflect.Type, text, path string) {
		for i := range v.NumField() {
			f := v.Field(i)
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if key == "" || key == "-" {
				continue
			}
			within := text
			if path == "" {
				within = section(key)
			}
			if !regexp.MustCompile(`(^|[\s{,])` + key + `:`).MatchString(within) {
				t.Errorf("config.example.yaml does not show %s%s", path, key)
			}
			ft := f.Type
			for ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Map || ft.Kind() == reflect.Slice {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct {
				walk(ft, within, path+key+".")
			}
		}
	}
	walk(reflect.TypeFor[Config](), "", "")

	// What the example shows beside the comments are the defaults.
	d := Default()
	d.Listen, d.AllowedOrigins, d.AllowedHosts, d.Principals = "127.0.0.1:8787", []string{}, []string{}, map[string]*Principal{}
	c.Upstreams, d.Upstreams, c.order, c.lines = nil, nil, nil, nil
	if diff := cmp.Diff(d, c, cmp.AllowUnexported(Config{})); diff != "" {
		t.Errorf("config.example.yaml is not the defaults (-default +example):\n%s", diff)
	}
}

// wanted is a fault that a test expects. Msg is a part of the message.
type wanted struct {
	Key  string
	Line int
	Msg  string
}

func TestConfigFaults(t *testing.T) {
	tests := []struct {
		name, text string
		want       []wanted
	}{
		{"login without an issuer", "upstreams:\n  a:\n    url: https://h/\n    auth: {client_credentials: {client_id: x, client_secret: y}}\n", []wanted{{"upstreams.a.auth.issuer", 4, "is missing: name the authorization server that knows the client and its secret"}}},
		{"login in plain text", "upstreams:\n  a:\n    url: http://h/\n    auth: {client_credentials: {client_id: x, client_secret: y}, issuer: https://i}\n", []wanted{{"upstreams.a.auth", 4, "needs a url with https, or on a loopback address: tokens must not be readable on the network"}}},
		{"login of no kind", "upstreams:\n  a:\n    url: http://127.0.0.1/\n    auth: {scopes: [a b]}\n", []wanted{
			{"upstreams.a.auth", 4, "needs one of client_credentials, authorization_code, token_exchange and enterprise"},
			{"upstreams.a.auth.scopes[0]", 4, "\"a b\" must be 1 to 64 printable ASCII characters without spaces, quotes and backslashes"},
		}},
		{"two logins", "upstreams:\n  a:\n    url: https://h/\n    headers: {authorization: x}\n    auth: {client_credentials: {client_id: x}, issuer: http://i}\n", []wanted{
			{"upstreams.a.auth.client_credentials", 5, "needs client_id, and client_secret or private_key_file"},
			{"upstreams.a.auth.issuer", 5, "\"http://i\" is not an https URL, such as https://login.example.com"},
			{"upstreams.a.auth", 5, "and headers.authorization are two logins: remove one of them"},
		}},
		{"exchange at a stranger's", "upstreams:\n  a:\n    url: https://h/\n    auth: {token_exchange: {client_id: x, client_secret: y}, issuer: https://i}\n", []wanted{{"upstreams.a.auth.issuer", 4, "\"https://i\" is not the url of one of auth.issuers"}}},
		{"company's login without its parts", "upstreams:\n  a:\n    url: https://h/\n    share: everyone\n    auth: {enterprise: {per: principal, client: {client_id: x, client_secret: y, private_key_file: z}}, issuer: https://i}\n", []wanted{
			{"upstreams.a.auth.enterprise.client", 5, "has a client_secret and a private_key_file: remove one of them"},
			{"upstreams.a.auth.enterprise.provider.issuer", 5, "\"\" is not an https URL"}, {"upstreams.a.auth.enterprise.provider", 5, "needs the client_id"},
			{"upstreams.a.auth", 5, "share: everyone contradict"}}},
		{"limit without a window", "budgets:\n  limits:\n    - {name: team, per: team, tokens: 20M}\n", []wanted{{"budgets.limits[0].window", 3, "limit team: is missing: use for example 1h"}}},
		{"limit of nobody", "principals: {a: {token: 0123456789abcdef, team: x}}\nbudgets:\n  limits:\n    - {name: l, per: all, calls: 5, window: 1h, match: {principal: b, team: y, server: z}}\n", []wanted{
			{"budgets.limits[0].match.server", 4, "limit l: there is no upstream \"z\""}, {"budgets.limits[0].match.principal", 4, "there is no principal \"b\""}, {"budgets.limits[0].match.team", 4, "no principal has the team \"y\""}}},
		{"limit that can't be read", "budgets:\n  limits:\n    - name: l\n      per: all\n      tokens: 20X\n      window: 1 fortnight\n", []wanted{{"budgets.limits[0].tokens", 5, "is not an amount"}, {"budgets.limits[0].window", 6, "1 fortnight"}}},
		{"negative limit", "budgets: {limits: [{name: l, per: all, tokens: -5, window: 1d}]}\n", []wanted{{"budgets.limits[0].tokens", 1, "is not an amount"}}},
		{"too many limits", "budgets: {limits: [" + manyLimits(257) + "]}\n", []wanted{{"budgets.limits", 1, "there are 257: use at most 256"}}},
		{"a model's key in plain text", "llm: {api: openai, model: m, key: 0123456789abcdef, url: \"http://h/v1\"}\n", []wanted{{"llm.url", 1, "has a key and no TLS"}}},
		{"a model's key on a loopback address", "llm: {api: openai, model: m, key: 0123456789abcdef, url: \"http://127.0.0.1:1/v1?x=1\"}\n", nil},
		{"memory", "folding: {memory: {tool: a__t, on_injection: x, items: y, text: \"$.t\", confidence: z}}\n", []wanted{{"folding.memory.on_injection", 1, "use log, flag or block"}, {"folding.memory.confidence", 1, ""}, {"folding.memory.items", 1, ""}}},
		{"unknown choice of limits", "budgets: {on_error: ignore, wait_ms: 0}\n", []wanted{{"budgets.on_error", 1, "is not one of refuse, allow"}, {"budgets.wait_ms", 1, "not positive"}}},
		{"store", "store: {url: \"http://user:hunter2@host\"}\n", []wanted{{"store", 1, "the URL is wrong: use redis://"}}},
		{"store's prefix", "store: {url: \"redis://host\", prefix: \"a b\"}\n", []wanted{{"store", 1, "prefix \"a b\""}}},
		{"unknown key", "folding:\n  max_depht: 3\n", []wanted{{"folding.max_depht", 2, "no such key; did you mean max_depth? Otherwise use one of default_budget, "}}},
		{"unknown key of an upstream", "upstreams:\n  a:\n    builtn: files\n    rots: [.]\n", []wanted{{"upstreams.a.builtn", 3, "builtin, roots, "}, {"upstreams.a.rots", 4, "no such key"}}},
		{"text for a list", "upstreams:\n  a: {command: npx foo}\n", []wanted{{"upstreams.a.command", 2, "must be a list, such as [npx, -y, server]"}}},
		{"list for a text", "upstreams:\n  a: {url: [http://h/]}\n", []wanted{{"upstreams.a.url", 2, "must be one text"}}},
		{"mapping for a list", "upstreams:\n  a: {command: {a: b}}\n", []wanted{{"upstreams.a.command", 2, "must be a list, and is a mapping"}}},
		{"list for a mapping", "upstreams:\n  - {command: [x]}\n", []wanted{{"upstreams", 2, "must hold keys"}}},
		{"text for keys", "trace: off\n", []wanted{{"trace", 1, "must hold keys: payload, on_error, "}}},
		{"number for a time", "folding: {retention: 24}\n", []wanted{{"folding.retention", 1, "must be a time with its unit, such as 90m or 24h"}}},
		{"days", "folding:\n  retention: 1d\n", []wanted{{"folding.retention", 2, "such as 90m or 24h; there is no unit for days"}}},
		{"days in a list", "workflows:\n  - name: w\n    ttl: 7d\n", []wanted{{"workflows[0].ttl", 3, "no unit for days"}}},
		{"text for a number", "budget: {scale: much}\n", []wanted{{"budget.scale", 1, "must be a number"}}},
		{"text for yes or no", "folding: {require_session_id: maybe}\n", []wanted{{"folding.require_session_id", 1, "must be true or false"}}},
		{"too large", "folding: {max_depth: 99999999999999999999}\n", []wanted{{"folding.max_depth", 1, ""}}},
		{"unknown top level key", "lisen: x\n", []wanted{{"lisen", 1, "no such key; did you mean listen? Otherwise use one of listen, "}}},
		{"duplicate key", "state_dir: a\nstate_dir: b\n", []wanted{{"state_dir", 2, "already defined"}}},
		{"unset variable", "upstreams:\n  a:\n    url: http://x/${NOPE}\n", []wanted{{"upstreams.a.url", 3, "NOPE is not set"}}},
		{"unset variable in a block", "upstreams:\n  a:\n    url: >-\n      http://x/${NOPE}\n", []wanted{{"upstreams.a.url", 0, "NOPE is not set"}}},
		{"open variable", "upstreams:\n  a: {url: http://x/, headers: {A: \"${NOPE SECRET\"}}\n", []wanted{{"upstreams.a.headers.A", 2, "has ${ without the }"}}},
		{"variable with a default", "upstreams:\n  a: {url: \"http://x/${NOPE:-SECRET}\"}\n", []wanted{{"upstreams.a.url", 2, "there are no defaults here; set the variable and write ${NOPE}"}}},
		{"quoted keys", "upstreams:\n  a: {command: [x]}\n  \"b\":\n    \"url\": ftp://x\n", []wanted{{"upstreams.b.url", 4, "not an http"}}},
		{"negative limits", "upstreams:\n  a: {command: [x], max_connections: -1, idle_seconds: -1}\n", []wanted{{"upstreams.a.max_connections", 2, "0 is the default"}, {"upstreams.a.idle_seconds", 2, "0 is never"}}},
		{"limits of the built-in server", "upstreams:\n  a: {builtin: files, roots: [.], idle_seconds: 0}\n", []wanted{{"upstreams.a", 2, "belong to command and url"}}},
		{"shared by nobody", "upstreams:\n  a: {command: [x], share: nobody}\n", []wanted{{"upstreams.a.share", 2, "not one of session, principal, everyone"}}},
		{"two prefixes", "upstreams:\n  a: {command: [x], prefix: p}\n  b: {command: [y], prefix: p}\n", []wanted{{"upstreams.b.prefix", 3, `also the prefix of upstream "a"`}}},
		{"two kinds", "upstreams:\n  a: {command: [x], url: http://h/}\n", []wanted{{"upstreams.a", 2, "exactly one of"}}},
		{"no kind", "upstreams:\n  a: {prefix: p}\n", []wanted{{"upstreams.a", 2, "exactly one of"}}},
		{"empty upstream", "upstreams:\n  a:\n", []wanted{{"upstreams.a", 2, "is empty"}}},
		{"bad url", "upstreams:\n  a: {url: ftp://x}\n", []wanted{{"upstreams.a.url", 2, "not an http"}}},
		{"bad header", "upstreams:\n  a:\n    url: http://h/\n    headers:\n      X Y: v\n      Z: \"SECRET\\n\"\n", []wanted{{"upstreams.a.headers.X Y", 5, "not the name"}, {"upstreams.a.headers.Z", 6, "its value has a line break"}}},
		{"not loopback", "listen: 0.0.0.0:80\n", []wanted{{"listen", 1, "not a loopback address"}}},
		{"replicas on the port of listen", "listen: 0.0.0.0:8787\nprincipals: {a: {token: 0123456789abcdef}}\nstore: {url: 'redis://h'}\nreplicas: {listen: '127.0.0.1:8787', key: 0123456789abcdef0123456789abcdef}\n", []wanted{{"replicas.listen", 4, "also the address of listen"}}},
		{"replicas on no port", "listen: 127.0.0.1:8787\nstore: {url: 'redis://h'}\nreplicas: {listen: '127.0.0.1:99999', key: 0123456789abcdef0123456789abcdef}\n", []wanted{{"replicas.listen", 3, "no valid port"}}},
		{"console on the port of listen", "listen: 127.0.0.1:8787\nprincipals: {a: {token: 0123456789abcdef, roles: [x]}}\nauth: {auditor: x}\nconsole: {listen: '127.0.0.1:8787'}\n", []wanted{{"console.listen", 4, "also the address of listen"}}},
		{"ports that are free", "listen: 127.0.0.1:0\nstore: {url: 'redis://h'}\nreplicas: {listen: '127.0.0.1:0', key: 0123456789abcdef0123456789abcdef}\n", nil},
		{"unknown parameter of a store", "store: {url: 'redis://h?mater_set=x'}\n", []wanted{{"store", 1, `its query has "mater_set"; there are addr, ca, cert, key, master_set, `}}},
		{"no port", "listen: localhost\n", []wanted{{"listen", 1, "not host:port, such as 127.0.0.1:8787"}}},
		{"bad choice", "trace: {payload: full}\n", []wanted{{"trace.payload", 1, `"full" is not one of`}}},
		{"bad type", "folding:\n  max_depth: many\n", []wanted{{"folding.max_depth", 2, "must be a whole number"}}},
		{"impossible value", "folding:\n  max_depth: 9\n", []wanted{{"folding.max_depth", 2, "9 is not between"}}},
		{"unknown encoding", "budget: {encoding: o300k}\n", []wanted{{"budget.encoding", 1, "o200k_base"}}},
		{"malformed", "upstreams: [\n", []wanted{{"", 0, ""}}},
		{"UTF-16", "\xff\xfel\x00i\x00", []wanted{{"syntax", 0, "is not UTF-8"}}},
		{"tab as a key", "\tlisten: x\n", []wanted{{"syntax", 1, "indent with spaces"}}},
		{"text in a text", "listen: a: b\n", []wanted{{"syntax", 1, "not allowed in this context: correct the indentation"}}},
		{"reserved character", "upstreams:\n  a: {command: [@x/y]}\n", []wanted{{"syntax", 2, "into quotes"}}},
		{"alias by mistake", "principals:\n  a: {token: *SECRET}\n", []wanted{{"principals.a.token", 2, "begins with * into quotes"}}},
		{"empty key", "'': x\nbudget: {'': x, scale: y}\n", []wanted{{"", 1, "no such key"}, {"budget.", 2, "no such key"}, {"budget.scale", 2, "must be a number"}}},
		{"key that is no text", "trace: {true: x, payload: none}\n", []wanted{{"trace.true", 1, "no such key"}}},
		{"unset variable and another fault", "listen: ${NOPE}\nbudget: {scale: x}\n", []wanted{{"listen", 1, "NOPE is not set"}, {"budget.scale", 2, "must be a number"}}},
		{"tagged boolean", "folding: {inject_memories: !!bool SECRET}\n", []wanted{{"folding.inject_memories", 1, "must be true or false"}}},
		{"two faults at once", "trace: {payload: full, sync: now}\n", []wanted{{"trace.payload", 1, ""}, {"trace.sync", 1, ""}}},
		{"bad glob", "upstreams:\n  a: {command: [x], tools: {deny: [\"[\"]}}\n", []wanted{{"upstreams.a.tools.deny", 2, "not a valid glob: use *"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := parseFaults(t, tt.text)
			if len(got) != len(tt.want) {
				t.Fatalf("faults = %v, want %d", got, len(tt.want))
			}
			for i, w := range tt.want {
				g := got[i]
				if (w.Key != "" && g.Key != w.Key) || (w.Line != 0 && g.Line != w.Line) || !strings.Contains(g.Msg, w.Msg) {
					t.Errorf("fault %d = %+v, want %+v", i, g, w)
				}
			}
			if strings.Contains(fmt.Sprint(got), "SECRET") {
				t.Errorf("faults quote a value that may be secret: %v", got)
			}
		})
	}
}

// What is right in a file with faults is there, so that doctor can look at it.
func TestFaultsLeaveTheRest(t *testing.T) {
	c, faults := parseText("", []byte("listen: ${NOPE}\nstate_dir: s\nbudget: {scale: x, encoding: cl100k_base}\n"), noEnv)
	if len(faults) != 2 || c.StateDir != "s" || c.Budget.Encoding != "cl100k_base" || c.Budget.Scale != 1 {
		t.Errorf("%v, %q, %+v", faults, c.StateDir, c.Budget)
	}
}

func manyLimits(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, "{name: l%d, per: all, tokens: 5, window: 1d},", i)
	}
	return all.String()
}

func TestConfigExpandsAndKeepsOrder(t *testing.T) {
	c, faults := parseText("", []byte("upstreams:\n  zeta: {url: \"http://h/${SET}\"}\n  alpha: {command: [sh, -c, \"echo $$HOME\"]}\n"),
		func(k string) (string, bool) { return "v", k == "SET" })
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if diff := cmp.Diff([]string{"zeta", "alpha"}, c.UpstreamKeys()); diff != "" {
		t.Errorf("UpstreamKeys() (-want +got):\n%s", diff)
	}
	if got := c.Upstreams["zeta"].URL; got != "http://h/v" {
		t.Errorf("url = %q, want the variable's value", got)
	}
	if got := c.Upstreams["alpha"].Command[2]; got != "echo $HOME" {
		t.Errorf("command = %q, want $$ as one dollar sign", got)
	}
	c, faults = parseText("", []byte("upstreams:\n  a:\n    url: http://h/\n    headers:\n      A: >-\n        Bearer\n        ${SET}\n      B: |-\n        $${SET}\n"),
		func(k string) (string, bool) { return "v", k == "SET" })
	if diff := cmp.Diff(map[string]string{"A": "Bearer v", "B": "${SET}"}, c.Upstreams["a"].Headers); diff != "" || len(faults) > 0 {
		t.Errorf("variables in blocks: %v (-want +got):\n%s", faults, diff)
	}
}

// What the configuration names and is not there is told with its line.
func TestLoadLooksForFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "foldgate.yaml")
	if err := os.WriteFile(file, []byte("upstreams:\n  a: {command: [no-such-program]}\n  f: {builtin: files, roots: [none]}\nscrub:\n  rules: none.toml\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(file)
	for _, want := range []string{`line 2: upstreams.a.command: "no-such-program" can't be run`, "line 3: upstreams.f.roots[0]: ", fmt.Sprintf("line 5: scrub.rules: %q: there is no such file", filepath.Join(dir, "none.toml"))} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want %s", err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte("listen: 127.0.0.1:1\nupstreams:\n  a: {command: [x]}\n"))
	f.Add([]byte("folding: {max_depth: !!str 3}\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, faults := parseText("", data, noEnv) // must not panic
		if len(faults) == 0 && len(c.Validate()) != 0 {
			t.Errorf("parse(%q) found nothing, Validate does", data)
		}
	})
}

// The order of upstreams decides which of two servers owns a name, in every style of YAML.
func TestUpstreamOrder(t *testing.T) {
	for name, text := range map[string]string{
		"block":         "upstreams:\n  z: {url: http://h/}\n  a: {url: http://h/}\n  m: {url: http://h/}\n",
		"double quotes": "upstreams:\n  \"z\": {url: http://h/}\n  \"a\": {url: http://h/}\n  \"m\": {url: http://h/}\n",
		"single quotes": "upstreams:\n  'z': {url: http://h/}\n  a: {url: http://h/}\n  'm': {url: http://h/}\n",
		"quoted parent": "\"upstreams\":\n  z: {url: http://h/}\n  a: {url: http://h/}\n  m: {url: http://h/}\n",
		"flow":          "upstreams: {z: {url: http://h/}, a: {url: http://h/}, m: {url: http://h/}}\n",
		"JSON":          `{"upstreams": {"z": {"url": "http://h/"}, "a": {"url": "http://h/"}, "m": {"url": "http://h/"}}}`,
		"JSON, escaped": `{"upstreams": {"\u007a": {"url": "http://h/"}, "\x61": {"url": "http://h/"}, "m": {"url": "http://h/"}}}`,
		"JSON in lines": "{\n  \"upstreams\": {\n    \"z\": {\"url\": \"http://h/\"},\n    \"a\": {\"url\": \"http://h/\"},\n    \"m\": {\"url\": \"http://h/\"}\n  }\n}\n",
	} {
		c, faults := parseText("", []byte(text), noEnv)
		if got := c.UpstreamKeys(); len(faults) > 0 || !slices.Equal(got, []string{"z", "a", "m"}) {
			t.Errorf("%s: %v %v, want z, a, m", name, got, faults)
		}
	}
}

func parseText(dir string, data []byte, env func(string) (string, bool)) (Config, []Fault) {
	return parse(dir, data, env, false)
}

// Commands that use no servers need no variables for them, and no files or programs.
func TestFindState(t *testing.T) {
	for text, want := range map[string]string{ // part of the error; "" is none
		"state_dir: s\nenv_file: missing.env\nupstreams: {a: {url: \"${NO_URL}\"}, b: {command: [no-such-program], env: {K: \"${NO_KEY}\"}}}\n":  "",
		"state_dir: s\nlisten: 127.0.0.1:1\nprincipals: {alice: {token: \"${NO_TOKEN}\"}}\nllm: {api: openai, url: \"${NO_LLM}\", model: m}\n":   "",
		"state_dir: s\nscrub: {timeout_ms: 5}\nstore: {url: \"${NO_STORE}\"}\nbudgets: {limits: [{name: x, tokens: 5, per: all, window: 1h}]}\n": "",
		"state_dir: s\nupstreams: {notes: {url: \"${NO_URL}\", auth: {authorization_code: {}}}}\n":                                               "",
		"state_dir: s\npublic_url: https://gate.example.com\nauth: {issuers: {corp: {url: \"${NO_ISSUER}\"}}}\n":                                 "",
		"state_dir: s\nfolding: {max_budget: \"${NO_BUDGET}\"}\n":                                                                                "",
		"state_dir: \"${PATH}\"\nenv_file: missing.env\n":                                                                                        "missing.env",
		"x: &d \"${NO_DIR}\"\nstate_dir: *d\n":                                                                                                   "state_dir",
		"state_dir: \"${NO_DIR}\"\n":                                                                                                             "NO_DIR",
		"state_dir: s\nupstreams: {a: {url: \"${NO_URL}\"":                                                                                       "",
		"state_dri: s\nupstreams: {a: {url: \"${NO_URL}\"}}\n":                                                                                   "state_dri",
		"state_dir: s\ntrace: {retain_days: no}\nupstreams: {a: {url: \"${NO_URL}\"}}\n":                                                         "retain_days",
	} {
		file := filepath.Join(t.TempDir(), "foldgate.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := FindState(file)
		switch {
		case strings.HasSuffix(text, `"`): // no YAML
			if err == nil {
				t.Errorf("%s: no error", text)
			}
		case want == "" && (err != nil || c.StatePath() != filepath.Join(filepath.Dir(file), "s")):
			t.Errorf("%s: state in %s, %v", text, c.StatePath(), err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want a fault about %s", text, err, want)
		}
		if _, err := Load(file); err == nil {
			t.Errorf("%s: Load has no fault", text)
		}
	}
}

// A policy test asks for the server with the longest prefix that fits.
func TestPolicyTestFindsTheServer(t *testing.T) {
	none := ""
	c := Config{Upstreams: map[string]*Upstream{"a": {}, "a__b": {}, "bare": {Prefix: &none}}, Policy: policy.Config{
		Rules: []policy.Rule{{Name: "a__b", Deny: []string{"**"}, When: `server == "a__b"`}, {Name: "a", Deny: []string{"**"}, When: `server == "a"`}},
	}}
	file := filepath.Join(t.TempDir(), "tests.yaml")
	text := "- {tool: a__b__read, expect: deny, rule: a__b}\n- {tool: a__read, expect: deny, rule: a}\n- {tool: read, expect: allow}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	results, err := c.TestPolicy(file, func(string) bool { return false })
	if err != nil || len(results) != 3 {
		t.Fatalf("%+v, err %v", results, err)
	}
	for _, r := range results {
		if !r.OK {
			t.Errorf("%s: want %s, got %+v", r.Test, r.Want, r.Decision)
		}
	}
}

// Each key of a TLS and each file of secrets is private.
func TestPrivate(t *testing.T) {
	c, faults := parseText("", []byte("state_dir: s\nenv_file: \"\"\ntls: {cert: c, key: a.key}\nconsole: {listen: 127.0.0.1:1, tls: {cert: c, key: b.key}}\nlogins: {key_file: c.key}\n"+
		"upstreams:\n  cc: {url: \"https://h/\", auth: {client_credentials: {client_id: c, private_key_file: d.key}}}\n"+
		"  te: {url: \"https://h/\", auth: {token_exchange: {client_id: c, private_key_file: e.key}}}\n"+
		"  en: {url: \"https://h/\", auth: {enterprise: {client: {client_id: c, private_key_file: f.key}, provider: {issuer: \"https://i/\", client_id: c}}}}\n"), noEnv)
	for _, f := range faults {
		t.Log(f) // the files are not there
	}
	c.EnvFile = "g.env"
	got := c.Private()
	for _, want := range []string{"s", "s/logins", "a.key", "b.key", "c.key", "d.key", "e.key", "f.key", "g.env"} {
		if !slices.Contains(got, c.Path(filepath.FromSlash(want))) {
			t.Errorf("%s is not private: %q", want, got)
		}
	}
}

// The entries of a mapping replace those that it merges, from an alias or from a mapping at that place.
func TestMergedMappings(t *testing.T) {
	c, faults := parseText("", []byte(`upstreams:
  a: &a {command: [cat], timeout_seconds: 5}
  b: {timeout_seconds: 7, <<: *a}
  c: {<<: {command: [cat]}}
  d: {<<: &d {command: [cat]}, timeout_seconds: 7}
  e: *d
`), noEnv)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	for key, want := range map[string]int{"a": 5, "b": 7, "c": 0, "d": 7, "e": 0} {
		if u := c.Upstreams[key]; u == nil || !slices.Equal(u.Command, []string{"cat"}) || u.TimeoutSeconds != want {
			t.Errorf("%s: %+v", key, u)
		}
	}
}
