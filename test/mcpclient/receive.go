package mcpclient

import (
	"context"
	"encoding/json"
	"fmt"
)

// receive takes one message of the server. stream is the id of the request on whose stream it
// came, "" if the transport has one stream for all.
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

// Received returns every message that came, as it came, in order.
func (c *Client) Received() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]byte(nil), c.got...)
}
