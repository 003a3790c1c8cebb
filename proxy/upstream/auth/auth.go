// Package auth logs foldgate in at upstream servers. It is the client side of MCP's authorization,
// for servers on HTTP: it finds the authorization server of an upstream, gets access tokens from it
// and renews them.
//
// A connection sends its requests by [Login.Do]. No error has a token in it, and a login that needs a
// person never happens inside a call: the call gets an [Error] that names the command.
package auth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/atomicfile"
	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/proxy/config"
)

// Logins are the logins of a gateway at all upstreams. It is safe for concurrent use.
type Logins struct {
	// TokenOf returns the token of an issuer with which a principal called last, "" if it knows no
	// valid one. It is asked if a configuration exchanges callers' tokens; nil knows none.
	TokenOf func(issuer, principal string) string
	// Told hears of each login of a person, each logout, and each that failed; may be nil.
	Told func(Event)

	store *store
	log   *slog.Logger
	path  func(string) string // of a file that the configuration names

	lifetime context.Context // of pages to log in, until Close
	end      context.CancelFunc

	mu   sync.Mutex
	all  map[string]*Login // by file, at most maxLogins
	work sync.WaitGroup    // requests for tokens that are under way
}

// New returns the logins of a gateway, or of a command of its operator.
func New(c config.Config, log *slog.Logger) *Logins {
	ls := &Logins{all: map[string]*Login{}, log: log, path: c.Path, store: &store{dir: c.LoginsPath(), keyFile: c.KeyPath(), given: c.Logins.KeyFile != "", key: c.Logins.Key}}
	ls.lifetime, ls.end = context.WithCancel(context.Background())
	return ls
}

// Event is a login of a person at an upstream, or the end of one.
type Event struct {
	Upstream, Principal string // Principal is "" for a login of all
	Action              string // login or logout
	Scopes              []string
	Failure             string // why the login failed, or a browser's answer was not taken; "" if it did not
}

func (l *Login) tell(e Event) {
	if e.Upstream, e.Principal = l.upstream, l.principal; l.of.Told != nil {
		l.of.Told(e)
	}
}

// maxLogins is how many logins are kept. Beyond it, the one that For returned the longest time ago is
// forgotten: the next time, it is read from the disk again, or its token is asked for anew. Who has it
// can go on using it.
const maxLogins = 10_000

// For returns the login of a principal at an upstream, nil if the configuration has none.
func (ls *Logins) For(upstream string, u *config.Upstream, principal string) *Login {
	if u.Auth == nil {
		return nil
	}
	if !u.Auth.PerPrincipal() {
		principal = ""
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	file := fileOf(upstream, principal)
	l := ls.all[file]
	if l == nil || l.cfg != u.Auth { // a reload may have changed it
		l = &Login{of: ls, upstream: upstream, principal: principal, file: file, url: u.URL, headers: u.Headers, cfg: u.Auth}
		l.client = newClient(u.URL, u.Auth.Issuer)
		if u.Auth.Enterprise != nil {
			l.person = l.atProvider()
		}
		if len(ls.all) >= maxLogins && ls.all[file] == nil {
			oldest := ""
			for f, other := range ls.all {
				if oldest == "" || other.used.Before(ls.all[oldest].used) {
					oldest = f
				}
			}
			delete(ls.all, oldest)
		}
		ls.all[file] = l
	}
	l.used = time.Now()
	return l
}

// Close ends the pages to log in, and waits for the requests for tokens that are under way: a token must
// not get lost.
func (ls *Logins) Close() {
	ls.mu.Lock()
	ls.end()
	ls.mu.Unlock()
	ls.work.Wait()
}

var errClosed = errors.New("foldgate is shutting down")

// start runs f in a goroutine that Close waits for. It returns false after Close.
func (ls *Logins) start(f func()) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	open := ls.lifetime.Err() == nil
	if open {
		ls.work.Go(f)
	}
	return open
}

// Codes of an [Error].
const (
	codeRequired = "login_required"     // a person has to log in, perhaps again
	codeScope    = "insufficient_scope" // the login lacks Scopes
	CodeFailed   = "login_failed"       // the authorization server gives no token
)

