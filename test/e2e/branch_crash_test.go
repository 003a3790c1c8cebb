//go:build e2e

package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

var kills = flag.Int("kills", 12, "how often TestKilledGateway kills the binary; TestKilledWhileStoring half as often")

// victimBranch holds a branch as the clients of a killed process know it.
type victimBranch struct {
	id, parent string
	timeout    int // seconds
	expires    time.Time
	texts      []string // what was charged: texts of the creation, arguments sent and answered, results received
	returned   bool     // branch_return succeeded
	refused    bool     // a call was told that it has ended
	ended      bool     // its end has been checked
}

// victims are the branches of all processes. Its lock is held for moments.
type victims struct {
	mu    sync.Mutex
	all   []*victimBranch
	calls int // answered in branches
}

func (v *victims) pick() *victimBranch {
	v.mu.Lock()
	defer v.mu.Unlock()
	var open []*victimBranch
	for _, b := range v.all {
		if !b.returned && !b.refused && !b.ended {
			open = append(open, b)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[rand.IntN(len(open))]
}

// The binary is killed at random moments, also while it starts, with clients
// at work in branches. After each restart nothing that a client received is
// missing from the books, no branch is past its deadline, the trace is whole
// and knows the calls that were lost, and the branches go on.
func TestKilledGateway(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fmt.Sprintf(`upstreams:
  fake: {command: [%q, -era, both]}
folding: {max_branches_per_minute: 1000000, max_concurrent_per_session: 1000000, max_concurrent_per_instance: 1000000}
`, fakeserverBin))
	v := &victims{}
	starts := 0
	for k := range *kills {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		cmd := g.command("run")
		c, err := mcpclient.Stdio(cmd, []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[k%2])
		if err != nil {
			t.Fatal(err)
		}
		kill := func() { _ = cmd.Process.Kill() }
		if k%6 == 5 { // in the middle of the start
			starts++
			time.AfterFunc(time.Duration(rand.IntN(400))*time.Millisecond, kill)
			_, _ = c.Start(ctx)
			kill()
		} else {
			startHost(t, ctx, c)
			v.check(t, ctx, g, c)
			v.work(ctx, c, func() { time.AfterFunc(time.Duration(rand.IntN(150_000))*time.Microsecond, kill) })
		}
		_ = c.Close() // it was killed: the error is the point
		cancel()
		if t.Failed() {
			t.Fatalf("after kill %d", k+1)
		}
	}
	ctx := testContext(t)
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	v.check(t, ctx, g, c)
	for range 20 { // the branches of killed processes go on
		b := v.pick()
		if b == nil {
			break
		}
		if s := statusOf(t, c, ctx, b.id); s.Status != "active" {
			b.ended = true
			continue
		}
		if m := tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": "go on", "branch_id": b.id})); parseResult(t, m).IsError {
			t.Errorf("a call in branch %s after the restart: %s", b.id, m.Result)
		}
		r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.id, "message": "done"})))
		if r.Late && r.Status == "timeout" { // its deadline came between the two calls
			b.ended = true
			continue
		}
		if !r.Success || r.Late {
			t.Errorf("branch_return after the restart = %+v", r)
		}
		b.returned = true
	}
	g.stop()
	v.checkTrace(t, g)
	t.Logf("%d kills, %d of them while it started; %d branches, %d calls answered in them", *kills, starts, len(v.all), v.calls)
}

// The database refuses the ends of branches, and the trace records them. Then the gateway is shut down or killed, and
// the next ones are killed while they start. No branch goes on, and none has a second begin or end in the trace.
func TestEndIsRecordedOnly(t *testing.T) {
	t.Parallel()
	for _, shut := range []string{"down", "killed"} {
		t.Run(shut, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			g := newGateway(t, "upstreams: {}\n")
			cmd := g.command("run")
			c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
			if err != nil {
				t.Fatal(err)
			}
			startHost(t, ctx, c)
			var all []string
			for _, parent := range []string{"", "0", ""} {
				args := map[string]any{"description": "work"}
				if parent != "" {
					args["parent_branch_id"] = all[0]
				}
				all = append(all, own[created](t, tool(t, c, ctx, "branch_create", jsonText(args))).BranchID)
			}
			db, err := sql.Open("sqlite", filepath.Join(g.dir, "state", "foldgate.db"))
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(1)
			if _, err := db.Exec("BEGIN IMMEDIATE"); err != nil { // foldgate waits for a second, and tries again
				t.Fatal(err)
			}
			if r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": all[0], "message": "done"}))); !r.Success {
				t.Errorf("branch_return: %+v", r)
			}
			if shut == "killed" {
				_ = cmd.Process.Kill()
				_ = c.Close() // it was killed: the error is the point
			} else if err := c.Close(); err != nil {
				t.Error(err)
			}
			if _, err := db.Exec("ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			for range *kills / 2 {
				cmd := g.command("run")
				c, err := mcpclient.Stdio(cmd, mcpclient.Legacy)
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Duration(rand.IntN(400))*time.Millisecond, func() { _ = cmd.Process.Kill() })
				_, _ = c.Start(ctx)
				_ = cmd.Process.Kill()
				_ = c.Close()
			}
			last := g.connect(ctx, "stdio", mcpclient.Legacy)
			for i, id := range all {
				goesOn := shut == "killed" && i == 2
				if s := statusOf(t, last, ctx, id); goesOn != (s.Status == "active") {
					t.Errorf("branch %d is %s (%s)", i, s.Status, s.Reason)
				}
			}
			g.stop()
			g.pushesHavePops()
			if out := g.output("trace", "verify"); strings.Contains(out, "is not closed") {
				t.Errorf("trace verify: %s", out)
			}
		})
	}
}

