package server

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// HTTPOptions tune an HTTP; the zero value is a sound configuration.
type HTTPOptions struct {
	Log *slog.Logger
	// MaxBody is the largest body read, in bytes (64 MiB).
	MaxBody int64
	// MaxQueue is how many bytes may wait for one stream whose host is slow (16 MiB).
	MaxQueue int
	// SSEAfter is how long a call may be silent before its reply becomes an
	// event stream (5 s), and KeepAlive how often such a stream says that it
	// lives (15 s).
	SSEAfter, KeepAlive time.Duration
	// SessionIdle ends a legacy session with no request, no open stream and no
	// message for so long (30 min); MaxSessions is how many there may be (10,000),
	// half of them of one principal where there are several.
	SessionIdle time.Duration
	MaxSessions int
	// EventTTL is how long an ended stream can still be resumed (5 min).
	EventTTL time.Duration
	// IOTimeout is the longest that a request, or 256 KiB of a reply, may take (30 s).
	IOTimeout time.Duration
	// AllowedHosts are Host names accepted beside the loopback ones; if there
	// are any, they are also the only ones accepted on other addresses.
	// AllowedOrigins are origins (scheme://host[:port]) of web pages that may
	// use the endpoint from a browser.
	AllowedHosts, AllowedOrigins []string
	// Tokens says who may use the endpoint; empty: everybody, as "local".
	Tokens Tokens
	// CheckParams checks the Mcp-Param-* headers of a modern request against
	// the schema of what it calls, as principal sees it; nil: no check.
	CheckParams func(principal, method string, params json.RawMessage, h http.Header) *wire.Error
	// Ready says what /readyz answers; nil: always ready.
	Ready func() (ok bool, body []byte)
}

func (o HTTPOptions) withDefaults() HTTPOptions {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	set(&o.SSEAfter, 5*time.Second)
	set(&o.KeepAlive, 15*time.Second)
	set(&o.SessionIdle, 30*time.Minute)
	set(&o.EventTTL, 5*time.Minute)
	set(&o.IOTimeout, 30*time.Second)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 64 << 20
	}
	if o.MaxQueue <= 0 {
		o.MaxQueue = 16 << 20
	}
	if o.MaxSessions <= 0 {
		o.MaxSessions = 10_000
	}
	return o
}

// HTTP serves hosts over streamable HTTP, both eras on one URL: /mcp, and
// /b/{branch_id}/mcp for what belongs to a branch. Make it with NewHTTP and
// end it with Shutdown. It is safe for concurrent use.
type HTTP struct {
	core   Router
	opts   HTTPOptions
	log    *slog.Logger
	ctx    context.Context // of everything served; ends in Shutdown
	cancel context.CancelCauseFunc
	drain  chan struct{} // closed when Shutdown begins: idle streams end
	sweep  chan struct{} // closed when the sweeper is over
	ended  chan struct{} // closed when Shutdown is over

	mu       sync.Mutex
	sessions map[string]*legacySession
	held     map[string]int // sessions by principal
	active   int            // exchanges running
	closing  bool           // nothing new is taken
	idle     chan struct{}  // closed when closing and active is 0
}

var errShutdown = errors.New("foldgate is shutting down")

// NewHTTP returns a handler in front of c. It runs one goroutine that ends
// idle sessions, until Shutdown.
func NewHTTP(c Router, opts HTTPOptions) *HTTP {
	e := &HTTP{
		core: c, opts: opts.withDefaults(), drain: make(chan struct{}), idle: make(chan struct{}),
		sweep: make(chan struct{}), ended: make(chan struct{}), sessions: make(map[string]*legacySession), held: make(map[string]int),
	}
	e.log = e.opts.Log
	e.ctx, e.cancel = context.WithCancelCause(context.Background())
	go e.sweepLoop()
	return e
}

// ServeHTTP implements http.Handler.
func (e *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	branch, ok := branchOf(r.URL.Path)
	if !ok {
		http.Error(w, "not found: MCP is served on /mcp, and in a branch on /b/<branch_id>/mcp", http.StatusNotFound)
		return
	}
	if !e.admit(w, r) {
		return
	}
	if r.Method == http.MethodOptions { // a browser asks before it has a token to send
		w.Header().Set("Allow", allowLegacy)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	principal, given, ok := e.opts.Tokens.authenticate(r.Header)
	if !ok {
		unauthorized(w, given)
		return
	}
	from := sender{principal, branch}
	modern := r.Header.Get(wire.HeaderVersion) >= wire.VersionModern
	switch {
	case r.Method == http.MethodPost:
		e.post(w, r, from)
	case modern:
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "this protocol version has POST only"})
	case r.Method == http.MethodGet:
		e.get(w, r, from)
	case r.Method == http.MethodDelete:
		e.delete(w, r, from)
	default:
		w.Header().Set("Allow", allowLegacy)
		refuse(w, http.StatusMethodNotAllowed, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "method " + r.Method + " is not one of " + allowLegacy})
	}
}

