//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// saved is a row of foldgate stats.
type saved struct {
	Name                              string
	Calls, Results, Delivered, Folded int
	Stored, Saved                     int
	ReadBack                          int `json:"read_back"`
}

// What is read of a stored result is taken off where it was saved: at the tool
// that made it and in the branch in which it was made.
func TestStatsReadBack(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, filesConfig(resultFiles(t), "results: {main_threshold: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"look"}`))
	inBranch := handleIn(t, said(t, readFile(t, c, ctx, "app.log", b.BranchID)))
	own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":""}`, b.BranchID)))
	inMain := handleIn(t, said(t, readFile(t, c, ctx, "issues.json", "")))
	two := handleIn(t, said(t, tool(t, c, ctx, "branch_run", `{"steps":[{"tool":"files__read_file","arguments":{"path":"app.log"}},{"tool":"files__list_directory","arguments":{"path":"."}}],"grep":"FATAL"}`)))
	one := handleIn(t, said(t, tool(t, c, ctx, "branch_run", `{"tool":"files__read_file","each":[{"path":"app.log"}],"grep":"FATAL"}`)))
	read := func(handle string) int {
		return resultTokens(t, readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "1-20"}))
	}
	readBranch, readMain, readTwo, readOne := read(inBranch), read(inMain), read(two), read(one)
	g.stop()
	var s struct {
		Total                 saved
		Tools, Branches, Days []saved
	}
	if err := json.Unmarshal([]byte(g.output("stats", "--json")), &s); err != nil {
		t.Fatal(err)
	}
	row := func(rows []saved, name string) saved {
		for _, r := range rows {
			if r.Name == name {
				return r
			}
		}
		t.Errorf("no row %s in %+v", name, rows)
		return saved{}
	}
	all := readBranch + readMain + readTwo + readOne
	for _, tc := range []struct {
		what string
		row  saved
		want int
	}{
		{"files/read_file", row(s.Tools, "files/read_file"), readBranch + readMain + readOne},
		{"branch_run", row(s.Tools, "branch_run"), readTwo},
		{"branch_read", row(s.Tools, "branch_read"), 0},
		{"the branch", row(s.Branches, b.BranchID), readBranch},
		{"main", row(s.Branches, "main"), readMain},
		{"in all", s.Total, all},
	} {
		if tc.row.ReadBack != tc.want {
			t.Errorf("%s: %d tokens read back, want %d", tc.what, tc.row.ReadBack, tc.want)
		}
	}
	for name, rows := range map[string][]saved{"tools": s.Tools, "branches": s.Branches, "days": s.Days} {
		sum := 0
		for _, r := range rows {
			sum += r.Saved
		}
		if sum != s.Total.Saved || sum <= 0 {
			t.Errorf("%s saved %d together, want the total of %d", name, sum, s.Total.Saved)
		}
	}
}
