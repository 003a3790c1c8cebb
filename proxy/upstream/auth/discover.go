package auth

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/foldgate/foldgate/internal/publicip"
)

const (
	requestTimeout = 10 * time.Second // of one request for metadata or a token
	maxDocument    = 1 << 20          // of metadata or a token response, in bytes
	maxRedirects   = 3
)

// server is the authorization server of an upstream.
type server struct {
	resource string   // the upstream, as its tokens name it
	scopes   []string // that the upstream says it has
	*oauthex.AuthServerMeta
}

// discover finds the authorization server of the upstream at endpoint. challenge is what the upstream
// answered to a request without a token. If issuer is not "", no other server will do.
func discover(ctx context.Context, c *http.Client, endpoint, issuer string, challenge challenge) (*server, error) {
	s := &server{resource: endpoint}
	found, err := resourceMetadata(ctx, c, endpoint, challenge.metadata)
	if err != nil {
		return nil, err
	}
	origin, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	at := origin.Scheme + "://" + origin.Host // where revision 2025-03-26 expects it
	switch {
	case found == nil:
		at = cmp.Or(issuer, at)
	case len(found.AuthorizationServers) == 0:
		return nil, errors.New("its metadata names no authorization server")
	case issuer == "":
		at = found.AuthorizationServers[0]
	default:
		at = issuer
		if !slices.ContainsFunc(found.AuthorizationServers, func(s string) bool { return sameIssuer(s, issuer) }) {
			return nil, fmt.Errorf("its metadata names the authorization servers %.200q, and the configuration only %q (issuer)", found.AuthorizationServers, issuer)
		}
	}
	if found != nil {
		s.resource, s.scopes = found.Resource, found.ScopesSupported
	}
	if s.AuthServerMeta, err = sdk.GetAuthServerMetadata(ctx, at, c); err != nil {
		return nil, fmt.Errorf("metadata of its authorization server: %w", err)
	}
	if s.AuthServerMeta == nil {
		if found != nil || issuer != "" {
			return nil, fmt.Errorf("its authorization server %.200q has no metadata", at)
		}
		s.AuthServerMeta = &oauthex.AuthServerMeta{Issuer: at, AuthorizationEndpoint: at + "/authorize", TokenEndpoint: at + "/token", RegistrationEndpoint: at + "/register"}
	}
	if s.TokenEndpoint == "" {
		return nil, fmt.Errorf("metadata of its authorization server %.200q names no token_endpoint", at)
	}
	return s, nil
}

// sameIssuer compares two issuers as written in configurations and metadata.
func sameIssuer(a, b string) bool { return strings.TrimSuffix(a, "/") == strings.TrimSuffix(b, "/") }

// resourceMetadata reads the protected resource metadata (RFC 9728) of endpoint: at the URL that the
// upstream named, else at the well-known places. It returns nil if there is none.
func resourceMetadata(ctx context.Context, c *http.Client, endpoint, named string) (*oauthex.ProtectedResourceMetadata, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	places := []string{named}
	if named == "" {
		root := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/.well-known/oauth-protected-resource"}
		below := root
		below.Path += "/" + strings.TrimLeft(u.Path, "/")
		places = slices.Compact([]string{strings.TrimSuffix(below.String(), "/"), root.String()})
	}
	for _, at := range places {
		found, err := readMetadata(ctx, c, at)
		if err != nil {
			if asked, ok := errors.AsType[*url.Error](err); ok { // it quotes at
				err = asked.Err
			}
			host := u.Host // at has the path of the upstream, which can hold a credential
			if p, err := url.Parse(at); err == nil {
				host = p.Host
			}
			return nil, fmt.Errorf("its metadata at %.200q: %w", host, err)
		}
		if found == nil {
			continue
		}
		if !covers(found.Resource, u) {
			return nil, fmt.Errorf("its metadata is about %.200q, not about the configured URL: a token for one must not go to the other", found.Resource)
		}
		return found, nil
	}
	return nil, nil
}

// readMetadata returns nil if the answer is 4xx.
func readMetadata(ctx context.Context, c *http.Client, at string) (*oauthex.ProtectedResourceMetadata, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode/100 == 4:
		return nil, nil
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("HTTP %d", resp.StatusCode)
	}
	found := &oauthex.ProtectedResourceMetadata{}
	if err := json.NewDecoder(resp.Body).Decode(found); err != nil {
		return nil, fmt.Errorf("is not the JSON expected: %w", err)
	}
	return found, nil
}

