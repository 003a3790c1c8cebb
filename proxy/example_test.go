package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
)

// A host on stdio says hello and leaves.
func Example() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	cfg := config.Default()
	cfg.Dir, cfg.StateDir = dir, "state"

	ctx := context.Background()
	g, err := proxy.New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close(ctx)
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"host","version":"1"}}}` + "\n")
	var out bytes.Buffer
	if err := g.RunStdio(ctx, in, &out); err != nil {
		log.Fatal(err)
	}
	name, _ := rawjson.GetString(out.Bytes(), "result", "serverInfo", "name")
	fmt.Println(name)
	// Output: foldgate
}
