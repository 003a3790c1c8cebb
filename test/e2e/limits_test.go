//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/redistest"
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
	unmarshal(t, []byte(said(t, m)), &out)
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
	t.Parallel()
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
		if made := strings.Contains(refused.Error.Message, "was made"); (refused.Error.RetryAfter > 0) != (stateless && !made) {
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
		done := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b, "message": strings.Repeat("zebra ", 2000) + "lion"})))
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
			startHost(t, ctx, again.c)
			if _, refused, err := again.call(ctx, "fake__text", `{"text":"@@","fill":250}`, ""); err != nil || refused == nil {
				t.Errorf("a new connection: %v %v", refused, err)
			}
			_ = again.c.Close()
		}
		g.stop()
		kinds, blocked := map[string]int{}, 0
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
			} else if d.Result == "blocked" && strings.HasPrefix(r.Kind, "mcp/response") {
				blocked++
			}
		}
		var sums struct{ Total struct{ Blocked int } }
		unmarshal(t, []byte(g.output("stats", "--json")), &sums)
		if listed := len(g.trace("--blocked", "--rule", "ma*")); blocked == 0 || sums.Total.Blocked != blocked || listed != blocked {
			t.Errorf("stats count %d refusals, trace lists %d; %d calls were refused", sums.Total.Blocked, listed, blocked)
		}
		if kinds["budget/near"] != 1 || kinds["budget/refused"] != 1 || len(kinds) != 2 {
			t.Errorf("crossings: %v", kinds)
		}
	})
}

// At the edge of a limit a large result arrives as a preview in what is left.
func TestPreviewAtTheEdge(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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

// exactly waits until what callers of several processes received, and what the limit has left, are the
// limit: a process gives back what it has in reserve after 100 ms.
func exactly(t *testing.T, ctx context.Context, c *mcpclient.Client, name string, received, limit int64) {
	t.Helper()
	until(t, fmt.Sprintf("%d received of %d, the rest is left", received, limit), func() bool {
		left := int64(leftOf(t, c, ctx, name))
		return left <= 300 && received+left == limit
	})
}

// Two processes on one state directory share the limits.
func TestLimitOfTwoProcesses(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const limit = 60000
	g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 60k, window: 1d}\n"))
	all := []*spender{{c: g.connect(ctx, "stdio", mcpclient.Legacy)}, {c: g.connect(ctx, "stdio", mcpclient.Modern)}}
	spendAll(t, ctx, all)
	sum := all[0].spent.Load() + all[1].spent.Load()
	exactly(t, ctx, all[0].c, "all", sum, limit)
}

