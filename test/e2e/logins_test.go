//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// credentials is the configuration of an upstream at which foldgate has an account.
func credentials(gd *guarded, more string) string {
	return fmt.Sprintf("upstreams:\n  fake:\n    url: %q\n    auth:\n      client_credentials: {client_id: robot, client_secret: planted-secret-of-the-robot}\n      issuer: %q\n%s", gd.at, gd.is.URL, more)
}

// foldgate logs in with its own account: when the upstream asks for a token, again when one expires or
// is revoked, and once for many calls.
func TestClientCredentials(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		is := newAuthServer(t)
		is.secrets["robot"] = "planted-secret-of-the-robot"
		gd := newGuarded(t, is, "-era", "both")
		gd.needs["text"] = "write"
		g := newGateway(t, credentials(gd, ""))
		c := g.connect(ctx, transport, era)
		if got := text(t, c, ctx, "fake__echo", `{"n":1}`); !strings.Contains(got, `"n":1`) {
			t.Errorf("echo = %s", got)
		}
		if n := is.grants("client_credentials"); n != 1 {
			t.Errorf("%d tokens for the first call, want 1", n)
		}
		is.revoke()
		var calls sync.WaitGroup
		for range 8 {
			calls.Go(func() {
				if m, err := c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":2}}`); err != nil || m.Error != nil || !strings.Contains(string(m.Result), `\"n\":2`) {
					t.Errorf("after the token was revoked: %s%s, %v", m.Result, m.Error, err)
				}
			})
		}
		calls.Wait()
		if n := is.grants("client_credentials"); n != 2 {
			t.Errorf("%d tokens after one was revoked, want 2: eight calls at once need one", n)
		}
		if got := text(t, c, ctx, "fake__text", `{"text":"written"}`); got != "written" {
			t.Errorf("a tool that needs another scope = %s", got)
		}
		asked, _ := is.asked()
		if f := asked[len(asked)-1]; f.Get("scope") != "mcp write" || f.Get("resource") != gd.at || f.Get("client_secret") != "" {
			t.Errorf("the token for another scope was asked for by %v", f)
		}
		gd.needs["huge"] = "echo"
		if got := text(t, c, ctx, "fake__huge", `{}`); got != "you sent [REDACTED:upstream-token]" {
			t.Errorf("a tool that shows the token = %s", got)
		}
		is.set(func() { is.allow = "mcp" })
		is.revoke()
		said := refused(t, tool(t, c, ctx, "fake__text", `{"text":"written"}`))
		if said.Error.Code != "insufficient_scope" || !strings.Contains(said.Error.Message, `["write"]`) {
			t.Errorf("refusal without the scope: %+v", said)
		}
		received := c.Received()
		g.stop()
		g.keepsTokens(received)
	})
}

// A login that fails is an answer to the call, never a 401 to the host, and shows no secret.
func TestLoginFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		breaks func(*authServer, *guarded)
		says   string
	}{
		"wrong secret":      {func(is *authServer, _ *guarded) { is.secrets["robot"] = "another" }, "invalid_client"},
		"issuer is down":    {func(is *authServer, _ *guarded) { is.down = true }, "HTTP 503"},
		"another issuer":    {func(_ *authServer, gd *guarded) { gd.prm = prm(gd.at, "https://evil.example.com") }, "evil.example.com"},
		"another resource":  {func(is *authServer, gd *guarded) { gd.prm = prm("https://evil.example.com/mcp", is.URL) }, `not about the configured URL: a token`},
		"metadata of other": {func(is *authServer, _ *guarded) { is.meta["issuer"] = "https://evil.example.com" }, "evil.example.com"},
		"token to http":     {func(is *authServer, _ *guarded) { is.meta["token_endpoint"] = "http://198.51.100.1/token" }, "HTTPS"},
		"token to inside":   {func(is *authServer, _ *guarded) { is.meta["token_endpoint"] = "https://169.254.169.254/token" }, "public"},
		"not for upstream":  {func(_ *authServer, gd *guarded) { gd.shut = true }, "just given"},
		"redirect elsewhere": {func(is *authServer, _ *guarded) {
			elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("a redirect was followed to %s", r.URL) }))
			t.Cleanup(elsewhere.Close)
			is.meta["token_endpoint"] = redirecting(t, elsewhere.URL+"/token")
		}, "HTTP 307"},
		"redirect to inside": {func(is *authServer, gd *guarded) {
			gd.prm = prm(gd.at, is.URL)
			is.meta["token_endpoint"] = redirecting(t, "http://169.254.169.254/latest/meta-data")
		}, "HTTP 307"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			is := newAuthServer(t)
			is.secrets["robot"] = "planted-secret-of-the-robot"
			gd := newGuarded(t, is)
			config := credentials(gd, "")
			tt.breaks(is, gd)
			g := newGateway(t, config)
			c := g.connect(ctx, "http", mcpclient.Modern)
			m := tool(t, c, ctx, "fake__echo", `{}`) // a 401 would fail it
			said := refused(t, m)
			if said.Error.Code != "login_failed" || !strings.Contains(said.Error.Message, tt.says) {
				t.Errorf("refusal: %+v, want %q", said, tt.says)
			}
			g.stop()
			g.keepsTokens(c.Received())
			recorded := 0
			for _, r := range traceAs[audited](g, "--kind", "mcp/response:tools/call") {
				if d := r.Audit.Decision; d != nil && d.Result == "blocked" && d.Rule == "login_failed" && strings.Contains(string(r.Payload), tt.says) {
					recorded++
				}
			}
			if recorded != 1 {
				t.Errorf("%d records of the refused call, want 1:\n%s", recorded, g.output("trace"))
			}
		})
	}
}