// covers reports whether resource is endpoint or a path above it, on the same origin.
func covers(resource string, endpoint *url.URL) bool {
	r, err := url.Parse(resource)
	if err != nil || !strings.EqualFold(r.Scheme, endpoint.Scheme) || !strings.EqualFold(r.Host, endpoint.Host) || r.RawQuery != "" && r.RawQuery != endpoint.RawQuery {
		return false
	}
	return strings.HasPrefix(strings.TrimRight(endpoint.Path, "/")+"/", strings.TrimRight(r.Path, "/")+"/")
}

// challenge is what an upstream says about the token that it needs.
type challenge struct {
	metadata string // the URL of its metadata, or ""
	failure  string // such as insufficient_scope, or ""
	scopes   []string
}

// readChallenge reads the WWW-Authenticate headers of a response. What can't be read is left out.
func readChallenge(h http.Header) (c challenge) {
	all, _ := oauthex.ParseWWWAuthenticate(h.Values("WWW-Authenticate"))
	for _, one := range all {
		c.metadata = cmp.Or(c.metadata, one.Params["resource_metadata"])
		if one.Scheme != "bearer" {
			continue
		}
		c.failure = cmp.Or(c.failure, one.Params["error"])
		for _, s := range strings.Fields(one.Params["scope"]) {
			if len(c.scopes) < maxScopes && len(s) <= maxScope && !strings.ContainsFunc(s, unprintable) {
				c.scopes = append(c.scopes, s)
			}
		}
	}
	return c
}

// Bounds of the scopes that an upstream may ask for.
const (
	maxScopes = 64
	maxScope  = 256
)

func unprintable(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

// newClient returns the HTTP client for metadata and tokens of one upstream. An upstream names URLs
// that foldgate then fetches, so each request is bounded: https unless it goes to a loopback address,
// few redirects, a size, a time. It reaches addresses that are not public only at the hosts that the
// configuration names, and loopback ones also if one of these is.
func newClient(configured ...string) *http.Client {
	g := guard{hosts: map[string]bool{}}
	for _, at := range configured {
		if u, err := url.Parse(at); err == nil && u.Host != "" {
			g.hosts[u.Hostname()] = true
			g.loopback = g.loopback || publicip.Loopback(u.Hostname())
		}
	}
	for _, scheme := range []string{"http", "https"} {
		proxy, err := http.ProxyFromEnvironment(&http.Request{URL: &url.URL{Scheme: scheme, Host: "example.com"}})
		if err == nil && proxy != nil {
			g.proxies = append(g.proxies, proxy.Hostname())
		}
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = g.dial
	t.MaxResponseHeaderBytes = 64 << 10
	g.next = t
	return &http.Client{Transport: g, Timeout: requestTimeout, CheckRedirect: func(req *http.Request, via []*http.Request) error {
		if len(via) > maxRedirects || via[0].Method != http.MethodGet { // a POST carries credentials
			return http.ErrUseLastResponse
		}
		return nil
	}}
}

// guard refuses requests to places that an upstream has no business to send foldgate to.
type guard struct {
	next     http.RoundTripper
	hosts    map[string]bool // of the configuration
	proxies  []string        // of the environment
	loopback bool
}

// RoundTrip implements [http.RoundTripper].
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	host := req.URL.Hostname()
	if !publicip.Confidential(req.URL) {
		return nil, fmt.Errorf("%s://%s is not https", req.URL.Scheme, host)
	}
	if ip, err := netip.ParseAddr(host); err == nil { // behind a proxy there is no other look at it
		if err := g.allow(host, ip); err != nil {
			return nil, err
		}
	}
	resp, err := g.next.RoundTrip(req)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(resp.Body, maxDocument), resp.Body}
	}
	return resp, err
}

func (g guard) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: requestTimeout}
	if !slices.Contains(g.proxies, host) {
		d.Control = func(_, at string, _ syscall.RawConn) error { // after the name is resolved
			to, err := netip.ParseAddrPort(at)
			if err != nil {
				return err
			}
			return g.allow(host, to.Addr())
		}
	}
	return d.DialContext(ctx, network, addr)
}

func (g guard) allow(host string, ip netip.Addr) error {
	ip = ip.Unmap()
	if g.hosts[host] || publicip.Is(ip) || g.loopback && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is at the address %s, which is not public: if you trust it, name the authorization server in the configuration (issuer)", host, ip)
}
