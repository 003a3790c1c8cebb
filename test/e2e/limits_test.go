//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// limited is the configuration of a gateway with one fake server and limits.
func limited(t *testing.T, limits string, more ...string) string {
	t.Helper()
	return fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 10000, max_concurrent_per_session: 1000, max_concurrent_per_instance: 1000}\n"+
		"budgets:\n  limits:\n"+limits+strings.Join(more, ""))
}

type limitRefusal struct {
	Error struct {
		Code, Message string
		Status        int
		RetryAfter    int `json:"retry_after_seconds"`
	}
}

// spender calls tools, and sums up what its host sent and received.
type spender struct {
	c     *mcpclient.Client
	spent atomic.Int64
}

// call calls a tool. It returns the refusal of a limit, whose text is free.
func (s *spender) call(ctx context.Context, name, args, branch string) (text string, refused *limitRefusal, err error) {
	with := args
	if branch != "" {
		with = strings.TrimSuffix(args, "}") + `,"branch_id":"` + branch + `"}`
	}
	m, err := s.c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, name, with))
	if err != nil {
		return "", nil, err
	}
	var r toolResult
	if err := json.Unmarshal(m.Result, &r); err != nil || len(r.Content) != 1 {
		return "", nil, fmt.Errorf("no result: %s%s", m.Result, m.Error)
	}
	text = r.Content[0].Text
	if r.IsError {
		refused = &limitRefusal{}
		if err := json.Unmarshal([]byte(text), refused); err != nil || refused.Error.Code == "" {
			return "", nil, fmt.Errorf("a failure: %s", text)
		}
		if strings.Contains(refused.Error.Message, "was not made") {
			return "", refused, nil
		}
		text = ""
	}
	enc, err := encoding()
	if err != nil {
		return "", nil, err
	}
	s.spent.Add(int64(len(enc.EncodeOrdinary(args)) + len(enc.EncodeOrdinary(text))))
	return text, refused, nil
}

// leftOf returns what branch_status says that a limit has left.
func leftOf(t *testing.T, c *mcpclient.Client, ctx context.Context, limit string) int {
	t.Helper()
	var out struct {
		Limits []struct {
			Limit      string
			TokensLeft int `json:"tokens_left"`
		}
	}
	m := tool(t, c, ctx, "branch_status", `{"session_id":"none"}`)
	if err := json.Unmarshal([]byte(said(t, m)), &out); err != nil {
		t.Fatal(err)
	}
	for _, l := range out.Limits {
		if l.Limit == limit {
			return l.TokensLeft
		}
	}
	t.Fatalf("branch_status does not show limit %s: %s", limit, m.Result)
	return 0
}

// A limit on main makes an agent open branches: what main received is within the limit to the token,
// the refusal says what to do, and branches go on. A return always ends its branch.
func TestLimitOfMain(t *testing.T) {
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		const limit = 3000
		g := newGateway(t, limited(t, "    - {name: main, match: {context: main}, per: session, tokens: 3k}\n"))
		c := g.connect(ctx, transport, era)
		s := spender{c: c}
		var refused *limitRefusal
		for i := 0; refused == nil && i < 40; i++ {
			var err error
			if _, refused, err = s.call(ctx, "fake__text", `{"text":"@@","fill":250}`, ""); err != nil {
				t.Fatal(err)
			}
		}
		if n := s.spent.Load(); refused == nil || n > limit || n < limit-250 {
			t.Fatalf("main of %d received %d: %+v", limit, n, refused)
		}
		if e := refused.Error; e.Code != "limit_exceeded" || e.Status != 429 || !strings.Contains(e.Message, "limit main ") || !strings.Contains(e.Message, "branch_create") {
			t.Errorf("the refusal = %+v", e)
		}
		stateless := era == mcpclient.Modern
		if (refused.Error.RetryAfter > 0) != stateless {
			t.Errorf("retry after %d s", refused.Error.RetryAfter)
		}
		for range 40 { // also the last tokens, and then none
			if _, refused, err := s.call(ctx, "fake__text", `{}`, ""); err != nil {
				t.Fatal(err)
			} else if refused != nil {
				break
			}
		}
		if n := s.spent.Load(); n > limit {
			t.Errorf("main of %d received %d", limit, n)
		}
		b := create(t, c, ctx, map[string]any{"budget": 20000}).BranchID
		in := spender{c: c}
		for range 10 {
			if _, refused, err := in.call(ctx, "fake__text", `{"text":"@@","fill":500}`, b); err != nil || refused != nil {
				t.Fatal(err, refused)
			}
		}
		done := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(t, map[string]any{"branch_id": b, "message": strings.Repeat("zebra ", 2000) + "lion"})))
		if !done.Success || zebras([]byte(done.Message)) > 0 {
			t.Errorf("a return to main, which has nothing left: %+v", done)
		}
		if st := statusOf(t, c, ctx, b); st.Status != "completed" {
			t.Errorf("the branch is %s", st.Status)
		}
		h := handleIn(t, done.Message)
		b = create(t, c, ctx, map[string]any{"handles": []string{h}, "budget": 20000}).BranchID
		if text, refused, err := in.call(ctx, "branch_read", `{"handle":"`+h+`","grep":"lion"}`, b); err != nil || !strings.Contains(text, "lion") {
			t.Errorf("the message in a branch: %q %v %v", text, refused, err)
		}
		if stateless && transport == "http" { // connecting anew lifts nothing
			again := spender{c: mcpclient.HTTP(g.url, era)}
			if _, err := again.c.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if _, refused, err := again.call(ctx, "fake__text", `{"text":"@@","fill":250}`, ""); err != nil || refused == nil {
				t.Errorf("a new connection: %v %v", refused, err)
			}
			_ = again.c.Close()
		}
		g.stop()
		kinds := map[string]int{}
		for _, r := range traceAs[struct {
			Kind  string
			Audit struct {
				Decision struct{ Result, Reason, Rule string }
			}
		}](g) {
			if strings.HasPrefix(r.Kind, "budget/") {
				kinds[r.Kind]++
			}
			if d := r.Audit.Decision; d.Reason == "resource_limit" && d.Rule != "main" {
				t.Errorf("%s: the rule is %+v", r.Kind, d)
			}
		}
		if kinds["budget/near"] != 1 || kinds["budget/refused"] != 1 || len(kinds) != 2 {
			t.Errorf("crossings: %v", kinds)
		}
	})
}

