package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	mediaJSON      = "application/json"
	mediaEvents    = "text/event-stream"
	sendTimeout    = 5 * time.Second // for what goes on behind a caller's back
	deleteTimeout  = 2 * time.Second
	maxRedirects   = 5
	maxErrorBody   = 64 << 10
	drainTimeout   = time.Second
	maxIdlePerHost = 64
	ioBuffer       = 16 << 10 // of a connection, each way: most messages are one system call
)

// statusError is an HTTP response that is neither success nor JSON-RPC.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string {
	s := fmt.Sprintf("HTTP %d %s", e.code, http.StatusText(e.code))
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

// newHTTPClient returns a client with connections of its own, whose redirects
// never leave the host: headers of the configuration carry credentials.
func newHTTPClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, maxIdlePerHost
	t.ReadBufferSize, t.WriteBufferSize = ioBuffer, ioBuffer
	return &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			first := via[0]
			if len(via) > maxRedirects || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host || req.Method != first.Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}
}

// doHTTP sends a request; an error says whether the upstream could be reached.
func doHTTP(c *http.Client, req *http.Request) (*http.Response, error) {
	resp, err := c.Do(req)
	if err == nil {
		return resp, nil
	}
	if cause := context.Cause(req.Context()); cause != nil {
		return nil, cause
	}
	var op *net.OpError
	var dns *net.DNSError
	if errors.As(err, &dns) || (errors.As(err, &op) && op.Op == "dial") {
		return nil, &dialError{err}
	}
	return nil, err
}

// checkStatus returns the error that a response outside 2xx means, which it
// reads and closes; nil for 2xx, which stays open.
func checkStatus(cfg *Config, resp *http.Response) error {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came is enough
	return newStatusError(cfg, resp, body)
}

func newStatusError(cfg *Config, resp *http.Response, body []byte) *statusError {
	e := &statusError{code: resp.StatusCode}
	if to := resp.Header.Get("Location"); resp.StatusCode/100 == 3 {
		e.text = fmt.Sprintf("redirects to %.200q: configure that URL if you trust it", cfg.clean([]byte(to)))
	} else if len(body) > 0 {
		e.text = cfg.clip(body)
	}
	return e
}

// contentType returns the media type of a response, lower case.
func contentType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		t, _, _ = strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	}
	return strings.TrimSpace(t)
}

// readBody reads a body of at most max bytes, with tooLarge for a larger one.
func readBody(resp *http.Response, max int) ([]byte, error) {
	if resp.ContentLength > int64(max) {
		return nil, tooLarge(int(resp.ContentLength), max)
	}
	var body []byte
	if n := resp.ContentLength; n > 0 {
		body = make([]byte, n)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(max)+1))
	if err == nil && len(body) > max {
		err = tooLarge(0, max)
	}
	return body, err
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

// mortal is the life of a link that owns no process: it dies once, for a
// reason, and waits for the goroutines it started.
type mortal struct {
	dead   chan struct{}
	reason error // set before dead is closed

	mu    sync.Mutex // guards what follows
	over  bool
	group sync.WaitGroup
}

// die ends the life; it returns false if it had ended before.
func (m *mortal) die(reason error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.over, m.reason = true, reason
	close(m.dead)
	return true
}

// spawn runs f in a goroutine that wait waits for, unless the life is over.
func (m *mortal) spawn(f func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over {
		return false
	}
	m.group.Go(f)
	return true
}

func (m *mortal) wait() { m.group.Wait() }

func (m *mortal) Done() <-chan struct{} { return m.dead }

func (m *mortal) Err() error {
	select {
	case <-m.dead:
		return m.reason
	default:
		return nil
	}
}

// context returns a context that ends with m.
func (m *mortal) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	if !m.spawn(func() {
		select {
		case <-m.dead:
			cancel(conn.ErrClosed)
		case <-ctx.Done():
		}
	}) {
		cancel(conn.ErrClosed)
	}
	return ctx, func() { cancel(nil) }
}
