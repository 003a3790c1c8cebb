//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// refusal is the JSON that a failure of foldgate itself carries.
type refusal struct {
	Error struct {
		Code       string
		Status     int
		Message    string
		RetryAfter int `json:"retry_after_seconds"`
	}
}

// refused parses a result that must be such a failure.
func refused(t *testing.T, m mcpclient.Message) refusal {
	t.Helper()
	r := parseResult(t, m)
	var f refusal
	if !r.IsError || len(r.Content) == 0 || json.Unmarshal([]byte(r.Content[0].Text), &f) != nil || f.Error.Code == "" || f.Error.Message == "" {
		t.Fatalf("result = %s, want isError and an error with code, status and message", m.Result)
	}
	return f
}

func fakeConfig(file, more string) string {
	return fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both, -record, %q]}\n%s", fakeserverBin, file, more)
}

func statusOf(t *testing.T, c *mcpclient.Client, ctx context.Context, id string) status {
	t.Helper()
	return own[status](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": id})))
}

// A budget is a hard cap: for any answer of an upstream, a branch receives no token more than it
// has, and then ends.
func TestBudgetIsACap(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fakeConfig(file, ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		const budget = 2000
		b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"too much","budget":2000}`))
		used := tokens(t, "too much")
		delivered := 0
		for i := range 60 { // results fold, and previews get shorter the less is left
			m := tool(t, c, ctx, "fake__huge", fmt.Sprintf(`{"bytes":3000,"branch_id":%q}`, b.BranchID))
			if s := statusOf(t, c, ctx, b.BranchID); s.Status != "active" {
				delivered = i
				if !parseResult(t, m).IsError {
					used += resultTokens(t, m) + tokens(t, `{"bytes":3000}`)
				}
				break
			}
			used += resultTokens(t, m) + tokens(t, `{"bytes":3000}`)
		}
		s := statusOf(t, c, ctx, b.BranchID)
		if s.Status != "failed" || s.Reason != "budget_exhausted" || s.BudgetUsed > budget {
			t.Errorf("branch_status = %+v, want failed, budget_exhausted and at most %d used", s, budget)
		}
		if used > budget {
			t.Errorf("the branch received %d tokens by an independent count, its budget is %d", used, budget)
		}
		if delivered == 0 {
			t.Errorf("the branch ended with its first call or never")
		}
		t.Logf("ended in call %d with %d of %d tokens used, %d counted independently: %d over", delivered+1, s.BudgetUsed, budget, used, max(0, used-budget))

		before := len(recordedMethod(t, file, "tools/call"))
		f := refused(t, tool(t, c, ctx, "fake__echo", fmt.Sprintf(`{"branch_id":%q}`, b.BranchID)))
		t.Logf("a later call: %d %s: %s", f.Error.Status, f.Error.Code, f.Error.Message)
		if after := len(recordedMethod(t, file, "tools/call")); after != before {
			t.Errorf("a call in the ended branch reached the upstream")
		}
		r := own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"late words"}`, b.BranchID)))
		if !r.Late || r.Message != "late words" {
			t.Errorf("branch_return after the end = %+v, want the message kept and late", r)
		}
	})
}

// A result that is far larger than the rest of the budget is cut, with a notice, and never
// delivered whole.
func TestOneResultOverBudget(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"one","budget":1000}`))
	m := tool(t, c, ctx, "fake__huge", fmt.Sprintf(`{"bytes":400000,"branch_id":%q}`, b.BranchID))
	s := statusOf(t, c, ctx, b.BranchID)
	n := resultTokens(t, m)
	if n > 1000 || s.BudgetUsed > 1000 || n == 0 {
		t.Errorf("a result of 80,000 tokens arrived with %d, status %+v; the budget is 1000", n, s)
	}
	t.Logf("%d tokens arrived, %d of %d used, %s %s", n, s.BudgetUsed, s.BudgetTotal, s.Status, s.Reason)

	b = own[created](t, tool(t, c, ctx, "branch_create", `{"description":"one","budget":60}`)) // no room for a preview
	m = tool(t, c, ctx, "fake__huge", fmt.Sprintf(`{"bytes":400000,"branch_id":%q}`, b.BranchID))
	if s := statusOf(t, c, ctx, b.BranchID); !strings.Contains(said(t, m), "cut by foldgate") || s.Digest != fmt.Sprintf("%d of 60 tokens used; 1 call (huge 1)", s.BudgetUsed) {
		t.Errorf("%.200q arrived, and the digest says %q; want the call that was cut counted as made", said(t, m), s.Digest)
	}
}

// A branch past its time ends as timeout, and its call in flight is cancelled
// at the upstream.
func TestTimeoutCancelsTheCall(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		file := recordFile(t)
		g := newGateway(t, fakeConfig(file, ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"slow","timeout_seconds":1}`))
		f := refused(t, tool(t, c, ctx, "fake__slow", fmt.Sprintf(`{"ms":50000,"branch_id":%q}`, b.BranchID)))
		t.Logf("the call in flight: %d %s: %s", f.Error.Status, f.Error.Code, f.Error.Message)
		if s := statusOf(t, c, ctx, b.BranchID); s.Status != "timeout" {
			t.Errorf("branch_status = %+v, want timeout", s)
		}
		until(t, "the upstream learns that its call is cancelled", func() bool {
			return strings.Contains(strings.Join(recorded(t, file), "\n"), "slow ended")
		})
	})
}

