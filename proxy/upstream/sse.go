package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// endpointTimeout is how long an upstream may take to say where to post.
const endpointTimeout = 10 * time.Second

// sseLink speaks HTTP+SSE, the transport of 2024-11-05: one GET stream brings
// everything from the upstream, and its first event names the URL to which
// messages are posted. When the stream ends the link is dead.
type sseLink struct {
	duplex
	mortal
	client   *http.Client
	endpoint string
	cancel   context.CancelCauseFunc // ends the GET stream
}

// openSSE connects to a legacy upstream, which is initialized on return.
func openSSE(ctx context.Context, cfg *Config) (conn.Conn, error) {
	l, err := dialSSE(ctx, cfg)
	if err != nil {
		return nil, err
	}
	params := cfg.Initialize
	if params == nil {
		params = ownInitialize()
	}
	if err := initialize(ctx, l, params); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// dialSSE opens the stream and waits for the endpoint.
func dialSSE(ctx context.Context, cfg *Config) (*sseLink, error) {
	l := &sseLink{client: newHTTPClient(), mortal: mortal{dead: make(chan struct{})}}
	l.incoming.init(cfg, l.sendRefusal)
	l.send = l.post
	l.async = func(send func()) { l.spawn(send) }

	stream, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	l.cancel = cancel
	opening, done := context.WithTimeoutCause(ctx, endpointTimeout, errors.New("no endpoint event in time"))
	defer done()
	stop := context.AfterFunc(opening, func() { cancel(context.Cause(opening)) })
	body, events, err := l.connect(stream)
	if err == nil && !stop() {
		body.Close()
		err = context.Cause(stream)
	}
	if err != nil {
		cancel(err)
		l.client.CloseIdleConnections()
		return nil, err
	}
	l.spawn(func() {
		defer body.Close()
		l.read(events)
	})
	return l, nil
}

// connect opens the stream and reads its first event.
func (l *sseLink) connect(ctx context.Context) (io.ReadCloser, *eventReader, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.cfg.URL, nil)
	if err != nil {
		return nil, nil, err
	}
	l.setHeaders(req.Header)
	req.Header.Set("Accept", mediaEvents)
	resp, err := doHTTP(l.client, req)
	if err != nil {
		return nil, nil, err
	}
	if err := checkStatus(l.cfg, resp); err != nil {
		return nil, nil, err
	}
	if contentType(resp.Header) != mediaEvents {
		resp.Body.Close()
		return nil, nil, &statusError{code: resp.StatusCode, text: "no event stream"}
	}
	events := newEventReader(resp.Body, l.cfg.MaxMessage)
	ev, err := events.next()
	if err == nil && ev.name != "endpoint" {
		err = fmt.Errorf("stream begins with event %.50q, want endpoint", ev.name)
	}
	if err == nil {
		l.endpoint, err = resolveEndpoint(l.cfg.URL, string(ev.data.head))
	}
	if err != nil {
		resp.Body.Close()
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return nil, nil, err
	}
	return resp.Body, events, nil
}

// resolveEndpoint returns the absolute URL of an endpoint event. It must have
// the origin of base: messages and headers go nowhere else.
func resolveEndpoint(base, ref string) (string, error) {
	b, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	u, err := b.Parse(ref)
	if err != nil {
		return "", fmt.Errorf("endpoint event: %w", err)
	}
	if u.Scheme != b.Scheme || u.Host != b.Host || u.User != nil {
		return "", fmt.Errorf("endpoint %.200q is not on %s://%s", ref, b.Scheme, b.Host)
	}
	return u.String(), nil
}

func (l *sseLink) setHeaders(h http.Header) {
	for k, v := range l.cfg.Headers {
		h[http.CanonicalHeaderKey(k)] = v
	}
	if v := l.Info().Version; v != "" {
		h.Set(wire.HeaderVersion, v)
	}
}

// post sends one message; its answer, if any, comes on the stream.
func (l *sseLink) post(ctx context.Context, build func([]byte) []byte) error {
	ctx, done := l.context(ctx)
	defer done()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.endpoint, bytes.NewReader(build(nil)))
	if err != nil {
		return err
	}
	l.setHeaders(req.Header)
	req.Header.Set("Content-Type", mediaJSON)
	resp, err := doHTTP(l.client, req)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNotFound {
		resp.Body.Close()
		l.end(conn.ErrSessionGone)
		return conn.ErrSessionGone
	}
	if err := checkStatus(l.cfg, resp); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody)) // to use the connection again
	return resp.Body.Close()
}

// read takes messages until the stream ends, which is the end of the link.
func (l *sseLink) read(events *eventReader) {
	for {
		ev, err := events.next()
		if err != nil {
			l.end(fmt.Errorf("%w: event stream: %w", conn.ErrClosed, err))
			return
		}
		l.take(ev, nil)
	}
}

// end makes the link dead; reason is nil for a plain close.
func (l *sseLink) end(reason error) {
	if !l.die(reason) {
		return
	}
	if reason == nil {
		reason = conn.ErrClosed
	}
	l.flights.fail(reason)
	l.cancel(reason)
}

func (l *sseLink) start() {}

func (l *sseLink) Close() error {
	l.end(nil)
	l.wait()
	l.client.CloseIdleConnections()
	return nil
}