// Whatever a server sends, by result, error, question or notification: no more of it is delivered
// than a limit has, and what is delivered is charged. In main and in a branch.
func TestEveryMessageIsLimited(t *testing.T) {
	t.Parallel()
	const limit = 1500
	all := fmt.Sprintf("    - {name: all, per: all, tokens: %d, window: 1w}\n", limit)
	ofTool := fmt.Sprintf("    - {name: tool, match: {tool: \"fake__*\"}, per: tool, tokens: %d, window: 1w}\n", limit)
	for _, tt := range []struct{ name, method, params string }{
		{"text", "tools/call", `{"name":"fake__text","arguments":{"text":"@@"BRANCH}}`},
		{"failure", "tools/call", `{"name":"fake__raw","arguments":{"result":{"resultType":"complete","content":[{"type":"text","text":"@@"}],"isError":true}BRANCH}}`},
		{"structured", "tools/call", `{"name":"fake__raw","arguments":{"result":{"resultType":"complete","content":[],"structuredContent":{"x":"@@"}}BRANCH}}`},
		{"image", "tools/call", `{"name":"fake__raw","arguments":{"result":{"resultType":"complete","content":[{"type":"image","data":"AAAA","mimeType":"image/png","alt":"@@"}]}BRANCH}}`},
		{"asks", "tools/call", `{"name":"fake__raw","arguments":{"result":{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"@@"}}}}BRANCH}}`},
		{"error", "tools/call", `{"name":"fake__raw","arguments":{"error":{"code":-32000,"message":"@@"}BRANCH}}`},
		{"log", "tools/call", `{"name":"fake__log","arguments":{"params":{"level":"error","data":"@@"}BRANCH}}`},
		{"progress", "tools/call", `{"name":"fake__progress","arguments":{"count":1,"text":"@@"BRANCH}}`},
		{"unknown", "tools/call", `{"name":"fake__unknown","arguments":{"params":{"x":"@@"}BRANCH}}`},
		{"elicit", "tools/call", `{"name":"fake__elicit","arguments":{"params":{"message":"@@","requestedSchema":{"type":"object","properties":{}}}BRANCH}}`},
		{"sample", "tools/call", `{"name":"fake__sample","arguments":{"params":{"messages":[{"role":"user","content":{"type":"text","text":"@@"}}],"maxTokens":10}BRANCH}}`},
	} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			for _, inBranch := range []bool{false, true} {
				for _, one := range []struct {
					limit string
					fills []int
				}{{all, []int{200, 20000}}, {ofTool, []int{20000}}} {
					if one.limit == ofTool && inBranch {
						continue
					}
					t.Run(fmt.Sprintf("%s-%s-%v-%v", tt.name, era, inBranch, one.limit == ofTool), func(t *testing.T) {
						t.Parallel()
						ctx := testContext(t)
						g := newGateway(t, limited(t, one.limit))
						c := g.answering(ctx, era)
						call(t, c, ctx, "tools/list", `{}`)
						branch := ""
						if inBranch {
							branch = `,"branch_id":"` + create(t, c, ctx, map[string]any{"budget": 32768}).BranchID + `"`
						}
						gotBefore, usedBefore := 0, 0
						for _, fill := range one.fills {
							params := strings.TrimSuffix(strings.Replace(tt.params, "BRANCH", fmt.Sprintf(`,"fill":%d`, fill)+branch, 1), "}") +
								`,"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"debug"}}`
							if m, err := c.Call(ctx, tt.method, params); err != nil {
								t.Fatal(err, m)
							}
							got := zebras(c.Received()...)
							if one.limit == ofTool {
								if got > limit {
									t.Errorf("%d tokens of the tool received, its limit is %d", got, limit)
								}
								continue
							}
							used := limit - leftOf(t, c, ctx, "all")
							if got-gotBefore > used-usedBefore+freeTokens || got > limit {
								t.Errorf("%d and then %d tokens received, %d and then %d charged of %d", gotBefore, got-gotBefore, usedBefore, used-usedBefore, limit)
							}
							if image := tt.name == "image" || tt.name == "unknown"; fill < limit && got < fill && !image {
								t.Errorf("%d of %d arrived, %d charged", got, fill, used)
							}
							gotBefore, usedBefore = got, used
						}
					})
				}
			}
		}
	}
}

// What is read of a stored result counts for the tool and the server that made it: by pages, by
// batches, in main and in a branch. A rebuild counts it too.
func TestWhatIsReadOfATool(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]string{
		"tool": `match: {tool: "fake__*"}, per: all`, "each": `match: {server: fake}, per: tool`, "server": `match: {server: fake}, per: server`,
	} {
		for _, how := range []string{"pages", "batch", "batch of two tools"} {
			for _, inBranch := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s-%s-%v", name, how, inBranch), func(t *testing.T) {
					t.Parallel()
					ctx := testContext(t)
					const limit = 1500
					config := limited(t, fmt.Sprintf("    - {name: made, %s, tokens: %d, window: 1mo}\n", one, limit))
					g := newGateway(t, config+"run: {allow: [\"fake__*\"]}\n")
					c := g.connect(ctx, "stdio", mcpclient.Legacy)
					s, branch := spender{c: c}, ""
					if inBranch {
						branch = create(t, c, ctx, map[string]any{"budget": 60000}).BranchID
					}
					first, args := "fake__huge", `{"bytes":60000}`
					switch how {
					case "batch":
						first, args = "branch_run", `{"tool":"fake__huge","each":[{"bytes":60000}],"grep":"e"}`
					case "batch of two tools":
						first, args = "branch_run", `{"steps":[{"tool":"fake__huge","arguments":{"bytes":60000}},{"tool":"fake__text","arguments":{"text":"the end"}}],"grep":"e"}`
					}
					text, refused, err := s.call(ctx, first, args, branch)
					if err != nil || refused != nil {
						t.Fatal(err, refused)
					}
					handle := handleIn(t, text)
					for page := 1; page < 20; page++ {
						_, _, err := s.call(ctx, "branch_read", fmt.Sprintf(`{"handle":%q,"page":%d,"max_tokens":1000}`, handle, page), branch)
						if err != nil {
							t.Fatal(err)
						}
					}
					if n := s.spent.Load(); n > limit+20*60 { // the arguments are those of branch_read
						t.Errorf("%d tokens of the server received, the limit is %d", n, limit)
					}
				})
			}
		}
	}
}