// work lets clients work in branches until the process dies.
func (v *victims) work(ctx context.Context, c *mcpclient.Client, first func()) {
	var once sync.Once
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for v.step(ctx, c) {
				once.Do(first)
			}
			once.Do(first)
		})
	}
	wg.Wait()
}

// step does one thing in a branch; false says that the process is gone.
func (v *victims) step(ctx context.Context, c *mcpclient.Client) bool {
	b := v.pick()
	n := rand.IntN(100)
	switch {
	case b == nil || n < 12:
		return v.create(ctx, c, nil)
	case n < 18:
		return v.create(ctx, c, b)
	case n < 26:
		text, ok := v.ask(ctx, c, "branch_return", map[string]any{"branch_id": b.id, "message": "done"})
		v.mu.Lock()
		defer v.mu.Unlock()
		b.returned = b.returned || strings.HasPrefix(text, `{"success":true`)
		return ok
	}
	args := map[string]any{"bytes": 5 * (1 + rand.IntN(400))}
	if n < 40 {
		args = map[string]any{"ms": rand.IntN(60)}
	}
	sent, _ := json.Marshal(args)
	name := "fake__huge"
	if args["ms"] != nil {
		name = "fake__slow"
	}
	args["branch_id"] = b.id
	text, ok := v.ask(ctx, c, name, args)
	if !ok {
		return false
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if strings.HasPrefix(text, `{"error":`) { // the branch has ended: nothing was delivered
		b.refused = true
		return true
	}
	b.texts = append(b.texts, string(sent), text)
	v.calls++
	return true
}

func (v *victims) create(ctx context.Context, c *mcpclient.Client, parent *victimBranch) bool {
	b := &victimBranch{timeout: []int{1, 600}[rand.IntN(2)]}
	args := map[string]any{"description": "work that is killed", "budget": 32768, "timeout_seconds": b.timeout}
	if parent != nil {
		b.parent = parent.id
		args["parent_branch_id"] = parent.id
	}
	text, ok := v.ask(ctx, c, "branch_create", args)
	var out created
	if ok && json.Unmarshal([]byte(text), &out) == nil && out.BranchID != "" {
		b.id, b.expires, b.texts = out.BranchID, time.Now().Add(time.Duration(b.timeout)*time.Second), []string{"work that is killed"}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.all = append(v.all, b)
	}
	return ok
}

// ask calls a tool and returns the text of its result; false where there was
// no answer.
func (v *victims) ask(ctx context.Context, c *mcpclient.Client, name string, args map[string]any) (string, bool) {
	params, _ := json.Marshal(map[string]any{"name": name, "arguments": args})
	m, err := c.Call(ctx, "tools/call", string(params))
	if err != nil || m.Error != nil {
		return string(m.Error), err == nil
	}
	var r toolResult
	if json.Unmarshal(m.Result, &r) != nil || len(r.Content) == 0 {
		return "", true
	}
	return r.Content[0].Text, true
}

// check compares the branches that the clients know with the answers of the next process, and
// verifies the trace.
func (v *victims) check(t *testing.T, ctx context.Context, g *gateway, c *mcpclient.Client) {
	t.Helper()
	for _, b := range v.all {
		if b.ended {
			continue
		}
		asked := time.Now()
		s := statusOf(t, c, ctx, b.id)
		seen := 0
		for _, text := range b.texts {
			seen += tokens(t, text)
		}
		switch {
		case s.BudgetUsed < seen || s.BudgetUsed > s.BudgetTotal:
			t.Errorf("branch %s: clients saw %d tokens, %d of %d are booked", b.id, seen, s.BudgetUsed, s.BudgetTotal)
		case b.returned && s.Status != "completed":
			t.Errorf("branch %s had returned and is %s (%s)", b.id, s.Status, s.Reason)
		case s.Status == "active" && asked.After(b.expires):
			t.Errorf("branch %s is active at %v, its deadline was %v", b.id, asked, b.expires)
		}
		b.ended = s.Status != "active" // and checked
	}
	out, err := exec.Command(foldgateBin, "trace", "verify", "--config", g.config).CombinedOutput()
	if err != nil {
		t.Errorf("trace verify: %v\n%s", err, out)
	}
}

// checkTrace holds the trace of all processes to its promises after the last
// one has ended.
func (v *victims) checkTrace(t *testing.T, g *gateway) {
	t.Helper()
	if out := g.output("trace", "verify"); strings.Contains(out, "is not closed") {
		t.Errorf("trace verify: %s", out)
	}
	pushes, pops, requests, responses := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	lost, recovered := 0, 0
	for _, r := range g.trace() {
		switch r.Kind {
		case "context/push":
			pushes[r.Context]++
		case "context/pop":
			pops[r.Context]++
		case "mcp/request:tools/call":
			requests[r.ID]++
		case "mcp/response:tools/call":
			responses[r.CorrelationID[0]]++
			if r.Audit.Lost {
				lost++
			}
		case "context/status":
			if strings.Contains(string(r.Payload), `"recovered"`) {
				recovered++
			}
		}
	}
	for path, n := range pushes {
		if n != 1 || pops[path] != 1 {
			t.Errorf("context %s has %d pushes and %d pops", path, n, pops[path])
		}
	}
	for _, b := range v.all {
		found := false
		for path := range pushes {
			found = found || strings.HasSuffix(path, b.id)
		}
		if !found {
			t.Errorf("branch %s has no push", b.id)
		}
	}
	for id := range requests {
		if responses[id] != 1 {
			t.Errorf("request %s has %d responses", id, responses[id])
		}
	}
	t.Logf("trace: %d pushes, %d tools/call, %d of them lost in a crash, %d branches taken over", len(pushes), len(requests), lost, recovered)
	if lost == 0 || recovered == 0 {
		t.Error("no kill met a call in flight in a branch")
	}
}
