package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	maxBatches    = 16               // under way in the process
	maxBatchBytes = 64 << 20         // of the results of one batch together
	answerKept    = 10 * time.Minute // how long the answer of a finished batch can be fetched
)

// batch is one branch_run: calls made inside foldgate. The host gets only their combined answer.
type batch struct {
	t      *Tools
	in     batchArguments
	parent *Request // the branch_run
	// handle names the answer, rest all results together.
	handle, rest string
	shown        []step // in.Steps without secrets, as they are stored and answered
	cancel       context.CancelCauseFunc
	results      []stepResult // each belongs to its step until all are over

	done    chan struct{} // closed once answer, err, sources and stored are set
	answer  string
	err     error
	sources string // the tools that made the results
	stored  bool   // the results are, under rest

	mu     sync.Mutex
	branch folding.Branch // set before the calls begin
	own    bool           // the branch was opened for the batch
	kept   bool           // the answer is stored

	finished atomic.Int64 // calls
	bytes    atomic.Int64 // of the results
	detached atomic.Bool  // the host was told that the batch goes on

	abandoned atomic.Bool // the host gave its request up, and knows no handle of the batch

	expiry *time.Timer // forgets the answer; nil while the batch runs. Guarded by Tools.mu
}

// stepResult is the outcome of one call of a batch.
type stepResult struct {
	text, structured string
	tokens           int
	fault            string               // why there is no result; "" if there is one
	refusal          *interceptor.Refusal // if foldgate refused the call
	server, tool     string
}

// startBatch opens a branch if need be and starts the calls. They go on when the host's request is over:
// the session, the branch and cancel end them.
func (t *Tools) startBatch(ctx context.Context, r *Request, in batchArguments) (*batch, error) {
	b := &batch{
		t: t, in: in, parent: r, handle: t.Results.NewHandle(), rest: t.Results.NewHandle(),
		done: make(chan struct{}), results: make([]stepResult, len(in.Steps)), shown: t.cleanSteps(ctx, in.Steps),
	}
	if err := t.add(b); err != nil {
		return nil, err
	}
	if branch := r.Call.Attribution.Branch; branch != nil {
		b.mu.Lock()
		b.branch = *branch
		b.mu.Unlock()
	} else if err := b.open(ctx); err != nil {
		t.forget(b)
		return nil, err
	}
	lifetime, cancel := context.WithCancelCause(r.Lifetime())
	b.cancel = cancel
	t.wg.Go(func() {
		defer cancel(nil)
		b.run(lifetime)
	})
	return b, nil
}

// add enters a batch that begins. If there are several principals, none has more than half of the
// places.
func (t *Tools) add(b *batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	running, own := 0, 0
	for _, other := range t.batches {
		if other.expiry != nil {
			continue
		}
		running++
		if other.principal() == b.principal() {
			own++
		}
	}
	most := maxBatches
	if t.Config().PrincipalCount() > 1 && own >= maxBatches/2 {
		most = maxBatches / 2
	}
	if running >= most {
		return &interceptor.Refusal{Reason: trace.ReasonLimit, Code: "too_many_batches", Status: 429, RetryAfter: 5,
			Message: fmt.Sprintf("%d batches are under way, the most there can be: wait for one of them", most)}
	}
	t.batches[b.handle] = b
	return nil
}

// batch returns the caller's batch with that handle, or nil. Under strict validation it belongs to
// its session, like a stored result.
func (t *Tools) batch(caller folding.Caller, handle string) *batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.batches[handle]
	strict := t.Config().Folding.SessionValidation == folding.ValidationStrict
	if b == nil || b.principal() != caller.Principal || strict && b.session() != caller.Session {
		return nil
	}
	return b
}

func (t *Tools) forget(b *batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.batches, b.handle)
	if b.expiry != nil {
		b.expiry.Stop()
	}
}

// abandon ends a batch that nobody can ask for: it only returns its branch.
func (b *batch) abandon(cause error) {
	b.abandoned.Store(true)
	b.cancel(cause)
	b.t.mu.Lock()
	over := b.expiry != nil
	b.t.mu.Unlock()
	if over { // else end forgets it
		b.t.forget(b)
	}
}

// end lets the answer expire, an abandoned one at once. It must be called before done is closed.
func (b *batch) end() {
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if b.abandoned.Load() {
		delete(b.t.batches, b.handle)
		return
	}
	b.expiry = time.AfterFunc(answerKept, func() { b.t.forget(b) })
}

func (b *batch) principal() string { return b.parent.Call.Origin.Principal }
func (b *batch) session() string   { return b.parent.Call.Origin.Session }

