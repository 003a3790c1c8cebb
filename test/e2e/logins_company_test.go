//go:build e2e

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/issuer"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// company is the authorization server of a company that trusts its identity provider, and an upstream.
type company struct {
	provider, is *authServer
	gd           *guarded
}

func newCompany(t *testing.T) *company {
	c := &company{provider: newAuthServer(t), is: newAuthServer(t)}
	c.provider.secrets["foldgate"] = "planted-secret-at-the-provider"
	c.provider.meta["registration_endpoint"] = nil
	c.is.secrets["robot"] = "planted-secret-of-the-robot"
	c.provider.trusts = func(kind, token string) (string, bool) { // it holds its lock
		g, ok := c.provider.ids[token]
		return g.subject, ok && kind == "id_token"
	}
	c.is.trusts = func(kind, token string) (string, bool) {
		c.provider.mu.Lock()
		defer c.provider.mu.Unlock()
		g, ok := c.provider.ids[token]
		return g.subject, ok && kind == "assertion" && g.audience == c.is.URL && g.resource == c.gd.at
	}
	c.gd = newGuarded(t, c.is, "-era", "both")
	return c
}

// upstream is the configuration of an upstream at which the provider vouches for persons.
func (c *company) upstream(name, per string) string {
	return fmt.Sprintf("  %s:\n    url: %q\n    auth:\n      enterprise:\n        client: {client_id: robot, client_secret: planted-secret-of-the-robot}\n"+
		"        provider: {issuer: %q, client_id: foldgate, client_secret: planted-secret-at-the-provider}\n        per: %s\n      issuer: %q\n", name, c.gd.at, c.provider.URL, per, c.is.URL)
}

// A person logs in once at the company's identity provider, which vouches for the person at the
// authorization servers of upstreams. Two upstreams need one login. It is renewed, ends with logout, and
// another person's login gives other tokens.
func TestEnterpriseLogin(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		co := newCompany(t)
		co.provider.subject = "ann"
		co.is.life = 3600
		co.gd.needs["text"] = "write"
		g := newGateway(t, "upstreams:\n"+co.upstream("fake", "shared")+co.upstream("second", "shared"))
		c := g.connect(ctx, transport, era)
		said := refused(t, tool(t, c, ctx, "fake__echo", `{}`))
		if said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "`foldgate login fake`") {
			t.Errorf("refusal without a login: %+v", said)
		}
		if n := len(co.gd.sent()); n > 0 {
			t.Errorf("the upstream was asked %d times without a login", n)
		}
		printed := g.loggedIn("fake")
		echoes(t, c, ctx)
		if got := text(t, c, ctx, "second__echo", `{"n":1}`); !strings.Contains(got, `"n":1`) {
			t.Errorf("the second upstream = %s", got)
		}
		if n := co.provider.grants("authorization_code"); n != 1 {
			t.Errorf("%d logins for two upstreams, want 1", n)
		}
		co.is.revoke()
		var calls sync.WaitGroup
		before := co.is.grants("urn:ietf:params:oauth:grant-type:jwt-bearer")
		for range 8 {
			calls.Go(func() { echoes(t, c, ctx) })
		}
		calls.Wait()
		if n := co.is.grants("urn:ietf:params:oauth:grant-type:jwt-bearer") - before; n < 1 || n > 2 { // the stream of the other upstream may need one, too
			t.Errorf("%d assertions used for eight calls at once, want one for each upstream at most", n)
		}
		if got := text(t, c, ctx, "fake__text", `{"text":"written"}`); got != "written" {
			t.Errorf("a tool that needs another scope = %s", got)
		}
		asked, _ := co.provider.asked()
		for _, f := range asked {
			if f.Get("grant_type") == "authorization_code" {
				if f.Has("resource") {
					t.Errorf("the login names a resource: %v", f)
				}
			} else if f.Get("audience") != co.is.URL || f.Get("resource") != co.gd.at {
				t.Errorf("the exchange asks for %v", f)
			}
		}
		for _, subject := range subjectsOf(co.is) {
			if subject != "ann" {
				t.Errorf("a token is for %s", subject)
			}
		}
		co.provider.set(func() { co.provider.subject = "ben" })
		if out, err := g.login("second"); err != nil || !strings.Contains(out, "Logged in at second") {
			t.Errorf("foldgate login second: %v, %s", err, out)
		}
		echoes(t, c, ctx)
		if got := subjectsOf(co.is); !slices.Contains(got, "ben") {
			t.Errorf("after another person's login the tokens are for %v", got)
		}

		// The provider no longer takes the ID token, which is renewed; then it ends the login, then the
		// person logs out.
		co.provider.set(func() { clear(co.provider.ids) })
		co.is.revoke()
		echoes(t, c, ctx)
		co.provider.set(func() { clear(co.provider.ids); clear(co.provider.refresh) })
		co.is.revoke()
		if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "foldgate login fake") {
			t.Errorf("refusal after the provider ended the login: %+v", said)
		}
		printed += g.loggedIn("fake")
		echoes(t, c, ctx)
		g.output("logout", "fake")
		if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" {
			t.Errorf("refusal after logout: %+v", said)
		}
		received := append(c.Received(), []byte(printed))
		g.stop()
		g.keepsTokens(received)
	})
}

