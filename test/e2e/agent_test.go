//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// modelKey is the key of the endpoint. It looks like no secret that a rule knows.
const modelKey = "zq7-endpoint-key-of-the-tests-4417"

// apis are the interfaces of models.
var apis = []string{"openai", "anthropic"}

// agentGateway starts a model of the given turns, and a gateway before the fixtures that uses it.
func agentGateway(t *testing.T, api, more string, agents ...llmstub.Agent) (g *gateway, stub *llmstub.Server, secret string) {
	t.Helper()
	stub = startModel(t, agents...)
	dir, secret := t.TempDir(), fixtures.Secret()
	if err := fixtures.Write(dir, secret); err != nil {
		t.Fatal(err)
	}
	g = newGateway(t, filesConfig(dir, fmt.Sprintf("llm: {api: %s, url: %q, model: m, key: %q}\n%s", api, stub.URL(), modelKey, more)))
	return g, stub, secret
}

// play is an agent of one script.
func play(turns ...llmstub.Turn) llmstub.Agent {
	return llmstub.Agent{Name: "branch", Play: llmstub.Script(turns...)}
}

// use is a turn of calls.
func use(calls ...llmstub.Call) llmstub.Turn {
	return func(llmstub.Request) (llmstub.Reply, error) { return llmstub.Reply{Calls: calls}, nil }
}

func returns(message string) llmstub.Turn {
	return use(llmstub.Call{Name: "branch_return", Arguments: fmt.Sprintf(`{"message":%q}`, message)})
}

func reading(path string) llmstub.Call {
	return llmstub.Call{Name: "files__read_file", Arguments: fmt.Sprintf(`{"path":%q}`, path)}
}

// ran is what the parent reads of a branch that ran by itself.
type ran struct {
	BranchID string `json:"branch_id"`
	Status   string
	Message  string
	Reason   string
	Error    string
	Digest   string
}

// A branch runs by itself: its model reads files, foldgate returns the message. The caller's context has the
// message and nothing of the files; what goes to the model has no secret and no key.
func TestRunsByItself(t *testing.T) {
	t.Parallel()
	for _, api := range apis {
		t.Run(api, func(t *testing.T) {
			everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
				ctx := testContext(t)
				var reads []llmstub.Call
				for _, name := range fixtures.Names {
					reads = append(reads, reading(name))
				}
				g, stub, secret := agentGateway(t, api, "", play(use(reads...), returns(hostAnswer)))
				c := g.connect(ctx, transport, era)
				args := jsonText(map[string]any{"description": "find why more payments fail", "prompt": question, "run": true})
				m := tool(t, c, ctx, "branch_create", args)
				got := own[ran](t, m)
				if got != (ran{Status: "completed", Message: hostAnswer}) {
					t.Fatalf("the branch answered %s", m.Result)
				}
				if n := resultTokens(t, m) + tokens(t, args); n > 160 {
					t.Errorf("the branch cost its caller %d tokens, want at most 160", n)
				}
				asked := stub.Requests()
				if len(asked) != 2 {
					t.Fatalf("the model was asked %d times, want 2", len(asked))
				}
				if n := len(asked[1].Results()); n != len(fixtures.Names) {
					t.Errorf("the model got %d answers to %d calls", n, len(fixtures.Names))
				}
				if strings.Contains(string(asked[1].Body), secret) {
					t.Error("the model read a secret")
				}
				if key := asked[0].Header.Get("Authorization") + asked[0].Header.Get("X-Api-Key"); !strings.HasSuffix(key, modelKey) {
					t.Errorf("the endpoint got the key %q", key)
				}
				// Only messages are added from turn to turn.
				first, second := cacheable(t, asked[0]), cacheable(t, asked[1])
				if first.tools != second.tools || !strings.HasPrefix(second.messages, strings.TrimSuffix(first.messages, "]")) {
					t.Error("the second request does not begin like the first")
				}
				g.stop()
				g.keepsSecret(modelKey, c.Received())
				g.agentIsTraced(len(fixtures.Names))
			})
		})
	}
}

type prefix struct{ tools, messages string }

