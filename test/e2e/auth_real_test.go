//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/testbin"
)

// realServer is an authorization server that others have made. Its persons are ann of the department data
// and ben of sales.
type realServer interface {
	url() string      // of the issuer
	endpoint() string // the pages and the tokens are at endpoint()/auth and /token
	keysURL() string
	register() string  // where clients register
	method() string    // how their secrets go to the token endpoint
	principal() string // what foldgate's configuration of the issuer needs beside the usual
	life(seconds int)  // of access tokens
	rotate()           // replaces its keys
	logIn(p *person, at string) (url.Values, error)
}

// oidcProvider is npm's oidc-provider, in test/npm/issuer.mjs.
type oidcProvider struct {
	t  *testing.T
	at string
}

func newOIDCProvider(t *testing.T, _ ...string) realServer { return &oidcProvider{t, realIssuer(t)} }

func (o *oidcProvider) url() string       { return o.at }
func (o *oidcProvider) endpoint() string  { return o.at }
func (o *oidcProvider) keysURL() string   { return o.at + "/jwks" }
func (o *oidcProvider) register() string  { return o.at + "/reg" }
func (o *oidcProvider) method() string    { return "none" }
func (o *oidcProvider) principal() string { return "" }
func (o *oidcProvider) life(seconds int)  { o.control(fmt.Sprintf("life?seconds=%d", seconds)) }
func (o *oidcProvider) rotate()           { o.control("rotate") }

func (o *oidcProvider) logIn(p *person, at string) (url.Values, error) { return p.logIn(at) }

func (o *oidcProvider) control(what string) {
	o.t.Helper()
	resp, err := http.Post(o.at+"/test/"+what, "", nil)
	if err != nil || resp.StatusCode != 200 {
		o.t.Fatalf("%s: %v, %v", what, resp, err)
	}
	resp.Body.Close()
}

// realIssuer runs oidc-provider (test/npm/issuer.mjs) and returns its URL.
func realIssuer(t *testing.T) string {
	t.Helper()
	root, err := testbin.Root()
	if err != nil {
		t.Fatal(err)
	}
	module(t, "oidc-provider/package.json") // says how to install it
	cmd := exec.Command(node(t), root+"/test/npm/issuer.mjs")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if at, ok := strings.CutPrefix(lines.Text(), "issuer "); ok {
			return at
		}
	}
	t.Fatal("the issuer does not start")
	return ""
}

// person is somebody with a browser of their own, who logs in at an issuer and consents.
type person struct {
	name    string
	visits  atomic.Int32
	browser *http.Client
}

// nobodyListens is where the issuer sends the browsers back to, which stop there.
const nobodyListens = "http://127.0.0.1:1/callback"

func newPerson(name string) *person {
	jar, _ := cookiejar.New(nil) // never fails
	return &person{name: name, browser: &http.Client{Jar: jar, CheckRedirect: func(req *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(req.URL.String(), nobodyListens) {
			return http.ErrUseLastResponse
		}
		return nil
	}}}
}

var (
	formAction = regexp.MustCompile(`<form[^>]* action="([^"]+)"`)
	formPrompt = regexp.MustCompile(`name="prompt" value="(\w+)"`)
)

// logIn opens a URL, fills in the forms of oidc-provider, and returns with what the browser came back.
func (p *person) logIn(at string) (url.Values, error) {
	resp, err := p.browser.Get(at)
	for range 5 {
		if err != nil {
			return nil, err
		}
		page, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if back := resp.Header.Get("Location"); strings.HasPrefix(back, nobodyListens) {
			u, err := url.Parse(back)
			return u.Query(), err
		}
		action, prompt := formAction.FindSubmatch(page), formPrompt.FindSubmatch(page)
		if action == nil || prompt == nil {
			return nil, fmt.Errorf("the browser shows %d %s", resp.StatusCode, page)
		}
		to, err2 := resp.Request.URL.Parse(html.UnescapeString(string(action[1])))
		if err2 != nil {
			return nil, err2
		}
		form := url.Values{"prompt": {string(prompt[1])}}
		if string(prompt[1]) == "login" {
			form.Set("login", p.name)
			form.Set("password", "any")
		}
		resp, err = p.browser.PostForm(to.String(), form)
	}
	return nil, fmt.Errorf("the issuer asks for ever")
}

