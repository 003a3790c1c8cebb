//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// A branch that runs as a task is at one replica. A request about it that reaches another one is passed on.
func TestTasksBehindReplicas(t *testing.T) {
	t.Parallel()
	release, stuck := make(chan struct{}), make(chan struct{})
	defer close(stuck)
	stub := startModel(t,
		llmstub.Agent{Name: "stuck", Match: func(r llmstub.Request) bool { return strings.Contains(r.First("user"), "Task: stuck") },
			Play: func(llmstub.Request) (llmstub.Reply, error) {
				<-stuck
				return llmstub.Reply{Text: "too late"}, nil
			}},
		llmstub.Agent{Name: "branch", Play: func(llmstub.Request) (llmstub.Reply, error) {
			<-release
			return llmstub.Reply{Text: "it is here"}, nil
		}})
	f := newFleet(t, 3, userPrincipals()+fmt.Sprintf("llm: {api: openai, url: %q, model: m, key: k}\n", stub.URL()))
	for n, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			c := f.host(f.url, era, n, `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`)
			startHost(t, ctx, c)
			asked := ""
			if era == mcpclient.Legacy {
				asked = `,"task":{}`
			}
			create := func(description string) string {
				m := call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"branch_create","arguments":{"description":%q,"run":true}%s}`, description, asked))
				var made struct {
					TaskID string
					Task   struct{ TaskID string }
				}
				if err := json.Unmarshal(m.Result, &made); err != nil || made.TaskID+made.Task.TaskID == "" {
					t.Fatalf("branch_create answered %s", m.Result)
				}
				return made.TaskID + made.Task.TaskID
			}
			// everywhere sends a request to each replica.
			everywhere := func(method, id string, wants ...string) {
				t.Helper()
				for range f.all {
					m := call(t, c, ctx, method, fmt.Sprintf(`{"taskId":%q}`, id))
					for _, want := range wants {
						if !strings.Contains(string(m.Result), want) {
							t.Errorf("%s = %s, want %s", method, m.Result, want)
						}
					}
				}
			}
			id, gone := create("look"), create("stuck")
			everywhere("tasks/get", gone, `"working"`, `"taskId":"`+gone+`"`)
			if n == 0 {
				everywhere("tasks/get", id, `"working"`)
				close(release)
			}
			if era == mcpclient.Legacy {
				everywhere("tasks/result", id, "it is here", `{"taskId":"`+id+`"}`)
				everywhere("tasks/list", "", `"taskId":"`+id+`"`, `"taskId":"`+gone+`"`)
				call(t, c, ctx, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, gone))
			} else {
				until(t, "the task is over", func() bool {
					return strings.Contains(string(call(t, c, ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)).Result), "it is here")
				})
				everywhere("tasks/cancel", gone)
				everywhere("tasks/update", gone)
			}
			until(t, "the task is cancelled", func() bool {
				return strings.Contains(string(call(t, c, ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, gone)).Result), `"cancelled"`)
			})
			everywhere("tasks/get", gone, `"cancelled"`)
			// The id of the branch names the replica, too, whatever names it.
			branch := "br_" + id[strings.Index(id, "br_")+3:]
			for range f.all {
				if s := statusOf(t, c, ctx, branch); s.Status != "completed" {
					t.Errorf("branch_status = %+v", s)
				}
			}
			// Others know nothing of the task, wherever they ask.
			other := f.host(f.url, era, n+2, `{}`)
			startHost(t, ctx, other)
			for range f.all {
				if m, err := other.Call(ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)); err != nil || m.Error == nil {
					t.Errorf("tasks/get of another principal = %s, %v", m.Result, err)
				}
			}
		})
	}

	// A task made while the replica of its principal was down is found after that is back.
	ctx, home := testContext(t), f.all[0]
	owned := func(n int) bool {
		_, name := f.branchOfUser(t, n)
		return name == home.name()
	}
	n := 4
	for n < allUsers && !owned(n) {
		n++
	}
	if n == allUsers {
		t.Fatal("no principal is at the first replica") // by chance once in 3000 runs
	}
	f.hosts.stop() // before their sessions go with the replica
	home.kill()
	var id string
	until(t, "another replica takes the principal", func() bool {
		c := mcpclient.HTTP(f.all[1].url, mcpclient.Legacy, "Authorization", "Bearer "+userToken(n))
		f.hosts.closes(c)
		if _, err := c.Start(ctx); err != nil {
			return false
		}
		m, err := c.Call(ctx, "tools/call", `{"name":"branch_create","arguments":{"description":"opened"},"task":{}}`)
		var made struct{ Task struct{ TaskID string } }
		_ = json.Unmarshal(m.Result, &made)
		id = made.Task.TaskID
		return err == nil && id != ""
	})
	home.start()
	f.settled(len(f.all))
	c := f.host(home.url, mcpclient.Modern, n, `{}`)
	if m, err := c.Call(ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)); err != nil || !strings.Contains(string(m.Result), "completed") {
		t.Errorf("tasks/get of %s at another replica = %s %s, %v", id, m.Result, m.Error, err)
	}
}
