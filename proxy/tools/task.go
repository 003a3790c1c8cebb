package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	maxTasks     = 100 // of a principal; the oldest is forgotten, and its branch goes on
	pollInterval = time.Second
)

// task is a branch_create whose result the host fetches later. Its id is that of the branch.
type task struct {
	caller folding.Caller // that made it
	branch folding.Branch
	agent  *agent // nil if the branch was only opened

	expiry *time.Timer

	mu     sync.Mutex
	result []byte // once it is known; guarded by mu
}

// asTask reports whether the host gets a branch_create as a task. A legacy host asks for it; a modern host says
// that it knows tasks, and gets one if it had to wait.
func (t *Tools) asTask(r *Request, wait bool) bool {
	if t.checkRun() != nil || r.Call.Origin.Thread == agentThread {
		return false
	}
	if modern(r.Call) {
		_, known := rawjson.Get(r.Call.Target.Forward, "_meta", wire.MetaClientCapabilities, "extensions", wire.TasksExtension)
		return known && wait
	}
	asked, _ := rawjson.Get(r.Call.Target.Forward, "task")
	return rawjson.KindOf(asked) == rawjson.Object
}

// newTask makes a task of a branch_create, which has an agent or a result, and returns what the host gets at once.
func (t *Tools) newTask(r *Request, b folding.Branch, a *agent, result []byte) []byte {
	k, id := &task{caller: r.Call.Caller(), branch: b, agent: a, result: result}, b.ID
	k.expiry = time.AfterFunc(k.ttl(), func() { // keeps nothing but the id
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.tasks, id)
	})
	t.mu.Lock()
	own := t.tasksOf(func(other *task) bool { return other.caller.Principal == k.caller.Principal })
	if len(own) >= maxTasks {
		own[0].expiry.Stop()
		delete(t.tasks, own[0].branch.ID)
	}
	t.tasks[b.ID] = k
	t.mu.Unlock()
	if modern(r.Call) {
		return rawjson.Set(k.state(true), []byte(`"task"`), "resultType")
	}
	return rawjson.Marshal(map[string]json.RawMessage{"task": k.state(false)})
}

// tasksOf returns some of the tasks, the oldest first. Tools.mu must be held.
func (t *Tools) tasksOf(which func(*task) bool) (found []*task) {
	for _, k := range t.tasks {
		if which(k) {
			found = append(found, k)
		}
	}
	slices.SortFunc(found, func(a, b *task) int { return a.branch.CreatedAt.Compare(b.branch.CreatedAt) })
	return found
}

// Tasks returns the states of the tasks that a host may list: those of its session.
func (t *Tools) Tasks(c *interceptor.Call) []json.RawMessage {
	states, caller := []json.RawMessage{}, c.Caller()
	t.mu.Lock()
	found := t.tasksOf(func(k *task) bool { return t.sees(caller, k.caller) && caller.Session == k.caller.Session })
	t.mu.Unlock()
	for _, k := range found {
		states = append(states, k.state(modern(c)))
	}
	return states
}

// task returns the task of an id, nil if the caller may not see it or there is none.
func (t *Tools) task(c *interceptor.Call, id string) *task {
	t.mu.Lock()
	defer t.mu.Unlock()
	if k := t.tasks[id]; k != nil && t.sees(c.Caller(), k.caller) {
		return k
	}
	return nil
}

// runsAsTask reports whether a branch runs as a task, so that the host fetches its message.
func (t *Tools) runsAsTask(id string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := t.tasks[id]
	return k != nil && k.agent != nil
}

// HasTask reports whether an id is that of a task of foldgate's own that the caller may see.
func (t *Tools) HasTask(c *interceptor.Call, id string) bool { return t.task(c, id) != nil }

