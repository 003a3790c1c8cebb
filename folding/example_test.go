package folding_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/foldgate/foldgate/folding"
)

func Example() {
	dir, err := os.MkdirTemp("", "folding")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx, caller := context.Background(), folding.Caller{Principal: "ada", Session: "s1"}
	repo, err := folding.OpenSQLite(filepath.Join(dir, "foldgate.db"))
	if err != nil {
		log.Fatal(err)
	}
	m, err := folding.Open(ctx, folding.DefaultConfig(), folding.Options{
		Repository: repo,
		Count:      func(s string) int { return len(strings.Fields(s)) },
		Scrub:      func(_ context.Context, s string) (string, error) { return s, nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close(ctx)

	b, err := m.Create(ctx, caller, folding.CreateRequest{Description: "find the parser", Budget: 100})
	if err != nil {
		log.Fatal(err)
	}
	call, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lease, err := m.Acquire(call, cancel, b.ID) // a call in the branch
	if err != nil {
		log.Fatal(err)
	}
	err = lease.Charge(10) // its arguments
	n, err2 := lease.ChargeUpTo(500)
	fmt.Println(err, n, err2)
	lease.Refund(n - 50) // the result was cut to 50 tokens
	lease.Release(folding.CallOutcome{Tool: "read_file"})

	r, err := m.Return(ctx, caller, b.ID, "the parser is in p.go")
	fmt.Println(r.Branch.Status, r.Branch.BudgetUsed, r.MessageTokens, err)
	_, err = m.Acquire(ctx, cancel, b.ID)
	fmt.Println(folding.Code(err))
	// Output:
	// <nil> 87 <nil>
	// completed 63 5 <nil>
	// branch_not_active
}
