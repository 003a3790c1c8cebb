//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/llmstub"
)

const (
	readTool   = "read_text_file" // of server-filesystem, which declares an outputSchema
	handedTask = "Work in the branch "
	ownTask    = "Open a branch for this."
	question   = "Read the files of logs, data, api, docs, deploy and src. Why do more payments fail? Name the files."
	hostAnswer = "The rise of failed payments comes from stock reservations that expire before capture: logs/service.jsonl and docs/incidents.md name it. Orders are not lost, they wait in the outbox (docs/runbook.md)."
)

var (
	branchForm = regexp.MustCompile(`br_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	threadForm = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
)

// branchOf is the last branch id that a context shows.
func branchOf(r llmstub.Request) string {
	all := branchForm.FindAllString(reads(r.Messages...), -1)
	if all == nil {
		return "no branch id"
	}
	return all[len(all)-1]
}

// readAll reads the ten files, one a turn. The first named of them name their
// branch.
func readAll(h host, server string, named int, branch func(llmstub.Request) string) []llmstub.Turn {
	var turns []llmstub.Turn
	for i, name := range fixtures.Names {
		turns = append(turns, func(r llmstub.Request) (llmstub.Reply, error) {
			arguments := fmt.Sprintf(`{"path":%q}`, name)
			if i < named {
				arguments = fmt.Sprintf(`{"path":%q,"branch_id":%q}`, name, branch(r))
			}
			return llmstub.Reply{Calls: []llmstub.Call{h.use(server, readTool, arguments)}}, nil
		})
	}
	return turns
}

// scouts are the subagents: one that is handed a branch in its prompt, and one
// that opens its own. Both read the ten files in it, return it and answer. They
// name their branch as often as they must.
func scouts(h host) []llmstub.Agent {
	handed, own := h.named()
	end := []llmstub.Turn{func(r llmstub.Request) (llmstub.Reply, error) {
		return llmstub.Reply{Calls: []llmstub.Call{h.use("foldgate", "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":%q}`, branchOf(r), hostAnswer))}}, nil
	}, llmstub.Say(hostAnswer)}
	told := append(readAll(h, "foldgate", handed, branchOf), end...)
	alone := append(append([]llmstub.Turn{createBranch(h)}, readAll(h, "foldgate", own, branchOf)...), end...)
	return []llmstub.Agent{
		{Name: "handed", Match: isTold(handedTask), Play: llmstub.Script(told...)},
		{Name: "scout", Match: isTold(ownTask), Play: llmstub.Script(alone...)},
	}
}

func createBranch(h host) llmstub.Turn {
	return llmstub.Use(h.use("foldgate", "branch_create", `{"description":"find why more payments fail"}`))
}

// runners are the agents that play the models of the branches that run by themselves.
func runners() []llmstub.Agent {
	all := llmstub.Reply{}
	for _, name := range fixtures.Names {
		all.Calls = append(all.Calls, llmstub.Call{Name: readTool, Arguments: fmt.Sprintf(`{"path":%q}`, name)})
	}
	reading := func(llmstub.Request) (llmstub.Reply, error) { return all, nil }
	return []llmstub.Agent{
		{Name: "run P1", Match: isTold("Task: find why"), Play: llmstub.Script(reading, llmstub.Say(hostAnswer))},
		{Name: "run P2", Match: isTold("Task: name"), Play: llmstub.Script(reading, llmstub.Say("eu-central-1 (deploy/values.yaml)"))},
		{Name: "run P3", Match: isTold("Task: try"), Play: llmstub.Script(reading, llmstub.Say("no: the client sends none (src/scan.go)"))},
	}
}

// isTold matches the context of a subagent by its prompt.
func isTold(task string) func(llmstub.Request) bool {
	return func(r llmstub.Request) bool {
		for _, m := range r.Messages {
			if m.Role == "user" && strings.HasPrefix(m.Text, task) {
				return true
			}
		}
		return false
	}
}

// batch is a turn that uses branch_run.
func batch(h host, arguments map[string]any) llmstub.Turn {
	return llmstub.Use(h.use("foldgate", "branch_run", jsonText(arguments)))
}

func each(paths ...string) []map[string]string {
	var list []map[string]string
	for _, p := range paths {
		list = append(list, map[string]string{"path": p})
	}
	return list
}

// research holds five questions about files. Only the answers are wanted, not the files.
var research = []struct{ file, jq, want string }{
	{"deploy/values.yaml", `.[0].result.content|capture("region: (?<r>.+)").r`, "eu-central-1"},
	{"logs/access.log", `.[0].result.content|[scan("\" 502 ")]|length`, ""},
	{"data/orders.csv", `.[0].result.content|[scan("returned\n")]|length`, ""},
	{"api/openapi.json", `.[0].result.content|fromjson.info|[.title,.version]`, "2.4.0"},
	{"src/scan.go", `.[0].result.content|[scan("\nfunc ")]|length`, ""},
}

