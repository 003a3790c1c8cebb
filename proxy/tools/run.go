package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Limits of branch_run and of waiting for it.
const (
	answerTokens    = 1000             // an answer, if the call does not say
	defaultParallel = 4                // calls of a batch under way at a time
	maxParallel     = 8                // the most of them
	answerWithin    = 45 * time.Second // some hosts give a call up after 60 s
	progressEvery   = 5 * time.Second
)

// batchArguments are the arguments of branch_run, without branch_id, which Attribute reads.
type batchArguments struct {
	Description, Tool, Grep, JQ string

	Steps     []step
	Each      []json.RawMessage
	MaxTokens float64 `json:"max_tokens"`
	Parallel  float64
}

type step struct {
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments"`
}

// runBatch serves branch_run: it starts the batch and waits for it, but not longer than hosts do.
func (t *Tools) runBatch(ctx context.Context, r *Request) ([]byte, error) {
	var in batchArguments
	if err := decode(r.Call, &in); err != nil {
		return nil, err
	}
	if err := in.check(t.Config().Batch.MaxCalls); err != nil {
		return nil, err
	}
	b, err := t.startBatch(ctx, r, in)
	if err != nil {
		return nil, err
	}
	running, err := b.wait(ctx, r)
	if err != nil {
		b.abandon(err)
	}
	if running != nil || err != nil {
		return running, err
	}
	t.forget(b)
	return b.reply(ctx, r, int(in.MaxTokens))
}

// check fills in the defaults and refuses arguments that make no sense.
func (in *batchArguments) check(maxCalls int) error {
	if in.Tool != "" || len(in.Each) > 0 {
		if len(in.Steps) > 0 {
			return &extract.Error{Field: "steps", Text: "give either steps, or tool and each"}
		}
		if in.Tool == "" || in.Each == nil {
			return &extract.Error{Field: "each", Text: "give tool and each, a list of its arguments, together"}
		}
		if len(in.Each) == 0 {
			return &extract.Error{Field: "each", Text: "is empty: give the arguments of at least one call"}
		}
		for _, args := range in.Each {
			in.Steps = append(in.Steps, step{in.Tool, args})
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
	field := "steps"
	if in.Tool != "" {
		field = "each"
	}
	for i, s := range in.Steps {
		if len(s.Arguments) == 0 {
			in.Steps[i].Arguments = json.RawMessage(`{}`)
		} else if rawjson.KindOf(s.Arguments) != rawjson.Object {
			return &extract.Error{Field: field, Text: fmt.Sprintf("the arguments of call %d are no object: name each, such as {\"path\": \"a.txt\"}", i+1)}
		}
	}
	// A wrong filter is found before any call is made for it.
	if in.Grep != "" {
		if _, err := extract.Grep(context.Background(), "", extract.Pattern{Expr: in.Grep}); err != nil {
			return err
		}
	}
	if in.JQ != "" {
		if err := extract.CheckJQ(in.JQ); err != nil {
			return err
		}
	}
	in.MaxTokens = cmp.Or(in.MaxTokens, answerTokens)
	in.Parallel = min(cmp.Or(in.Parallel, defaultParallel), maxParallel)
	return nil
}

// wait waits for the batch and tells the host how far it is. It returns nothing once the batch is
// over, and a result for the host if that takes too long.
func (b *batch) wait(ctx context.Context, r *Request) (running []byte, err error) {
	limit := time.NewTimer(answerWithin)
	defer limit.Stop()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	tell := teller(r)
	for {
		select {
		case <-b.done:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-tick.C:
			tell(int(b.finished.Load()), len(b.in.Steps))
		case <-limit.C:
			b.detached.Store(true)
			return plain(r.Call, fmt.Sprintf("[batch running: %d of %d calls done; wait for its answer with branch_read {\"handle\":\"%s\"}]",
				b.finished.Load(), len(b.in.Steps), b.handle)), nil
		}
	}
}

// teller returns what tells the host of a request how far that is, if the host asked for it. MCP wants each value to be
// greater than the one before, so if no more is done it adds a part of one step, which grows with time.
func teller(r *Request) (tell func(done, total int)) {
	begun, last := time.Now(), -1.0
	return func(done, total int) {
		token, ok := rawjson.Get(r.Call.Target.Forward, "_meta", "progressToken")
		if !ok {
			return
		}
		value := float64(done)
		if value <= last {
			waited := time.Since(begun).Minutes()
			value = max(value, math.Floor(last)) + waited/(waited+1)
		}
		last = value
		r.Notify(wire.Message{Method: wire.MethodProgress,
			Params: fmt.Appendf(nil, `{"progressToken":%s,"progress":%v,"total":%d}`, token, value, total)})
	}
}

// reply returns a page of the finished batch's answer. An answer that does not fit is stored under
// the batch's handle.
func (b *batch) reply(ctx context.Context, r *Request, maxTokens int) ([]byte, error) {
	if b.err != nil {
		return nil, b.err
	}
	body, err := b.t.deliver(ctx, &page{t: b.t, c: r.Call, text: b.answer, number: 1, of: b}, maxTokens)
	if err == nil && b.stored {
		r.Call.Outcome.Read = readOf(results.Result{Tool: b.sources, Handle: b.rest, Context: b.branch.Context})
	}
	return body, err
}

// waitStored waits for a batch that its host was told goes on. It returns nothing once the answer
// can be read from the store, under the batch's handle. An answer that can't be stored is kept for
// another try.
func (b *batch) waitStored(ctx context.Context, r *Request) (running []byte, err error) {
	if running, err := b.wait(ctx, r); running != nil || err != nil {
		return running, err
	}
	if b.err == nil && !b.keepAnswer() {
		return nil, fmt.Errorf("%w: the answer of the batch could not be stored; try again in a while", folding.ErrStorage)
	}
	b.t.forget(b)
	return nil, b.err
}
