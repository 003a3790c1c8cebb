package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/files"
)

// builtin is a link to the files server inside foldgate. One serves all
// sessions: it holds no state of any of them.
type builtin struct {
	server *files.Server
	once   sync.Once
	gone   chan struct{}
}

// openBuiltin opens the server that u names.
func openBuiltin(c Config, u *UpstreamConfig) (link, error) {
	roots := make([]string, len(u.Roots))
	for i, r := range u.Roots {
		roots[i] = c.path(r)
	}
	server, err := files.New(roots)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	return &builtin{server: server, gone: make(chan struct{})}, nil
}

func (b *builtin) info() linkInfo {
	return linkInfo{Version: versionLegacy, Result: json.RawMessage(`{"capabilities":{"tools":{}}}`)}
}

func (b *builtin) call(ctx context.Context, c *linkCall) (Message, error) {
	select {
	case <-b.gone:
		return Message{}, errLinkClosed
	default:
	}
	switch c.Method {
	case "tools/list":
		return Message{Result: append(append([]byte(`{"tools":`), b.server.Tools()...), '}')}, nil
	case "tools/call":
		name, _ := rawjson.GetString(c.Params, "name")
		args, ok := rawjson.Get(c.Params, "arguments")
		if !ok {
			args = []byte(`{}`)
		}
		res, err := b.server.Call(ctx, name, args)
		if cause := context.Cause(ctx); cause != nil {
			return Message{}, cause
		}
		if errors.Is(err, files.ErrUnknownTool) {
			return Message{Error: errorObject(&rpcError{Code: codeInvalidParams, Message: err.Error()})}, nil
		}
		return Message{Result: res}, err
	}
	return Message{Error: errorObject(&rpcError{Code: codeMethodNotFound, Message: "Method not found: " + c.Method})}, nil
}

func (b *builtin) notify(context.Context, Message) error { return nil }
func (b *builtin) reply(context.Context, Message) error  { return nil }
func (b *builtin) done() <-chan struct{}                 { return b.gone }
func (b *builtin) err() error                            { return nil }

func (b *builtin) close() (err error) {
	b.once.Do(func() {
		close(b.gone)
		err = b.server.Close()
	})
	return err
}
