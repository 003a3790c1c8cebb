package upstream

import (
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	mediaJSON      = "application/json"
	mediaEvents    = "text/event-stream"
	deleteTimeout  = 2 * time.Second
	drainTimeout   = time.Second
	maxErrorBody   = 64 << 10
	maxRedirects   = 5
	maxIdlePerHost = 64
	// maxPosts is how many messages that are no requests are on their way at once, each over a network
	// connection of its own. postTimeout is how long a server may take to accept one.
	maxPosts    = maxIdlePerHost
	postTimeout = 30 * time.Second
	ioBuffer    = 16 << 10 // of a connection, each way: most messages are one system call
	// retryDefault is the pause before a stream is opened again if the server names none.
	retryDefault = time.Second
	retryMax     = 30 * time.Second
	// retryMin bounds how often a stream is opened whose server ends each one after an event.
	retryMin = 100 * time.Millisecond
	// resumeAttempts is how often in a row the stream of a call is resumed without a single event
	// before the call fails.
	resumeAttempts = 6
)

var (
	errNotAccepted = fmt.Errorf("upstream did not accept the message within %s", postTimeout)
	// errStreamBroken means that the response stream of a call ended without a response.
	errStreamBroken = errors.New("upstream ended the response stream without an answer")
	// errForgotten is conn.ErrSessionGone for a call that the server had accepted: it may have had
	// an effect.
	errForgotten = fmt.Errorf("%w: session is unknown to the upstream", conn.ErrClosed)
)

// httpConn is a connection over HTTP: each message to the server is a POST.
//
// In streamable HTTP the response carries the messages that belong to the request. A legacy server
// may also have a GET stream for messages that belong to no call. The connection ends when it is
// closed or the server forgets its session.
//
// In HTTP+SSE (sse.go) one GET stream carries all messages of the server. The connection ends with
// the stream.
type httpConn struct {
	connection
	client   *http.Client
	endpoint string                 // of HTTP+SSE: the URL of messages; else ""
	session  atomic.Pointer[string] // Mcp-Session-Id, or nil
	streams  atomic.Bool            // a GET has opened a stream
	noGet    chan struct{}          // closed when there is no GET stream any more
	posts    chan struct{}          // has room for the messages that may be on their way at once
	closing  sync.Once
}

// newHTTPConn returns a connection with network connections of its own. Its redirects never leave
// the host: headers of the configuration carry credentials.
func newHTTPConn(cfg *Config) *httpConn {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, maxIdlePerHost
	t.ReadBufferSize, t.WriteBufferSize = ioBuffer, ioBuffer
	h := &httpConn{noGet: make(chan struct{}), posts: make(chan struct{}, maxPosts), client: &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			first := via[0]
			if len(via) > maxRedirects || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host || req.Method != first.Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}}
	h.connection.init(cfg, h)
	return h
}

// send posts m. If the response of a request comes on the same exchange, send reads it.
func (h *httpConn) send(ctx context.Context, m wire.Message, c *call) error {
	if c != nil && h.endpoint == "" {
		return h.exchange(ctx, m, c)
	}
	if m.Method == wire.MethodCancelled && h.Info().Modern() {
		return nil // the modern era cancels by closing the stream, which has happened
	}
	var cancel context.CancelFunc
	if c != nil {
		ctx, cancel = h.context(ctx)
	} else {
		ctx, cancel = context.WithTimeoutCause(ctx, postTimeout, errNotAccepted)
	}
	defer cancel()
	if c == nil {
		select {
		case h.posts <- struct{}{}:
			defer func() { <-h.posts }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	resp, err := h.post(ctx, m, nil)
	if err == nil {
		err = h.check(resp)
	}
	if err != nil {
		return err
	}
	if c != nil {
		c.accepted.Store(true)
	}
	// Only a network connection that is read to its end can be used again. Some servers never end it.
	defer time.AfterFunc(drainTimeout, cancel).Stop()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody))
	return resp.Body.Close()
}