// redirecting returns the URL of a server that redirects to another one.
func redirecting(t *testing.T, to string) string {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) }))
	t.Cleanup(srv.Close)
	return srv.URL
}

// Answers of a browser that are not to the login, or from another issuer, are refused and in the trace.
func TestLoginAttacksAreRecorded(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	is := newAuthServer(t)
	gd := newGuarded(t, is, "-era", "both")
	g := newGateway(t, byPerson(gd, "", ""))
	c := g.unstarted("http", mcpclient.Legacy)
	c.Capabilities = `{"elicitation":{"url":{}}}`
	startHost(t, ctx, c)
	m, err := c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":1}}`)
	var invited struct {
		Data struct{ Elicitations []struct{ URL string } }
	}
	if err != nil || json.Unmarshal(m.Error, &invited) != nil || len(invited.Data.Elicitations) != 1 {
		t.Fatalf("answer %s%s, %v", m.Result, m.Error, err)
	}
	stay := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	visit := func(at string) (int, string) {
		resp, err := stay.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Location")
	}
	refusals := func() (n int) {
		for _, r := range traceAs[audited](g, "--kind", "mcp/reject:login") {
			if r.Audit.Decision.Rule == "upstream_login" && r.From == "upstream:fake" {
				n++
			}
		}
		return n
	}
	for n, change := range []func(url.Values){
		func(q url.Values) { q.Set("state", "of-another-login") }, // replayed
		func(q url.Values) { q.Set("iss", "https://evil.example.com") },
	} {
		_, authorize := visit(invited.Data.Elicitations[0].URL)
		_, back := visit(authorize)
		u, err := url.Parse(back)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		change(q)
		u.RawQuery = q.Encode()
		visit(u.String())
		until(t, "the refusal is in the trace", func() bool { return refusals() == n+1 })
		if m, err := c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":1}}`); err != nil || m.Error == nil {
			t.Errorf("after an attack somebody is logged in: %s, %v", m.Result, err)
		}
	}
	g.stop()
	g.keepsTokens(c.Received())
}

func prm(resource, issuer string) func() any {
	return func() any {
		return map[string]any{"resource": resource, "authorization_servers": []string{issuer}}
	}
}

// Without a login in the configuration, the answer says how to give one.
func TestUpstreamWantsLogin(t *testing.T) {
	t.Parallel()
	for _, rpc := range []bool{false, true} {
		gd := newGuarded(t, newAuthServer(t))
		gd.rpc = rpc
		g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {url: %q}\n", gd.at))
		c := g.connect(testContext(t), "http", mcpclient.Legacy)
		if said := refused(t, tool(t, c, testContext(t), "fake__echo", `{}`)); !strings.Contains(said.Error.Message, "upstreams.fake.auth") || strings.Contains(said.Error.Message, "who are you?") != rpc {
			t.Errorf("refusal: %+v, want the key of the configuration", said)
		}
	}
}

// byPerson is the configuration of an upstream at which a person logs in.
func byPerson(gd *guarded, keys, more string) string {
	return fmt.Sprintf("upstreams:\n  fake:\n    url: %q\n    auth:\n      authorization_code: {%s}\n%s", gd.at, keys, more)
}

var loginURL = regexp.MustCompile(`\n(http://\S+/authorize\?\S+)\n`)

// login runs foldgate login with a browser in which the person consents, and returns what it printed.
func (g *gateway) login(args ...string) (string, error) {
	g.t.Helper()
	return g.loginWith(func(at string) {
		resp, err := http.Get(at) // follows the redirects, as a browser does
		if err != nil {
			g.t.Errorf("browser: %v", err)
			return
		}
		page, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(page), "You can close this page") {
			g.t.Errorf("the browser shows %d %s", resp.StatusCode, page)
		}
	}, args...)
}

