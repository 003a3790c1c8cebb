//go:build linux

// Command minproxy is the smallest forwarder that the go-sdk makes: one client
// session with a server on stdio, one server that passes tools/call on. It is
// the yardstick of test/bench, and does nothing but forward.
//
//	minproxy [-json] [-stateless] command [args]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	_ "github.com/foldgate/foldgate/test/bench/allocprobe" // says what it allocates, where asked
)

func main() {
	json := flag.Bool("json", false, "answer with JSON instead of an event stream")
	stateless := flag.Bool("stateless", false, "serve revision 2026-07-28")
	flag.Parse()
	if err := run(&mcp.StreamableHTTPOptions{JSONResponse: *json, Stateless: *stateless}, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "minproxy:", err)
		os.Exit(1)
	}
}

func run(opts *mcp.StreamableHTTPOptions, command []string) error {
	if len(command) == 0 {
		return errors.New("no command: minproxy [-json] [-stateless] command [args]")
	}
	ctx := context.Background()
	info := &mcp.Implementation{Name: "minproxy", Version: "1"}
	up, err := mcp.NewClient(info, nil).Connect(ctx, &mcp.CommandTransport{Command: exec.Command(command[0], command[1:]...)}, nil)
	if err != nil {
		return err
	}
	defer up.Close()
	srv := mcp.NewServer(info, nil)
	for tool, err := range up.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		srv.AddTool(tool, func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return up.CallTool(ctx, &mcp.CallToolParams{Name: r.Params.Name, Arguments: r.Params.Arguments})
		})
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/mcp\n", ln.Addr())
	h := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, opts)
	return http.Serve(ln, h)
}
