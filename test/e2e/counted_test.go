//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// hidden are results and errors with text in all places where a server can put it: @@ stands for the
// text. Each word "zebra" is a token at least.
var hidden = []string{
	`{"content":[{"type":"text","text":"@@"}]}`,
	`{"content":[{"type":"text","text":"@@"}],"isError":true}`,
	`{"content":[{"type":"text","text":"a","annotations":{"x":"@@"}}]}`,
	`{"content":[{"type":"text","text":"a","x":"@@"}]}`,
	`{"content":[{"type":"text","text":"a","@@":1}]}`,
	`{"content":[{"type":"text","text":"a","_meta":{"io.modelcontextprotocol/model-immediate-response":"@@"}}]}`,
	`{"content":[{"type":"text","text":["@@"]}]}`,
	`{"content":[{"text":"@@"}]}`,
	`{"content":["@@"]}`,
	`{"content":[["@@"]]}`,
	`{"content":"@@"}`,
	`{"content":{"type":"text","text":"@@"}}`,
	`{"content":[{"type":"image","data":"AAAA","mimeType":"image/png","alt":"@@"}]}`,
	`{"content":[{"type":"audio","data":"AAAA","mimeType":"audio/wav","text":"@@"}]}`,
	`{"content":[{"type":"image","data":"AAAA","mimeType":"@@"}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","text":"@@"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","type":"image","text":"@@"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","type":"audio","mimeType":"image/png","text":"@@"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","text":"a","blob":"@@"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","mimeType":"image/png","blob":"AAAA","text":"@@"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"@@","blob":"AAAA"}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","text":"a","_meta":{"x":"@@"}}}]}`,
	`{"content":[{"type":"resource","resource":"@@"}]}`,
	`{"content":[{"type":"resource_link","uri":"x","name":"n","description":"@@"}]}`,
	`{"content":[{"type":"future","x":{"y":["@@"]}}]}`,
	`{"content":[],"structuredContent":{"x":"@@"}}`,
	`{"content":[],"structuredContent":"@@"}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":{"x":"@@"}}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":{"io.modelcontextprotocol/model-immediate-response":"@@"}}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"@@"}}}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":{"io.github.foldgate/context_id":"@@"}}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":{"io.github.foldgate/fold":{"handle":"@@"}}}`,
	`{"content":[{"type":"text","text":"a"}],"_meta":"@@"}`,
	`{"content":[{"type":"text","text":"a"}],"x":"@@"}`,
	`{"content":[{"type":"text","text":"a"}],"@@":true}`,
	`{"content":[{"type":"text","text":"a"}],"isError":"@@"}`,
	`{"content":[{"type":"text","text":"a"}],"taskId":"@@"}`,
	`{"content":[{"type":"text","text":"a"}],"result":{"content":[{"type":"text","text":"@@"}]}}`,
	`{"result":{"result":{"result":{"result":{"result":{"result":{"content":"@@"}}}}}}}`,
	`{"contents":[{"uri":"x","text":"@@"}]}`,
	`{"messages":[{"role":"user","content":{"type":"text","text":"@@"}}]}`,
	`{"messages":[{"role":"@@","content":[]}]}`,
	`{"toolResult":"@@"}`,
	`{"toolResult":{"x":["@@"]}}`,
	`{"resultType":"@@","content":[]}`,
	`{"resultType":"future","x":"@@"}`,
	`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"@@"}}},"requestState":"s"}`,
	`{"resultType":"input_required","inputRequests":{"@@":{"method":"sampling/createMessage","params":{"messages":[]}}}}`,
	`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"?"}}},"requestState":"@@"}`,
	`{"resultType":"task","taskId":"t","status":"working","statusMessage":"@@"}`,
	`{"task":{"taskId":"t","status":"working","statusMessage":"@@"}}`,
	`{"task":{"taskId":"t","status":"working","x":"@@"}}`,
	`{"task":{"taskId":"t","status":"working","@@":"x"}}`,
	`{"task":{"taskId":"t","status":"working","_meta":{"x":"@@"}}}`,
	`{"task":"@@"}`,
	`{"taskId":"t","status":"failed","error":{"code":-32000,"message":"@@"}}`,
	`{"taskId":"t","status":"failed","error":{"code":"@@","message":"m"}}`,
	`{"taskId":"t","status":"failed","error":{"code":-32000,"message":["@@"],"x":"@@"}}`,
	`{"taskId":"t","status":"failed","error":"@@"}`,
	`{"taskId":"t","status":"completed","result":"@@"}`,
	`{"taskId":"t","status":"completed","result":{"x":"@@"}}`,
	`{"taskId":"t","status":"completed","result":{"content":[{"type":"text","text":"a"}],"_meta":{"x":"@@"}},"x":"@@"}`,
	`{"resultType":"task","taskId":"t","status":"working","_meta":{"x":"@@"}}`,
	`{"resultType":"future","content":[{"type":"text","text":"@@"}]}`,
	`{"resultType":"input_required","content":[{"type":"text","text":"@@"}]}`,
	`{"content":[{"type":"image","data":{"x":"@@"},"mimeType":"image/png"}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","mimeType":"image/png","blob":["@@"]}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","blob":"AAAA","resource":{"x":"@@"}}}]}`,
	`{"content":[{"type":"resource","resource":{"uri":"x","blob":"AAAA","_meta":{"x":"@@"}},"annotations":{"x":"@@"}}]}`,
	`{"content":[{"type":"@@","text":"a"}]}`,
	`{"content":[{"type":["@@"],"text":"a"}]}`,
	`{"content":[{"type":"@@","type":"image","data":"AAAA","mimeType":"image/png"}]}`,
	`{"content":[{"type":"text","text":"a"}],"content":"@@"}`,
	`"@@"`,
	`["@@",{"x":"@@"}]`,
	`{"x":{"@@":null}}`,
	`error{"code":-32000,"message":"@@"}`,
	`error{"code":-32000,"message":"m","data":{"x":"@@"}}`,
	`error{"code":-32000,"message":"m","x":"@@"}`,
}

