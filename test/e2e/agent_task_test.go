//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// taskState is what a host reads of a task.
type taskState struct {
	TaskID, Status, StatusMessage, ResultType string
	CreatedAt, LastUpdatedAt                  string
	TTL, TTLMs, PollInterval, PollIntervalMs  int
	Result                                    json.RawMessage
}

// state checks the members that every state of a task has.
func (s taskState) state(t *testing.T, raw json.RawMessage, era mcpclient.Era) taskState {
	t.Helper()
	unmarshal(t, raw, &s)
	ttl, poll := s.TTL, s.PollInterval
	if era == mcpclient.Modern {
		ttl, poll = s.TTLMs, s.PollIntervalMs
	}
	if s.TaskID == "" || s.CreatedAt == "" || s.LastUpdatedAt == "" || ttl < 60000 || poll == 0 || (s.ResultType != "") != (era == mcpclient.Modern) {
		t.Errorf("the state of a task is %s", raw)
	}
	return s
}

// A host that knows tasks gets a branch that runs by itself as one. Only its principal sees the task; its
// result is that of branch_create, scrubbed and recorded like it.
func TestRunAsTask(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			secret := fixtures.Secret()
			turn, stuck := make(chan struct{}), make(chan struct{})
			defer close(stuck)
			g, _, _ := agentGateway(t, "openai", principals(),
				llmstub.Agent{Name: "stuck", Match: func(r llmstub.Request) bool { return strings.Contains(r.First("user"), "Task: stuck") },
					Play: func(llmstub.Request) (llmstub.Reply, error) {
						turn <- struct{}{}
						<-stuck
						return llmstub.Reply{Text: "too late"}, nil
					}},
				play(func(llmstub.Request) (llmstub.Reply, error) {
					turn <- struct{}{}
					<-turn
					return llmstub.Reply{Calls: []llmstub.Call{reading("src/scan.go")}}, nil
				}, returns("it is in a.go, with "+secret)))
			record := recordFile(t) // of a server that has every task it is asked for
			text := read(t, g.config)
			write(t, g.config, strings.Replace(string(text), "upstreams:\n", fakeConfig(record, ""), 1))
			url := g.http()
			c := mcpclient.HTTP(url, era, "Authorization", "Bearer "+tokenOf["alice"])
			c.Capabilities = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
			info, err := c.Start(ctx)
			if err != nil {
				t.Fatal(err)
			}
			g.closes(c)
			bob := g.as(t, url, era, "bob")
			says, asked := `"io.modelcontextprotocol/tasks":{}`, ""
			if era == mcpclient.Legacy {
				says, asked = `"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`, `,"task":{"ttl":1}`
			}
			if !strings.Contains(string(info), says) {
				t.Errorf("the capabilities lack %s: %s", says, info)
			}
			if list := call(t, c, ctx, "tools/list", `{}`); strings.Count(string(list.Result), `"execution":{"taskSupport":"optional"}`) != 1 {
				t.Error("tools/list does not say that branch_create may be a task")
			}
			create := func(arguments string) taskState {
				t.Helper()
				m := call(t, c, ctx, "tools/call", `{"name":"branch_create","arguments":{"description":`+arguments+`}`+asked+`}`)
				if era == mcpclient.Modern {
					s := taskState{}.state(t, m.Result, era)
					if s.ResultType != "task" {
						t.Errorf("branch_create answered %s", m.Result)
					}
					return s
				}
				var made struct{ Task json.RawMessage }
				unmarshal(t, m.Result, &made)
				return taskState{}.state(t, made.Task, era)
			}
			get := func(id string) taskState {
				t.Helper()
				return taskState{}.state(t, call(t, c, ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)).Result, era)
			}
			// result waits for the result of a task, and checks that it can be fetched again.
			result := func(id string) mcpclient.Message {
				t.Helper()
				var all []string
				for range 2 {
					if era == mcpclient.Legacy {
						m := call(t, c, ctx, "tasks/result", fmt.Sprintf(`{"taskId":%q}`, id))
						if related := `"io.modelcontextprotocol/related-task":{"taskId":"` + id + `"}`; !strings.Contains(string(m.Result), related) {
							t.Errorf("the result lacks %s: %s", related, m.Result)
						}
						all = append(all, string(m.Result))
						continue
					}
					until(t, "the task is over", func() bool { return get(id).Result != nil })
					all = append(all, string(get(id).Result))
				}
				if all[0] != all[1] {
					t.Errorf("the result was %s, then %s", all[0], all[1])
				}
				return mcpclient.Message{Result: []byte(all[0])}
			}

			done := create(`"look","run":true`)
			<-turn
			if s := get(done.TaskID); done.Status != "working" || s.Status != "working" || !strings.Contains(s.StatusMessage, "turn 1 of") {
				t.Errorf("a task that began is %+v, then %+v", done, s)
			}
			for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"} {
				if m, err := bob.Call(ctx, method, fmt.Sprintf(`{"taskId":%q}`, done.TaskID)); err != nil || m.Error == nil {
					t.Errorf("%s of another principal: %s, %v", method, m.Result, err)
				}
			}
			if era == mcpclient.Legacy {
				if m := call(t, c, ctx, "tasks/list", `{}`); strings.Count(string(m.Result), `"taskId":"`+done.TaskID+`"`) != 1 {
					t.Errorf("tasks/list = %s", m.Result)
				}
				if m := call(t, bob, ctx, "tasks/list", `{}`); string(m.Result) != `{"tasks":[]}` {
					t.Errorf("tasks/list of another principal = %s", m.Result)
				}
				if m, err := c.Call(ctx, "tasks/get", `{"taskId":"br_00000000-0000-4000-8000-000000000001"}`); err != nil || !strings.Contains(string(m.Error), "-32602") {
					t.Errorf("an unknown task: %s, %v", m.Error, err)
				}
			} else {
				call(t, c, ctx, "tasks/update", fmt.Sprintf(`{"taskId":%q,"inputResponses":{}}`, done.TaskID))
				if m, err := c.Call(ctx, "tasks/list", `{}`); err != nil || m.Error == nil {
					t.Errorf("tasks/list in the modern era = %s, %v", m.Result, err)
				}
			}
			turn <- struct{}{}
			if era == mcpclient.Legacy {
				if m := tool(t, c, ctx, "branch_status", `{"wait_seconds":1}`); strings.Contains(string(m.Result), "it is in a.go") {
					t.Errorf("branch_status has the message of a task: %s", m.Result)
				}
			}
			m := result(done.TaskID)
			if got := own[ran](t, m); got.Status != "completed" || !strings.HasPrefix(got.Message, "it is in a.go, with [REDACTED") {
				t.Errorf("the result of the task is %s", m.Result)
			}
			if s := get(done.TaskID); s.Status != "completed" {
				t.Errorf("afterwards the task is %+v", s)
			}

			gone := create(`"stuck","run":true,"wait":true`)
			<-turn
			if m := call(t, c, ctx, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, gone.TaskID)); era == mcpclient.Legacy {
				if s := (taskState{}).state(t, m.Result, era); s.Status != "cancelled" {
					t.Errorf("the cancelled task is %+v", s)
				}
			} else if string(m.Result) != `{"resultType":"complete"}` {
				t.Errorf("tasks/cancel = %s", m.Result)
			}
			if m, err := c.Call(ctx, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, gone.TaskID)); err != nil || (m.Error == nil) != (era == mcpclient.Modern) {
				t.Errorf("a second tasks/cancel: %s %s, %v", m.Result, m.Error, err)
			}
			if era == mcpclient.Legacy {
				if got := own[ran](t, result(gone.TaskID)); got.Status != "failed" || got.Reason != "cancelled" {
					t.Errorf("the result of the cancelled task is %+v", got)
				}
			}
			until(t, "the task is cancelled", func() bool { return get(gone.TaskID).Status == "cancelled" })
			if s := get(gone.TaskID); s.Result != nil {
				t.Errorf("the cancelled task is %+v", s)
			}

			if era == mcpclient.Legacy { // the host asks for a task, though there is nothing to wait for
				s := create(`"open"`)
				if got := own[struct {
					BranchID string `json:"branch_id"`
				}](t, result(s.TaskID)); s.Status != "completed" || got.BranchID != s.TaskID {
					t.Errorf("the task is %+v, its branch %+v", s, got)
				}
			}
			g.stop()
			g.keepsSecret(secret, c.Received())
			for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel", "tasks/update"} {
				if got := recordedMethod(t, record, method); len(got) > 0 {
					t.Errorf("the server was asked for tasks of branches: %s", got)
				}
			}
			fetched := 0
			for _, r := range g.trace() {
				if strings.HasPrefix(r.Kind, "mcp/response:tasks/") && r.Audit.Tool == "branch_create" && r.Audit.Principal == "alice" && strings.Contains(string(r.Payload), "it is in a.go") {
					fetched++
				}
			}
			if fetched < 2 {
				t.Errorf("the trace has the result %d times", fetched)
			}
			for _, r := range g.trace("--kind", "context/pop") {
				if strings.Contains(r.Context, gone.TaskID) && !strings.Contains(string(r.Payload), `"reason":"cancelled"`) {
					t.Errorf("the cancelled branch ended with %s", r.Payload)
				}
			}
		})
	}
}