// handler is the official client's side of authorization: it finds the issuer from foldgate's 401, registers
// itself there, and lets the person log in.
func (p *person) handler(t *testing.T, s realServer) *sdk.AuthorizationCodeHandler {
	t.Helper()
	h, err := sdk.NewAuthorizationCodeHandler(&sdk.AuthorizationCodeHandlerConfig{
		DynamicClientRegistrationConfig: &sdk.DynamicClientRegistrationConfig{Metadata: &oauthex.ClientRegistrationMetadata{
			ClientName: "a host of " + p.name, RedirectURIs: []string{nobodyListens}, GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: s.method(), ApplicationType: "native",
		}},
		RequestRefreshToken: true,
		AuthorizationCodeFetcher: func(_ context.Context, args *sdk.AuthorizationArgs) (*sdk.AuthorizationResult, error) {
			p.visits.Add(1)
			q, err := s.logIn(p, args.URL)
			return &sdk.AuthorizationResult{Code: q.Get("code"), State: q.Get("state"), Iss: q.Get("iss")}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// official returns a session of the official client.
func official(t *testing.T, at string, h sdk.OAuthHandler) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "host", Version: "1"}, nil)
	s, err := c.Connect(testContext(t), &mcp.StreamableClientTransport{Endpoint: at, OAuthHandler: h, DisableStandaloneSSE: true}, nil)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return s
}

// accessOf is the access token that a handler sends now; the handler renews one that expires.
func accessOf(t *testing.T, h sdk.OAuthHandler) *oauth2.Token {
	t.Helper()
	source, err := h.TokenSource(testContext(t))
	if err != nil || source == nil {
		t.Fatalf("no token: %v", err)
	}
	token, err := source.Token()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// says returns the text of a tool's result.
func says(t *testing.T, s *mcp.ClientSession, name string, args map[string]any) string {
	t.Helper()
	r, err := s.CallTool(testContext(t), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	out := ""
	for _, c := range r.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			out += text.Text
		}
	}
	return out
}

// The official client logs in to foldgate through a real issuer, by discovery from the 401 on: two
// persons side by side, with tokens that are renewed by refresh tokens of one use, over new keys of the
// issuer and a restart of foldgate. What is not for foldgate is refused.
func TestHostsLogInAtARealIssuer(t *testing.T) {
	t.Parallel() // it waits for a token to expire
	for name, start := range map[string]func(t *testing.T, resources ...string) realServer{"oidc-provider": newOIDCProvider, "glewlwyd": newGlewlwyd} {
		t.Run(name, func(t *testing.T) { t.Parallel(); hostsLogIn(t, start) })
	}
}

func hostsLogIn(t *testing.T, startIssuer func(t *testing.T, resources ...string) realServer) {
	ctx := testContext(t)
	var target atomic.Pointer[url.URL] // foldgate behind a proxy, as its restart changes its port
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target.Load()) }})
	t.Cleanup(front.Close)
	public := strings.Replace(front.URL, "127.0.0.1", "localhost", 1) // glewlwyd takes http for localhost only
	at := public + "/mcp"
	is := startIssuer(t, at, otherResource)
	config := func(more string) string {
		return fmt.Sprintf("public_url: %q\nauth:\n  scopes: [\"db:read\"]\n  issuers:\n    corp: {url: %q, team: $.department, roles: $.scope%s%s}\n", public, is.url(), is.principal(), more) +
			"policy:\n  default: deny\n  rules:\n    - {name: analysts, who: {team: data, role: \"db:read\", scope: \"db:read\"}, allow: [\"fake__*\"]}\n" + fakeConfig(recordFile(t), "")
	}
	g := newGateway(t, config(""))
	start := func(g *gateway) {
		u, err := url.Parse(strings.TrimSuffix(g.http(), "/mcp"))
		if err != nil {
			t.Fatal(err)
		}
		target.Store(u)
	}
	start(g)

	is.life(1) // the client renews its token before each request
	ann, ben := newPerson("ann"), newPerson("ben")
	annsLogin, bensLogin := ann.handler(t, is), ben.handler(t, is)
	anns, bens := official(t, at, annsLogin), official(t, at, bensLogin)
	lists := func(s *mcp.ClientSession) bool {
		r, err := s.ListTools(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(r.Tools, func(tool *mcp.Tool) bool { return tool.Name == "fake__echo" })
	}
	var seen []string
	for range 3 {
		if got := says(t, anns, "fake__echo", map[string]any{"n": 1}); !strings.Contains(got, `"n":1`) {
			t.Errorf("ann's call: %s", got)
		}
		if got := says(t, bens, "fake__echo", map[string]any{"n": 1}); !strings.Contains(got, "policy") {
			t.Errorf("ben's call: %s, want the policy's refusal", got)
		}
		seen = append(seen, accessOf(t, annsLogin).RefreshToken)
	}
	if !lists(anns) || lists(bens) {
		t.Error("the lists do not follow the tokens")
	}
	if len(slices.Compact(seen)) < 2 {
		t.Error("the issuer does not rotate refresh tokens")
	}

	// New keys: the next token has them, and no call fails.
	old := accessOf(t, annsLogin)
	is.rotate()
	for range 3 {
		if got := says(t, anns, "fake__echo", map[string]any{"n": 2}); !strings.Contains(got, `"n":2`) {
			t.Errorf("after new keys: %s", got)
		}
	}
	// The clocks may differ: a token is taken up to half a minute after it has expired.
	until(t, "a token that expired a moment ago is taken", func() bool {
		late := accessOf(t, annsLogin)
		<-time.After(time.Until(late.Expiry.Add(time.Second)))
		status, _, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(late.AccessToken))
		return status == 200
	})
	short := accessOf(t, annsLogin) // an hour's token would do, but not in a test
	is.life(600)
	until(t, "a token lives longer", func() bool { return accessOf(t, annsLogin).ExpiresIn > 100 })
	fresh := accessOf(t, annsLogin)
	if keyOf(t, fresh.AccessToken) == keyOf(t, old.AccessToken) {
		t.Error("the issuer has no new keys")
	}

	// foldgate starts again: the clients open a new session with the token that they have.
	_, _ = anns.Close(), bens.Close()
	g.stop()
	start(g)
	anns = official(t, at, annsLogin)
	if got := says(t, anns, "fake__echo", map[string]any{"n": 3}); !strings.Contains(got, `"n":3`) {
		t.Errorf("after a restart: %s", got)
	}
	_ = anns.Close()
	if ann.visits.Load() != 1 || ben.visits.Load() != 1 {
		t.Errorf("ann's browser was used %d times and ben's %d times, want once each", ann.visits.Load(), ben.visits.Load())
	}

	// A token that the same issuer gave for another resource, an expired one, and changed ones.
	parts := strings.Split(fresh.AccessToken, ".")
	head := func(change string) string { return base64.RawURLEncoding.EncodeToString([]byte(change)) }
	refused := map[string]string{
		"token_audience":  forOther(t, is, ann),
		"token_algorithm": head(`{"alg":"none","typ":"at+jwt"}`) + "." + parts[1] + ".",
		"token_signature": parts[0] + "." + parts[1] + "." + strings.Split(old.AccessToken, ".")[2],
		"token_key":       old.AccessToken, // of the old keys; it has expired, too
	}
	for rule, token := range refused {
		if status, header, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(token)); status != 401 || !strings.Contains(header.Get("WWW-Authenticate"), `error="invalid_token"`) {
			t.Errorf("%s: %d %s", rule, status, body)
		}
	}
	if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(fresh.AccessToken)); status != 200 {
		t.Errorf("the token itself: %d %s", status, body)
	}
	g.stop()
	rules := map[string]int{}
	for _, r := range traceAs[audited](g, "--kind", "mcp/reject:login") {
		rules[r.Audit.Decision.Rule]++
	}
	for rule := range refused {
		if rules[rule] != 1 {
			t.Errorf("%d records of %s, want 1 (%v)", rules[rule], rule, rules)
		}
	}
	who := map[string]int{}
	for _, r := range traceAs[struct {
		Audit struct{ Principal, Team string }
	}](g, "--kind", "mcp/request:tools/call") {
		who[r.Audit.Principal+" "+r.Audit.Team]++
	}
	if len(who) != 2 || who["corp:ann data"] != 7 || who["corp:ben sales"] != 3 {
		t.Errorf("calls in the trace by principal: %v", who)
	}
	g.keepsSecret(fresh.AccessToken, nil)

	// An algorithm that the configuration does not name, and the token that lives for a second: it may be
	// used for 30 seconds more, as clocks differ.
	g = newGateway(t, config(", algorithms: [ES256]"))
	start(g)
	if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(fresh.AccessToken)); status != 401 || !strings.Contains(body, "algorithm") {
		t.Errorf("RS256 where ES256 is configured: %d %s", status, body)
	}
	g.stop()

	// A key id that the issuer does not have, a thousand times: one fetch.
	var fetches atomic.Int32
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetches.Add(1)
		resp, err := http.Get(is.keysURL())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(keys.Close)
	g = newGateway(t, config(fmt.Sprintf(", jwks_url: %q", keys.URL)))
	start(g)
	for n := range 1000 {
		unknown := head(fmt.Sprintf(`{"alg":"RS256","typ":"at+jwt","kid":"unknown-%d"}`, n)) + "." + parts[1] + "." + parts[2]
		if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(unknown)); status != 401 || !strings.Contains(body, "does not have") {
			t.Fatalf("an unknown key: %d %s", status, body)
		}
	}
	if n := fetches.Load(); n != 1 {
		t.Errorf("%d fetches of the keys for a thousand unknown ones, want 1", n)
	}
	if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(fresh.AccessToken)); status != 200 {
		t.Errorf("the issuer's own key meanwhile: %d %s", status, body)
	}
	g.stop()
	g = newGateway(t, config(""))
	start(g)
	<-time.After(time.Until(short.Expiry.Add(32 * time.Second)))
	if status, _, body := answered(t, http.DefaultClient, "POST", at, rawInitialize, bearer(short.AccessToken)); status != 401 || !strings.Contains(body, "expired") {
		t.Errorf("an expired token: %d %s", status, body)
	}
}

