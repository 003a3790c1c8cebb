package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPrincipalFaults(t *testing.T) {
	const long = "0123456789abcdef-SECRET" // long enough
	sum := sha256.Sum256([]byte(long))
	digest := hex.EncodeToString(sum[:])
	for _, tt := range []struct {
		name, text string
		want       []wanted
	}{
		{"token", "principals:\n  alice: {token: " + long + "}\n", nil},
		{"digest", "principals:\n  alice:\n    token_sha256: " + digest + "\n", nil},
		{"exposed", "listen: 0.0.0.0:80\nprincipals:\n  a: {token: " + long + "}\n", nil},
		{"every address", "listen: :80\nprincipals:\n  a: {token: " + long + "}\n", nil},
		{"nobody", "listen: :80\nprincipals: {}\n", []wanted{{"listen", 1, "without principals"}}},
		{"short", "principals:\n  a: {token: SECRET-tooshort}\n", []wanted{{"principals.a.token", 2, "fewer than 16"}}},
		{"huge", "principals:\n  a: {token: " + strings.Repeat("x", 4097) + "}\n", []wanted{{"principals.a.token", 2, "more than 4096"}}},
		{"space", "principals:\n  a: {token: \"SECRET with spaces in it\"}\n", []wanted{{"principals.a.token", 2, "characters that a bearer token can't have"}}},
		{"empty", "principals:\n  a:\n", []wanted{{"principals.a", 2, "has no token"}}},
		{"empty token", "principals:\n  a: {token: \"\"}\n", []wanted{{"principals.a", 2, "has no token"}}},
		{"both", "principals:\n  a: {token: " + long + ", token_sha256: " + digest + "}\n", []wanted{{"principals.a", 2, "has both"}}},
		{"no digest", "principals:\n  a: {token_sha256: " + digest[2:] + "}\n", []wanted{{"principals.a.token_sha256", 2, "not 64 hexadecimal"}}},
		{"team, roles and scopes", "principals:\n  a: {token: " + long + ", team: data, roles: [analyst], scopes: [\"db:read\", \"https://x/y\"]}\n", nil},
		{"team", "principals:\n  a: {token: " + long + ", team: \"d/b\"}\n", []wanted{{"principals.a.team", 2, "1 to 64 letters"}}},
		{"role", "principals:\n  a: {token: " + long + ", roles: [\"two words\"]}\n", []wanted{{"principals.a.roles[0]", 2, "without spaces"}}},
		{"scope", "principals:\n  a: {token: " + long + ", scopes: [x, \"\"]}\n", []wanted{{"principals.a.scopes[1]", 2, "1 to 64 printable"}}},
		{"many roles", "principals:\n  a: {token: " + long + ", roles: [" + strings.Repeat("x, ", 65) + "]}\n", []wanted{{"principals.a.roles", 2, "65 entries"}}},
		{"team without token", "principals:\n  a: {team: data}\n", []wanted{{"principals.a", 2, "has no token"}}},
		{"shared", "principals:\n  a: {token: " + long + "}\n  b: {token_sha256: " + digest + "}\n", []wanted{{"principals.b", 3, "same token as a"}}},
		{"several tokens", "principals:\n  a:\n    token: " + long + "\n    tokens: [{token: " + long + "-next, expires: 2027-01-02T03:04:05Z}]\n", nil},
		{"only the list", "principals:\n  a:\n    tokens: [{token_sha256: " + digest + "}]\n", nil},
		{"faults of tokens", "principals:\n  a:\n    token: " + long + "\n    tokens:\n      - {token: SECRET-short}\n      - {expires: 2027-01-02T03:04:05Z}\n      - {token: " + long + "}\n", []wanted{
			{"principals.a.tokens[0].token", 5, "fewer than 16"}, {"principals.a.tokens[1]", 6, "has no token"}, {"principals.a.tokens[2]", 7, "same token as a"}}},
		{"no time", "principals:\n  a:\n    tokens: [{token: " + long + ", expires: tomorrow}]\n", []wanted{{"principals.a.tokens[0].expires", 3, ""}}},
		{"issuer without public_url", "auth:\n  issuers:\n    corp: {url: https://login.example.com}\n", []wanted{{"public_url", 0, "is missing: auth.issuers needs it, such as https://"}}},
		{"faults of issuers", "public_url: http://gate.example.com\nauth:\n  issuers:\n    corp: {url: http://login.example.com, algorithms: [none], principal: email}\n", []wanted{
			{"auth.issuers.corp.url", 4, "must be https"}, {"auth.issuers.corp.algorithms", 4, "is not one of RS256"}, {"auth.issuers.corp.principal", 4, "begins with $"}, {"public_url", 1, "http is for loopback"}}},
		{"exposed with an issuer", "listen: :80\npublic_url: https://gate.example.com\nauth:\n  issuers:\n    corp: {url: https://login.example.com}\n", nil},
		{"path in public_url", "public_url: https://gate.example.com/x\n", []wanted{{"public_url", 1, "is not the origin"}}},
		{"name", "principals:\n  a/b: {token: " + long + "}\n", []wanted{{"principals.a/b", 2, "the name must be"}}},
		{"unset", "principals:\n  a: {token: \"${NOPE}\"}\n", []wanted{{"principals.a.token", 2, "NOPE is not set"}}},
		{"not a mapping", "principals:\n  a: " + long + "\n", []wanted{{"principals.a", 2, ""}}},
		{"a list", "principals:\n  a: {token: [" + long + "]}\n", []wanted{{"", 2, ""}}},
		{"unclosed", "principals:\n  a: {token: \"" + long + "}\n", []wanted{{"syntax", 2, ""}}},
		{"half of tls", "tls: {cert: a.pem}\n", []wanted{{"tls", 1, "both cert and key"}}},
		{"host with port", "allowed_hosts: [\"mcp.example.com:443\"]\n", []wanted{{"allowed_hosts[0]", 1, "without scheme and port"}}},
		{"any host", "allowed_hosts: [\"*\"]\n", []wanted{{"allowed_hosts[0]", 1, "give each in full"}}},
		{"any origin", "allowed_origins: [\"*\"]\n", []wanted{{"allowed_origins[0]", 1, "name each as scheme://host"}}},
		{"origin by its host", "allowed_origins: [app.example.com, \"app.example.com:443\", \"null\"]\n", []wanted{{"allowed_origins[0]", 1, "scheme://host"}, {"allowed_origins[1]", 1, ""}, {"allowed_origins[2]", 1, ""}}},
		{"origin with a path", "allowed_origins: [\"https://app.example.com/mcp\"]\n", []wanted{{"allowed_origins[0]", 1, "scheme://host"}}},
		{"origins", "allowed_origins: [\"https://app.example.com\", \"http://localhost:6274/\", \"vscode-webview://abc\"]\n", nil},
		{"host as URL", "allowed_hosts: [\"https://mcp.example.com\"]\n", []wanted{{"allowed_hosts[0]", 1, "without scheme and port"}}},
		{"hosts", "allowed_hosts: [mcp.example.com, \"::1\", 10.0.0.7]\n", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := parseFaults(t, tt.text)
			if len(got) != len(tt.want) {
				t.Fatalf("faults = %v, want %v", got, tt.want)
			}
			for i, w := range tt.want {
				if g := got[i]; (w.Key != "" && g.Key != w.Key) || g.Line != w.Line || !strings.Contains(g.Msg, w.Msg) {
					t.Errorf("fault %d = %+v, want %+v", i, g, w)
				}
			}
			if strings.Contains(fmt.Sprint(got), "SECRET") {
				t.Errorf("faults quote the token: %v", got)
			}
		})
	}
}

