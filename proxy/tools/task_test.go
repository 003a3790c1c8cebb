package tools

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/wire"
)

// progressOf keeps the progress that a host is told.
type progressOf struct {
	Requester
	told []struct{ Progress, Total float64 }
}

func (p *progressOf) Notify(m wire.Message) {
	p.told = append(p.told, struct{ Progress, Total float64 }{})
	if err := json.Unmarshal(m.Params, &p.told[len(p.told)-1]); err != nil {
		panic(err)
	}
}

// Each value of progress is greater than the one before, also if less is done than was thought, and the
// total is what all agents may do.
func TestProgressGrows(t *testing.T) {
	p := &progressOf{}
	r := &Request{&interceptor.Call{Target: interceptor.Target{Forward: json.RawMessage(`{"_meta":{"progressToken":1}}`)}}, p}
	tell := teller(r)
	for _, done := range []int{0, 0, 5, 3, 3, 6, 5, 7} {
		tell(done, 10)
	}
	grows := func() {
		t.Helper()
		for i, told := range p.told {
			if i > 0 && told.Progress <= p.told[i-1].Progress {
				t.Errorf("progress %v is followed by %v", p.told[i-1].Progress, told.Progress)
			}
		}
	}
	grows()
	if last := p.told[len(p.told)-1].Progress; last != 7 {
		t.Errorf("after 7 steps the progress is %v", last)
	}
	p.told = nil
	var agents []*agent
	for _, turns := range []int{30, 3} { // a reload came between
		a := &agent{llm: config.LLM{MaxTurns: turns}, done: make(chan struct{}), turnsDone: turns, turned: make(chan struct{})}
		close(a.done)
		agents = append(agents, a)
	}
	if err := waitFor(t.Context(), r, agents, time.Minute); err != nil {
		t.Fatal(err)
	}
	grows()
	if last := p.told[len(p.told)-1]; last.Progress != 33 || last.Total != 33 {
		t.Errorf("at the end the progress is %v of %v, want 33 of 33", last.Progress, last.Total)
	}
}

// aboutTask is a request about a task.
func aboutTask(method string, modern bool) *Request {
	c := &interceptor.Call{
		Origin: interceptor.Origin{Identity: interceptor.Identity{Principal: "p"}, Session: "ses_1", Revision: wire.VersionLegacy},
		Target: interceptor.Target{Method: method, Forward: json.RawMessage(`{"taskId":"br_1"}`)},
	}
	if modern {
		c.Origin.Revision = wire.VersionModern
	}
	return &Request{Call: c}
}

// The state of a task agrees with its result, also if its branch returned while it was cancelled. A modern host
// gets no result with a cancelled task.
func TestCancelledTask(t *testing.T) {
	for _, modern := range []bool{false, true} {
		for status, answer := range map[string]agentAnswer{
			"completed": {Status: "completed", Message: "found"},
			"cancelled": {Status: "failed", Reason: folding.ReasonCancelled},
		} {
			tools := newTools(t, nil, nil)
			a := &agent{t: tools.Tools, parent: aboutTask("tools/call", modern), branch: folding.Branch{ID: "br_1"}, done: make(chan struct{})}
			a.cancel = func(error) { a.answer = answer; close(a.done) }
			tools.newTask(a.parent, a.branch, a, nil)
			body, err := tools.Call(t.Context(), aboutTask("tasks/cancel", modern))
			if refused := status == "completed" && !modern; (err != nil) != refused || modern != (string(body) == `{"resultType":"complete"}`) || !modern && !refused && !strings.Contains(string(body), `"status":"cancelled"`) {
				t.Errorf("modern %v, %s: tasks/cancel = %s, %v", modern, status, body, err)
			}
			body, err = tools.Call(t.Context(), aboutTask("tasks/get", modern))
			if result := modern && status == "completed"; err != nil || !strings.Contains(string(body), `"status":"`+status+`"`) || strings.Contains(string(body), `"result":`) != result {
				t.Errorf("modern %v, %s: tasks/get = %s, %v", modern, status, body, err)
			}
		}
	}
}

// The message of an agent is delivered once, also to two who ask at the same time.
func TestMessageOnce(t *testing.T) {
	tools := newTools(t, nil, nil)
	tools.Limits = func() *interceptor.Limits { return nil }
	for i := range 30 {
		asks := func() *Request { // a session may not make many branches
			r := aboutTask("tools/call", false)
			r.Call.Origin.Session = fmt.Sprint("ses_", i)
			return r
		}
		c := asks().Call
		b, err := tools.Branches.Create(t.Context(), c.Caller(), folding.CreateRequest{Description: "d"})
		if err != nil {
			t.Fatal(err)
		}
		returner := c.Caller()
		returner.Thread = agentThread
		if _, err := tools.Branches.Return(t.Context(), returner, b.ID, "found"); err != nil {
			t.Fatal(err)
		}
		if b, _, err = tools.Branches.Status(t.Context(), c.Caller(), folding.StatusRequest{BranchID: b.ID}); err != nil {
			t.Fatal(err)
		}
		a := &agent{t: tools.Tools, parent: asks(), branch: b, done: make(chan struct{}), answer: agentAnswer{Message: "found"}}
		close(a.done)
		tools.mu.Lock()
		tools.agents[b.ID] = a
		tools.mu.Unlock()
		var got atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if text, err := tools.message(t.Context(), asks().Call, b); err != nil {
					t.Error(err)
				} else if text != "" {
					got.Add(1)
				}
			})
		}
		wg.Wait()
		if n := got.Load(); n != 1 {
			t.Fatalf("the message was delivered %d times", n)
		}
	}
}

// A task that made room for others keeps no memory.
func TestForgottenTasks(t *testing.T) {
	tools := newTools(t, nil, nil)
	used := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const size = 100_000
	fill := func(begin, n int) {
		for i := range n {
			tools.newTask(aboutTask("tools/call", false), folding.Branch{ID: fmt.Sprint("br_", begin+i), Prompt: strings.Repeat("x", size), CreatedAt: time.Now(), ExpiresAt: time.Now().Add(time.Hour)}, nil, []byte(`{}`))
		}
	}
	fill(0, maxTasks)
	before := used()
	fill(maxTasks, 3*maxTasks)
	if after := used(); after > before+maxTasks*size {
		t.Errorf("%d MB are in use after %d more tasks, %d before", after>>20, 3*maxTasks, before>>20)
	}
	if n := len(tools.tasks); n != maxTasks {
		t.Errorf("%d tasks are kept, want %d", n, maxTasks)
	}
}

// Who waits for all branches of a session gets none that is a task: its host fetches the result.
func TestTasksAreNotAwaited(t *testing.T) {
	tools := newTools(t, nil, nil)
	for _, id := range []string{"br_1", "br_2"} {
		a := &agent{t: tools.Tools, parent: aboutTask("tools/call", false), branch: folding.Branch{ID: id}, done: make(chan struct{}), cancel: context.CancelCauseFunc(func(error) {})}
		tools.agents[id] = a
		if id == "br_1" {
			tools.newTask(a.parent, a.branch, a, nil)
		}
	}
	caller := aboutTask("", false).Call.Caller()
	if all := tools.agentsOf(caller, ""); len(all) != 1 || all[0].branch.ID != "br_2" {
		t.Errorf("%d branches are awaited, want the one that is no task", len(all))
	}
	if one := tools.agentsOf(caller, "br_1"); len(one) != 1 {
		t.Error("the branch of a task can't be waited for by its id")
	}
}