// subjectsOf returns whom the access tokens of a server are for.
func subjectsOf(is *authServer) (all []string) {
	is.mu.Lock()
	defer is.mu.Unlock()
	for _, g := range is.live {
		all = append(all, g.subject)
	}
	return all
}

// An ID token that has expired is renewed by the refresh token of the login, once, and a login that the
// provider does not renew is one that the person makes again.
func TestEnterpriseRenewal(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	co := newCompany(t)
	co.provider.life = 1 // an ID token that is no JSON Web Token lives as long as the access token
	g := newGateway(t, principals()+"upstreams:\n"+co.upstream("fake", "principal"))
	at := g.http()
	alice, bob := g.as(t, at, mcpclient.Modern, "alice"), g.as(t, at, mcpclient.Modern, "bob")
	for _, who := range []string{"alice", "bob"} {
		co.provider.set(func() { co.provider.subject = who })
		g.loggedIn("fake", "--principal", who)
	}
	echoes(t, alice, ctx)
	echoes(t, bob, ctx)
	if got := slices.Compact(slices.Sorted(slices.Values(subjectsOf(co.is)))); !slices.Equal(got, []string{"alice", "bob"}) {
		t.Errorf("tokens for %v, want one for each", got)
	}
	until(t, "an ID token is renewed", func() bool {
		co.is.revoke()
		echoes(t, alice, ctx)
		return co.provider.grants("refresh_token") > 0
	})
	if _, replayed := co.provider.asked(); replayed != 0 {
		t.Errorf("%d refresh tokens used twice", replayed)
	}
	co.provider.set(func() { clear(co.provider.refresh); clear(co.provider.ids) })
	co.is.revoke()
	if said := refused(t, tool(t, alice, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, "foldgate login fake --principal alice") {
		t.Errorf("refusal after the provider ended the login: %+v", said)
	}
	received := append(alice.Received(), bob.Received()...)
	g.stop()
	g.keepsTokens(received)
}

// What the identity provider answers wrongly, and what its metadata says wrongly, gives no token.
func TestEnterpriseFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		breaks func(*company)
		says   string
	}{
		"client unknown at the upstream's": {func(co *company) { co.is.secrets["robot"] = "another" }, "invalid_client"},
		"provider is down":                 {func(co *company) { co.provider.down = true }, "HTTP 503"},
		"not trusted":                      {func(co *company) { co.is.trusts = func(string, string) (string, bool) { return "", false } }, "invalid_grant"},
		"another resource":                 {func(co *company) { co.gd.prm = prm("https://evil.example.com/mcp", co.is.URL) }, "must not go to the other"},
		"another issuer":                   {func(co *company) { co.gd.prm = prm(co.gd.at, "https://evil.example.com") }, "evil.example.com"},
		"token to inside":                  {func(co *company) { co.is.meta["token_endpoint"] = "https://169.254.169.254/token" }, "public"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			co := newCompany(t)
			g := newGateway(t, "upstreams:\n"+co.upstream("fake", "shared"))
			g.loggedIn("fake")
			tt.breaks(co)
			c := g.connect(ctx, "http", mcpclient.Modern)
			said := refused(t, tool(t, c, ctx, "fake__echo", `{}`))
			if said.Error.Code != "login_failed" || !strings.Contains(said.Error.Message, tt.says) {
				t.Errorf("refusal: %+v, want %q", said, tt.says)
			}
			g.stop()
			g.keepsTokens(c.Received())
		})
	}
	co := newCompany(t)
	co.provider.meta["issuer"] = "https://evil.example.com"
	g := newGateway(t, "upstreams:\n"+co.upstream("fake", "shared"))
	if out, err := g.login("fake"); err == nil || !strings.Contains(out, "identity provider") || !strings.Contains(out, "evil.example.com") {
		t.Errorf("a provider with the metadata of another: %v, %s", err, out)
	}
}