// foldedJobs returns the jobs of the main agent with foldgate.
func foldedJobs(h host) []job {
	jobs := []job{
		{name: "small", turns: []llmstub.Turn{llmstub.Use(h.use("foldgate", readTool, `{"path":"note.txt"}`))}},
		{name: "error", turns: []llmstub.Turn{llmstub.Use(h.use("foldgate", readTool, `{"path":"absent.txt"}`))}},
		{name: "two halves", turns: []llmstub.Turn{llmstub.Use(h.use("foldgate", "fake__raw", `{"result":{"content":[{"type":"text","text":"one"}],"structuredContent":{"other":2}}}`))}},
		{name: "two halves of an error", turns: []llmstub.Turn{llmstub.Use(h.use("foldgate", "fake__raw", `{"result":{"content":[{"type":"text","text":"one"}],"structuredContent":{"other":2},"isError":true}}`))}},
		{name: "P1 subagent", limit: 350, turns: h.delegate(func(llmstub.Request) string { return ownTask + " " + question })},
		{name: "P1 subagent, handed a branch", limit: h.handedLimit(), turns: append([]llmstub.Turn{createBranch(h)},
			h.delegate(func(r llmstub.Request) string { return handedTask + branchOf(r) + ". " + question })...)},
		{name: "P1 batch", limit: 350, turns: []llmstub.Turn{batch(h, map[string]any{
			"tool": readTool, "each": each(fixtures.Names...),
			"jq": `[.[]|{(.arguments.path):(.result.content|[scan("reservation expired")]|length)}]|add|with_entries(select(.value>0))`,
		})}},
	}
	for i, q := range research {
		jobs = append(jobs, job{name: fmt.Sprintf("P2 task %d", i+1), limit: 140, turns: []llmstub.Turn{
			batch(h, map[string]any{"tool": readTool, "each": each(q.file), "jq": q.jq}),
		}})
	}
	run := func(name string, limit int, arguments map[string]any) {
		arguments["run"] = true
		jobs = append(jobs, job{name: name, limit: limit, turns: []llmstub.Turn{llmstub.Use(h.use("foldgate", "branch_create", jsonText(arguments)))}})
	}
	run("P1 run", 160, map[string]any{"description": "find why more payments fail", "prompt": question})
	run("P2 run", 140, map[string]any{"description": "name the region of the deployment", "prompt": "Read deploy/values.yaml."})
	run("P3 run that fails", 120, map[string]any{"description": "try idempotency keys", "budget": 400})
	return append(jobs,
		job{name: "P3 attempt without a match", limit: 120, turns: []llmstub.Turn{
			batch(h, map[string]any{"tool": readTool, "each": each("docs/runbook.md", "docs/incidents.md"), "grep": "idempotency"}),
		}},
		job{name: "P3 attempt that fails", limit: 120, turns: []llmstub.Turn{
			batch(h, map[string]any{"tool": readTool, "each": each("src/pay.go")}),
		}},
		job{name: "P1 inline, previews", limit: 4500, turns: readAll(h, "foldgate", 0, nil)})
}

// plainJobs are the same without foldgate.
func plainJobs(h host) []job {
	read := func(paths ...string) (turns []llmstub.Turn) {
		for _, p := range paths {
			turns = append(turns, llmstub.Use(h.use("fs", readTool, fmt.Sprintf(`{"path":%q}`, p))))
		}
		return turns
	}
	jobs := []job{{name: "P1 inline", turns: readAll(h, "fs", 0, nil)}}
	for i, q := range research {
		jobs = append(jobs, job{name: fmt.Sprintf("P2 task %d", i+1), turns: read(q.file)})
	}
	return append(jobs, job{name: "P3 attempt without a match", turns: read("docs/runbook.md", "docs/incidents.md")},
		job{name: "P3 attempt that fails", turns: read("src/pay.go")})
}

