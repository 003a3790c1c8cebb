package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/edge"
)

// batch is one branch_run: calls made inside foldgate, of which the host gets
// no more than an answer.
type batch struct {
	g  *Gateway
	in runQuestion
	// handle is the answer's, rest that of all results together.
	handle, rest string
	principal    string
	session      string         // of the caller; "" for a modern one that names none
	branch       folding.Branch // set with mu held, before the calls begin
	own          bool           // set likewise: the branch was opened for the batch
	cause        string         // the trace record of the branch_run
	traceparent  string
	s            *session
	ephemeral    bool // s was opened for the batch
	modern       bool
	emit         func([]byte) error
	shown        []runStep // in.Steps without secrets: what is stored and answered
	cancel       context.CancelCauseFunc
	results      []stepResult // each is its step's, then run's

	done   chan struct{} // closed when what follows is there
	answer string
	err    error
	made   string // the tools that made the results, as upstream/tool
	stored bool   // the results are, under rest

	mu       sync.Mutex // guards what follows
	finished int
	bytes    int  // of the results
	kept     bool // the answer is stored
	detached bool // the host was told that the batch goes on
}

// startBatch opens the branch if need be and starts the calls. They go on when
// the host's request is over: the session, the branch and b.cancel end them.
func (g *Gateway) startBatch(ctx context.Context, fl *inbound, c *interceptor.Call, in runQuestion) (*batch, error) {
	b := &batch{
		g: g, in: in, handle: results.NewHandle(), rest: results.NewHandle(), principal: c.Origin.Principal, session: c.Origin.Session, cause: c.Outcome.Record, traceparent: c.Origin.Traceparent,
		s: fl.s, modern: fl.modern, emit: fl.ex.Emit, done: make(chan struct{}), results: make([]stepResult, len(in.Steps)),
	}
	b.shown = g.cleanSteps(ctx, in.Steps)
	if err := g.batches.add(b, len(g.cfg.Principals) > 1); err != nil {
		return nil, err
	}
	if c.Attribution.Branch != nil {
		b.setBranch(*c.Attribution.Branch, false)
	} else if err := b.open(ctx, c); err != nil {
		g.batches.remove(b)
		return nil, err
	}
	if fl.s.Modern && fl.s.Transport != "stdio" { // such a session ends with its request
		b.s, b.ephemeral = g.newSession(edge.Peer{Principal: c.Origin.Principal, Transport: fl.s.Transport, Modern: true}), true
	}
	run, cancel := context.WithCancelCause(b.s.ctx)
	b.cancel = cancel
	g.background(func() {
		defer cancel(nil)
		b.run(run)
	})
	return b, nil
}

// cleanSteps returns steps as they may be stored. Where that can't be found out
// their arguments are withheld.
func (g *Gateway) cleanSteps(ctx context.Context, steps []runStep) []runStep {
	m := interceptor.Message{Body: rawjson.Marshal(steps), Always: true}
	if g.boundary.Inbound(ctx, &m); m.Verdict == interceptor.Passed {
		return steps
	}
	shown := make([]runStep, len(steps))
	if m.Verdict == interceptor.Redacted && json.Unmarshal(m.Body, &shown) == nil {
		return shown
	}
	for i := range shown {
		shown[i] = runStep{"withheld: could not be checked for secrets", json.RawMessage(`{}`)}
	}
	return shown
}

// open opens a branch for the batch. It is in a session of its own, so that
// calls which other tools make meanwhile are not taken to be in it; it counts
// against the open branches of its caller's.
func (b *batch) open(ctx context.Context, c *interceptor.Call) error {
	text := b.in.Description
	if text == "" {
		text = fmt.Sprintf("batch of %d calls", len(b.in.Steps))
	}
	br, err := b.g.branches.Create(ctx, b.caller(), folding.CreateRequest{SessionID: b.caller().Session, Description: text, Cause: c, Ephemeral: true, LimitSession: c.Origin.Session})
	if err != nil {
		return err
	}
	b.setBranch(br, true)
	return nil
}

func (b *batch) setBranch(br folding.Branch, own bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.branch, b.own = br, own
}

// place returns the context path of the branch that pays for the answer, "" where
// the batch has one of its own, which ends with it.
func (b *batch) place() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.own {
		return ""
	}
	return b.branch.Context
}

func (b *batch) caller() folding.Caller {
	return folding.Caller{Principal: b.principal, Session: "run_" + strings.TrimPrefix(b.handle, "res_")}
}

// run makes the calls, then the answer, and ends the branch.
func (b *batch) run(ctx context.Context) {
	defer b.g.batches.expire(b)
	defer close(b.done)
	var wg sync.WaitGroup
	slots := make(chan struct{}, b.in.Parallel)
	for i := range b.in.Steps {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			b.step(ctx, i)
			b.mu.Lock()
			b.finished++
			b.mu.Unlock()
		})
	}
	wg.Wait()
	b.answer, b.err = b.compose(context.WithoutCancel(ctx))
	if b.own {
		b.end(ctx)
	}
	b.results = nil // they are in the store, and may be large
	b.mu.Lock()
	detached := b.detached
	b.mu.Unlock()
	if detached && b.err == nil {
		b.keepAnswer()
	}
	if b.ephemeral {
		b.s.Close("the batch is over")
	}
}

// end returns the batch's branch. One that ended by itself needs no return.
func (b *batch) end(ctx context.Context) {
	failed := b.failed()
	message := fmt.Sprintf("%d calls, %d failed", len(b.results), failed)
	if _, err := b.g.branches.Return(context.WithoutCancel(ctx), b.caller(), b.branch.ID, message); err != nil && !errors.Is(err, folding.ErrNotActive) {
		b.g.log.Error("branch of a batch not returned", "branch_id", b.branch.ID, "err", err)
	}
}

// progress returns how many calls are over.
func (b *batch) progress() (done, total int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.finished, len(b.in.Steps)
}

func (b *batch) failed() (n int) {
	for _, r := range b.results {
		if r.fault != "" {
			n++
		}
	}
	return n
}