// open opens a branch for the batch, in a session of its own, so that calls which the agent makes
// meanwhile are not attributed to it. It counts against the open branches of the caller's session.
func (b *batch) open(ctx context.Context) error {
	text := cmp.Or(b.in.Description, fmt.Sprintf("batch of %d calls", len(b.in.Steps)))
	br, err := b.t.Branches.Create(ctx, b.caller(), folding.CreateRequest{
		SessionID: b.caller().Session, Description: text, Claims: b.parent.Call.Origin.Claims(), Cause: b.parent.Call, Ephemeral: true, LimitSession: b.session(),
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.branch, b.own = br, true
	return err
}

// caller is the client that owns the branch that was opened for the batch.
func (b *batch) caller() folding.Caller {
	c := b.parent.Call.Caller()
	c.Session, c.Thread = "run_"+strings.TrimPrefix(b.handle, "res_"), ""
	return c
}

// context returns the context path of the branch that pays for the answer. It is "" for a branch of
// the batch's own, which ends with it.
func (b *batch) context() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own {
		return ""
	}
	return b.branch.Context
}

// run makes the calls, then the answer, and returns the branch.
func (b *batch) run(ctx context.Context) {
	defer close(b.done)
	defer b.end()
	var wg sync.WaitGroup
	places := make(chan struct{}, int(b.in.Parallel))
	for i := range b.in.Steps {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			b.step(ctx, i)
			b.finished.Add(1)
		})
	}
	wg.Wait()
	ctx = context.WithoutCancel(ctx)
	if !b.abandoned.Load() {
		b.answer, b.err = b.compose(ctx)
	}
	if b.own {
		message := fmt.Sprintf("%d calls, %d failed", len(b.results), b.failed())
		if _, err := b.t.Branches.Return(ctx, b.caller(), b.branch.ID, message); err != nil && !errors.Is(err, folding.ErrNotActive) {
			b.t.Log.Error("branch of a batch not returned", "branch_id", b.branch.ID, "err", err)
		}
	}
	b.results = nil // they are in the store, and may be large
	if b.detached.Load() && b.err == nil {
		b.keepAnswer()
	}
}

func (b *batch) failed() (n int) {
	for _, r := range b.results {
		if r.fault != "" {
			n++
		}
	}
	return n
}

// step makes one call and notes its outcome.
func (b *batch) step(ctx context.Context, i int) {
	r := &b.results[i]
	// The fault is stored, and may name a tool that no list has.
	defer func() { r.fault = b.t.Boundary.Text(r.fault) }()
	if err := context.Cause(ctx); err != nil {
		r.fault = "not called: " + err.Error()
		return
	}
	st, branch := b.in.Steps[i], b.branch
	c := &interceptor.Call{
		Origin:      derived(b.parent.Call, fmt.Sprintf("%s/%d", b.handle, i+1)),
		Target:      interceptor.Target{Method: "tools/call", Name: st.Tool, Arguments: st.Arguments, Metered: true, Batch: b.rest},
		Attribution: interceptor.Attribution{Branch: &branch},
	}
	res, err := b.parent.CallTool(ctx, c)
	r.server, r.tool = c.Target.Server, c.Target.Name
	if err != nil {
		r.fault = err.Error()
		r.refusal, _ = errors.AsType[*interceptor.Refusal](err)
		return
	}
	if c.Outcome.Whole != nil {
		res = c.Outcome.Whole
	}
	r.tokens = c.Outcome.Tokens.Out
	r.text, r.structured = res.Text()
	kind, _ := rawjson.GetString(res.Body, "resultType")
	switch {
	case res.Failed():
		r.fault = res.Fault()
	case kind == "input_required":
		r.fault = "the tool asks for input, which a batch can't give: call it directly"
	case b.bytes.Add(int64(len(r.text)+len(r.structured))) > maxBatchBytes:
		r.fault = fmt.Sprintf("the batch's results are over %d bytes together: split it", maxBatchBytes)
	}
	if r.fault != "" {
		r.text, r.structured = "", ""
	}
}

// cleanSteps returns steps as they may be stored. It withholds steps that can't be checked for
// secrets.
func (t *Tools) cleanSteps(ctx context.Context, steps []step) []step {
	m := interceptor.Message{Body: rawjson.Marshal(steps), Always: true}
	if t.Boundary.ToHost(ctx, &m); m.Verdict == interceptor.Passed {
		return steps
	}
	shown := make([]step, len(steps))
	if m.Verdict == interceptor.Redacted && json.Unmarshal(m.Body, &shown) == nil {
		return shown
	}
	for i := range shown {
		shown[i] = step{"withheld: could not be checked for secrets", json.RawMessage(`{}`)}
	}
	return shown
}
