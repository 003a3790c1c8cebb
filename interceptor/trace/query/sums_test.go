package query

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// What is read back of a stored result counts for the call that stored it, in the index as well.
func TestSummarize(t *testing.T) {
	const branch = "br_aaaaaaaaaaaaaaaaaaaa"
	dir := t.TempDir()
	j := open(t, dir, trace.Options{})
	call := func(context, tool string, a trace.Audit) {
		a.Server, a.Tool, a.Principal = "files", tool, "alice"
		add(t, j, &trace.Record{Kind: "mcp/request:tools/call", Context: context, Audit: &trace.Audit{Server: a.Server, Tool: a.Tool, Principal: a.Principal}})
		add(t, j, &trace.Record{Kind: "mcp/response:tools/call", Context: context, Audit: &a})
	}
	call(branch, "read_file", trace.Audit{MS: 2, Tokens: &trace.Tokens{In: 5, Out: 900, Delivered: 100, Counter: "o200k_base"}, Fold: &trace.Fold{Handle: "res_1", Saved: 800}})
	call("", "read_file", trace.Audit{IsError: true, Tokens: &trace.Tokens{In: 5, Out: 20, Delivered: 20, Counter: "o200k_base"}})
	call("", "branch_read", trace.Audit{Tokens: &trace.Tokens{Out: 300, Delivered: 300, Counter: "o200k_base"}, Read: &trace.Read{Handle: "res_1", Server: "files", Tool: "read_file", Context: branch}})
	call("", "grep", trace.Audit{Tokens: &trace.Tokens{Out: 90, Delivered: 40, Counter: "o200k_base"}}) // cut at a budget
	add(t, j, &trace.Record{Kind: trace.KindPop, Context: branch, Audit: &trace.Audit{Tokens: &trace.Tokens{Freed: 70}}})
	closeJournal(t, j)
	s, err := Summarize(Select(t.Context(), dir, Filter{}), []string{"tool"}, []string{"branch", "principal"})
	if err != nil {
		t.Fatal(err)
	}
	total := Sums{Records: 9, Calls: 4, Errors: 1, In: 10, Out: 1310, Delivered: 460, Folded: 1, Stored: 900, ReadBack: 300, Saved: 500, Answers: 1, US: 2000}
	want := map[string][]*StatsRow{
		"tool": {
			{"files/read_file", Sums{Records: 4, Calls: 2, Errors: 1, In: 10, Out: 920, Delivered: 120, Folded: 1, Stored: 900, ReadBack: 300, Saved: 500, Answers: 1, US: 2000}},
			{"files/branch_read", Sums{Records: 2, Calls: 1, Out: 300, Delivered: 300}},
			{"files/grep", Sums{Records: 2, Calls: 1, Out: 90, Delivered: 40}},
			{"-", Sums{Records: 1}},
		},
		"branch,principal": {
			{branch + " alice", Sums{Records: 2, Calls: 1, In: 5, Out: 900, Delivered: 100, Folded: 1, Stored: 900, ReadBack: 300, Saved: 500, Answers: 1, US: 2000}},
			{"main alice", Sums{Records: 6, Calls: 3, Errors: 1, In: 5, Out: 410, Delivered: 360}},
			{branch + " -", Sums{Records: 1}},
		},
	}
	if d := gocmp.Diff(want, s.Tables); d != "" || s.Total != total || s.Freed != 70 || len(s.Counters) != 1 || s.From == "" || s.From > s.To {
		t.Errorf("%+v, freed %d, counters %v, from %s to %s: %s", s.Total, s.Freed, s.Counters, s.From, s.To, d)
	}
	set := indexes(t, dir)
	rows, err := set.Sums(t.Context(), SumFilter{}, "tool")
	if err != nil {
		t.Fatal(err)
	}
	saved := map[string]int64{}
	for _, r := range rows {
		saved[r.Names[0]] = r.Saved
	}
	if d := gocmp.Diff(map[string]int64{"": 0, "read_file": 500, "branch_read": 0, "grep": 0}, saved); d != "" {
		t.Errorf("the index: %s", d)
	}
}
