package upstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	mediaJSON      = "application/json"
	mediaEvents    = "text/event-stream"
	sendTimeout    = 5 * time.Second // of messages for which no caller waits
	deleteTimeout  = 2 * time.Second
	maxRedirects   = 5
	maxErrorBody   = 64 << 10
	drainTimeout   = time.Second
	maxIdlePerHost = 64
	ioBuffer       = 16 << 10 // of a connection, each way: most messages are one system call
)

// httpClient makes the requests of one connection.
type httpClient struct {
	config *Config
	client *http.Client
}

// newHTTPClient returns a client with network connections of its own. Its
// redirects never leave the host: headers of the configuration carry credentials.
func newHTTPClient(cfg *Config) httpClient {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, maxIdlePerHost
	t.ReadBufferSize, t.WriteBufferSize = ioBuffer, ioBuffer
	return httpClient{cfg, &http.Client{
		Transport: t,
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			first := via[0]
			if len(via) > maxRedirects || req.URL.Scheme != first.URL.Scheme || req.URL.Host != first.URL.Host || req.Method != first.Method {
				return http.ErrUseLastResponse
			}
			return nil
		},
	}}
}

// request makes a request with the headers that every request carries. The
// host's headers are not among them: its Authorization is not for the server.
func (c httpClient) request(ctx context.Context, method, url string, body []byte, revision string) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range c.config.Headers {
		req.Header[http.CanonicalHeaderKey(k)] = v
	}
	if revision != "" {
		req.Header.Set(wire.HeaderVersion, revision)
	}
	return req, nil
}

// do sends a request. A *dialError means that the server could not be reached.
func (c httpClient) do(req *http.Request) (*http.Response, error) {
	resp, err := c.client.Do(req)
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

// events checks that resp is an event stream. Otherwise it closes the body.
func (c httpClient) events(resp *http.Response) error {
	if err := c.check(resp); err != nil {
		return err
	}
	if contentType(resp.Header) != mediaEvents {
		resp.Body.Close()
		return &statusError{code: resp.StatusCode, text: "no event stream"}
	}
	return nil
}

// discard reads the rest of a response without an answer, so that its network
// connection can be used again.
func (c httpClient) discard(resp *http.Response) error {
	if err := c.check(resp); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxErrorBody))
	return resp.Body.Close()
}

// check returns the fault of a response outside 2xx, which it reads and closes.
// A response of 2xx stays open.
func (c httpClient) check(resp *http.Response) error {
	if resp.StatusCode/100 == 2 {
		return nil
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // what came is enough
	return newStatusError(c.config, resp, body)
}

// statusError is an HTTP response that is neither success nor JSON-RPC.
type statusError struct {
	code int
	text string
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

func (e *statusError) Error() string {
	s := fmt.Sprintf("HTTP %d %s", e.code, http.StatusText(e.code))
	if e.text != "" {
		s += ": " + e.text
	}
	return s
}

// contentType returns the media type of a response in lower case.
func contentType(h http.Header) string {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil {
		t, _, _ = strings.Cut(strings.ToLower(h.Get("Content-Type")), ";")
	}
	return strings.TrimSpace(t)
}

// readBody reads a body of at most max bytes. The fault of a larger one is
// tooLarge.
func readBody(resp *http.Response, max int) ([]byte, error) {
	if resp.ContentLength > int64(max) {
		return nil, tooLarge(int(resp.ContentLength), max)
	}
	if n := resp.ContentLength; n > 0 {
		body := make([]byte, n)
		_, err := io.ReadFull(resp.Body, body)
		return body, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(max)+1))
	if err == nil && len(body) > max {
		err = tooLarge(0, max)
	}
	return body, err
}