// At the edge of a limit a large result arrives as a preview in what is left.
func TestPreviewAtTheEdge(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 2000, window: 1d}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	s := spender{c: c}
	previews := 0
	for range 30 {
		text, refused, err := s.call(ctx, "fake__huge", `{"bytes":30000}`, "")
		if err != nil {
			t.Fatal(err)
		}
		if refused != nil {
			break
		}
		if handleForm.MatchString(text) {
			previews++
		} else if !strings.Contains(text, "[cut by foldgate: limit all of 2000 tokens exhausted until ") {
			t.Errorf("%.200q", text)
		}
	}
	if n, left := int(s.spent.Load()), leftOf(t, c, ctx, "all"); previews < 2 || n+left != 2000 {
		t.Errorf("%d previews, %d tokens received and %d left of 2000", previews, n, left)
	}
}

// Above a limit with the action fold results arrive as previews; one with warn is only recorded.
func TestLimitsThatFoldAndWarn(t *testing.T) {
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: f, per: all, tokens: 1000, window: 1d, action: fold}\n    - {name: w, per: all, calls: 2, window: 1d, action: warn}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	s := spender{c: c}
	var folded []bool
	for range 5 {
		text, refused, err := s.call(ctx, "fake__huge", `{"bytes":4000}`, "")
		if err != nil || refused != nil {
			t.Fatal(err, refused)
		}
		folded = append(folded, handleForm.MatchString(text))
	}
	if fmt.Sprint(folded) != "[false false true true true]" {
		t.Errorf("folded: %v", folded)
	}
	g.stop()
	kinds := map[string]int{}
	for _, r := range g.trace() {
		if strings.HasPrefix(r.Kind, "budget/") {
			kinds[r.Kind]++
		}
	}
	if kinds["budget/over"] != 2 {
		t.Errorf("crossings: %v", kinds)
	}
}

// 64 callers of a principal spend a limit at the same time: what all received is the limit, to the
// token. Another principal is not concerned.
func TestLimitIsExact(t *testing.T) {
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			const limit = 60000
			g := newGateway(t, principals()+limited(t, "    - {name: each, per: principal, tokens: 60k, window: 1d}\n"))
			url := g.http()
			var all []*spender
			for range 8 {
				all = append(all, &spender{c: g.as(t, url, era, "alice")})
			}
			spendAll(t, ctx, all)
			var sum int64
			for _, s := range all {
				sum += s.spent.Load()
			}
			if left := leftOf(t, all[0].c, ctx, "each"); sum+int64(left) != limit || left > 300 {
				t.Errorf("%d received, %d left of %d", sum, left, limit)
			}
			bob := spender{c: g.as(t, url, era, "bob")}
			if _, refused, err := bob.call(ctx, "fake__text", `{"text":"x"}`, ""); err != nil || refused != nil {
				t.Error(err, refused)
			}
		})
	}
}

// spendAll lets 64 callers call until each was refused.
func spendAll(t *testing.T, ctx context.Context, all []*spender) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 64 {
		s := all[i%len(all)]
		wg.Go(func() {
			for n := i; ; n++ {
				_, refused, err := s.call(ctx, "fake__text", fmt.Sprintf(`{"text":"@@","fill":%d}`, 1+n*37%300), "")
				if err != nil {
					t.Error(err)
				}
				if err != nil || refused != nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// Two processes on one state directory share the limits.
func TestLimitOfTwoProcesses(t *testing.T) {
	ctx := testContext(t)
	const limit = 60000
	g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 60k, window: 1d}\n"))
	all := []*spender{{c: g.connect(ctx, "stdio", mcpclient.Legacy)}, {c: g.connect(ctx, "stdio", mcpclient.Modern)}}
	spendAll(t, ctx, all)
	sum := all[0].spent.Load() + all[1].spent.Load()
	if left := leftOf(t, all[0].c, ctx, "all"); sum+int64(left) != limit || left > 300 {
		t.Errorf("%d received, %d left of %d", sum, left, limit)
	}
}