// testHost drives a host through all jobs, with foldgate and without. The two
// may talk to their model in different ways.
func testHost(t *testing.T, folded, plain host) {
	t.Run("folded", func(t *testing.T) {
		jobs := foldedJobs(folded)
		r := newHostRun(t, append(append(scouts(folded), runners()...), mainAgent(jobs))...)
		g := r.behindGateway(t, folded.overHTTP())
		folded.run(t, r)
		main, begin, _ := r.growth(t, folded, jobs)
		for job, want := range map[string]string{
			"small": "a note of 17 bytes", "error": "ENOENT", "P1 batch": "docs/incidents.md",
			"P3 attempt without a match": "no match", "P3 attempt that fails": "ENOENT",
			"P1 run": hostAnswer, "P2 run": "eu-central-1", "P3 run that fails": "budget_exhausted",
			"P2 task 1": research[0].want, "P2 task 4": research[3].want,
			"two halves": folded.half("one", `{"other":2}`), "two halves of an error": folded.half("one", `{"other":2}`),
		} {
			answers := main[begin[job]+1].Results()
			if got := answers[len(answers)-1]; !strings.Contains(got, want) {
				t.Errorf("%s: the model does not read %q, but\n%s", job, want, got)
			}
		}
		if got := reads(main[begin["P1 batch"]].Messages...); !strings.Contains(got, hostAnswer) {
			t.Errorf("the subagent's answer did not reach the main agent:\n%s", got)
		}
		r.isolated(t, main[:begin["P1 inline, previews"]+1])
		last := main[len(main)-1].Results()
		for i, text := range last[len(last)-len(fixtures.Names):] {
			if !strings.Contains(text, "[Folded ") || !handleForm.MatchString(text) {
				t.Errorf("%s: the model reads no preview, but %.300s", fixtures.Names[i], text)
			}
		}
		if !strings.Contains(string(main[0].Body), "Branch to charge") {
			t.Error("the model is not told of branch_id")
		}
		g.stop()
		folded.check(t, r, r.charged(t, folded, g))
	})
	t.Run("plain", func(t *testing.T) {
		jobs := plainJobs(plain)
		r := newHostRun(t, mainAgent(jobs))
		r.servers["fs"] = mcpServer{command: filesystemCommand(t, r.work)}
		plain.run(t, r)
		main, _, grown := r.growth(t, plain, jobs)
		if grown["P1 inline"] < 35000 {
			t.Errorf("without foldgate ten reads cost %d tokens: the scripts don't read the files", grown["P1 inline"])
		}
		lines := r.fixtureLines(t)
		// Codex cuts the middle out of results of over 12,000 characters.
		if n, _ := shows(main[len(main)-1], lines); n < len(lines)/2 {
			t.Errorf("without foldgate the context shows %d of %d lines: the check for them is broken", n, len(lines))
		}
	})
}

// isolated checks that no line of the files is in any of the requests, while
// the subagent has read some.
func (r *hostRun) isolated(t *testing.T, main []llmstub.Request) {
	t.Helper()
	lines := r.fixtureLines(t)
	for i, q := range main {
		if n, first := shows(q, lines); n > 0 {
			t.Errorf("main request %d shows %d lines of the files, the first is %q", i, n, first)
		}
	}
	for name, turns := range map[string]int{"handed": len(fixtures.Names) + 2, "scout": len(fixtures.Names) + 3} {
		asked := r.stub.Requests(name)
		if len(asked) != turns {
			t.Fatalf("the subagent %s made %d requests, want %d", name, len(asked), turns)
		}
		if n, _ := shows(asked[turns-1], lines); n < 20 {
			t.Errorf("the subagent %s read %d lines of the files, want some of all", name, n)
		}
	}
}

// charged checks that the subagents' calls were made in their branches. It
// returns the ids that the host gave its threads, of the main agent's calls
// ("") and of those in each branch.
func (r *hostRun) charged(t *testing.T, h host, g *gateway) map[string][]string {
	t.Helper()
	reads, named, threads := map[string]int{}, map[string]int{}, map[string][]string{}
	for _, rec := range g.trace("--kind", "mcp/request:tools/call") {
		var p struct {
			Params struct {
				Name string
				Meta struct{ ThreadID string } `json:"_meta"`
			}
		}
		unmarshal(t, rec.Payload, &p)
		if p.Params.Name != readTool {
			continue
		}
		reads[rec.Context]++
		if rec.Audit.Rung == "argument" {
			named[rec.Context]++
		}
		if id := p.Params.Meta.ThreadID; id != rec.Audit.Thread {
			t.Errorf("a call of the thread %q is recorded as one of %q", id, rec.Audit.Thread)
		}
		if id := p.Params.Meta.ThreadID; id != "" && !slices.Contains(threads[rec.Context], id) {
			threads[rec.Context] = append(threads[rec.Context], id)
		}
	}
	handed, own := h.named()
	for name, want := range map[string]int{"handed": handed, "scout": own} {
		asked := r.stub.Requests(name)
		if branch := branchOf(asked[len(asked)-1]); reads[branch] != len(fixtures.Names) || named[branch] != want {
			t.Errorf("%d reads are in the branch %s of the subagent %s, %d name it; want %d and %d", reads[branch], branch, name, named[branch], len(fixtures.Names), want)
		}
	}
	return threads
}
