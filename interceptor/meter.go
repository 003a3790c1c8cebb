package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Meter counts every metered call and holds a branch to its budget: the
// arguments are charged before the call has an effect, and of the result no
// more is delivered than the branch has left. A result that Fold could not
// make fit is cut with a notice, and the branch ends as exhausted.
//
// It is installed outside Fold and Scrub, because what counts is what the host
// receives. It runs the rest of the chain under the branch's own context, so
// that a branch that ends takes its calls with it.
func Meter(m *folding.Manager, tm TokenMeter) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if !c.Target.Metered {
				return next(ctx, c)
			}
			c.Outcome.Tokens.In = tm.Arguments(c.Target.Arguments)
			if c.Attribution.Branch == nil || c.Target.Control {
				res, err := next(ctx, c)
				if res != nil {
					c.Outcome.Tokens.Delivered = c.measure(tm, res)
					c.Outcome.Tokens.Out = max(c.Outcome.Tokens.Out, c.Outcome.Tokens.Delivered)
				}
				return res, err
			}
			return meterBranch(ctx, c, m, tm, next)
		}
	}
}

// meterBranch runs a call that is charged to c.Branch.
func meterBranch(ctx context.Context, c *Call, m *folding.Manager, tm TokenMeter, next Handler) (res *Result, err error) {
	lease, err := m.Acquire(ctx, c.Attribution.Branch.ID)
	if err != nil {
		return nil, refuse(c, err)
	}
	c.Outcome.lease = lease
	outcome := folding.CallOutcome{Tool: c.Target.Name}
	defer func() {
		if err != nil {
			outcome.Err = err.Error()
		}
		b := lease.Branch()
		c.Outcome.Tokens.BranchUsed, c.Outcome.Tokens.BranchBudget = b.BudgetUsed, b.BudgetTotal
		lease.Release(outcome)
	}()
	if err := lease.Charge(c.Outcome.Tokens.In); err != nil {
		return nil, refuse(c, err)
	}
	res, err = next(lease.Context(), c)
	if err != nil {
		var ended *folding.EndedError
		if errors.As(context.Cause(lease.Context()), &ended) {
			c.Outcome.Late = true
			return nil, refuse(c, ended)
		}
		return nil, err
	}
	want := c.measure(tm, res)
	c.Outcome.Tokens.Out = max(c.Outcome.Tokens.Out, want)
	if failed, _ := rawjson.Get(res.Body, "isError"); res.Error != nil || string(failed) == "true" {
		if outcome.Err = strings.TrimSpace(resultText(res)); outcome.Err == "" {
			outcome.Err = "the tool answered with an error and no text"
		}
	}
	return c.deliver(ctx, lease, tm, res, want, outcome)
}

// deliver charges res, which counts want, and returns what the branch can pay
// of it, made smaller if it can be. Where it is cut, the call ends with o, and
// the branch with it.
func (c *Call) deliver(ctx context.Context, lease *folding.Lease, tm TokenMeter, res *Result, want int, o folding.CallOutcome) (*Result, error) {
	granted, err := lease.ChargeUpTo(want)
	if err != nil { // ended meanwhile: nothing charged, nothing delivered
		c.Outcome.Late = true
		return nil, refuse(c, err)
	}
	if granted == want {
		c.Outcome.Tokens.Delivered = want
		return res, nil
	}
	if c.Outcome.Shrink != nil { // another call took the rest meanwhile
		if small := c.Outcome.Shrink(granted); small != nil {
			if n := c.measure(tm, small); n <= granted {
				c.Outcome.Tokens.Delivered = n
				lease.Refund(granted - n)
				return small, nil
			}
		}
	}
	var cut *Result
	kept := 0
	if c.ofTool() { // a resource or a prompt in another form is of no use to its host
		cut, kept = cutResult(tm, res, granted, c.Attribution.Branch)
	}
	lease.Refund(granted - kept)
	c.Outcome.Truncated, c.Outcome.Decision = true, "resource_limit"
	c.Outcome.Tokens.Delivered = kept
	if cut == nil {
		o.Err = "the result did not fit"
	}
	lease.Exhaust(ctx, o)
	if cut == nil {
		return nil, refuse(c, fmt.Errorf("%w: the result of %s needs %d tokens and branch %s has %d left; return a summary to the parent and open a new branch with a larger budget",
			folding.ErrBudgetExhausted, c.Target.Name, want, c.Attribution.Branch.ID, granted))
	}
	return cut, nil
}

// refuse notes the decision on the call and returns what the model reads.
func refuse(c *Call, err error) error {
	r := FoldingRefusal(err)
	c.Outcome.Decision = r.Reason
	if id := c.Target.Workflow.handle(); id != "" {
		shown := *r
		shown.ContextID = id
		r = &shown
	}
	return r
}

// cutResult returns res as one text block of at most budget tokens, a notice
// included, and what it costs. The handle of a workflow is needed for the next
// call, so it is kept where it fits beside the notice. nil means that not even
// the notice fits.
func cutResult(tm TokenMeter, res *Result, budget int, b *folding.Branch) (*Result, int) {
	notice := fmt.Sprintf("\n[cut by foldgate: branch budget of %d tokens exhausted]", b.BudgetTotal)
	room := budget - tm.Counter.Count(notice)
	if room <= 0 {
		return nil, 0
	}
	res, handle := takeHandle(res)
	if n := tm.Result(&Result{Body: contentOf(handle)}); handle != nil && n < room {
		if cut, kept := cutText(tm, res, budget-n, notice, handle); cut != nil {
			return cut, kept + n
		}
	}
	return cutText(tm, res, budget, notice, nil)
}

