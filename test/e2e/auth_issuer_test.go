//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/issuer"
	"github.com/foldgate/foldgate/test/mcpclient"
)

const publicURL = "https://gate.example.com"

// issuers is the configuration of issuers by their names.
func issuers(all map[string]*issuer.Issuer) string {
	text := "public_url: " + publicURL + "\nauth:\n  scopes: [\"db:read\"]\n  issuers:\n"
	for name, is := range all {
		text += fmt.Sprintf("    %s: {url: %q, team: $.department, roles: \"$.groups[*]\"}\n", name, is.URL)
	}
	return text
}

// tokenFor returns a token of a subject for the gateway.
func tokenFor(is *issuer.Issuer, subject string, more issuer.Claims) string {
	return is.Sign(is.Claims(subject, publicURL+"/mcp", more), nil)
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

// host returns a started host that sends a token.
func (g *gateway) host(t *testing.T, at string, era mcpclient.Era, token string) *mcpclient.Client {
	t.Helper()
	c := mcpclient.HTTP(at, era, "Authorization", "Bearer "+token)
	startHost(t, testContext(t), c)
	g.closes(c)
	return c
}

// A host with the token of an issuer is the principal that the token names, in the policy and in the
// trace. Principals of issuers and of the configuration stand side by side.
func TestTokenOfAnIssuer(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			is := issuer.New(t)
			g := newGateway(t, principals()+issuers(map[string]*issuer.Issuer{"corp": is})+
				"policy:\n  default: deny\n  rules:\n    - {name: analysts, who: {team: data, role: analyst, scope: \"db:*\"}, allow: [\"fake__*\"]}\n"+fakeConfig(recordFile(t), ""))
			at := g.http()
			claims := issuer.Claims{"department": "data", "groups": []string{"analyst", "staff"}, "scope": "openid db:read"}
			token := tokenFor(is, "ann", claims)
			ann := g.host(t, at, era, token)
			if m := tool(t, ann, ctx, "fake__echo", `{"text":"hello"}`); !strings.Contains(said(t, m), "hello") {
				t.Errorf("ann's call: %s", m.Result)
			}
			ben := g.host(t, at, era, tokenFor(is, "ben", issuer.Claims{"department": "data", "groups": "staff", "scope": "db:read"}))
			if m := tool(t, ben, ctx, "fake__echo", `{"text":"hello"}`); !strings.Contains(said(t, m), "policy") {
				t.Errorf("ben's call: %s, want the policy's refusal", m.Result)
			}
			names := func(c *mcpclient.Client) string { return string(call(t, c, ctx, "tools/list", `{}`).Result) }
			if !strings.Contains(names(ann), "fake__echo") || strings.Contains(names(ben), "fake__echo") {
				t.Error("the lists do not follow the token's roles")
			}
			alice := g.as(t, at, era, "alice")
			if m := tool(t, alice, ctx, "fake__echo", `{"text":"hello"}`); !strings.Contains(said(t, m), "policy") {
				t.Errorf("alice's call: %s, want the policy's refusal", m.Result)
			}
			g.stop()
			n := 0
			for _, r := range traceAs[struct {
				Audit struct{ Principal, Team string }
			}](g, "--kind", "mcp/request:tools/call") {
				if n++; !slices.Contains([]string{"corp:ann data", "corp:ben data", "alice "}, r.Audit.Principal+" "+r.Audit.Team) {
					t.Errorf("record %+v", r)
				}
			}
			if n != 3 {
				t.Errorf("%d calls in the trace, want 3", n)
			}
			g.keepsSecret(token, nil)
			g.keepsSecret(strings.Split(token, ".")[2], nil)
		})
	}
}