func (g *gateway) loginWith(browser func(at string), args ...string) (string, error) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), testTimeout)
	defer cancel()
	cmd := g.command(append([]string{"login"}, args...)...)
	out := &buffer{}
	said := &buffer{}
	cmd.Stdout, cmd.Stderr = out, io.MultiWriter(&g.log, said)
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for opened := false; ; {
		changed := out.changed()
		if at := loginURL.FindStringSubmatch(out.String()); at != nil && !opened {
			opened = true
			browser(at[1])
		}
		select {
		case <-changed:
		case err := <-exited:
			return out.String() + said.String(), err
		case <-ctx.Done():
			_ = cmd.Process.Kill()
			g.t.Fatalf("foldgate login does not end; it printed %s", out.String())
		}
	}
}

// loggedIn logs in and returns the output.
func (g *gateway) loggedIn(args ...string) string {
	g.t.Helper()
	out, err := g.login(args...)
	if err != nil || !strings.Contains(out, "Logged in at fake") {
		g.t.Fatalf("foldgate login: %v\n%s", err, out)
	}
	return out
}

// echoes calls a tool through a login.
func echoes(t *testing.T, c *mcpclient.Client, ctx context.Context) {
	t.Helper()
	if got := text(t, c, ctx, "fake__echo", `{"n":1}`); !strings.Contains(got, `"n":1`) {
		t.Errorf("echo = %s", got)
	}
}

// A person logs in once. The gateway that runs sees it, renews it, and a restart keeps it, until
// logout.
func TestLoginOfPerson(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		is := newAuthServer(t)
		is.life = 3600
		gd := newGuarded(t, is, "-era", "both")
		gd.needs["text"] = "write"
		g := newGateway(t, byPerson(gd, "", ""))
		c := g.connect(ctx, transport, era)
		said := refused(t, tool(t, c, ctx, "fake__echo", `{}`))
		if said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "`foldgate login fake`") {
			t.Errorf("refusal without a login: %+v", said)
		}
		if n := len(gd.sent()); n > 0 {
			t.Errorf("the upstream was asked %d times without a login", n)
		}
		printed := g.loggedIn("fake")
		echoes(t, c, ctx)
		for range 2 { // the second time with the refresh token of the first
			is.revoke()
			echoes(t, c, ctx)
		}
		said = refused(t, tool(t, c, ctx, "fake__text", `{"text":"x"}`))
		if said.Error.Code != "insufficient_scope" || !strings.Contains(said.Error.Message, "`foldgate login fake --scopes \"write\"`") {
			t.Errorf("refusal without the scope: %+v", said)
		}
		printed += g.loggedIn("fake", "--scopes", "write")
		if got := text(t, c, ctx, "fake__text", `{"text":"written"}`); got != "written" {
			t.Errorf("with the scope = %s", got)
		}
		received := c.Received()
		g.stop()
		is.revoke()
		c = g.connect(ctx, transport, era)
		echoes(t, c, ctx)
		asked, replayed := is.asked()
		if n := is.grants("authorization_code"); n != 2 || replayed != 0 {
			t.Errorf("%d logins, %d refresh tokens used twice, want 2 and 0", n, replayed)
		}
		for _, f := range asked {
			if f.Get("resource") != gd.at || f.Get("client_id") == "" {
				t.Errorf("token request %v: want the resource and the client", f)
			}
		}
		if out := g.output("logout", "fake"); out != "Logged out at fake.\n" {
			t.Errorf("logout prints %s", out)
		}
		if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" {
			t.Errorf("refusal after logout: %+v", said)
		}
		received = append(append(received, c.Received()...), []byte(printed))
		g.stop()
		g.keepsTokens(received)
		var logins []string
		for _, r := range traceAs[audited](g, "--kind", "system/access", "--server", "fake") {
			logins = append(logins, r.From+string(r.Payload))
		}
		user := strconv.Itoa(os.Getuid())
		want := []string{`operator{"action":"login","scopes":["mcp"],"user":"` + user + `"}`, `operator{"action":"login","scopes":["mcp","write"],"user":"` + user + `"}`, `operator{"action":"logout","user":"` + user + `"}`}
		if diff := cmp.Diff(want, logins); diff != "" {
			t.Errorf("records of the logins (-want +got):\n%s", diff)
		}
	})
}

