// Package mcpclient is a raw MCP client for tests: it shows a test the bytes
// that crossed the wire, and holds the server to the protocol.
//
//	c := mcpclient.HTTP("http://127.0.0.1:8787/mcp", mcpclient.Modern)
//	defer c.Close()
//	if _, err := c.Start(ctx); err != nil { ... }
//	m, err := c.Call(ctx, "tools/call", `{"name":"echo","arguments":{}}`)
//
// It speaks both eras of the protocol over both transports and sends no more
// than a request needs: a legacy client without capabilities holds no GET
// stream, a modern one puts the mandatory keys into _meta. It is strict:
// whatever breaks JSON-RPC or MCP on the way back is noted, and [Client.Faults]
// returns it.
package mcpclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
)

// Era is a revision of the protocol that stands for its era.
type Era string

// The newest revision with sessions, and the first without.
const (
	Legacy Era = "2025-11-25"
	Modern Era = "2026-07-28"
)

// Message is one JSON-RPC message; absent members are nil or "".
type Message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// Parse decodes one message and says what makes it none.
func Parse(raw []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, fmt.Errorf("not JSON: %w: %.200q", err, raw)
	}
	switch {
	case m.Version != "2.0":
		return m, fmt.Errorf("jsonrpc is not 2.0: %.200q", raw)
	case m.Method == "" && (m.Result == nil) == (m.Error == nil):
		return m, fmt.Errorf("neither request nor response: %.200q", raw)
	case m.Method == "" && m.ID == nil:
		return m, fmt.Errorf("response without id: %.200q", raw)
	}
	return m, nil
}

// transport carries messages. What arrives goes to Client.receive.
type transport interface {
	// send delivers one message. Where the transport opens a stream for the
	// answer, it returns when that stream is at its end.
	send(ctx context.Context, m Message) error
	close() error
}

// Client is one connection to a server. Set its exported fields before Start;
// its methods are safe for concurrent use.
type Client struct {
	// Capabilities is what the client declares, "{}" by default.
	Capabilities string
	// Handle takes notifications and requests of the server, in order. What it
	// returns answers a request: a result, or an error object. The default
	// refuses requests with -32601.
	Handle func(m Message) (result, errObject json.RawMessage)

	era Era
	t   transport

	mu      sync.Mutex
	lastID  int
	waiting map[string]chan Message
	faults  []string
	got     [][]byte
	closed  error
	replies sync.WaitGroup

	closing  sync.Once
	closeErr error
}

func newClient(era Era) *Client {
	return &Client{era: era, Capabilities: "{}", waiting: map[string]chan Message{}}
}

// Start opens the session: initialize in the legacy era, server/discover in
// the modern one. It returns the raw result.
func (c *Client) Start(ctx context.Context) (json.RawMessage, error) {
	method, params := "server/discover", "{}"
	if c.era == Legacy {
		method = "initialize"
		params = `{"protocolVersion":"` + string(c.era) + `","capabilities":` + c.Capabilities + `,"clientInfo":{"name":"foldgate-test","version":"1"}}`
	}
	m, err := c.Call(ctx, method, params)
	if err != nil {
		return nil, err
	}
	if m.Error != nil {
		return nil, fmt.Errorf("%s: %s", method, m.Error)
	}
	if h, ok := c.t.(*httpTransport); ok && c.era == Legacy {
		h.initialized()
	}
	if c.era == Legacy {
		err = c.Notify(ctx, "notifications/initialized", "")
	}
	return m.Result, err
}

// Call sends a request and waits for its response, an error response included.
func (c *Client) Call(ctx context.Context, method, params string) (Message, error) {
	_, wait, err := c.Send(ctx, method, params)
	if err != nil {
		return Message{}, err
	}
	return wait()
}

// Send starts a request and returns its id and a function that waits for the
// response; a test that cancels needs both.
func (c *Client) Send(ctx context.Context, method, params string) (id string, wait func() (Message, error), err error) {
	c.mu.Lock()
	if c.closed != nil {
		c.mu.Unlock()
		return "", nil, c.closed
	}
	c.lastID++
	id = strconv.Itoa(c.lastID)
	ch := make(chan Message, 1)
	c.waiting[id] = ch
	c.mu.Unlock()

	sent := make(chan error, 1)
	go func() {
		err := c.t.send(ctx, Message{Version: "2.0", ID: json.RawMessage(id), Method: method, Params: c.params(params)})
		if err != nil {
			c.forget(id)
		}
		sent <- err
	}()
	return id, func() (Message, error) {
		for {
			select {
			case m, ok := <-ch:
				if !ok {
					return Message{}, fmt.Errorf("%s: connection closed: %w", method, c.closedBy())
				}
				return m, nil
			case err := <-sent:
				if err == nil {
					sent = nil // sent: the response is here or still to come
					if c.t.(interface{ perRequest() bool }).perRequest() {
						select {
						case m := <-ch:
							return m, nil
						default:
							c.forget(id)
							return Message{}, fmt.Errorf("%s: the stream ended without a response", method)
						}
					}
					continue
				}
				return Message{}, fmt.Errorf("%s: %w", method, err)
			case <-ctx.Done():
				c.forget(id)
				return Message{}, fmt.Errorf("%s: %w", method, ctx.Err())
			}
		}
	}, nil
}

