package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/oauthex"
	"golang.org/x/oauth2"

	"github.com/foldgate/foldgate/internal/version"
)

// LogIn lets a person log in, and stores the login. show is called with the URL that the person has to
// open in a browser of this machine. LogIn returns when the browser came back and the token is stored,
// with the scopes of the token, or when ctx ends. more are scopes to ask for beside the usual ones.
func (l *Login) LogIn(ctx context.Context, more []string, show func(at string)) (scopes []string, err error) {
	if l.person != nil {
		return l.person.LogIn(ctx, nil, show)
	}
	defer func() {
		switch {
		case err == nil:
			l.tell(Event{Action: "login", Scopes: scopes})
		case ctx.Err() == nil:
			l.refused(err.Error())
		}
	}()
	if err := l.of.store.ready(); err != nil {
		return nil, err
	}
	s, asks, err := l.find(ctx)
	switch {
	case err != nil:
		return nil, err
	case s.AuthorizationEndpoint == "":
		return nil, fmt.Errorf("the authorization server %s has no page to log in", s.Issuer)
	case len(s.CodeChallengeMethodsSupported) > 0 && !slices.Contains(s.CodeChallengeMethodsSupported, "S256"):
		return nil, fmt.Errorf("the authorization server %s lacks PKCE with S256, without which a code can be stolen", s.Issuer)
	}
	back, err := listen(ctx, l.cfg.AuthorizationCode.RedirectPort, l.refused)
	if err != nil {
		return nil, err
	}
	defer back.close()
	c, err := l.register(ctx, s, back.url)
	if err != nil {
		return nil, err
	}
	before, _ := l.load() // a login with more scopes keeps the ones of before
	scopes = l.scopes(s, asks, before, more)
	verifier := oauth2.GenerateVerifier()
	request := oauth2.Config{ClientID: c.ID, Endpoint: oauth2.Endpoint{AuthURL: s.AuthorizationEndpoint}, RedirectURL: back.url, Scopes: scopes}
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(verifier)}
	form := url.Values{"grant_type": {"authorization_code"}, "code_verifier": {verifier}, "redirect_uri": {back.url}}
	if !l.provider { // ID tokens are for foldgate itself
		options = append(options, oauth2.SetAuthURLParam("resource", s.resource))
		form.Set("resource", s.resource)
	}
	show(request.AuthCodeURL(back.state, options...))
	code, err := back.wait(ctx, s)
	if err != nil {
		return nil, err
	}
	form.Set("code", code)
	t, err := requestToken(ctx, l.client, s.TokenEndpoint, c, form)
	if err == nil && l.provider {
		t, err = t.identity()
	}
	if err != nil {
		return nil, err
	}
	if len(t.Scopes) == 0 {
		t.Scopes = scopes
	}
	unlock, err := l.of.store.lock(ctx, l.file)
	if err != nil {
		return nil, err
	}
	defer unlock()
	return t.Scopes, l.of.store.write(l.file, &saved{
		token: *t, ID: rand.Text(), URL: l.url, Resource: s.resource, Issuer: s.Issuer, Endpoint: s.TokenEndpoint, ClientID: c.ID, Secret: c.Secret, Methods: c.methods,
	})
}

// LogOut forgets the login. It returns false if there was none.
func (l *Login) LogOut(ctx context.Context) (bool, error) {
	if l.person != nil {
		return l.person.LogOut(ctx)
	}
	unlock, err := l.of.store.lock(ctx, l.file)
	if err != nil {
		return false, err
	}
	defer unlock()
	had, err := l.of.store.remove(l.file)
	if had {
		l.tell(Event{Action: "logout"})
	}
	return had, err
}

// find returns the server at which a person logs in, and what the upstream asks for.
func (l *Login) find(ctx context.Context) (s *server, asks challenge, err error) {
	if l.provider {
		s, err = providerAt(ctx, l.client, l.url)
		return s, asks, err
	}
	if asks, err = l.probe(ctx); err == nil {
		s, err = discover(ctx, l.client, l.url, l.cfg.Issuer, asks)
	}
	return s, asks, err
}

// probe asks the upstream without a token, to learn what it asks for. Some answer an initialize, and
// only then ask for a token.
func (l *Login) probe(ctx context.Context) (c challenge, err error) {
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"foldgate","version":%[1]q}}}`
	const list = `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":{"name":"foldgate","version":%[1]q}}}}`
	headers := http.Header{}
	for k, v := range l.headers {
		headers.Set(k, v)
	}
	headers.Set("Content-Type", "application/json")
	headers.Set("Accept", "application/json, text/event-stream")
	for _, body := range []string{initialize, list} {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url, strings.NewReader(fmt.Sprintf(body, version.String())))
		if err != nil {
			return c, err
		}
		req.Header = headers
		resp, err := l.client.Do(req)
		if err != nil {
			return c, fmt.Errorf("the upstream can't be reached: %w", err)
		}
		resp.Body.Close()
		if c = readChallenge(resp.Header); resp.StatusCode == http.StatusUnauthorized {
			break
		}
		headers = headers.Clone()
		if session := resp.Header.Get("Mcp-Session-Id"); session != "" {
			headers.Set("Mcp-Session-Id", session)
		}
		if headers.Set("Mcp-Protocol-Version", "2025-11-25"); resp.StatusCode != http.StatusOK { // it has no initialize
			headers.Set("Mcp-Protocol-Version", "2026-07-28")
			headers.Set("Mcp-Method", "tools/list")
		}
	}
	return c, nil
}

