//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/redistest"
)

// losesLimits removes the store of the limits.
func (g *gateway) losesLimits() {
	g.t.Helper()
	lost, err := filepath.Glob(filepath.Join(g.dir, "state", "budgets.db*"))
	if err != nil || len(lost) == 0 {
		g.t.Fatalf("no store: %v", err)
	}
	for _, file := range lost {
		if err := os.Remove(file); err != nil {
			g.t.Fatal(err)
		}
	}
}

// The counts of a store that was lost are made again from the trace: they are those of before, never
// fewer. A rebuild lowers nothing, and names the records that a trace no longer has.
func TestRebuild(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, `    - {name: main, match: {context: main}, per: session, tokens: 3k, window: 1d}
    - {name: branches, match: {context: branch}, per: principal, tokens: 1M, calls: 1k, window: 1mo, time_zone: Europe/Berlin}
    - {name: person, per: principal, tokens: 1M, calls: 1k, window: 1w}
    - {name: tools, match: {tool: "fake__*"}, per: tool, tokens: 1M, calls: 1k, window: rolling 24h}
    - {name: servers, per: server, tokens: 1M, window: 1d}
    - {name: everyone, per: all, calls: 1k, window: 1d}
`, "trace: {rotate_mb: 1}\n", principals()))
	at := g.http()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		for _, who := range []string{"alice", "bob"} {
			c := g.as(t, at, era, who)
			s := spender{c: c}
			b := create(t, c, ctx, map[string]any{"budget": 20000}).BranchID
			for i := range 30 {
				branch, name, args := "", "fake__text", `{"text":"@@","fill":250}`
				if i%3 == 0 {
					branch = b
				}
				if i%5 == 0 {
					name, args = "fake__huge", `{"bytes":30000}`
				}
				if text, _, err := s.call(ctx, name, args, branch); err != nil {
					t.Fatal(err)
				} else if h := handleForm.FindString(text); h != "" { // what is read counts for the tool, too
					if _, _, err := s.call(ctx, "branch_read", `{"handle":"`+h+`","max_tokens":200}`, branch); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, notice := range []string{"log", "progress"} { // these count for it, too
				if _, _, err := s.call(ctx, "fake__"+notice, `{"count":1,"text":"@@","fill":20,"params":{"level":"error","data":"@@"}}`, b); err != nil {
					t.Fatal(err)
				}
			}
			tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b, "message": ""}))
		}
	}
	used := func() map[string]int64 {
		var states []control.Budget
		unmarshal(t, []byte(g.output("budgets", "--json")), &states)
		of := map[string]int64{}
		for _, s := range states {
			if s.Tokens > 0 {
				of[s.Limit+" tokens of "+s.Subject] = s.TokensUsed
			}
			if s.Calls > 0 {
				of[s.Limit+" calls of "+s.Subject] = s.CallsUsed
			}
		}
		return of
	}
	time.Sleep(300 * time.Millisecond) // what is reserved goes back after 100 ms
	before := used()
	if len(before) < 15 {
		t.Fatalf("counts: %v", before)
	}
	g.stop()
	g.losesLimits()
	reserves := filepath.Join(g.dir, "state", "reserves")
	if _, err := os.Stat(reserves); err != nil {
		t.Error(err)
	}
	for _, want := range []string{" counts compared with 1 trace. Raised:\nLIMIT ", " counts compared with 1 trace: nothing to raise.\n"} { // the second changes nothing
		if out := g.output("budgets", "rebuild"); !strings.Contains(out, want) {
			t.Errorf("budgets rebuild says %q, without %q", out, want)
		}
	}
	if _, err := os.Stat(reserves); err == nil {
		t.Error("what a process has reserved before the rebuild can be given back after it")
	}
	g.http()
	after := used()
	for name, n := range before {
		if after[name] != n {
			t.Errorf("%s: %d before, %d after", name, n, after[name])
		}
	}
	g.stop()
	files, err := filepath.Glob(filepath.Join(g.dir, "state", "trace", "trace-*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no trace", err)
	}
	kept := read(t, files[0])
	lines := strings.SplitAfter(string(kept), "\n")
	write(t, files[0], strings.Join(append(lines[:10:10], lines[20:]...), ""))
	if out := g.output("budgets", "rebuild"); !strings.Contains(out, " lacks the records 11 to 20,") {
		t.Errorf("of a trace without records 11 to 20, budgets rebuild says %q", out)
	}
	newest := files[len(files)-1]
	if kept, err = os.ReadFile(newest); err != nil {
		t.Fatal(err)
	}
	lines = strings.SplitAfter(strings.TrimSuffix(string(kept), "\n"), "\n")
	write(t, newest, strings.Join(lines[:len(lines)-3], ""))
	if out := g.output("budgets", "rebuild"); !strings.Contains(out, ", at its end: ") {
		t.Errorf("of a trace without its last records, budgets rebuild says %q", out)
	}
	cmd := g.command("budgets", "rebuild", filepath.Join(g.dir, "state", "trace"), "/nonexistent")
	var said strings.Builder
	cmd.Stderr = &said
	if err := cmd.Run(); err == nil || !strings.Contains(said.String(), "there is no trace in /nonexistent") {
		t.Errorf("of a directory that is not there, budgets rebuild says %q, %v", said.String(), err)
	}
}