// freeTokens is what a message may hold uncounted at most: the free members.
const freeTokens = 512 / 2

func zebras(raw ...[]byte) int { return bytes.Count(bytes.Join(raw, nil), []byte("zebra")) }

type countedRecord struct {
	Kind, Context string
	Audit         struct {
		Tool   string
		Tokens struct{ Delivered int }
	}
}

// Whatever the form of an answer, no more text of the server is delivered than is charged, and in a
// branch no more than it has.
func TestEveryFormIsCounted(t *testing.T) {
	t.Parallel()
	const fill, budget = 20000, 3000
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	var inMain []int
	evaded := 0
	for _, form := range hidden {
		member, raw := "result", form
		if e, ok := strings.CutPrefix(form, "error"); ok {
			member, raw = "error", e
		}
		ask := func(branch string) int {
			m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{%q:%s,"fill":%d%s}}`, member, raw, fill, branch))
			if err != nil {
				t.Fatal(err)
			}
			return zebras(m.Result, m.Error)
		}
		b := create(t, c, ctx, map[string]any{"budget": budget}).BranchID
		got := ask(`,"branch_id":"` + b + `"`)
		if s := statusOf(t, c, ctx, b); got > s.BudgetUsed+freeTokens || got > budget {
			evaded++
			t.Errorf("%s: a branch of %d received %d tokens for %d", form, budget, got, s.BudgetUsed)
		}
		if r, err := c.Call(ctx, "tools/call", `{"name":"branch_return","arguments":{"branch_id":"`+b+`","message":""}}`); err != nil {
			t.Fatal(err, r)
		}
		inMain = append(inMain, ask(""))
	}
	g.stop()
	var charged []int
	for _, r := range traceAs[countedRecord](g) {
		if strings.HasPrefix(r.Kind, "mcp/response:tools/call") && r.Context == "" && r.Audit.Tool == "raw" {
			charged = append(charged, r.Audit.Tokens.Delivered)
		}
	}
	if len(charged) != len(hidden) {
		t.Fatalf("%d records of calls in main, want %d", len(charged), len(hidden))
	}
	folded := 0
	for i, form := range hidden {
		if inMain[i] > charged[i]+freeTokens {
			evaded++
			t.Errorf("%s: main received %d tokens, and %d are recorded", form, inMain[i], charged[i])
		}
		whole := strings.HasPrefix(form, `{"resultType":"future"`) || strings.HasPrefix(form, `{"resultType":"input_required","inputRequests"`)
		whole = whole && !strings.Contains(form, `"content":[`)
		if inMain[i] < 1000 {
			folded++
		}
		if whole != (inMain[i] >= fill) || !whole && inMain[i] >= 1000 {
			t.Errorf("%s: main received %d tokens", form, inMain[i])
		}
	}
	t.Logf("%d of %d got past the count; %d of %d folded in main", evaded, 2*len(hidden), folded, len(hidden))
}

// The same holds for the forms of an answer to tasks/get and tasks/result, for the branch of the call
// that made the task.
func TestEveryFormOfATaskIsCounted(t *testing.T) {
	t.Parallel()
	const fill, budget = 20000, 3000
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "attribution: {implicit: off}\nfolding: {max_branches_per_minute: 1000, max_concurrent_per_session: 1000, max_concurrent_per_instance: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	for _, form := range hidden {
		answer := `{"result":` + form + `}`
		if e, ok := strings.CutPrefix(form, "error"); ok {
			answer = `{"error":` + e + `}`
		}
		for _, method := range []string{"tasks/get", "tasks/result"} {
			for _, b := range []string{"", create(t, c, ctx, map[string]any{"budget": budget}).BranchID} {
				call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","task":{},"arguments":{"fill":%d,"task":%s,"result":{"task":{"taskId":"t%s","status":"working"}},"branch_id":%q}}`, fill, answer, b, b))
				m, err := c.Call(ctx, method, `{"taskId":"t`+b+`"}`)
				if err != nil {
					t.Fatal(err)
				}
				got, used := zebras(m.Result, m.Error), budget
				if b != "" {
					used = statusOf(t, c, ctx, b).BudgetUsed
				} else if strings.HasPrefix(form, `{"resultType":"future","x"`) || strings.HasPrefix(form, `{"resultType":"input_required","inputRequests"`) {
					continue // passes whole
				}
				if got > used+freeTokens || got > budget || b == "" && got > 1000 {
					t.Errorf("%s: %s in %q received %d tokens for %d", form, method, b, got, used)
				}
			}
		}
	}
}

