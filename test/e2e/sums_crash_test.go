//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// The gateway is killed at random moments while hosts work in branches under a limit, with results that are stored.
// In the end the branches, the limit and the trace have the same tokens, up to the calls that a kill has cut off: those
// were charged before they were recorded, and none was recorded or received without a charge.
func TestSumsAfterKills(t *testing.T) {
	t.Parallel()
	const callers, largest = 6, 700 // a caller has so many tokens under way at most
	g := newGateway(t, limited(t, "    - {name: branches, match: {context: branch}, per: all, tokens: 1G, window: 1mo}\n", "results: {branch_fraction: 0.02}\n"))
	var mu sync.Mutex
	received := map[string]int{} // by branch
	stored := 0
	work := func(ctx context.Context, c *mcpclient.Client, called func()) {
		v := &victims{}
		for n := 0; ; n++ {
			if n%8 == 0 {
				v = &victims{}
				if !v.create(ctx, c, nil) || len(v.all) == 0 {
					return
				}
			}
			branch := v.all[0].id
			bytes := 5 * (1 + rand.IntN(400))
			if rand.IntN(5) == 0 {
				bytes = 20_000 // it is stored
			}
			sent := fmt.Sprintf(`{"bytes":%d}`, bytes)
			text, ok := v.ask(ctx, c, "fake__huge", map[string]any{"bytes": bytes, "branch_id": branch})
			if !ok {
				return
			}
			called()
			mu.Lock()
			received[branch] += tokens(t, sent) + tokens(t, text)
			if handleForm.MatchString(text) {
				stored++
			}
			mu.Unlock()
			if n%8 == 7 {
				if _, ok := v.ask(ctx, c, "branch_return", map[string]any{"branch_id": branch, "message": "done"}); !ok {
					return
				}
			}
		}
	}
	for k := range *kills {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		cmd := g.command("run")
		c, err := mcpclient.Stdio(cmd, []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[k%2])
		if err != nil {
			t.Fatal(err)
		}
		startHost(t, ctx, c)
		var first sync.Once
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				work(ctx, c, func() {
					first.Do(func() {
						time.AfterFunc(time.Duration(rand.IntN(300_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
					})
				})
			})
		}
		wg.Wait()
		_ = c.Close() // it was killed: the error is the point
		cancel()
	}
	ctx := testContext(t)
	last := g.connect(ctx, "stdio", mcpclient.Legacy)
	most := *kills * callers * largest
	ofBranches := map[string]int{}
	for id := range received {
		ofBranches[id] = statusOf(t, last, ctx, id).BudgetUsed - tokens(t, "work that is killed")
	}
	g.stop() // gives back what was reserved
	var limits []control.Budget
	unmarshal(t, []byte(g.output("budgets", "--json")), &limits)
	if len(limits) != 1 {
		t.Fatalf("limits: %+v", limits)
	}
	charged := int(limits[0].TokensUsed)
	if out := g.output("trace", "verify"); strings.Contains(out, "is not closed") {
		t.Errorf("trace verify: %s", out)
	}
	recorded := map[string]int{}
	for _, r := range traceAs[tokenRecord](g) {
		if a := r.Audit; r.Context != "" && r.Kind == "mcp/response:tools/call" && a.Tool == "huge" { // others are free
			recorded[r.Context] += a.Tokens.In + a.Tokens.Delivered
		}
	}
	for id, n := range received {
		if recorded[id] < n || ofBranches[id] < recorded[id] {
			t.Errorf("branch %s: its host received %d tokens, the trace has %d, it was charged %d", id, n, recorded[id], ofBranches[id])
		}
	}
	if trace, branches := sum(recorded), sum(ofBranches); charged < trace || branches < trace || max(charged, branches) > trace+most {
		t.Errorf("the limit has %d tokens, the branches %d, the trace %d", charged, branches, trace)
	}
	t.Logf("%d kills, %d branches, %d results stored: hosts received %d tokens, the trace has %d, the branches %d, the limit %d",
		*kills, len(received), stored, sum(received), sum(recorded), sum(ofBranches), charged)
	if stored == 0 {
		t.Error("no result was stored")
	}
}

type tokenRecord struct {
	Kind, Context string
	Audit         struct {
		Tool   string
		Tokens struct{ In, Delivered int }
	}
}

func sum(all map[string]int) (n int) {
	for _, m := range all {
		n += m
	}
	return n
}