// cacheable is what endpoints can cache of a request, without the marks of what to cache.
func cacheable(t *testing.T, r llmstub.Request) prefix {
	t.Helper()
	var body struct{ Tools, Messages json.RawMessage }
	unmarshal(t, r.Body, &body)
	return prefix{compact(t, body.Tools), compact(t, body.Messages)}
}

// agentIsTraced checks that each call of a run and each turn of its model has its records in the branch.
func (g *gateway) agentIsTraced(calls int) {
	g.t.Helper()
	counts := map[string]int{}
	for _, r := range g.trace() {
		if strings.HasPrefix(r.Context, "br_") {
			counts[r.Kind]++
		}
	}
	for kind, want := range map[string]int{
		"mcp/request:sampling/createMessage": 2, "mcp/response:sampling/createMessage": 2,
		"context/push": 1, "context/pop": 1, "conclusion": 1,
	} {
		if counts[kind] != want {
			g.t.Errorf("the branch has %d records %s, want %d (%v)", counts[kind], kind, want, counts)
		}
	}
	if n := counts["mcp/request:tools/call"]; n < calls {
		g.t.Errorf("the branch has %d records of calls, want %d", n, calls)
	}
}

// What ends a run, and what its caller reads then.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	same := use(reading("deploy/values.yaml"))
	status := func(code int) llmstub.Turn {
		return func(llmstub.Request) (llmstub.Reply, error) { return llmstub.Reply{Status: code}, nil }
	}
	cut := false
	for name, x := range map[string]struct {
		more  string
		args  string
		turns []llmstub.Turn
		want  ran
		asked int // requests to the model
	}{
		"a text is a message": {turns: []llmstub.Turn{llmstub.Say("it is in a.go")}, want: ran{Status: "completed", Message: "it is in a.go"}, asked: 1},
		"the same call three times": {turns: []llmstub.Turn{same, same, same, returns("no more")},
			want: ran{Status: "completed", Message: "no more"}, asked: 4},
		"turns are over, and it does not return": {more: "llm_turns", turns: []llmstub.Turn{
			func(llmstub.Request) (llmstub.Reply, error) {
				return llmstub.Reply{Text: "I look.", Calls: []llmstub.Call{reading("api/openapi.json")}}, nil
			}, same},
			want: ran{Status: "completed", Message: "[not returned by the model; its last words:] I look."}, asked: 2},
		"the budget is spent": {args: `,"budget":300`, turns: []llmstub.Turn{
			use(reading("deploy/values.yaml"), reading("api/openapi.json"), reading("src/scan.go"), reading("docs/runbook.md"), reading("docs/incidents.md"),
				reading("logs/access.log"), reading("data/orders.csv")),
			saysIn("branch_return now", returns("half of it"))},
			want: ran{Status: "failed", Message: "half of it", Reason: "budget_exhausted"}},
		"arguments that are no JSON": {turns: []llmstub.Turn{use(llmstub.Call{Name: "files__read_file", Arguments: `{"path":"src`}), saysIn("no JSON object", returns("sorry"))},
			want: ran{Status: "completed", Message: "sorry"}, asked: 2},
		"a tool that is not there": {turns: []llmstub.Turn{use(llmstub.Call{Name: "branch_status", Arguments: `{}`}), saysIn("there is no tool", returns("sorry"))},
			want: ran{Status: "completed", Message: "sorry"}, asked: 2},
		"a cut stream is asked again": {turns: []llmstub.Turn{func(llmstub.Request) (llmstub.Reply, error) {
			cut = !cut
			return llmstub.Reply{Text: "whole", Cut: cut}, nil
		}}, want: ran{Status: "completed", Message: "whole"}, asked: 2},
		"429": {turns: []llmstub.Turn{status(429)}, want: ran{Status: "failed", Reason: "model_failed"}, asked: 3},
		"529": {turns: []llmstub.Turn{status(529)}, want: ran{Status: "failed", Reason: "model_failed"}, asked: 3},
		"401": {turns: []llmstub.Turn{status(401)}, want: ran{Status: "failed", Reason: "model_failed"}, asked: 1},
		"the limit of model tokens": {more: "budgets: {limits: [{name: models, per: all, model_tokens: 100, window: 1d}]}\n",
			turns: []llmstub.Turn{llmstub.Say("never")}, want: ran{Status: "failed", Reason: "model_failed"}},
	} {
		for _, api := range apis {
			t.Run(name+", "+api, func(t *testing.T) {
				ctx := testContext(t)
				more := strings.TrimPrefix(x.more, "llm_turns")
				g, stub, _ := agentGateway(t, api, more, play(x.turns...))
				if more != x.more {
					text := read(t, g.config)
					write(t, g.config, strings.Replace(string(text), "model: m,", "model: m, max_turns: 2,", 1))
				}
				c := g.connect(ctx, "stdio", mcpclient.Legacy)
				m := tool(t, c, ctx, "branch_create", `{"description":"look","run":true`+x.args+`}`)
				got := own[ran](t, m)
				said := got
				got.Error, got.Digest = "", ""
				if got != x.want {
					t.Errorf("the branch answered %s, want %+v", m.Result, x.want)
				}
				if n := len(stub.Requests()); x.asked > 0 && n != x.asked {
					t.Errorf("the model was asked %d times, want %d", n, x.asked)
				}
				if said.Reason == "model_failed" && name != "the limit of model tokens" && !strings.Contains(said.Error, name) {
					t.Errorf("the error %q does not name the status %s", said.Error, name)
				}
				if n := resultTokens(t, m); n > 120 {
					t.Errorf("the answer has %d tokens, want at most 120: %s", n, m.Result)
				}
				g.stop()
				g.keepsSecret(modelKey, c.Received())
				g.pushesHavePops()
			})
		}
	}
}