// cutText is cutResult for a result whose handle, if any, is paid for.
func cutText(tm TokenMeter, res *Result, budget int, notice string, handle []byte) (*Result, int) {
	room := budget - tm.Counter.Count(notice)
	text := resultText(res)
	for room > 0 {
		kept, _ := tm.Counter.Truncate(text, room)
		out := kept + notice
		if n := tm.Counter.Count(out); n <= budget {
			body := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(out)...)
			body = append(body, '}')
			if handle != nil {
				body = append(append(body, ','), handle...)
			}
			body = append(body, ']')
			if failed, _ := rawjson.Get(res.Body, "isError"); string(failed) == "true" || res.Error != nil {
				body = append(body, `,"isError":true`...)
			}
			if kind, ok := rawjson.Get(res.Body, "resultType"); ok { // the modern era demands it
				body = append(append(body, `,"resultType":`...), kind...)
			}
			body = append(body, '}')
			if id, ok := rawjson.Get(res.Body, "_meta", MetaContextID); ok {
				body = rawjson.Set(body, id, "_meta", MetaContextID)
			}
			return &Result{Body: body, Extra: res.Extra}, n
		}
		room-- // the two halves merged into other tokens at the seam
	}
	return nil, 0
}

// resultText returns what a model would read of res as one text.
func resultText(res *Result) string {
	if res.Error != nil {
		msg, _ := rawjson.GetString(res.Error, "message")
		return msg
	}
	var out []byte
	add := func(v []byte) {
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, v...)
	}
	each := func(v []byte) bool {
		if inner, ok := rawjson.Get(v, "resource"); ok {
			v = inner
		}
		if text, ok := rawjson.GetString(v, "text"); ok {
			add([]byte(text))
		} else if kind, _ := rawjson.GetString(v, "type"); kind == "image" || kind == "audio" {
			add([]byte("[" + kind + " left out]"))
		} else {
			add(rawjson.Compact(v))
		}
		return true
	}
	for _, key := range []string{"content", "contents", "messages"} {
		if v, ok := rawjson.Get(res.Body, key); ok {
			rawjson.Elements(v, each)
		}
	}
	if structured, ok := rawjson.Get(res.Body, "structuredContent"); ok && len(structured) > len(out) {
		return string(rawjson.Compact(structured))
	}
	return string(out)
}

// TokenMeter counts the tokens of what a host may show a model. It is safe for
// concurrent use.
type TokenMeter struct {
	Counter *budget.Counter
	// ImageTokens is the fixed estimate for one image or audio block: what
	// such a block costs depends on the model and its pixels, not on its bytes.
	ImageTokens int
}

// Arguments counts tool arguments as compact JSON.
func (tm TokenMeter) Arguments(args json.RawMessage) int {
	if len(args) == 0 {
		return 0
	}
	return tm.Counter.CountBytes(rawjson.Compact(args))
}

// Result counts a result of tools/call, resources/read or prompts/get: the
// text of its content blocks, or the structured content where that is larger,
// since hosts show one of the two. An error object counts by its message and
// data.
func (tm TokenMeter) Result(r *Result) int {
	if r.Error != nil {
		return tm.Counter.CountBytes(rawjson.Compact(r.Error))
	}
	blocks, structured := 0, 0
	rawjson.Members(r.Body, func(m rawjson.Member) bool {
		switch {
		case m.Is("content"), m.Is("contents"):
			blocks += tm.list(m.Value)
		case m.Is("messages"):
			rawjson.Elements(m.Value, func(msg []byte) bool {
				if content, ok := rawjson.Get(msg, "content"); ok {
					blocks += tm.list(content)
				}
				return true
			})
		case m.Is("structuredContent"):
			structured = tm.Counter.CountBytes(rawjson.Compact(m.Value))
		}
		return true
	})
	return max(blocks, structured)
}

// list counts an array of content blocks, or a single block.
func (tm TokenMeter) list(v []byte) int {
	if rawjson.KindOf(v) != rawjson.Array {
		return tm.block(v)
	}
	n := 0
	rawjson.Elements(v, func(b []byte) bool { n += tm.block(b); return true })
	return n
}

// block counts one content block (or one element of a resource's contents).
func (tm TokenMeter) block(b []byte) int {
	kind, _ := rawjson.GetString(b, "type")
	switch kind {
	case "image", "audio":
		return tm.ImageTokens
	case "text":
		if n, ok := tm.text(b); ok {
			return n
		}
	case "resource":
		if res, ok := rawjson.Get(b, "resource"); ok {
			return tm.block(res)
		}
	case "": // resource contents: {uri, text | blob}
		if n, ok := tm.text(b); ok {
			return n
		}
		if blob, ok := rawjson.Get(b, "blob"); ok {
			if mime, _ := rawjson.GetString(b, "mimeType"); len(mime) >= 6 && mime[:6] == "image/" {
				return tm.ImageTokens
			}
			return tm.Counter.CountBytes(blob)
		}
	}
	return tm.Counter.CountBytes(rawjson.Compact(b))
}

// texts are buffers for what is counted. Large ones are not kept.
var texts = sync.Pool{New: func() any { return new([]byte) }}

const maxTextKept = 2 << 20

// text counts the "text" of a block, if that is a string.
func (tm TokenMeter) text(b []byte) (n int, ok bool) {
	lit, ok := rawjson.Get(b, "text")
	if !ok || rawjson.KindOf(lit) != rawjson.String {
		return 0, false
	}
	buf := texts.Get().(*[]byte)
	text := rawjson.AppendUnquote((*buf)[:0], lit)
	n = tm.Counter.CountBytes(text)
	if cap(text) <= maxTextKept {
		*buf = text
		texts.Put(buf)
	}
	return n, true
}
