//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/test/mcpclient"
)

func statsOf(t *testing.T, g *gateway) (s query.Stats) {
	t.Helper()
	unmarshal(t, []byte(g.output("stats", "--json")), &s)
	return s
}

func rowOf(t *testing.T, rows []*query.StatsRow, name string) query.Sums {
	t.Helper()
	for _, r := range rows {
		if r.Name == name {
			return r.Sums
		}
	}
	t.Errorf("no row %s in %+v", name, rows)
	return query.Sums{}
}

// Tokens that are read from a stored result, or that a batch answers from its results, are
// subtracted from the savings of the tool and the branch that made the result.
func TestStatsReadBack(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, filesConfig(resultFiles(t), "results: {main_threshold: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"look"}`))
	inBranch := handleIn(t, said(t, readFile(t, c, ctx, "app.log", b.BranchID)))
	own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":""}`, b.BranchID)))
	inMain := handleIn(t, said(t, readFile(t, c, ctx, "issues.json", "")))
	batchOfTwo := tool(t, c, ctx, "branch_run", `{"steps":[{"tool":"files__read_file","arguments":{"path":"app.log"}},{"tool":"files__list_directory","arguments":{"path":"."}}],"grep":"FATAL"}`)
	batchOfOne := tool(t, c, ctx, "branch_run", `{"tool":"files__read_file","each":[{"path":"app.log"}],"grep":"FATAL"}`)
	two, one := handleIn(t, said(t, batchOfTwo)), handleIn(t, said(t, batchOfOne))
	read := func(handle string) int {
		return resultTokens(t, readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "1-20"}))
	}
	readBranch, readMain := read(inBranch), read(inMain)
	readTwo, readOne := read(two)+resultTokens(t, batchOfTwo), read(one)+resultTokens(t, batchOfOne)
	g.stop()
	s := statsOf(t, g)
	row := func(rows []*query.StatsRow, name string) query.Sums { return rowOf(t, rows, name) }
	all := readBranch + readMain + readTwo + readOne
	for _, tc := range []struct {
		what string
		row  query.Sums
		want int
	}{
		{"files/read_file", row(s.Tables["tool"], "files/read_file"), readBranch + readMain + readOne},
		{"branch_run", row(s.Tables["tool"], "branch_run"), readTwo},
		{"branch_read", row(s.Tables["tool"], "branch_read"), 0},
		{"the branch", row(s.Tables["branch"], b.BranchID), readBranch},
		{"main", row(s.Tables["branch"], "main"), readMain},
		{"in all", s.Total, all},
	} {
		if tc.row.ReadBack != int64(tc.want) {
			t.Errorf("%s: %d tokens read back, want %d", tc.what, tc.row.ReadBack, tc.want)
		}
	}
	for name, rows := range s.Tables {
		var sum int64
		for _, r := range rows {
			sum += r.Saved
		}
		if sum != s.Total.Saved || sum <= 0 {
			t.Errorf("%s saved %d together, want the total of %d", name, sum, s.Total.Saved)
		}
	}
}

// branch_status, foldgate stats and the index that the console reads report the same savings: less the tokens
// read back, less the answers of batches, and for each branch by itself.
func TestOneStoryOfSavings(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, filesConfig(resultFiles(t), "results: {main_threshold: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{})
	log := handleIn(t, said(t, readFile(t, c, ctx, "app.log", b.BranchID)))
	before := statusOf(t, c, ctx, b.BranchID).Folded
	readPart(t, c, ctx, map[string]any{"handle": log, "lines": "1-20"}) // charged to the branch of the result
	if after := statusOf(t, c, ctx, b.BranchID).Folded; before == "" || after == before {
		t.Errorf("branch_status says %q before a read and %q after it, want less saved", before, after)
	}
	tool(t, c, ctx, "branch_run", jsonText(map[string]any{"tool": "files__read_file", "each": []any{map[string]any{"path": "issues.json"}, map[string]any{"path": "app.log"}}, "grep": "FATAL", "branch_id": b.BranchID}))
	// A host's own sub-context is the branch's, a branch below is not.
	call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"files__read_file","arguments":{"path":"issues.json","branch_id":%q},"_meta":{"io.github.foldgate/context":"analysis"}}`, b.BranchID))
	below := create(t, c, ctx, map[string]any{"parent_branch_id": b.BranchID})
	handleIn(t, said(t, readFile(t, c, ctx, "issues.json", below.BranchID)))
	own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, b.BranchID)))
	readPart(t, c, ctx, map[string]any{"handle": log, "lines": "1-10"}) // in main, of the branch's result
	says := map[string]string{b.BranchID: "", b.BranchID + "/" + below.BranchID: ""}
	for path := range says {
		says[path] = statusOf(t, c, ctx, path[strings.LastIndexByte(path, '/')+1:]).Folded
	}
	g.stop()
	s := statsOf(t, g)
	for path, said := range says {
		r := rowOf(t, s.Tables["branch"], path)
		results := "results"
		if r.Folded == 1 {
			results = "result"
		}
		if want := fmt.Sprintf("%d %s folded, %d tokens saved", r.Folded, results, r.Saved); said != want || r.Saved <= 0 {
			t.Errorf("branch_status of %s says %q, foldgate stats %q", path, said, want)
		}
	}
	if r := rowOf(t, s.Tables["branch"], b.BranchID); r.Folded != 4 {
		t.Errorf("%d results folded in the branch, want 4", r.Folded)
	}
	set, err := query.OpenAll(ctx, []string{filepath.Join(g.dir, "state", "trace")})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	if err := set.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	rows, err := set.Sums(ctx, query.SumFilter{}, "server", "tool")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows { // as the console shows them
		name := strings.TrimPrefix(strings.Join(r.Names, "/"), "/")
		if r.Saved != 0 && r.Saved != rowOf(t, s.Tables["tool"], name).Saved {
			t.Errorf("the index says that %s saved %d tokens: %+v", name, r.Saved, s.Tables["tool"])
		}
	}
}