// keyOf returns the id of the key that signed a token.
func keyOf(t *testing.T, token string) string {
	t.Helper()
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[0])
	if err != nil {
		t.Fatal(err)
	}
	var header struct{ Kid string }
	unmarshal(t, text, &header)
	return header.Kid
}

// otherResource is a server that is not foldgate.
const otherResource = "https://other.example.com/mcp"

// forOther returns a token of the issuer for another server.
func forOther(t *testing.T, is realServer, p *person) string {
	t.Helper()
	c, err := oauthex.RegisterClient(testContext(t), is.register(), &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{nobodyListens}, GrantTypes: []string{"authorization_code"}, ResponseTypes: []string{"code"}, TokenEndpointAuthMethod: is.method(), ApplicationType: "native"}, http.DefaultClient)
	if err != nil {
		t.Fatal(err)
	}
	verifier := oauth2.GenerateVerifier()
	o := oauth2.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, RedirectURL: nobodyListens, Scopes: []string{"db:read"}, Endpoint: oauth2.Endpoint{AuthURL: is.endpoint() + "/auth", TokenURL: is.endpoint() + "/token", AuthStyle: oauth2.AuthStyleInParams}}
	back, err := is.logIn(p, o.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("resource", otherResource)))
	if err != nil {
		t.Fatal(err)
	}
	token, err := o.Exchange(testContext(t), back.Get("code"), oauth2.VerifierOption(verifier), oauth2.SetAuthURLParam("resource", otherResource))
	if err != nil {
		t.Fatal(err)
	}
	return token.AccessToken
}

