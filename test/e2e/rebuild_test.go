//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// The counts of a store that was lost are made again from the trace: they are those of before, never
// fewer. A rebuild lowers nothing, and names the records that a trace no longer has.
func TestRebuild(t *testing.T) {
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
			tool(t, c, ctx, "branch_return", jsonText(t, map[string]any{"branch_id": b, "message": ""}))
		}
	}
	used := func() map[string]int64 {
		var states []control.Budget
		if err := json.Unmarshal([]byte(g.output("budgets", "--json")), &states); err != nil {
			t.Fatal(err)
		}
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
	lost, err := filepath.Glob(filepath.Join(g.dir, "state", "budgets.db*"))
	if err != nil || len(lost) == 0 {
		t.Fatalf("no store: %v", err)
	}
	for _, file := range lost {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	reserves := filepath.Join(g.dir, "state", "reserves")
	if _, err := os.Stat(reserves); err != nil {
		t.Error(err)
	}
	for range 2 { // the second changes nothing
		if out := g.output("budgets", "rebuild"); !strings.Contains(out, " counts are at least what 1 trace ") {
			t.Errorf("budgets rebuild says %q", out)
		}
	}
	if _, err := os.Stat(reserves); err == nil {
		t.Error("what a process has reserved before the rebuild can be given back after it")
	}
	g.http()
	after := used()
	for name, n := range before {
		// Of a branch_return only the message is charged; the trace has the tokens of the whole answer.
		if more := after[name] - n; more < 0 || more > 40 || more > 0 && !strings.Contains(name, " tokens of ") {
			t.Errorf("%s: %d before, %d after", name, n, after[name])
		}
	}
	g.stop()
	files, err := filepath.Glob(filepath.Join(g.dir, "state", "trace", "trace-*"))
	if err != nil || len(files) == 0 {
		t.Fatal("no trace", err)
	}
	kept, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
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
