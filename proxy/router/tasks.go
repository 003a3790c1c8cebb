package router

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

type task struct {
	server string // its key
	tool   string
	branch string    // id of the branch that pays for the result; "" in main
	until  time.Time // when its server may forget it
	over   bool      // it is cancelled, or the host has its result
}

// maxTaskTTL is how long an open task keeps the connection to its server open, and its group.
const maxTaskTTL = time.Hour

type tasks struct {
	mu   sync.Mutex
	byID map[string]task
	ids  []string // oldest first
}

// maxTasks is how many tasks a session remembers, or the modern hosts of a group together. The
// oldest is forgotten first. Its server is found by asking each, and the caller pays.
const maxTasks = 1000

// task returns the task with that id, the zero value if it is not known.
func (ts *tasks) task(id string) task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.byID[id]
}

// open reports whether a server works on a task or has its result, any server for "".
func (ts *tasks) open(server string) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.byID {
		if (t.server == server || server == "") && !t.over && time.Now().Before(t.until) {
			return true
		}
	}
	return false
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
	described, ok := rawjson.Get(result, "task")
	if !ok {
		described = result
	}
	id, ok := rawjson.GetString(described, "taskId")
	if !ok {
		if c.Target.Method == interceptor.MethodTaskResult {
			id, _ = rawjson.GetString(c.Target.Params, "taskId")
			ts.over(id)
		}
		return
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
		if t.tool, t.over = c.Target.Name, false; c.Attribution.Branch != nil {
			t.branch = c.Attribution.Branch.ID
		}
	}
	if ts.byID == nil {
		ts.byID = map[string]task{}
	}
	_, answered := rawjson.Get(described, "result") // of a modern server
	_, refused := rawjson.Get(described, "error")
	if status, _ := rawjson.GetString(described, "status"); answered || refused || status == "cancelled" {
		t.over = true
	}
	t.until = time.Now().Add(maxTaskTTL)
	ttl, _ := rawjson.Get(described, "ttl") // in milliseconds; null for ever
	if ms, err := strconv.Atoi(string(ttl)); err == nil && ms < int(maxTaskTTL.Milliseconds()) {
		t.until = time.Now().Add(time.Duration(ms) * time.Millisecond)
	}
	ts.byID[id] = t
}

// over notes that the host has the result of a task.
func (ts *tasks) over(id string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t, known := ts.byID[id]; known {
		t.over = true
		ts.byID[id] = t
	}
}

// answerBranchTask serves a request about the task of a branch that runs by itself.
func (r *request) answerBranchTask(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	m, err := r.s.rt.Tools.Task(ctx, &conn.Request{Method: c.Target.Method, Params: c.Target.Forward, HostID: r.Msg.ID, Receiver: r, Call: c})
	if err != nil {
		return nil, err
	}
	return &interceptor.Result{Body: m.Result, Error: m.Error}, nil
}

// answerTaskList serves tasks/list. The first page has foldgate's own tasks before those of a server.
func (r *request) answerTaskList(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
	res := &interceptor.Result{Body: []byte(`{"tasks":[]}`)}
	if len(r.servers) > 0 {
		asked, err := r.askServers(ctx, c)
		if err != nil {
			return nil, err
		}
		if wire.ErrorCode(asked.Error) != wire.CodeMethodNotFound { // else no server has tasks
			res = asked
		}
	}
	if _, later := rawjson.GetString(c.Target.Params, "cursor"); later || res.Error != nil {
		return res, nil
	}
	all := r.s.rt.Tools.Tasks(c)
	listed, _ := rawjson.Get(res.Body, "tasks")
	for t := range rawjson.Elements(listed) {
		all = append(all, t)
	}
	return &interceptor.Result{Body: rawjson.Set(res.Body, rawjson.Marshal(all), "tasks")}, nil
}