// A login brings the tools to hosts that run: they hear that the list changed without a call of theirs.
// So do hosts that saw the list of an earlier process.
func TestLoginBringsTools(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		gd := newGuarded(t, newAuthServer(t), "-era", "both")
		g := newGateway(t, byPerson(gd, "", ""))
		for _, known := range []bool{false, true} {
			c := g.connect(ctx, transport, era)
			var heard noted
			c.Handle = heard.handle(nil)
			hearsOfTools(t, c, transport, era)
			if got := names(t, c, "tools/list", "tools", "name"); slices.Contains(got, "fake__echo") != known {
				t.Errorf("tools without a login = %v, known from before: %v", got, known)
			}
			before := heard.has("tools/list_changed")
			g.loggedIn("fake")
			until(t, "list_changed arrives", func() bool { return heard.has("tools/list_changed") > before })
			if got := names(t, c, "tools/list", "tools", "name"); !slices.Contains(got, "fake__echo") {
				t.Errorf("tools after the login = %v", got)
			}
			echoes(t, c, ctx)
			g.output("logout", "fake")
			g.stop()
		}
	})
}

// Several processes on one state directory renew one login once: the issuer gives each refresh token
// one use, and ends the login after a second one.
func TestRenewedOnce(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	is := newAuthServer(t)
	is.life = 3600
	gd := newGuarded(t, is)
	g := newGateway(t, byPerson(gd, "", ""))
	g.loggedIn("fake")
	var hosts []*mcpclient.Client
	for range 3 {
		hosts = append(hosts, g.connect(ctx, "stdio", mcpclient.Modern))
	}
	for _, c := range hosts {
		echoes(t, c, ctx)
	}
	for round := range 3 {
		is.revoke()
		slow := make(chan struct{}) // so that all of them come while one is at it
		is.set(func() { is.slow = slow })
		before := len(gd.sent())
		var calls sync.WaitGroup
		for _, c := range hosts {
			for range 4 {
				calls.Go(func() {
					if m, err := c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":2}}`); err != nil || m.Error != nil || !strings.Contains(string(m.Result), `\"n\":2`) {
						t.Errorf("round %d: %s%s, %v", round, m.Result, m.Error, err)
					}
				})
			}
		}
		until(t, "calls are refused by the upstream", func() bool { return len(gd.sent()) >= before+12 })
		close(slow)
		calls.Wait()
	}
	if _, replayed := is.asked(); is.grants("refresh_token") != 3 || replayed != 0 {
		t.Errorf("%d renewals, %d of them with a token that was used, want 3 and 0", is.grants("refresh_token"), replayed)
	}
}