// Notify sends a notification.
func (c *Client) Notify(ctx context.Context, method, params string) error {
	return c.t.send(ctx, Message{Version: "2.0", Method: method, Params: c.params(params)})
}

// Cancel tells the server, in the legacy era or on stdio, that a request is
// not wanted any more.
func (c *Client) Cancel(ctx context.Context, id, reason string) error {
	return c.Notify(ctx, "notifications/cancelled", fmt.Sprintf(`{"requestId":%s,"reason":%q}`, id, reason))
}

// params adds the mandatory _meta of the modern era where params has none.
func (c *Client) params(params string) json.RawMessage {
	if c.era == Legacy {
		if params == "" {
			return nil
		}
		return json.RawMessage(params)
	}
	var members map[string]json.RawMessage
	if params == "" {
		params = "{}"
	}
	if err := json.Unmarshal([]byte(params), &members); err != nil {
		return json.RawMessage(params) // the test wants it so
	}
	meta := map[string]json.RawMessage{}
	_ = json.Unmarshal(members["_meta"], &meta)
	for key, value := range map[string]string{
		"io.modelcontextprotocol/protocolVersion":    strconv.Quote(string(c.era)),
		"io.modelcontextprotocol/clientCapabilities": c.Capabilities,
		"io.modelcontextprotocol/clientInfo":         `{"name":"foldgate-test","version":"1"}`,
	} {
		if _, set := meta[key]; !set {
			meta[key] = json.RawMessage(value)
		}
	}
	raw, _ := json.Marshal(meta)
	// The rest of params stays byte for byte what the test gave.
	if _, has := members["_meta"]; has {
		members["_meta"] = raw
		out, _ := json.Marshal(members)
		return out
	}
	out := append([]byte(params[:len(params)-1]), `"_meta":`...)
	if len(members) > 0 {
		out = append([]byte(params[:len(params)-1]), `,"_meta":`...)
	}
	return append(append(out, raw...), '}')
}

// receive takes one message of the server. stream is the id of the request on
// whose stream it came, "" where the transport has one stream for all.
func (c *Client) receive(raw []byte, stream string) {
	c.mu.Lock()
	c.got = append(c.got, raw)
	c.mu.Unlock()
	m, err := Parse(raw)
	if err != nil {
		c.fault("%v", err)
		return
	}
	if m.Method != "" {
		c.handle(m)
		return
	}
	c.mu.Lock()
	ch, ok := c.waiting[string(m.ID)]
	delete(c.waiting, string(m.ID))
	c.mu.Unlock()
	switch {
	case !ok:
		c.fault("response to no request of ours: %.200q", raw)
		return
	case stream != "" && stream != string(m.ID):
		c.fault("response to %s on the stream of %s", m.ID, stream)
	case c.era == Modern && m.Result != nil:
		var r struct {
			ResultType string `json:"resultType"`
		}
		if json.Unmarshal(m.Result, &r) != nil || r.ResultType == "" {
			c.fault("modern result without resultType: %.200q", raw)
		}
	}
	ch <- m
}

func (c *Client) handle(m Message) {
	var result, errObject json.RawMessage
	if c.Handle != nil {
		result, errObject = c.Handle(m)
	}
	if m.ID == nil {
		return
	}
	if c.era == Modern {
		c.fault("modern server sent a request: %s", m.Method)
	}
	if result == nil && errObject == nil {
		errObject = json.RawMessage(`{"code":-32601,"message":"not handled by this client"}`)
	}
	c.replies.Add(1)
	go func() {
		defer c.replies.Done()
		err := c.t.send(context.Background(), Message{Version: "2.0", ID: m.ID, Result: result, Error: errObject})
		if err != nil && c.closedBy() == nil {
			c.fault("reply to %s: %v", m.Method, err)
		}
	}()
}

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

func (c *Client) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

// Faults returns everything the server did that the protocol forbids.
func (c *Client) Faults() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.faults...)
}

func (c *Client) closedBy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// hangUp ends all waiting calls because of err.
func (c *Client) hangUp(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed == nil {
		c.closed = err
	}
	for id, ch := range c.waiting {
		close(ch)
		delete(c.waiting, id)
	}
}

// Received returns every message that came, as it came, in order.
func (c *Client) Received() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]byte(nil), c.got...)
}

// Close ends the session and waits for what the client started. On stdio it
// returns how the process ended. Later calls return what the first did.
func (c *Client) Close() error {
	c.closing.Do(func() {
		c.hangUp(errors.New("closed by the client"))
		c.closeErr = c.t.close()
		c.replies.Wait()
	})
	return c.closeErr
}
