// Package recorded writes journals as gateways of many people would leave them, for tests and
// measurements of what reads a trace.
package recorded

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Hostile are texts that agents and servers could choose to break a page: markup, scripts, addresses,
// templates, and characters that nobody sees.
var Hostile = []string{
	`<script>document.title="pwned"</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `{{.Session.CSRF}}`, "a\u202egpj.exe\u200b", `</title></textarea><svg onload=alert(1)>`, "line\nbreak\x1b[2J\x00", `'; DROP TABLE record; --`,
}

// Options describe a journal.
type Options struct {
	Records int
	Begin   time.Time
	Days    int  // over which the records are spread; 0 is one
	People  int  // 0 is 40
	Small   bool // payloads of some bytes instead of half a kilobyte
}

// Write writes a journal to dir.
func Write(dir string, o Options) error {
	j, err := trace.Open(dir, trace.Options{Sync: trace.SyncNever})
	if err != nil {
		return err
	}
	w := &writer{j: j, o: o, rng: rand.New(rand.NewPCG(7, 9)), now: o.Begin}
	if w.o.Days == 0 {
		w.o.Days = 1
	}
	if w.o.People == 0 {
		w.o.People = 40
	}
	w.step = time.Duration(w.o.Days) * 24 * time.Hour / time.Duration(max(o.Records, 1))
	for w.n < o.Records && w.err == nil {
		w.visit()
	}
	if err := j.Close(); w.err == nil {
		w.err = err
	}
	return w.err
}

type writer struct {
	j    *trace.Journal
	o    Options
	rng  *rand.Rand
	now  time.Time
	step time.Duration
	n    int
	err  error
}

func (w *writer) add(r *trace.Record) *trace.Record {
	if w.err != nil || w.n >= w.o.Records {
		return r
	}
	r.TS = w.now.UTC().Format(trace.TimeFormat)
	w.now = w.now.Add(w.step)
	w.n++
	w.err = w.j.Append(r)
	return r
}

func (w *writer) id() string {
	return fmt.Sprintf("%08x-%04x-4000-8000-%012x", w.rng.Uint32(), w.rng.Uint32()&0xffff, w.rng.Uint64()&0xffffffffffff)
}

// visit is a session of somebody: some calls in main, and a branch with a branch in it.
func (w *writer) visit() {
	person := w.rng.IntN(w.o.People)
	who := fmt.Sprintf("dev-%02d", person)
	if person == 0 {
		who = Hostile[0]
	}
	a := trace.Audit{Session: "ses_" + w.id(), Principal: who, Team: fmt.Sprintf("team-%d", person%8), Revision: "2025-11-25", Source: "argument"}
	w.calls(a, "", 2+w.rng.IntN(6), 0)
	outer := "br_" + w.id()
	used := w.branch(a, outer, "look for the fault in the build", 4)
	if w.rng.IntN(3) == 0 {
		w.branch(a, outer+"/br_"+w.id(), Hostile[w.rng.IntN(len(Hostile))], 3)
	}
	w.pop(a, outer, used)
}

func (w *writer) branch(a trace.Audit, context, task string, calls int) (used int) {
	push := a
	push.Tokens = &trace.Tokens{Budget: 8192}
	w.add(&trace.Record{From: "foldgate", To: []string{"host:agent"}, Kind: trace.KindPush, Context: context, Audit: &push,
		Payload: rawjson.Marshal(map[string]any{"branch_id": trace.BranchOf(context), "description": task, "budget": 8192})})
	w.add(&trace.Record{From: "host:agent", Kind: trace.KindReflection, Context: context, Audit: &a, Payload: rawjson.Marshal(map[string]string{"prompt": task})})
	used = w.calls(a, context, 1+w.rng.IntN(2*calls), 8192)
	if len(context) > 50 {
		w.pop(a, context, used)
	}
	return used
}

func (w *writer) pop(a trace.Audit, context string, used int) {
	if len(context) < 50 && w.rng.IntN(200) == 0 {
		return // it stays open
	}
	w.add(&trace.Record{From: "host:agent", Kind: trace.KindConclusion, Context: context, Audit: &a, Payload: rawjson.Marshal(map[string]string{"message": "the test is flaky"})})
	a.Tokens = &trace.Tokens{Used: used, Budget: 8192, Freed: used * 9 / 10}
	w.add(&trace.Record{From: "foldgate", To: []string{"host:agent"}, Kind: trace.KindPop, Context: context, Audit: &a, Payload: rawjson.Marshal(map[string]string{"reason": "returned"})})
}

var servers = []string{"files", "github", "db", "search", "browser", "tickets"}

func (w *writer) calls(a trace.Audit, context string, n, budget int) (used int) {
	for range n {
		server := w.rng.IntN(len(servers))
		a.Server, a.Tool, a.Method = servers[server], fmt.Sprintf("tool_%d", server*10+w.rng.IntN(10)), "tools/call"
		if w.rng.IntN(50) == 0 {
			a.Tool = Hostile[w.rng.IntN(len(Hostile))]
		}
		text := fmt.Sprintf("src/handler_%d.go", w.rng.IntN(1000))
		if w.rng.IntN(20) == 0 {
			text = Hostile[w.rng.IntN(len(Hostile))]
		}
		in := 5 + w.rng.IntN(60)
		request := a
		request.Args = &in
		req := w.add(&trace.Record{From: "host:agent#" + a.Session, To: []string{trace.UpstreamName(a.Server)}, Kind: trace.KindRequest + "tools/call", Context: context, Audit: &request, Payload: rawjson.Marshal(map[string]any{
			"jsonrpc": "2.0", "id": w.n, "method": "tools/call", "params": map[string]any{"name": a.Tool, "arguments": map[string]any{"path": text}}})})
		out := 20 + w.rng.IntN(3000)
		response := a
		response.MS = 0.3 + w.rng.Float64()*40*float64(1+server)
		response.Tokens = &trace.Tokens{Counter: "o200k_base", In: in, Out: out, Delivered: out, Used: used, Budget: budget}
		response.Bytes = int64(out) * 4
		result := map[string]any{"content": []any{map[string]string{"type": "text", "text": text + " " + fmt.Sprintf("%0*d", map[bool]int{true: 8, false: 400}[w.o.Small], w.n)}}}
		switch w.rng.IntN(60) {
		case 0:
			response.IsError, result["isError"] = true, true
		case 1:
			response.IsError, response.Decision = true, &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonPolicy, Rule: "no-writes"}
		case 2:
			response.Scrub = []trace.Finding{{Rule: "github-pat", Field: "$.result.content[0].text", Count: 1, Action: trace.Redacted}}
		case 3, 4, 5:
			response.Tokens.Out, response.Fold = out*20, &trace.Fold{Handle: "res_" + w.id(), Saved: out * 19}
		case 6:
			response.OverBudget, response.IsError, response.Decision = true, true, &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: "developer"}
		}
		used += in + response.Tokens.Delivered
		response.Tokens.Used = min(used, max(budget, 0))
		w.add(&trace.Record{From: trace.UpstreamName(a.Server), To: []string{req.From}, Kind: trace.KindResponse + "tools/call", Context: context, CorrelationID: trace.IDs{req.ID}, Audit: &response, Payload: rawjson.Marshal(map[string]any{"jsonrpc": "2.0", "id": w.n - 1, "result": result})})
	}
	return min(used, 8192)
}