// A call that is cancelled does not lose the token that is on its way, and an issuer that is down does
// not end a login.
func TestRenewalSurvives(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	is := newAuthServer(t)
	gd := newGuarded(t, is)
	g := newGateway(t, byPerson(gd, "", ""))
	g.loggedIn("fake")
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	echoes(t, c, ctx)
	is.revoke()
	slow := make(chan struct{})
	is.set(func() { is.slow = slow })
	before := len(gd.sent())
	id, _, err := c.Send(ctx, "tools/call", `{"name":"fake__echo","arguments":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the upstream refuses the call", func() bool { return len(gd.sent()) > before })
	if err := c.Cancel(ctx, id, "enough"); err != nil {
		t.Fatal(err)
	}
	close(slow)
	echoes(t, c, ctx)
	is.revoke()
	is.set(func() { is.slow, is.down = nil, true })
	if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_failed" || !strings.Contains(said.Error.Message, "503") {
		t.Errorf("refusal while the issuer is down: %+v", said)
	}
	is.set(func() { is.down = false })
	until(t, "the issuer is asked again", func() bool {
		return !parseResult(t, tool(t, c, ctx, "fake__echo", `{}`)).IsError
	})
	if _, replayed := is.asked(); replayed != 0 {
		t.Errorf("%d refresh tokens used twice", replayed)
	}
	is.set(func() { clear(is.refresh) }) // somebody revokes the consent
	is.revoke()
	if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "foldgate login fake") {
		t.Errorf("refusal after the consent was revoked: %+v", said)
	}
	if n := is.grants("refresh_token"); parseResult(t, tool(t, c, ctx, "fake__echo", `{}`)).IsError && is.grants("refresh_token") != n {
		t.Error("a login that no longer holds is renewed again")
	}
	g.loggedIn("fake")
	echoes(t, c, ctx)
	received := c.Received()
	g.stop()
	g.keepsTokens(received)
}

// With per: principal nobody uses the login of another.
func TestLoginPerPrincipal(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			is := newAuthServer(t)
			gd := newGuarded(t, is, "-era", "both")
			g := newGateway(t, principals()+byPerson(gd, "per: principal", ""))
			at := g.http()
			alice, bob := g.as(t, at, era, "alice"), g.as(t, at, era, "bob")
			if said := g.output("check"); !strings.Contains(said, "fake: not checked: each principal has a login of its own there; foldgate check --as NAME ") {
				t.Errorf("check before somebody has logged in: %s", said)
			}
			if out, err := g.command("check", "--as", "alice").Output(); err == nil || !strings.Contains(string(out), "foldgate login fake --principal alice") {
				t.Errorf("check as alice, who has not logged in: %v, %s", err, out)
			}
			g.loggedIn("fake", "--principal", "alice")
			if said := g.output("check", "--as", "alice"); !strings.Contains(said, "fake: ok, ") {
				t.Errorf("check as alice: %s", said)
			}
			echoes(t, alice, ctx)
			if said := refused(t, tool(t, bob, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "foldgate login fake --principal bob") {
				t.Errorf("bob's refusal: %+v", said)
			}
			g.loggedIn("fake", "--principal", "bob")
			echoes(t, bob, ctx)
			if sent := slices.Compact(slices.Sorted(slices.Values(gd.sent()))); len(sent) < 3 { // "" is the probe of foldgate login
				t.Errorf("both used the tokens %q", sent)
			}
			g.output("logout", "fake", "--principal", "bob")
			echoes(t, alice, ctx)
			for _, args := range [][]string{{"fake"}, {"fake", "--principal", "carol"}, {"nothing"}, {}} {
				if out, err := g.login(args...); err == nil || !strings.Contains(err.Error(), "status 2") {
					t.Errorf("foldgate login %v: %v, %s", args, err, out)
				}
			}
		})
	}
}

// What an upstream says to alice, whose login is her own, is not told to bob, who has none: its lists and its
// instructions.
func TestListsOfALoginStayWithIt(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			is, answers := newAuthServer(t), filepath.Join(t.TempDir(), "answers")
			write(t, answers, `{"tools/list":{"tools":[{"name":"hers","inputSchema":{"type":"object"}}]},"prompts/list":{"prompts":[{"name":"hers"}]},`+
				`"initialize":{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}},"serverInfo":{"name":"fake","version":"1"},"instructions":"you are hers"}}`)
			gd := newGuarded(t, is, "-era", "legacy", "-answers", answers)
			g := newGateway(t, principals()+byPerson(gd, "per: principal", ""))
			lists := func(c *mcpclient.Client) string {
				return string(call(t, c, ctx, "tools/list", `{}`).Result) + string(call(t, c, ctx, "prompts/list", `{}`).Result)
			}
			g.loggedIn("fake", "--principal", "alice")
			at := g.http()
			until(t, "alice's lists are stored", func() bool {
				text, _ := os.ReadFile(filepath.Join(g.dir, "state", "upstreams.json"))
				return strings.Count(lists(g.as(t, at, era, "alice")), "fake__hers") == 2 && strings.Contains(string(text), "prompts/list")
			})
			for round := range 2 {
				if round > 0 {
					g.stop()
					at = g.http()
				}
				bob := g.as(t, at, era, "bob")
				if got := lists(bob); strings.Contains(got, "hers") {
					t.Errorf("start %d: bob's lists: %s", round+1, got)
				}
				if got := string(bytes.Join(bob.Received(), nil)); strings.Contains(got, "you are hers") {
					t.Errorf("start %d: bob is told: %s", round+1, got)
				}
				alice := g.as(t, at, era, "alice")
				if got := lists(alice); strings.Count(got, "fake__hers") != 2 {
					t.Errorf("start %d: alice's lists: %s", round+1, got)
				}
				if got := string(bytes.Join(alice.Received(), nil)); era == mcpclient.Legacy && !strings.Contains(got, "you are hers") {
					t.Errorf("start %d: alice is not told her instructions: %s", round+1, got)
				}
			}
		})
	}
}

// What an upstream can do for bob is said by the connection with his login, not by the one that was opened last.
func TestCapabilitiesOfALoginStayWithIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	gd := newGuarded(t, newAuthServer(t), "-era", "legacy")
	rest, logins := gd.Config.Handler, sync.Map{}
	gd.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if login := r.Header.Get("Authorization"); login != "" && bytes.Contains(body, []byte(`"initialize"`)) {
			logins.LoadOrStore("first", login)
			if first, _ := logins.Load("first"); first != login { // this one has no prompts
				answer := httptest.NewRecorder()
				rest.ServeHTTP(answer, r)
				maps.Copy(w.Header(), answer.Header())
				w.Header().Del("Content-Length")
				w.WriteHeader(answer.Code)
				_, _ = w.Write(bytes.Replace(answer.Body.Bytes(), []byte(`"prompts":`), []byte(`"none":`), 1))
				return
			}
		}
		rest.ServeHTTP(w, r)
	})
	g := newGateway(t, principals()+byPerson(gd, "per: principal", ""))
	g.loggedIn("fake", "--principal", "alice")
	g.loggedIn("fake", "--principal", "bob")
	at := g.http()
	bob := g.as(t, at, mcpclient.Modern, "bob")
	text(t, bob, ctx, "fake__pid", `{}`)
	alice := g.as(t, at, mcpclient.Modern, "alice")
	text(t, alice, ctx, "fake__pid", `{}`)
	got := append(names(t, bob, "prompts/list", "prompts", "name"), names(t, alice, "prompts/list", "prompts", "name")...)
	if !slices.Equal(got, []string{"fake__greet"}) {
		t.Errorf("one of the logins has a prompt, and both together list %q", got)
	}
}

// Why an upstream refuses alice, whose login is her own, is not told to bob, in no error and not by /readyz.
func TestFaultsOfALoginStayWithIt(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	gd := newGuarded(t, newAuthServer(t), "-era", "legacy")
	rest := gd.Config.Handler
	gd.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		var m struct {
			ID     json.RawMessage
			Method string
		}
		if _ = json.Unmarshal(body, &m); r.Header.Get("Authorization") != "" && m.Method == "initialize" {
			answerJSON(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32000, "message": "the account hers is suspended"}})
			return
		}
		rest.ServeHTTP(w, r)
	})
	g := newGateway(t, principals()+byPerson(gd, "per: principal", ""))
	g.loggedIn("fake", "--principal", "alice")
	at := g.http()
	alice, bob := g.as(t, at, mcpclient.Modern, "alice"), g.as(t, at, mcpclient.Modern, "bob")
	if got := string(tool(t, alice, ctx, "fake__echo", `{}`).Result); !strings.Contains(got, "hers is suspended") {
		t.Errorf("alice reads %s", got)
	}
	for _, name := range []string{"fake__echo", "nothing"} {
		if got := string(tool(t, bob, ctx, name, `{}`).Result); strings.Contains(got, "suspended") {
			t.Errorf("of %s bob reads %s", name, got)
		}
	}
	if _, _, got := answered(t, http.DefaultClient, "GET", strings.Replace(at, "/mcp", "/readyz", 1), "", bearer(tokenOf["bob"])); !strings.Contains(got, `"failed"`) || strings.Contains(got, "suspended") {
		t.Errorf("/readyz tells bob %s", got)
	}
	if !strings.Contains(g.log.String(), "hers is suspended") {
		t.Error("the log does not have the reason")
	}
}

// The browser's answer counts only if it is the one to this login, from this issuer.
func TestLoginAttacks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		back func(url.Values)
		says string
	}{
		"another issuer":            {func(q url.Values) { q.Set("iss", "https://evil.example.com") }, "another authorization server"},
		"error of another issuer":   {func(q url.Values) { q.Set("iss", "https://evil.example.com"); q.Set("error", "look-here") }, "another authorization server"},
		"issuer with another slash": {func(q url.Values) { q.Set("iss", q.Get("iss")+"/") }, "another authorization server"},
		"no issuer":                 {func(q url.Values) { q.Del("iss") }, "without the name"},
		"no code":                   {func(q url.Values) { q.Del("code") }, "without a code"},
		"another code":              {func(q url.Values) { q.Set("code", "planted-code-of-another") }, "invalid_grant"},
		"no consent": {func(q url.Values) {
			q.Del("code")
			q.Set("error", "access_denied")
			q.Set("error_description", "not \x1b[31m\u009b1m\u202etoday") // signs that a terminal obeys
		}, "access_denied not  [31m 1m today"},
	} {
		t.Run(name, func(t *testing.T) {
			is := newAuthServer(t)
			is.back = tt.back
			gd := newGuarded(t, is)
			g := newGateway(t, byPerson(gd, "", ""))
			out, err := g.login("fake")
			if err == nil || !strings.Contains(out, tt.says) || strings.Contains(out, "look-here") {
				t.Errorf("foldgate login: %v, want %q:\n%s", err, tt.says, out)
			}
			if files, _ := filepath.Glob(filepath.Join(g.dir, "state", "logins", "*@shared")); len(files) > 0 {
				t.Errorf("a login is stored: %v", files)
			}
		})
	}
	is := newAuthServer(t)
	gd := newGuarded(t, is)
	g := newGateway(t, byPerson(gd, "", ""))
	var good *url.URL
	out, err := g.loginWith(func(at string) {
		stay := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		resp, err := stay.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		good, _ = url.Parse(resp.Header.Get("Location"))
		visit := func(change func(u *url.URL, q url.Values), host string, want int) {
			u, q := *good, good.Query()
			change(&u, q)
			u.RawQuery = q.Encode()
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, u.String(), nil)
			req.Host = host
			resp, err := stay.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			page, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != want || strings.Contains(string(page), "mark") {
				t.Errorf("%s: %d %s, want %d", u.String(), resp.StatusCode, page, want)
			}
		}
		visit(func(_ *url.URL, q url.Values) { q.Set("state", "mark"); q.Set("code", "stolen") }, "", 400)
		visit(func(_ *url.URL, q url.Values) { q.Del("state") }, "", 400)
		visit(func(u *url.URL, _ url.Values) { u.Path = "/<mark>" }, "", 404)
		visit(func(*url.URL, url.Values) {}, "evil.example.com", 404)
		visit(func(*url.URL, url.Values) {}, "", 200)
	}, "fake")
	if err != nil || !strings.Contains(out, "Logged in") {
		t.Errorf("after wrong answers the right one: %v, %s", err, out)
	}
	if _, err := http.Get(good.String()); err == nil {
		t.Error("after the login the callback still listens")
	}
}

// A client of the configuration is used, else foldgate's document, else a new registration. A secret
// goes to the issuer of the configuration only.
func TestLoginClients(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		keys, client string
		document     bool
		secret       string
	}{
		"registered before": {"client_id: mine, client_metadata_url: \"https://example.com/foldgate.json\"", "mine", true, ""},
		"with a secret":     {"client_id: mine, client_secret: planted-secret-of-mine", "", true, "planted-secret-of-mine"},
		"document":          {"client_metadata_url: \"https://example.com/foldgate.json\"", "https://example.com/foldgate.json", true, ""},
		"no documents":      {"client_metadata_url: \"https://example.com/foldgate.json\"", "registered-1", false, ""},
		"registration":      {"", "registered-1", true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			is := newAuthServer(t)
			is.meta["client_id_metadata_document_supported"] = tt.document
			gd := newGuarded(t, is)
			config := byPerson(gd, tt.keys, "")
			if tt.secret != "" {
				is.secrets["mine"] = tt.secret
				config += fmt.Sprintf("      issuer: %q\n", is.URL)
			}
			g := newGateway(t, config)
			g.loggedIn("fake")
			echoes(t, g.connect(testContext(t), "stdio", mcpclient.Modern), testContext(t))
			if asked, _ := is.asked(); asked[0].Get("client_id") != tt.client {
				t.Errorf("the client is %q, want %q", asked[0].Get("client_id"), tt.client)
			}
			g.stop()
			g.keepsTokens(nil)
		})
	}
}

// A stored login can be read by its owner only, opens only with its key, and only as what it is.
func TestStoredLogins(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	is := newAuthServer(t)
	gd := newGuarded(t, is)
	config := func(key string) string {
		return byPerson(gd, "per: principal", "logins: {key: \""+key+"\"}\n"+principals())
	}
	g := newGateway(t, config(strings.Repeat("k", 32)))
	g.loggedIn("fake", "--principal", "alice")
	dir := filepath.Join(g.dir, "state", "logins")
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s: %v, %v", dir, info.Mode(), err)
	}
	files, _ := filepath.Glob(filepath.Join(dir, "fake@*"))
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "key")); err == nil {
		t.Error("there is a key file beside the key of the configuration")
	}
	sealed := read(t, files[0])
	g.loggedIn("fake", "--principal", "bob")
	for _, file := range files { // alice's login under bob's name
		others, _ := filepath.Glob(filepath.Join(dir, "fake@*"))
		for _, other := range others {
			if other != file && !strings.HasSuffix(other, ".lock") && !slices.Contains(files, other) {
				write(t, other, sealed)
			}
		}
	}
	at := g.http()
	echoes(t, g.as(t, at, mcpclient.Modern, "alice"), ctx)
	if said := refused(t, tool(t, g.as(t, at, mcpclient.Modern, "bob"), ctx, "fake__echo", `{}`)); !strings.Contains(said.Error.Message, "does not open") {
		t.Errorf("bob with alice's file: %+v", said)
	}
	g.stop()
	write(t, g.config, "state_dir: state\n"+config(strings.Repeat("x", 32)))
	if said := refused(t, tool(t, g.as(t, g.http(), mcpclient.Modern, "alice"), ctx, "fake__echo", `{}`)); !strings.Contains(said.Error.Message, "does not open with the key") {
		t.Errorf("alice with another key: %+v", said)
	}
	if bytes.Contains(sealed, []byte("planted")) {
		t.Error("the login is stored in plain text")
	}
}

// A key file that the configuration names is never made: it may be on a volume that is not mounted. Nobody is
// asked to log in before it is there.
func TestLoginsKeyFileMissing(t *testing.T) {
	t.Parallel()
	gd := newGuarded(t, newAuthServer(t))
	g := newGateway(t, byPerson(gd, "", "logins: {key_file: nokey}\n"))
	out, err := g.login("fake", "--wait", "5s")
	if err == nil || strings.Contains(out, "Open this URL") || !strings.Contains(out, "logins.key_file") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(g.dir, "nokey")); err == nil {
		t.Error("foldgate has made the file")
	}
}

// Another program on redirect_port is named before anybody is asked to log in.
func TestRedirectPortTaken(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(nil)
	defer other.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(other.URL, "http://"), ":")
	g := newGateway(t, byPerson(newGuarded(t, newAuthServer(t)), "redirect_port: "+port, ""))
	if out, err := g.login("fake"); err == nil || strings.Contains(out, "Open this URL") || !strings.Contains(out, "redirect_port: another program has the port "+port) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A host on this machine that can show a URL to its person gets one, at once; when the person has logged
// in there, the call works. Others get the command.
func TestLoginByURL(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		is := newAuthServer(t)
		gd := newGuarded(t, is, "-era", "both")
		g := newGateway(t, byPerson(gd, "", ""))
		c := g.unstarted(transport, era)
		c.Capabilities = `{"elicitation":{"url":{}}}`
		startHost(t, ctx, c)
		// ask returns the URL that a call is answered with.
		ask := func(params string) string {
			m, err := c.Call(ctx, "tools/call", params)
			if err != nil {
				t.Fatal(err)
			}
			var legacy struct {
				Code int
				Data struct {
					Elicitations []struct{ Mode, URL, Message, ElicitationID string }
				}
			}
			var modern struct {
				ResultType    string
				InputRequests map[string]struct {
					Method string
					Params struct{ Mode, URL, Message string }
				}
			}
			if era == mcpclient.Legacy {
				if err := json.Unmarshal(m.Error, &legacy); err != nil || legacy.Code != -32042 || len(legacy.Data.Elicitations) != 1 {
					t.Fatalf("answer %s%s, want the error -32042 with a URL", m.Result, m.Error)
				}
				e := legacy.Data.Elicitations[0]
				if e.Mode != "url" || e.ElicitationID == "" || e.Message == "" {
					t.Errorf("elicitation %+v", e)
				}
				return e.URL
			}
			if err := json.Unmarshal(m.Result, &modern); err != nil || modern.ResultType != "input_required" || len(modern.InputRequests) != 1 {
				t.Fatalf("answer %s%s, want input_required with a URL", m.Result, m.Error)
			}
			e := modern.InputRequests["foldgate_login"]
			if e.Method != "elicitation/create" || e.Params.Mode != "url" || e.Params.Message == "" {
				t.Errorf("input request %+v", e)
			}
			return e.Params.URL
		}
		at := ask(`{"name":"fake__echo","arguments":{"n":1}}`)
		if again := ask(`{"name":"fake__echo","arguments":{"n":1}}`); again != at {
			t.Errorf("two pages for one login: %s and %s", at, again)
		}
		if era == mcpclient.Modern {
			for _, action := range []string{"decline", "accept"} { // and has not logged in
				m := call(t, c, ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":1},"inputResponses":{"foldgate_login":{"action":"`+action+`"}}}`)
				if said := refused(t, m); said.Error.Code != "login_required" {
					t.Errorf("after %s: %+v", action, said)
				}
			}
		}
		for path, want := range map[string]int{"/": 404, "/login/": 404, "/login/AAAAAAAAAAAAAAAAAAAAAAAAAA": 404} {
			u, _ := url.Parse(at)
			resp, err := http.Get("http://" + u.Host + path)
			if err != nil || resp.StatusCode != want {
				t.Errorf("%s: %v, %v", path, resp.StatusCode, err)
			}
			resp.Body.Close()
		}
		resp, err := http.Get(at)
		if err != nil {
			t.Fatal(err)
		}
		page, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 200 || !strings.Contains(string(page), "You can close this page") {
			t.Fatalf("the browser shows %d %s", resp.StatusCode, page)
		}
		until(t, "the login is stored", func() bool { return strings.Contains(g.log.String(), "somebody has logged in") })
		m := call(t, c, ctx, "tools/call", `{"name":"fake__echo","arguments":{"n":1},"inputResponses":{"foldgate_login":{"action":"accept"}}}`)
		if got := parseResult(t, m); got.IsError || era == mcpclient.Modern && strings.Contains(string(m.Result), "foldgate_login") {
			t.Errorf("after the login: %s", m.Result)
		}
		until(t, "the page is gone", func() bool { _, err := http.Get(at); return err != nil })
		received := c.Received()
		g.stop()
		g.keepsTokens(received)
	})
	g := newGateway(t, principals()+byPerson(newGuarded(t, newAuthServer(t)), "", ""))
	c := mcpclient.HTTP(g.http(), mcpclient.Legacy, "Authorization", "Bearer "+tokenOf["alice"])
	c.Capabilities = `{"elicitation":{"url":{}}}`
	startHost(t, testContext(t), c)
	g.closes(c)
	if said := refused(t, tool(t, c, testContext(t), "fake__echo", `{}`)); said.Error.Code != "login_required" { // the browser could be another principal's
		t.Errorf("with principals: %+v", said)
	}
}
