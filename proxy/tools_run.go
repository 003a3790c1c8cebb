package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Limits of branch_run and of waiting for it.
const (
	answerTokens  = 1000             // an answer, where the call does not say
	defaultAtOnce = 4                // calls of a batch under way at a time
	maxAtOnce     = 8                // the most of them
	answerWithin  = 45 * time.Second // some hosts give a call up after 60 s
	progressEvery = 5 * time.Second
)

// runQuestion are the arguments of branch_run.
type runQuestion struct {
	BranchID    string            `json:"branch_id"`
	Description string            `json:"description"`
	Steps       []runStep         `json:"steps"`
	Tool        string            `json:"tool"`
	Each        []json.RawMessage `json:"each"`
	Grep        string            `json:"grep"`
	JQ          string            `json:"jq"`
	MaxTokens   whole             `json:"max_tokens"`
	Parallel    whole             `json:"parallel"`
}

// runStep is one call of a batch.
type runStep struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// placeRun finds the branch that a batch runs in, where it names one.
func placeRun(_ *inbound, c *interceptor.Call) {
	if id, ok := rawjson.GetString(c.Target.Arguments, branchArgument); ok && id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceArgument
	}
}

// branchRun serves branch_run: it starts the batch and waits for it, but not
// longer than hosts do.
func branchRun(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in runQuestion
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	g := fl.s.gw
	if err := in.check(g.cfg.Run.MaxCalls); err != nil {
		return nil, refused(c, err)
	}
	b, err := g.startBatch(ctx, fl, c, in)
	if err != nil {
		return nil, refused(c, err)
	}
	res, err := b.await(ctx, fl, c, int(in.MaxTokens))
	if err != nil {
		b.cancel(err) // the host no longer wants it
	}
	return res, err
}

// check fills in what was left out and refuses what makes no sense.
func (in *runQuestion) check(maxCalls int) error {
	if in.Tool != "" || len(in.Each) > 0 {
		if len(in.Steps) > 0 {
			return &extract.Error{Field: "steps", Text: "give either steps, or tool and each"}
		}
		if in.Tool == "" || len(in.Each) == 0 {
			return &extract.Error{Field: "each", Text: "give tool and each, a list of its arguments, together"}
		}
		for _, args := range in.Each {
			in.Steps = append(in.Steps, runStep{in.Tool, args})
		}
	}
	switch {
	case len(in.Steps) == 0:
		return &extract.Error{Field: "steps", Text: "is missing: give steps, or tool and each"}
	case len(in.Steps) > maxCalls:
		return &extract.Error{Field: "steps", Text: fmt.Sprintf("%d calls, the limit is %d (run.max_calls): split the batch", len(in.Steps), maxCalls)}
	case in.Grep != "" && in.JQ != "":
		return &extract.Error{Field: "grep, jq", Text: "use one of them"}
	case in.MaxTokens < 0 || in.Parallel < 0:
		return &extract.Error{Field: "max_tokens, parallel", Text: "must not be negative"}
	}
	where := "steps"
	if in.Tool != "" {
		where = "each"
	}
	for i, s := range in.Steps {
		if len(s.Arguments) == 0 {
			in.Steps[i].Arguments = json.RawMessage(`{}`)
		} else if rawjson.KindOf(s.Arguments) != rawjson.Object {
			return &extract.Error{Field: where, Text: fmt.Sprintf("the arguments of call %d are no object: name each, such as {\"path\": \"a.txt\"}", i+1)}
		}
	}
	if err := in.checkFilter(); err != nil {
		return err
	}
	if in.MaxTokens == 0 {
		in.MaxTokens = answerTokens
	}
	if in.Parallel == 0 {
		in.Parallel = defaultAtOnce
	}
	in.Parallel = min(in.Parallel, maxAtOnce)
	return nil
}

// checkFilter finds a wrong filter before any call is made for it.
func (in *runQuestion) checkFilter() error {
	if in.Grep != "" {
		if _, err := extract.Grep(context.Background(), "", extract.Pattern{Expr: in.Grep}); err != nil {
			return err
		}
	}
	if in.JQ != "" {
		return extract.CheckJQ(in.JQ)
	}
	return nil
}

