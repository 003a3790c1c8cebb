package server

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/proxy/wire"
)

// The ids of tasks are their servers', or that of a branch. A modern host of a replica sees them with the replica's name, so
// that its later requests find the replica with the connection to that server. A legacy host needs
// none: its session names the replica.

// kindTask begins such an id; the server's own follows the name.
const kindTask = "task_"

// localTaskID removes the name of this replica from the id of the task that a request names.
func (srv *HTTP) localTaskID(req *Request) {
	if srv.opts.Replicas == nil || !strings.HasPrefix(req.Msg.Method, "tasks/") {
		return
	}
	id, _ := rawjson.GetString(req.Msg.Params, "taskId")
	if name, own, _ := replicaid.Cut(kindTask, id); name == srv.opts.Replicas.Name() {
		req.Msg.Params = rawjson.Set(req.Msg.Params, rawjson.Quote(own), "taskId")
	}
}

// globalTaskIDs adds the name of the replica to the ids of tasks in the result of a request.
func (srv *HTTP) globalTaskIDs(req *Request, result json.RawMessage) json.RawMessage {
	if srv.opts.Replicas == nil || !bytes.Contains(result, []byte(`"taskId"`)) {
		return result
	}
	_, asked := rawjson.Get(req.Msg.Params, "task")
	if kind, _ := rawjson.GetString(result, "resultType"); asked || kind == "task" || strings.HasPrefix(req.Msg.Method, "tasks/") {
		result = srv.named(srv.named(result, "taskId"), "task", "taskId")
	}
	if listed, ok := rawjson.Get(result, "tasks"); ok && req.Msg.Method == "tasks/list" {
		all := []json.RawMessage{}
		for t := range rawjson.Elements(listed) {
			all = append(all, srv.named(t, "taskId"))
		}
		result = rawjson.Set(result, rawjson.Marshal(all), "tasks")
	}
	return srv.named(result, "_meta", wire.MetaRelatedTask, "taskId")
}

// emitGlobalTaskIDs wraps emit, which delivers messages of servers: it adds the name of the replica to the
// ids of tasks in them.
func (srv *HTTP) emitGlobalTaskIDs(emit func([]byte) error) func([]byte) error {
	if srv.opts.Replicas == nil {
		return emit
	}
	return func(msg []byte) error {
		if bytes.Contains(msg, []byte(`"taskId"`)) {
			if method, _ := rawjson.GetString(msg, "method"); strings.HasPrefix(method, wire.TaskNews) {
				msg = srv.named(msg, "params", "taskId")
			}
			msg = srv.named(msg, "params", "_meta", wire.MetaRelatedTask, "taskId")
		}
		return emit(msg)
	}
}

func (srv *HTTP) named(object []byte, path ...string) []byte {
	if id, ok := rawjson.GetString(object, path...); ok {
		return rawjson.Set(object, rawjson.Quote(replicaid.New(kindTask, srv.opts.Replicas.Name(), id)), path...)
	}
	return object
}