// A rebuild says what it has raised, also if the operator had reset it.
func TestRebuildAfterReset(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: all, per: all, calls: 9, window: 1mo}\n"))
	c := g.connect(ctx, "http", mcpclient.Modern)
	for range 3 {
		tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	}
	if out := g.output("budgets", "reset", "all"); out != "1 count of limit all set to 0.\n" {
		t.Fatalf("budgets reset says %q", out)
	}
	tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	form := regexp.MustCompile(`^1 count compared with 1 trace\. Raised:\nLIMIT +SUBJECT +UNIT +FROM +TO\nall +all +calls +1 +4 +undoes the reset of 20\S+Z\n$`)
	if out := g.output("budgets", "rebuild"); !form.MatchString(out) {
		t.Errorf("budgets rebuild says %q", out)
	}
	if out := g.output("budgets", "rebuild"); out != "1 count compared with 1 trace: nothing to raise.\n" {
		t.Errorf("the second budgets rebuild says %q", out)
	}
}

// Of generated traffic with all that charges and all that is free, of gateways that are killed with
// calls under way, the rebuilt counts are those that the store had, to the token and to the call.
func TestRebuildIsExact(t *testing.T) {
	t.Parallel()
	const rounds, steps = 2, 50
	all := `    - {name: main, match: {context: main}, per: session, tokens: 1M, window: 1mo}
    - {name: branches, match: {context: branch}, per: principal, tokens: 10M, calls: 100k, window: 1mo, time_zone: Europe/Berlin}
    - {name: person, per: principal, tokens: 100M, calls: 100k, window: 1mo}
    - {name: tools, match: {tool: "fake__*"}, per: tool, tokens: 100M, calls: 100k, window: rolling 24h}
    - {name: own, match: {tool: "branch_*"}, per: tool, tokens: 100M, calls: 100k, window: 1mo}
    - {name: servers, per: server, tokens: 100M, calls: 100k, window: 1mo}
    - {name: tight, match: {tool: "fake__echo"}, per: principal, tokens: 1k, calls: 3, window: 1mo}
    - {name: everyone, per: all, tokens: 100M, calls: 100k, window: 1mo}
`
	for _, store := range []string{"sqlite", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			n, more, lose := 1, "", (*gateway).losesLimits
			if store == "redis" {
				server := redistest.New(t)
				n, more, lose = 2, "store: {url: \""+server.URL()+"\"}\n", func(*gateway) {
					if out, err := server.CLI("FLUSHALL"); err != nil || out != "OK" {
						t.Fatalf("FLUSHALL: %q, %v", out, err)
					}
				}
			}
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			record := recordFile(t)
			var gateways []*gateway
			for range n {
				gateways = append(gateways, newGateway(t, principals()+fakeConfig(record, "folding: {max_branches_per_minute: 10000, max_concurrent_per_session: 1000, max_concurrent_per_instance: 1000}\n"+
					"run: {allow: [\"fake__*\"]}\npolicy: {rules: [{name: no-touch, deny: [fake__touch]}]}\nbudgets:\n  limits:\n"+all+more)))
			}
			pending := 0
			var answered sync.Map // the paths that pending calls waited for which were answered
			for round := range rounds {
				var wg sync.WaitGroup
				var kill []func()
				for i, g := range gateways {
					at := g.http()
					g.ends = g.ends[:len(g.ends)-1] // it is killed
					pid := g.pid
					kill = append(kill, func() {
						_ = syscall.Kill(pid, syscall.SIGKILL)
						until(t, "the gateway is gone", func() bool { return syscall.Kill(pid, 0) != nil })
					})
					for j, who := range []string{"alice", "bob", "alice"} {
						era := []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[(j+round)%2]
						c := mcpclient.HTTP(at, era, "Authorization", "Bearer "+tokenOf[who])
						c.Capabilities = `{"elicitation":{},"sampling":{}}`
						c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
							if m.ID == nil {
								return nil, nil
							}
							return json.RawMessage(`{"action":"accept","content":{"x":"yes"},"role":"assistant","model":"m"}`), nil
						}
						startHost(t, ctx, c)
						u := &user{t: t, ctx: ctx, c: c, rand: rand.New(rand.NewPCG(seed, uint64(round*100+i*10+j)))}
						wait := fmt.Sprintf("%s.wait%d.", record, pending) // never made
						wg.Go(func() {
							for range map[string]int{"alice": 4}[who] { // more calls than the limit tight allows
								if _, err := c.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{}}`); err != nil {
									t.Error(err)
								}
							}
							for range steps {
								u.step()
							}
							go func() { // it is under way when the gateway is killed, or a spent limit has refused it
								_, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{"result":{},"wait":%q,"text":%q}}`, wait, strings.Repeat("lion ", u.rand.IntN(900))))
								if err == nil {
									answered.Store(wait, true)
								}
							}()
						})
						pending++
					}
				}
				wg.Wait()
				until(t, "the upstream has the last calls", func() bool {
					calls := strings.Join(recordedMethod(t, record, "tools/call"), "\n")
					for n := range pending {
						wait := fmt.Sprintf("%s.wait%d.", record, n)
						if _, ok := answered.Load(wait); !ok && !strings.Contains(calls, wait) {
							return false
						}
					}
					return true
				})
				for _, k := range kill {
					k()
				}
			}
			used := func() map[string]int64 {
				t.Helper()
				at := map[string]int64{}
				for _, g := range gateways { // each gives back what a killed process has reserved, at its end at the latest
					g.http()
					g.stop()
				}
				g := gateways[0]
				g.http()
				var states []control.Budget
				unmarshal(t, []byte(g.output("budgets", "--json")), &states)
				for _, s := range states {
					at[s.Limit+" tokens of "+s.Subject], at[s.Limit+" calls of "+s.Subject] = s.TokensUsed, s.CallsUsed
				}
				g.stop()
				return at
			}
			before := used()
			if len(before) < 50 || before["tight calls of alice"] != 3 {
				t.Errorf("counts: %v", before)
			}
			lose(gateways[0])
			args := []string{"budgets", "rebuild"}
			for _, g := range gateways {
				args = append(args, filepath.Join(g.dir, "state", "trace"))
			}
			t.Log(gateways[0].output(args...))
			if diff := cmp.Diff(before, used()); diff != "" {
				t.Errorf("before the loss and after the rebuild:\n%s", diff)
			}
		})
	}
}

