package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// httpConn speaks streamable HTTP: each message to the server is a POST, and its
// response carries the messages that belong to it. A legacy server may also have
// a GET stream for messages that belong to no call. The connection ends when it
// is closed or the server forgets its session.
type httpConn struct {
	receiver
	life
	httpClient
	session atomic.Pointer[string] // Mcp-Session-Id, nil if there is none
	noGet   chan struct{}          // closed when there is no GET stream any more
}

func newHTTPConn(cfg *Config) *httpConn {
	h := &httpConn{httpClient: newHTTPClient(cfg), noGet: make(chan struct{})}
	h.receiver.init(cfg, h)
	h.life.init()
	return h
}

// Call sends a request and waits for the response.
func (h *httpConn) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	if ctx.Err() != nil {
		return wire.Message{}, context.Cause(ctx)
	}
	// The exchange outlives ctx for a moment if all went well, so that its
	// network connection can be used again.
	xctx, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { abort(context.Cause(ctx)) })
	defer stop()
	c, params, err := h.pending.begin(r, abort)
	if err != nil {
		abort(nil)
		return wire.Message{}, err
	}
	if h.Info().Modern() {
		params = completeMeta(params)
	}
	err = h.exchange(xctx, c, params)
	if !h.pending.abandon(c) {
		o := <-c.done
		return o.msg, o.err
	}
	abort(nil)
	if ctx.Err() == nil {
		return wire.Message{}, err
	}
	cause := context.Cause(ctx)
	// The modern era cancels by closing the stream, which has happened.
	if !h.Info().Modern() && r.Method != wire.MethodInitialize {
		h.aside(func(ctx context.Context) error { return h.Notify(ctx, cancelled(c.id, cause)) })
	}
	return wire.Message{}, cause
}

