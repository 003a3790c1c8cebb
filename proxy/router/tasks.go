package router

import (
	"bytes"
	"slices"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
)

type task struct {
	server string // its key
	tool   string
	branch string // id of the branch that pays for the result; "" in main
}

type tasks struct {
	mu   sync.Mutex
	byID map[string]task
	ids  []string // oldest first
}

// maxTasks is how many tasks a session remembers, or all modern hosts of a principal together. The
// oldest is forgotten first. Its server is found by asking each, and the caller pays.
const maxTasks = 1000

// task returns the task with that id, the zero value if it is not known.
func (ts *tasks) task(id string) task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.byID[id]
}

// note remembers the server that made a task, and by which call.
func (ts *tasks) note(result []byte, c *interceptor.Call) {
	if _, asked := rawjson.Get(c.Target.Params, "task"); !asked && !strings.HasPrefix(c.Target.Method, "tasks/") {
		if !bytes.Contains(result, []byte(`"taskId"`)) {
			return
		}
		if kind, _ := rawjson.GetString(result, "resultType"); kind != "task" { // a modern server decides itself
			return
		}
	}
	id, ok := rawjson.GetString(result, "task", "taskId")
	if !ok {
		if id, ok = rawjson.GetString(result, "taskId"); !ok {
			return
		}
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, known := ts.byID[id]
	if !known {
		if len(ts.ids) == maxTasks {
			delete(ts.byID, ts.ids[0])
			ts.ids = slices.Delete(ts.ids, 0, 1)
		}
		ts.ids = append(ts.ids, id)
	}
	if t.server = c.Target.Server; c.Target.Method == "tools/call" {
		if t.tool = c.Target.Name; c.Attribution.Branch != nil {
			t.branch = c.Attribution.Branch.ID
		}
	}
	if ts.byID == nil {
		ts.byID = map[string]task{}
	}
	ts.byID[id] = t
}