// Each attack is refused, says what to do, and is in the trace.
func TestAttacksOnLogins(t *testing.T) {
	t.Parallel()
	is, other := issuer.New(t), issuer.New(t)
	g := newGateway(t, issuers(map[string]*issuer.Issuer{"corp": is, "other": other})+fakeConfig(recordFile(t), ""))
	at := g.http()
	ann := g.host(t, at, mcpclient.Legacy, tokenFor(is, "ann", nil))
	ping := `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	now := time.Now().Unix()
	want := map[string]int{}
	for name, attack := range map[string]struct{ token, rule string }{
		"other audience": {is.Sign(is.Claims("ann", "https://other.example.com/mcp", nil), nil), "token_audience"},
		"none":           {is.Sign(is.Claims("ann", publicURL, nil), issuer.Claims{"alg": "none"}), "token_algorithm"},
		"HMAC":           {is.Sign(is.Claims("ann", publicURL, nil), issuer.Claims{"alg": "HS256"}), "token_algorithm"},
		"unknown key":    {is.Sign(is.Claims("ann", publicURL, nil), issuer.Claims{"kid": "x"}), "token_key"},
		"expired":        {tokenFor(is, "ann", issuer.Claims{"exp": now - 3600}), "token_expired"},
		"not yet valid":  {tokenFor(is, "ann", issuer.Claims{"nbf": now + 3600}), "token_not_yet_valid"},
		"mix-up":         {other.Sign(is.Claims("ann", publicURL, nil), issuer.Claims{"kid": "first"}), "token_signature"},
		"unknown issuer": {tokenFor(issuer.New(t), "ann", nil), "token_issuer"},
		"no token":       {"", "principals"},
	} {
		h := bearer(attack.token)
		if attack.token == "" {
			h = http.Header{}
		}
		h.Set("Mcp-Session-Id", ann.Session())
		status, header, body := answered(t, http.DefaultClient, "POST", at, ping, h)
		challenge := header.Get("WWW-Authenticate")
		if status != 401 || !strings.HasPrefix(body, `{"jsonrpc":"2.0","id":null,"error"`) || strings.Contains(challenge, `error="invalid_token"`) != (attack.token != "") ||
			!strings.HasSuffix(challenge, `scope="db:read", resource_metadata="https://gate.example.com/.well-known/oauth-protected-resource/mcp"`) {
			t.Errorf("%s: %d %s, %s", name, status, body, challenge)
		}
		want[attack.rule]++
	}
	// The same subject of another issuer, and another subject, do not get into ann's session.
	for _, token := range []string{tokenFor(other, "ann", nil), tokenFor(is, "ben", nil)} {
		h := bearer(token)
		h.Set("Mcp-Session-Id", ann.Session())
		if status, _, body := answered(t, http.DefaultClient, "POST", at, ping, h); status != 404 {
			t.Errorf("on another principal's session: %d %s", status, body)
		}
	}
	// A newer token of the same subject does.
	h := bearer(tokenFor(is, "ann", issuer.Claims{"scope": "more", "jti": "2"}))
	h.Set("Mcp-Session-Id", ann.Session())
	if status, _, body := answered(t, http.DefaultClient, "POST", at, ping, h); status != 200 {
		t.Errorf("with a newer token: %d %s", status, body)
	}
	g.stop()
	got := map[string]int{}
	for _, r := range traceAs[audited](g, "--kind", "mcp/reject:login") {
		got[r.Audit.Decision.Rule]++
	}
	for rule, n := range want {
		if got[rule] != n {
			t.Errorf("%d records of %s, want %d (%v)", got[rule], rule, n, got)
		}
	}
	if records := traceAs[audited](g, "--kind", "mcp/reject:message"); len(records) != 2 {
		t.Errorf("%d records of foreign sessions, want 2", len(records))
	}
}

// Keys that rotate lose no request of many hosts. Then a thousand tokens that name unknown keys make
// one fetch in thirty seconds.
func TestUnknownKeysAndRotation(t *testing.T) {
	t.Parallel()
	is := issuer.New(t)
	g := newGateway(t, issuers(map[string]*issuer.Issuer{"corp": is})+fakeConfig(recordFile(t), ""))
	at := g.http()
	for round := range 3 {
		if round > 0 {
			is.Rotate(t, fmt.Sprint("key-", round))
		}
		token := tokenFor(is, "ann", nil)
		var hosts sync.WaitGroup
		for range 16 {
			hosts.Go(func() {
				if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(token)); status != 200 {
					t.Errorf("round %d: %d %s", round, status, body)
				}
			})
		}
		hosts.Wait()
	}
	fetched, begin := is.Fetches(), time.Now()
	for i := range 1000 {
		token := is.Sign(issuer.Claims{"iss": is.URL}, issuer.Claims{"alg": "ES256", "kid": fmt.Sprint("unknown-", i)})
		if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(token)); status != 401 {
			t.Fatalf("%d %s", status, body)
		}
	}
	if n, most := is.Fetches()-fetched, 1+int(time.Since(begin)/(30*time.Second)); n < 1 || n > most {
		t.Errorf("%d fetches in %s, want at most %d", n, time.Since(begin), most)
	}
	token := tokenFor(is, "ann", nil)
	if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(token)); status != 200 {
		t.Errorf("a valid token after them: %d %s", status, body)
	}
}

// The metadata names the issuers, by the configured URL whatever Host says. A host needs no token for
// it.
func TestResourceMetadata(t *testing.T) {
	t.Parallel()
	is := issuer.New(t)
	g := newGateway(t, issuers(map[string]*issuer.Issuer{"corp": is})+"allowed_hosts: [evil.example.com]\n"+fakeConfig(recordFile(t), ""))
	base := strings.TrimSuffix(g.http(), "/mcp")
	for path, resource := range map[string]string{"": "", "/mcp": "/mcp", "/b/br_1/mcp": "/b/br_1/mcp"} {
		status, header, body := answered(t, http.DefaultClient, "GET", base+"/.well-known/oauth-protected-resource"+path, "", http.Header{"Host": {"evil.example.com"}})
		var m struct {
			Resource string   `json:"resource"`
			Servers  []string `json:"authorization_servers"`
		}
		if err := json.Unmarshal([]byte(body), &m); err != nil || status != 200 || m.Resource != publicURL+resource || !slices.Equal(m.Servers, []string{is.URL}) {
			t.Errorf("metadata of %q: %d %s", path, status, body)
		}
		if header.Get("Access-Control-Allow-Origin") != "*" {
			t.Error("a browser can't read the metadata")
		}
	}
	for _, path := range []string{"/x", "/mcp/", "/b//mcp", "/"} {
		if status, _, body := answered(t, http.DefaultClient, "GET", base+"/.well-known/oauth-protected-resource"+path, "", nil); status != 404 {
			t.Errorf("metadata of %q: %d %s", path, status, body)
		}
	}
	if g := newGateway(t, principals()+fakeConfig(recordFile(t), "")); true {
		base := strings.TrimSuffix(g.http(), "/mcp")
		if status, _, body := answered(t, http.DefaultClient, "GET", base+"/.well-known/oauth-protected-resource", "", nil); status != 404 {
			t.Errorf("metadata without an issuer: %d %s", status, body)
		}
	}
}

// A branch keeps the claims of its creation: a call in it must be allowed to them and to the token of
// the call. A branch below it keeps both. Claims outlive a restart.
func TestBranchKeepsItsClaims(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			is := issuer.New(t)
			g := newGateway(t, issuers(map[string]*issuer.Issuer{"corp": is})+
				"policy:\n  default: deny\n  rules:\n    - {name: writers, who: {role: writer}, allow: [fake__echo]}\n    - {name: readers, who: {role: reader}, allow: [fake__raw]}\n"+fakeConfig(recordFile(t), ""))
			at := g.http()
			as := func(groups ...string) *mcpclient.Client {
				return g.host(t, at, era, tokenFor(is, "ann", issuer.Claims{"groups": groups, "department": "data"}))
			}
			writer, reader, both := as("writer"), as("reader"), as("writer", "reader")
			by := map[string]string{}
			for name, c := range map[string]*mcpclient.Client{"writer": writer, "reader": reader, "both": both} {
				by[name] = create(t, c, ctx, map[string]any{}).BranchID
			}
			by["both below writer"] = create(t, both, ctx, map[string]any{"parent_branch_id": by["writer"]}).BranchID
			by["writer below both"] = create(t, writer, ctx, map[string]any{"parent_branch_id": by["both"]}).BranchID
			echoes := func(c *mcpclient.Client, branch string) bool {
				m := tool(t, c, ctx, "fake__echo", jsonText(map[string]any{"text": "hello", "branch_id": branch}))
				text := said(t, m)
				if strings.Contains(text, "hello") == strings.Contains(text, "policy") {
					t.Errorf("in %s: %s", branch, m.Result)
				}
				return strings.Contains(text, "hello")
			}
			check := func() {
				for branch, creator := range map[string]bool{"writer": true, "reader": false, "both": true, "both below writer": true, "writer below both": true} {
					for name, c := range map[string]*mcpclient.Client{"writer": writer, "both": both} {
						if echoes(c, by[branch]) != creator {
							t.Errorf("a call of %s in the branch of %s is allowed: %t, want %t", name, branch, !creator, creator)
						}
					}
					if echoes(reader, by[branch]) {
						t.Errorf("a call of reader in the branch of %s is allowed", branch)
					}
				}
			}
			check()
			below := create(t, both, ctx, map[string]any{"parent_branch_id": by["reader"]}).BranchID
			if echoes(both, below) {
				t.Error("a branch below another one frees a call of the claims of that")
			}
			// Another subject, or the same of another issuer, has no such branch.
			ben := g.host(t, at, era, tokenFor(is, "ben", issuer.Claims{"groups": []string{"writer"}}))
			if m := tool(t, ben, ctx, "fake__echo", jsonText(map[string]any{"text": "hello", "branch_id": by["writer"]})); !strings.Contains(said(t, m), "no branch") {
				t.Errorf("ben in ann's branch: %s", m.Result)
			}
			g.stop()
			for _, r := range traceAs[audited](g, "--kind", "context/push") {
				if r.Audit.Principal != "corp:ann" || r.Audit.Team != "data" {
					t.Errorf("record of a branch: %+v", r.Audit)
				}
			}
		})
	}
}

// A call that lacks a scope is answered with 403 and the scopes to log in for. What no scope would
// allow, and what the policy hides, is not.
func TestStepUp(t *testing.T) {
	t.Parallel()
	is := issuer.New(t)
	rules := "  default: deny\n  rules:\n    - {name: writers, who: {role: staff, scope: \"db:write\"}, allow: [fake__echo]}\n    - {name: admins, who: {role: admin, scope: \"db:admin\"}, allow: [fake__raw]}\n"
	for name, policy := range map[string]string{"forbidden": rules, "unknown": "  unlisted: unknown\n" + rules} {
		g := newGateway(t, principals()+issuers(map[string]*issuer.Issuer{"corp": is})+"policy:\n"+policy+fakeConfig(recordFile(t), ""))
		at := g.http()
		claims := issuer.Claims{"groups": []string{"staff"}, "scope": "openid db:read we\"ird"}
		token := tokenFor(is, "ann", claims)
		modern := func(token, tool string) (int, string, string) {
			h := bearer(token)
			h.Set("Mcp-Method", "tools/call")
			h.Set("Mcp-Name", tool)
			h.Set("Mcp-Protocol-Version", "2026-07-28")
			status, header, body := answered(t, http.DefaultClient, "POST", at, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":{"text":"hello"},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, tool), h)
			return status, header.Get("WWW-Authenticate"), body
		}
		legacy := func(token, tool string) (int, string, string) {
			_, header, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(token))
			h := bearer(token)
			h.Set("Mcp-Session-Id", header.Get("Mcp-Session-Id"))
			answered(t, http.DefaultClient, "POST", at, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, h)
			status, header, body := answered(t, http.DefaultClient, "POST", at, fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":%q,"arguments":{"text":"hello"}}}`, tool), h)
			return status, header.Get("WWW-Authenticate"), body
		}
		want := `Bearer realm="foldgate", error="insufficient_scope", error_description="the policy asks for more scopes", scope="openid db:read db:write", resource_metadata="https://gate.example.com/.well-known/oauth-protected-resource/mcp"`
		for era, send := range map[string]func(string, string) (int, string, string){"legacy": legacy, "modern": modern} {
			status, challenge, body := send(token, "fake__echo")
			if name == "unknown" {
				if status != 200 || challenge != "" {
					t.Errorf("%s, hidden: %d %s %s", era, status, challenge, body)
				}
				continue
			}
			if status != 403 || challenge != want || !strings.Contains(body, `"isError":true`) {
				t.Errorf("%s: %d %s\n%s, want %s", era, status, body, challenge, want)
			}
			if status, challenge, body := send(token, "fake__raw"); status != 200 || challenge != "" || !strings.Contains(body, "policy") {
				t.Errorf("%s, what no scope would allow: %d %s %s", era, status, challenge, body)
			}
			more := tokenFor(is, "ann", issuer.Claims{"groups": []string{"staff"}, "scope": "openid db:read db:write"})
			if status, _, body := send(more, "fake__echo"); status != 200 || !strings.Contains(body, "hello") {
				t.Errorf("%s, with the scope: %d %s", era, status, body)
			}
			if status, challenge, _ := send(tokenOf["alice"], "fake__echo"); status != 200 || challenge != "" {
				t.Errorf("%s, a static token: %d %s", era, status, challenge)
			}
		}
	}
}