// Messages of a server during a call are charged to the call's branch. What does not fit is not
// delivered, and ends the branch.
func TestMessagesAreCounted(t *testing.T) {
	t.Parallel()
	forms := []struct{ tool, args string }{
		{"log", `"params":{"level":"error","data":"@@"}`},
		{"log", `"params":{"level":"error","data":{"x":["@@"]}}`},
		{"log", `"params":{"level":"error","data":{"@@":1}}`},
		{"log", `"params":{"level":"error","data":"a","logger":"@@"}`},
		{"log", `"params":{"level":"@@","data":"a"}`},
		{"log", `"params":{"level":"error","data":"a","x":"@@"}`},
		{"log", `"params":{"level":"error","data":"a","@@":"x"}`},
		{"log", `"params":{"level":"error","data":"a","_meta":{"x":"@@"}}`},
		{"log", `"method":"notifications/@@","params":{}`},
		{"log", `"method":"notifications/resources/updated","params":{"uri":"fake://a","x":"@@"}`},
		{"log", `"method":"notifications/resources/updated","params":{"uri":"fake://a","_meta":{"x":"@@"}}`},
		{"log", `"method":"notifications/resources/updated","params":{"uri":"@@"}`},
		{"progress", `"count":1,"text":"@@"`},
		{"elicit", `"params":{"message":"@@","requestedSchema":{"type":"object","properties":{}}}`},
		{"elicit", `"params":{"message":"a","requestedSchema":{"type":"object","properties":{"x":{"type":"string","description":"@@"}}}}`},
		{"elicit", `"params":{"message":"a","requestedSchema":{"type":"object","properties":{"@@":{"type":"string"}}}}`},
		{"elicit", `"params":{"mode":"url","message":"a","elicitationId":"@@","url":"http://x/"}`},
		{"elicit", `"method":"x/@@","params":{}`},
		{"sample", `"params":{"messages":[{"role":"user","content":{"type":"text","text":"@@"}}],"maxTokens":10}`},
		{"sample", `"params":{"messages":[{"role":"@@","content":{"type":"text","text":"a"}}],"maxTokens":10}`},
		{"sample", `"params":{"messages":[{"role":"user","content":[{"type":"tool_result","toolUseId":"x","content":[{"type":"text","text":"@@"}]}]}],"maxTokens":10}`},
		{"sample", `"params":{"messages":[],"systemPrompt":"@@","maxTokens":10}`},
		{"sample", `"params":{"messages":[],"tools":[{"name":"t","description":"@@","inputSchema":{"type":"object"}}],"maxTokens":10}`},
		{"sample", `"params":{"messages":[],"metadata":{"x":"@@"},"maxTokens":10}`},
		{"unknown", `"params":{"x":"@@"}`}, // last: it goes on after its call
	}
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 1000, max_concurrent_per_session: 1000, max_concurrent_per_instance: 1000}\n"))
			c := g.answering(ctx, era)
			call(t, c, ctx, "tools/list", `{}`)
			for _, tt := range forms {
				for _, fill := range []int{500, 20000} {
					const budget = 3000
					heard := zebras(c.Received()...)
					b := create(t, c, ctx, map[string]any{"budget": budget}).BranchID
					m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__%s","arguments":{%s,"fill":%d,"branch_id":%q},"_meta":{"progressToken":"p","io.modelcontextprotocol/logLevel":"debug"}}`, tt.tool, tt.args, fill, b))
					if err != nil {
						t.Fatal(err)
					}
					s := statusOf(t, c, ctx, b)
					got := zebras(c.Received()...) - heard
					if got > s.BudgetUsed+freeTokens || got > budget {
						t.Errorf("%s %s: a branch of %d received %d tokens for %d", tt.tool, tt.args, budget, got, s.BudgetUsed)
					}
					if fill > budget != (s.Status == "failed" && s.Reason == "budget_exhausted") {
						t.Errorf("%s %s, %d words: the branch is %s %s after %.300s%.300s", tt.tool, tt.args, fill, s.Status, s.Reason, m.Result, m.Error)
					}
					if fill < budget && got < fill {
						t.Errorf("%s %s: %d of %d words arrived: %.300s%.300s", tt.tool, tt.args, got, fill, m.Result, m.Error)
					}
				}
			}
		})
	}
}

