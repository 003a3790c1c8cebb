package server

import (
	"encoding/json"
	"testing"

	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Wherever a result names a task, a modern host sees the name of the replica in its id, and the server gets
// its own id back.
func TestTasksNameTheirReplica(t *testing.T) {
	set, err := replicas.New(replicas.Options{Name: "aaaaa", Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	srv := &HTTP{opts: HTTPOptions{Replicas: set}}
	for _, tt := range []struct{ method, params, result, want string }{
		{"tools/call", `{"task":{}}`, `{"task":{"taskId":"t1"}}`, `{"task":{"taskId":"task_aaaaa_t1"}}`},
		{"tools/call", `{}`, `{"resultType":"task","taskId":"t1"}`, `{"resultType":"task","taskId":"task_aaaaa_t1"}`},
		{"tools/call", `{}`, `{"content":[],"taskId":"t1"}`, `{"content":[],"taskId":"t1"}`},
		{"tasks/get", `{"taskId":"task_aaaaa_t1"}`, `{"taskId":"t1","status":"working"}`, `{"taskId":"task_aaaaa_t1","status":"working"}`},
		{"tasks/list", `{}`, `{"tasks":[{"taskId":"t1"},{"taskId":"t_2","n":1.0}],"nextCursor":"c"}`, `{"tasks":[{"taskId":"task_aaaaa_t1"},{"taskId":"task_aaaaa_t_2","n":1.0}],"nextCursor":"c"}`},
	} {
		req := NewRequest(wire.Message{ID: json.RawMessage("1"), Method: tt.method, Params: json.RawMessage(tt.params)})
		if got := srv.globalTaskIDs(req, json.RawMessage(tt.result)); string(got) != tt.want {
			t.Errorf("%s: the host gets %s, want %s", tt.method, got, tt.want)
		}
		if srv.localTaskID(req); tt.method == "tasks/get" && string(req.Msg.Params) != `{"taskId":"t1"}` {
			t.Errorf("%s: the server gets %s", tt.method, req.Msg.Params)
		}
	}
}