// A principal has several tokens, for rotation; one that has ended is refused. Failed logins are in
// the log, too, and neither there nor in the trace is there a token.
func TestSeveralTokensOfAPrincipal(t *testing.T) {
	t.Parallel()
	now, next, over := strings.Repeat("token-of-now-", 3), strings.Repeat("token-that-follows-", 3), strings.Repeat("token-that-is-over-", 3)
	g := newGateway(t, fmt.Sprintf("principals:\n  alice:\n    token: %q\n    tokens:\n      - {token_sha256: \"%x\", expires: %s}\n      - {token: %q, expires: 2026-01-02T03:04:05Z}\n",
		now, sha256.Sum256([]byte(next)), time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339), over)+fakeConfig(recordFile(t), ""))
	at := g.http()
	_, header, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(now))
	for token, want := range map[string]int{now: 200, next: 200, over: 401} {
		h := bearer(token)
		h.Set("Mcp-Session-Id", header.Get("Mcp-Session-Id"))
		status, _, body := answered(t, http.DefaultClient, "POST", at, `{"jsonrpc":"2.0","id":7,"method":"ping"}`, h)
		if status != want || want == 401 && !strings.Contains(body, "ended at 2026-01-02T03:04:05Z") {
			t.Errorf("%s: %d %s", token, status, body)
		}
	}
	for range 40 {
		answered(t, http.DefaultClient, "POST", at, `{}`, bearer("guess"))
	}
	g.stop()
	if n := strings.Count(g.log.String(), `msg="a login failed"`); n < 10 || n > 20 {
		t.Errorf("the log has %d of 41 failed logins, want ten and a few more", n)
	}
	for _, token := range []string{now, next, over} {
		g.keepsSecret(token, nil)
	}
}