// The message of a branch that ran by itself reaches the model once and is charged once, whoever asks first. That
// of a task is in its result only.
func TestMessageOfARunIsReadOnce(t *testing.T) {
	t.Parallel()
	message := strings.TrimSpace(strings.Repeat("found ", 200))
	for _, late := range []bool{false, true} {
		for _, task := range []bool{false, true} {
			t.Run(fmt.Sprintf("late %v, task %v", late, task), func(t *testing.T) {
				t.Parallel()
				ctx := testContext(t)
				stuck := make(chan struct{})
				defer close(stuck)
				g, _, _ := agentGateway(t, "openai", "", llmstub.Agent{Name: "branch", Play: func(r llmstub.Request) (llmstub.Reply, error) {
					if late && !strings.Contains(reads(r.Messages...), "the time of this branch is over") {
						<-stuck
					}
					return returns(message)(r)
				}})
				c := g.connect(ctx, "stdio", mcpclient.Legacy)
				for _, fetchFirst := range []bool{false, true} {
					parent, asked, wait := create(t, c, ctx, map[string]any{"budget": 4000}).BranchID, "", `,"wait":false`
					if task {
						asked, wait = `,"task":{}`, ""
					}
					m := call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"branch_create","arguments":{"description":"look","run":true,"parent_branch_id":%q,"timeout_seconds":1%s}%s}`, parent, wait, asked))
					id := ""
					for _, r := range regexp.MustCompile(`br_[0-9a-f-]{36}`).FindAllString(string(m.Result), -1) {
						if r != parent {
							id = r
						}
					}
					times := 0
					count := func(m mcpclient.Message) { times += min(strings.Count(string(m.Result), message), 1) }
					fetch := func() {
						if task {
							count(call(t, c, ctx, "tasks/result", fmt.Sprintf(`{"taskId":%q}`, id)))
						} else {
							count(tool(t, c, ctx, "branch_status", fmt.Sprintf(`{"branch_id":%q,"wait_seconds":30}`, id)))
						}
					}
					until(t, "the branch is over", func() bool {
						if fetchFirst {
							fetch()
							return true
						}
						m := tool(t, c, ctx, "branch_status", fmt.Sprintf(`{"branch_id":%q}`, id))
						count(m)
						s := own[status](t, m)
						return s.Status != "active" && s.Status != "timeout" || times > 0 || task && late && s.Status == "timeout"
					})
					for _, arguments := range []string{`{"branch_id":%q}`, `{"branch_id":%q,"wait_seconds":30}`, `{"branch_id":%q}`} {
						count(tool(t, c, ctx, "branch_status", fmt.Sprintf(arguments, id)))
					}
					if task && times != 0 && !fetchFirst {
						t.Errorf("branch_status has the message of a task %d times", times)
					}
					fetch()
					m = tool(t, c, ctx, "branch_status", fmt.Sprintf(`{"branch_id":%q}`, id))
					count(m)
					if times != 1 && (times != 2 || !task || !fetchFirst) { // a result is fetched again
						t.Errorf("fetched first %v: the message was read %d times: %s", fetchFirst, times, m.Result)
					}
					if used := statusOf(t, c, ctx, parent).BudgetUsed; used < 200 || used > 400 {
						t.Errorf("fetched first %v: the parent paid %d tokens for a message of 200", fetchFirst, used)
					}
					tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":""}`, parent))
				}
			})
		}
	}
}

// A host that does not know tasks gets the message, as does one that asks for a task where there are none.
func TestNoTask(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g, _, _ := agentGateway(t, "openai", "", play(llmstub.Say("done")))
		c := g.connect(ctx, transport, era)
		asked := ""
		if era == mcpclient.Modern { // the older form of tasks
			asked = `,"task":{}`
		}
		if got := own[ran](t, call(t, c, ctx, "tools/call", `{"name":"branch_create","arguments":{"description":"look","run":true}`+asked+`}`)); got.Message != "done" {
			t.Errorf("the branch answered %+v", got)
		}
	})
	g := newGateway(t, filesConfig(t.TempDir(), ""))
	ctx := testContext(t)
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	m := call(t, c, ctx, "tools/call", `{"name":"branch_create","arguments":{"description":"look"},"task":{}}`)
	if got := own[ran](t, m); got.BranchID == "" {
		t.Errorf("without a model a task was made: %s", m.Result)
	}
	if list := call(t, c, ctx, "tools/list", `{}`); strings.Contains(string(list.Result), "taskSupport") {
		t.Error("without a model the definitions are about tasks")
	}
}