// A message that arrives when its call is over is the branch's. If the branch has ended, nobody hears it.
func TestMessagesAfterTheirCall(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	later := func(fill, ms int, b string) {
		tool(t, c, ctx, "fake__log", fmt.Sprintf(`{"params":{"level":"error","data":"@@"},"fill":%d,"ms":%d,"branch_id":%q}`, fill, ms, b))
	}
	await := func(what string, done func() bool) {
		t.Helper()
		for !done() {
			if ctx.Err() != nil {
				t.Fatal(what)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	b := create(t, c, ctx, map[string]any{"budget": 3000}).BranchID
	later(500, 50, b)
	await("the message never arrived", func() bool { return zebras(c.Received()...) == 500 })
	if s := statusOf(t, c, ctx, b); s.BudgetUsed < 500 {
		t.Errorf("500 tokens after the call cost the branch %d", s.BudgetUsed)
	}
	later(20000, 50, b)
	await("20000 tokens after the call left the branch open", func() bool { return statusOf(t, c, ctx, b).Reason == "budget_exhausted" })
	b = create(t, c, ctx, map[string]any{"budget": 3000}).BranchID
	later(400, 300, b)
	tool(t, c, ctx, "branch_return", `{"branch_id":"`+b+`","message":""}`)
	await("the last message never came", func() bool { return len(g.trace("--kind", "mcp/notification:notifications/message")) == 3 })
	later(7, 50, "") // main hears its own
	await("the message of main never arrived", func() bool { return zebras(c.Received()...)%10 == 7 })
	if got := zebras(c.Received()...); got != 507 {
		t.Errorf("%d words arrived, want 507", got)
	}
}

// Progress of a call that is over is its branch's, also while a call of another branch is at the server.
func TestLateProgress(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, mcpclient.Legacy)
		call(t, c, ctx, "tools/list", `{}`)
		own, other := create(t, c, ctx, map[string]any{"budget": 3000}).BranchID, create(t, c, ctx, map[string]any{"budget": 3000}).BranchID
		file := filepath.Join(t.TempDir(), "go on")
		_, wait, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{"wait":%q,"result":{"content":[]},"branch_id":%q},"_meta":{"progressToken":"theirs"}}`, file, other))
		if err != nil {
			t.Fatal(err)
		}
		call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__log","arguments":{"method":"notifications/progress","params":{"progressToken":"own","progress":1,"message":"@@"},"fill":500,"ms":300,"branch_id":%q},"_meta":{"progressToken":"\u006fwn"}}`, own))
		tool(t, c, ctx, "fake__text", fmt.Sprintf(`{"text":"x","branch_id":%q}`, other))
		until(t, "the progress comes", func() bool { return len(g.trace("--kind", "mcp/notification:notifications/progress")) == 1 })
		write(t, file, "")
		if _, err := wait(); err != nil {
			t.Fatal(err)
		}
		if s, o := statusOf(t, c, ctx, own), statusOf(t, c, ctx, other); s.BudgetUsed < 500 || o.BudgetUsed > 200 {
			t.Errorf("%s: 500 tokens of progress cost their branch %d, and another %d", transport, s.BudgetUsed, o.BudgetUsed)
		}
		if got := zebras(c.Received()...); got != 500 {
			t.Errorf("%s: %d words arrived, want 500", transport, got)
		}
	}
}