// exchange posts the request of c and reads until c is resolved. An error means that it is not,
// unless it was resolved from elsewhere.
func (h *httpConn) exchange(caller context.Context, m wire.Message, c *call) (err error) {
	// The exchange outlives its caller for a moment if all went well, so that its network
	// connection can be used again.
	ctx, abort := context.WithCancelCause(context.WithoutCancel(caller))
	defer context.AfterFunc(caller, func() { abort(context.Cause(caller)) })()
	defer func() {
		if err != nil {
			abort(err)
		}
	}()
	if !h.calls.setAbort(c, abort) {
		return conn.ErrClosed
	}
	resp, err := h.post(ctx, m, c.request.Header)
	if err != nil {
		return err
	}
	c.accepted.Store(resp.StatusCode/100 == 2)
	if id := resp.Header.Get(wire.HeaderSession); id != "" && m.Method == wire.MethodInitialize {
		h.session.Store(&id)
	}
	if resp.StatusCode == http.StatusOK && wire.MediaType(resp.Header.Get("Content-Type")) == mediaEvents {
		return h.readStream(ctx, c, resp.Body)
	}
	defer abort(nil)
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted && h.Info().Result != nil {
		select { // some servers answer on the GET stream
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-h.noGet:
		}
	}
	return h.readWhole(c, resp)
}

// post sends m. A modern request repeats in headers what its body says.
func (h *httpConn) post(ctx context.Context, m wire.Message, header http.Header) (*http.Response, error) {
	req, err := h.request(ctx, http.MethodPost, cmp.Or(h.endpoint, h.cfg.URL), m.AppendLine(nil))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", mediaJSON)
	if h.endpoint == "" {
		req.Header.Set("Accept", mediaJSON+", "+mediaEvents)
	}
	if h.Info().Modern() && m.Method != "" {
		for k, v := range header {
			if k = http.CanonicalHeaderKey(k); strings.HasPrefix(k, wire.HeaderParam) {
				req.Header[k] = v
			}
		}
		modernHeaders(req.Header, m.Method, m.Params)
	}
	return h.do(req)
}

func modernHeaders(h http.Header, method string, params []byte) {
	h.Set(wire.HeaderMethod, method)
	if member, _ := wire.NameMember(method); member != "" {
		if name, ok := rawjson.GetString(params, member); ok {
			h.Set(wire.HeaderName, wire.EncodeHeader(name))
		}
	}
}

// readWhole resolves c with a response that is no stream.
func (h *httpConn) readWhole(c *call, resp *http.Response) error {
	failed := resp.StatusCode/100 != 2
	body, err := wire.ReadBody(resp.Body, resp.ContentLength, int64(h.cfg.MaxMessage))
	if err == wire.ErrTooLarge {
		return tooLarge(int(resp.ContentLength), h.cfg.MaxMessage)
	}
	if err != nil && !failed { // of an error, what came is enough
		return err
	}
	body = h.cfg.Login.Redact(body)
	wire.OneLine(body)
	if failed {
		if m, err := wire.ParseMessage(body); err == nil && m.Error != nil && m.Method == "" {
			said, ok := rawjson.GetString(m.Error, "message")
			if resp.StatusCode != http.StatusUnauthorized || !ok {
				h.calls.resolve(c.id, m, nil, c)
				return nil
			}
			body = []byte(said)
		}
		return newStatusError(h.cfg, resp, body)
	}
	h.receive(body, false, c)
	if h.calls.get(c.id) == nil { // as nearly always
		return nil
	}
	return fmt.Errorf("%w: HTTP %d without an answer to %s: %s", errUnreadable, resp.StatusCode, c.request.Method, h.cfg.clip(body))
}

// readStream reads the response stream of c until c is resolved. It resumes a broken stream if the
// server numbers its events, which the modern era does not.
func (h *httpConn) readStream(ctx context.Context, c *call, body io.ReadCloser) error {
	var pos position
	for empty := 0; ; {
		events, resolved, err := h.readEvents(newEventReader(body, h.cfg.MaxMessage, &pos), c)
		if resolved {
			h.finishBody(c, body)
			return nil
		}
		body.Close()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case c.request.Method == wire.MethodListen:
			return fmt.Errorf("%w: stream ended: %v", errListenEnded, err)
		case pos.id == "" || h.Info().Modern():
			return fmt.Errorf("%w: %v", errStreamBroken, err)
		}
		if empty++; events > 0 {
			empty = 0
		}
		if body, empty, err = h.resume(ctx, pos, empty); err != nil {
			return err
		}
	}
}

// finishBody reads the rest of a stream after its response, in the background and for a short
// while: only a network connection that is read to its end can be used again.
func (h *httpConn) finishBody(c *call, body io.ReadCloser) {
	done := func() { body.Close(); c.abort(nil) }
	read := h.Go(func() {
		defer done()
		defer time.AfterFunc(drainTimeout, func() { c.abort(nil) }).Stop()
		_, _ = io.Copy(io.Discard, io.LimitReader(body, maxErrorBody)) // nothing of it matters
	})
	if !read {
		done()
	}
}

