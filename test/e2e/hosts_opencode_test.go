//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/testbin"
)

// opencode is its command line, which speaks to its model as sdk says.
type opencode struct{ sdk string }

// Its packages hold the program. The baseline ones run without AVX2.
var opencodePackages = map[string]string{
	"linux/amd64": "opencode-linux-x64-baseline", "linux/arm64": "opencode-linux-arm64",
	"darwin/amd64": "opencode-darwin-x64-baseline", "darwin/arm64": "opencode-darwin-arm64",
}

func (opencode) use(server, tool, arguments string) llmstub.Call {
	return llmstub.Call{Name: server + "_" + tool, Arguments: arguments}
}

func (o opencode) delegate(prompt func(llmstub.Request) string) []llmstub.Turn {
	return []llmstub.Turn{func(r llmstub.Request) (llmstub.Reply, error) {
		arguments := map[string]string{"description": "Find the cause", "prompt": prompt(r), "subagent_type": "fold-explorer"}
		return llmstub.Reply{Calls: []llmstub.Call{{Name: "task", Arguments: jsonText(arguments)}}}, nil
	}}
}

func (opencode) note(llmstub.Message) bool { return false }
func (opencode) handedLimit() int          { return 350 }
func (opencode) named() (handed, own int) {
	return len(fixtures.Names), len(fixtures.Names)
}
func (opencode) overHTTP() bool { return false }

// check: a subagent by the definition in docs/hosts has foldgate's tools only,
// and opencode names no threads.
func (opencode) check(t *testing.T, r *hostRun, threads map[string][]string) {
	if len(threads) > 0 {
		t.Errorf("thread ids by branch: %v, want none", threads)
	}
	offered := r.stub.Requests("scout")[0].Tools
	if i := slices.IndexFunc(offered, func(name string) bool { return !strings.HasPrefix(name, "foldgate_") }); i >= 0 || len(offered) == 0 {
		t.Errorf("the subagent is offered %q, want foldgate's tools only", offered)
	}
}

func (opencode) half(text, _ string) string { return text }

func (o opencode) run(t *testing.T, r *hostRun) {
	mcp := map[string]any{}
	for name, s := range r.servers {
		mcp[name] = map[string]any{"type": "local", "command": s.command, "enabled": true}
	}
	write(t, filepath.Join(r.work, "opencode.json"), jsonText(map[string]any{
		"$schema":    "https://opencode.ai/config.json",
		"autoupdate": false, "share": "disabled", "snapshot": false, "formatter": false, "lsp": false,
		"model": "stub/model", "small_model": "stub/model", "enabled_providers": []string{"stub"},
		"provider": map[string]any{"stub": map[string]any{
			"npm": o.sdk, "name": "stub",
			"options": map[string]any{"baseURL": r.stub.URL(), "apiKey": "none"},
			"models":  map[string]any{"model": map[string]any{"name": "model", "tool_call": true, "limit": map[string]any{"context": 400000, "output": 8000}}},
		}},
		"mcp": mcp,
	}))
	root, err := testbin.Root()
	if err != nil {
		t.Fatal(err)
	}
	definition := read(t, filepath.Join(root, "docs", "hosts", "opencode", "fold-explorer.md"))
	agents := filepath.Join(r.work, ".opencode", "agents")
	if err := os.MkdirAll(agents, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(agents, "fold-explorer.md"), string(definition))
	bin := module(t, platform(t, opencodePackages)+"/bin/opencode")
	r.command(t, bin, []string{"run", "--pure", "--auto", "--title", "a test", "find why more payments fail"},
		"OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		"OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_SHARE=1")
}

// opencode reaches a foldgate that wants a token as docs/hosts.md says.
func TestOpencodeToken(t *testing.T) {
	t.Parallel()
	r := newHostRun(t)
	g := newGateway(t, principals()+fakeConfig(recordFile(t), ""))
	write(t, filepath.Join(r.work, "opencode.json"), jsonText(map[string]any{"autoupdate": false, "mcp": map[string]any{"foldgate": map[string]any{
		"type": "remote", "url": g.http(), "oauth": false, "headers": map[string]string{"Authorization": "Bearer {env:" + hostToken + "}"},
	}}}))
	r.command(t, module(t, platform(t, opencodePackages)+"/bin/opencode"), []string{"mcp", "list"}, "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_MODELS_FETCH=1")
	g.stop()
	if list := g.output("trace", "--principal", "alice", "--kind", "mcp/response:tools/list", "--format", "jsonl"); list == "" {
		t.Errorf("opencode did not get the tools as alice:\n%s", g.output("trace"))
	}
}

// opencode, once as it speaks to Anthropic and once as it speaks to servers
// that are compatible with OpenAI's.
func TestOpencode(t *testing.T) {
	t.Parallel()
	testHost(t, opencode{"@ai-sdk/anthropic"}, opencode{"@ai-sdk/openai-compatible"})
}
