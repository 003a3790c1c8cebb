package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
)

const (
	maxBatches    = 16               // under way in the process
	maxBatchBytes = 64 << 20         // of the results of one batch together
	answerKept    = 10 * time.Minute // how long the answer of a finished batch can be fetched
)

// batch is one branch_run: calls made inside foldgate. The host gets only their combined answer.
type batch struct {
	t      *Tools
	in     runArguments
	parent *conn.Request // the branch_run
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

	mu       sync.Mutex
	branch   folding.Branch // set before the calls begin
	own      bool           // the branch was opened for the batch
	finished int            // calls
	bytes    int            // of the results
	kept     bool           // the answer is stored
	detached bool           // the host was told that the batch goes on

	over time.Time // when the batch ended; zero while it runs. Guarded by Tools.mu
}

// stepResult is the outcome of one call of a batch.
type stepResult struct {
	text, structured string
	tokens           int
	fault            string // why there is no result; "" if there is one
	server, tool     string
}

// start opens a branch if need be and starts the calls. They go on when the host's request is over:
// the session, the branch and cancel end them.
func (t *Tools) start(ctx context.Context, r *conn.Request, in runArguments) (*batch, error) {
	b := &batch{
		t: t, in: in, parent: r, handle: results.NewHandle(), rest: results.NewHandle(),
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
	lifetime, cancel := context.WithCancelCause(t.router.Lifetime(r))
	b.cancel = cancel
	t.wg.Go(func() {
		defer cancel(nil)
		b.run(lifetime)
	})
	return b, nil
}

// add enters a batch that begins, and forgets expired ones. If there are several principals, none
// has more than half of the places.
func (t *Tools) add(b *batch) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.batches, func(_ string, b *batch) bool { return b.expired() })
	running, own := 0, 0
	for _, other := range t.batches {
		if !other.over.IsZero() {
			continue
		}
		running++
		if other.principal() == b.principal() {
			own++
		}
	}
	most := maxBatches
	if len(t.Config.Principals) > 1 && own >= maxBatches/2 {
		most = maxBatches / 2
	}
	if running >= most {
		return &interceptor.Refusal{Reason: "resource_limit", Code: "too_many_batches", Status: 429, RetryAfter: 5,
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
	strict := t.Config.Folding.SessionValidation == folding.ValidationStrict
	if b == nil || b.expired() || b.principal() != caller.Principal || strict && b.session() != caller.Session {
		return nil
	}
	return b
}

func (t *Tools) forget(b *batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.batches, b.handle)
}

// expired reports whether the answer can't be fetched any more. The caller holds Tools.mu.
func (b *batch) expired() bool { return !b.over.IsZero() && time.Since(b.over) > answerKept }

func (b *batch) principal() string { return b.parent.Call.Origin.Principal }
func (b *batch) session() string   { return b.parent.Call.Origin.Session }

// open opens a branch for the batch, in a session of its own, so that calls which the agent makes
// meanwhile are not attributed to it. It counts against the open branches of the caller's session.
func (b *batch) open(ctx context.Context) error {
	text := cmp.Or(b.in.Description, fmt.Sprintf("batch of %d calls", len(b.in.Steps)))
	br, err := b.t.Branches.Create(ctx, b.caller(), folding.CreateRequest{
		SessionID: b.caller().Session, Description: text, Cause: b.parent.Call, Ephemeral: true, LimitSession: b.session(),
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.branch, b.own = br, true
	return err
}

// caller is the client that owns the branch that was opened for the batch.
func (b *batch) caller() folding.Caller {
	return folding.Caller{Principal: b.principal(), Session: "run_" + strings.TrimPrefix(b.handle, "res_")}
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
	defer func() {
		b.t.mu.Lock()
		defer b.t.mu.Unlock()
		b.over = time.Now()
	}()
	var wg sync.WaitGroup
	places := make(chan struct{}, int(b.in.Parallel))
	for i := range b.in.Steps {
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			b.step(ctx, i)
			b.mu.Lock()
			b.finished++
			b.mu.Unlock()
		})
	}
	wg.Wait()
	ctx = context.WithoutCancel(ctx)
	b.answer, b.err = b.compose(ctx)
	if b.own {
		message := fmt.Sprintf("%d calls, %d failed", len(b.results), b.failed())
		if _, err := b.t.Branches.Return(ctx, b.caller(), b.branch.ID, message); err != nil && !errors.Is(err, folding.ErrNotActive) {
			b.t.Log.Error("branch of a batch not returned", "branch_id", b.branch.ID, "err", err)
		}
	}
	b.results = nil // they are in the store, and may be large
	b.mu.Lock()
	detached := b.detached
	b.mu.Unlock()
	if detached && b.err == nil {
		b.keepAnswer()
	}
}

// failed counts the calls that have no result.
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
	st, parent, branch := b.in.Steps[i], b.parent.Call, b.branch
	c := &interceptor.Call{
		Origin: interceptor.Origin{
			Direction: interceptor.FromHost, Session: b.session(), Principal: b.principal(), From: "foldgate",
			Revision: parent.Origin.Revision, ID: rawjson.Quote(fmt.Sprintf("%s/%d", b.handle, i+1)),
			Correlates: []string{parent.Outcome.Record}, Traceparent: parent.Origin.Traceparent,
		},
		Target:      interceptor.Target{Method: "tools/call", Name: st.Tool, Arguments: st.Arguments, Metered: true, Batch: b.rest},
		Attribution: interceptor.Attribution{Branch: &branch},
	}
	res, err := b.t.router.CallTool(ctx, b.parent, c)
	r.server, r.tool = c.Target.Server, c.Target.Name
	if err != nil {
		r.fault = err.Error()
		return
	}
	b.take(r, c, res)
}

// take notes a result.
func (b *batch) take(r *stepResult, c *interceptor.Call, res *interceptor.Result) {
	if c.Outcome.Whole != nil {
		res = c.Outcome.Whole
	}
	r.tokens = c.Outcome.Tokens.Out
	r.text, r.structured = res.Text()
	kind, _ := rawjson.GetString(res.Body, "resultType")
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case res.Failed():
		r.fault = r.text
	case kind == "input_required":
		r.fault = "the tool asks for input, which a batch can't give: call it directly"
	default:
		if b.bytes += len(r.text) + len(r.structured); b.bytes > maxBatchBytes {
			r.fault = fmt.Sprintf("the batch's results are over %d bytes together: split it", maxBatchBytes)
		}
	}
	if r.fault != "" {
		r.text, r.structured = "", ""
	}
}

// cleanSteps returns steps as they may be stored. It withholds steps that can't be checked for
// secrets.
func (t *Tools) cleanSteps(ctx context.Context, steps []step) []step {
	m := interceptor.Message{Body: rawjson.Marshal(steps), Always: true}
	if t.Boundary.Inbound(ctx, &m); m.Verdict == interceptor.Passed {
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