// scopes returns what to ask for: what the configuration says, else the upstream, and beside that what
// the login had before, more, and a token to renew the login with.
func (l *Login) scopes(s *server, asks challenge, before *saved, more []string) []string {
	scopes := l.cfg.Scopes
	if len(scopes) == 0 {
		if scopes = asks.scopes; len(scopes) == 0 {
			scopes = s.scopes
		}
		if before != nil && sameIssuer(before.Issuer, s.Issuer) && len(more) > 0 {
			scopes = union(before.Scopes, scopes)
		}
	}
	if slices.Contains(s.ScopesSupported, "offline_access") {
		more = append(more[:len(more):len(more)], "offline_access")
	}
	return union(scopes, more)
}

// register returns the client as which foldgate asks for a code: the one of the configuration, else the
// metadata document, else a new one.
func (l *Login) register(ctx context.Context, s *server, back string) (c client, err error) {
	a := l.cfg.AuthorizationCode
	switch {
	case a.ClientID != "":
		return client{ID: a.ClientID, Secret: string(a.ClientSecret), methods: s.TokenEndpointAuthMethodsSupported}, nil
	case a.ClientMetadataURL != "" && s.ClientIDMetadataDocumentSupported:
		return client{ID: a.ClientMetadataURL}, nil
	case s.RegistrationEndpoint == "":
		return c, fmt.Errorf("the authorization server %s does not register clients by itself: register one there with the redirect URI http://127.0.0.1/callback, and set upstreams.%s.auth.authorization_code.client_id", s.Issuer, l.upstream)
	}
	method := "none"
	if m := s.TokenEndpointAuthMethodsSupported; len(m) > 0 && !slices.Contains(m, method) {
		method = m[0]
		if slices.Contains(m, "client_secret_basic") {
			method = "client_secret_basic"
		}
	}
	got, err := oauthex.RegisterClient(ctx, s.RegistrationEndpoint, &oauthex.ClientRegistrationMetadata{
		RedirectURIs: []string{back}, TokenEndpointAuthMethod: method, GrantTypes: []string{"authorization_code", "refresh_token"}, ResponseTypes: []string{"code"},
		ClientName: "foldgate", SoftwareVersion: version.String(), ApplicationType: "native",
	}, l.client)
	if err != nil {
		return c, fmt.Errorf("the authorization server %s does not register foldgate: %s; you can register a client there yourself, and set upstreams.%s.auth.authorization_code.client_id", s.Issuer, tidy(err.Error(), 300, nil), l.upstream)
	}
	if got.TokenEndpointAuthMethod != "" {
		method = got.TokenEndpointAuthMethod
	}
	return client{ID: got.ClientID, Secret: got.ClientSecret, methods: []string{method}}, nil
}

// callback waits on a loopback address for the browser to come back from the authorization server.
type callback struct {
	url, state string
	answers    chan url.Values  // the first one that has the state
	refused    func(why string) // hears of others
	server     *http.Server
}

// refused tells of a login that failed, or of an answer of a browser that is not taken.
func (l *Login) refused(why string) { l.tell(Event{Action: "login", Failure: why}) }

func listen(ctx context.Context, port int, refused func(string)) (*callback, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("redirect_port: another program has the port %d: stop it, or choose another port", port)
	}
	if err != nil {
		return nil, fmt.Errorf("redirect_port: %w", err)
	}
	c := &callback{url: "http://" + l.Addr().String() + "/callback", state: rand.Text(), answers: make(chan url.Values, 1), refused: refused}
	c.server = &http.Server{Handler: c, ReadHeaderTimeout: requestTimeout, MaxHeaderBytes: 64 << 10}
	go func() { _ = c.server.Serve(l) }() // until close
	return c, nil
}

func (c *callback) close() {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout)
	defer cancel()
	_ = c.server.Shutdown(ctx) // after the page is delivered
}

// ServeHTTP takes the browser's return. Nothing in the page comes from the request.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	plainPage(w.Header())
	q := r.URL.Query()
	status, text := http.StatusOK, "foldgate has the answer of the authorization server. You can close this page."
	switch {
	case r.Method != http.MethodGet || r.URL.Path != "/callback" || "http://"+r.Host+"/callback" != c.url:
		status, text = http.StatusNotFound, "There is nothing here."
	case subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(c.state)) != 1:
		status, text = http.StatusBadRequest, "This answer is not to the login that foldgate waits for. Run foldgate login again."
	default:
		select {
		case c.answers <- q:
		default:
			status, text = http.StatusBadRequest, "This answer was here before."
		}
	}
	if status == http.StatusBadRequest {
		c.refused(text)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "<!doctype html><title>foldgate</title><p>"+text+"\n")
}

// wait returns the code that the browser brings from s.
func (c *callback) wait(ctx context.Context, s *server) (string, error) {
	var q url.Values
	select {
	case q = <-c.answers:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	iss, ok := q.Get("iss"), q.Has("iss")
	switch { // RFC 9207, before anything of the answer is used
	case ok && iss != s.Issuer:
		return "", errors.New("the browser came back from another authorization server than the one that it was sent to: the login is void")
	case !ok && s.AuthorizationResponseIssParameterSupported:
		return "", fmt.Errorf("the browser came back without the name of the authorization server (iss), which %s adds: the login is void", s.Issuer)
	case q.Get("error") != "":
		return "", fmt.Errorf("the authorization server %s refuses the login: %s", s.Issuer, strings.TrimSpace(tidy(q.Get("error"), 64, nil)+" "+tidy(q.Get("error_description"), 300, nil)))
	case q.Get("code") == "":
		return "", errors.New("the browser came back without a code")
	}
	return q.Get("code"), nil
}
