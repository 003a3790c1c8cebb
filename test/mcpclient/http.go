package mcpclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"time"
)

// httpTransport speaks streamable HTTP.
type httpTransport struct {
	c      *Client
	url    string
	header http.Header
	client *http.Client

	ctx    context.Context // of the GET stream; ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	session string
	ready   bool // initialized: the version header is due
}

// HTTP speaks streamable HTTP to url. Headers are added to every request.
func HTTP(url string, era Era, headers ...string) *Client {
	c := newClient(era)
	// A request on a connection that the server closes at this moment fails; foldgate closes one after 2 minutes.
	transport := &http.Transport{IdleConnTimeout: 90 * time.Second}
	t := &httpTransport{c: c, url: url, header: http.Header{}, client: &http.Client{Transport: transport}}
	for i := 0; i+1 < len(headers); i += 2 {
		t.header.Set(headers[i], headers[i+1])
	}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	c.t = t
	return c
}

func (t *httpTransport) perRequest() bool { return true }

func (t *httpTransport) initialized() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ready = true
}

// Session returns the legacy Mcp-Session-Id, "" without one.
func (c *Client) Session() string {
	t, ok := c.t.(*httpTransport)
	if !ok {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session
}

func (t *httpTransport) request(ctx context.Context, method string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, t.url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range t.header {
		req.Header[k] = v
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.session != "" {
		req.Header.Set("Mcp-Session-Id", t.session)
	}
	if t.ready || t.c.era == Modern {
		req.Header.Set("MCP-Protocol-Version", string(t.c.era))
	}
	return req, nil
}

func (t *httpTransport) send(ctx context.Context, m Message) error {
	body, err := encode(m)
	if err != nil {
		return err
	}
	req, err := t.request(ctx, http.MethodPost, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if t.c.era == Modern && m.Method != "" {
		req.Header.Set("Mcp-Method", m.Method)
		var p struct{ Name, URI string }
		_ = json.Unmarshal(m.Params, &p)
		if name := p.Name + p.URI; name != "" && (p.Name == "" || p.URI == "") {
			req.Header.Set("Mcp-Name", name)
		}
	}
	res, err := t.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if m.ID == nil || m.Method == "" {
		rest, _ := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusAccepted || len(rest) > 0 {
			return fmt.Errorf("notification or response answered with %s: %.200q", res.Status, rest)
		}
		return nil
	}
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		t.takeSession(id, m.Method)
	}
	return t.read(res, string(m.ID))
}

func (t *httpTransport) takeSession(id, method string) {
	t.mu.Lock()
	first := t.session == ""
	changed := !first && t.session != id
	t.session = id
	t.mu.Unlock()
	if t.c.era == Modern || changed || first && method != "initialize" {
		t.c.fault("unexpected Mcp-Session-Id %q in the answer to %s", id, method)
	}
}

// read takes the messages of a response body until it ends.
func (t *httpTransport) read(res *http.Response, id string) error {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type"))
	switch kind {
	case "text/event-stream":
		if res.StatusCode != http.StatusOK {
			t.c.fault("event stream with status %s", res.Status)
		}
		return events(res.Body, func(data []byte) { t.c.receive(data, id) })
	case "application/json":
		body, err := io.ReadAll(res.Body)
		if err != nil {
			return err
		}
		m, err := Parse(body)
		if err != nil || res.StatusCode != http.StatusOK && m.Error == nil {
			return fmt.Errorf("%s: %.200q", res.Status, body)
		}
		if string(m.ID) == "null" || m.ID == nil {
			return fmt.Errorf("%s: %s", res.Status, m.Error)
		}
		t.c.receive(body, id)
		return nil
	}
	body, _ := io.ReadAll(io.LimitReader(res.Body, 500))
	return fmt.Errorf("%s, content type %q: %q", res.Status, kind, body)
}

// events reads server-sent events and passes on the data of those that have some.
func events(r io.Reader, take func(data []byte)) error {
	br := bufio.NewReaderSize(r, 1<<20)
	var data []byte
	has := false
	for {
		line, err := br.ReadString('\n')
		if err != nil {
			if errors.Is(err, io.EOF) && line == "" {
				return nil
			}
			return fmt.Errorf("event stream broken off: %w", err)
		}
		line = strings.TrimRight(line, "\r\n")
		if value, ok := strings.CutPrefix(line, "data:"); ok {
			if has {
				data = append(data, '\n')
			}
			data, has = append(data, strings.TrimPrefix(value, " ")...), true
		}
		if line == "" {
			if len(data) > 0 { // an event without data only carries an id
				take(bytes.Clone(data))
			}
			data, has = data[:0], false
		}
	}
}

// Listen opens the legacy GET stream and returns when the server has accepted it.
func (c *Client) Listen() error {
	t, ok := c.t.(*httpTransport)
	if !ok {
		return errors.New("only HTTP has a GET stream")
	}
	req, err := t.request(t.ctx, http.MethodGet, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	res, err := t.client.Do(req)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return fmt.Errorf("GET stream: %s", res.Status)
	}
	t.done.Add(1)
	go func() {
		defer t.done.Done()
		defer res.Body.Close()
		_ = events(res.Body, func(data []byte) { c.receive(data, "") }) // ends with close, however it ends
	}()
	return nil
}

func (t *httpTransport) close() error {
	defer t.client.CloseIdleConnections()
	var err error
	if t.c.Session() != "" {
		req, e := t.request(context.Background(), http.MethodDelete, nil)
		if e != nil {
			return e
		}
		res, e := t.client.Do(req)
		if e == nil {
			_ = res.Body.Close()
			if res.StatusCode >= 300 && res.StatusCode != http.StatusMethodNotAllowed {
				err = fmt.Errorf("DELETE: %s", res.Status)
			}
		}
	}
	t.cancel()
	t.done.Wait()
	return err
}
