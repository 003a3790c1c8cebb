package interceptor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"

	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Fold stores a tool's result or error that is too large, and delivers a preview. A result is too large if
// it is over its threshold, or over what its branch or a limit has left; once a limit with the action fold
// is spent, every result is. Images, audio and the results of other methods pass. A result that can't be
// stored is delivered whole, so folding loses nothing. Before it folds, Fold treats results that look like
// instructions to the model as on_injection says. p returns the policy in force.
func Fold(store *results.Store, tm TokenMeter, p func() *FoldPolicy, b *Boundary, log *slog.Logger) Layer {
	f := &folder{store, tm, p, b, log}
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			res, err := next(ctx, c)
			rule := p().Rule(c.Target.Server, c.Target.Name)
			if err == nil {
				res, err = f.inspect(c, res, rule)
			}
			if err != nil || c.Target.Server == "" || !c.Target.Metered {
				return res, err
			}
			if c.Target.Batch != "" {
				return f.keepForBatch(c, res), nil
			}
			if c.Origin.Direction == FromHost {
				c.Outcome.folder, c.Outcome.result = f, res
			}
			if !c.ofTool() {
				rule = FoldRule{Off: !c.foldable(res)}
			}
			if !rule.Off {
				res = f.deliver(c, res, rule)
			}
			return res, nil
		}
	}
}

// FoldPolicy says which results of tools are folded.
type FoldPolicy struct {
	MainThreshold  int                                // the largest result delivered in main, in tokens
	BranchFraction float64                            // the largest result delivered in a branch, as a part of its budget
	PreviewTokens  int                                // the largest preview
	Rule           func(server, tool string) FoldRule // exceptions for single tools
}

// FoldRule is the rule for one tool.
type FoldRule struct {
	Off bool // deliver results whole, and cut them if they do not fit the budget
	// OnInjection is what becomes of a result that looks like an instruction to the model: log, flag or
	// block of package folding; "" means that results are not searched.
	OnInjection string
	Threshold   int // replaces both thresholds of the policy if it is not 0
}

// Limits of folding, in tokens.
const (
	errorThreshold = 2000 // the smallest threshold of a failed result
	readCall       = 64   // the arguments of a branch_read
	reserve        = 256  // a preview leaves this much of a branch, for another read and the return
	batchTokens    = 48   // the largest result that a batch's call delivers as it is
)

type folder struct {
	store  *results.Store
	tokens TokenMeter
	p      func() *FoldPolicy
	b      *Boundary
	log    *slog.Logger
}

func (f *folder) deliver(c *Call, res *Result, rule FoldRule) *Result {
	n := f.tokens.Result(res)
	c.Outcome.Tokens.Out = n
	limit, left, room := f.threshold(c, rule), math.MaxInt, math.MaxInt
	if here, ok := c.Left(); ok {
		left, room = here, sparing(here)
	}
	if c.Outcome.spend.Fold() {
		limit = 0
	}
	// Other calls may take what is left before Meter charges, and limits may have less left than a branch.
	c.Outcome.Shrink = func(budget int) *Result { return f.fold(c, res, sparing(budget)) }
	if n > left || n > limit && f.large(res, n, limit) {
		if small := f.fold(c, res, room); small != nil {
			return small
		}
	}
	return res
}

// threshold returns the largest result that is delivered whole, if it did not fail. That is a quarter
// more than the policy says: of a result just over a threshold, the preview and a read of the rest
// would cost more than the whole.
func (f *folder) threshold(c *Call, rule FoldRule) int {
	limit := f.p().MainThreshold
	if c.Attribution.Branch != nil {
		limit = int(f.p().BranchFraction * float64(c.Attribution.Branch.BudgetTotal))
	}
	limit = cmp.Or(rule.Threshold, limit)
	return limit + min(limit/4, math.MaxInt-limit)
}

// large reports whether the text of a result of n tokens is over limit by itself. The words beside an
// image are not folded because the image is large.
func (f *folder) large(res *Result, n, limit int) bool {
	p := split(res, false)
	if p.failed() && limit > 0 && n <= errorThreshold {
		return false
	}
	return len(p.kept) == 0 || p.structured != nil || f.tokens.Counter.Exceeds(p.text, limit)
}

// sparing returns the largest preview for so many tokens that are left.
func sparing(left int) int { return max(left-reserve, left/2) }

// fold stores the result and returns it with a preview in the place of its text, in at most room
// tokens. It returns nil if that fails or saves nothing. A result that is folded again, smaller, keeps its
// handle and is not stored again.
func (f *folder) fold(c *Call, res *Result, room int) *Result {
	if res.opaque() {
		return nil
	}
	fault := f.log.With("server", c.Target.Server, "tool", c.Tool())
	res, ok := f.storable(c, res)
	if !ok {
		fault.Error("result not folded: it could not be checked for secrets")
		return nil
	}
	parts, handle := split(res, false), cmp.Or(c.Outcome.Fold, f.store.NewHandle())
	if parts.text == "" {
		return nil
	}
	meta := fmt.Appendf(nil, `{"handle":"%s","tokens":%d}`, handle, c.Outcome.Tokens.Out)
	kept, count := f.tokens.Result(parts.with("", meta)), f.tokens.Counter.Count
	if !parts.blocks() { // it is delivered in JSON
		count = func(text string) int { return f.tokens.Counter.CountBytes(rawjson.Quote(text)) }
	}
	p, ok := preview.Make(preview.Source{Text: parts.text, Tokens: c.Outcome.Tokens.Out - kept, Handle: handle, Data: parts.structured != nil, Whole: f.whole(c, parts.text)}, min(f.p().PreviewTokens, room-kept), count)
	if !ok {
		return nil
	}
	out := parts.with(p.Text, meta)
	stored := c.toStore(handle)
	stored.Kind, stored.Text, stored.Structured, stored.Delivered = string(p.Kind), parts.text, string(parts.structured), f.tokens.Result(out)
	if c.Outcome.Fold == "" {
		// Not the call's context: the result is stored even if the caller has gone.
		if err := f.store.Put(context.Background(), stored); err != nil {
			if !errors.Is(err, results.ErrTooLarge) {
				fault.Error("result not folded", "err", err)
			}
			return nil
		}
	}
	c.Outcome.Folded, c.Outcome.Fold, c.Outcome.Saved = true, handle, stored.Tokens-stored.Delivered
	return out
}

