package catalog_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/tools"
)

// definitions are the stored lists of eight real servers.
const definitions = "../../test/definitions"

// realTools returns the merged list of the eight servers.
func realTools(t testing.TB) *catalog.Catalog { return toolsIn(t, definitions) }

// toolsIn returns the merged list of the servers with a file in dir.
func toolsIn(t testing.TB, dir string) *catalog.Catalog {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files in %s, err %v", len(files), dir, err)
	}
	cfg := config.Default()
	cfg.Upstreams = map[string]*config.Upstream{}
	lists := make([]*catalog.List, len(files))
	for i, file := range files { // sorted, as the keys are
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Upstreams[strings.TrimSuffix(filepath.Base(file), ".json")] = &config.Upstream{}
		lists[i] = &catalog.List{}
		lists[i].AddPage(data, catalog.Tools)
	}
	cfg.Tools.Mode = config.ModeAuto
	return catalog.NewRules(cfg, append(tools.Definitions(cfg.Folding, false), tools.SearchDefinitions()...)).Merge(catalog.Tools, lists)
}

// What a model reads of the eight servers' definitions, in each mode.
func TestCostOfModes(t *testing.T) {
	all, counter := realTools(t), testCounter(t)
	list, search := all.Listed(false).Tokens(counter.CountBytes), all.Listed(true).Tokens(counter.CountBytes)
	t.Logf("%d tools cost %d tokens in a list, and %d to search", len(all.Order)-7, list, search)
	found := 0
	for _, shown := range find(all, "open a pull request")[:5] {
		e, _ := all.Lookup(shown)
		found += counter.CountBytes(e.Readable())
	}
	t.Logf("an answer has %d tokens of definitions", found)
	if list < 20_000 || search > 850 || found > 3000 {
		t.Error("a list of that many tools should be worth a search")
	}
}

func testCounter(t *testing.T) *budget.Counter {
	t.Helper()
	c, err := budget.NewCounter("o200k_base")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Plain descriptions of real tools find them: five of each of 109, and two of each of 60 for which no weight
// of the search was chosen.
func TestFindsRealTools(t *testing.T) {
	for _, set := range []struct {
		dir                string
		tools, each        int
		first, five, named int
	}{
		{definitions, 109, 5, 410, 510, 545},
		{filepath.Join(definitions, "heldout"), 60, 2, 80, 108, 120},
	} {
		all := toolsIn(t, set.dir)
		text, err := os.ReadFile(filepath.Join(set.dir, "descriptions.txt"))
		if err != nil {
			t.Fatal(err)
		}
		blocks := strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:]
		if len(blocks) != len(all.Order)-7 || len(blocks) != set.tools {
			t.Fatalf("%d tools are described, of %d, want %d", len(blocks), len(all.Order)-7, set.tools)
		}
		first, five, most, named, others := 0, 0, 0, 0, 0
		for _, block := range blocks {
			lines := strings.Split(block, "\n")
			if len(lines) != 1+set.each {
				t.Errorf("%s has %d descriptions, want %d", lines[0], len(lines)-1, set.each)
			}
			for _, description := range lines[1:] {
				names, fit, vague := all.Search(description, "")
				rest := names[min(15, fit):]
				if rest = rest[:min(30, len(rest))]; vague {
					rest = names[min(15, fit):min(115, len(names))]
				}
				switch at := slices.Index(names, lines[0]); {
				case at == 0 && at < fit:
					first++
					fallthrough
				case at >= 0 && at < min(5, fit):
					five++
					fallthrough
				case at >= 0 && at < min(15, fit):
					most++
					fallthrough
				case slices.Contains(rest, lines[0]):
					named++
				}
				if at := slices.Index(names[:fit], lines[0]); at < 0 || at >= 5 {
					t.Logf("%-45s %3d of %3d: %-60s %v", lines[0], at+1, fit, description, names[:min(5, fit)])
				}
				others += len(rest)
			}
		}
		t.Logf("%s: of %d descriptions, %d find their tool first, %d among the 5 with a schema, %d among the 15 that are described, %d among all that an answer names; it names %d more", set.dir, set.tools*set.each, first, five, most, named, others/(set.tools*set.each))
		if first < set.first || five < set.five || named < set.named {
			t.Error("the search finds less than it did")
		}
	}
}

