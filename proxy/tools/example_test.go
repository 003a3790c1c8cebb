package tools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/tools"
)

func Example() {
	lifetime := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		log.Fatal(err)
	}
	repo, err := folding.OpenSQLite(filepath.Join(dir, "foldgate.db"))
	if err != nil {
		log.Fatal(err)
	}
	cfg, discard := config.Default(), slog.New(slog.DiscardHandler)
	clean := func(_ context.Context, text string) (string, error) { return text, nil }
	branches, err := folding.Open(lifetime, cfg.Folding, folding.Options{Repository: repo, Count: counter.Count, Scrub: clean, Log: discard})
	if err != nil {
		log.Fatal(err)
	}
	defer branches.Close(lifetime)

	t := tools.New(lifetime, tools.Options{Config: func() *config.Config { return &cfg }, Branches: branches, Counter: counter, Records: &interceptor.BranchRecords{}, Log: discard})
	call := &interceptor.Call{
		Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "local"}, Session: "ses_1"},
		Target: interceptor.Target{Method: "tools/call", Name: "branch_create", Arguments: json.RawMessage(`{"description":"look around"}`)},
	}
	t.Attribute(lifetime, call)
	body, err := t.Call(lifetime, &tools.Request{Call: call})
	if err != nil {
		log.Fatal(err)
	}
	depth, _ := rawjson.Get(body, "structuredContent", "depth")
	fmt.Println("a branch of depth", string(depth))
	// Output: a branch of depth 1
}