// whole returns the max_tokens with which one branch_read delivers all of a text after its preview. It
// returns 0 if that takes several, or if a limit wants all folded.
func (f *folder) whole(c *Call, text string) int {
	most := f.p().MainThreshold // as branch_read bounds a page
	if left, ok := c.Left(); ok {
		most = min(most, sparing(left-f.p().PreviewTokens-readCall))
	}
	if c.Outcome.spend.Fold() || f.tokens.Counter.Exceeds(text, most) {
		return 0
	}
	return min((f.tokens.Counter.Count(text)/100+1)*100, most)
}

// keep stores a result that a limit or a fault keeps from the host, because the call has had its effect.
// It sets the handle in the outcome. A result that is more than text is kept as JSON.
func (c *Call) keep() {
	o := &c.Outcome
	if o.folder == nil || o.Fold != "" {
		return
	}
	f := o.folder
	fault := f.log.With("server", c.Target.Server, "tool", c.Tool())
	res, ok := f.storable(c, o.result)
	if !ok {
		fault.Error("result that can't be delivered is lost: it could not be checked for secrets")
		return
	}
	stored := c.toStore(f.store.NewHandle())
	stored.Kind, stored.Text = string(preview.JSON), string(res.value())
	if p := split(res, false); c.foldable(res) && !res.opaque() && len(p.kept) == 0 && p.text != "" {
		stored.Kind, stored.Text, stored.Structured = string(preview.Plain), p.text, string(p.structured)
	}
	if err := f.store.Put(context.Background(), stored); err != nil {
		fault.Error("result that can't be delivered is lost", "err", err)
		return
	}
	o.Fold = stored.Handle
}

// toStore returns what is stored with the result of a call, without the result.
func (c *Call) toStore(handle string) results.Result {
	r := results.Result{
		Handle: handle, Principal: c.Origin.Principal, Session: c.Origin.Session, Server: c.Target.Server, Tool: c.Tool(), Tokens: c.Outcome.Tokens.Out,
	}
	if c.Attribution.Branch != nil {
		r.Context = c.Attribution.Branch.Context
	}
	return r
}

// keepForBatch gives the whole result to the batch that made the call. In place of a larger result it
// delivers one line, because no model reads it.
func (f *folder) keepForBatch(c *Call, res *Result) *Result {
	whole, ok := f.storable(c, res)
	if !ok {
		whole = &Result{Body: append(contentOf(textBlock("the result could not be checked for secrets and was withheld")), `,"isError":true}`...)}
		res = whole
	}
	n := f.tokens.Result(res)
	c.Outcome.Whole, c.Outcome.Tokens.Out = whole, n
	if n <= batchTokens {
		return res
	}
	p := split(res, true)
	p.kept = nil
	out := p.with(fmt.Sprintf("[%d tokens kept for the batch]", n), nil)
	c.Outcome.Folded, c.Outcome.Fold, c.Outcome.Saved = true, c.Target.Batch, n-f.tokens.Result(out)
	return out
}

// storable returns the result without the secrets that the policy let through: the host may see
// them, the disk may not. ok is false if they can't be removed.
func (f *folder) storable(c *Call, res *Result) (_ *Result, ok bool) {
	if c.Outcome.Clean {
		return res, true
	}
	m := Message{Body: res.value(), Extra: res.Extra, Always: true}
	if f.b.ToHost(context.Background(), &m); m.Verdict == Passed {
		return res, true
	}
	return res.with(m.Body, m.Extra), m.Verdict != Withheld
}

// foldMeta is the key of _meta that tells a program what was folded. Models do not see it.
const foldMeta = "io.github.foldgate/fold"

// failed reports whether the text is that of a failure.
func (p parts) failed() bool {
	failed, _ := rawjson.Get(p.left, slices.Concat(p.at[:len(p.at)-1], []string{"isError"})...)
	return p.at[len(p.at)-1] == "message" || string(failed) == "true"
}

// blocks reports whether the place of the preview is content blocks, not a string.
func (p parts) blocks() bool { return p.at[len(p.at)-1] == "content" }

// with returns the result with text in its place, and meta in _meta if it is not nil and not beside an
// error. The structured content is not in it, because some hosts show nothing else.
func (p parts) with(text string, meta []byte) *Result {
	value, owner := rawjson.Quote(text), []string(nil)
	if p.blocks() {
		var before [][]byte
		if p.notice != nil {
			before = [][]byte{p.notice}
		}
		value, owner = arrayOf(slices.Concat(before, [][]byte{textBlock(text)}, p.kept)), p.at[:len(p.at)-1]
	}
	out := rawjson.Set(p.left, value, p.at...)
	if p.fault {
		return &Result{Error: out, Extra: p.extra}
	}
	if meta != nil {
		out = rawjson.Set(out, meta, slices.Concat(owner, []string{"_meta", foldMeta})...)
	}
	return &Result{Body: out, Extra: p.extra}
}