// branch_status in a branch shows the limits that the branch uses, else those of main.
func TestStatusShowsTheLimitsInForce(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: main, match: {context: main}, per: all, tokens: 1k, window: 1mo}\n    - {name: branches, match: {context: branch}, per: all, tokens: 2k, window: 1mo}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{}).BranchID
	shows := func(args, limit, not string) {
		t.Helper()
		text := said(t, tool(t, c, ctx, "branch_status", args))
		if !strings.Contains(text, `"limit":"`+limit+`"`) || strings.Contains(text, `"limit":"`+not+`"`) {
			t.Errorf("branch_status %s, want the limit %s: %s", args, limit, text)
		}
	}
	shows(`{"branch_id":"`+b+`"}`, "branches", "main")
	shows(`{"session_id":"none"}`, "main", "branches")
	tool(t, c, ctx, "branch_return", `{"branch_id":"`+b+`","message":""}`)
	shows(`{"branch_id":"`+b+`"}`, "main", "branches")
}

// A notification that a limit refuses is not charged to its branch.
func TestRefusedNotificationIsFree(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 300, window: 1mo}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{"budget": 8192}).BranchID
	tool(t, c, ctx, "fake__log", `{"params":{"level":"error","data":"@@"},"fill":1000,"branch_id":"`+b+`"}`)
	if n := zebras(c.Received()...); n > 0 {
		t.Fatalf("%d tokens of 300 arrived", n)
	}
	if st := statusOf(t, c, ctx, b); st.Status != "active" || st.BudgetUsed > 300 {
		t.Errorf("the branch is %s and has used %d", st.Status, st.BudgetUsed)
	}
}

// The gateway is killed at random moments under load. Nothing that a host received is uncharged, and
// too much is charged only for calls that were under way. Meanwhile a host of another gateway on the
// same Redis goes on.
func TestKilledUnderLimits(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"sqlite", "redis"} {
		t.Run(store, func(t *testing.T) {
			more := ""
			if store == "redis" {
				more = "store: {url: \"" + redistest.New(t).URL() + "\"}\n"
			}
			killedUnderLimits(t, more)
		})
	}
}