// A flood of notifications of which most have no record of their own is counted all the same, by all that
// limits count by.
func TestRebuildOfAFlood(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, `    - {name: main, match: {context: main}, per: session, tokens: 10M, window: 1mo}
    - {name: branches, match: {context: branch}, per: principal, tokens: 10M, window: 1mo}
    - {name: tools, match: {tool: "fake__*"}, per: tool, tokens: 10M, window: 1mo}
    - {name: servers, per: server, tokens: 10M, window: 1mo}
    - {name: everyone, per: all, tokens: 10M, calls: 1k, window: 1mo}
`, principals()))
	at := g.http()
	for i, who := range []string{"alice", "bob"} {
		c := g.as(t, at, []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[i], who)
		call(t, c, ctx, "tools/list", `{}`)
		for _, branch := range []string{"", create(t, c, ctx, map[string]any{"budget": 32768}).BranchID} {
			if m, err := c.Call(ctx, "tools/call", `{"name":"fake__log","arguments":{"count":5000,"params":{"level":"error","data":"a"},"branch_id":"`+branch+`"},"_meta":{"io.modelcontextprotocol/logLevel":"debug"}}`); err != nil || m.Error != nil {
				t.Fatal(m, err)
			}
		}
	}
	used := func() map[string]int64 {
		g.http()
		g.stop() // what is reserved goes back
		g.http()
		var states []control.Budget
		unmarshal(t, []byte(g.output("budgets", "--json")), &states)
		g.stop()
		of := map[string]int64{}
		for _, s := range states {
			of[s.Limit+" of "+s.Subject] = s.TokensUsed
		}
		return of
	}
	g.stop()
	before := used()
	g.losesLimits()
	if out := g.output("budgets", "rebuild"); !strings.Contains(out, " counts compared with 1 trace. Raised:\n") {
		t.Errorf("budgets rebuild says %q", out)
	}
	if diff := cmp.Diff(before, used()); diff != "" || before["everyone of "] < 20_000 {
		t.Errorf("of a flood of 20000 notifications, before the loss and after the rebuild:\n%v\n%s", before, diff)
	}
	leftOut := 0
	for _, r := range traceAs[struct {
		Audit struct {
			LeftOut int `json:"left_out"`
		}
	}](g, "--kind", "system/warning") {
		leftOut += r.Audit.LeftOut
	}
	if leftOut < 1000 {
		t.Errorf("%d notifications have no record of their own, want most", leftOut)
	}
}