// Real hosts log in to foldgate through a real issuer, and one lists the tools at once.
func TestRealHostsLogIn(t *testing.T) {
	t.Parallel()
	issuer := realIssuer(t)
	var target atomic.Pointer[url.URL]
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target.Load()) }})
	t.Cleanup(front.Close)
	at := front.URL + "/mcp"
	g := newGateway(t, fmt.Sprintf("public_url: %q\nauth:\n  scopes: [\"db:read\"]\n  issuers:\n    corp: {url: %q}\n", front.URL, issuer)+fakeConfig(recordFile(t), ""))
	u, err := url.Parse(strings.TrimSuffix(g.http(), "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	target.Store(u)
	for name, tt := range map[string]struct {
		bin  string
		args []string
		says string
	}{
		"codex":    {module(t, "@openai/codex/bin/codex.js"), []string{"mcp", "login", "foldgate"}, "Successfully logged in"},
		"opencode": {module(t, platform(t, opencodePackages)+"/bin/opencode"), []string{"mcp", "auth", "foldgate"}, "Authentication successful"},
	} {
		t.Run(name, func(t *testing.T) {
			echo := llmstub.Use(codex{}.use("foldgate", "fake__echo", `{"n":1}`))
			r := newHostRun(t, llmstub.Agent{Name: "main", Play: llmstub.Script(echo, llmstub.Say("done"))})
			dir := r.home
			r.servers["foldgate"] = mcpServer{url: at}
			configureCodex(t, r, "model")
			file := filepath.Join(dir, ".codex", "config.toml") // the token comes from the login
			write(t, file, "mcp_oauth_credentials_store = \"file\"\n"+strings.Replace(content(t, file), fmt.Sprintf("bearer_token_env_var = %q\n", hostToken), "", 1))
			write(t, dir+"/opencode.json", jsonText(map[string]any{"mcp": map[string]any{"foldgate": map[string]any{"type": "remote", "url": at}}}))
			cmd := exec.Command(tt.bin, tt.args...)
			if strings.HasSuffix(tt.bin, ".js") {
				cmd = exec.Command(node(t), append([]string{tt.bin}, tt.args...)...)
			}
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "HOME="+dir, "CODEX_HOME="+dir+"/.codex", "XDG_CONFIG_HOME="+dir+"/c", "XDG_DATA_HOME="+dir+"/d", "XDG_CACHE_HOME="+dir+"/x", "XDG_STATE_HOME="+dir+"/s", "BROWSER=true",
				"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1")
			out := &buffer{}
			cmd.Stdout, cmd.Stderr = out, out
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			exited := make(chan error, 1)
			go func() { exited <- cmd.Wait() }()
			opens := regexp.MustCompile(regexp.QuoteMeta(issuer) + `/auth\?\S+`)
			ctx := testContext(t)
			for opened := false; ; {
				changed := out.changed()
				if at := opens.FindString(out.String()); at != "" && !opened {
					opened = true
					if _, err := newPerson(name).logIn(at); err != nil && !strings.Contains(err.Error(), "shows 200") { // the host's own page
						t.Errorf("browser: %v", err)
					}
				}
				select {
				case <-changed:
					continue
				case err := <-exited:
					if err != nil || !strings.Contains(out.String(), tt.says) {
						t.Errorf("%v: %v\n%s", tt.args, err, out.String())
					} else if name == "codex" { // a session with the token of the login
						execCodex(t, r)
					}
				case <-ctx.Done():
					_ = cmd.Process.Kill()
					t.Errorf("%v does not end:\n%s", tt.args, out.String())
				}
				return
			}
		})
	}
	g.stop()
	if !strings.Contains(g.output("trace", "--kind", "mcp/request:tools/call", "--tool", "echo"), "corp:codex") {
		t.Errorf("Codex has not called a tool with its token:\n%s", g.output("trace"))
	}
	if !strings.Contains(g.output("trace", "--kind", "mcp/request:tools/list"), "corp:opencode") {
		t.Errorf("opencode has not listed the tools with its token:\n%s", g.output("trace"))
	}
}
