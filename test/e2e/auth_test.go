//go:build e2e

package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Tokens of the principals in these tests. They look like nothing that a rule
// for secrets could know.
var tokenOf = map[string]string{
	"alice": strings.Repeat("alice-goes-first-", 2),
	"bob":   strings.Repeat("bob-comes-later-", 2),
}

// principals is the configuration of alice, by her token, and of bob, by the
// hash of his.
func principals() string {
	return fmt.Sprintf("principals:\n  alice: {token: %q}\n  bob: {token_sha256: \"%x\"}\n", tokenOf["alice"], sha256.Sum256([]byte(tokenOf["bob"])))
}

// as returns a started host of a principal.
func (g *gateway) as(t *testing.T, at string, era mcpclient.Era, principal string) *mcpclient.Client {
	t.Helper()
	c := mcpclient.HTTP(at, era, "Authorization", "Bearer "+tokenOf[principal])
	c.Capabilities = `{"elicitation":{}}`
	if _, err := c.Start(testContext(t)); err != nil {
		t.Fatalf("%s: %v", principal, err)
	}
	g.closes(c)
	return c
}

// answered sends a request as it is and returns the status, the headers and the body of the
// response.
func answered(t *testing.T, client *http.Client, method, at, body string, header http.Header) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), method, at, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header, string(text)
}

const rawInitialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}`

// Without the token of a principal, a request is refused, with any method and path. The answer
// names the remedy.
func TestTokens(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+fakeConfig(recordFile(t), ""))
	base := strings.TrimSuffix(g.http(), "/mcp")
	session := g.as(t, base+"/mcp", mcpclient.Legacy, "alice").Session()
	bearer := func(tokens ...string) http.Header {
		h := http.Header{"Mcp-Session-Id": {session}}
		for _, tk := range tokens {
			h.Add("Authorization", tk)
		}
		return h
	}
	for name, h := range map[string]http.Header{
		"none": bearer(), "wrong": bearer("Bearer " + strings.Repeat("x", 40)), "part": bearer("Bearer " + tokenOf["alice"][:20]), "empty": bearer("Bearer"),
		"basic": bearer("Basic " + tokenOf["alice"]), "bare": bearer(tokenOf["alice"]), "two": bearer("Bearer "+tokenOf["alice"], "Bearer "+tokenOf["alice"]),
		"hash": bearer(fmt.Sprintf("Bearer %x", sha256.Sum256([]byte(tokenOf["bob"])))),
	} {
		for _, method := range []string{"POST", "GET", "DELETE", "PUT"} {
			for _, path := range []string{"/mcp", "/b/br_00000000-0000-4000-8000-000000000000/mcp", "/mcp?token=" + tokenOf["alice"]} {
				status, answer, body := answered(t, http.DefaultClient, method, base+path, rawInitialize, h)
				challenge := answer.Get("WWW-Authenticate")
				if status != 401 || !strings.HasPrefix(challenge, "Bearer ") || strings.Contains(challenge, `error="invalid_token"`) != (name != "none") {
					t.Errorf("%s %s with token %s = %d, %q", method, path, name, status, challenge)
				}
				var m mcpclient.Message
				if err := json.Unmarshal([]byte(body), &m); err != nil || !strings.Contains(string(m.Error), "principals of foldgate's configuration") && !strings.Contains(string(m.Error), "principal of foldgate's configuration") {
					t.Errorf("%s %s with token %s: body %s, want a JSON-RPC error that says what to do", method, path, name, body)
				}
			}
		}
	}
	if status, _, body := answered(t, http.DefaultClient, "GET", base+"/healthz", "", nil); status != 200 || body != `{"status":"ok"}` {
		t.Errorf("/healthz = %d %s", status, body)
	}
	if status, _, body := answered(t, http.DefaultClient, "GET", base+"/", "", nil); status != 404 || !strings.Contains(body, "MCP is served on /mcp") {
		t.Errorf("/ = %d %s, want where MCP is", status, body)
	}
	if status, _, body := answered(t, http.DefaultClient, "GET", base+"/readyz", "", nil); status != 200 || body != `{"status":"ready"}` {
		t.Errorf("/readyz without a token = %d %s, want nothing of the upstreams", status, body)
	}
	if status, _, body := answered(t, http.DefaultClient, "GET", base+"/readyz", "", bearer("bearer "+tokenOf["bob"])); status != 200 || !strings.Contains(body, `"fake"`) {
		t.Errorf("/readyz with a token = %d %s, want the upstreams", status, body)
	}
	for _, p := range []string{"alice", "bob"} {
		if status, h, body := answered(t, http.DefaultClient, "POST", base+"/mcp", rawInitialize, http.Header{"Authorization": {"Bearer " + tokenOf[p]}}); status != 200 || h.Get("Mcp-Session-Id") == "" {
			t.Errorf("initialize of %s = %d %s", p, status, body)
		}
	}
	for method, body := range map[string]string{"POST": `{"jsonrpc":"2.0","id":2,"method":"ping"}`, "GET": "", "DELETE": ""} {
		known, _, said := answered(t, http.DefaultClient, method, base+"/mcp", body, http.Header{"Authorization": {"Bearer " + tokenOf["bob"]}, "Mcp-Session-Id": {session}})
		unknown, _, same := answered(t, http.DefaultClient, method, base+"/mcp", body, http.Header{"Authorization": {"Bearer " + tokenOf["bob"]}, "Mcp-Session-Id": {"ses_00000000-0000-4000-8000-000000000000"}})
		if known != 404 || unknown != 404 || said != same {
			t.Errorf("%s by bob on alice's session = %d %s, on none %d %s, want the same 404", method, known, said, unknown, same)
		}
	}
	if out := g.output("check"); !strings.Contains(out, "principals: alice, bob\n") {
		t.Errorf("check prints %s", out)
	}
}

// watchHeads puts an observer before an HTTP player. The function it returns gives the headers
// seen so far.
func watchHeads(t *testing.T, p *player) func() string {
	t.Helper()
	_, target, _ := strings.Cut(strings.Trim(p.config, `"`), `"`)
	to, err := url.Parse(strings.TrimSuffix(target, "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var seen strings.Builder
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		_ = r.Header.Write(&seen)
		mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	p.config = fmt.Sprintf("url: %q", srv.URL+"/mcp")
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return seen.String()
	}
}

// A token flows nowhere: not to an upstream, back to a model, into the log or
// onto the disk.
func TestTokenGoesNowhere(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			p := newPlayer(t, "http", mcpclient.Legacy, map[string]string{
				"initialize": `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"p","version":"1"}}`,
				"tools/list": `{"tools":[{"name":"say","inputSchema":{"type":"object"}}]}`,
			})
			p.script = func(m mcpclient.Message) string {
				if m.Method != "tools/call" {
					return ""
				}
				return fmt.Sprintf(`{"content":[{"type":"text","text":"your token is %[1]s, in hex %[1]x"}],"%[1]s":1}`, tokenOf["alice"])
			}
			heads := watchHeads(t, p)
			g := newGateway(t, principals()+"upstreams:\n  up: {"+p.config+"}\n")
			c := g.as(t, g.http(), era, "alice")
			m := tool(t, c, ctx, "up__say", `{}`)
			if strings.Contains(string(m.Result), tokenOf["alice"]) || strings.Count(string(m.Result), "[REDACTED:foldgate-token]") != 3 {
				t.Errorf("result = %s, want the token redacted three times", m.Result)
			}
			g.stop()
			all := heads()
			if len(all) == 0 || strings.Contains(all, "alice-goes") || strings.Contains(all, "Authorization") {
				t.Errorf("the upstream received the headers %s", all)
			}
			g.keepsSecret(tokenOf["alice"], nil)
			for line := range strings.Lines(g.output("trace", "--principal", "alice", "--kind", "mcp/response:tools/call", "--format", "jsonl")) {
				if !strings.Contains(line, `"principal":"alice"`) || !strings.Contains(line, "foldgate-token") {
					t.Errorf("record %s", line)
				}
			}
			if out, err := g.command("trace", "--principal", "bob").Output(); err == nil || len(out) > 0 || !strings.Contains(g.log.String(), `no record has the name "bob"; there are alice`) {
				t.Errorf("records of bob: %s, %v", out, err)
			}
		})
	}
}

// Behind a reverse proxy foldgate answers to the proxy's name, if it is told.
func TestAllowedHosts(t *testing.T) {
	t.Parallel()
	for _, allowed := range []string{"", "allowed_hosts: [mcp.example.com]\n"} {
		g := newGateway(t, principals()+allowed+fakeConfig(recordFile(t), ""))
		at := g.http()
		for host, want := range map[string]int{"mcp.example.com": 200, "mcp.example.com:443": 200, "evil.example.com": 403, "": 200} {
			if allowed == "" && host != "" {
				want = 403
			}
			h := http.Header{"Authorization": {"Bearer " + tokenOf["alice"]}, "Host": {host}}
			if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, h); status != want {
				t.Errorf("allowed %q: Host %q = %d %s, want %d", allowed, host, status, body, want)
			}
		}
	}
}

// A wrong list of principals, or an open address without any, does not start,
// and nothing that is printed holds a token.
func TestPrincipalsRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ config, says string }{
		"exposed": {"listen: 0.0.0.0:0\n", "without principals everybody"},
		"short":   {"principals: {a: {token: hush-hush}}\n", "fewer than 16"},
		"shared":  {"principals:\n  a: {token: hush-hush-hush-hush}\n  b: {token: hush-hush-hush-hush}\n", "same token as a"},
		"type":    {"principals: {a: {token: {x: hush-hush-hush-hush}}}\n", "principals.a"},
		"no file": {"tls: {cert: none.pem, key: none.key}\n", "none.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "foldgate.yaml")
			write(t, file, tt.config+"upstreams:\n  fake: {command: ["+fakeserverBin+"]}\n")
			for _, args := range [][]string{{"run"}, {"check"}} {
				cmd := (&gateway{t: t, dir: dir, config: file}).command(args...)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				err := cmd.Run()
				if err == nil || cmd.ProcessState.ExitCode() != 2 || !strings.Contains(out.String(), tt.says) || strings.Contains(out.String(), "hush") {
					t.Errorf("foldgate %s: %v, printed %s", args[0], err, out.String())
				}
			}
			if _, err := os.Stat(filepath.Join(dir, ".foldgate")); err == nil {
				t.Errorf("foldgate made a state directory")
			}
		})
	}
}
