package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/foldgate/foldgate/"

// arrows says which packages of ours a package may import. It is the
// architecture: change it on purpose, never to fix a build.
//
//	cmd > proxy > interceptor > folding > budget
var arrows = map[string][]string{
	"internal/atomicfile":         {},
	"internal/backoff":            {},
	"internal/faults":             {},
	"internal/filelock":           {},
	"internal/globs":              {},
	"internal/jsonpath":           {},
	"internal/publicip":           {},
	"internal/mapped":             {},
	"internal/openfiles":          {},
	"internal/pollable":           {},
	"internal/rawjson":            {},
	"internal/shellword":          {},
	"internal/version":            {},
	"internal/arguments":          {"internal/rawjson"},
	"internal/sqlitedb":           {"internal/openfiles"},
	"internal/redisdb":            {"internal/backoff"},
	"internal/replicaid":          {},
	"internal/steadyclock":        {"internal/atomicfile"},
	"docs/hosts":                  {},
	"internal/hosts":              {"docs/hosts", "internal/atomicfile", "internal/hosts/spelling", "internal/rawjson"},
	"internal/hosts/spelling":     {},
	"budget/bpe":                  {},
	"budget":                      {"budget/bpe"},
	"budget/limits":               {"internal/faults", "internal/globs", "internal/mapped", "internal/redisdb", "internal/sqlitedb"},
	"folding/contextpath":         {"internal/rawjson"},
	"folding":                     {"budget", "folding/contextpath", "internal/faults", "internal/filelock", "internal/mapped", "internal/rawjson", "internal/replicaid", "internal/sqlitedb"},
	"folding/results":             {"folding", "folding/contextpath", "internal/replicaid", "internal/sqlitedb"},
	"interceptor/scrub/regexset":  {},
	"interceptor/scrub":           {"interceptor/scrub/regexset", "internal/rawjson"},
	"interceptor/trace":           {"folding/contextpath", "internal/filelock", "internal/rawjson"},
	"interceptor/trace/export":    {"interceptor/trace", "internal/atomicfile"},
	"interceptor/trace/query":     {"folding/contextpath", "interceptor/trace", "internal/rawjson", "internal/sqlitedb"},
	"interceptor/trace/render":    {"folding/contextpath", "interceptor/trace", "interceptor/trace/query", "internal/rawjson"},
	"interceptor/injection":       {"interceptor/scrub/regexset"},
	"interceptor/preview":         {"interceptor/preview/extract", "internal/rawjson"},
	"interceptor/preview/extract": {"internal/pollable"},
	"interceptor/workflow":        {"folding/contextpath", "internal/faults", "internal/jsonpath", "internal/rawjson", "internal/sqlitedb"},
	"interceptor":                 {"budget", "budget/limits", "folding", "folding/contextpath", "folding/results", "interceptor/injection", "interceptor/preview", "interceptor/scrub", "interceptor/trace", "interceptor/trace/query", "interceptor/workflow", "internal/rawjson"},
	"proxy/policy":                {"folding", "interceptor", "internal/faults", "internal/globs", "proxy/wire"},
	"proxy/config":                {"budget", "budget/limits", "folding", "interceptor", "interceptor/scrub", "interceptor/trace", "interceptor/workflow", "internal/faults", "internal/globs", "internal/hosts/spelling", "internal/publicip", "internal/shellword", "proxy/memory", "proxy/policy", "proxy/server/auth"},
	"proxy/wire":                  {"internal/rawjson"},
	"proxy/conn":                  {"interceptor", "internal/backoff", "internal/rawjson", "proxy/wire"},
	"proxy/server/auth":           {"interceptor", "internal/faults", "internal/globs", "internal/jsonpath", "internal/publicip"},
	"proxy/replicas":              {"internal/backoff", "internal/redisdb", "internal/replicaid"},
	"proxy/server":                {"interceptor", "internal/publicip", "internal/rawjson", "internal/replicaid", "proxy/replicas", "proxy/server/auth", "proxy/wire"},
	"proxy/control":               {"budget/limits", "interceptor/trace"},
	"proxy/pins":                  {"interceptor/injection", "internal/atomicfile", "internal/filelock", "internal/rawjson"},
	"proxy/console":               {"interceptor/trace", "interceptor/trace/query", "interceptor/trace/render", "internal/publicip", "internal/rawjson", "proxy/control", "proxy/pins"},
	"proxy/files":                 {"internal/arguments", "internal/rawjson", "proxy/conn", "proxy/wire"},
	"proxy/upstream":              {"interceptor/trace", "internal/atomicfile", "internal/backoff", "internal/openfiles", "internal/rawjson", "internal/version", "proxy/config", "proxy/conn", "proxy/files", "proxy/upstream/auth", "proxy/wire"},
	"proxy/upstream/auth":         {"internal/atomicfile", "internal/filelock", "internal/publicip", "internal/shellword", "internal/version", "proxy/config"},
	"proxy/bridge":                {"interceptor", "interceptor/trace", "internal/rawjson", "internal/replicaid", "proxy/conn", "proxy/wire"},
	"proxy/memory":                {"folding", "internal/faults", "internal/globs", "internal/jsonpath", "internal/rawjson", "proxy/pins"},
	"proxy/runner":                {},
	"proxy/runner/llm":            {"proxy/config", "proxy/runner", "proxy/wire"},
	"proxy/tools":                 {"budget/limits", "proxy/memory", "proxy/runner", "budget", "folding", "folding/contextpath", "folding/results", "interceptor", "interceptor/preview", "interceptor/preview/extract", "interceptor/trace", "internal/arguments", "internal/rawjson", "proxy/config", "proxy/wire"},
	"proxy/catalog":               {"interceptor", "interceptor/workflow", "internal/globs", "internal/rawjson", "proxy/config", "proxy/policy", "proxy/wire"},
	"proxy/router":                {"folding", "interceptor", "interceptor/trace", "internal/backoff", "internal/rawjson", "internal/version", "proxy/catalog", "proxy/config", "proxy/conn", "proxy/engine", "proxy/pins", "proxy/server", "proxy/tools", "proxy/upstream", "proxy/wire"},
	"proxy/engine":                {"budget", "budget/limits", "folding", "folding/contextpath", "folding/results", "interceptor", "interceptor/preview/extract", "interceptor/scrub", "interceptor/trace", "interceptor/workflow", "internal/rawjson", "internal/replicaid", "internal/sqlitedb", "internal/steadyclock", "proxy/config", "proxy/tools", "proxy/wire"},
	"proxy":                       {"budget/limits", "folding", "folding/contextpath", "interceptor", "interceptor/trace", "interceptor/trace/query", "interceptor/trace/render", "internal/rawjson", "internal/redisdb", "internal/version", "proxy/bridge", "proxy/catalog", "proxy/config", "proxy/conn", "proxy/control", "proxy/engine", "proxy/pins", "proxy/policy", "proxy/replicas", "proxy/server", "proxy/server/auth", "proxy/router", "proxy/runner/llm", "proxy/tools", "proxy/upstream", "proxy/wire", "internal/globs"},
	"cmd/foldgate":                {"budget", "folding/contextpath", "interceptor", "interceptor/preview/extract", "interceptor/scrub", "interceptor/trace", "interceptor/trace/export", "interceptor/trace/query", "interceptor/trace/render", "internal/filelock", "internal/hosts", "internal/pollable", "internal/publicip", "internal/sqlitedb", "internal/steadyclock", "internal/shellword", "internal/version", "proxy", "proxy/config", "proxy/console", "proxy/control", "proxy/engine", "proxy/pins", "proxy/policy", "proxy/upstream/auth"},
}