// user is a host that does at random what hosts do.
type user struct {
	t        *testing.T
	ctx      context.Context
	c        *mcpclient.Client
	rand     *rand.Rand
	branches []string // open ones, and some that have ended
	handles  []string
}

func (u *user) step() {
	r := u.rand
	branch := ""
	if len(u.branches) > 0 && r.IntN(2) == 0 {
		branch = u.branches[r.IntN(len(u.branches))]
	}
	call := func(name, args string) string {
		if branch != "" {
			args = strings.TrimSuffix(args, "}") + `,"branch_id":"` + branch + `"}`
		}
		m, err := u.c.Call(u.ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s,"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"debug"}}`, name, strings.Replace(args, "{,", "{", 1)))
		if err != nil {
			u.t.Error(err)
		}
		text := string(m.Result)
		if h := handleForm.FindString(text); h != "" {
			u.handles = append(u.handles, h)
		}
		return text
	}
	fill := r.IntN(300)
	switch r.IntN(18) {
	case 0, 1:
		call("fake__text", fmt.Sprintf(`{"text":"@@","fill":%d}`, fill))
	case 2:
		call("fake__huge", fmt.Sprintf(`{"bytes":%d}`, 20000+r.IntN(30000)))
	case 3:
		call("fake__raw", fmt.Sprintf(`{"error":{"code":-32000,"message":"@@"},"fill":%d}`, fill))
	case 4:
		call("fake__raw", fmt.Sprintf(`{"result":{"content":[{"type":"text","text":"@@"}],"isError":true},"fill":%d}`, fill))
	case 5:
		call([]string{"fake__nothing", "fake__touch", "fake__crash", "nothing"}[r.IntN(4)], `{"x":"some words that are no argument"}`)
	case 6, 7: // polls
		for range 1 + r.IntN(3) {
			call("branch_status", `{}`)
		}
	case 8, 9:
		args := fmt.Sprintf(`{"description":"work","budget":%d}`, []int{600, 4000, 16000}[r.IntN(3)])
		if branch != "" {
			args, branch = strings.TrimSuffix(args, "}")+`,"parent_branch_id":"`+branch+`"}`, ""
		}
		if id := branchForm.FindString(call("branch_create", args)); id != "" {
			u.branches = append(u.branches, id)
		}
	case 10:
		if branch != "" {
			call("branch_return", `{"message":"`+strings.Repeat("the tigers are here ", r.IntN(30))+`"}`)
		}
	case 11:
		call("branch_run", fmt.Sprintf(`{"steps":[{"tool":"fake__text","arguments":{"text":"@@","fill":%d}},{"tool":"fake__huge","arguments":{"bytes":9000}},{"tool":"nothing","arguments":{}},{"tool":"branch_status"}],"grep":"word|zebra"}`, fill))
	case 12, 13:
		if len(u.handles) > 0 {
			call("branch_read", fmt.Sprintf(`{"handle":%q,"max_tokens":%d}`, u.handles[r.IntN(len(u.handles))], 100+fill))
		}
	case 14:
		call("fake__"+[]string{"log", "progress"}[r.IntN(2)], fmt.Sprintf(`{"count":2,"text":"@@","fill":%d,"params":{"level":"error","data":"@@"}}`, fill))
	case 15:
		call("fake__"+[]string{"elicit", "sample"}[r.IntN(2)], fmt.Sprintf(`{"params":{"message":"@@","messages":[{"role":"user","content":{"type":"text","text":"@@"}}],"maxTokens":10,"requestedSchema":{"type":"object","properties":{}}},"fill":%d}`, fill))
	case 16:
		for _, m := range [][2]string{{"resources/read", `{"uri":"fake://a"}`}, {"prompts/get", `{"name":"fake__p"}`}, {"resources/read", `{"uri":"other://x"}`}, {"ping", `{}`}, {"tools/list", `{}`}} {
			_, _ = u.c.Call(u.ctx, m[0], m[1])
		}
	case 17:
		call("fake__echo", `{"x":"one of three"}`)
	}
}