// aboutTask serves a request about a task of foldgate's own.
func (t *Tools) aboutTask(ctx context.Context, r *Request) ([]byte, error) {
	id, _ := rawjson.GetString(r.Call.Target.Forward, "taskId")
	k, isModern := t.task(r.Call, id), modern(r.Call)
	own := interceptor.MethodTaskResult // the method that only this era has
	if isModern {
		own = "tasks/update"
	}
	switch {
	case !slices.Contains([]string{interceptor.MethodTaskGet, "tasks/cancel", own}, r.Call.Target.Method):
		return nil, &wire.Error{Code: wire.CodeMethodNotFound, Message: "Method not found: foldgate's own tasks have no such method"}
	case k == nil: // the same if it is another principal's
		return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "Unknown task: it is over, or was never made"}
	case r.Call.Target.Method == interceptor.MethodTaskGet && isModern && k.status() == statusCompleted:
		return rawjson.Set(k.state(true), k.answer(ctx, r.Call), "result"), nil
	case r.Call.Target.Method == interceptor.MethodTaskGet:
		return k.state(isModern), nil
	case r.Call.Target.Method == interceptor.MethodTaskResult:
		if k.agent != nil {
			if err := waitFor(ctx, r, []*agent{k.agent}, forever); err != nil {
				return nil, err
			}
		}
		return rawjson.Set(k.answer(ctx, r.Call), rawjson.Quote(id), "_meta", wire.MetaRelatedTask, "taskId"), nil
	case r.Call.Target.Method == "tasks/cancel":
		return k.cancel(ctx, r)
	}
	return []byte(`{"resultType":"complete"}`), nil // tasks/update: it never asks for input
}

// ttl is how long the task is kept: as long as its branch can last, and then as long as other answers.
func (k *task) ttl() time.Duration { return k.branch.ExpiresAt.Sub(k.branch.CreatedAt) + answerKept }

// The states of a task.
const (
	statusWorking   = "working"
	statusCompleted = "completed" // there is a result
	statusCancelled = "cancelled"
)

// status returns the state that the task is in.
func (k *task) status() string {
	switch {
	case k.agent == nil:
		return statusCompleted
	case !k.agent.isDone():
		return statusWorking
	case k.agent.answer.Reason == folding.ReasonCancelled:
		return statusCancelled
	}
	return statusCompleted
}

// answer returns the result of a task that is over. A host may fetch it again.
func (k *task) answer(ctx context.Context, c *interceptor.Call) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.result == nil {
		k.result = k.agent.result(ctx, c)
	}
	if k.agent != nil {
		c.Outcome.Checked, c.Outcome.Clean = true, true // as its result says
	}
	return k.result
}

// cancel serves tasks/cancel. The branch may return meanwhile, so a legacy host, which gets the state, waits for
// its end.
func (k *task) cancel(ctx context.Context, r *Request) ([]byte, error) {
	working := k.status() == statusWorking
	if working {
		k.agent.cancel(context.Canceled)
	}
	if modern(r.Call) {
		return []byte(`{"resultType":"complete"}`), nil
	}
	if working {
		if err := waitFor(ctx, r, []*agent{k.agent}, answerWithin); err != nil {
			return nil, err
		}
	}
	if !working || k.status() == statusCompleted {
		return nil, &wire.Error{Code: wire.CodeInvalidParams, Message: "the task is over: it can't be cancelled"}
	}
	return k.state(false), nil
}

// state returns the state of the task, without its result.
func (k *task) state(modern bool) json.RawMessage {
	created := stamp(k.branch.CreatedAt)
	state := map[string]any{"taskId": k.branch.ID, "status": k.status(), "createdAt": created, "lastUpdatedAt": created}
	if k.agent != nil {
		k.agent.mu.Lock()
		state["lastUpdatedAt"], state["statusMessage"] = stamp(k.agent.last), fmt.Sprintf("turn %d of at most %d", k.agent.turns, k.agent.llm.MaxTurns)
		k.agent.mu.Unlock()
	}
	ttl, poll := "ttl", "pollInterval"
	if modern {
		ttl, poll, state["resultType"] = "ttlMs", "pollIntervalMs", "complete"
	}
	state[ttl], state[poll] = k.ttl().Milliseconds(), pollInterval.Milliseconds()
	return rawjson.Marshal(state)
}