// only says which packages alone may import something foreign.
var only = map[string][]string{
	"github.com/modelcontextprotocol/go-sdk": {"proxy", "proxy/upstream/auth"},
	"golang.org/x/oauth2":                    {"proxy/upstream/auth"},
	"github.com/bmatcuk/doublestar":          {"internal/globs", "proxy/files"}, // names; paths
	"github.com/goccy/go-yaml":               {"proxy/config", "interceptor/preview/extract", "internal/hosts"},
	"github.com/pkoukk":                      {"budget", "budget/bpe"}, // names of models; vocabularies
	"github.com/itchyny/gojq":                {"interceptor/preview/extract"},
	"github.com/spf13/cobra":                 {"cmd/foldgate"},
	"github.com/zricethezav/gitleaks":        {"interceptor/scrub"},
	"github.com/ohler55/ojg":                 {"internal/jsonpath"},
	"github.com/lestrrat-go":                 {"proxy/server/auth", "proxy/upstream/auth"}, // signatures of JSON Web Tokens
	"github.com/openai/openai-go":            {"proxy/runner/llm"},
	"github.com/anthropics":                  {"proxy/runner/llm"},
	"github.com/tailscale/hujson":            {"internal/hosts"},
	"github.com/valkey-io":                   {"budget/limits", "internal/redisdb", "proxy/replicas"}, // scripts; the connection is internal/redisdb's
	"cel.dev/cel-go":                         {"proxy/policy"},
	"modernc.org/sqlite":                     {"internal/sqlitedb"}, // one way to open and migrate
}

func TestArrows(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := map[string]bool{}
	dec := json.NewDecoder(bytes.NewReader(out))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		if strings.HasPrefix(name, "test/") || strings.HasSuffix(name, "/gen") {
			continue // programs for tests and go generate
		}
		allowed, known := arrows[name]
		if !known {
			t.Errorf("package %s is not in the picture: give it its arrows here and in docs/design.md", name)
		}
		seen[name] = true
		for _, imp := range p.Imports {
			if ours, ok := strings.CutPrefix(imp, module); ok && !slices.Contains(allowed, ours) {
				t.Errorf("%s imports %s, which the arrows don't allow", name, ours)
			}
			for foreign, homes := range only {
				if strings.HasPrefix(imp, foreign) && !slices.Contains(homes, name) {
					t.Errorf("%s imports %s, which belongs to %s", name, imp, strings.Join(homes, " and "))
				}
			}
		}
	}
	for name := range arrows {
		if !seen[name] {
			t.Errorf("package %s is in the picture but not in the module", name)
		}
	}
}