// A token in the configuration can't be printed by accident.
func TestSecretIsNotPrinted(t *testing.T) {
	c := Config{Principals: map[string]*Principal{"a": {Token: "0123456789abcdef"}}}
	asJSON, err := json.Marshal(c.Principals)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{
		fmt.Sprintf("%v", *c.Principals["a"]), fmt.Sprintf("%+v", *c.Principals["a"]), fmt.Sprintf("%#v", *c.Principals["a"]), c.Principals["a"].Token.String(), string(asJSON),
	} {
		if strings.Contains(out, "0123") {
			t.Errorf("printed: %s", out)
		}
	}
	if diff := cmp.Diff([]string{"0123456789abcdef"}, c.Secrets()); diff != "" {
		t.Errorf("tokens() (-want +got):\n%s", diff)
	}
}

// Rules, roles and revocations that fit no principal are told; with issuers nobody knows the principals.
func TestUnmatchedPrincipals(t *testing.T) {
	const principals = "listen: 127.0.0.1:1\nprincipals: {alice: {token: 0123456789abcdef, team: data, roles: [ops]}}\n"
	for text, want := range map[string]string{
		principals + "policy: {rules: [{name: a, who: {team: data}, deny: [x]}, {name: b, who: {team: dta}, deny: [x]}]}\n": "policy.rules[1].who",
		principals + "auth: {auditor: opps, operator: ops}\n":                                                               "auth.auditor",
		principals + "auth: {revoked: [alice, alicia]}\n":                                                                   "auth.revoked",
		"policy: {rules: [{name: a, who: {principal: local}, deny: [x]}, {name: b, who: {role: r}, deny: [x]}]}\n":          "policy.rules[1].who",
		principals + "public_url: https://g.example\nauth: {auditor: x, issuers: {corp: {url: 'https://i.example'}}}\n":     "",
	} {
		c, faults := parseText("", []byte(text), nil)
		if len(faults) > 0 {
			t.Fatal(faults)
		}
		got := ""
		for _, f := range c.UnmatchedPrincipals() {
			got += f.Key
		}
		if got != want {
			t.Errorf("%s\n%q, want %q", text, got, want)
		}
	}
}