// A reload revokes what it no longer allows: a principal of an issuer, and an issuer, each with
// its sessions and streams.
func TestRevocationOfIssuers(t *testing.T) {
	t.Parallel()
	corp, other := issuer.New(t), issuer.New(t)
	servers := fakeConfig(recordFile(t), "")
	all := issuers(map[string]*issuer.Issuer{"corp": corp, "other": other})
	g := newGateway(t, all+servers)
	at := g.http()
	type host struct {
		header http.Header
		ended  chan struct{}
	}
	open := func(is *issuer.Issuer, subject string) host {
		h := bearer(tokenFor(is, subject, nil))
		_, header, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, h)
		h.Set("Mcp-Session-Id", header.Get("Mcp-Session-Id"))
		h.Set("Accept", "text/event-stream")
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		req.Header = h
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("GET: %v %v", err, res)
		}
		ended := make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, res.Body); res.Body.Close(); close(ended) }()
		return host{h.Clone(), ended}
	}
	status := func(h host) int {
		s, _, _ := answered(t, http.DefaultClient, "POST", at, `{"jsonrpc":"2.0","id":7,"method":"ping"}`, h.header)
		return s
	}
	ann, ben, eve := open(corp, "ann"), open(corp, "ben"), open(other, "eve")
	g.configure(strings.Replace(all, "auth:\n", "auth:\n  revoked: [\"corp:be*\"]\n", 1) + servers)
	g.reload(reloaded)
	<-ben.ended
	if a, b, e := status(ann), status(ben), status(eve); a != 200 || b != 401 || e != 200 {
		t.Errorf("after ben was revoked: %d, %d, %d", a, b, e)
	}
	g.configure(issuers(map[string]*issuer.Issuer{"corp": corp}) + servers)
	g.reload(reloaded)
	<-eve.ended
	if a, b, e := status(ann), status(ben), status(eve); a != 200 || b != 404 || e != 401 {
		t.Errorf("after the issuer was removed: %d, %d, %d, want ben's session to stay ended", a, b, e)
	}
	if n := corp.Fetches(); n != 1 {
		t.Errorf("%d fetches of the keys, want 1: a reload keeps them", n)
	}
}

