//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// sameJSON compares values; numbers by their digits.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	return reflect.DeepEqual(decode(t, a), decode(t, b))
}

// decode returns the value of a JSON text, with numbers as they are written.
func decode(t *testing.T, text string) any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("%.300q: %v", text, err)
	}
	return v
}

// items returns the items of a list by name or URI, without foldgate's changes: the branch_id
// added to schemas, the missing outputSchema and the prefix.
func items(t *testing.T, list json.RawMessage, prefix string) map[string]any {
	t.Helper()
	found := map[string]any{}
	root := decode(t, string(list)).(map[string]any)
	if inner, ok := root["result"].(map[string]any); ok {
		root = inner
	}
	for key, value := range root {
		entries, ok := value.([]any)
		if !ok || !slices.Contains([]string{"tools", "prompts", "resources", "resourceTemplates"}, key) {
			continue
		}
		for _, e := range entries {
			item := e.(map[string]any)
			id, _ := item["uri"].(string)
			if name, _ := item["name"].(string); key == "tools" || key == "prompts" {
				own, has := strings.CutPrefix(name, prefix)
				if !has {
					continue
				}
				item["name"], id = own, own
			} else if key == "resourceTemplates" {
				id, _ = item["uriTemplate"].(string)
			}
			delete(item, "outputSchema") // not listed where results may be folded
			if schema, ok := item["inputSchema"].(map[string]any); ok {
				if properties, ok := schema["properties"].(map[string]any); ok {
					delete(properties, "branch_id")
				}
			}
			found[id] = item
		}
	}
	return found
}

// forEra removes from a legacy host's view the parts that a modern host does not see. The
// Inspector's modern client drops execution, which that revision no longer has. server-everything
// shows get-roots-list only to clients that declare roots, which is deprecated there.
func forEra(modern bool, items map[string]any) map[string]any {
	if modern {
		delete(items, "get-roots-list")
		for _, item := range items {
			delete(item.(map[string]any), "execution")
		}
	}
	return items
}

// sameItems checks that everything in want is in got, unchanged.
func sameItems(t *testing.T, what string, got, want map[string]any) {
	t.Helper()
	if len(want) == 0 {
		t.Errorf("%s: the server itself lists nothing", what)
	}
	for id, item := range want {
		if !reflect.DeepEqual(got[id], item) {
			t.Errorf("%s: %s is\n%v\nwant\n%v", what, id, got[id], item)
		}
	}
	t.Logf("%s: %d items as the server itself lists them", what, len(want))
}

// Servers from npm stand behind the gateway, and the Inspector's command line in front of it. It
// lists, calls, gets and reads the same as from the servers themselves.
func TestNPM(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "note.txt"), "a note of 17 bytes")
	bin := node(t)
	filesystem := []string{bin, module(t, filesystemJS), dir}
	everything := []string{bin, module(t, everythingJS), "stdio"}
	config := fmt.Sprintf("upstreams:\n  fs: {command: %s}\n  every: {command: %s}\n  remote: {url: %q}\n"+wholeResults,
		jsonText(filesystem), jsonText(everything), everythingHTTP(t))
	g := newGateway(t, config)
	url := []string{g.http(), "--transport", "http"}
	// The Inspector has a --config of its own; foldgate finds its file by itself.
	stdio := []string{foldgateBin, "run", "--cwd", g.dir}

	direct := map[string]json.RawMessage{}
	lists := []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"}
	for _, method := range lists {
		direct[method] = inspector(t, everything, "--method", method)
	}
	fsTools := inspector(t, filesystem, "--method", "tools/list")
	requests := [][]string{
		{"--method", "tools/call", "--tool-name", "every__echo", "--tool-arg", "message=hello"},
		{"--method", "tools/call", "--tool-name", "remote__get-sum", "--tool-arg", "a=19", "b=23"},
		{"--method", "tools/call", "--tool-name", "remote__get-structured-content", "--tool-arg", "location=New York"},
		{"--method", "tools/call", "--tool-name", "every__get-tiny-image"},
		{"--method", "prompts/get", "--prompt-name", "every__args-prompt", "--prompt-args", "city=Oslo"},
		{"--method", "resources/read", "--uri", "demo://resource/static/document/architecture.md"},
	}
	var answers []any
	for _, request := range requests {
		own := slices.Clone(request)
		for i := range own {
			own[i] = strings.TrimPrefix(strings.TrimPrefix(own[i], "every__"), "remote__")
		}
		answers = append(answers, decode(t, string(inspector(t, everything, own...))))
	}
	for _, host := range []struct {
		name   string
		target []string
		modern bool
	}{
		{"http-legacy", append(url, "--protocol-era", "legacy"), false},
		{"http-modern", append(url, "--protocol-era", "modern"), true},
		{"stdio-legacy", stdio, false},
	} {
		t.Run(host.name, func(t *testing.T) {
			for _, method := range lists {
				through := inspector(t, host.target, "--method", method)
				for _, prefix := range []string{"every__", "remote__"} {
					sameItems(t, method+" "+prefix, items(t, through, prefix), forEra(host.modern, items(t, direct[method], "")))
				}
				if method == "tools/list" {
					sameItems(t, method+" fs__", items(t, through, "fs__"), forEra(host.modern, items(t, fsTools, "")))
				}
			}
			for i, request := range requests {
				got := decode(t, string(inspector(t, host.target, request...))).(map[string]any)
				if host.modern {
					// Every modern result of these says how it may be cached.
					delete(got["result"].(map[string]any), "ttlMs")
					delete(got["result"].(map[string]any), "cacheScope")
				}
				if !reflect.DeepEqual(got, answers[i]) {
					t.Errorf("%s =\n%.500v\nwant\n%.500v", strings.Join(request, " "), got, answers[i])
				}
			}
			got := inspector(t, host.target, "--method", "tools/call", "--tool-name", "fs__read_text_file", "--tool-arg", "path="+filepath.Join(dir, "note.txt"))
			if !strings.Contains(string(got), "a note of 17 bytes") {
				t.Errorf("fs__read_text_file = %s", got)
			}
		})
	}
}

// wholeResults turns folding off, so that results and output schemas can be
// compared with the server's own.
const wholeResults = "results: {tools: {\"*\": {fold: off}}}\n"

// The main job through servers that we did not write.
func TestNPMBranch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range 3 {
		write(t, filepath.Join(dir, fmt.Sprint(i, ".txt")), strings.Repeat(fmt.Sprintf("line of file %d\n", i), 200))
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fs: {command: %s}\n"+wholeResults, jsonText([]string{node(t), module(t, filesystemJS), dir})))
	ctx := testContext(t)
	c := g.connect(ctx, "http", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"read","prompt":"three files","budget":16384}`))
	used := tokens(t, "read\nthree files")
	for i := range 3 {
		path := filepath.Join(dir, fmt.Sprint(i, ".txt"))
		m := tool(t, c, ctx, "fs__read_text_file", jsonText(map[string]any{"branch_id": b.BranchID, "path": path}))
		disk := read(t, path)
		if got := parseResult(t, m).Content[0].Text; got != string(disk) {
			t.Errorf("file %d differs: %.200q", i, got)
		}
		used += resultTokens(t, m) + tokens(t, jsonText(map[string]any{"path": path}))
	}
	if r := own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"read"}`, b.BranchID))); r.TokensUsed != used {
		t.Errorf("tokens_used = %d, an independent count gives %d", r.TokensUsed, used)
	}
}