func killedUnderLimits(t *testing.T, more string) {
	const limit, callers, largest = 1_000_000_000, 8, 130 // all that callers have in hand is less than what is reserved
	const limits = "    - {name: all, per: all, tokens: 1G, window: 1mo}\n    - {name: person, per: principal, tokens: 1G, calls: 1G, window: rolling 24h}\n    - {name: main, match: {context: main}, per: session, tokens: 1G}\n"
	g := newGateway(t, limited(t, limits, more))
	var seen, calls int64
	var other spender
	stopOther := func() {}
	if more != "" {
		h := newGateway(t, limited(t, limits, more))
		other.c = h.stdio(mcpclient.Modern)
		ctx, cancel := context.WithCancel(t.Context())
		startHost(t, ctx, other.c)
		var wg sync.WaitGroup
		wg.Go(func() {
			for ctx.Err() == nil {
				if _, refused, err := other.call(t.Context(), "fake__huge", `{"bytes":400}`, ""); err != nil || refused != nil {
					t.Error(err, refused)
					return
				}
			}
		})
		stopOther = func() { cancel(); wg.Wait() }
		defer stopOther()
	}
	check := func(ctx context.Context, c *mcpclient.Client) (used, received int64) {
		t.Helper()
		received = seen + other.spent.Load()
		used = int64(limit - leftOf(t, c, ctx, "all"))
		if person := int64(limit - leftOf(t, c, ctx, "person")); used < received || person < received {
			t.Fatalf("hosts received %d tokens, %d and %d are charged", received, used, person)
		}
		return used, received
	}
	for k := range *kills {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		cmd := g.command("run")
		c, err := mcpclient.Stdio(cmd, []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[k%2])
		if err != nil {
			t.Fatal(err)
		}
		startHost(t, ctx, c)
		check(ctx, c)
		s := spender{c: c}
		var once sync.Once
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for {
					_, refused, err := s.call(ctx, "fake__huge", fmt.Sprintf(`{"bytes":%d}`, 5*(1+rand.IntN(100))), "")
					once.Do(func() {
						time.AfterFunc(time.Duration(rand.IntN(300_000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
					})
					if err != nil || refused != nil {
						return
					}
					atomic.AddInt64(&calls, 1)
				}
			})
		}
		wg.Wait()
		_ = c.Close() // it was killed: the error is the point
		cancel()
		seen += s.spent.Load()
	}
	ctx := testContext(t)
	last := g.connect(ctx, "stdio", mcpclient.Legacy)
	most := int64(*kills) * callers * largest
	stopOther()
	used, received := int64(0), int64(0)
	until(t, "what was reserved is given back", func() bool {
		used, received = check(ctx, last)
		return used-received <= most && leftOf(t, last, ctx, "person") == leftOf(t, last, ctx, "all")
	})
	t.Logf("%d kills, %d calls answered, %d tokens received, %d charged: %d too many a kill", *kills, calls, received, used, (used-received)/int64(*kills))
}

var rounds = flag.Int("rounds", 3, "how often TestLimitOfThreeGateways spends its limit")

// Three gateways on one Redis hold a limit to the token: in each round 64 hosts of one principal, of
// both eras, spend it through all three.
func TestLimitOfThreeGateways(t *testing.T) {
	t.Parallel()
	const limit = 8000
	url := redistest.New(t).URL()
	var all []*spender
	var last *gateway
	for range 3 {
		last = newGateway(t, principals()+limited(t, "    - {name: each, per: principal, tokens: 8k, window: 1mo}\n    - {name: all, per: all, calls: 1G, window: rolling 30d}\n", "store: {url: \""+url+"\"}\n"))
		at := last.http()
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			all = append(all, &spender{c: last.as(t, at, era, "alice")})
		}
	}
	before := int64(0)
	for range *rounds {
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		spendAll(t, ctx, all)
		sum := -before
		for _, s := range all {
			sum += s.spent.Load()
		}
		before += sum
		exactly(t, ctx, all[0].c, "each", sum, limit)
		if out, code := last.operate("budgets", "reset", "each"); code != 0 || leftOf(t, all[0].c, ctx, "each") != limit {
			t.Fatalf("budgets reset: %d %s", code, out)
		}
		cancel()
	}
	t.Logf("%d rounds, %d tokens received: none over the limit", *rounds, before)
}