// The progress token of a task lasts as long as the task: its branch pays, whatever call is at the server.
func TestProgressOfTask(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	own, other := create(t, c, ctx, map[string]any{"budget": 3000}).BranchID, create(t, c, ctx, map[string]any{"budget": 3000}).BranchID
	call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","arguments":{"result":{"task":{"taskId":"t1","status":"working","ttl":60000}},"branch_id":%q},"task":{},"_meta":{"progressToken":"job"}}`, own))
	for range 70 { // more than foldgate remembers
		tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	}
	tool(t, c, ctx, "fake__log", fmt.Sprintf(`{"method":"notifications/progress","params":{"progressToken":"job","progress":1,"message":"@@"},"fill":500,"branch_id":%q}`, other))
	if s, o := statusOf(t, c, ctx, own), statusOf(t, c, ctx, other); s.BudgetUsed < 500 || o.BudgetUsed > 200 {
		t.Errorf("500 tokens of progress cost the task's branch %d, and another %d", s.BudgetUsed, o.BudgetUsed)
	}
}

// The answer of a host's model is charged too.
func TestSamplingIsCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.unstarted("stdio", mcpclient.Legacy)
	c.Capabilities = `{"sampling":{}}`
	c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
		if m.ID == nil {
			return nil, nil
		}
		return json.RawMessage(`{"role":"assistant","model":"m","content":{"type":"text","text":"` + strings.Repeat("horse ", 3000) + `"}}`), nil
	}
	startHost(t, ctx, c)
	call(t, c, ctx, "tools/list", `{}`)
	b := create(t, c, ctx, map[string]any{"budget": 1000}).BranchID
	m, err := c.Call(ctx, "tools/call", `{"name":"fake__sample","arguments":{"params":{"messages":[],"maxTokens":10},"branch_id":"`+b+`"}}`)
	if s := statusOf(t, c, ctx, b); err != nil || s.Reason != "budget_exhausted" {
		t.Errorf("a model's answer of 3000 tokens in a branch of 1000: %+v, %.300s %v", s, m.Result, err)
	}
}

// The result in the state of a task folds, and the branch of the call pays for it.
func TestTaskStateIsCounted(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		result, asked := `{"resultType":"task","taskId":"t","status":"working"}`, ""
		if era == mcpclient.Legacy {
			result, asked = `{"task":{"taskId":"t","status":"working"}}`, `"task":{},`
		}
		for _, budget := range []int{0, 4000, 40} {
			branch, used := "", 0
			if budget > 0 {
				branch = create(t, c, ctx, map[string]any{"budget": budget}).BranchID
			}
			call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw",%s"arguments":{"result":%s,"branch_id":%q}}`, asked, result, branch))
			if budget > 0 {
				used = statusOf(t, c, ctx, branch).BudgetUsed
			}
			m, err := c.Call(ctx, "tasks/get", `{"taskId":"t"}`)
			if err != nil || m.Error != nil && budget != 40 {
				t.Fatal(err, string(m.Error))
			}
			var task struct {
				TaskID, Status string
				Result         json.RawMessage
			}
			if m.Error == nil {
				if err := json.Unmarshal(m.Result, &task); err != nil || task.TaskID != "t" || task.Status != "completed" || task.Result == nil {
					t.Errorf("budget %d: no task: %.300s, %v", budget, m.Result, err)
				}
			}
			got := zebras(m.Result)
			if got > 1000 || budget > 0 && got > budget {
				t.Errorf("budget %d: %d tokens delivered: %.300s", budget, got, m.Result)
			}
			if budget > 0 {
				if s := statusOf(t, c, ctx, branch); s.BudgetUsed-used < got || budget == 40 && s.Reason != "budget_exhausted" {
					t.Errorf("%d tokens delivered, charged from %d: %+v", got, used, s)
				}
			}
			if budget != 40 && handleForm.FindString(string(m.Result)) == "" {
				t.Errorf("budget %d: not folded: %.300s", budget, m.Result)
			}
		}
	})
}