// Error is why a request has no token that its upstream accepts. The upstream has done nothing.
type Error struct {
	Code   string   // for programs: one of the codes above
	Scopes []string // that the upstream asks for
	text   string
	cause  error
	login  *Login // that a person can mend; nil for none
}

// Error says what happened and what to do.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.text + ": " + e.cause.Error()
	}
	return e.text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Login is foldgate's login at one upstream, for one principal or for all. It is safe for concurrent
// use: at most one request for a token is under way, in all processes on a state directory.
type Login struct {
	of                        *Logins
	upstream, principal, file string
	url                       string            // of the upstream
	headers                   map[string]string // that the upstream gets with every request
	cfg                       *config.Auth
	client                    *http.Client
	token                     atomic.Pointer[token] // nil as long as there is none
	used                      time.Time             // when For returned it; guarded by of.mu
	// With enterprise, person is the login at the identity provider, whose tokens are ID tokens. That one
	// has provider set; its url is the provider's.
	person   *Login
	provider bool

	disk  sync.Mutex // guards what follows
	saved *saved     // as stored; nil if nobody has logged in
	info  os.FileInfo
	unfit error // why the file can't be used

	inviting sync.Mutex // guards what follows
	invited  *page      // the last one; nil for none

	mu        sync.Mutex // held while a token is fetched; guards what follows
	server    *server
	asked     []string // the scopes of the last token
	fault     error    // of the last attempt
	failedAt  time.Time
	failedFor string // the login or token that the failed attempt used
}

const (
	renewLimit = 30 * time.Second // of getting one token, with discovery
	renewPause = 2 * time.Second  // after a failure; renewals in it fail alike
)

// Do sends a request of client with the token of the login, and once more with another token if the
// upstream refuses that one. The body of req must be one that can be read again. A response with the
// status 401 is never returned. Do on a nil Login only sends the request.
func (l *Login) Do(client *http.Client, req *http.Request) (*http.Response, error) {
	if l == nil {
		return client.Do(req)
	}
	sent, err := l.current(req.Context())
	for again := false; err == nil; again = true {
		if sent != "" {
			req.Header.Set("Authorization", "Bearer "+sent)
		}
		var resp *http.Response
		if resp, err = client.Do(req); err != nil {
			return nil, err
		}
		asks := readChallenge(resp.Header)
		if resp.StatusCode != http.StatusUnauthorized && (resp.StatusCode != http.StatusForbidden || asks.failure != codeScope) {
			return resp, nil
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDocument)) // so that the network connection can be used again
		resp.Body.Close()
		switch {
		case asks.failure == codeScope && (again || len(l.cfg.Scopes) > 0 || l.cfg.AuthorizationCode != nil):
			return nil, l.lacks(asks.scopes)
		case again:
			return nil, &Error{Code: CodeFailed, text: "the upstream refuses the token that its authorization server has just given: is the client allowed to use it, and the issuer the right one?"}
		}
		if sent, err = l.renew(req.Context(), sent, asks); err == nil && req.GetBody != nil {
			req.Body, err = req.GetBody()
		}
	}
	return nil, err
}

func (l *Login) lacks(scopes []string) error {
	e := &Error{Code: codeScope, Scopes: scopes}
	switch {
	case len(scopes) == 0:
		e.text = "the upstream says that the scopes of the login do not suffice, and not which ones do"
	case l.cfg.AuthorizationCode == nil:
		e.text = fmt.Sprintf("the upstream asks for the scopes %q, which the login lacks: have them granted to the client at the authorization server, and add them to upstreams.%s.auth.scopes if that is set", scopes, l.upstream)
	default:
		e.login = l
		e.text = fmt.Sprintf("the upstream asks for the scopes %q, which the login lacks: run `%s --scopes %q`, then call again", scopes, l.command(), strings.Join(scopes, " "))
	}
	return e
}

// required returns the error of a login that a person has to make.
func (l *Login) required(because string) error {
	return &Error{Code: codeRequired, login: l, text: fmt.Sprintf("%s: a person has to run `%s`, then call again", because, l.command())}
}

// command is how a person logs in.
func (l *Login) command() string {
	if l.principal == "" {
		return "foldgate login " + l.upstream
	}
	return "foldgate login " + l.upstream + " --principal " + shellword.Quote(l.principal)
}