// While Redis hangs, no call waits longer than wait_ms. on_error says whether it is made; what was
// delivered meanwhile is charged when Redis answers again. /readyz and a metric tell of it.
func TestRedisHangs(t *testing.T) {
	for _, onError := range []string{"refuse", "allow"} {
		t.Run(onError, func(t *testing.T) {
			ctx := testContext(t)
			const limit = 100000
			server := redistest.New(t)
			port := freeport.For(t)
			t.Setenv("OTEL_METRICS_EXPORTER", "prometheus")
			t.Setenv("OTEL_EXPORTER_PROMETHEUS_PORT", port)
			g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 100k, window: 1d}\n", "  on_error: "+onError+"\n  wait_ms: 300\nstore: {url: \""+server.URL()+"\"}\n"))
			s := spender{c: g.connect(ctx, "http", mcpclient.Legacy)}
			failing := func(want string) {
				t.Helper()
				status, ready := readyz(t, g.url, "")
				_, _, metrics := answered(t, http.DefaultClient, "GET", "http://localhost:"+port+"/metrics", "", nil)
				if fault := strings.Contains(ready, `"limits":"redis at `); status != 200 || fault != (want == "1") || fault != strings.Contains(ready, `"status":"degraded"`) {
					t.Errorf("/readyz: %d %s, want the fault of the limits: %s", status, ready, want)
				}
				if !regexp.MustCompile(`(?m)^foldgate_limits_failing\{.*\} ` + want + `$`).MatchString(metrics) {
					t.Errorf("foldgate_limits_failing is not %s", want)
				}
			}
			const args = `{"text":"@@","fill":3000}`
			if _, refused, err := s.call(ctx, "fake__text", args, ""); err != nil || refused != nil {
				t.Fatal(err, refused)
			}
			server.Signal(syscall.SIGSTOP)
			for range 4 {
				began := time.Now()
				_, refused, err := s.call(ctx, "fake__text", args, "")
				if took := time.Since(began); err != nil || took > 2*time.Second {
					t.Fatal(err, took)
				}
				if onError == "refuse" && refused != nil && refused.Error.Code != "limits_unavailable" || onError == "allow" && refused != nil {
					t.Errorf("%+v", refused)
				}
			}
			failing("1")
			server.Signal(syscall.SIGCONT)
			left, end := 0, time.Now().Add(10*time.Second)
			for ; time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				m := tool(t, s.c, ctx, "branch_status", `{"session_id":"none"}`)
				if !strings.Contains(said(t, m), `"all"`) {
					continue // not yet
				}
				if left = leftOf(t, s.c, ctx, "all"); int64(limit-left) == s.spent.Load() {
					break
				}
			}
			if n := s.spent.Load(); int64(limit-left) != n {
				t.Errorf("%d tokens received, %d charged", n, limit-left)
			}
			var refused *limitRefusal
			for range 30 { // it asks again after a second
				var err error
				if _, refused, err = s.call(ctx, "fake__text", args, ""); err != nil {
					t.Fatal(err)
				}
				if refused == nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			if refused != nil {
				t.Errorf("Redis answers again: %+v", refused)
			}
			failing("0")
			g.stop()
			recorded := 0
			for _, r := range traceAs[struct {
				Kind  string
				Audit struct{ Decision struct{ Result, Rule string } }
			}](g, "--kind", "mcp/response:tools/call") {
				d := r.Audit.Decision
				if d.Rule == "limits_unavailable" && d.Result == map[string]string{"refuse": "blocked", "allow": "allowed"}[onError] {
					recorded++
				}
			}
			if recorded == 0 { // what was in reserve is confirmed
				t.Error("no call without the store is recorded as such")
			}
		})
	}
}

// A limit that is raised in the file, for all or for one subject, holds for the next call, and what was counted stays.
func TestLimitIsRaised(t *testing.T) {
	for _, raised := range []string{"tokens: 4k", "tokens: 400, subjects: {nobody: {tokens: 1}, local: {tokens: 4k}}"} {
		t.Run(raised, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			g := newGateway(t, limited(t, "    - {name: all, per: principal, tokens: 400, window: 1d}\n"))
			s := spender{c: g.connect(ctx, "http", mcpclient.Legacy)}
			var refused *limitRefusal
			for refused == nil {
				var err error
				if _, refused, err = s.call(ctx, "fake__text", `{"text":"@@","fill":100}`, ""); err != nil {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(g.config)
			if err != nil {
				t.Fatal(err)
			}
			write(t, g.config, strings.Replace(string(text), "tokens: 400", raised, 1))
			for end := time.Now().Add(20 * time.Second); refused != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				if _, refused, err = s.call(ctx, "fake__text", `{"text":"@@","fill":100}`, ""); err != nil {
					t.Fatal(err)
				}
			}
			if left := leftOf(t, s.c, ctx, "all"); refused != nil || int64(left) != 4000-s.spent.Load() {
				t.Errorf("%d left of 4000, %d received, %+v", left, s.spent.Load(), refused)
			}
		})
	}
}