// Small news of a task are delivered, and the branch of its call pays for them. Large ones are not: the
// host gets the result by tasks/get, folded.
func TestTaskNewsAreCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "attribution: {implicit: off}\nfolding: {max_branches_per_minute: 100, max_concurrent_per_session: 100}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	task := 0
	for _, form := range []string{
		`"status":"working","statusMessage":"@@"`,
		`"status":"completed","result":{"content":[{"type":"text","text":"@@"}]}`,
		`"status":"completed","result":{"content":[],"structuredContent":{"x":["@@"]}}`,
		`"status":"failed","error":{"code":-32000,"message":"@@"}`,
		`"status":"failed","error":{"code":-32000,"message":"m","data":"@@"}`,
		`"status":"working","_meta":{"x":"@@"}`,
		`"status":"working","x":{"@@":1}`,
	} {
		for _, method := range []string{"notifications/tasks", "notifications/tasks/status"} {
			for _, branch := range []string{"", create(t, c, ctx, map[string]any{"budget": 8000}).BranchID} {
				task++
				call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw","task":{},"arguments":{"result":{"task":{"taskId":"t%d","status":"working"}},"branch_id":%q}}`, task, branch))
				used, heard := 0, zebras(c.Received()...)
				if branch != "" {
					used = statusOf(t, c, ctx, branch).BudgetUsed
				}
				for _, fill := range []int{400, 1000, 20000} {
					call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__log","arguments":{"method":%q,"params":{"taskId":"t%d",%s},"fill":%d}}`, method, task, form, fill))
				}
				if got := zebras(c.Received()...) - heard; got != 400 {
					t.Errorf("%s, %s, in %q: %d words arrived, want 400", method, form, branch, got)
				}
				if branch != "" {
					if paid := statusOf(t, c, ctx, branch).BudgetUsed - used; paid < 400 || paid > 500 {
						t.Errorf("%s, %s: the branch paid %d for 400 words", method, form, paid)
					}
				}
			}
		}
	}
}

