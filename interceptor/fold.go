package interceptor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"

	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// FoldPolicy says which results of tools are folded.
type FoldPolicy struct {
	// MainThreshold is the largest result delivered in main, in tokens;
	// BranchFraction that of a branch, as a part of its budget.
	MainThreshold  int
	BranchFraction float64
	// PreviewTokens is how large a preview may be.
	PreviewTokens int
	// Rules has what applies to single tools.
	Rules FoldRules
}

// FoldRules finds the policy for one tool.
type FoldRules interface {
	FoldRule(server, tool string) FoldRule
}

// FoldRule is the policy for one tool.
type FoldRule struct {
	// Off delivers the tool's results whole: where they don't fit the budget
	// they are cut. Threshold replaces both others where it is not 0.
	Off       bool
	Threshold int
}

const (
	// errorThreshold: what went wrong is read whole up to this size.
	errorThreshold = 2000
	// reserve is what a preview leaves of a branch, so that its agent can
	// still read and return something.
	reserve = 256
)

// Fold keeps a result of a tool that is too large for its place in the store
// and delivers a preview: over a threshold, and always where the result would
// not fit what its branch has left. Images and audio pass as they are; so does
// everything that is not a tool's result. It is installed inside Meter,
// which charges what is delivered, and outside Scrub, so that only scrubbed
// text reaches the disk.
//
// If a result can't be stored it is delivered whole: nothing is ever lost to
// folding.
func Fold(store *results.Store, tm TokenMeter, p FoldPolicy, b *Boundary, log *slog.Logger) Middleware {
	f := &folder{store, tm, p, b, log}
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			res, err := next(ctx, c)
			if err != nil || res.Error != nil || !c.ofTool() || c.Target.Server == "" || !c.Target.Metered {
				return res, err
			}
			if c.Target.Batch != "" {
				return f.applyBatch(ctx, c, res), nil
			}
			rule := p.Rules.FoldRule(c.Target.Server, c.Target.Name)
			if rule.Off {
				return res, nil
			}
			return f.apply(ctx, c, res, rule), nil
		}
	}
}

type folder struct {
	store  *results.Store
	tokens TokenMeter
	p      FoldPolicy
	b      *Boundary
	log    *slog.Logger
}

// apply returns what is delivered for res.
func (f *folder) apply(ctx context.Context, c *Call, res *Result, rule FoldRule) *Result {
	n := c.measure(f.tokens, res)
	c.Outcome.Tokens.Out = n
	limit, left, room := f.threshold(c, res, rule), math.MaxInt, math.MaxInt
	if here, ok := c.Left(); ok {
		left, room = here, sparing(here) // over left, folding is the only way to deliver anything
	}
	if n > left || n > limit && f.large(splitResult(res.Body), limit) {
		if small := f.fold(ctx, c, res, room); small != nil {
			return small
		}
	}
	// Others of the branch may have taken what was left by the time Meter books.
	c.Outcome.Shrink = func(budget int) *Result { return f.fold(ctx, c, res, sparing(budget)) }
	return res
}

// large reports whether what can be folded of a result over limit is over it by
// itself: the words beside an image are not folded for the image's sake.
func (f *folder) large(p parts, limit int) bool {
	return len(p.kept) <= len("[]") || p.structured != nil || f.tokens.Counter.Exceeds(p.text, limit)
}

// sparing is how much of what is left a preview may take.
func sparing(left int) int { return max(left-reserve, left/2) }

// storable returns res without the secrets that the policy let through: the host
// may see them, the disk may not. ok is false if it could not be checked.
func (f *folder) storable(ctx context.Context, c *Call, res *Result) (_ *Result, ok bool) {
	if c.Outcome.resultScrubbed || res.Error != nil {
		return res, true
	}
	m := Message{Body: res.Body, Always: true}
	if f.b.Inbound(context.WithoutCancel(ctx), &m); m.Verdict == Passed {
		return res, true
	}
	return &Result{Body: m.Body, Extra: res.Extra}, m.Verdict != Withheld
}

// threshold is the largest result that is delivered whole.
func (f *folder) threshold(c *Call, res *Result, rule FoldRule) int {
	limit := f.p.MainThreshold
	if c.Attribution.Branch != nil {
		limit = int(f.p.BranchFraction * float64(c.Attribution.Branch.BudgetTotal))
	}
	if rule.Threshold > 0 {
		limit = rule.Threshold
	}
	if failed, _ := rawjson.Get(res.Body, "isError"); string(failed) == "true" {
		limit = max(limit, errorThreshold)
	}
	return limit
}

// fold stores a result and returns it with a preview in the place of its text, in
// at most room tokens; nil where that can't be done or saves nothing.
func (f *folder) fold(ctx context.Context, c *Call, res *Result, room int) *Result {
	res, ok := f.storable(ctx, c, res)
	if !ok {
		f.log.Error("result not folded: it could not be checked for secrets", "server", c.Target.Server, "tool", c.Target.Name)
		return nil
	}
	parts, extra := splitResult(res.Body), res.Extra
	if parts.text == "" {
		return nil
	}
	handle := results.NewHandle()
	kept := f.tokens.list(parts.kept)
	p, ok := preview.Make(preview.Source{Text: parts.text, Tokens: c.Outcome.Tokens.Out - kept, Handle: handle}, min(f.p.PreviewTokens, room-kept), f.tokens.Counter.Count)
	if !ok {
		return nil
	}
	out := parts.with(p.Text, handle, c.Outcome.Tokens.Out)
	out.Extra = extra
	stored := results.Result{
		Handle: handle, Principal: c.Origin.Principal, Session: c.Origin.Session, Server: c.Target.Server, Tool: c.Target.Name, Kind: string(p.Kind),
		Text: parts.text, Structured: string(parts.structured), Tokens: c.Outcome.Tokens.Out, Delivered: c.measure(f.tokens, out),
	}
	if c.Attribution.Branch != nil {
		stored.Context = c.Attribution.Branch.Context
	}
	// The result is there: that its caller is gone is no reason to lose it.
	if err := f.store.Put(context.WithoutCancel(ctx), stored); err != nil {
		if !errors.Is(err, results.ErrTooLarge) {
			f.log.Error("result not folded", "server", c.Target.Server, "tool", c.Target.Name, "err", err)
		}
		return nil
	}
	c.Outcome.Folded, c.Outcome.Fold, c.Outcome.Saved = true, handle, stored.Tokens-stored.Delivered
	return out
}