// exchange posts the request of c and reads until c is resolved. An error means
// that it is not, unless it was resolved from elsewhere.
func (h *httpConn) exchange(ctx context.Context, c *call, params json.RawMessage) error {
	r := c.request
	body := appendRequest(make([]byte, 0, 96+len(params)), c.idLiteral(), r.Method, params, r.Extra)
	resp, err := h.post(ctx, body, r.Method, params, r.Header)
	if err != nil {
		return err
	}
	if id := resp.Header.Get(wire.HeaderSession); id != "" && r.Method == wire.MethodInitialize {
		h.session.Store(&id)
	}
	if resp.StatusCode == http.StatusOK && contentType(resp.Header) == mediaEvents {
		return h.readStream(ctx, c, resp.Body)
	}
	defer c.abort(nil)
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

// readWhole resolves c with a response that is no stream.
func (h *httpConn) readWhole(c *call, resp *http.Response) error {
	if h.forgotten(resp) {
		return conn.ErrSessionGone
	}
	body, err := readBody(resp, h.cfg.MaxMessage)
	if err != nil {
		return err
	}
	wire.OneLine(body)
	if resp.StatusCode/100 != 2 {
		if m, err := wire.ParseMessage(body); err == nil && m.Error != nil && m.Method == "" {
			h.pending.resolve(c.id, outcome{msg: m}, c)
			return nil
		}
		return newStatusError(h.cfg, resp, body)
	}
	h.receive(body, false, c)
	if h.pending.get(c.id) == nil { // as nearly always
		return nil
	}
	return fmt.Errorf("%w: HTTP %d without an answer to %s: %s", errUnreadable, resp.StatusCode, c.request.Method, h.cfg.clip(body))
}

// forgotten reports whether resp says that the session is unknown. That is the
// end of the connection.
func (h *httpConn) forgotten(resp *http.Response) bool {
	if resp.StatusCode != http.StatusNotFound || h.session.Load() == nil {
		return false
	}
	h.lose(conn.ErrSessionGone)
	return true
}

// request makes a request with the headers that every request carries.
func (h *httpConn) request(ctx context.Context, method string, body []byte) (*http.Request, error) {
	req, err := h.httpClient.request(ctx, method, h.cfg.URL, body, h.Info().Version)
	if err != nil {
		return nil, err
	}
	if id := h.session.Load(); id != nil {
		req.Header.Set(wire.HeaderSession, *id)
	}
	return req, nil
}

// post sends one message. params and header give a modern request its headers.
func (h *httpConn) post(ctx context.Context, body []byte, method string, params []byte, header http.Header) (*http.Response, error) {
	req, err := h.request(ctx, http.MethodPost, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", mediaJSON)
	req.Header.Set("Accept", mediaJSON+", "+mediaEvents)
	if h.Info().Modern() && method != "" {
		for k, v := range header {
			if strings.HasPrefix(http.CanonicalHeaderKey(k), wire.HeaderParam) {
				req.Header[http.CanonicalHeaderKey(k)] = v
			}
		}
		modernHeaders(req.Header, method, params)
	}
	return h.do(req)
}

// modernHeaders sets the headers that repeat what a modern request's body says.
func modernHeaders(h http.Header, method string, params []byte) {
	h.Set(wire.HeaderMethod, method)
	if member, _ := wire.NameMember(method); member != "" {
		if name, ok := rawjson.GetString(params, member); ok {
			h.Set(wire.HeaderName, wire.EncodeHeader(name))
		}
	}
}

// Notify sends a notification.
func (h *httpConn) Notify(ctx context.Context, m wire.Message) error {
	return h.send(ctx, appendRequest(nil, nil, m.Method, m.Params, m.Extra), m.Method, m.Params)
}

// Reply answers a request of the server.
func (h *httpConn) Reply(ctx context.Context, m wire.Message) error {
	return h.send(ctx, appendReply(nil, m), "", nil)
}

// send posts a message that has no answer.
func (h *httpConn) send(ctx context.Context, body []byte, method string, params []byte) error {
	if err := h.fault(); err != nil {
		return err
	}
	ctx, cancel := h.context(ctx)
	defer cancel()
	resp, err := h.post(ctx, body, method, params, nil)
	if err != nil {
		return err
	}
	if h.forgotten(resp) {
		resp.Body.Close()
		return conn.ErrSessionGone
	}
	return h.discard(resp)
}

func (h *httpConn) refuse(m wire.Message) {
	h.aside(func(ctx context.Context) error { return h.Reply(ctx, m) })
}

// aside sends something without making its caller wait.
func (h *httpConn) aside(send func(context.Context) error) {
	h.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		defer cancel()
		if err := send(ctx); err != nil {
			h.cfg.Log.Debug("message to upstream lost", "err", err)
		}
	})
}

const (
	// retryDefault is the pause before a stream is opened again if the server
	// names none.
	retryDefault = time.Second
	retryMax     = 30 * time.Second
	// resumeAttempts is how often in a row the stream of a call is resumed
	// without a single event before the call fails.
	resumeAttempts = 6
)

// errStreamBroken means that the response stream of a call ended without a
// response.
var errStreamBroken = errors.New("upstream ended the response stream without an answer")

// position is how far a stream was read.
type position struct {
	id    string        // of the last event, "" if the server gives none
	retry time.Duration // what the server asked for, 0 if nothing
}

// wait waits before attempt n to go on.
func (p position) wait(ctx context.Context, n int) error {
	first := retryDefault
	if p.retry > 0 {
		first = p.retry
	}
	return backoff.Backoff{First: first, Max: max(first, retryMax)}.Wait(ctx, n)
}

