package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/runner"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	parallelCalls = 8                // of one turn
	lastTurn      = 30 * time.Second // for the message of a branch whose time or budget is over
	forever       = math.MaxInt64    // the branch has a deadline of its own
	// runThread is the thread of a run that opens or returns branches, so that its parent counts as another
	// connection, which reads the message once.
	runThread = "foldgate/run"
)

// metaBranch is the key of _meta that names the branch which a branch_create ran, for programs.
const metaBranch = wire.MetaPrefix + "branch_id"

// run is a branch that runs by itself. It implements [runner.Branch].
type run struct {
	t      *Tools
	parent *conn.Request // the branch_create
	branch folding.Branch
	llm    config.LLM
	model  runner.Model
	names  map[string]string // of the tools that are shown, by the names that the model gets
	cancel context.CancelCauseFunc
	done   chan struct{} // closed once answer is set
	answer runAnswer
	calls  atomic.Int64

	mu     sync.Mutex    // guards what follows
	turns  int           // begun
	over   int           // of them
	turned chan struct{} // closed and replaced after each turn
	last   time.Time     // when a turn began, or the run ended
	sent   int           // tokens of the conversation so far, as far as known

	expiry *time.Timer // forgets the answer; nil while the branch runs. Guarded by Tools.mu
}

// runAnswer is what the parent reads of a run. BranchID is left out if it needs no more than the message.
type runAnswer struct {
	BranchID string `json:"branch_id,omitempty"`
	Status   string `json:"status"`
	Message  string `json:"message,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Error    string `json:"error,omitempty"`
	Digest   string `json:"digest,omitempty"`
}

// mayRun returns why no branch can run by itself.
func (t *Tools) mayRun() error {
	switch {
	case t.models == nil:
		return folding.Errorf(folding.ErrInvalidInput, "run: branches do not run by themselves here: leave run out, and do the subtask with its branch_id")
	case !t.Config().LLM.Runs():
		return folding.Errorf(folding.ErrInvalidInput, "run: no model is configured: the operator sets llm.api, llm.url and llm.model (docs/folding.md); leave run out, and do the subtask with its branch_id")
	}
	return nil
}

// start starts a branch that runs by itself.
func (t *Tools) start(r *conn.Request, b folding.Branch) *run {
	cfg := t.Config().LLM
	x := &run{
		t: t, parent: r, branch: b, llm: cfg, model: t.models.Open(cfg), names: map[string]string{},
		done: make(chan struct{}), turned: make(chan struct{}), last: time.Now(),
	}
	lifetime, cancel := context.WithCancelCause(t.router.Lifetime(r))
	x.cancel = cancel
	t.mu.Lock()
	t.runs[b.ID] = x
	t.mu.Unlock()
	t.wg.Go(func() {
		defer cancel(nil)
		x.run(lifetime)
	})
	return x
}

// ran returns the answer of the branch_create that started a run. It waits for the message if wait is set, but
// not longer than hosts do.
func (t *Tools) ran(ctx context.Context, r *conn.Request, x *run, wait bool) ([]byte, error) {
	limit := answerWithin
	switch {
	case r.Call.Origin.Thread == runThread: // the model of the parent branch has all the time that its branch has
		limit = forever
	case !wait:
		limit = 0
	}
	if err := t.wait(ctx, r, []*run{x}, limit); err != nil {
		x.cancel(err) // the host no longer wants it
		return nil, err
	}
	return t.single(ctx, r.Call, x), nil
}

// runsOf returns the runs that a caller may wait for: the one of a branch, or all that were started in its
// session, in no order.
func (t *Tools) runsOf(caller folding.Caller, branchID string) (runs []*run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, x := range t.runs {
		of := x.parent.Call.Caller()
		// Of callers without a session nobody knows which of them began a run.
		if t.sees(caller, of) && (id == branchID || branchID == "" && caller.Session != "" && of.Session == caller.Session && of.Thread == caller.Thread) {
			runs = append(runs, x)
		}
	}
	return runs
}

// sees reports whether a caller may learn of what another one started.
func (t *Tools) sees(caller, of folding.Caller) bool {
	return of.Principal == caller.Principal && of.Subject == caller.Subject &&
		(of.Session == caller.Session || t.Config().Folding.SessionValidation != folding.ValidationStrict)
}

// wait waits until the runs are over, but not longer than limit, and tells the host how far they are.
func (t *Tools) wait(ctx context.Context, r *conn.Request, runs []*run, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for i := 0; i < len(runs); {
		x := runs[i]
		x.mu.Lock()
		turned := x.turned
		x.mu.Unlock()
		select {
		case <-x.done:
			i++
			continue
		default:
		}
		select {
		case <-x.done:
		case <-turned:
		case <-tick.C:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		x.mu.Lock()
		over := x.over
		x.mu.Unlock()
		progress(r, i*x.llm.MaxTurns+over, len(runs)*x.llm.MaxTurns)
	}
	return nil
}

// statusOfRuns waits for runs and returns what their parent reads of them, the oldest first.
func (t *Tools) statusOfRuns(ctx context.Context, r *conn.Request, runs []*run, limit time.Duration) ([]byte, error) {
	slices.SortFunc(runs, func(a, b *run) int {
		return cmp.Or(a.branch.CreatedAt.Compare(b.branch.CreatedAt), strings.Compare(a.branch.ID, b.branch.ID))
	})
	if err := t.wait(ctx, r, runs, limit); err != nil {
		return nil, err
	}
	if len(runs) == 1 {
		return t.single(ctx, r.Call, runs[0]), nil
	}
	var all struct {
		Branches []runAnswer `json:"branches"`
	}
	for _, x := range runs {
		answer := x.take(ctx)
		answer.BranchID = x.branch.ID // tells them apart
		all.Branches = append(all.Branches, answer)
	}
	return interceptor.ToolResult(rawjson.Marshal(all), false, typed(r.Call)), nil
}

// single returns what the parent reads of one run.
func (t *Tools) single(ctx context.Context, c *interceptor.Call, x *run) []byte {
	c.Outcome.Checked, c.Outcome.Clean = true, true // the message was scrubbed when it was returned
	return rawjson.Set(interceptor.ToolResult(rawjson.Marshal(x.take(ctx)), false, typed(c)), rawjson.Quote(x.branch.ID), "_meta", metaBranch)
}

// take returns the answer of a run for its parent, and forgets the run if it is over.
func (x *run) take(ctx context.Context) runAnswer {
	select {
	case <-x.done:
	default:
		return runAnswer{BranchID: x.branch.ID, Status: "running"}
	}
	t := x.t
	t.mu.Lock()
	delete(t.runs, x.branch.ID)
	if x.expiry != nil {
		x.expiry.Stop()
	}
	t.mu.Unlock()
	caller := x.parent.Call.Caller()
	if b, err := t.Branches.Resolve(caller, x.branch.ID); b.ID != "" && err != nil { // it is read now, and must not be twice
		if _, err := t.Branches.TakeMessage(context.WithoutCancel(ctx), caller, b); err != nil {
			t.Log.Warn("a message may be shown again", "branch_id", b.ID, "err", err)
		}
	}
	return x.answer
}

// run runs the branch to its end.
func (x *run) run(ctx context.Context) {
	defer close(x.done)
	defer func() {
		x.mu.Lock()
		x.last = time.Now()
		x.mu.Unlock()
		x.t.mu.Lock()
		defer x.t.mu.Unlock()
		x.expiry = time.AfterFunc(answerKept, func() {
			x.t.mu.Lock()
			defer x.t.mu.Unlock()
			delete(x.t.runs, x.branch.ID)
		})
	}()
	b := x.branch
	task := "Task: " + b.Description
	if b.Prompt != "" {
		task += "\n\n" + b.Prompt
	}
	if b.Handles != "" {
		task += "\n\nResults that branch_read reads here: " + b.Handles
	}
	if text, cost, _ := x.t.memories(ctx, x.parent, b); cost > 0 && x.t.Branches.Pay(b.ID, cost) == cost {
		task += "\n\n" + text
	}
	r := runner.Run{Branch: x, Prompt: task, Tools: x.tools(ctx), MaxTurns: x.llm.MaxTurns, MaxOutput: x.llm.MaxOutput, Parallel: parallelCalls}
	err := r.Do(ctx)
	if err != nil {
		reason, end := folding.ReasonModelFailed, context.WithoutCancel(ctx)
		if ctx.Err() != nil {
			reason = folding.ReasonCancelled
		}
		if _, eerr := x.t.Branches.End(end, b.ID, reason, err.Error()); eerr != nil && !errors.Is(eerr, folding.ErrNotFound) {
			x.t.Log.Error("branch that ran by itself not ended", "branch_id", b.ID, "err", eerr)
		}
	}
	if x.answer.Status != "" { // Return has set it
		return
	}
	ended, _ := x.t.Branches.Resolve(x.caller(), b.ID)
	if ended.Status != folding.StatusCompleted && !ended.Late { // else finish has
		x.t.remember(x.parent, ended)
	}
	x.answer = runAnswer{Status: string(ended.Status), Message: ended.Message, Reason: ended.Reason, Error: ended.Error, Digest: ended.Digest}
	if x.answer.Status == "" {
		x.answer = runAnswer{Status: string(folding.StatusFailed), Reason: folding.ReasonStorageFailed}
	}
}

// toolName has the characters that a tool's name may not have at the endpoints.
var toolName = regexp.MustCompile(`[^A-Za-z0-9_-]`)

const maxToolName = 64

// tools returns the tools of the model, and sets names: foldgate's own, then those that a batch may call and
// llm.tools selects. They stay as they are for the whole run, so that endpoints can cache them.
func (x *run) tools(ctx context.Context) (all []runner.Tool) {
	own := []int{1, 3, 4} // branch_return, branch_read, branch_run
	if x.branch.Depth < x.t.Config().Folding.MaxDepth {
		own = append(own, 0)
	}
	var list []json.RawMessage
	for _, i := range own {
		d := definitions[i]
		left, _ := rawjson.Get(d, "inputSchema", "properties")
		for _, name := range []string{"branch_id", "parent_branch_id", "session_id", "run", "wait", "handles"} {
			left = rawjson.Delete(left, name)
		}
		d = rawjson.Set(d, left, "inputSchema", "properties")
		switch i {
		case 0:
			d = rawjson.Set(d, []byte(`"Have a subtask done apart from this conversation, and get its message. prompt must have all it needs."`), "description")
		case 1:
			d = rawjson.Set(rawjson.Set(d, []byte(`"End this branch, and give its caller the result."`), "description"), []byte(`["message"]`), "inputSchema", "required")
		}
		list = append(list, d)
	}
	for _, d := range x.t.agents.Callable(ctx, x.parent) {
		if name, _ := rawjson.GetString(d, "name"); x.llm.Selects(name) {
			list = append(list, d)
		}
	}
	for _, d := range list {
		shown, _ := rawjson.GetString(d, "name")
		description, _ := rawjson.GetString(d, "description")
		schema, ok := rawjson.Get(d, "inputSchema")
		if !ok || rawjson.KindOf(schema) != rawjson.Object {
			schema = json.RawMessage(`{"type":"object","properties":{}}`)
		}
		name := toolName.ReplaceAllString(shown, "_")
		name = name[:min(len(name), maxToolName)]
		for n := 2; x.names[name] != ""; n++ {
			suffix := fmt.Sprintf("_%d", n)
			name = name[:min(len(name), maxToolName-len(suffix))] + suffix
		}
		x.names[name] = shown
		all = append(all, runner.Tool{Name: name, Description: description, Schema: schema})
	}
	return all
}

// caller is the client that makes the calls of the run.
func (x *run) caller() folding.Caller {
	c := x.parent.Call.Caller()
	c.Thread = runThread
	return c
}

// call begins a call of the run.
func (x *run) call(id, method string) *interceptor.Call {
	parent := &x.parent.Call.Origin
	return &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Identity: parent.Identity, Session: parent.Session, From: "foldgate",
			Revision: parent.Revision, ID: rawjson.Quote(x.branch.ID + "/" + id), Correlates: []string{x.parent.Call.Outcome.Record}, Traceparent: parent.Traceparent,
		},
		Target:      interceptor.Target{Method: method, Metered: true},
		Attribution: interceptor.Attribution{BranchID: x.branch.ID, Source: interceptor.SourceCause},
	}
}

// Left implements [runner.Branch].
func (x *run) Left() (line, why string, err error) {
	b, err := x.t.Branches.Resolve(x.caller(), x.branch.ID)
	if err == nil {
		left := time.Until(b.ExpiresAt).Round(time.Second)
		return fmt.Sprintf("%d of %d tokens, %.0f s", b.BudgetTotal-b.BudgetUsed, b.BudgetTotal, max(left.Seconds(), 0)), "", nil
	}
	switch b.Reason {
	case folding.ReasonTimeout:
		return "", "the time of this branch is over", nil
	case folding.ReasonBudgetExhausted:
		return "", "the budget of this branch is spent", nil
	}
	return "", "", err
}

// Call implements [runner.Branch].
func (x *run) Call(ctx context.Context, name string, arguments json.RawMessage) (text string, isError bool) {
	shown := cmp.Or(x.names[name], name)
	switch shown {
	case "branch_create":
		arguments = rawjson.Set(arguments, rawjson.Quote(x.branch.Session), "session_id")
		arguments = rawjson.Set(rawjson.Set(arguments, rawjson.Quote(x.branch.ID), "parent_branch_id"), []byte("true"), "run")
	case "branch_read", "branch_run":
		arguments = rawjson.Set(arguments, rawjson.Quote(x.branch.ID), "branch_id")
	default:
		if Has(shown) || x.names[name] == "" {
			return fmt.Sprintf("there is no tool %.64q here", name), true
		}
	}
	res, err := x.do(ctx, shown, arguments)
	if err != nil {
		return x.t.Boundary.Text(err.Error()), true
	}
	text, structured := res.Text()
	if kind, _ := rawjson.GetString(res.Body, "resultType"); kind == "input_required" {
		return "the tool asks for input, which a branch that runs by itself can't give", true
	}
	return cmp.Or(text, structured, "(no text)"), res.Failed()
}

// do makes a call of a tool in the branch.
func (x *run) do(ctx context.Context, shown string, arguments json.RawMessage) (*interceptor.Result, error) {
	c := x.call(fmt.Sprint(x.calls.Add(1)), "tools/call")
	if c.Target.Name, c.Target.Arguments = shown, arguments; shown == "branch_create" || shown == runner.ReturnTool {
		c.Origin.Thread = runThread
	}
	return x.t.router.CallTool(ctx, x.parent, c)
}

// Return implements [runner.Branch].
func (x *run) Return(ctx context.Context, message string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTurn)
	defer cancel()
	res, err := x.do(ctx, runner.ReturnTool, rawjson.Marshal(map[string]string{"branch_id": x.branch.ID, "message": message}))
	if err != nil {
		return err
	}
	text, _ := res.Text()
	if res.Failed() {
		return errors.New(text)
	}
	var out struct{ Message, Status, Reason string }
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return fmt.Errorf("the answer of branch_return: %w", err)
	}
	x.answer = runAnswer{Status: cmp.Or(out.Status, string(folding.StatusCompleted)), Message: out.Message, Reason: out.Reason}
	return nil
}

// Ask implements [runner.Branch]. The request to the model is a call down the chain, so it is recorded and
// scrubbed like a server's question to the model of a host.
func (x *run) Ask(ctx context.Context, r *runner.Request, next runner.Message) (answer runner.Message, err error) {
	used := folding.CallOutcome{Tool: "model"}
	lease, err := x.t.Branches.Acquire(ctx, x.branch.ID)
	if r.Only == "" {
		if err != nil {
			return answer, err
		}
	}
	ended := lease == nil
	if !ended {
		ctx = lease.Context()
		defer func() {
			if err != nil {
				used.Err = err.Error()
			}
			lease.Release(used)
		}()
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, lastTurn)
		defer cancel()
	}
	x.mu.Lock()
	x.turns++
	x.last = time.Now()
	turn, known := x.turns, x.sent
	x.mu.Unlock()
	c := x.call(fmt.Sprintf("turn %d", turn), "sampling/createMessage")
	c.Origin.Direction, c.Target.Metered, c.Target.To = interceptor.FromUpstream, false, "model:"+x.llm.Model
	c.Outcome.Late = ended
	c.Target.Control = true // the last turn is in a branch that may have ended
	sent := struct {
		Messages     []runner.Message `json:"messages"` // what is new
		SystemPrompt string           `json:"systemPrompt,omitempty"`
		MaxTokens    int              `json:"maxTokens"`
		Tools        []string         `json:"tools,omitempty"`
		ToolChoice   string           `json:"toolChoice,omitempty"`
	}{Messages: []runner.Message{next}, MaxTokens: r.MaxTokens, ToolChoice: r.Only}
	if len(r.Messages) == 0 {
		sent.SystemPrompt = r.System
		for _, tool := range r.Tools {
			sent.Tools = append(sent.Tools, tool.Name)
			known += x.t.Counter.Count(tool.Name) + x.t.Counter.Count(tool.Description) + x.t.Counter.CountBytes(tool.Schema)
		}
	}
	c.Target.Params = rawjson.Marshal(sent)
	c.Target.Forward = c.Target.Params
	known += x.t.Counter.CountBytes(c.Target.Params)
	res, err := x.t.agents.Run(ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		var clean struct{ Messages []runner.Message }
		if err := json.Unmarshal(c.Target.Forward, &clean); err != nil {
			return nil, fmt.Errorf("the scrubbed messages can't be read: %w", err)
		}
		spend, err := x.t.Limits().BeginModel(ctx, c, known+r.MaxTokens)
		if err != nil {
			return nil, err
		}
		before := len(r.Messages)
		r.Messages = append(r.Messages, clean.Messages...)
		reply, err := x.model.Turn(ctx, r)
		if err != nil {
			r.Messages = r.Messages[:before] // the next turn may repeat it
			unused := known + r.MaxTokens
			if ctx.Err() != nil { // the endpoint has got it, and counts it
				unused = r.MaxTokens
			}
			spend.Give(unused)
			return nil, err
		}
		reply.Message.Repair(turn)
		if reply.Usage == (runner.Usage{}) { // the endpoint does not say
			reply.Usage = runner.Usage{Input: known, Output: x.t.Counter.CountBytes(rawjson.Marshal(reply.Message.Content))}
		}
		u := reply.Usage
		used.ModelInput, used.ModelOutput = u.Input, u.Output
		c.Outcome.Model = &trace.Model{Name: x.llm.Model, Input: u.Input, Output: u.Output, Cached: u.Cached}
		x.settle(ctx, spend, known+r.MaxTokens, u)
		return &interceptor.Result{Body: rawjson.Marshal(map[string]any{
			"role": "assistant", "model": x.llm.Model, "stopReason": reply.Stop, "content": reply.Message.Content,
		})}, nil
	})
	if err != nil {
		return answer, err
	}
	if res.Error != nil {
		text, _ := res.Text()
		return answer, errors.New(text)
	}
	if err := json.Unmarshal(res.Body, &answer); err != nil {
		return answer, fmt.Errorf("the scrubbed answer of the model can't be read: %w", err)
	}
	kept := answer
	if len(kept.Content) == 0 { // endpoints refuse a message without content
		kept.Content = []runner.Block{runner.TextBlock("(nothing)")}
	}
	r.Messages = append(r.Messages, kept)
	x.mu.Lock()
	x.sent = used.ModelInput + used.ModelOutput
	x.over++
	close(x.turned)
	x.turned = make(chan struct{})
	x.mu.Unlock()
	if lease != nil { // what the model says stays in its context; of calls, the arguments are charged when they are made
		said := 0
		for _, b := range answer.Content {
			if b.Type == runner.Text {
				said += x.t.Counter.Count(b.Text)
			}
		}
		if _, err := lease.ChargeUpTo(said); err != nil {
			x.t.Log.Debug("the words of a model were not charged", "branch_id", x.branch.ID, "err", err)
		}
	}
	return answer, nil
}

// settle gives back what a turn did not use of the tokens that the limits reserved for it, or takes what it
// used more.
func (x *run) settle(ctx context.Context, spend *limits.Spend, reserved int, u runner.Usage) {
	if more := u.Input + u.Output - reserved; more > 0 {
		if _, _, err := spend.Take(context.WithoutCancel(ctx), more); err != nil {
			x.t.Log.Warn("model tokens were not counted", "tokens", more, "err", err)
		}
	} else {
		spend.Give(-more)
	}
}
