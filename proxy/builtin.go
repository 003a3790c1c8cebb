package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/files"
	"github.com/foldgate/foldgate/proxy/wire"
)

// builtin is a link to the files server inside foldgate. One serves all
// sessions: it holds no state of any of them.
type builtin struct {
	server *files.Server
	once   sync.Once
	gone   chan struct{}
}

// openBuiltin opens the server that u names. The state directory often lies below
// a root, and is not shown: the trace in it is the operator's, and has the calls
// of every principal.
func openBuiltin(c config.Config, u *config.Upstream) (conn.Conn, error) {
	roots := make([]string, len(u.Roots))
	for i, r := range u.Roots {
		roots[i] = c.Path(r)
	}
	server, err := files.New(roots, c.StatePath())
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return &builtin{server: server, gone: make(chan struct{})}, nil
}

func (b *builtin) Info() conn.Info {
	return conn.Info{Version: wire.VersionLegacy, Result: json.RawMessage(`{"capabilities":{"tools":{}}}`)}
}

func (b *builtin) Call(ctx context.Context, c *conn.Request) (wire.Message, error) {
	select {
	case <-b.gone:
		return wire.Message{}, conn.ErrClosed
	default:
	}
	switch c.Method {
	case "tools/list":
		return wire.Message{Result: append(append([]byte(`{"tools":`), b.server.Tools()...), '}')}, nil
	case "tools/call":
		name, _ := rawjson.GetString(c.Params, "name")
		args, ok := rawjson.Get(c.Params, "arguments")
		if !ok {
			args = []byte(`{}`)
		}
		res, err := b.server.Call(ctx, name, args)
		if cause := context.Cause(ctx); cause != nil {
			return wire.Message{}, cause
		}
		if errors.Is(err, files.ErrUnknownTool) {
			return wire.Message{Error: errorObject(&wire.Error{Code: wire.CodeInvalidParams, Message: err.Error()})}, nil
		}
		return wire.Message{Result: res}, err
	}
	return wire.Message{Error: errorObject(&wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: " + c.Method})}, nil
}

func (b *builtin) Notify(context.Context, wire.Message) error { return nil }
func (b *builtin) Reply(context.Context, wire.Message) error  { return nil }
func (b *builtin) Done() <-chan struct{}                      { return b.gone }
func (b *builtin) Err() error                                 { return nil }

func (b *builtin) Close() (err error) {
	b.once.Do(func() {
		close(b.gone)
		err = b.server.Close()
	})
	return err
}
