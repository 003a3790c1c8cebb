package upstream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// endpointTimeout is how long a server may take to name the URL for messages.
const endpointTimeout = 10 * time.Second

// openSSE opens an HTTP+SSE connection, the transport of revision 2024-11-05. It opens the stream,
// waits for the event that names the endpoint, and initializes.
func openSSE(ctx context.Context, cfg *Config) (conn.Conn, error) {
	h := newHTTPConn(cfg)
	params := cfg.Host.Initialize
	if params == nil {
		params = ownInitialize(cfg.Capabilities)
	}
	err := h.readEndpoint(ctx)
	if err == nil {
		err = initialize(ctx, cfg, h, params)
	}
	if err != nil {
		_ = h.Close()
		return nil, err
	}
	return h, nil
}

// readEndpoint opens the stream of the server and reads its first event. A goroutine takes the
// messages after it until the stream ends, which ends the connection.
func (h *httpConn) readEndpoint(ctx context.Context) error {
	opening, done := context.WithTimeoutCause(ctx, endpointTimeout, errors.New("no endpoint event in time"))
	defer done()
	stop := context.AfterFunc(opening, func() { h.lose(context.Cause(opening)) })
	defer stop()
	resp, err := h.get(h.lifetime, "")
	if err != nil {
		return err
	}
	events := newEventReader(resp.Body, h.cfg.MaxMessage, &position{})
	ev, err := events.next()
	switch {
	case h.fault() != nil:
		err = h.fault()
	case err == nil && ev.name != "endpoint":
		err = fmt.Errorf("stream begins with event %q, want endpoint", wire.Clip(ev.name))
	case err == nil:
		h.endpoint, err = resolveEndpoint(h.cfg.URL, string(ev.data.Head))
	}
	if err == nil && !stop() {
		err = context.Cause(opening)
	}
	if err != nil {
		resp.Body.Close()
		return err
	}
	h.Go(func() {
		defer resp.Body.Close()
		_, _, err := h.readEvents(events, nil)
		h.lose(fmt.Errorf("%w: event stream: %w", conn.ErrClosed, err))
	})
	return nil
}

// resolveEndpoint returns the absolute URL of an endpoint event. It must have the origin of base:
// messages and headers go nowhere else.
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
		return "", fmt.Errorf("endpoint %q is not on %s://%s", wire.Clip(ref), b.Scheme, b.Host)
	}
	return u.String(), nil
}
