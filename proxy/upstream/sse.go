package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
)

// endpointTimeout is how long a server may take to name the URL for messages.
const endpointTimeout = 10 * time.Second

// sseConn speaks HTTP+SSE, the transport of revision 2024-11-05: one GET stream
// brings everything from the server, and its first event names the URL to which
// messages are posted. The connection ends with the stream.
type sseConn struct {
	streamConn
	httpClient
	endpoint string
}

// openSSE opens the stream, waits for the endpoint and initializes.
func openSSE(ctx context.Context, cfg *Config) (conn.Conn, error) {
	s := &sseConn{httpClient: newHTTPClient(cfg)}
	s.streamConn.init(cfg, s)
	opening, done := context.WithTimeoutCause(ctx, endpointTimeout, errors.New("no endpoint event in time"))
	defer done()
	stop := context.AfterFunc(opening, func() { s.terminate(context.Cause(opening)) })
	body, events, err := s.connect(s.lifetime)
	if err == nil && !stop() {
		<-s.Done()
		body.Close()
		err = s.fault()
	}
	if err != nil {
		s.terminate(err)
		s.client.CloseIdleConnections()
		return nil, err
	}
	s.Go(func() {
		defer body.Close()
		s.read(events)
	})
	params := cfg.Initialize
	if params == nil {
		params = ownInitialize()
	}
	if err := initialize(ctx, s, params); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// connect opens the stream and reads its first event.
func (s *sseConn) connect(ctx context.Context) (io.ReadCloser, *eventReader, error) {
	req, err := s.request(ctx, http.MethodGet, s.cfg.URL, nil, "")
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set("Accept", mediaEvents)
	resp, err := s.do(req)
	if err != nil {
		return nil, nil, err
	}
	if err := s.events(resp); err != nil {
		return nil, nil, err
	}
	events := newEventReader(resp.Body, s.cfg.MaxMessage)
	ev, err := events.next()
	if err == nil && ev.name != "endpoint" {
		err = fmt.Errorf("stream begins with event %.50q, want endpoint", ev.name)
	}
	if err == nil {
		s.endpoint, err = resolveEndpoint(s.cfg.URL, string(ev.data.Head))
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

// send posts one message. Its answer, if any, comes on the stream.
func (s *sseConn) send(ctx context.Context, build func([]byte) []byte) error {
	ctx, done := s.context(ctx)
	defer done()
	req, err := s.request(ctx, http.MethodPost, s.endpoint, build(nil), s.Info().Version)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", mediaJSON)
	resp, err := s.do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNotFound {
		resp.Body.Close()
		s.lose(conn.ErrSessionGone)
		return conn.ErrSessionGone
	}
	return s.discard(resp)
}

func (s *sseConn) aside(f func()) { s.Go(f) }

// read takes messages until the stream ends, which ends the connection.
func (s *sseConn) read(events *eventReader) {
	for {
		ev, err := events.next()
		if err != nil {
			s.lose(fmt.Errorf("%w: event stream: %w", conn.ErrClosed, err))
			return
		}
		s.receiveEvent(ev, nil)
	}
}

// lose ends the connection. reason is nil for a plain close.
func (s *sseConn) lose(reason error) {
	if s.terminate(reason) {
		s.pending.fail(s.fault())
	}
}

func (s *sseConn) start() {}

// Close ends the stream and waits for the goroutines.
func (s *sseConn) Close() error {
	s.lose(nil)
	s.wait()
	s.client.CloseIdleConnections()
	return nil
}
