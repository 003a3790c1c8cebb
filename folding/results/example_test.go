package results_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
)

func Example() {
	dir, err := os.MkdirTemp("", "results")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, caller := context.Background(), folding.Caller{Principal: "ada", Session: "s1"}
	store, err := results.Open(filepath.Join(dir, "results.db"), results.Config{Quota: 256 << 20, TTL: 24 * time.Hour})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	handle := store.NewHandle()
	err = store.Put(ctx, results.Result{Handle: handle, Principal: "ada", Session: "s1", Context: "br_1", Text: "a long text\nabout a parser\n"})
	if err != nil {
		fmt.Println(err)
		return
	}
	// The main context reads what its branches stored.
	r, err := store.Get(ctx, caller, "", handle)
	if err != nil {
		fmt.Println(err)
		return
	}
	hits, err := results.Search(ctx, r.Text, "where is the parser?", 3)
	fmt.Println(hits[0].Lines, err)
	// A branch beside it does not.
	_, err = store.Get(ctx, caller, "br_2", handle)
	fmt.Println(folding.Code(err))
	// Output:
	// 1: a long text
	// 2: about a parser <nil>
	// result_not_found
}
