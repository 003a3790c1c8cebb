package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/proxy/wire"
)

// Access says who may use the HTTP server. It does not change.
type Access struct {
	// Hosts are Host names accepted beside the loopback ones. If there are any, no others are
	// accepted on other addresses. Origins are origins (scheme://host[:port]) of web pages that may
	// use the server from a browser.
	Hosts, Origins []string
	// Tokens are the tokens of clients. Without any, all clients are LocalPrincipal.
	Tokens Tokens
}

// checkOrigin applies the Host and Origin rules, which keep web pages from reaching the server
// through a browser (DNS rebinding included). It refuses a request that breaks them, and adds the
// CORS headers of an allowed origin.
func (srv *HTTP) checkOrigin(w http.ResponseWriter, r *http.Request) bool {
	if !srv.hostAllowed(r) {
		srv.refuse(w, r, http.StatusForbidden, nil, invalid(wire.CodeInvalidRequest, hostRefused(r)))
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if slices.ContainsFunc(srv.opts.Access().Origins, func(o string) bool { return strings.EqualFold(strings.TrimSuffix(o, "/"), origin) }) {
		allowOrigin(w.Header(), r, origin)
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || len(r.Header["Origin"]) > 1 || !sameHost(u, r.Host) {
		srv.refuse(w, r, http.StatusForbidden, nil, invalid(wire.CodeInvalidRequest, "Origin "+origin+" is not allowed here; add it to allowed_origins"))
		return false
	}
	return true
}

// hostAllowed checks the Host header. A listener on a loopback address is meant for this machine,
// so other names are refused there: any DNS server can map them to the address.
func (srv *HTTP) hostAllowed(r *http.Request) bool {
	name, hosts := hostName(r.Host), srv.opts.Access().Hosts
	if slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if known && !isLoopback(hostName(local.String())) {
		return len(hosts) == 0
	}
	return isLoopback(name)
}

func hostRefused(r *http.Request) string {
	return "Host " + r.Host + " is not served here; add it to allowed_hosts"
}

// hostName strips the port and the brackets.
func hostName(hostport string) string {
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		return h
	}
	return strings.Trim(hostport, "[]")
}

func isLoopback(name string) bool {
	if strings.EqualFold(name, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(name)
	return err == nil && a.Unmap().IsLoopback()
}

// sameHost reports whether an origin names the host and port of the request. The default port is
// that of the scheme.
func sameHost(origin *url.URL, host string) bool {
	port := map[string]string{"http": ":80", "https": ":443"}[origin.Scheme]
	return port != "" && strings.EqualFold(strings.TrimSuffix(origin.Host, port), strings.TrimSuffix(host, port))
}

func allowOrigin(h http.Header, r *http.Request, origin string) {
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", wire.HeaderSession+", WWW-Authenticate")
	h.Add("Vary", "Origin")
	if r.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Methods", allowLegacy)
		h.Set("Access-Control-Allow-Headers", r.Header.Get("Access-Control-Request-Headers"))
		h.Set("Access-Control-Max-Age", "600")
	}
}

// acceptsPost checks the content type of a POST, and that the host takes both forms of a reply,
// which the transport demands.
func (srv *HTTP) acceptsPost(w http.ResponseWriter, r *http.Request) bool {
	if !strings.EqualFold(mediaType(r.Header.Get("Content-Type")), "application/json") {
		srv.refuse(w, r, http.StatusUnsupportedMediaType, nil, invalid(wire.CodeInvalidRequest, "Content-Type must be application/json"))
		return false
	}
	accept := r.Header["Accept"]
	if !accepts(accept, "application/json") || !accepts(accept, "text/event-stream") {
		srv.refuse(w, r, http.StatusNotAcceptable, nil, invalid(wire.CodeInvalidRequest, "Accept must hold application/json and text/event-stream"))
		return false
	}
	return true
}

// accepts reports whether the Accept header admits the media type. Without the header every type
// is admitted (RFC 9110, section 12.5.1).
func accepts(accept []string, want string) bool {
	if len(accept) == 0 {
		return true
	}
	group, _, _ := strings.Cut(want, "/")
	for _, line := range accept {
		for part := range strings.SplitSeq(line, ",") {
			got := mediaType(part)
			if got == "*/*" || strings.EqualFold(got, want) || (len(got) == len(group)+2 && strings.EqualFold(got, group+"/*")) {
				return true
			}
		}
	}
	return false
}

func mediaType(v string) string {
	v, _, _ = strings.Cut(v, ";")
	return strings.TrimSpace(v)
}

// Tokens are the bearer tokens that may use the HTTP server, as digests. With none, everyone may.
// They never change.
type Tokens []Token

// Token maps the digest of a token to its principal.
type Token struct {
	Principal string
	Digest    [sha256.Size]byte
}

// authenticate returns the principal of a request by its bearer token. given means that the
// request has an Authorization header.
func (l Tokens) authenticate(h http.Header) (principal string, given, ok bool) {
	if len(l) == 0 {
		return LocalPrincipal, false, true
	}
	values := h["Authorization"]
	if len(values) != 1 { // of two, intermediaries and servers may read different ones
		return "", len(values) > 0, false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true, false
	}
	principal, ok = l.Owner(strings.Trim(token, " "))
	return principal, true, ok
}

// Owner returns the principal of a token. It compares every entry in constant time, so that its
// duration tells nothing of the token.
func (l Tokens) Owner(token string) (principal string, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for i := range l {
		if subtle.ConstantTimeCompare(sum[:], l[i].Digest[:]) == 1 {
			principal, ok = l[i].Principal, true
		}
	}
	return principal, ok
}

// several reports whether there is more than one principal.
func (l Tokens) several() bool {
	return slices.ContainsFunc(l, func(t Token) bool { return t.Principal != l[0].Principal })
}

// unauthorized refuses a request without a principal. The body is JSON-RPC, for hosts that show
// it, and tells their user the remedy.
func (srv *HTTP) unauthorized(w http.ResponseWriter, r *http.Request, given bool) {
	challenge, text := `Bearer realm="foldgate"`, "no token: send the header Authorization: Bearer <token>, with a token from the principals of foldgate's configuration"
	if given {
		challenge += `, error="invalid_token", error_description="the token is not one of foldgate's principals"`
		text = "the Authorization header holds no token of a principal of foldgate's configuration; check the host's headers setting, or ask the operator for a new token"
	}
	w.Header().Set("WWW-Authenticate", challenge)
	srv.refuse(w, r, http.StatusUnauthorized, nil, invalid(wire.CodeInvalidRequest, "401 Unauthorized: "+text))
}