// load returns the login as it is stored: another process may have changed it. It is nil if nobody has
// logged in.
func (l *Login) load() (*saved, error) {
	l.disk.Lock()
	defer l.disk.Unlock()
	info, err := l.of.store.stat(l.file)
	switch {
	case err != nil:
		return nil, err
	case info == nil:
		l.saved, l.info, l.unfit = nil, nil, nil
	case !atomicfile.Unchanged(info, l.info):
		l.saved, l.info, l.unfit = nil, nil, nil // a fault is no property of the file: it is read again
		g, err := l.of.store.read(l.file)
		if err != nil {
			l.token.Store(nil)
			return nil, err
		}
		l.saved, l.info = g, info
		if g.URL != l.url || l.cfg.Issuer != "" && !sameIssuer(g.Issuer, l.cfg.Issuer) {
			l.saved, l.unfit = nil, l.required("the configuration of the upstream has changed since somebody logged in")
		}
	}
	if l.saved == nil {
		l.token.Store(nil)
		return nil, l.unfit
	}
	l.token.Store(&l.saved.token)
	return l.saved, nil
}

// Watch returns a function that reports whether somebody has logged in or out since Watch was called,
// in any process. Nobody does at a nil Login.
func (l *Login) Watch() (changed func() bool) {
	if l == nil {
		return func() bool { return false }
	}
	if l.cfg.TokenExchange != nil {
		before := l.ofCaller()
		return func() bool { now := l.ofCaller(); return now != "" && now != before }
	}
	if l.person != nil {
		return l.person.Watch()
	}
	before, _ := l.of.store.stat(l.file)
	return func() bool {
		now, err := l.of.store.stat(l.file)
		return err == nil && !atomicfile.Unchanged(now, before)
	}
}

// current returns the token to send, "" for none. It renews a token that is about to expire.
func (l *Login) current(ctx context.Context) (string, error) {
	if l.cfg.AuthorizationCode != nil {
		if g, err := l.load(); err != nil || g == nil {
			return "", l.unusable(err)
		}
	}
	t := l.token.Load()
	if l.person != nil {
		g, err := l.person.load()
		if err != nil || g == nil {
			l.token.Store(nil)
			return "", l.person.unusable(err)
		}
		if t != nil && t.by != g.ID { // somebody else has logged in
			l.token.CompareAndSwap(t, nil)
			t = nil
		}
	}
	if t == nil || t.fresh() {
		return t.access(), nil
	}
	next, err := l.renew(ctx, t.Access, challenge{})
	if err != nil && t.usable() {
		return t.Access, nil // the next request tries again
	}
	return next, err
}