// Auditors read the trace, and operators end branches, by the roles of their tokens. No one else does,
// nobody does more, and each use is in the trace.
func TestAuditorsAndOperators(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	is := issuer.New(t)
	config := strings.Replace(issuers(map[string]*issuer.Issuer{"corp": is}), "auth:\n", "auth:\n  auditor: audit\n  operator: admins\n", 1)
	config += fmt.Sprintf("principals:\n  eve: {token: %q, roles: [audit]}\n  ted: {token: %q, roles: [auditor, operator]}\n", tokenOf["alice"], tokenOf["bob"]) + fakeConfig(recordFile(t), "")
	g := newGateway(t, config)
	at := g.http()
	base := strings.TrimSuffix(at, "/mcp") + "/control/v1"
	admin := tokenFor(is, "adm", issuer.Claims{"groups": []string{"admins"}})
	ann := g.host(t, at, mcpclient.Legacy, tokenFor(is, "ann", nil))
	branch := create(t, ann, ctx, map[string]any{}).BranchID
	tool(t, ann, ctx, "fake__echo", `{"text":"hello"}`)
	type row struct {
		method, path string
		status       [4]int // of eve, adm, ted, no token
	}
	tokens := []string{tokenOf["alice"], admin, tokenOf["bob"], ""}
	for _, r := range []row{
		{"GET", "/branches", [4]int{200, 200, 403, 401}}, {"GET", "/trace?principal=corp:ann", [4]int{200, 403, 403, 401}},
		{"GET", "/budgets", [4]int{200, 200, 403, 401}},
		{"POST", "/reload", [4]int{403, 403, 403, 401}}, {"DELETE", "/trace", [4]int{403, 403, 403, 401}},
		{"DELETE", "/branches/" + branch + "?reason=test", [4]int{403, 200, 403, 401}},
		{"GET", "/trace?limit=0", [4]int{400, 403, 403, 401}}, {"GET", "/trace?prinzipal=corp:ann", [4]int{400, 403, 403, 401}}, {"GET", "/trace?principal=", [4]int{400, 403, 403, 401}}, {"GET", "/trace?principal=a&principal=b", [4]int{400, 403, 403, 401}},
		{"GET", "/trace?principal=zed", [4]int{400, 403, 403, 401}},
		{"GET", "/trace?limit=many", [4]int{400, 403, 403, 401}}, {"GET", "/trace?blocked=maybe", [4]int{400, 403, 403, 401}}, {"GET", "/branches?principal=corp:ann", [4]int{400, 400, 403, 401}},
		{"DELETE", "/budgets/day?sbject=corp:ann", [4]int{403, 400, 403, 401}},
		{"GET", "/nothing", [4]int{404, 404, 403, 401}},
	} {
		for i, token := range tokens {
			h := bearer(token)
			if token == "" {
				h = http.Header{}
			}
			status, header, body := answered(t, http.DefaultClient, r.method, base+r.path, "", h)
			if status != r.status[i] {
				t.Errorf("%s %s of caller %d = %d %s, want %d", r.method, r.path, i, status, body, r.status[i])
			}
			if role := map[string]string{"GET/branches": "auth.auditor or auth.operator", "GET/trace": "auth.auditor;", "DELETE/branches": "of auth.operator"}[r.method+"/"+strings.FieldsFunc(r.path, func(c rune) bool { return c == '/' || c == '?' })[0]]; status == 403 && !strings.Contains(body, role) {
				t.Errorf("%s %s: %s, want the role of %s", r.method, r.path, body, role)
			}
			if status == 409 && !strings.Contains(body, "write some under budgets.limits") {
				t.Errorf("budgets without limits: %s", body)
			}
			if status == 401 && !strings.Contains(header.Get("WWW-Authenticate"), `oauth-protected-resource/mcp"`) {
				t.Errorf("%s: %s", r.path, header.Get("WWW-Authenticate"))
			}
			if r.path == "/nothing" && status == 404 && (!strings.Contains(body, "there are GET /control/v1/trace, GET /control/v1/branches, ") || strings.Contains(body, "POST")) {
				t.Errorf("a path that there is not: %s", body)
			}
			if r.path == "/trace?principal=zed" && status == 400 && !strings.HasPrefix(body, `principal: no record has the name "zed"; there are corp:adm, corp:ann, eve`) {
				t.Errorf("an unknown principal: %s", body)
			}
			if r.path == "/trace?principal=corp:ann" && status == 200 && (!strings.Contains(body, `"mcp/request:tools/call"`) || strings.Contains(body, `"principal":"eve"`)) {
				t.Errorf("the trace of ann: %s", body)
			}
		}
	}
	if status, _, _ := answered(t, http.DefaultClient, "GET", base+"/branches", "", http.Header{"Authorization": {"Bearer " + admin}, "Origin": {"https://evil.example.com"}}); status != 403 {
		t.Errorf("from a foreign page: %d", status)
	}
	g.stop()
	uses := map[string]int{}
	for _, r := range traceAs[audited](g, "--kind", "system/access") {
		uses[r.Audit.Principal]++
	}
	if uses["eve"] != 12 || uses["corp:adm"] != 6 || len(uses) != 2 {
		t.Errorf("uses in the trace: %v", uses)
	}
	if other := newGateway(t, principals()+fakeConfig(recordFile(t), "")); true {
		base := strings.TrimSuffix(other.http(), "/mcp")
		if status, _, _ := answered(t, http.DefaultClient, "GET", base+"/control/v1/branches", "", bearer(tokenOf["alice"])); status != 403 {
			t.Errorf("without the roles in the configuration: %d", status)
		}
	}
}
