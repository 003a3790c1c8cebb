//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// 64 calls at once on the last tokens of a branch: not one token more than
// its budget is delivered, by an independent count; one warning, one end.
func TestParallelCallsOnTheLastTokens(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		const budget = 3000
		b := create(t, c, ctx, map[string]any{"budget": budget}).BranchID
		args, plain := fmt.Sprintf(`{"bytes":800,"branch_id":%q}`, b), `{"bytes":800}`
		used := tokens(t, "work")
		for used < budget/2 {
			used += resultTokens(t, tool(t, c, ctx, "fake__huge", args)) + tokens(t, plain)
			if s := statusOf(t, c, ctx, b); s.BudgetUsed != used || s.Status != "active" {
				t.Errorf("branch_status = %+v, want %d used", s, used)
			}
		}
		var mu sync.Mutex
		var wg sync.WaitGroup
		var answers []mcpclient.Message
		for range 64 {
			wg.Go(func() {
				m, err := c.Call(ctx, "tools/call", `{"name":"fake__huge","arguments":`+args+`}`)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					t.Error(err)
				} else {
					answers = append(answers, m)
				}
			})
		}
		wg.Wait()
		delivered := 0
		for _, m := range answers {
			if !parseResult(t, m).IsError {
				used += resultTokens(t, m) + tokens(t, plain)
				delivered++
			} else if f := refused(t, m); f.Error.Status != 409 {
				t.Errorf("refused with %+v", f.Error)
			}
		}
		s := statusOf(t, c, ctx, b)
		if used > budget || s.BudgetUsed > budget || s.BudgetUsed < used {
			t.Errorf("%d tokens were delivered by an independent count, %d are booked, the budget is %d", used, s.BudgetUsed, budget)
		}
		if s.Status != "failed" || s.Reason != "budget_exhausted" || delivered == 0 || delivered == 64 {
			t.Errorf("after %d of 64 calls: %+v, want failed, budget_exhausted", delivered, s)
		}
		t.Logf("%d of 64 calls delivered; %d of %d tokens used, %d by an independent count", delivered, s.BudgetUsed, budget, used)
		g.stop()
		states := map[string]int{}
		for _, r := range g.trace("--context", b) {
			if r.Kind == "context/status" {
				for _, state := range []string{"near_limit", "exhausted"} {
					if string(jsonField(t, r.Payload, "status")) == `"`+state+`"` {
						states[state]++
					}
				}
			}
		}
		if states["near_limit"] != 1 || states["exhausted"] != 1 {
			t.Errorf("status records %v, want one warning and one end", states)
		}
	})
}
