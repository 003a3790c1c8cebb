package auth

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
)

// An upstream can send foldgate to public addresses only. The hosts of the configuration may be
// anywhere.
func TestGuard(t *testing.T) {
	inside := []string{
		"10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "127.0.0.1", "0.0.0.0", "100.64.0.1", "192.0.0.8", "198.18.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255",
		"::1", "::", "fe80::1", "fc00::1", "fd12::1", "ff02::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001::1",
	}
	outside := []string{"1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"}
	far := newClient("https://mcp.example.com/mcp", "https://login.internal/").Transport.(guard)
	near := newClient("http://localhost:1/mcp", "").Transport.(guard)
	for _, list := range [][]string{inside, outside} {
		for _, text := range list {
			ip, public := netip.MustParseAddr(text), !slices.Contains(inside, text)
			if err := far.allow("evil.example.com", ip); (err == nil) != public {
				t.Errorf("%s from a public upstream: %v", text, err)
			}
			if err := near.allow("evil.example.com", ip); (err == nil) != (public || ip.Unmap().IsLoopback()) {
				t.Errorf("%s from a local upstream: %v", text, err)
			}
			for _, host := range []string{"mcp.example.com", "login.internal"} {
				if err := far.allow(host, ip); err != nil {
					t.Errorf("%s of the configured host %s: %v", text, host, err)
				}
			}
		}
	}
	for at, fine := range map[string]bool{"http://example.com/": false, "ftp://example.com/": false, "https://10.0.0.1/": false, "http://[::1]/": false} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := far.RoundTrip(req); (err == nil) != fine {
			t.Errorf("%s: %v", at, err)
		} else if err == nil {
			resp.Body.Close()
		}
	}
}

// A token for an upstream is asked for only if the metadata is about it or a path above.
func TestCovers(t *testing.T) {
	endpoint, err := url.Parse("https://mcp.example.com/a/mcp")
	if err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[string]bool{
		"https://mcp.example.com/a/mcp": true, "https://mcp.example.com/a/mcp/": true, "https://mcp.example.com/a": true, "https://mcp.example.com": true, "HTTPS://MCP.example.com/": true,
		"https://mcp.example.com/a/m": false, "https://mcp.example.com/b": false, "https://mcp.example.com/a/mcp/x": false, "http://mcp.example.com/a/mcp": false,
		"https://mcp.example.com:444/a/mcp": false, "https://evil.example.com/a/mcp": false, "https://mcp.example.com.evil.com/": false, "https://mcp.example.com/a/mcp?x=1": false, "": false, "::": false,
	} {
		if got := covers(resource, endpoint); got != want {
			t.Errorf("covers(%q) = %v", resource, got)
		}
	}
}

