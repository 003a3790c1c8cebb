package server

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/publicip"
	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Access says who may use the HTTP server. It does not change.
type Access struct {
	// Hosts are Host names accepted beside the loopback ones. If there are any, no others are
	// accepted on other addresses. Origins are origins (scheme://host[:port]) of web pages that may
	// use the server from a browser.
	Hosts, Origins []string
	// Auth says who a client is; nil: all are [interceptor.LocalPrincipal].
	Auth *auth.Authenticator
}

// checkOrigin applies the Host and Origin rules, which keep web pages from reaching the server
// through a browser (DNS rebinding included). It refuses a request that breaks them, and adds the
// CORS headers of an allowed origin.
func (x *exchange) checkOrigin() bool {
	if !x.srv.hostAllowed(x.r) {
		x.refuse(http.StatusForbidden, nil, invalid(wire.CodeInvalidRequest, hostRefused(x.r)))
		return false
	}
	origin := x.r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if slices.ContainsFunc(x.srv.opts.Access().Origins, func(o string) bool { return strings.EqualFold(strings.TrimSuffix(o, "/"), origin) }) {
		allowOrigin(x.w.Header(), x.r, origin)
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || len(x.r.Header["Origin"]) > 1 || !sameHost(u, x.r.Host) {
		x.refuse(http.StatusForbidden, nil, invalid(wire.CodeInvalidRequest, "Origin "+origin+" is not allowed here; add it to allowed_origins"))
		return false
	}
	return true
}

// hostAllowed checks the Host header. A listener on a loopback address is meant for this machine,
// so other names are refused there: any DNS server can map them to the address.
func (srv *HTTP) hostAllowed(r *http.Request) bool {
	if replicas.Forwarded(r) { // the replica that the host reached has checked it
		return true
	}
	name, hosts := publicip.HostName(r.Host), srv.opts.Access().Hosts
	if slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	if known && !local.IP.IsLoopback() {
		return len(hosts) == 0
	}
	return publicip.Loopback(name)
}

func hostRefused(r *http.Request) string {
	return "Host " + r.Host + " is not served here; add it to allowed_hosts"
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
func (x *exchange) acceptsPost() bool {
	if wire.MediaType(x.r.Header.Get("Content-Type")) != "application/json" {
		x.refuse(http.StatusUnsupportedMediaType, nil, invalid(wire.CodeInvalidRequest, "Content-Type must be application/json"))
		return false
	}
	accept := x.r.Header["Accept"]
	if !accepts(accept, "application/json") || !accepts(accept, "text/event-stream") {
		x.refuse(http.StatusNotAcceptable, nil, invalid(wire.CodeInvalidRequest, "Accept must hold application/json and text/event-stream"))
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
			if got := wire.MediaType(part); got == "*/*" || got == want || got == group+"/*" {
				return true
			}
		}
	}
	return false
}

// authenticate finds the caller of the request for a path. It refuses a request without one. The body is
// JSON-RPC, for hosts that show it, and tells their user the remedy.
func (x *exchange) authenticate(path string) bool {
	who := x.srv.opts.Access().Auth
	var f *auth.Failure
	if x.caller, f = who.Authenticate(x.r.Context(), x.r.Header, path); f == nil {
		return true
	}
	if f.Status == http.StatusUnauthorized {
		if _, ok := branchOf(path); !ok {
			path = "/mcp"
		}
		x.w.Header().Set("WWW-Authenticate", who.Challenge(path, f))
	} else {
		x.w.Header().Set("Retry-After", "60")
	}
	fault := invalid(wire.CodeInvalidRequest, fmt.Sprintf("%d %s: %s", f.Status, http.StatusText(f.Status), f.Message))
	x.srv.router.Rejected(Rejection{From: client(x.r), Status: f.Status, Rule: f.Rule, Fault: fault})
	writeJSON(x.w, f.Status, fault.Response(nil))
	return false
}

// stepUp returns the header WWW-Authenticate of the reply to a request whose caller's token lacks scopes, else
// "". With the header a host logs in again, for the scopes that it has and those that are missing. Only
// an issuer's token has scopes.
func (x *exchange) stepUp(req *Request, missing string) string {
	if req.Identity.Issuer == "" || missing == "" {
		return ""
	}
	return x.srv.opts.Access().Auth.StepUp(x.r.URL.EscapedPath(), append(slices.Clone(req.Identity.Scopes), strings.Fields(missing)...))
}

// client names the sender of a request that no session has.
func client(r *http.Request) string { return "http:" + publicip.HostName(r.RemoteAddr) }

// metadata answers with the metadata of a protected resource, which a host reads before it logs in.
func (srv *HTTP) metadata(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.EscapedPath(), auth.MetadataPath)
	_, ok := branchOf(path)
	body := srv.opts.Access().Auth.Metadata(path)
	if body == nil || !ok && path != "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Access-Control-Allow-Origin", "*") // it is public
	writeJSON(w, http.StatusOK, body)
}
