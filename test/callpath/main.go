//go:build e2e

// Command callpath runs one call in a branch through a gateway, from a host on stdio to a
// server on stdio, and writes the coverage of this one call into the directory
// that its argument names. It must be built with -cover -covermode=atomic.
//
//	callpath DIR COMMAND [ARG ...]   # the server's command
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/coverage"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "callpath:", err)
		os.Exit(1)
	}
}

func run(dir string, command []string) error {
	state, err := os.MkdirTemp("", "callpath")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	cfg := config.Default()
	cfg.StateDir = state
	cfg.Upstreams = map[string]*config.Upstream{"up": {Command: command}}
	g, err := proxy.New(cfg, slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		return err
	}
	in, toGateway := io.Pipe()
	fromGateway, out := io.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() { _ = g.RunStdio(ctx, in, out) }()
	replies := bufio.NewReader(fromGateway)
	say := func(line string) (reply string, err error) {
		if _, err := io.WriteString(toGateway, line+"\n"); err != nil {
			return "", err
		}
		reply, err = replies.ReadString('\n')
		fmt.Fprint(os.Stderr, reply)
		return reply, err
	}
	reply := ""
	for _, line := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"callpath","version":"1"}}}`,
		`{"jsonrpc":"2.0","id":2,"method":"tools/list"}`,
		`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"branch_create","arguments":{"description":"one call"}}}`,
	} {
		if reply, err = say(line); err != nil {
			return err
		}
	}
	branch, ok := rawjson.GetString([]byte(reply), "result", "structuredContent", "branch_id")
	if !ok {
		return fmt.Errorf("no branch was created: %s", reply)
	}
	call := func(id int) error {
		_, err := say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"up__echo","arguments":{"message":"a few words","branch_id":"%s"}}}`, id, branch))
		return err
	}
	if err := call(4); err != nil { // caches are filled
		return err
	}
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := call(5); err != nil {
		return err
	}
	if err := coverage.WriteMetaDir(dir); err != nil {
		return err
	}
	return coverage.WriteCountersDir(dir)
}