// saysIn is a turn that wants a text in what the model was told last.
func saysIn(text string, next llmstub.Turn) llmstub.Turn {
	return func(r llmstub.Request) (llmstub.Reply, error) {
		said := reads(r.Messages[max(0, len(r.Messages)-3):]...)
		if !strings.Contains(said, text) {
			return llmstub.Reply{}, fmt.Errorf("what was said last, %q, lacks %q", said, text)
		}
		return next(r)
	}
}

func (g *gateway) pushesHavePops() {
	g.t.Helper()
	open := map[string]int{}
	for _, r := range g.trace() {
		switch r.Kind {
		case "context/push":
			open[r.Context]++
		case "context/pop":
			open[r.Context]--
		}
	}
	for branch, n := range open {
		if n != 0 {
			g.t.Errorf("branch %s has %d more pushes than pops", branch, n)
		}
	}
}

// Several branches run at once, and one branch_status has their messages. Calls of the host meanwhile are
// in main. A branch runs others inside it, to the depth limit.
func TestSeveralRun(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	release := make(chan struct{})
	outer := func(r llmstub.Request) bool { return strings.Contains(r.First("user"), "Task: outer") }
	inner := llmstub.Call{Name: "branch_create", Arguments: `{"description":"inner","prompt":"say where"}`}
	g, stub, _ := agentGateway(t, "openai", "",
		llmstub.Agent{Name: "outer", Match: outer, Play: llmstub.Script(use(inner), saysIn("it is here", returns("inner says it is here")))},
		llmstub.Agent{Name: "branch", Play: func(llmstub.Request) (llmstub.Reply, error) {
			<-release
			return llmstub.Reply{Text: "it is here"}, nil
		}})
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, task := range []string{"one", "two", "outer"} {
		got := own[ran](t, tool(t, c, ctx, "branch_create", fmt.Sprintf(`{"description":%q,"run":true,"wait":false}`, task)))
		if got.Status != "running" || got.BranchID == "" {
			t.Fatalf("started: %+v", got)
		}
	}
	if text := said(t, tool(t, c, ctx, "files__read_file", `{"path":"deploy/values.yaml"}`)); !strings.Contains(text, "eu-central-1") {
		t.Errorf("main reads %q", text)
	}
	began := time.Now()
	if all := own[struct{ Branches []ran }](t, tool(t, c, ctx, "branch_status", `{"wait_seconds":1}`)); len(all.Branches) != 3 || all.Branches[0].Status != "running" || time.Since(began) < time.Second {
		t.Errorf("while they run branch_status has %+v after %s", all.Branches, time.Since(began))
	}
	close(release)
	m := tool(t, c, ctx, "branch_status", `{"wait_seconds":30}`)
	all := own[struct{ Branches []ran }](t, m)
	if len(all.Branches) != 3 || all.Branches[0].Message != "it is here" || all.Branches[2].Message != "inner says it is here" {
		t.Errorf("branch_status has %s", m.Result)
	}
	for _, b := range all.Branches { // a message is read once
		if s := own[map[string]any](t, tool(t, c, ctx, "branch_status", jsonText(map[string]any{"branch_id": b.BranchID}))); s["message"] != nil || s["model_tokens"] == nil {
			t.Errorf("afterwards the status is %v", s)
		}
	}
	if n := len(stub.Requests("branch")); n != 3 {
		t.Errorf("%d runs asked the model, want 3", n)
	}
	g.stop()
	depth := 0
	for _, r := range g.trace("--kind", "context/push") {
		depth = max(depth, strings.Count(r.Context, "/")+1)
	}
	for _, r := range g.trace("--kind", "mcp/request:tools/call") {
		if strings.Contains(string(r.Payload), "values.yaml") && r.Context != "" {
			t.Errorf("a call of main is in the branch %s", r.Context)
		}
	}
	if depth != 2 {
		t.Errorf("the deepest branch is at depth %d, want 2", depth)
	}
}

