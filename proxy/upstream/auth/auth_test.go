package auth

import (
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
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

// No error of a token endpoint has a secret that it was sent.
func TestTidy(t *testing.T) {
	got := tidy("bad\x1b[31m s3cret-one \n"+strings.Repeat("ü", 500)+"s3cret-one", 100, []string{"s3cret-one", ""})
	if strings.Contains(got, "s3cret") || strings.ContainsAny(got, "\x1b\n") || len(got) > 104 {
		t.Errorf("tidy = %q", got)
	}
}