// The same query finds the same, in the same order; names in any spelling are found first.
func TestFindIsDeterministic(t *testing.T) {
	all := realTools(t)
	const query = "create or update a file with a list of changes"
	want := find(all, query)
	for range 20 {
		if got := find(realTools(t), query); !slices.Equal(got, want) {
			t.Fatalf("found %v, then %v", want, got)
		}
	}
	for query, want := range map[string]string{
		"github__create_pull_request": "github__create_pull_request",
		"createPullRequest":           "github__create_pull_request",
		"git-worktree":                "git__git_worktree",
		"list_directory_with_sizes":   "filesystem__list_directory_with_sizes",
		"DIRECTORY TREE":              "filesystem__directory_tree",
	} {
		if got := find(all, query); len(got) == 0 || got[0] != want {
			t.Errorf("%s finds %v", query, got[:min(len(got), 3)])
		}
	}
	if got := find(all, "the of a, \xff \u2028"); len(got) > 0 {
		t.Errorf("no words find %v", got)
	}
}

// Any words are found without a fault, and each tool at most once.
func FuzzFind(f *testing.F) {
	all := realTools(f)
	f.Add("read a file")
	f.Add("ing ed s ies sses ion er\x00 İ ﬃ ẞs")
	f.Fuzz(func(t *testing.T, query string) {
		found := find(all, query)
		slices.Sort(found)
		if len(slices.Compact(found)) != len(found) {
			t.Errorf("%q finds a tool twice", query)
		}
	})
}

// A list that hosts get to search has no tool of a server, whatever the servers list, but for those of
// tools.always. Without a search the list is whole.
func TestListed(t *testing.T) {
	own := []json.RawMessage{json.RawMessage(`{"name":"branch_create"}`), json.RawMessage(`{"name":"find_tools"}`), json.RawMessage(`{"name":"call_tool"}`)}
	list := func(mode string, always []string, items string) *catalog.Catalog {
		cfg := config.Default()
		cfg.Tools = config.Tools{Mode: mode, Always: always, AutoTokens: 1}
		var l catalog.List
		l.AddPage([]byte(`{"tools":[`+items+`],"ttlMs":7}`), catalog.Tools)
		return catalog.NewRules(cfg, own).Merge(catalog.Tools, []*catalog.List{&l})
	}
	const one, two = `{"name":"a","inputSchema":{}}`, `{"name":"a","inputSchema":{}},{"name":"b","inputSchema":{}}`
	for _, tt := range []struct {
		mode   string
		always []string
		search bool
		want   string
	}{
		{"list", nil, false, "branch_create find_tools call_tool files__a files__b"},
		{"auto", nil, false, "branch_create files__a files__b"},
		{"auto", nil, true, "branch_create find_tools call_tool"},
		{"search", nil, true, "branch_create find_tools call_tool"},
		{"search", []string{"*__b"}, true, "branch_create find_tools call_tool files__b"},
	} {
		listed := list(tt.mode, tt.always, two).Listed(tt.search)
		if got := strings.Join(listed.Order, " "); got != tt.want {
			t.Errorf("%s %v lists %s", tt.mode, tt.always, got)
		}
		for _, modern := range []bool{false, true} {
			if tt.search && tt.always == nil && !bytes.Equal(listed.Result(modern), list(tt.mode, nil, one).Listed(true).Result(modern)) {
				t.Errorf("%s: the list depends on the servers", tt.mode)
			}
		}
	}
	if found := find(list("search", nil, two), "find tools branch"); len(found) > 0 {
		t.Errorf("foldgate's own are found: %v", found)
	}
}

// A model reads name, description and schema: no title, no icons, and not the branch_id that call_tool has.
func TestReadable(t *testing.T) {
	var l catalog.List
	l.AddPage([]byte(`{"tools":[{"icons":[{"src":"data:x"}],"title":"T","name":"a","_meta":{"m":1},"description":"d","annotations":{},
		"inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":1.0}}}}]}`), catalog.Tools)
	e, _ := catalog.NewRules(config.Default(), nil).Merge(catalog.Tools, []*catalog.List{&l}).Lookup("files__a")
	const want = `{"name":"files__a","description":"d","inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":1.0}}}}`
	if got := string(e.Readable()); got != want {
		t.Errorf("found as %s", got)
	}
	if got := string(catalog.Readable(e.Shown)); !strings.Contains(got, `"branch_id"`) || strings.Contains(got, "icons") || strings.Contains(got, "title") {
		t.Errorf("listed as %s", got)
	}
}

// find returns the names of the tools that fit a query, the best first.
func find(c *catalog.Catalog, query string) []string {
	names, fit, _ := c.Search(query, "")
	return names[:fit]
}
