package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/server/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	// httpMaxHeader is the limit on the head of a request, in bytes.
	httpMaxHeader = 64 << 10
	// httpReadHeader is how long the head of a request may take to arrive, and httpKeepAlive how
	// long a connection may wait for its next request.
	httpReadHeader = 10 * time.Second
	httpKeepAlive  = 2 * time.Minute
	// sseAfter is how long a call may be silent before its reply becomes an event stream, and
	// sseKeepAlive the interval of comments on a silent event stream.
	sseAfter     = 5 * time.Second
	sseKeepAlive = 15 * time.Second
	// eventTTL is how long an ended stream can still be resumed.
	eventTTL = 5 * time.Minute
	// A replica that stops turns new connections away. For lastConnections it still accepts those that are
	// being made, and takes requests. For lastRequests after that it waits for the first request of a
	// connection, and for replies. It closes idle connections at once, so a request that is under way on one
	// fails.
	lastConnections = 250 * time.Millisecond
	lastRequests    = time.Second
	// ioTimeout is the longest that a request, or writeChunk of a reply, may take.
	ioTimeout = 30 * time.Second
)

// HTTPOptions configure an HTTP. Only Log is required.
type HTTPOptions struct {
	Log *slog.Logger
	// MaxBody is the largest body read, in bytes (64 MiB).
	MaxBody int64
	// MaxQueue is how many bytes may wait for one stream with a slow host (16 MiB).
	MaxQueue int
	// SessionIdle ends a legacy session that had no request, no open stream and no message for so
	// long (30 min). MaxSessions is the limit on sessions (10,000). If there are several
	// principals, each may have half of them.
	SessionIdle time.Duration
	MaxSessions int
	// MaxRequests and MaxRequestBytes are the limits on requests in flight, subscriptions/listen included, and on
	// the bytes of these (20,000 and 1 GiB). If there are several principals, each may have half of them.
	MaxRequests, MaxRequestBytes int
	// Access returns who may use the server now; nil: all clients that can reach it.
	Access func() *Access
	// Control returns what answers a caller's request below ControlPath, which it gets without that
	// prefix; nil if the caller may not make it. Without Control there are no such paths.
	Control func(id interceptor.Identity, r *http.Request) http.Handler
	// Replicas serve hosts together with this server; nil: there are none.
	Replicas *replicas.Set
	// Ready returns the answer of /readyz; nil: always ready.
	Ready func() (ok bool, body []byte)
}

// HTTP serves hosts over streamable HTTP, both eras on one URL: /mcp, and /b/{branch_id}/mcp for
// calls in a branch. Make it with NewHTTP and end it with Shutdown. It is safe for concurrent
// use.
type HTTP struct {
	router   Router
	opts     HTTPOptions
	log      *slog.Logger
	lifetime context.Context // of everything served; ends in Shutdown
	cancel   context.CancelCauseFunc
	drain    chan struct{} // closed when Shutdown begins: idle streams end
	shutdown sync.Once
	running  sync.WaitGroup // requests, and the goroutine that ends idle sessions

	mu            sync.Mutex
	sessions      map[string]*legacySession
	sessionCounts map[string]int      // by principal
	inFlight      map[string]inFlight // by principal
	allInFlight   inFlight
	closing       bool // no more requests are taken
}

var errShutdown = errors.New(Shutdown)

// NewHTTP returns a server. It runs one goroutine that ends idle sessions, until Shutdown.
func NewHTTP(r Router, opts HTTPOptions) *HTTP {
	opts.SessionIdle = cmp.Or(opts.SessionIdle, 30*time.Minute)
	opts.MaxBody = cmp.Or(opts.MaxBody, 64<<20)
	opts.MaxQueue = cmp.Or(opts.MaxQueue, 16<<20)
	opts.MaxSessions = cmp.Or(opts.MaxSessions, 10_000)
	opts.MaxRequests = cmp.Or(opts.MaxRequests, 20_000)
	opts.MaxRequestBytes = cmp.Or(opts.MaxRequestBytes, 1<<30)
	if opts.Access == nil {
		opts.Access = func() *Access { return &Access{} }
	}
	srv := &HTTP{
		router: r, opts: opts, log: opts.Log, drain: make(chan struct{}),
		sessions: make(map[string]*legacySession), sessionCounts: make(map[string]int), inFlight: make(map[string]inFlight),
	}
	srv.lifetime, srv.cancel = context.WithCancelCause(context.Background())
	srv.running.Go(srv.expireSessions)
	return srv
}

