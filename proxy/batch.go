package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
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
	own          bool           // the branch was opened for the batch
	cause        string         // the trace record of the branch_run
	traceparent  string
	s            *session
	ephemeral    bool // s was opened for the batch
	modern       bool
	emit         func([]byte) error
	cancel       context.CancelCauseFunc
	done         chan struct{} // closed when what follows is there
	answer       string
	err          error
	mu           sync.Mutex
	finished     int
	kept         bool // the answer is stored
	detached     bool // the host was told that the batch goes on
	results      []stepResult
	bytes        int
	made         string // the tools that made the results, as upstream/tool
}

// stepResult is what one call of a batch came to.
type stepResult struct {
	text, structured string
	tokens           int
	fault            string // why there is no result; "" where there is one
	server, tool     string
}

// batches are those under way, and those whose answer nobody has fetched yet.
// Its zero value is ready to use.
type batches struct {
	mu  sync.Mutex
	all map[string]*batch
}

// Limits of all batches of the process, and of one batch's results.
const (
	maxBatches    = 16
	maxBatchBytes = 64 << 20
)

// add enters a batch that begins. Where there are several principals, shared,
// none has more than half of the places.
func (bs *batches) add(b *batch, shared bool) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	running, own := 0, 0
	for _, other := range bs.all {
		select {
		case <-other.done:
		default:
			running++
			if other.principal == b.principal {
				own++
			}
		}
	}
	most := maxBatches
	if shared && own >= maxBatches/2 {
		most = maxBatches / 2
	}
	if running >= most {
		return &interceptor.Refusal{Reason: "resource_limit", Code: "too_many_batches", Status: 429, RetryAfter: 5,
			Message: fmt.Sprintf("%d batches are under way, the most there can be: wait for one of them", most)}
	}
	if bs.all == nil {
		bs.all = map[string]*batch{}
	}
	bs.all[b.handle] = b
	return nil
}

// get returns the caller's batch with that handle, nil for another's; strict
// binds it to the session that it was started in, as a stored result.
func (bs *batches) get(caller folding.Caller, strict bool, handle string) *batch {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.all[handle]
	if b == nil || b.principal != caller.Principal || strict && b.session != caller.Session {
		return nil
	}
	return b
}

func (bs *batches) remove(b *batch) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	delete(bs.all, b.handle)
}

// startBatch opens the branch if need be and starts the calls. They go on when
// the host's request is over: the session, the branch and b.cancel end them.
func (g *Gateway) startBatch(ctx context.Context, fl *inbound, c *interceptor.Call, in runQuestion) (*batch, error) {
	b := &batch{
		g: g, in: in, handle: folding.NewHandle(), rest: folding.NewHandle(), principal: c.Principal, session: c.Session, cause: c.Record, traceparent: c.Traceparent,
		s: fl.s, modern: fl.modern, emit: fl.ex.Emit, done: make(chan struct{}), results: make([]stepResult, len(in.Steps)),
	}
	if err := g.batches.add(b, len(g.cfg.Principals) > 1); err != nil {
		return nil, err
	}
	if c.Branch != nil {
		b.setBranch(*c.Branch, false)
	} else if err := b.open(ctx, c); err != nil {
		g.batches.remove(b)
		return nil, err
	}
	if fl.s.Modern && fl.s.Transport != "stdio" { // such a session ends with its request
		b.s, b.ephemeral = g.newSession(edge.Peer{Principal: c.Principal, Transport: fl.s.Transport, Modern: true}), true
	}
	run, cancel := context.WithCancelCause(b.s.ctx)
	b.cancel = cancel
	g.background(func() {
		defer cancel(nil)
		b.run(run)
	})
	return b, nil
}