// resume asks for the rest of a stream. empty counts the attempts so far that brought nothing.
func (h *httpConn) resume(ctx context.Context, pos position, empty int) (io.ReadCloser, int, error) {
	for ; empty < resumeAttempts; empty++ {
		if err := pos.wait(ctx, empty); err != nil {
			return nil, empty, err
		}
		resp, err := h.get(ctx, pos.id)
		if err == nil {
			return resp.Body, empty, nil
		}
		if errors.Is(err, conn.ErrClosed) || final(err) {
			return nil, empty, fmt.Errorf("%w: resuming it: %w", errStreamBroken, err)
		}
	}
	return nil, empty, fmt.Errorf("%w, also after %d attempts to resume it", errStreamBroken, empty)
}

// start opens the GET stream of a legacy server and keeps it open.
func (h *httpConn) start() {
	if h.Info().Modern() || !h.Go(func() { defer close(h.noGet); h.listen() }) {
		close(h.noGet)
	}
}

// listen reads the GET stream, again and again, until the connection ends or the server has no such
// stream.
func (h *httpConn) listen() {
	ctx, cancel := h.context(context.Background())
	defer cancel()
	var pos position
	for failures := 0; ctx.Err() == nil; failures++ {
		resp, err := h.get(ctx, pos.id)
		if err == nil {
			n, opened := 0, time.Now()
			if n, _, err = h.readEvents(newEventReader(resp.Body, h.cfg.MaxMessage, &pos), nil); n > 0 || time.Since(opened) >= backoff.Steady {
				failures = 0
			}
			resp.Body.Close()
		}
		if final(err) {
			h.cfg.Log.Debug("upstream has no GET stream", "because", err)
			return
		}
		h.cfg.Log.Debug("GET stream ended", "err", err)
		if pos.wait(ctx, failures) != nil {
			return
		}
	}
}

// wait waits after n attempts that failed, never less than the server wants or than retryMin.
func (p position) wait(ctx context.Context, n int) error {
	first := max(cmp.Or(p.retry, retryDefault), retryMin)
	pause := backoff.Backoff{First: first, Max: max(first, retryMax)}
	return backoff.Sleep(ctx, max(pause.Delay(n), p.retry, retryMin))
}

// final reports whether err is an HTTP status with which further attempts are useless.
func final(err error) bool {
	again := []int{http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusConflict}
	e, ok := errors.AsType[*statusError](err)
	return ok && !slices.Contains(again, e.code) && (e.code/100 != 5 || e.code == http.StatusNotImplemented)
}