func FuzzChallenge(f *testing.F) {
	for _, s := range []string{
		`Bearer`, `Bearer resource_metadata="https://h/.well-known/x", scope="a b", error="insufficient_scope"`, `Basic realm="x", Bearer scope=a`, `Bearer scope="a`, `,,=`, `Bearer scope="` + strings.Repeat("a ", 100) + `"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, header string) {
		c := readChallenge(http.Header{"Www-Authenticate": {header}})
		if len(c.scopes) > maxScopes {
			t.Errorf("%d scopes", len(c.scopes))
		}
		for _, s := range c.scopes {
			if s == "" || len(s) > maxScope || strings.ContainsFunc(s, unprintable) {
				t.Errorf("scope %q", s)
			}
		}
	})
}

// answering is an authorization server, and an upstream, that answers with texts, by the path.
type answering struct {
	t       *testing.T
	answers map[string]string
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" {
		a.t.Errorf("foldgate asks at %s", r.URL)
	}
	for part, body := range a.answers {
		if strings.Contains(r.URL.Path, part) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		}
	}
	return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// Whatever an upstream and an authorization server answer, a token is asked for this upstream only, it is
// fit for a header, and no error has a secret.
func FuzzMetadata(f *testing.F) {
	const endpoint, issuer = "https://mcp.example.com/a/mcp", "https://login.example.com"
	const resource = `{"resource":"https://mcp.example.com/a/mcp","authorization_servers":["https://login.example.com"],"scopes_supported":["a"]}`
	const meta = `{"issuer":"https://login.example.com","authorization_endpoint":"https://login.example.com/authorize","token_endpoint":"https://login.example.com/token","response_types_supported":["code"],"code_challenge_methods_supported":["S256"]}`
	for _, token := range []string{`{"access_token":"x","token_type":"bearer","expires_in":3600}`, `{"access_token":"a b"}`, `{"access_token":1}`, `{"error":"invalid_grant","error_description":"you sent s3cret-one"}`, `{"access_token":"x","expires_in":1e99}`, `s3cret-one`, ``} {
		f.Add(resource, meta, token)
	}
	f.Add(`{"resource":"https://evil.example.com/"}`, meta, ``)
	f.Add(`{"resource":"https://mcp.example.com","authorization_servers":["file:///etc/passwd","http://10.0.0.1"]}`, meta, ``)
	f.Add(``, `{"issuer":"https://mcp.example.com","token_endpoint":"http://169.254.169.254/token"}`, ``)
	f.Fuzz(func(t *testing.T, resource, meta, token string) {
		for _, want := range []string{"", issuer} {
			c := newClient(endpoint, want)
			g := c.Transport.(guard)
			g.next = answering{t, map[string]string{"oauth-protected-resource": resource, "oauth-authorization-server": meta, "openid-configuration": meta, "token": token}}
			c.Transport = g
			s, err := discover(t.Context(), c, endpoint, want, challenge{})
			if err != nil {
				continue
			}
			if u, _ := url.Parse(endpoint); !covers(s.resource, u) || s.TokenEndpoint == "" {
				t.Errorf("a token for %q at %q", s.resource, s.TokenEndpoint)
			}
			if want != "" && !sameIssuer(s.Issuer, want) {
				t.Errorf("the issuer is %q", s.Issuer)
			}
			got, err := requestToken(t.Context(), c, s.TokenEndpoint, client{ID: "x", Secret: "s3cret-one"}, url.Values{"refresh_token": {"s3cret-two"}})
			switch {
			case err != nil && strings.Contains(err.Error(), "s3cret") && !strings.Contains(s.TokenEndpoint, "s3cret"):
				t.Errorf("an error with a secret: %v", err)
			case err == nil && (got.Access == "" || len(got.Access) > maxToken || strings.ContainsFunc(got.Access, func(r rune) bool { return r <= ' ' || r > '~' })):
				t.Errorf("a token that no header can have: %q", got.Access)
			case err == nil && got.Expiry.Before(got.Renew):
				t.Errorf("a token is renewed at %s, after it ends at %s", got.Renew, got.Expiry)
			}
		}
	})
}

// Of more logins than may be kept, the ones that are in use stay.
func TestLoginsAreBounded(t *testing.T) {
	ls := New(config.Config{StateDir: t.TempDir()}, slog.New(slog.DiscardHandler))
	defer ls.Close()
	u := &config.Upstream{URL: "https://mcp.example.com/mcp", Auth: &config.Auth{AuthorizationCode: &config.AuthorizationCode{Per: "principal"}}}
	first := ls.For("up", u, "first")
	for i := range maxLogins + 50 {
		ls.For("up", u, fmt.Sprint(i))
		if i%100 == 0 && ls.For("up", u, "first") != first {
			t.Fatal("a login that is in use is forgotten")
		}
	}
	if n := len(ls.all); n != maxLogins {
		t.Errorf("%d logins are kept, want %d", n, maxLogins)
	}
}

// No error of a token endpoint has a secret that it was sent.
func TestTidy(t *testing.T) {
	got := tidy("bad\x1b[31m s3cret-one \n"+strings.Repeat("ü", 500)+"s3cret-one", 100, []string{"s3cret-one", ""})
	if strings.Contains(got, "s3cret") || strings.ContainsAny(got, "\x1b\n") || len(got) > 104 {
		t.Errorf("tidy = %q", got)
	}
}

// The path of a configured URL can be a credential: no error about the metadata of a server shows it.
func TestNoPathInErrorsOfMetadata(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }))
	defer broken.Close()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, at := range []string{broken.URL, closed.URL} {
		for _, named := range []string{"", at + "/.well-known/x/plain-path", at + "/plain-path\x01"} {
			_, err := resourceMetadata(t.Context(), http.DefaultClient, at+"/s/plain-path", named)
			if err == nil || strings.Contains(err.Error(), "plain-path") || !strings.Contains(err.Error(), strings.TrimPrefix(at, "http://")) {
				t.Errorf("%s, %q: %v", at, named, err)
			}
		}
	}
}