// A host that gives up ends its branch, and the request to the model with it.
func TestCancelledRun(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	asked, release := make(chan struct{}, 1), make(chan struct{})
	defer close(release)
	g, _, _ := agentGateway(t, "anthropic", "", llmstub.Agent{Name: "branch", Play: func(llmstub.Request) (llmstub.Reply, error) {
		asked <- struct{}{}
		<-release
		return llmstub.Reply{Text: "too late"}, nil
	}})
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	id, wait, err := c.Send(waiting, "tools/call", `{"name":"branch_create","arguments":{"description":"look","run":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := c.Cancel(ctx, id, "no longer needed"); err != nil {
		t.Fatal(err)
	}
	stop()
	_, _ = wait()
	tool(t, c, ctx, "branch_status", `{"wait_seconds":30}`) // the run is over
	g.stop()
	g.pushesHavePops()
	for _, r := range g.trace("--kind", "context/pop") {
		if !strings.Contains(string(r.Payload), `"reason":"cancelled"`) {
			t.Errorf("the branch ended with %s", r.Payload)
		}
	}
}

// A branch whose time is over while its model thinks ends then. The model gets a last turn, in which it can
// only return; the message is late.
func TestRunReachesItsDeadline(t *testing.T) {
	t.Parallel()
	for _, api := range apis {
		for last, want := range map[string]ran{
			"returns": {Status: "timeout", Reason: "timeout", Message: "half of it"},
			"fails":   {Status: "timeout", Reason: "timeout"},
		} {
			t.Run(api+", "+last, func(t *testing.T) {
				ctx := testContext(t)
				stuck := make(chan struct{})
				defer close(stuck)
				g, stub, _ := agentGateway(t, api, "", llmstub.Agent{Name: "branch", Play: func(r llmstub.Request) (llmstub.Reply, error) {
					if !strings.Contains(reads(r.Messages...), "the time of this branch is over: call branch_return now") {
						<-stuck
					} else if last == "fails" {
						return llmstub.Reply{Status: 401}, nil
					}
					return llmstub.Reply{Calls: []llmstub.Call{{Name: "branch_return", Arguments: `{"message":"half of it"}`}}}, nil
				}})
				c := g.connect(ctx, "stdio", mcpclient.Legacy)
				m := tool(t, c, ctx, "branch_create", `{"description":"look","run":true,"timeout_seconds":1}`)
				got := own[ran](t, m)
				got.Error, got.Digest = "", ""
				if got != want {
					t.Errorf("the branch answered %s, want %+v", m.Result, want)
				}
				asked := stub.Requests()
				if n := len(asked); n != 1 { // the one that is stuck is not answered yet
					t.Fatalf("the model answered %d requests, want 1", n)
				}
				if used := asked[0].Tools; !slices.Contains(used, "branch_return") {
					t.Errorf("the last turn has the tools %v", used)
				}
				g.stop()
				g.pushesHavePops()
			})
		}
	}
}

// A host that sends a progress token gets progress after each turn, whatever the tool that waits.
func TestProgressOfARun(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		turn := make(chan struct{})
		step := func(next llmstub.Turn) llmstub.Turn {
			return func(r llmstub.Request) (llmstub.Reply, error) {
				<-turn
				return next(r)
			}
		}
		g, _, _ := agentGateway(t, "openai", "", play(step(use(reading("src/scan.go"))), step(use(reading("docs/runbook.md"))), step(use(reading("docs/incidents.md"))), step(returns("done"))))
		c := g.unstarted(transport, era)
		var heard noted
		c.Handle = heard.handle(nil)
		startHost(t, ctx, c)
		_, wait, err := c.Send(ctx, "tools/call", `{"name":"branch_create","arguments":{"description":"look","run":true},"_meta":{"progressToken":"p"}}`)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 4 {
			if n > 0 {
				until(t, "progress after a turn", func() bool { return heard.has(fmt.Sprintf(`"progressToken":"p","progress":%d,"total":30`, n)) > 0 })
			}
			turn <- struct{}{}
		}
		m, err := wait()
		if err != nil {
			t.Fatal(err)
		}
		if got := own[ran](t, m); got.Message != "done" {
			t.Errorf("the branch answered %s", m.Result)
		}
	})
}

// Without a model nothing is listed about runs, and run says what to configure.
func TestNoModel(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, filesConfig(t.TempDir(), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	if list := call(t, c, ctx, "tools/list", `{}`); strings.Contains(string(list.Result), `"run"`) || strings.Contains(string(list.Result), "wait_seconds") {
		t.Error("the definitions are about runs")
	}
	m := parseResult(t, tool(t, c, ctx, "branch_create", `{"description":"look","run":true}`))
	if !m.IsError || !strings.Contains(m.Content[0].Text, "llm.api") {
		t.Errorf("run without a model = %+v", m)
	}
	g.stop()
	if n := len(g.trace("--kind", "context/push")); n != 0 {
		t.Errorf("%d branches were opened", n)
	}
}

// Limits of model tokens are charged what the endpoint counts, to the token. branch_status has what is left.
func TestModelTokens(t *testing.T) {
	t.Parallel()
	for _, api := range apis {
		t.Run(api, func(t *testing.T) {
			ctx := testContext(t)
			g, _, _ := agentGateway(t, api, "budgets: {limits: [{name: models, per: all, model_tokens: 20k, window: 1d}]}\n",
				play(func(llmstub.Request) (llmstub.Reply, error) {
					return llmstub.Reply{Calls: []llmstub.Call{reading("src/scan.go")}, Input: 900, Output: 30}, nil
				}, func(llmstub.Request) (llmstub.Reply, error) {
					return llmstub.Reply{Text: "done", Input: 1200, Output: 5}, nil
				}))
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			if got := own[ran](t, tool(t, c, ctx, "branch_create", `{"description":"look","run":true}`)); got.Message != "done" {
				t.Fatalf("the branch answered %+v", got)
			}
			const want = 20000 - 900 - 30 - 1200 - 5
			left := 0
			for ctx.Err() == nil && left != want { // what was reserved goes back after a moment
				s := own[struct {
					Limits []struct {
						Left int `json:"model_tokens_left"`
					}
				}](t, tool(t, c, ctx, "branch_status", `{}`))
				if len(s.Limits) != 1 {
					t.Fatalf("branch_status has %+v", s)
				}
				left = s.Limits[0].Left
			}
			if left != want {
				t.Errorf("%d model tokens are left, want %d", left, want)
			}
		})
	}
}
