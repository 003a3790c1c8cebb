//go:build e2e

package e2e

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// authServer is an authorization server. Its tokens look like nothing that a rule for secrets knows:
// they begin with "planted-".
type authServer struct {
	*httptest.Server
	life    int               // of an access token, in seconds; 0 names none
	secrets map[string]string // of confidential clients
	meta    map[string]any    // members of the metadata that are not the usual ones
	allow   string            // if not "", the scopes that it grants at most
	back    func(url.Values)  // if not nil, changes what the browser takes back
	subject string            // the person who logs in
	// trusts checks the token or the assertion that an exchange is based on, and returns whom it is for.
	trusts func(kind, token string) (subject string, ok bool)

	mu       sync.Mutex
	n        int
	live     map[string]granted // access tokens
	codes    map[string]granted
	refresh  map[string]granted // the ones that are valid; each is used once
	ids      map[string]granted // ID tokens, and assertions about persons, that are valid
	replayed int                // refresh tokens that were used twice
	requests []url.Values       // to the token endpoint
	down     bool
	slow     chan struct{} // if it is not nil, token requests wait until it is closed
}

// granted is what a token or a code stands for.
type granted struct {
	client, scope, resource, challenge, redirect, subject, audience string
}

func newAuthServer(t *testing.T) *authServer {
	is := &authServer{secrets: map[string]string{}, meta: map[string]any{}, live: map[string]granted{}, codes: map[string]granted{}, refresh: map[string]granted{}, ids: map[string]granted{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/oauth-authorization-server", is.metadata)
	mux.HandleFunc("POST /token", is.token)
	mux.HandleFunc("GET /authorize", is.authorize)
	mux.HandleFunc("POST /register", is.register)
	is.subject = "person"
	is.Server = httptest.NewServer(mux)
	t.Cleanup(is.Close)
	return is
}

func (is *authServer) metadata(w http.ResponseWriter, _ *http.Request) {
	m := map[string]any{
		"issuer": is.URL, "authorization_endpoint": is.URL + "/authorize", "token_endpoint": is.URL + "/token", "registration_endpoint": is.URL + "/register",
		"code_challenge_methods_supported": []string{"S256"}, "authorization_response_iss_parameter_supported": true,
		"token_endpoint_auth_methods_supported": []string{"client_secret_basic", "client_secret_post", "none"},
	}
	for k, v := range is.meta {
		m[k] = v
	}
	answerJSON(w, 200, m)
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (is *authServer) register(w http.ResponseWriter, r *http.Request) {
	var m map[string]any
	_ = json.NewDecoder(r.Body).Decode(&m)
	is.mu.Lock()
	is.n++
	m["client_id"] = fmt.Sprintf("registered-%d", is.n)
	is.mu.Unlock()
	answerJSON(w, 201, m)
}

// authorize is the page on which the person consents: this one always does.
func (is *authServer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	is.mu.Lock()
	is.n++
	code := fmt.Sprintf("planted-code-%d-%s", is.n, strings.Repeat("c", 20))
	is.codes[code] = granted{client: q.Get("client_id"), scope: q.Get("scope"), resource: q.Get("resource"), challenge: q.Get("code_challenge"), redirect: q.Get("redirect_uri"), subject: is.subject}
	is.mu.Unlock()
	back := url.Values{"code": {code}, "state": {q.Get("state")}, "iss": {is.URL}}
	if is.back != nil {
		is.back(back)
	}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusFound)
}

func (is *authServer) token(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		answerJSON(w, 400, map[string]any{"error": "invalid_request"})
		return
	}
	is.mu.Lock()
	slow := is.slow
	is.mu.Unlock()
	if slow != nil {
		<-slow
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	is.requests = append(is.requests, r.PostForm)
	f := r.PostForm
	client, secret, basic := r.BasicAuth()
	if !basic {
		client, secret = f.Get("client_id"), f.Get("client_secret")
	}
	refuse := func(code string) { // with everything that it was sent, as some servers do
		answerJSON(w, 400, map[string]any{"error": code, "error_description": "refused: " + f.Encode() + " " + secret})
	}
	if is.down {
		http.Error(w, "down for maintenance, token "+f.Get("refresh_token"), http.StatusServiceUnavailable)
		return
	}
	if is.secrets[client] != secret {
		refuse("invalid_client")
		return
	}
	g := granted{client: client, scope: f.Get("scope"), resource: f.Get("resource"), subject: client}
	renewable := false
	switch f.Get("grant_type") {
	case "client_credentials":
	case "urn:ietf:params:oauth:grant-type:jwt-bearer":
		var ok bool
		if g.subject, ok = is.trusts("assertion", f.Get("assertion")); !ok {
			refuse("invalid_grant")
			return
		}
		g.resource = strings.TrimPrefix(f.Get("assertion"), "planted-assertion-")
		g.resource = g.resource[strings.Index(g.resource, "-")+1:]
	case "urn:ietf:params:oauth:grant-type:token-exchange":
		var ok bool
		kind := strings.TrimPrefix(f.Get("subject_token_type"), "urn:ietf:params:oauth:token-type:")
		if g.subject, ok = is.trusts(kind, f.Get("subject_token")); !ok {
			refuse("invalid_grant")
			return
		}
		if f.Get("requested_token_type") == "urn:ietf:params:oauth:token-type:id-jag" {
			is.n++
			assertion := fmt.Sprintf("planted-assertion-%d-%s", is.n, g.resource)
			g.audience = f.Get("audience")
			is.ids[assertion] = g
			answerJSON(w, 200, map[string]any{"access_token": assertion, "issued_token_type": f.Get("requested_token_type"), "token_type": "N_A", "expires_in": 300})
			return
		}
	case "authorization_code":
		var ok bool
		sum := sha256.Sum256([]byte(f.Get("code_verifier")))
		if g, ok = is.codes[f.Get("code")]; !ok || g.client != client || g.redirect != f.Get("redirect_uri") || g.resource != f.Get("resource") || g.challenge != base64.RawURLEncoding.EncodeToString(sum[:]) {
			refuse("invalid_grant")
			return
		}
		delete(is.codes, f.Get("code"))
		renewable = true
	case "refresh_token":
		var ok bool
		if g, ok = is.refresh[f.Get("refresh_token")]; !ok || g.client != client {
			is.replayed++
			clear(is.refresh) // a token was stolen, it seems: the whole grant ends
			refuse("invalid_grant")
			return
		}
		delete(is.refresh, f.Get("refresh_token"))
		renewable = true
	default:
		refuse("unsupported_grant_type")
		return
	}
	if is.allow != "" {
		g.scope = strings.Join(slices.DeleteFunc(strings.Fields(g.scope), func(s string) bool { return !slices.Contains(strings.Fields(is.allow), s) }), " ")
	}
	is.n++
	access := fmt.Sprintf("planted-access-%d-%s", is.n, strings.Repeat("a", 20))
	is.live[access] = g
	answer := map[string]any{"access_token": access, "token_type": "Bearer", "scope": g.scope}
	if is.life > 0 {
		answer["expires_in"] = is.life
	}
	if renewable {
		if slices.Contains(strings.Fields(g.scope), "openid") {
			id := fmt.Sprintf("planted-id-%d-%s", is.n, strings.Repeat("i", 20))
			is.ids[id] = g
			answer["id_token"] = id
		}
		refresh := fmt.Sprintf("planted-refresh-%d-%s", is.n, strings.Repeat("r", 20))
		is.refresh[refresh] = g
		answer["refresh_token"] = refresh
	}
	answerJSON(w, 200, answer)
}

// grants returns how often a grant was used at the token endpoint.
func (is *authServer) grants(kind string) (n int) {
	is.mu.Lock()
	defer is.mu.Unlock()
	for _, f := range is.requests {
		if f.Get("grant_type") == kind {
			n++
		}
	}
	return n
}

// asked returns the requests to the token endpoint, and how many refresh tokens were used twice.
func (is *authServer) asked() ([]url.Values, int) {
	is.mu.Lock()
	defer is.mu.Unlock()
	return slices.Clone(is.requests), is.replayed
}

// set changes the issuer between requests.
func (is *authServer) set(change func()) {
	is.mu.Lock()
	defer is.mu.Unlock()
	change()
}

// revoke ends all access tokens.
func (is *authServer) revoke() {
	is.mu.Lock()
	defer is.mu.Unlock()
	clear(is.live)
}

// guarded is an upstream that asks for a token of an issuer: fakeserver behind a guard.
type guarded struct {
	*httptest.Server
	is     *authServer
	at     string            // its MCP endpoint
	needs  map[string]string // the scope that a tool needs, by its name; echo: it shows the token
	prm    func() any        // its metadata
	mu     sync.Mutex
	shut   bool // it refuses every token
	rpc    bool // it refuses with a JSON-RPC error
	tokens []string
}

func newGuarded(t *testing.T, is *authServer, args ...string) *guarded {
	up := fakeserverHTTP(t, args...)
	to, err := url.Parse(strings.TrimSuffix(up, "/mcp"))
	if err != nil {
		t.Fatal(err)
	}
	gd := &guarded{is: is, needs: map[string]string{}}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Header.Del("Authorization") }}
	gd.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/.well-known/oauth-protected-resource/mcp" {
			answerJSON(w, 200, gd.prm())
			return
		}
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		is.mu.Lock()
		g, ok := is.live[token]
		is.mu.Unlock()
		challenge := fmt.Sprintf(`Bearer resource_metadata="%s/.well-known/oauth-protected-resource/mcp"`, gd.URL)
		status := 0
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct{ Name string }
		}
		_ = json.Unmarshal(body, &m)
		need := gd.needs[m.Params.Name]
		switch {
		case !ok || g.resource != gd.at || gd.shut:
			status = 401
			if token != "" {
				challenge += `, error="invalid_token"`
			}
		case m.Method == "tools/call" && need != "" && need != "echo" && !slices.Contains(strings.Fields(g.scope), need):
			status = 403
			challenge += fmt.Sprintf(`, error="insufficient_scope", scope=%q`, need)
		}
		gd.mu.Lock()
		gd.tokens = append(gd.tokens, token)
		gd.mu.Unlock()
		if status != 0 {
			w.Header().Set("WWW-Authenticate", challenge)
			if gd.rpc {
				answerJSON(w, status, map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32001, "message": "who are you?"}})
				return
			}
			http.Error(w, "no entry with "+token, status)
			return
		}
		if need == "echo" { // a tool that shows the token it got
			answerJSON(w, 200, map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": map[string]any{"resultType": "complete", "content": []any{map[string]any{"type": "text", "text": "you sent " + token}}}})
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	gd.at = gd.URL + "/mcp"
	gd.prm = func() any {
		return map[string]any{"resource": gd.at, "authorization_servers": []string{is.URL}, "scopes_supported": []string{"mcp"}}
	}
	t.Cleanup(gd.Close)
	return gd
}

// sent returns the tokens of all requests, "" for one without.
func (gd *guarded) sent() []string {
	gd.mu.Lock()
	defer gd.mu.Unlock()
	return slices.Clone(gd.tokens)
}

// keepsTokens fails if a planted token or secret is in what hosts received, in the log or on the disk.
func (g *gateway) keepsTokens(received [][]byte) {
	g.t.Helper()
	for _, planted := range []string{"planted-access", "planted-refresh", "planted-code", "planted-secret", "planted-id", "planted-assertion"} {
		g.keepsSecret(planted, received)
	}
}
