package files

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Conn is a connection to a [Server], which it owns. The server holds no state
// of a session, so one connection serves all sessions.
type Conn struct {
	server *Server
	close  sync.Once
	closed chan struct{}
}

// Open makes a server as [New] does, and returns a connection to it.
func Open(roots []string, hidden ...string) (*Conn, error) {
	server, err := New(roots, hidden...)
	if err != nil {
		return nil, err
	}
	return &Conn{server: server, closed: make(chan struct{})}, nil
}

// Info says that the server has tools.
func (c *Conn) Info() conn.Info {
	return conn.Info{Version: wire.VersionLegacy, Result: json.RawMessage(`{"capabilities":{"tools":{}}}`)}
}

// Call serves tools/list and tools/call.
func (c *Conn) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	select {
	case <-c.closed:
		return wire.Message{}, conn.ErrClosed
	default:
	}
	switch r.Method {
	case "tools/list":
		return wire.Message{Result: append(append([]byte(`{"tools":`), c.server.Tools()...), '}')}, nil
	case "tools/call":
		name, _ := rawjson.GetString(r.Params, "name")
		args, ok := rawjson.Get(r.Params, "arguments")
		if !ok {
			args = []byte(`{}`)
		}
		result, err := c.server.Call(ctx, name, args)
		if cause := context.Cause(ctx); cause != nil {
			return wire.Message{}, cause
		}
		if errors.Is(err, ErrUnknownTool) {
			return failure(wire.CodeInvalidParams, err.Error()), nil
		}
		return wire.Message{Result: result}, err
	}
	return failure(wire.CodeMethodNotFound, "Method not found: "+r.Method), nil
}

func failure(code int, message string) wire.Message {
	return wire.Message{Error: (&wire.Error{Code: code, Message: message}).JSON()}
}

// Notify does nothing.
func (c *Conn) Notify(context.Context, wire.Message) error { return nil }

// Reply does nothing: the server makes no requests.
func (c *Conn) Reply(context.Context, wire.Message) error { return nil }

// Done is closed by Close.
func (c *Conn) Done() <-chan struct{} { return c.closed }

// Err returns nil: the connection can't be lost.
func (c *Conn) Err() error { return nil }

// Close closes the server.
func (c *Conn) Close() (err error) {
	c.close.Do(func() {
		close(c.closed)
		err = c.server.Close()
	})
	return err
}