// What a server gets to log in with is a secret. What it gets besides is not, nor what could be a word or a path.
func TestSecretsOfUpstreams(t *testing.T) {
	c := Config{Upstreams: map[string]*Upstream{
		"a": {
			Command: []string{"run", "--token", "copper-lamp-31-window", "-e", "DB_PASSWORD=Winter2025", "--mode=read-only-replica-2", "--header", "Authorization: Bearer maple+tunnel-58=", "--header=Authorization: Bearer aspen-meadow-12-rain", "-H", "X-Api-Key:cedar-lantern-33-moss", "postgres://u:Kx7mQ2vL@h/d", "--api-key=brass-7-kettle-of-ours"},
			Env: map[string]string{
				"API_TOKEN": "grey-otter-runs-42-fast", "DATABASE_URL": "postgres://app:qL9!vZ1p@h/d", "SSH_KEY": "/home/ann/.ssh/id_ed25519", "AUTH_MODE": "oauth2-proxy-for-all",
				"TOKEN_TTL": "3600", "AUTH_HEADER": "Bearer birch-harbor-64-gold", "MAX_TOKEN": "1234567890123456", "DB_PASS": "postgres", "KEYCLOAK_URL": "https://sso.example.com/auth", "CACHE_KEY": "catalog-v2-of-today",
				"PIN_SECRET": "pässword-1234-abcd", "TLS_KEY": "certs/server-2024.key.pem", "KMS_KEY": "arn:aws:kms:eu-west-1:111122223333:key/ab12", "APP_KEY": "C:\\keys\\app-2024.pem", "NAME": "grey-otter-walks-43-slow",
			},
		},
		"b": {URL: "https://svc:Zq8vKp2L@h/mcp?api_key=amber-stone-19-fields&v=2024-11-05-preview", Headers: map[string]string{"Authorization": "Bearer walnut-river-77-plate", "X-Api-Key": "hazel-bridge-15-clouds", "Accept": "text/event-stream-2"}},
	}}
	want := []string{
		"Kx7mQ2vL", "Winter2025", "Zq8vKp2L", "amber-stone-19-fields", "aspen-meadow-12-rain", "birch-harbor-64-gold", "brass-7-kettle-of-ours", "cedar-lantern-33-moss",
		"copper-lamp-31-window", "grey-otter-runs-42-fast", "hazel-bridge-15-clouds", "maple+tunnel-58=", "qL9!vZ1p", "walnut-river-77-plate",
	}
	if diff := cmp.Diff(want, c.Secrets()); diff != "" {
		t.Errorf("Secrets: %s", diff)
	}
}