// Unknown, foreign and closed branch ids get one clear answer, and nothing is
// forwarded.
func TestBranchIDsThatDoNotServe(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, "folding: {session_validation: strict}\n"))
	url := g.http()
	start := func() *mcpclient.Client {
		c := g.dial(ctx, url, mcpclient.Legacy)
		call(t, c, ctx, "tools/list", `{}`)
		return c
	}
	mine, other := start(), start()
	closed := own[created](t, tool(t, mine, ctx, "branch_create", `{"description":"closed"}`)).BranchID
	own[returned](t, tool(t, mine, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, closed)))
	foreign := own[created](t, tool(t, other, ctx, "branch_create", `{"description":"foreign"}`)).BranchID

	answers := map[string]string{}
	for name, id := range map[string]string{
		"unknown": "br_2f6b1c34-9a0d-4e57-8b21-5c7d90e1f3a4", "foreign": foreign, "closed": closed,
		"malformed": "main", "empty": "br_",
	} {
		f := refused(t, tool(t, mine, ctx, "fake__echo", fmt.Sprintf(`{"branch_id":%q}`, id)))
		answers[name] = strings.ReplaceAll(fmt.Sprint(f.Error.Status, f.Error.Code, f.Error.Message), id, "ID")
		t.Logf("%-9s %d %s: %s", name, f.Error.Status, f.Error.Code, f.Error.Message)
	}
	if answers["unknown"] != answers["foreign"] {
		t.Errorf("unknown and foreign ids are told apart:\n%s\n%s", answers["unknown"], answers["foreign"])
	}
	m, err := mine.Call(ctx, "tools/call", `{"name":"fake__echo","arguments":{"branch_id":7}}`)
	if err != nil || m.Error == nil && !parseResult(t, m).IsError {
		t.Errorf("branch_id 7 = %s %s, %v", m.Result, m.Error, err)
	}
	t.Logf("a number: %s%s", m.Result, m.Error)
	if calls := recordedMethod(t, file, "tools/call"); len(calls) > 0 {
		t.Errorf("the upstream got %d calls: %s", len(calls), calls)
	}
}

// Children end before their parent, and depth is limited.
func TestNesting(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "http", mcpclient.Modern)
	call(t, c, ctx, "tools/list", `{}`)
	var ids []string
	parent := ""
	for depth := 1; depth <= 3; depth++ {
		args := map[string]any{"description": fmt.Sprint("level ", depth)}
		if parent != "" {
			args["parent_branch_id"] = parent
		}
		b := own[created](t, tool(t, c, ctx, "branch_create", jsonText(args)))
		if b.Depth != depth || b.path() != strings.Join(append(ids, b.BranchID), "/") {
			t.Errorf("branch_create at level %d = %+v", depth, b)
		}
		parent = b.BranchID
		ids = append(ids, parent)
	}
	f := refused(t, tool(t, c, ctx, "branch_create", jsonText(map[string]any{"description": "too deep", "parent_branch_id": parent})))
	t.Logf("level 4: %d %s: %s", f.Error.Status, f.Error.Code, f.Error.Message)
	own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"all done"}`, ids[0])))
	for i, id := range ids[1:] {
		if s := statusOf(t, c, ctx, id); s.Status == "active" || s.Status == "created" {
			t.Errorf("child at level %d = %+v after its ancestor returned", i+2, s)
		}
	}
}