// sender is what the head of a request says: who sends it, and the branch that
// its URL names, or "".
type sender struct{ principal, branch string }

const allowLegacy = "GET, POST, DELETE, OPTIONS"

// post reads one body and hands it to the era that it belongs to.
func (e *HTTP) post(w http.ResponseWriter, r *http.Request, from sender) {
	if !acceptsPost(w, r) {
		return
	}
	body, ok := e.readBody(w, r)
	if !ok {
		return
	}
	version := r.Header.Get(wire.HeaderVersion)
	if k := rawjson.KindOf(body); k == rawjson.Array && version < wire.VersionModern {
		e.postBatch(w, r, body, from)
		return
	}
	m, err := wire.ParseMessage(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, idOf(m), parseFault(err))
		return
	}
	meta := readMeta(m.Params)
	if version >= wire.VersionModern || meta.modern() {
		e.postModern(w, r, m, meta, from)
		return
	}
	if version != "" && !known(version) {
		refuse(w, http.StatusBadRequest, m.ID, wire.UnsupportedVersion(version))
		return
	}
	e.postLegacy(w, r, m, from)
}

func known(version string) bool {
	for _, v := range wire.Versions {
		if v == version {
			return true
		}
	}
	return false
}

// readBody reads the whole body into memory of its own: messages outlive the
// request that brought them, so the memory is not reused.
func (e *HTTP) readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	tooLarge := func() ([]byte, bool) {
		w.Header().Set("Connection", "close") // the rest of the body is not read
		refuse(w, http.StatusRequestEntityTooLarge, nil, &wire.Error{Code: wire.CodeInvalidRequest,
			Message: "the body is larger than " + strconv.FormatInt(e.opts.MaxBody, 10) + " bytes"})
		return nil, false
	}
	if r.ContentLength > e.opts.MaxBody {
		return tooLarge()
	}
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(e.opts.IOTimeout)) // not supported by test recorders
	var body []byte
	var err error
	if n := r.ContentLength; n >= 0 && n <= 1<<20 {
		body = make([]byte, n)
		_, err = io.ReadFull(r.Body, body)
	} else { // a length is only a promise: memory grows with what arrives
		body, err = io.ReadAll(io.LimitReader(r.Body, e.opts.MaxBody+1))
	}
	switch { // where something is left to read the deadline stays: net/http reads on before it answers
	case err != nil:
		refuse(w, http.StatusBadRequest, nil, &wire.Error{Code: wire.CodeParse, Message: "the body did not arrive: " + err.Error()})
		return nil, false
	case int64(len(body)) > e.opts.MaxBody:
		return tooLarge()
	}
	_ = rc.SetReadDeadline(time.Time{})
	return body, true
}

// enter counts an exchange in; it fails once Shutdown has begun.
func (e *HTTP) enter() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing {
		return false
	}
	e.active++
	return true
}

// leave counts an exchange out.
func (e *HTTP) leave() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.active--; e.active == 0 && e.closing {
		close(e.idle)
	}
}

// Shutdown stops taking requests, ends the streams that only wait, lets calls in
// flight finish until ctx is done, cancels those that are left, and closes every
// session. It returns ctx's error if calls had to be cancelled. Call it before
// http.Server.Shutdown, which waits for the same handlers.
func (e *HTTP) Shutdown(ctx context.Context) error {
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		<-e.ended
		return nil
	}
	e.closing = true
	if e.active == 0 {
		close(e.idle)
	}
	e.mu.Unlock()
	defer close(e.ended)
	close(e.drain)
	var err error
	select {
	case <-e.idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.cancel(errShutdown)
	<-e.idle
	<-e.sweep
	for _, l := range e.allSessions() {
		e.closeLegacy(l, errShutdown.Error())
	}
	return err
}

// taken answers a message that gets no reply. Taking it may have been slow, so
// its answer has all the time again.
func (e *HTTP) taken(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(e.opts.IOTimeout)) // not supported by test recorders
	w.WriteHeader(http.StatusAccepted)
}
