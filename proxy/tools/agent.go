package tools

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/runner"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	lastTurn = 30 * time.Second // for the message of a branch whose time or budget is over
	forever  = math.MaxInt64    // the branch has a deadline of its own
	// agentThread is the thread of an agent that opens or returns branches, so that its parent counts as
	// another connection, which reads the message once.
	agentThread = "foldgate/run"
)

// metaBranch is the key of _meta that names the branch which a branch_create ran, for programs.
const metaBranch = wire.MetaPrefix + "branch_id"

// agent is the model of a branch that runs by itself. It implements [runner.Branch].
type agent struct {
	t      *Tools
	parent *Request // the branch_create
	branch folding.Branch
	llm    config.LLM
	model  runner.Model
	names  map[string]string // of the tools that are shown, by the names that the model gets
	cancel context.CancelCauseFunc
	done   chan struct{} // closed once answer is set
	answer agentAnswer
	calls  atomic.Int64
	taken  atomic.Bool // its message was delivered

	mu        sync.Mutex // guards what follows
	turns     int        // begun
	turnsDone int
	turned    chan struct{} // closed and replaced after each turn
	last      time.Time     // when a turn began, or the last one ended
	sent      int           // tokens of the conversation so far, as far as known
}

// agentAnswer is what the parent reads of an agent. BranchID is left out if it needs no more than the message.
type agentAnswer struct {
	BranchID string `json:"branch_id,omitempty"`
	Status   string `json:"status"`
	Message  string `json:"message,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
	Digest   string `json:"digest,omitempty"`
}

// checkRun returns an error if branches can't run by themselves.
func (t *Tools) checkRun() error {
	switch {
	case t.open == nil:
		return folding.Errorf(folding.ErrInvalidInput, "run: branches do not run by themselves here: leave run out, and do the subtask with its branch_id")
	case !t.Config().LLM.Runs():
		return folding.Errorf(folding.ErrInvalidInput, "run: no model is configured: the operator sets llm.api, llm.url and llm.model (docs/folding.md); leave run out, and do the subtask with its branch_id")
	}
	return nil
}

// start starts the agent of a branch.
func (t *Tools) start(r *Request, b folding.Branch) *agent {
	cfg := t.Config().LLM
	a := &agent{
		t: t, parent: r, branch: b, llm: cfg, model: t.open(cfg), names: map[string]string{},
		done: make(chan struct{}), turned: make(chan struct{}), last: time.Now(),
	}
	lifetime, cancel := context.WithCancelCause(r.Lifetime())
	a.cancel = cancel
	t.mu.Lock()
	t.agents[b.ID] = a
	t.mu.Unlock()
	t.wg.Go(func() {
		defer cancel(nil)
		a.run(lifetime)
	})
	return a
}

// awaitOne returns the answer of the branch_create that started an agent. It waits for the message if wait is
// set, but not longer than hosts do.
func (t *Tools) awaitOne(ctx context.Context, r *Request, a *agent, wait bool) ([]byte, error) {
	limit := answerWithin
	switch {
	case r.Call.Origin.Thread == agentThread: // the agent of the parent branch has all the time that its branch has
		limit = forever
	case !wait:
		limit = 0
	}
	if err := waitFor(ctx, r, []*agent{a}, limit); err != nil {
		a.cancel(err) // the host no longer wants it
		return nil, err
	}
	return a.result(ctx, r.Call), nil
}

// awaitAll waits for agents, and returns what their parent reads of them, the oldest first.
func (t *Tools) awaitAll(ctx context.Context, r *Request, agents []*agent, limit time.Duration) ([]byte, error) {
	slices.SortFunc(agents, func(a, b *agent) int {
		return cmp.Or(a.branch.CreatedAt.Compare(b.branch.CreatedAt), strings.Compare(a.branch.ID, b.branch.ID))
	})
	if err := waitFor(ctx, r, agents, limit); err != nil {
		return nil, err
	}
	if len(agents) == 1 {
		return agents[0].result(ctx, r.Call), nil
	}
	var all struct {
		Branches []agentAnswer `json:"branches"`
	}
	for _, a := range agents {
		answer := a.take(ctx)
		answer.BranchID = a.branch.ID // tells them apart
		all.Branches = append(all.Branches, answer)
	}
	return structured(r.Call, all), nil
}

// agentsOf returns the agents that a caller may wait for, in no order: the one of a branch, or all that
// were started in its session and are no tasks. The host itself fetches the results of tasks.
func (t *Tools) agentsOf(caller folding.Caller, branchID string) (found []*agent) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, a := range t.agents {
		of := a.parent.Call.Caller()
		// It is not known which of the callers without a session started an agent.
		if t.sees(caller, of) && (id == branchID || branchID == "" && t.tasks[id] == nil && caller.Session != "" && of.Session == caller.Session && of.Thread == caller.Thread) {
			found = append(found, a)
		}
	}
	return found
}

// sees reports whether a caller may learn of what another one started.
func (t *Tools) sees(caller, of folding.Caller) bool {
	return of.Principal == caller.Principal && of.Subject == caller.Subject &&
		(of.Session == caller.Session || t.Config().Folding.SessionValidation != folding.ValidationStrict)
}

// waitFor waits until the agents are done, but not longer than limit, and tells the host how far they are.
func waitFor(ctx context.Context, r *Request, agents []*agent, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	tell, before, total := teller(r), 0, 0
	for _, a := range agents {
		total += a.llm.MaxTurns
	}
	for _, a := range agents {
		for waiting := true; waiting; {
			_, turned := a.progress()
			select {
			case <-a.done:
				waiting = false
			case <-turned:
			case <-tick.C:
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			done, _ := a.progress()
			tell(before+done, total)
		}
		before += a.llm.MaxTurns
	}
	return nil
}

// progress returns the number of finished turns, and a channel that is closed after the next one.
func (a *agent) progress() (done int, turned <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turnsDone, a.turned
}

// isDone reports whether the agent has its answer.
func (a *agent) isDone() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// result returns what the parent reads of the agent alone.
func (a *agent) result(ctx context.Context, c *interceptor.Call) []byte {
	c.Outcome.Checked, c.Outcome.Clean = true, true // the message was scrubbed when it was returned
	return rawjson.Set(structured(c, a.take(ctx)), rawjson.Quote(a.branch.ID), "_meta", metaBranch)
}

// take returns the answer of an agent for its parent, and forgets the agent if it is done. Only the first who
// takes it gets the message.
func (a *agent) take(ctx context.Context) agentAnswer {
	if !a.isDone() {
		return agentAnswer{BranchID: a.branch.ID, Status: "running"}
	}
	if a.taken.Swap(true) {
		answer := a.answer
		answer.Message = ""
		return answer
	}
	defer a.forget() // last: without an agent, branch_status takes the message that the branch has
	caller := a.parent.Call.Caller()
	if b, err := a.t.Branches.Resolve(caller, a.branch.ID); b.ID != "" && err != nil { // it is read now, and must not be twice
		if _, err := a.t.Branches.TakeMessage(context.WithoutCancel(ctx), caller, b); err != nil {
			a.t.Log.Warn("a message may be shown again", "branch_id", b.ID, "err", err)
		}
	}
	return a.answer
}

func (a *agent) forget() {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	delete(a.t.agents, a.branch.ID)
}

// run runs the branch to its end.
func (a *agent) run(ctx context.Context) {
	defer close(a.done)
	defer time.AfterFunc(answerKept, a.forget)
	b := a.branch
	task := "Task: " + b.Description
	if b.Prompt != "" {
		task += "\n\n" + b.Prompt
	}
	if b.Handles != "" {
		task += "\n\nResults that branch_read reads here: " + b.Handles
	}
	if text, cost, _ := a.t.memories(ctx, a.parent, b); cost > 0 && a.t.Branches.Pay(b.ID, cost) == cost {
		task += "\n\n" + text
	}
	r := runner.Run{Branch: a, Prompt: task, Tools: a.tools(ctx), MaxTurns: a.llm.MaxTurns, MaxOutput: a.llm.MaxOutput}
	if err := r.Do(ctx); err != nil {
		reason, end := folding.ReasonModelFailed, context.WithoutCancel(ctx)
		if ctx.Err() != nil {
			reason = folding.ReasonCancelled
		}
		if _, eerr := a.t.Branches.End(end, b.ID, reason, err.Error()); eerr != nil && !errors.Is(eerr, folding.ErrNotFound) {
			a.t.Log.Error("branch that ran by itself not ended", "branch_id", b.ID, "err", eerr)
		}
	}
	a.mu.Lock()
	a.last = time.Now()
	a.mu.Unlock()
	if a.answer.Status != "" { // Return has set it
		return
	}
	ended, _ := a.t.Branches.Resolve(a.caller(), b.ID)
	if ended.Status != folding.StatusCompleted && !ended.Late { // otherwise branch_return has done it
		a.t.remember(a.parent, ended)
	}
	a.answer = agentAnswer{Status: string(ended.Status), Message: ended.Message, Reason: ended.Reason, Error: ended.Error, Digest: ended.Digest}
	if a.answer.Status == "" {
		a.answer = agentAnswer{Status: string(folding.StatusFailed), Reason: folding.ReasonStorageFailed}
	}
}