// The error of a failed task folds like any error, wherever it stands, and the branch of the call pays.
func TestErrorsOfTasksFold(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), "folding: {max_branches_per_minute: 100}\n"))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		result, asked := `{"resultType":"task","taskId":"t","status":"working"}`, ""
		if era == mcpclient.Legacy {
			result, asked = `{"task":{"taskId":"t","status":"working"}}`, `"task":{},`
		}
		for _, form := range []string{
			`{"result":{"resultType":"complete","taskId":"t","status":"failed","error":{"code":-32123,"message":"@@","data":{"why":"lion"}}}}`,
			`{"result":{"resultType":"complete","taskId":"t","status":"failed","error":{"code":-32123,"message":"m","data":{"x":"@@","why":"lion"}}}}`,
			`{"error":{"code":-32123,"message":"@@","data":{"why":"lion"}}}`,
		} {
			for _, method := range []string{"tasks/get", "tasks/result"} {
				for _, budget := range []int{0, 4000} {
					branch, named, used := "", "", 0
					if budget > 0 {
						branch = create(t, c, ctx, map[string]any{"budget": budget}).BranchID
						named = `,"branch_id":"` + branch + `"`
					}
					call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"fake__raw",%s"arguments":{"fill":11000,"task":%s,"result":%s,"branch_id":%q}}`, asked, form, result, branch))
					if budget > 0 {
						used = statusOf(t, c, ctx, branch).BudgetUsed
					}
					m, err := c.Call(ctx, method, `{"taskId":"t"}`)
					if err != nil {
						t.Fatal(err)
					}
					got := string(m.Result) + string(m.Error)
					if zebras([]byte(got)) > 1000 || !strings.Contains(got, `"code":-32123`) || m.Error == nil && !strings.Contains(got, `"status":"failed"`) {
						t.Fatalf("%s, %s, branch of %d: %.300s", method, form, budget, got)
					}
					if budget > 0 {
						if s := statusOf(t, c, ctx, branch); s.BudgetUsed-used < zebras([]byte(got)) || s.Status != "active" {
							t.Errorf("%s, %s: %d tokens before, %+v", method, form, used, s)
						}
					}
					if read := tool(t, c, ctx, "branch_read", `{"handle":"`+handleIn(t, got)+`","grep":"lion"`+named+`}`); !strings.Contains(said(t, read), "lion") {
						t.Errorf("%s, %s: the data of the error was not stored: %s", method, form, read.Result)
					}
				}
			}
		}
	})
}

// The error of a tool folds like a failed result, so that it can be read on.
func TestErrorsFold(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	b := create(t, c, ctx, map[string]any{"budget": 3000}).BranchID
	for _, branch := range []string{"", `,"branch_id":"` + b + `"`} {
		m, err := c.Call(ctx, "tools/call", `{"name":"fake__raw","arguments":{"error":{"code":-32123,"message":"@@ end","data":{"why":"lion"}},"fill":20000`+branch+`}}`)
		if err != nil || zebras(m.Error) > 1000 || !strings.Contains(string(m.Error), `"code":-32123`) {
			t.Fatalf("%.300s%.300s, %v", m.Error, m.Result, err)
		}
		read := tool(t, c, ctx, "branch_read", `{"handle":"`+handleIn(t, string(m.Error))+`","grep":"lion"`+branch+`}`)
		if !strings.Contains(said(t, read), "lion") {
			t.Errorf("the data of the error was not stored: %s", read.Result)
		}
	}
	if s := statusOf(t, c, ctx, b); s.Status != "active" || s.BudgetUsed < 50 {
		t.Errorf("%+v", s)
	}
	if m, err := c.Call(ctx, "tools/call", `{"name":"fake__raw","arguments":{"error":{"code":-32123,"message":"@@"},"fill":1800}}`); err != nil || zebras(m.Error) != 1800 {
		t.Errorf("a small error: %.300s, %v", m.Error, err)
	}
}

// The error of any method folds like a tool's, whatever part of it is large: it keeps its code, what it
// says is charged, and all of it can be read on. A branch that has less than a preview needs gets as
// much as it has, and ends.
func TestErrorsOfAllMethodsFold(t *testing.T) {
	t.Parallel()
	methods := [][2]string{
		{"x/unknown", `"a":1`},
		{"resources/read", `"uri":"fake://a"`},
		{"prompts/get", `"name":"fake__greet"`},
		{"completion/complete", `"ref":{"type":"ref/prompt","name":"fake__greet"},"argument":{"name":"who","value":"x"}`},
		{"tasks/get", `"taskId":"none"`},
		{"tasks/cancel", `"taskId":"none"`},
		{"resources/subscribe", `"uri":"fake://b"`},
	}
	places := []string{
		`"message":"@@","data":"lion"`,
		`"message":"m","data":"@@ lion"`,
		`"message":"m","data":{"x":["@@"],"why":"lion"}`,
		`"message":"m","x":"@@ lion"`,
		`"message":{"x":"@@ lion"}`,
	}
	folded, asked := 0, 0
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, strings.Replace(fakeConfig(recordFile(t), ""), "]}", "], tools: {allow: [raw]}}", 1)+
			"folding: {max_branches_per_minute: 1000, max_concurrent_per_session: 1000, max_concurrent_per_instance: 1000}\n")
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		for _, m := range methods {
			if era == mcpclient.Modern && m[0] == "resources/subscribe" {
				continue // not in this era
			}
			for _, place := range places {
				tool(t, c, ctx, "fake__raw", `{"fill":11000,"result":{"resultType":"complete","content":[]},"answers":{"`+m[0]+`":{"error":{"code":-32123,`+place+`}}}}`)
				for _, budget := range []int{0, 4000, 60} {
					branch, meta := "", ""
					if budget > 0 {
						branch = create(t, c, ctx, map[string]any{"budget": budget}).BranchID
						meta = `,"_meta":{"io.github.foldgate/branch_id":"` + branch + `"}`
					}
					r, err := c.Call(ctx, m[0], `{`+m[1]+meta+`}`)
					if err != nil {
						t.Fatal(err)
					}
					got, s := zebras(r.Error, r.Result), status{}
					if budget > 0 {
						s = statusOf(t, c, ctx, branch)
					}
					asked++
					if budget == 60 {
						if got > budget || s.Reason != "budget_exhausted" {
							t.Errorf("%s, %s: a branch of %d received %d tokens: %+v %.300s", m[0], place, budget, got, s, r.Error)
						}
						continue
					}
					var e struct {
						Code    int
						Message *string
					}
					if json.Unmarshal(r.Error, &e) != nil || e.Code != -32123 || e.Message == nil || got > 1000 {
						t.Errorf("%s, %s, branch of %d: %d words: %.300s", m[0], place, budget, got, r.Error)
						continue
					}
					if budget > 0 && (s.Status != "active" || s.BudgetUsed < got) {
						t.Errorf("%s, %s: %d words for %+v", m[0], place, got, s)
					}
					folded++
					read := tool(t, c, ctx, "branch_read", fmt.Sprintf(`{"handle":%q,"grep":"lion","branch_id":%q}`, handleIn(t, *e.Message), branch))
					if !strings.Contains(said(t, read), "lion") {
						t.Errorf("%s, %s: not all of the error was stored: %s", m[0], place, read.Result)
					}
				}
			}
		}
		if era == mcpclient.Legacy { // goes to all servers, so the host gets no error of one
			tool(t, c, ctx, "fake__raw", `{"fill":11000,"result":{"resultType":"complete","content":[]},"answers":{"logging/setLevel":{"error":{"code":-32123,"message":"@@"}}}}`)
			if r := call(t, c, ctx, "logging/setLevel", `{"level":"error"}`); string(r.Result) != `{}` {
				t.Errorf("logging/setLevel: %.300s", r.Result)
			}
		}
	})
	t.Logf("%d of %d errors folded", folded, asked)
}

// The news of a resource are due to a subscription, if the host has one to the resource or to one above
// it, and not to a call that happens to be under way. Else they are the call's.
func TestNewsOfResources(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), ""))
			c := g.connect(ctx, transport, mcpclient.Legacy)
			call(t, c, ctx, "tools/list", `{}`)
			call(t, c, ctx, "resources/subscribe", `{"uri":"fake://a"}`)
			for _, tt := range []struct {
				uri   string
				calls bool // the call pays
			}{{"fake://a", false}, {"fake://a/part", false}, {"fake://b", true}} {
				b, heard := create(t, c, ctx, map[string]any{"budget": 3000}).BranchID, zebras(c.Received()...)
				tool(t, c, ctx, "fake__log", fmt.Sprintf(`{"method":"notifications/resources/updated","params":{"uri":%q,"x":"@@"},"fill":500,"branch_id":%q}`, tt.uri, b))
				for zebras(c.Received()...) < heard+500 {
					if time.Sleep(5 * time.Millisecond); ctx.Err() != nil {
						t.Fatalf("%s: %d of 500 words arrived", tt.uri, zebras(c.Received()...)-heard)
					}
				}
				if s := statusOf(t, c, ctx, b); s.BudgetUsed >= 500 != tt.calls {
					t.Errorf("%s: the branch paid %d for 500 words", tt.uri, s.BudgetUsed)
				}
			}
		})
	}
}

// A late message that branch_status shows is charged to the branch of the call.
func TestLateMessagesAreCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	child := create(t, c, ctx, map[string]any{"budget": 30}).BranchID
	tool(t, c, ctx, "fake__huge", `{"bytes":4000,"branch_id":"`+child+`"}`)
	tool(t, c, ctx, "branch_return", `{"branch_id":"`+child+`","message":"`+strings.Repeat("zebra ", 8000)+`"}`)
	p := create(t, c, ctx, map[string]any{"budget": 400}).BranchID
	status := func() int {
		m := call(t, c, ctx, "tools/call", `{"name":"branch_status","arguments":{"branch_id":"`+child+`"},"_meta":{"io.github.foldgate/branch_id":"`+p+`"}}`)
		var seen struct{ StructuredContent struct{ Message string } }
		unmarshal(t, m.Result, &seen)
		return zebras([]byte(seen.StructuredContent.Message))
	}
	if first, again, s := status(), status(), statusOf(t, c, ctx, p); first > 400 || again > 0 || s.Reason != "budget_exhausted" {
		t.Errorf("a branch of 400 received %d and %d tokens: %+v", first, again, s)
	}
}

// Answers to methods that foldgate does not know are charged to the branch that they name.
func TestUnknownMethodsAreCounted(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{"budget": 400}).BranchID
	ask := func(n int) mcpclient.Message {
		m, err := c.Call(ctx, "x/read", `{"text":"`+strings.Repeat("zebra ", n)+`","_meta":{"io.github.foldgate/branch_id":"`+b+`"}}`)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m, s := ask(100), statusOf(t, c, ctx, b); zebras(m.Result) != 100 || s.BudgetUsed < 100 {
		t.Errorf("%s%s, %+v", m.Result, m.Error, s)
	}
	if m, s := ask(1000), statusOf(t, c, ctx, b); zebras(m.Result, m.Error) > 300 || s.Reason != "budget_exhausted" {
		t.Errorf("%.300s%.300s, %+v", m.Result, m.Error, s)
	}
}
