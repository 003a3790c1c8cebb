package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// httpLink speaks streamable HTTP: every message of ours is a POST, and what
// arrives in its response belongs to it. A legacy upstream may also have a GET
// stream for what belongs to no call. The link has no connection that could
// break; it dies when it is closed or the upstream forgets its session.
type httpLink struct {
	incoming
	mortal
	client  *http.Client
	session atomic.Pointer[string] // Mcp-Session-Id, nil without
	noGet   chan struct{}          // closed when there is no GET stream, nor will be
}

func newHTTPLink(cfg *Config) *httpLink {
	l := &httpLink{client: newHTTPClient(), noGet: make(chan struct{}), mortal: mortal{dead: make(chan struct{})}}
	l.incoming.init(cfg, func(m wire.Message) {
		l.aside(func(ctx context.Context) error { return l.Reply(ctx, m) })
	})
	return l
}

// openHTTP opens a streamable HTTP link, or the transport before it where the
// upstream knows only that.
func openHTTP(ctx context.Context, cfg *Config) (conn.Conn, error) {
	l, err := negotiate(ctx, cfg, func() (opening, error) { return newHTTPLink(cfg), nil })
	var status *statusError
	if err == nil || !errors.As(err, &status) || !slices.Contains([]int{400, 404, 405}, status.code) {
		return l, err
	}
	old, sseErr := openSSE(ctx, cfg)
	if sseErr != nil {
		return nil, fmt.Errorf("%w (nor does it speak HTTP+SSE: %w)", err, sseErr)
	}
	return old, nil
}

func (l *httpLink) Call(ctx context.Context, c *conn.Request) (wire.Message, error) {
	if ctx.Err() != nil {
		return wire.Message{}, context.Cause(ctx)
	}
	// The exchange outlives ctx for a moment when all went well, so that its
	// connection can be used again.
	xctx, abort := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { abort(context.Cause(ctx)) })
	defer stop()
	f, params, err := l.flights.begin(c, abort)
	if err != nil {
		abort(nil)
		return wire.Message{}, err
	}
	if l.Info().Modern() {
		params = l.meta.complete(params)
	}
	err = l.exchange(xctx, f, params)
	if !l.flights.end(f) {
		o := <-f.done
		return o.msg, o.err
	}
	abort(nil)
	if ctx.Err() == nil {
		return wire.Message{}, err
	}
	cause := context.Cause(ctx)
	// The modern era cancels by closing the stream, which has happened.
	if !l.Info().Modern() && c.Method != wire.MethodInitialize {
		l.aside(func(ctx context.Context) error {
			return l.Notify(ctx, wire.Message{Method: wire.MethodCancelled, Params: cancelParams(f.id, cause)})
		})
	}
	return wire.Message{}, cause
}

// exchange posts the request of f and reads until f is resolved. An error
// means that it is not, unless it was resolved from elsewhere.
func (l *httpLink) exchange(ctx context.Context, f *flight, params json.RawMessage) error {
	body := appendRequest(make([]byte, 0, 96+len(params)), f.idLiteral(), f.call.Method, params, f.call.Extra)
	resp, err := l.post(ctx, body, f.call.Method, params, f.call.Header)
	if err != nil {
		return err
	}
	if s := resp.Header.Get(wire.HeaderSession); s != "" && f.call.Method == wire.MethodInitialize {
		l.session.Store(&s)
	}
	if resp.StatusCode == http.StatusOK && contentType(resp.Header) == mediaEvents {
		return l.readStream(ctx, f, resp.Body)
	}
	defer f.abort(nil)
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusAccepted && l.Info().Result != nil {
		select { // some upstreams answer on the GET stream
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-l.noGet:
		}
	}
	return l.readWhole(f, resp)
}

// readWhole resolves f with a response that is no stream.
func (l *httpLink) readWhole(f *flight, resp *http.Response) error {
	if l.forgotten(resp) {
		return conn.ErrSessionGone
	}
	body, err := readBody(resp, l.cfg.MaxMessage)
	if err != nil {
		return err
	}
	oneLine(body)
	if resp.StatusCode/100 != 2 {
		if m, err := wire.ParseMessage(body); err == nil && m.Error != nil && m.Method == "" {
			l.flights.resolve(f.id, outcome{msg: m}, f)
			return nil
		}
		return newStatusError(l.cfg, resp, body)
	}
	l.receive(body, false, f)
	if l.flights.get(f.id) == nil { // as nearly always
		return nil
	}
	return fmt.Errorf("%w: HTTP %d without an answer to %s: %s", errUnreadable, resp.StatusCode, f.call.Method, l.cfg.clip(body))
}

// forgotten reports whether resp says that our session is unknown, which is
// the death of the link.
func (l *httpLink) forgotten(resp *http.Response) bool {
	if resp.StatusCode != http.StatusNotFound || l.session.Load() == nil {
		return false
	}
	l.end(conn.ErrSessionGone)
	return true
}

// post sends one message.
func (l *httpLink) post(ctx context.Context, body []byte, method string, params []byte, extra http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	l.setHeaders(req.Header)
	req.Header.Set("Content-Type", mediaJSON)
	req.Header.Set("Accept", mediaJSON+", "+mediaEvents)
	if l.Info().Modern() && method != "" {
		for k, v := range extra {
			if strings.HasPrefix(http.CanonicalHeaderKey(k), wire.HeaderParam) {
				req.Header[http.CanonicalHeaderKey(k)] = v
			}
		}
		modernHeaders(req.Header, method, params)
	}
	return doHTTP(l.client, req)
}

// setHeaders sets what all requests carry. The headers of the host never
// appear here: its Authorization is not for the upstream.
func (l *httpLink) setHeaders(h http.Header) {
	for k, v := range l.cfg.Headers {
		h[http.CanonicalHeaderKey(k)] = v
	}
	if s := l.session.Load(); s != nil {
		h.Set(wire.HeaderSession, *s)
	}
	if v := l.Info().Version; v != "" {
		h.Set(wire.HeaderVersion, v)
	}
}

func (l *httpLink) Notify(ctx context.Context, m wire.Message) error {
	return l.sendOnly(ctx, appendRequest(nil, nil, m.Method, m.Params, m.Extra), m.Method, m.Params)
}

func (l *httpLink) Reply(ctx context.Context, m wire.Message) error {
	return l.sendOnly(ctx, appendReply(nil, m), "", nil)
}

// sendOnly posts a message that has no answer.
func (l *httpLink) sendOnly(ctx context.Context, body []byte, method string, params []byte) error {
	select {
	case <-l.dead:
		return l.deathReason()
	default:
	}
	ctx, cancel := l.context(ctx)
	defer cancel()
	resp, err := l.post(ctx, body, method, params, nil)
	if err != nil {
		return err
	}
	if l.forgotten(resp) {
		resp.Body.Close()
		return conn.ErrSessionGone
	}
	if err := checkStatus(l.cfg, resp); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // to use the connection again
	return resp.Body.Close()
}

func (l *httpLink) deathReason() error {
	if err := l.Err(); err != nil {
		return err
	}
	return conn.ErrClosed
}

// aside sends something behind the back of a caller that does not wait for it.
func (l *httpLink) aside(send func(context.Context) error) {
	l.spawn(func() {
		ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
		defer cancel()
		if err := send(ctx); err != nil {
			l.cfg.Log.Debug("message to upstream lost", "err", err)
		}
	})
}