// await waits for the batch and returns its answer, or that it goes on and how to
// wait for it.
func (b *batch) await(ctx context.Context, fl *inbound, c *interceptor.Call, maxTokens int) (*interceptor.Result, error) {
	if res, err := b.wait(ctx, fl, c); res != nil || err != nil {
		return res, err
	}
	fl.s.gw.batches.remove(b)
	return b.deliver(fl, c, maxTokens)
}

// wait waits for the batch, telling the host how far it is. It returns nothing
// when it is over, and what to tell the host where that takes long.
func (b *batch) wait(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	wait := time.NewTimer(answerWithin)
	defer wait.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-b.done:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
			done, total := b.progress()
			fl.report(c, done, total)
		case <-wait.C:
			b.mu.Lock()
			b.detached = true
			b.mu.Unlock()
			done, total := b.progress()
			return &interceptor.Result{Body: plainResult(fmt.Sprintf("[batch running: %d of %d calls done; wait for its answer with branch_read {\"handle\":\"%s\"}]",
				done, total, b.handle), fl.modern)}, nil
		}
	}
}

// report sends progress to a host that asked for it.
func (fl *inbound) report(c *interceptor.Call, done, total int) {
	token, ok := rawjson.Get(c.Target.Params, "_meta", "progressToken")
	if !ok || fl.ex.Emit == nil {
		return
	}
	params := fmt.Appendf(nil, `{"progressToken":%s,"progress":%d,"total":%d}`, token, done, total)
	g := fl.s.gw
	n := interceptor.Notification{
		From: "foldgate", To: fl.s.host(), Session: fl.s.ID, Context: c.Attribution.Context,
		Correlates: []string{c.Outcome.Record}, Method: wire.MethodProgress,
	}
	if err := g.recorder.Notification(fl.ctx, n, &interceptor.Message{Body: params}); err != nil {
		return
	}
	_ = fl.ex.Emit(wire.Message{Method: "notifications/progress", Params: params}.Encode()) // a host that is gone needs no progress
}

// deliver returns a page of the finished batch's answer. One that does not fit
// is stored under the batch's handle.
func (b *batch) deliver(fl *inbound, c *interceptor.Call, maxTokens int) (*interceptor.Result, error) {
	if b.err != nil {
		return nil, refused(c, b.err)
	}
	g := fl.s.gw
	size := g.pageSize(c, maxTokens)
	if g.counter.Exceeds(b.answer, size) && !b.keepAnswer() {
		return nil, refused(c, fmt.Errorf("%w: the answer of the batch does not fit and could not be stored; filter with grep or jq", folding.ErrStorage))
	}
	page := func(size int) (*interceptor.Result, error) { return g.page(fl, b.answer, b.handle, 1, size) }
	c.Outcome.Shrink = func(budget int) *interceptor.Result {
		if !b.keepAnswer() {
			return nil
		}
		small, err := page(budget)
		if err != nil {
			return nil
		}
		return small
	}
	res, err := page(size)
	if err != nil {
		return nil, refused(c, err)
	}
	if b.stored {
		c.Outcome.Read = readOf(results.Result{Tool: b.made, Handle: b.rest, Context: b.branch.Context})
	}
	return res, nil
}

// awaitStored waits for a batch that its host was told goes on. It returns
// nothing when the answer can be read from the store, under the batch's handle.
// An answer that can't be stored is kept for another try.
func (b *batch) awaitStored(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	if res, err := b.wait(ctx, fl, c); res != nil || err != nil {
		return res, err
	}
	if b.err != nil {
		fl.s.gw.batches.remove(b)
		return nil, refused(c, b.err)
	}
	if !b.keepAnswer() {
		return nil, refused(c, fmt.Errorf("%w: the answer of the batch could not be stored; try again in a while", folding.ErrStorage))
	}
	fl.s.gw.batches.remove(b)
	return nil, nil
}
