package server

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/proxy/wire"
)

// branchOf takes the path apart: "" for /mcp, the id for /b/{branch_id}/mcp.
func branchOf(path string) (branch string, ok bool) {
	if path == "/mcp" {
		return "", true
	}
	rest, ok := strings.CutPrefix(path, "/b/")
	if !ok {
		return "", false
	}
	branch, ok = strings.CutSuffix(rest, "/mcp")
	return branch, ok && branch != "" && !strings.Contains(branch, "/")
}

// admit applies the Host and Origin rules, which keep web pages from reaching
// the endpoint through a browser (DNS rebinding included), and answers for the
// edge where they fail. It adds the CORS headers of an allowed origin.
func (e *HTTP) admit(w http.ResponseWriter, r *http.Request) bool {
	if !e.hostAllowed(r) {
		refuse(w, http.StatusForbidden, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "Host " + r.Host + " is not served here; add it to allowed_hosts"})
		return false
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	if slices.ContainsFunc(e.opts.AllowedOrigins, func(o string) bool { return strings.EqualFold(strings.TrimSuffix(o, "/"), origin) }) {
		allowOrigin(w.Header(), r, origin)
		return true
	}
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || len(r.Header["Origin"]) > 1 || !sameHost(u, r.Host) {
		refuse(w, http.StatusForbidden, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "Origin " + origin + " is not allowed here; add it to allowed_origins"})
		return false
	}
	return true
}

// hostAllowed checks the Host header. A listener on a loopback address is meant
// for this machine, so a name that some DNS server made up is refused there.
func (e *HTTP) hostAllowed(r *http.Request) bool {
	name := HostName(r.Host)
	if slices.ContainsFunc(e.opts.AllowedHosts, func(h string) bool { return strings.EqualFold(h, name) }) {
		return true
	}
	local, known := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if known && !isLoopback(HostName(local.String())) {
		return len(e.opts.AllowedHosts) == 0
	}
	return isLoopback(name)
}

// HostName strips the port and the brackets.
func HostName(hostport string) string {
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

// sameHost reports whether an origin names the host and port of the request;
// a port left out is the scheme's own.
func sameHost(origin *url.URL, host string) bool {
	port := map[string]string{"http": ":80", "https": ":443"}[origin.Scheme]
	if port == "" {
		return false
	}
	return strings.EqualFold(strings.TrimSuffix(origin.Host, port), strings.TrimSuffix(host, port))
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

// acceptsPost checks the content type of a POST, and that the host takes both
// forms of a reply, which is what the transport asks of it.
func acceptsPost(w http.ResponseWriter, r *http.Request) bool {
	if ct := r.Header.Get("Content-Type"); !strings.EqualFold(mediaType(ct), "application/json") {
		refuse(w, http.StatusUnsupportedMediaType, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "Content-Type must be application/json"})
		return false
	}
	accept := r.Header["Accept"]
	if !accepts(accept, "application/json") || !accepts(accept, "text/event-stream") {
		refuse(w, http.StatusNotAcceptable, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "Accept must hold application/json and text/event-stream"})
		return false
	}
	return true
}

// accepts reports whether the Accept header admits the media type; no header
// admits everything (RFC 9110, section 12.5.1).
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

// mediaType strips parameters and white space.
func mediaType(v string) string {
	v, _, _ = strings.Cut(v, ";")
	return strings.TrimSpace(v)
}