// Listen opens the address of the server. For port 0 the listener knows the port that was chosen.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lc.SetMultipathTCP(false) // its sockets take no filter, which TurnAway needs
	ln, err := lc.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listening on %s: another program has this port: stop it, or choose another port", addr)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("listening on %s: this machine has no such address: correct it, or use 0.0.0.0 for all that it has", addr)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("listening on %s: permission denied: choose a port of 1024 or more, or give foldgate the right to this one", addr)
	case err != nil:
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return coalescingListener{ln}, nil
}

// TurnAway lets a listener of [Listen] accept the connections that are being made, and no others. The
// caller closes it then: that resets no connection. It does so on Linux only.
func TurnAway(ln net.Listener) {
	if l, ok := ln.(coalescingListener); ok {
		if tcp, ok := l.Listener.(*net.TCPListener); ok && turnAway(tcp) == nil {
			<-time.After(lastConnections)
		}
	}
}

// Serve serves h on ln until ctx is done. Then it lets pending calls finish for at most grace,
// ends srv and every connection, and returns nil. If the listener fails, Serve returns its error.
// h is srv.Handler(), or middleware around it.
func Serve(ctx context.Context, ln net.Listener, srv *HTTP, h http.Handler, grace time.Duration) error {
	hs := &http.Server{
		Handler:           h,
		ConnContext:       withCoalescing,
		ReadHeaderTimeout: httpReadHeader,
		// These deadlines also hold for bodies that are not read, and for replies without a
		// deadline of their own. Without them, a client that sends half a request or does not
		// read holds a connection forever, even without a token.
		ReadTimeout:    ioTimeout,
		WriteTimeout:   2 * ioTimeout, // from the head on: the body may take one
		IdleTimeout:    httpKeepAlive,
		MaxHeaderBytes: httpMaxHeader,
		ErrorLog:       slog.NewLogLogger(srv.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- hs.Serve(ln) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = ln.Close() // no new connections while calls finish
	if srv.opts.Replicas != nil {
		last, cancel := context.WithTimeout(limit, lastRequests)
		_ = hs.Shutdown(last)
		cancel()
	}
	if srv.Shutdown(limit) != nil {
		srv.log.Warn("cancelled the calls that did not finish in time", "grace", grace)
	}
	if hs.Shutdown(limit) != nil {
		_ = hs.Close()
	}
	if err == nil {
		<-served
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving %s: %w", ln.Addr(), err)
}

// Recheck ends the sessions of principals that Access no longer has. A stream whose token is not
// valid any more carries nothing from then on, and ends.
func (srv *HTTP) Recheck() {
	who := srv.opts.Access().Auth
	srv.closeSessions("its principal may no longer use foldgate", func(l *legacySession) bool { return !who.Knows(l.caller) })
}

// tokenCheck returns a function that reports whether the token of the request is still valid.
func (x *exchange) tokenCheck() func() bool {
	access, caller := x.srv.opts.Access(), x.caller
	return func() bool {
		if now := x.srv.opts.Access(); now != access {
			c, f := now.Auth.Authenticate(x.r.Context(), x.r.Header, x.r.URL.EscapedPath())
			if f != nil || !sameCaller(c.Identity, caller.Identity) {
				return false
			}
			access, caller.Expires = now, c.Expires
		}
		return caller.Expires.IsZero() || time.Now().Before(caller.Expires)
	}
}

// sameCaller reports whether two tokens are of one caller: by principal, issuer and subject. Of one
// caller each token may have other scopes.
func sameCaller(a, b interceptor.Identity) bool {
	return a.Principal == b.Principal && a.Issuer == b.Issuer && a.Subject == b.Subject
}

// Shutdown stops taking requests, ends the streams that only wait, lets pending calls finish
// until ctx is done, cancels the rest, and closes every session. It returns ctx's error if calls
// had to be cancelled. Call it before http.Server.Shutdown, which waits for the same handlers.
func (srv *HTTP) Shutdown(ctx context.Context) (err error) {
	srv.shutdown.Do(func() {
		srv.mu.Lock()
		srv.closing = true
		srv.mu.Unlock()
		close(srv.drain)
		idle := make(chan struct{})
		go func() { srv.running.Wait(); close(idle) }()
		select {
		case <-idle:
		case <-ctx.Done():
			err = ctx.Err()
		}
		srv.cancel(errShutdown)
		<-idle
		srv.closeSessions(errShutdown.Error(), func(*legacySession) bool { return true })
	})
	return err
}

// Handler returns the whole URL space: the MCP URLs, /healthz (200 while the process lives) and
// /readyz (200 or 503, with the body of opts.Ready for clients that may use the server).
func (srv *HTTP) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", srv)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	})
	mux.HandleFunc("GET /readyz", srv.ready)
	if srv.opts.Control != nil {
		mux.Handle(ControlPath+"/", http.StripPrefix(ControlPath, http.HandlerFunc(srv.control)))
	}
	mux.HandleFunc("GET "+auth.MetadataPath, srv.metadata)
	mux.HandleFunc("GET "+auth.MetadataPath+"/", srv.metadata)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, ok := branchOf(r.URL.Path); ok { // most requests: they need no other route
			srv.ServeHTTP(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (srv *HTTP) ready(w http.ResponseWriter, r *http.Request) {
	if !srv.hostAllowed(r) { // it names upstreams
		http.Error(w, hostRefused(r), http.StatusForbidden)
		return
	}
	status, body := http.StatusOK, []byte(`{"status":"ready"}`)
	if srv.opts.Ready != nil {
		ok, whole := srv.opts.Ready()
		if !ok {
			status, body = http.StatusServiceUnavailable, []byte(`{"status":"unready"}`)
		}
		if _, f := srv.opts.Access().Auth.Authenticate(r.Context(), r.Header, r.URL.EscapedPath()); f == nil {
			body = whole
		}
	}
	writeJSON(w, status, body)
}

// ControlPath begins the paths of auditors and operators.
const ControlPath = "/control"

func (srv *HTTP) control(w http.ResponseWriter, r *http.Request) {
	x := &exchange{srv: srv, w: w, r: r}
	if !x.checkOrigin() || !x.authenticate("/mcp") {
		return
	}
	h := srv.opts.Control(x.caller.Identity, r)
	if h == nil {
		need, trace := "the role of auth.auditor or auth.operator", strings.HasSuffix(r.URL.Path, "/v1/trace")
		switch {
		case r.Method == http.MethodGet && trace:
			need = "the role of auth.auditor"
		case r.Method == http.MethodDelete && !trace:
			need = "the role of auth.operator"
		case r.Method != http.MethodGet:
			need = "the gateway's socket, and no role allows it here"
		}
		x.refuse(http.StatusForbidden, nil, invalid(wire.CodeInvalidRequest, "403 Forbidden: this needs "+need+"; ask whoever runs foldgate"))
		return
	}
	h.ServeHTTP(w, r)
}

// exchange is one request over HTTP, and the way to answer it.
type exchange struct {
	srv    *HTTP
	w      http.ResponseWriter
	r      *http.Request
	branch string      // in the URL, or ""
	caller auth.Caller // set by authenticate

	counted  countedRequest // set by enter
	arriving countedBody    // its body; a part of exchange, to spare an allocation
}

const allowLegacy = "GET, POST, DELETE, OPTIONS"

// ServeHTTP implements http.Handler.
func (srv *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	branch, ok := branchOf(r.URL.Path)
	if !ok {
		http.Error(w, "not found: MCP is served on /mcp, and in a branch on /b/<branch_id>/mcp", http.StatusNotFound)
		return
	}
	x := &exchange{srv: srv, w: w, r: r, branch: branch}
	if !x.checkOrigin() {
		return
	}
	if r.Method == http.MethodOptions { // a browser asks before it has a token to send
		w.Header().Set("Allow", allowLegacy)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if !x.authenticate(r.URL.EscapedPath()) {
		return
	}
	notAllowed := func(allow, text string) {
		w.Header().Set("Allow", allow)
		x.refuse(http.StatusMethodNotAllowed, nil, invalid(wire.CodeInvalidRequest, text))
	}
	switch {
	case r.Method == http.MethodPost:
		x.post()
	case r.Header.Get(wire.HeaderVersion) >= wire.VersionModern:
		notAllowed("POST", "this protocol version has POST only")
	case (r.Method == http.MethodGet || r.Method == http.MethodDelete) && x.forwardToOwner(nil, nil):
	case r.Method == http.MethodGet:
		x.get()
	case r.Method == http.MethodDelete:
		x.delete()
	default:
		notAllowed(allowLegacy, "method "+r.Method+" is not one of "+allowLegacy)
	}
}

// branchOf returns the branch in a path: "" for /mcp, the id for /b/{branch_id}/mcp.
func branchOf(path string) (branch string, ok bool) {
	if path == "/mcp" {
		return "", true
	}
	rest, ok := strings.CutPrefix(path, "/b/")
	if !ok {
		return "", false
	}
	branch, ok = strings.CutSuffix(rest, "/mcp")
	return branch, ok && branch != "" && branch != "." && branch != ".." && !strings.Contains(branch, "/")
}

// post reads one body and hands it to its era.
func (x *exchange) post() {
	if !x.acceptsPost() {
		return
	}
	body, ok := x.readBody()
	if !ok {
		return
	}
	version := x.r.Header.Get(wire.HeaderVersion)
	if rawjson.KindOf(body) == rawjson.Array && version < wire.VersionModern {
		if !x.forwardToOwner(nil, body) {
			x.postBatch(body)
		}
		return
	}
	m, err := wire.ParseMessage(body)
	if err != nil {
		x.refuse(http.StatusBadRequest, idOf(m), parseError(err))
		return
	}
	req := x.request(m)
	switch {
	case x.forwardToOwner(req, body):
	case version == wire.VersionModern || modern(req.Meta):
		x.postModern(req)
	case version != "" && !slices.Contains(wire.Versions, version):
		x.refuse(http.StatusBadRequest, m.ID, wire.UnsupportedVersion(version))
	default:
		x.postLegacy(req)
	}
}

// request returns a message of the body as a request.
func (x *exchange) request(m wire.Message) *Request {
	req := NewRequest(m)
	req.Identity, req.Header, req.BranchID = x.caller.Identity, paramHeaders(x.r.Header), x.branch
	return req
}

// readBody reads the whole body into new memory, because messages outlive their HTTP request.
func (x *exchange) readBody() ([]byte, bool) {
	arriving := &x.arriving
	arriving.Reader, arriving.x = x.r.Body, x
	defer arriving.release()
	if n := x.r.ContentLength; n > freeBody && n <= wire.MaxPromised {
		_ = arriving.hold(int(n))
	}
	var body []byte
	err := arriving.full
	if err == nil {
		body, err = wire.ReadBody(arriving, x.r.ContentLength, x.srv.opts.MaxBody)
	}
	switch { // if some of the body is left its deadline stays: net/http reads on before it answers
	case arriving.full != nil:
		x.w.Header().Set("Connection", "close")
		x.w.Header().Set("Retry-After", "1")
		x.refuse(http.StatusTooManyRequests, nil, invalid(wire.CodeInternal, arriving.full.Error()))
		return nil, false
	case err == wire.ErrTooLarge:
		x.w.Header().Set("Connection", "close") // the rest of the body is not read
		x.refuse(http.StatusRequestEntityTooLarge, nil,
			invalid(wire.CodeInvalidRequest, "the body is larger than "+strconv.FormatInt(x.srv.opts.MaxBody, 10)+" bytes"))
		return nil, false
	case err != nil:
		x.refuse(http.StatusBadRequest, nil, invalid(wire.CodeParse, "the body did not arrive: "+err.Error()))
		return nil, false
	}
	_ = http.NewResponseController(x.w).SetReadDeadline(time.Time{}) // not supported by test recorders
	return body, true
}

// paramHeaders returns the headers Mcp-Param-*, also those that foldgate does not know, or nil. The
// other headers belong to this hop.
func paramHeaders(all http.Header) (params http.Header) {
	for name, values := range all {
		if strings.HasPrefix(name, wire.HeaderParam) {
			if params == nil {
				params = http.Header{}
			}
			params[name] = values
		}
	}
	return params
}

// accepted answers a message that gets no reply. Taking it may have been slow, so the answer gets
// a new deadline.
func (x *exchange) accepted() {
	_ = http.NewResponseController(x.w).SetWriteDeadline(time.Now().Add(ioTimeout)) // not supported by test recorders
	x.w.WriteHeader(http.StatusAccepted)
}

func (x *exchange) refuseShutdown(id json.RawMessage) {
	x.w.Header().Set("Retry-After", "1")
	if replicas.Forwarded(x.r) {
		replicas.NotTaken(x.w.Header())
	}
	x.refuse(http.StatusServiceUnavailable, id, invalid(wire.CodeInternal, errShutdown.Error()))
}

// refuse answers a request with an error of the server's own, and tells the router.
func (x *exchange) refuse(status int, id json.RawMessage, fault *wire.Error) {
	x.refused(status, fault)
	writeJSON(x.w, status, fault.Response(id))
}

func (x *exchange) refused(status int, fault *wire.Error) {
	caller := x.caller
	if caller.Principal == "" { // it is refused before it was authenticated
		caller, _ = x.srv.opts.Access().Auth.Authenticate(x.r.Context(), x.r.Header, x.r.URL.EscapedPath())
	}
	x.srv.router.Rejected(Rejection{From: client(x.r), Principal: caller.Principal, Status: status, Fault: fault})
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	setHead(w, status, len(body))
	_, _ = w.Write(body) // after an error the host is gone
}

func setHead(w http.ResponseWriter, status, length int) {
	h := w.Header()
	h["Content-Type"] = typeJSON
	h["Content-Length"] = []string{strconv.Itoa(length)}
	w.WriteHeader(status)
}
