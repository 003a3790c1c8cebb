package proxy

import (
	"context"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// taskRig is a gateway whose branches can be tasks, before a server that answers requests about tasks.
func taskRig(t *testing.T, modern bool, answer string) *rig {
	up := echoUpstream("2025-11-25")
	rest := up.serve
	up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		if strings.HasPrefix(c.Method, "tasks/") {
			return wire.ParseMessage([]byte(`{"jsonrpc":"2.0","id":1,` + answer + `}`))
		}
		return rest(ctx, l, c)
	}
	return newRigWith(t, modern, map[string]fakeUpstream{"up": up}, func(c *config.Config) {
		c.LLM.API, c.LLM.URL, c.LLM.Model = "openai", "http://127.0.0.1:1/v1", "m"
	})
}

// foldgate lists its own tasks also if the server has none, or fails. A later page has none of them: there the
// error reaches the host.
func TestTaskListWithoutTheServer(t *testing.T) {
	for answer, fault := range map[string]string{
		`"error":{"code":-32601,"message":"no"}`: "-32601",
		`"error":{"code":-32603,"message":"no"}`: "-32603",
		`"result":{"tasks":5}`:                   "-32603",
		`"result":{"tasks":[{"taskId":"its"}]}`:  "",
	} {
		r := taskRig(t, false, answer)
		r.initialize()
		if m := r.exchange(t.Context(), "tasks/list", `{}`); m.Error != nil || strings.Contains(answer, "its") != strings.Contains(string(m.Result), `"its"`) {
			t.Errorf("the server answers %s: %s %s", answer, m.Result, m.Error)
		}
		if m := r.exchange(t.Context(), "tasks/list", `{"cursor":"{\"up\":\"p2\"}"}`); (m.Error != nil) != (fault != "") || !strings.Contains(string(m.Error), fault) {
			t.Errorf("the server answers %s: %s %s", answer, m.Result, m.Error)
		}
	}
}

// The id of a branch names no task of a server, unless that server made it: no server is asked for it.
func TestBranchIDIsNoTaskOfAServer(t *testing.T) {
	const id = `{"taskId":"br_00000000-0000-4000-8000-000000000001"}`
	for _, modern := range []bool{false, true} {
		r := taskRig(t, modern, `"result":{"taskId":"br_00000000-0000-4000-8000-000000000001","status":"working"}`)
		if !modern {
			r.initialize()
		}
		r.ok("tasks/get", `{"taskId":"its"}`) // now foldgate knows that its server made the other
		r.ok("tasks/get", id)
		other := strings.Replace(id, "1\"", "2\"", 1)
		if m := r.exchange(t.Context(), "tasks/get", other); !strings.Contains(string(m.Error), "-32602") || !strings.Contains(string(m.Error), "Unknown task") {
			t.Errorf("modern %v: tasks/get of an unknown branch: %s %s", modern, m.Result, m.Error)
		}
		if n := len(r.last("up").sent("tasks/get")); n != 2 {
			t.Errorf("modern %v: the server was asked %d times, want 2", modern, n)
		}
	}
}

// Without a server to ask, a method about one task has no such task, and others do not exist.
func TestUnknownTaskOrMethod(t *testing.T) {
	for _, modern := range []bool{false, true} {
		meta := ""
		if modern {
			meta = `,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}`
		}
		r := newRigWith(t, modern, nil, func(c *config.Config) {
			c.LLM.API, c.LLM.URL, c.LLM.Model = "openai", "http://127.0.0.1:1/v1", "m"
		})
		for method, known := range map[string]bool{"tasks/get": true, "tasks/cancel": true, "tasks/result": !modern, "tasks/update": modern, "tasks/foo": false} {
			want := "-32601"
			if known {
				want = "-32602"
			}
			if m := r.exchange(t.Context(), method, `{"taskId":"none"`+meta+`}`); !strings.Contains(string(m.Error), want) {
				t.Errorf("modern %v: %s = %s %s, want %s", modern, method, m.Result, m.Error, want)
			}
			if m := r.exchange(t.Context(), method, `{}`); !strings.Contains(string(m.Error), "-32601") {
				t.Errorf("modern %v: %s without an id = %s %s, want -32601", modern, method, m.Result, m.Error)
			}
		}
		if m := r.exchange(t.Context(), "tasks/list", `{}`); modern != strings.Contains(string(m.Error), "-32601") {
			t.Errorf("modern %v: tasks/list = %s %s", modern, m.Result, m.Error)
		}
	}
}