// batchTokens is the largest result of a batch that is delivered to it as it
// is. What is larger costs its branch one line.
const batchTokens = 48

// applyBatch hands the whole result to the batch that made the call, and
// delivers no more than a line: no model reads it.
func (f *folder) applyBatch(ctx context.Context, c *Call, res *Result) *Result {
	whole, ok := f.storable(ctx, c, res)
	if !ok {
		whole = &Result{Body: json.RawMessage(`{"content":[{"type":"text","text":"the result could not be checked for secrets and was withheld"}],"isError":true}`)}
		res = whole
	}
	c.Outcome.Whole = whole
	n := c.measure(f.tokens, res)
	c.Outcome.Tokens.Out = n
	if n <= batchTokens {
		return res
	}
	body := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(fmt.Sprintf("[%d tokens kept for the batch]", n))...)
	body = append(body, `}]`...)
	for _, key := range []string{"isError", "resultType"} {
		if v, ok := rawjson.Get(res.Body, key); ok {
			body = append(append(body, `,"`+key+`":`...), v...)
		}
	}
	out := &Result{Body: append(body, '}'), Extra: res.Extra}
	c.Outcome.Folded, c.Outcome.Fold, c.Outcome.Saved = true, c.Target.Batch, n-c.measure(f.tokens, out)
	return out
}

// Text returns what a model would read of a result of tools/call as one text,
// and its structured content as JSON where the text does not say the same.
func (r *Result) Text() (text, structured string) {
	if r.Error != nil {
		msg, _ := rawjson.GetString(r.Error, "message")
		return msg, ""
	}
	p := splitResult(r.Body)
	return p.text, string(p.structured)
}

// foldMeta is the key in _meta that tells a program what was folded. Models
// don't see it.
const foldMeta = "io.github.foldgate/fold"

// parts are what a tool result consists of.
type parts struct {
	body []byte
	// text is what a model would read: text blocks and embedded texts, one
	// after the other; or the structured content, where the text is no more
	// than a caption to it. kept are the other blocks (images, audio, links, a caption) as an
	// array, to be delivered as they are.
	text string
	kept []byte
	// structured is the structured content in compact form, nil where there is
	// none or text says the same.
	structured []byte
}

// splitResult takes the result of a tools/call apart.
func splitResult(body []byte) (p parts) {
	p.body = body
	var text bytes.Buffer
	kept := []byte("[")
	content, _ := rawjson.Get(body, "content")
	rawjson.Elements(content, func(b []byte) bool {
		t, ok := blockText(b)
		switch {
		case !ok:
			if len(kept) > 1 {
				kept = append(kept, ',')
			}
			kept = append(kept, b...)
		case t != "":
			if text.Len() > 0 && !bytes.HasSuffix(text.Bytes(), []byte("\n")) {
				text.WriteByte('\n')
			}
			text.WriteString(t)
		}
		return true
	})
	p.text = text.String()
	defer func() { p.kept = append(kept, ']') }()
	if s, ok := rawjson.Get(body, "structuredContent"); ok && rawjson.KindOf(s) != rawjson.Null {
		if s = rawjson.Compact(s); !bytes.Equal(s, rawjson.Compact([]byte(p.text))) {
			p.structured = s
		}
	}
	if p.structured != nil && len(p.text) <= caption && len(p.text) < len(p.structured) {
		if p.text != "" {
			if len(kept) > 1 {
				kept = append(kept, ',')
			}
			kept = append(append(append(kept, `{"type":"text","text":`...), rawjson.Quote(p.text)...), '}')
		}
		p.text, p.structured = string(p.structured), nil
	}
	return p
}

// caption is the longest text, in bytes, that is delivered whole beside the
// preview of structured content.
const caption = 600

// blockText returns the text of a content block; ok is false for blocks that
// are delivered as they are.
func blockText(b []byte) (text string, ok bool) {
	kind, _ := rawjson.GetString(b, "type")
	switch kind {
	case "text":
		if isHandle(b) {
			return "", false
		}
		return rawjson.GetString(b, "text")
	case "resource":
		uri, _ := rawjson.GetString(b, "resource", "uri")
		if t, has := rawjson.GetString(b, "resource", "text"); has {
			return fmt.Sprintf("[resource %s]\n%s", uri, t), true
		}
	}
	return "", false
}

// with returns the result with preview in the place of its text. Structured
// content goes, since hosts that show it show nothing else; all other members
// stay.
func (p parts) with(preview, handle string, tokens int) *Result {
	content := append([]byte(`[{"type":"text","text":`), rawjson.Quote(preview)...)
	content = append(content, '}')
	if len(p.kept) > 2 {
		content = append(append(content, ','), p.kept[1:len(p.kept)-1]...)
	}
	body := rawjson.Delete(rawjson.Set(p.body, append(content, ']'), "content"), "structuredContent")
	return &Result{Body: rawjson.Set(body, fmt.Appendf(nil, `{"handle":"%s","tokens":%d}`, handle, tokens), "_meta", foldMeta)}
}
