//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/llmstub"
)

// codex is its command line. It knows nothing of the stub's model, and so
// offers each tool by itself rather than in its code mode.
type codex struct{}

// codeMode is Codex with a model that it knows. The model has one tool, exec, which runs programs
// that call the others.
type codeMode struct{ codex }

func (codeMode) use(server, tool, arguments string) llmstub.Call {
	program := fmt.Sprintf("const r = await tools.mcp__%s__%s(%s); text(r.content[0].text)", server, tool, arguments)
	return llmstub.Call{Namespace: "functions", Name: "exec", Input: program}
}

func (codeMode) run(t *testing.T, r *hostRun) { runCodex(t, r, "gpt-6-sol") }

// Its packages hold the program, below the name of its target.
var codexTargets = map[string]string{
	"linux/amd64": "codex-linux-x64/vendor/x86_64-unknown-linux-musl", "linux/arm64": "codex-linux-arm64/vendor/aarch64-unknown-linux-musl",
	"darwin/amd64": "codex-darwin-x64/vendor/x86_64-apple-darwin", "darwin/arm64": "codex-darwin-arm64/vendor/aarch64-apple-darwin",
}

func (codex) use(server, tool, arguments string) llmstub.Call {
	return llmstub.Call{Namespace: "mcp__" + server, Name: tool, Arguments: arguments}
}

func (codex) delegate(prompt func(llmstub.Request) string) []llmstub.Turn {
	return []llmstub.Turn{
		func(r llmstub.Request) (llmstub.Reply, error) {
			return llmstub.Reply{Calls: []llmstub.Call{{Namespace: "multi_agent_v1", Name: "spawn_agent", Arguments: jsonText(map[string]string{"message": prompt(r)})}}}, nil
		},
		func(r llmstub.Request) (llmstub.Reply, error) {
			results := r.Results()
			id := threadForm.FindString(results[len(results)-1])
			return llmstub.Reply{Calls: []llmstub.Call{{Namespace: "multi_agent_v1", Name: "wait_agent", Arguments: jsonText(map[string]any{"targets": []string{id}})}}}, nil
		},
	}
}

// note: Codex repeats the answer of a subagent when it has ended.
func (codex) note(m llmstub.Message) bool {
	return m.Role == "user" && strings.HasPrefix(m.Text, "<subagent_notification>")
}

// handedLimit: Codex shows its model the answer twice and the subagent's id four times. That and
// the task are 280 to 300 of these tokens. The rest of 350 would not hold the call that opens a
// branch, and the branch's id twice.
func (codex) handedLimit() int { return 410 }

// named: its threads are told apart, so that a branch that was handed over is
// named once, and one's own never.
func (codex) named() (handed, own int) { return 1, 0 }

func (codex) half(_, structured string) string { return structured }

func (codex) overHTTP() bool { return true }

// check: Codex names the thread of each call, a subagent's is another.
func (codex) check(t *testing.T, _ *hostRun, threads map[string][]string) {
	seen := map[string]bool{}
	for _, ids := range threads {
		for _, id := range ids {
			seen[id] = true
		}
	}
	if len(threads) != 3 || len(seen) != 3 {
		t.Errorf("thread ids by branch: %v, want one in main, another in each of the two branches", threads)
	}
}

func (codex) run(t *testing.T, r *hostRun) { runCodex(t, r, "model") }

func runCodex(t *testing.T, r *hostRun, model string) {
	configureCodex(t, r, model)
	execCodex(t, r)
}

// configureCodex writes Codex's configuration, with the servers of r.
func configureCodex(t *testing.T, r *hostRun, model string) {
	dir := filepath.Join(r.home, ".codex")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `model = %q
model_provider = "stub"
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.stub]
name = "stub"
base_url = %q
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false

[features]
plugins = false
apps = false
`, model, r.stub.URL())
	for name, s := range r.servers {
		fmt.Fprintf(&b, "\n[mcp_servers.%s]\ndefault_tools_approval_mode = \"approve\"\n", name)
		if s.url != "" {
			fmt.Fprintf(&b, "url = %q\nbearer_token_env_var = %q\n", s.url, hostToken)
		} else {
			fmt.Fprintf(&b, "command = %q\nargs = %s\n", s.command[0], jsonText(s.command[1:]))
		}
	}
	write(t, filepath.Join(dir, "config.toml"), b.String())
}

func execCodex(t *testing.T, r *hostRun) {
	bin := module(t, "@openai/"+platform(t, codexTargets)+"/bin/codex")
	r.command(t, bin, []string{"exec", "--strict-config", "--json", "--skip-git-repo-check", "--ephemeral", "find why more payments fail"})
}

// Codex asks for tools only when it starts, so the servers must be up by then: no other test runs beside it.
func TestCodex(t *testing.T) {
	testHost(t, codex{}, codex{})
}

// In code mode the model's programs call foldgate, and their output grows the context. The
// program around a call and the words around its output are Codex's own, about 20 tokens more
// than for a plain call.
func TestCodexCodeMode(t *testing.T) {
	var jobs []job
	for _, j := range foldedJobs(codeMode{}) {
		if strings.HasPrefix(j.name, "P1 batch") || strings.HasPrefix(j.name, "P2") || strings.HasPrefix(j.name, "P3") {
			jobs = append(jobs, j)
		}
	}
	r := newHostRun(t, append(runners(), mainAgent(jobs))...)
	g := r.behindGateway(t, true)
	codeMode{}.run(t, r)
	main, begin, _ := r.growth(t, codeMode{}, jobs)
	answers := main[begin["P1 batch"]+1].Results()
	if got := answers[len(answers)-1]; !strings.Contains(got, "docs/incidents.md") {
		t.Errorf("the answer of the batch is %s", got)
	}
	lines := r.fixtureLines(t)
	for i, q := range main {
		if n, first := shows(q, lines); n > 0 {
			t.Errorf("request %d shows %d lines of the files, the first is %q", i, n, first)
		}
	}
	g.stop()
}