// get opens an event stream, from the event after id on.
func (h *httpConn) get(ctx context.Context, id string) (*http.Response, error) {
	req, err := h.request(ctx, http.MethodGet, h.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", mediaEvents)
	if id != "" {
		req.Header.Set(wire.HeaderLastEvent, id)
	}
	resp, err := h.do(req)
	if err != nil {
		return nil, err
	}
	if err := h.check(resp); err != nil {
		return nil, err
	}
	if wire.MediaType(resp.Header.Get("Content-Type")) != mediaEvents {
		resp.Body.Close()
		return nil, &statusError{code: resp.StatusCode, text: "no event stream"}
	}
	h.streams.Store(true)
	return resp, nil
}

// readEvents takes the events of one response body. own is the call of the POST, nil for the GET
// stream. It stops at the end of the body or when own is resolved, and returns the number of
// events.
func (h *httpConn) readEvents(r *eventReader, own *call) (events int, resolved bool, err error) {
	for {
		ev, err := r.next()
		if err != nil {
			return events, false, err
		}
		events++
		switch {
		case ev.name != "" && ev.name != "message":
		case ev.data.Tail != nil:
			h.unreadable(ev.data.Head, ev.data.Tail, tooLarge(ev.data.Size, h.cfg.MaxMessage), own)
		default:
			text := h.cfg.Login.Redact(ev.data.Head)
			wire.OneLine(text)
			h.receive(text, false, own)
		}
		if own != nil && h.calls.get(own.id) == nil {
			return events, true, nil
		}
	}
}

// Close waits for the goroutines and ends the session at the server.
func (h *httpConn) Close() error {
	h.closing.Do(func() {
		h.lose(nil)
		h.group.Wait() // sends what is left to send
		if h.session.Load() != nil && h.Err() == nil {
			h.deleteSession()
		}
		h.client.CloseIdleConnections()
	})
	return nil
}

// deleteSession tells the server that its session is over. Servers may refuse, and one that does
// not answer soon is left alone.
func (h *httpConn) deleteSession() {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	req, err := h.request(ctx, http.MethodDelete, h.cfg.URL, nil)
	if err != nil {
		return
	}
	resp, err := h.do(req)
	if err != nil {
		h.cfg.Log.Debug("session not deleted", "err", err)
		return
	}
	resp.Body.Close()
}

// request makes a request with the headers that every request carries. The host's headers are not
// among them: its Authorization is not for the server.
func (h *httpConn) request(ctx context.Context, method, url string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range h.cfg.Headers {
		req.Header.Set(k, v)
	}
	if revision := h.Info().Version; revision != "" {
		req.Header.Set(wire.HeaderVersion, revision)
	}
	if id := h.session.Load(); id != nil {
		req.Header.Set(wire.HeaderSession, *id)
	}
	return req, nil
}

// do sends a request. A *dialError means that the server could not be reached. If the server does
// not know the session, the connection ends. Until a GET has succeeded, 404 may only mean that the
// server has no route for GET.
func (h *httpConn) do(req *http.Request) (*http.Response, error) {
	resp, err := h.cfg.Login.Do(h.client, req)
	if err == nil {
		known := h.session.Load() != nil || h.endpoint != ""
		if resp.StatusCode == http.StatusNotFound && known && (req.Method != http.MethodGet || h.streams.Load()) {
			resp.Body.Close()
			h.lose(conn.ErrSessionGone)
			return nil, conn.ErrSessionGone
		}
		resp.Body = newResponseBody(resp)
		return resp, nil
	}
	if cause := context.Cause(req.Context()); cause != nil {
		return nil, cause
	}
	if asked, ok := err.(*url.Error); ok { // a model reads the error
		if asked.Err == io.EOF {
			asked.Err = errors.New("the server closed the connection without a response")
		}
		err = &url.Error{Op: asked.Op, URL: origin(req.URL), Err: asked.Err}
	}
	_, unknown := errors.AsType[*net.DNSError](err)
	if op, ok := errors.AsType[*net.OpError](err); unknown || ok && op.Op == "dial" {
		return nil, &dialError{err}
	}
	return nil, err
}

// responseBody is the body of a response. Its errors say what is wrong with the body.
type responseBody struct {
	io.ReadCloser
	gzip  bool // the transport decompresses it
	fault error
}

func newResponseBody(resp *http.Response) *responseBody {
	b := &responseBody{ReadCloser: resp.Body, gzip: resp.Uncompressed}
	if e := resp.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		b.fault = fmt.Errorf("the response has Content-Encoding %.40q, which foldgate does not accept: it asks for gzip", e)
	}
	return b
}

func (b *responseBody) Read(p []byte) (int, error) {
	if b.fault != nil {
		return 0, b.fault
	}
	n, err := b.ReadCloser.Read(p)
	if err == nil || err == io.EOF {
		return n, err
	}
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the response ended before its body was complete: the server, or a proxy in front of it, cut it off")
	case b.gzip && (corrupt || err == gzip.ErrHeader || err == gzip.ErrChecksum):
		err = fmt.Errorf("the response has Content-Encoding gzip, but its body can't be decompressed: %w", err)
	}
	return n, err
}

// origin returns what errors show of a URL: its user, path and query can hold a credential.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// check returns the fault of a response outside 2xx, which it reads and closes. A response of 2xx
// stays open.
func (h *httpConn) check(resp *http.Response) error {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came is enough
	return newStatusError(h.cfg, resp, body)
}

// statusError is an HTTP response that is neither success nor JSON-RPC, or that asks for a login.
type statusError struct {
	code int
	text string
}

func newStatusError(cfg *Config, resp *http.Response, body []byte) *statusError {
	e := &statusError{code: resp.StatusCode}
	if to, err := resp.Location(); err == nil && resp.StatusCode/100 == 3 {
		text, path := origin(to), " with the same path"
		if to.Path != resp.Request.URL.Path {
			text, path = text+to.EscapedPath(), ""
		}
		e.text = fmt.Sprintf("redirects to %.200q%s: configure that URL if you trust it", cfg.clean([]byte(text)), path)
	} else if len(body) > 0 {
		e.text = cfg.clip(body)
	}
	if e.code == http.StatusUnauthorized { // without a login: with one, it is a LoginError
		why := "foldgate has no login there: set upstreams." + cfg.Name + ".auth, see docs/logins.md"
		if len(cfg.Headers) > 0 {
			why = "the server does not accept upstreams." + cfg.Name + ".headers"
		}
		e.text = strings.TrimPrefix(e.text+"; "+why, "; ")
	}
	return e
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("HTTP %d %s", e.code, http.StatusText(e.code))
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}
