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

// transport carries messages. It passes messages that arrive to Client.receive.
type transport interface {
	// send delivers one message. Where the transport opens a stream for the
	// answer, it returns when that stream is at its end.
	send(ctx context.Context, m Message) error
	// perRequest reports whether each request has a stream of its own.
	perRequest() bool
	close() error
}

// Client is one connection to a server. Set its exported fields before Start;
// its methods are safe for concurrent use.
type Client struct {
	// Name is what the client calls itself, "foldgate-test" by default.
	Name string
	// Capabilities holds the client's capabilities, "{}" by default.
	Capabilities string
	// Handle takes notifications and requests of the server, in order. It returns the answer to a
	// request: a result, or an error object. The default refuses requests with -32601.
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
	return &Client{era: era, Name: "foldgate-test", Capabilities: "{}", waiting: map[string]chan Message{}}
}

// Start opens the session: initialize in the legacy era, server/discover in
// the modern one. It returns the raw result.
func (c *Client) Start(ctx context.Context) (json.RawMessage, error) {
	method, params := "server/discover", "{}"
	if c.era == Legacy {
		method = "initialize"
		params = `{"protocolVersion":"` + string(c.era) + `","capabilities":` + c.Capabilities + `,"clientInfo":{"name":"` + c.Name + `","version":"1"}}`
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
		m, err := c.await(ctx, id, ch, sent)
		if err != nil {
			return Message{}, fmt.Errorf("%s: %w", method, err)
		}
		return m, nil
	}, nil
}

// await returns the response from ch to the request with that id. sent delivers the error of
// sending the request.
func (c *Client) await(ctx context.Context, id string, ch <-chan Message, sent <-chan error) (Message, error) {
	for {
		select {
		case m, ok := <-ch:
			if !ok {
				return Message{}, fmt.Errorf("connection closed: %w", c.closedBy())
			}
			return m, nil
		case err := <-sent:
			if err != nil {
				return Message{}, err
			}
			sent = nil
			if !c.t.perRequest() {
				continue // the response is here or still to come
			}
			select {
			case m := <-ch:
				return m, nil
			default:
				c.forget(id)
				return Message{}, errors.New("the stream ended without a response")
			}
		case <-ctx.Done():
			c.forget(id)
			return Message{}, ctx.Err()
		}
	}
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

func (c *Client) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
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

// Close ends the session and waits for everything that the client started. On stdio it returns
// the error of the process. Later calls return the same.
func (c *Client) Close() error {
	c.closing.Do(func() {
		c.hangUp(errors.New("closed by the client"))
		c.closeErr = c.t.close()
		c.replies.Wait()
	})
	return c.closeErr
}