// Redis stops or dies between the take of the arguments and the take of the result. No call hangs, and
// no result is lost: the refusal names a handle, under which the result is read once Redis is back.
func TestResultsWithoutRedis(t *testing.T) {
	const waitMS = 300
	kinds := map[string]string{
		"small":      `"result":{"content":[{"type":"text","text":"@@MARK"}]},"fill":300`,
		"large":      `"result":{"content":[{"type":"text","text":"@@MARK"}]},"fill":5000`,
		"structured": `"result":{"content":[],"structuredContent":{"x":"@@MARK"}},"fill":300`,
		"image":      `"result":{"content":[{"type":"text","text":"@@MARK"},{"type":"image","mimeType":"image/png","data":"AAAA"}]},"fill":300`,
		"failure":    `"result":{"content":[{"type":"text","text":"@@MARK"}],"isError":true},"fill":300`,
		"error":      `"error":{"code":-32000,"message":"@@MARK"},"fill":300`,
	}
	for _, how := range []string{"stopped", "killed"} {
		for _, fold := range []string{"on", "off"} {
			for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
				t.Run(how+"-fold-"+fold+"-"+string(era), func(t *testing.T) {
					t.Parallel()
					ctx := testContext(t)
					server := redistest.New(t)
					file := recordFile(t)
					g := newGateway(t, fakeConfig(file, "budgets:\n  wait_ms: "+fmt.Sprint(waitMS)+"\n  limits:\n    - {name: all, per: all, tokens: 20k, window: 1mo}\n"+
						"store: {url: \""+server.URL()+"\"}\nresults: {tools: {fake__raw: {fold: "+fold+"}}}\n"))
					c := g.connect(ctx, "stdio", era)
					ready := file + ".ready"
					type answer struct {
						kind, text string
						took       time.Duration
					}
					answers := make(chan answer, len(kinds))
					var began atomic.Int64
					for kind, args := range kinds {
						go func() {
							m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{%s,"wait":%q}}`, strings.Replace(args, "MARK", "lion", 1), ready))
							if err != nil {
								t.Error(err)
							}
							answers <- answer{kind, string(m.Result) + string(m.Error), time.Since(time.Unix(0, began.Load()))}
						}()
					}
					until(t, "the upstream has all calls", func() bool { return len(recordedMethod(t, file, "tools/call")) == len(kinds) })
					left := leftOf(t, c, ctx, "all") // it gives back what is reserved
					if how == "stopped" {
						server.Signal(syscall.SIGSTOP)
					} else {
						server.Kill()
					}
					began.Store(time.Now().UnixNano())
					write(t, ready, "")
					handles := map[string]string{}
					for range kinds {
						a := <-answers
						if !strings.Contains(a.text, "limits_unavailable") || !strings.Contains(a.text, "the call was made") || strings.Contains(a.text, "zebra") {
							t.Errorf("%s is answered: %.300s", a.kind, a.text)
						}
						handles[a.kind] = handleIn(t, a.text)
						if a.took > 20*waitMS*time.Millisecond {
							t.Errorf("%s waited %v", a.kind, a.took)
						}
					}
					if how == "stopped" {
						server.Signal(syscall.SIGCONT)
					} else {
						server.Start(t)
					}
					for kind, h := range handles {
						until(t, kind+" is read", func() bool {
							m := tool(t, c, ctx, "branch_read", `{"handle":"`+h+`","search":"lion"}`)
							return strings.Contains(string(m.Result), "lion") && !strings.Contains(string(m.Result), "limits_unavailable")
						})
					}
					if now := leftOf(t, c, ctx, "all"); now > left || left-now > 10000 {
						t.Errorf("%d were left before, %d after: what was not delivered is charged", left, now)
					}
					g.stop()
					failed := 0
					for _, r := range traceAs[struct {
						Audit struct {
							Tool     string
							Decision struct{ Rule string }
							Fold     *struct{ Handle string }
						}
					}](g) {
						if r.Audit.Tool == "raw" && r.Audit.Decision.Rule == "limits_unavailable" && r.Audit.Fold != nil {
							failed++
						}
					}
					if failed != len(kinds) {
						t.Errorf("%d of %d failures of the store are recorded", failed, len(kinds))
					}
				})
			}
		}
	}
}

// Redis hangs while a server sends notifications without an end in sight. The session goes on: each call
// has one answer, and when Redis is back all works as before.
func TestFloodWithoutRedis(t *testing.T) {
	for _, onError := range []string{"refuse", "allow"} {
		t.Run(onError, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			server := redistest.New(t)
			g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 100M, window: 1mo}\n", "  on_error: "+onError+"\n  wait_ms: 500\nstore: {url: \""+server.URL()+"\"}\n"))
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			s := spender{c: c}
			if _, refused, err := s.call(ctx, "fake__text", `{"text":"@@","fill":1}`, ""); err != nil || refused != nil {
				t.Fatal(err, refused)
			}
			leftOf(t, c, ctx, "all") // nothing is in reserve
			server.Signal(syscall.SIGSTOP)
			const calls, notices = 8, 400
			var wg sync.WaitGroup
			for i := range calls {
				wg.Go(func() {
					m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__log","arguments":{"count":%d,"fill":20,"params":{"level":"error","data":"@@"},"n":%d}}`, notices, i))
					text := string(m.Result)
					if err != nil || onError == "allow" && strings.Contains(text, `"isError":true`) || onError == "refuse" && !strings.Contains(text, "limits_unavailable") {
						t.Errorf("call %d: %v %s%s", i, err, text, m.Error)
					}
				})
			}
			wg.Wait()
			if n := zebras(c.Received()...); onError == "allow" && n < calls*notices*20 {
				t.Errorf("%d tokens of notifications arrived, want %d", n, calls*notices*20)
			}
			server.Signal(syscall.SIGCONT)
			until(t, "Redis answers again", func() bool {
				_, refused, err := s.call(ctx, "fake__text", `{"text":"@@","fill":1}`, "")
				return err == nil && refused == nil
			})
		})
	}
}