// With token_exchange an upstream gets a token for the caller of each call, in exchange for the caller's
// own, which goes to its issuer only. Who has no token of the issuer has none there.
func TestTokenExchange(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			signs, other, is := issuer.New(t), issuer.New(t), newAuthServer(t)
			signs.Answer(func(w http.ResponseWriter, r *http.Request) bool { // it has the token endpoint of is
				if !strings.HasPrefix(r.URL.Path, "/.well-known/") {
					return false
				}
				answerJSON(w, 200, map[string]any{"issuer": signs.URL, "jwks_uri": signs.URL + "/jwks", "authorization_endpoint": is.URL + "/authorize", "token_endpoint": is.URL + "/token", "code_challenge_methods_supported": []string{"S256"}})
				return true
			})
			is.secrets["robot"] = "planted-secret-of-the-robot"
			is.trusts = func(kind, token string) (string, bool) {
				payload, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
				var claims struct{ Sub, Iss string }
				_ = json.Unmarshal(payload, &claims)
				return claims.Sub, kind == "access_token" && claims.Iss == signs.URL
			}
			gd := newGuarded(t, is, "-era", "both")
			gd.prm = prm(gd.at, signs.URL)
			upstream := fmt.Sprintf("upstreams:\n  fake:\n    url: %q\n    auth:\n      token_exchange: {client_id: robot, client_secret: planted-secret-of-the-robot}\n      issuer: %q\n", gd.at, signs.URL)
			g := newGateway(t, principals()+issuers(map[string]*issuer.Issuer{"corp": signs, "other": other})+upstream)
			at := g.http()
			anns := tokenFor(signs, "ann", nil)
			ann, ben, guest := g.host(t, at, era, anns), g.host(t, at, era, tokenFor(signs, "ben", nil)), g.host(t, at, era, tokenFor(other, "ann", nil))
			for range 2 {
				echoes(t, ann, ctx)
				echoes(t, ben, ctx)
			}
			got := slices.Sorted(slices.Values(subjectsOf(is)))
			if !slices.Equal(got, []string{"ann", "ben"}) {
				t.Errorf("tokens for %v, want one for each", got)
			}
			for name, c := range map[string]*mcpclient.Client{"another issuer's": guest, "a static token's": g.as(t, at, era, "alice")} {
				if said := refused(t, tool(t, c, ctx, "fake__echo", `{}`)); said.Error.Code != "login_required" || !strings.Contains(said.Error.Message, signs.URL) {
					t.Errorf("%s: %+v", name, said)
				}
			}
			asked, _ := is.asked()
			for _, f := range asked {
				if f.Get("resource") != gd.at || f.Get("requested_token_type") != "urn:ietf:params:oauth:token-type:access_token" {
					t.Errorf("the exchange asks for %v", f)
				}
			}
			if slices.Contains(gd.sent(), anns) {
				t.Error("the upstream got the caller's own token")
			}
			g.configure(strings.Replace(principals()+issuers(map[string]*issuer.Issuer{"corp": signs, "other": other})+upstream, "auth:\n", "auth:\n  revoked: [\"corp:eve\"]\n", 1))
			g.reload(reloaded)
			is.revoke()
			echoes(t, ann, ctx) // after a reload, too
			for _, as := range []string{"", "corp:ann"} {
				if said := g.output(append([]string{"check"}, map[string][]string{"corp:ann": {"--as", as}}[as]...)...); !strings.Contains(said, "fake: not checked: it takes the caller's own token") {
					t.Errorf("check as %q: %s", as, said)
				}
			}
			received := append(ann.Received(), guest.Received()...)
			g.stop()
			g.keepsTokens(received)
			g.keepsSecret(anns, received)
		})
	}
}
