package limits_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/foldgate/foldgate/budget/limits"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "limits")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	store, err := limits.OpenSQLite(filepath.Join(dir, "budgets.db"), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	var day limits.Window
	if err := day.UnmarshalText([]byte("1d")); err != nil {
		fmt.Println(err)
		return
	}
	l, err := limits.New([]limits.Limit{{Name: "day", Per: limits.PerPrincipal, Tokens: 1000, Window: day}}, store, limits.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close(ctx)

	call, err := l.Begin(ctx, limits.Use{Principal: "alice", Tool: "db__query"}, 100)
	if err != nil {
		fmt.Println(err)
		return
	}
	granted, tightest, err := call.Take(ctx, 2000) // the result has 2000 tokens
	fmt.Println(granted, tightest.Limit, err)
	call.Refund(granted - 300) // a preview of 300 tokens is delivered
	_, err = l.Begin(ctx, limits.Use{Principal: "alice", Tool: "db__query"}, 601)
	fmt.Println(err != nil)
	// Output:
	// 900 day <nil>
	// true
}