// readStream reads the response stream of c until c is resolved. It resumes a
// broken stream if the server numbers its events, which the modern era does not.
func (h *httpConn) readStream(ctx context.Context, c *call, body io.ReadCloser) error {
	var pos position
	for empty := 0; ; {
		events, resolved, err := h.readEvents(body, c, &pos)
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

// resume asks for the rest of a stream. empty counts the attempts so far that
// brought nothing.
func (h *httpConn) resume(ctx context.Context, pos position, empty int) (io.ReadCloser, int, error) {
	for ; empty < resumeAttempts; empty++ {
		if err := pos.wait(ctx, empty); err != nil {
			return nil, empty, err
		}
		resp, err := h.get(ctx, pos.id)
		if err == nil {
			return resp.Body, empty, nil
		}
		var status *statusError
		if errors.Is(err, conn.ErrClosed) || (errors.As(err, &status) && !retryable(status.code)) {
			return nil, empty, fmt.Errorf("%w: resuming it: %w", errStreamBroken, err)
		}
	}
	return nil, empty, fmt.Errorf("%w, also after %d attempts to resume it", errStreamBroken, empty)
}

func retryable(status int) bool {
	return status/100 == 5 && status != http.StatusNotImplemented ||
		status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusConflict
}

// finishBody reads the rest of a stream after its answer, in the background and
// for a short while: only a network connection that is read to its end can be
// used again.
func (h *httpConn) finishBody(c *call, body io.ReadCloser) {
	finish := func() {
		t := time.AfterFunc(drainTimeout, func() { c.abort(nil) })
		_, _ = io.Copy(io.Discard, io.LimitReader(body, maxErrorBody)) // nothing of it matters
		t.Stop()
		body.Close()
		c.abort(nil)
	}
	if !h.Go(finish) {
		body.Close()
		c.abort(nil)
	}
}

// readEvents takes the events of one response body. own is the call whose stream
// it is, nil for the GET stream. It stops at the end of the body or when own is
// resolved, and returns the number of events.
func (h *httpConn) readEvents(body io.Reader, own *call, pos *position) (events int, resolved bool, err error) {
	r := newEventReader(body, h.cfg.MaxMessage)
	r.id, r.lastID = pos.id, pos.id
	for {
		ev, err := r.next()
		pos.id = r.lastID
		if r.retry > 0 {
			pos.retry = r.retry
		}
		if err != nil {
			return events, false, err
		}
		events++
		h.receiveEvent(ev, own)
		if own != nil && h.pending.get(own.id) == nil {
			return events, true, nil
		}
	}
}

// get opens an event stream, from the event after id on.
func (h *httpConn) get(ctx context.Context, id string) (*http.Response, error) {
	req, err := h.request(ctx, http.MethodGet, nil)
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
	if h.forgotten(resp) {
		resp.Body.Close()
		return nil, conn.ErrSessionGone
	}
	return resp, h.events(resp)
}

// start opens the GET stream of a legacy server and keeps it open.
func (h *httpConn) start() {
	if h.Info().Modern() || !h.Go(func() { defer close(h.noGet); h.listen() }) {
		close(h.noGet)
	}
}

// listen reads the GET stream, again and again, until the connection ends or the
// server has no such stream.
func (h *httpConn) listen() {
	ctx, cancel := h.context(context.Background())
	defer cancel()
	var pos position
	for failures := 0; ctx.Err() == nil; failures++ {
		resp, err := h.get(ctx, pos.id)
		if err == nil {
			var n int
			if n, _, err = h.readEvents(resp.Body, nil, &pos); n > 0 {
				failures = 0
			}
			resp.Body.Close()
		}
		var status *statusError
		if errors.As(err, &status) && !retryable(status.code) {
			h.cfg.Log.Debug("upstream has no GET stream", "because", err)
			return
		}
		h.cfg.Log.Debug("GET stream ended", "err", err)
		if pos.wait(ctx, failures) != nil {
			return
		}
	}
}

// lose ends the connection. reason is nil for a plain close.
func (h *httpConn) lose(reason error) {
	if h.terminate(reason) {
		h.pending.fail(h.fault())
	}
}

// Close ends the session at the server and waits for the goroutines.
func (h *httpConn) Close() error {
	h.lose(nil)
	if id := h.session.Swap(nil); id != nil && h.Err() == nil {
		h.deleteSession(*id)
	}
	h.wait()
	h.client.CloseIdleConnections()
	return nil
}

// deleteSession tells the server that its session is over. Servers may refuse,
// and one that does not answer soon is left alone.
func (h *httpConn) deleteSession(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	req, err := h.request(ctx, http.MethodDelete, nil)
	if err != nil {
		return
	}
	req.Header.Set(wire.HeaderSession, id)
	resp, err := h.do(req)
	if err != nil {
		h.cfg.Log.Debug("session not deleted", "err", err)
		return
	}
	resp.Body.Close()
}