// open opens a branch for the batch. It is in a session of its own, so that
// calls which other tools make meanwhile are not taken to be in it; it counts
// against the open branches of its caller's.
func (b *batch) open(ctx context.Context, c *interceptor.Call) error {
	text := b.in.Description
	if text == "" {
		text = fmt.Sprintf("batch of %d calls", len(b.in.Steps))
	}
	br, err := b.g.branches.Create(ctx, b.caller(), folding.CreateRequest{SessionID: b.caller().Session, Description: text, Cause: c, Errand: &folding.Errand{Session: c.Session}})
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

// step makes call i and notes what it came to.
func (b *batch) step(ctx context.Context, i int) {
	r := &b.results[i]
	if err := context.Cause(ctx); err != nil {
		r.fault = "not called: " + err.Error()
		return
	}
	st := b.in.Steps[i]
	fl := &inbound{
		ex: &edge.Exchange{Msg: wire.Message{ID: rawjson.Quote(fmt.Sprintf("%s/%d", b.handle, i+1)), Method: "tools/call"}, Emit: b.emit},
		s:  b.s, modern: b.modern,
	}
	fl.ctx, fl.cancel = context.WithCancelCause(ctx)
	defer fl.cancel(nil)
	c, e, err := b.call(fl, st)
	if err != nil {
		r.fault = err.Error()
		return
	}
	r.server, r.tool = e.up.key, e.own
	res, err := b.g.forward(fl, c, e.up)
	if err != nil {
		r.fault = faultText(err)
		return
	}
	b.take(r, c, res)
}

// call describes one call of the batch to the chain.
func (b *batch) call(fl *inbound, st runStep) (*interceptor.Call, entry, error) {
	e, ok := b.g.findTool(fl, st.Tool)
	if !ok {
		return nil, entry{}, b.g.unknownTool(st.Tool)
	}
	if e.up == nil {
		return nil, entry{}, fmt.Errorf("%s can't be part of a batch", st.Tool)
	}
	if err := b.g.mayBatch(st.Tool, e); err != nil {
		return nil, entry{}, err
	}
	args := st.Arguments
	if e.injected {
		args = rawjson.Delete(args, branchArgument) // the batch's branch pays
	}
	params := json.RawMessage(append(append(append([]byte(`{"name":`), rawjson.Quote(e.own)...), `,"arguments":`...), append(slices.Clone(args), '}')...))
	fl.ex.Msg.Params, fl.params = params, e.params
	branch := b.branch
	c := &interceptor.Call{
		Direction: interceptor.FromHost, Session: b.session, Principal: b.principal, From: "foldgate", Revision: fl.s.speaks(fl),
		ID: fl.ex.Msg.ID, Method: "tools/call", Name: e.own, Params: params, Forward: params, Arguments: args, Metered: true,
		Branch: &branch, Correlates: []string{b.cause}, Traceparent: b.traceparent, Batch: b.rest,
	}
	if e.flow != nil {
		e.flow.enter(c)
	}
	return c, e, nil
}

// mayBatch reports whether a tool may be called in a batch: hosts ask their
// user about each tool, and must not be got round. A tool that only reads may,
// as may those that the configuration names.
func (g *Gateway) mayBatch(shown string, e entry) error {
	if ro, _ := rawjson.Get(e.raw, "annotations", "readOnlyHint"); string(ro) == "true" || g.cfg.Run.allows(shown) {
		return nil
	}
	return fmt.Errorf("%s does not say that it only reads, and run.allow does not name it: call it directly", shown)
}

// take notes a result.
func (b *batch) take(r *stepResult, c *interceptor.Call, res *interceptor.Result) {
	whole := res
	if c.Whole != nil {
		whole = c.Whole
	}
	r.tokens = c.Tokens.Out
	r.text, r.structured = whole.Text()
	failed, _ := rawjson.Get(whole.Body, "isError")
	kind, _ := rawjson.GetString(whole.Body, "resultType")
	switch {
	case whole.Error != nil || string(failed) == "true":
		r.fault = r.text
		r.text, r.structured = "", ""
	case kind == "input_required":
		r.fault = "the tool asks for input, which a batch can't give: call it directly"
		r.text, r.structured = "", ""
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes += len(r.text) + len(r.structured); b.bytes > maxBatchBytes {
		r.fault, r.text, r.structured = fmt.Sprintf("the batch's results are over %d bytes together: split it", maxBatchBytes), "", ""
	}
}

// faultText is an error as an answer shows it.
func faultText(err error) string {
	var r *interceptor.Refusal
	if errors.As(err, &r) {
		return r.Code + ": " + r.Message
	}
	return err.Error()
}