// A call counts for calls of a limit once the limits let it pass, also if the policy then refuses it.
func TestRefusedCallCounts(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: team, per: team, calls: 100, window: 1mo}\n", "policy: {rules: [{name: no-echo, deny: [fake__echo]}]}\n"))
	c := g.connect(ctx, "http", mcpclient.Modern)
	used := func() int64 {
		var states []control.Budget
		unmarshal(t, []byte(g.output("budgets", "--json")), &states)
		if len(states) == 0 {
			return 0
		}
		return states[0].CallsUsed
	}
	for _, one := range []struct {
		name, args, says string
		counts           int64
	}{
		{"fake__text", `{"text":"x"}`, "x", 1},
		{"fake__echo", `{}`, "policy_denied", 1},
		{"fake__none", `{}`, "unknown_tool", 1},
		{"branch_read", `{"handle":"res_none"}`, "res_none", 1},
		{"branch_status", `{"session_id":"none"}`, "limits", 0},
		{"fake__text", `{"text":"x","branch_id":"br_none"}`, "branch_not_found", 0},
	} {
		before := used()
		m := tool(t, c, ctx, one.name, one.args)
		if text := string(m.Result) + string(m.Error); !strings.Contains(text, one.says) {
			t.Errorf("%s %s: %s", one.name, one.args, text)
		}
		if n := used() - before; n != one.counts {
			t.Errorf("%s %s: %d calls are counted, want %d: %s%s", one.name, one.args, n, one.counts, m.Result, m.Error)
		}
	}
}
