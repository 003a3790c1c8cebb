package query_test

import (
	"context"
	"fmt"
	"os"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "trace")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	j, err := trace.Open(dir, trace.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer j.Close()
	for _, branch := range []string{"br_1", "br_1/br_2", "br_3"} {
		if err := j.Append(&trace.Record{From: "foldgate", Kind: trace.KindPush, Context: branch}); err != nil {
			fmt.Println(err)
		}
	}

	index, err := query.Open(ctx, dir)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer index.Close()
	for r, err := range index.Select(ctx, query.Filter{Context: "br_1", Tree: true}) {
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Println(r.Seq, r.Kind, r.Context)
	}
	// Output:
	// 2 context/push br_1
	// 3 context/push br_1/br_2
}