// unusable returns err as an [Error]; nil means that nobody has logged in.
func (l *Login) unusable(err error) error {
	if err == nil {
		return l.required("nobody has logged in there")
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return &Error{Code: CodeFailed, text: "login", cause: err}
}

// renew returns another token than old. If ctx ends first, the attempt goes on: a token on its way
// must not get lost.
func (l *Login) renew(ctx context.Context, old string, asks challenge) (string, error) {
	var t *token
	var err error
	done := make(chan struct{})
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), renewLimit)
	started := l.of.start(func() {
		defer close(done)
		defer cancel()
		l.mu.Lock()
		defer l.mu.Unlock()
		if t = l.token.Load(); t.fresh() && t.Access != old && (l.person == nil || t.by == l.behind()) {
			return // another request was faster
		}
		switch {
		case l.fault != nil && time.Since(l.failedAt) < renewPause && l.failedFor == l.behind():
			err = l.fault
			return
		case asks.failure == codeScope && len(union(l.asked, asks.scopes)) == len(l.asked): // they were not granted
			err = l.lacks(asks.scopes)
			return
		}
		if l.cfg.AuthorizationCode != nil {
			t, err = l.refresh(work, old)
		} else {
			t, err = l.fetch(work, asks)
		}
		if l.fault, l.failedAt, l.failedFor = err, time.Now(), l.behind(); err == nil {
			l.token.Store(t)
		}
	})
	if !started {
		cancel()
		return "", errClosed
	}
	select {
	case <-done:
		return t.access(), err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// refresh renews a stored login. The caller holds mu.
func (l *Login) refresh(ctx context.Context, old string) (*token, error) {
	unlock, err := l.of.store.lock(ctx, l.file)
	if err != nil {
		return nil, l.unusable(err)
	}
	defer unlock()
	g, err := l.load()
	switch {
	case err != nil || g == nil:
		return nil, l.unusable(err)
	case g.Access != old && g.fresh():
		return &g.token, nil // another process was faster
	case g.Refresh == "":
		return nil, l.required("the login has expired")
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {g.Refresh}, "resource": {g.Resource}}
	if l.provider {
		form.Del("resource")
	}
	t, err := requestToken(ctx, l.client, g.Endpoint, client{ID: g.ClientID, Secret: g.Secret, methods: g.Methods}, form)
	if err == nil && l.provider {
		t, err = t.identity()
	}
	refused, _ := errors.AsType[*fault](err)
	next := *g
	switch {
	case refused != nil && refused.code == "invalid_grant", errors.Is(err, errNoIdentity):
		next.token = token{Scopes: g.Scopes}
		err = l.required(fmt.Sprintf("the login no longer holds (%v)", err))
	case refused != nil && l.cfg.AuthorizationCode.ClientID == "" && (refused.code == "invalid_client" || refused.code == "unauthorized_client"):
		return nil, l.required(fmt.Sprintf("the authorization server has forgotten foldgate (%v)", refused)) // a login registers it anew
	case err != nil:
		return nil, &Error{Code: CodeFailed, text: "login", cause: err}
	default:
		next.token = *t
		if t.Refresh == "" { // it is not rotated
			next.Refresh = g.Refresh
		}
		if len(t.Scopes) == 0 {
			next.Scopes = g.Scopes
		}
	}
	l.save(&next) // before the token is used: the old one may be worth nothing by now
	return &next.token, err
}

// save stores a login. If that fails it stays in memory, since there is no other copy of the token.
func (l *Login) save(g *saved) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if err := l.of.store.write(l.file, g); err != nil {
		l.of.log.Error("a renewed login can't be stored, and is lost when foldgate ends", "upstream", l.upstream, "err", err)
	} else {
		l.info, _ = l.of.store.stat(l.file)
	}
	l.saved, l.unfit = g, nil
	l.token.Store(&g.token)
}

// fetch gets a token from the authorization server. The caller holds mu.
func (l *Login) fetch(ctx context.Context, asks challenge) (_ *token, err error) {
	defer func() {
		if err != nil {
			l.server = nil // it may have moved
			err = l.unusable(err)
		}
	}()
	if l.server == nil {
		if l.server, err = discover(ctx, l.client, l.url, l.cfg.Issuer, asks); err != nil {
			return nil, err
		}
	}
	scopes := l.cfg.Scopes
	if len(scopes) == 0 {
		scopes = union(l.asked, asks.scopes)
		if len(scopes) == 0 {
			scopes = l.server.scopes
		}
	}
	form := url.Values{"resource": {l.server.resource}}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	registered, by, err := l.grant(ctx, form)
	if err != nil {
		return nil, err
	}
	c, err := l.proven(registered, l.server.Issuer, l.server.TokenEndpointAuthMethodsSupported)
	if err != nil {
		return nil, err
	}
	t, err := requestToken(ctx, l.client, l.server.TokenEndpoint, c, form)
	switch {
	case err != nil:
		return nil, err
	case t.Access == form.Get("subject_token"):
		return nil, errors.New("the issuer gives back the caller's own token, which is not for the upstream")
	}
	l.asked, t.by = scopes, by
	return t, nil
}

// Redact returns what the upstream says without the token of the login.
func (l *Login) Redact(text []byte) []byte {
	if l == nil {
		return text
	}
	if t := l.token.Load(); t.access() != "" && bytes.Contains(text, []byte(t.Access)) {
		return bytes.ReplaceAll(text, []byte(t.Access), []byte("[REDACTED:upstream-token]"))
	}
	return text
}

// union returns the elements of both lists, each once.
func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, s := range b {
		if !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	return all
}
