package router

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

type task struct {
	server string // its key
	tool   string
	branch string    // id of the branch that pays for the result; "" in main
	token  string    // the wire.TokenKey of the progress token of its call; "" for none
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

// ofToken returns the open task of a server whose call has a progress token, the zero value if there is none.
func (ts *tasks) ofToken(server, token string) task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, id := range slices.Backward(ts.ids) {
		if t := ts.byID[id]; token != "" && t.server == server && t.token == token && !t.over {
			return t
		}
	}
	return task{}
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

// note remembers the server that made a task, and by which call. A modern server may make one that the host
// has not asked for.
func (ts *tasks) note(result []byte, c *interceptor.Call, modern bool) {
	if _, asked := rawjson.Get(c.Target.Params, "task"); !asked && !strings.HasPrefix(c.Target.Method, "tasks/") {
		if !modern {
			return
		}
		if kind, _ := rawjson.GetString(result, "resultType"); kind != "task" {
			return
		}
	}
	described, ok := rawjson.Get(result, "task")
	if !ok {
		described = result
	}
	id, ok := rawjson.GetString(described, "taskId")
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if !ok && c.Target.Method == interceptor.MethodTaskResult { // the host has the result
		id, _ = rawjson.GetString(c.Target.Params, "taskId")
		if t, known := ts.byID[id]; known {
			t.over = true
			ts.byID[id] = t
		}
	}
	if !ok {
		return
	}
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
		token, _ := rawjson.Get(c.Target.Params, "_meta", "progressToken")
		t.token = wire.TokenKey(token)
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

// listedTasks is a page of tasks/list, or why there is none.
type listedTasks struct {
	Tasks      []json.RawMessage `json:"tasks"`
	NextCursor string            `json:"nextCursor,omitempty"`
	err        error
}

// answerTaskList serves tasks/list with a page of each server, the first one after foldgate's own tasks, if own. A
// server that fails is left out, and its failure recorded and logged. The cursor has the servers' cursors, by key.
func (r *request) answerTaskList(ctx context.Context, c *interceptor.Call, own bool) (*interceptor.Result, error) {
	rt, cursors := r.s.rt, map[string]string{}
	given, later := rawjson.GetString(c.Target.Params, "cursor")
	malformed := later && json.Unmarshal([]byte(given), &cursors) != nil
	asked := slices.DeleteFunc(slices.Clone(r.servers), func(srv *upstream.Server) bool {
		_, more := cursors[srv.Key]
		return later && !more
	})
	if malformed || later && len(asked) == 0 {
		return nil, invalidParams("cursor %s is not foldgate's", rt.echo(given))
	}
	pages := make([]listedTasks, len(asked))
	var wg sync.WaitGroup
	for i, srv := range asked {
		wg.Go(func() { pages[i] = r.tasksOf(ctx, c, srv, cursors[srv.Key]) })
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return nil, cause
	}
	c.Outcome.Checked, c.Outcome.Clean = true, !rt.Settings().Config.LetsSecretsThrough() // each page was scrubbed when it was read
	out := listedTasks{Tasks: []json.RawMessage{}}
	if own && !later {
		out.Tasks = rt.Tools.Tasks(c)
	}
	answered, next := own && !later, map[string]string{}
	var fault error
	for i, page := range pages {
		if page.err != nil {
			fault = page.err
			continue
		}
		answered = true
		out.Tasks = append(out.Tasks, page.Tasks...)
		if page.NextCursor != "" {
			next[asked[i].Key] = page.NextCursor
		}
	}
	if !answered {
		return nil, fault
	}
	if len(next) > 0 {
		out.NextCursor = string(rawjson.Marshal(next))
	}
	return &interceptor.Result{Body: rawjson.Marshal(out)}, nil
}

// tasksOf reads a page of a server's tasks. It is a call of foldgate's own, like the reading of other lists.
func (r *request) tasksOf(ctx context.Context, of *interceptor.Call, srv *upstream.Server, cursor string) (page listedTasks) {
	ctx, cancel := context.WithTimeoutCause(ctx, listWait, fmt.Errorf("upstream %s: tasks/list was not answered within %s", srv.Key, listWait))
	defer cancel()
	by := interceptor.Origin{Identity: of.Origin.Identity, Session: of.Origin.Session, Correlates: []string{of.Outcome.Record}}
	body, _, err := r.s.rt.readPage(ctx, by, srv, of.Target.Method, cursor, func(ctx context.Context) (conn.Conn, error) { return srv.Connection(ctx, r.s.scope) })
	switch {
	case isNoMethod(err): // it has no tasks
		page.err = methodNotFound(r.s.rt.echo(of.Target.Method))
		return page
	case err != nil:
		page.err = err
	default:
		page.err = json.Unmarshal(body, &page)
	}
	if page.err != nil {
		srv.Log.Warn("tasks of an upstream are not listed", "err", page.err)
	}
	return page
}
