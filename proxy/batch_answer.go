package proxy

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	filterTime  = 10 * time.Second // of grep or jq over all results
	maxFault    = 200              // characters of one call's error
	shownFaults = 5
	stepPreview = 150 // tokens of one result's preview, where nothing filters
)

// compose stores the results together and makes the answer: one line about
// the batch, what the filter let through, and the calls that failed. Of a batch
// in which all failed alike that is all: there is nothing to read on in. Only
// the filter ends with ctx: where it takes too long the results are kept.
func (b *batch) compose(ctx context.Context) (string, error) {
	none := b.failed() == len(b.results)
	faults, whole := b.faults()
	filtering, cancel := context.WithTimeout(ctx, filterTime)
	out, err := b.filter(filtering)
	cancel()
	ctx = context.WithoutCancel(ctx)
	switch {
	case none && (err != nil || out == "null"): // a program for results, and there are none
		out = ""
	case err != nil:
		out = fmt.Sprintf("[the filter failed, the calls were made: %v]", err)
	}
	var parts []string
	if !none || !whole || out != "" { // else the faults are all there is
		parts = append(parts, b.head(ctx))
	}
	for _, part := range []string{out, faults} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	// Parts of texts that were clean each may form a secret together.
	m := interceptor.Message{Text: strings.Join(parts, "\n"), Always: true}
	b.g.boundary.Inbound(ctx, &m)
	return m.Text, m.Err()
}

// head stores the results and says in a line what was done and where they are.
func (b *batch) head(ctx context.Context) string {
	tokens := 0
	for _, r := range b.results {
		tokens += r.tokens
	}
	head := "[1 call"
	if n := len(b.results); n > 1 {
		head = fmt.Sprintf("[%d calls", n)
	}
	if n := b.failed(); n > 0 {
		head += fmt.Sprintf(", %d failed", n)
	}
	head += fmt.Sprintf(", %d tokens read", tokens)
	if b.stored = b.store(ctx, tokens); b.stored {
		head += "; all of it: branch_read " + b.rest
	}
	return head + "]"
}

// filter applies grep or jq; without either it shows a short preview of each.
func (b *batch) filter(ctx context.Context) (string, error) {
	switch {
	case b.in.JQ != "":
		return b.g.programs.JQ(ctx, b.principal, b.document(), b.in.JQ)
	case b.in.Grep != "":
		return b.grep(ctx)
	}
	var out []string
	for i, r := range b.results {
		if r.fault != "" {
			continue
		}
		text := r.text
		if p, ok := preview.Make(preview.Source{Text: text, Tokens: r.tokens, Handle: b.rest}, stepPreview, b.g.counter.Count); ok && r.tokens > stepPreview {
			_, text, _ = strings.Cut(p.Text, "\n") // its first line would name the handle again
		}
		out = append(out, b.title(i)+"\n"+strings.TrimSuffix(text, "\n"))
	}
	return strings.Join(out, "\n"), nil
}

// grep shows the matching lines of each result that has any.
func (b *batch) grep(ctx context.Context) (string, error) {
	var out []string
	for i, r := range b.results {
		if r.fault != "" {
			continue
		}
		found, err := extract.Grep(ctx, r.text, extract.Pattern{Expr: b.in.Grep})
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(found, "[no match") {
			out = append(out, b.title(i)+"\n"+found)
		}
	}
	if out == nil && b.failed() < len(b.results) {
		return "[no match in any result]", nil
	}
	return strings.Join(out, "\n"), nil
}

// title names a call in an answer: by its arguments where the tool is the same
// for all.
func (b *batch) title(i int) string {
	st := b.shown[i]
	args := string(rawjson.Compact(st.Arguments))
	var only []string
	rawjson.Members(st.Arguments, func(m rawjson.Member) bool {
		only = append(only, rawjson.Unquote(m.Value))
		return true
	})
	if len(only) == 1 && only[0] != "" {
		args = only[0]
	}
	if b.in.Tool == "" {
		args = st.Tool + " " + args
	}
	return fmt.Sprintf("#%d %s", i+1, clipText(args, 120))
}

// faults lists the calls that failed, alike ones once. whole is false where
// the list leaves something out.
func (b *batch) faults() (list string, whole bool) {
	whole = true
	var order []string
	who := map[string][]string{}
	for i, r := range b.results {
		if r.fault == "" {
			continue
		}
		text := strings.Join(strings.Fields(r.fault), " ")
		if short := clipText(text, maxFault); short != text {
			text, whole = short, false
		}
		if who[text] == nil {
			order = append(order, text)
		}
		who[text] = append(who[text], fmt.Sprintf("#%d", i+1))
	}
	var out []string
	for i, text := range order {
		if i == shownFaults {
			out, whole = append(out, fmt.Sprintf("[%d more kinds of failure]", len(order)-i)), false
			break
		}
		which := " " + strings.Join(who[text], " ")
		switch len(who[text]) {
		case 1:
			if len(b.results) == 1 {
				which = ""
			}
		case len(b.results):
			which = fmt.Sprintf(" in all %d calls", len(b.results))
		}
		out = append(out, fmt.Sprintf("[failed%s: %s]", which, text))
	}
	return strings.Join(out, "\n"), whole
}

func clipText(s string, max int) string {
	if r := []rune(s); len(r) > max {
		return string(r[:max]) + "…"
	}
	return s
}

// document is all results as JSON, as jq sees them: an array of
// {step, tool, arguments, result | error}, result being JSON where it is.
func (b *batch) document() string {
	out := []byte{'['}
	for i, r := range b.results {
		if i > 0 {
			out = append(out, ',')
		}
		st := b.shown[i]
		out = fmt.Appendf(out, `{"step":%d,"tool":`, i+1)
		out = append(append(rawjson.AppendQuote(out, st.Tool), `,"arguments":`...), rawjson.Compact(st.Arguments)...)
		switch {
		case r.fault != "":
			out = rawjson.AppendQuote(append(out, `,"error":`...), r.fault)
		case r.structured != "":
			out = append(append(out, `,"result":`...), r.structured...)
		case rawjson.KindOf([]byte(r.text)) != rawjson.String && rawjson.Valid([]byte(r.text), wire.MaxDepth):
			out = append(append(out, `,"result":`...), rawjson.Compact([]byte(r.text))...)
		default:
			out = rawjson.AppendQuote(append(out, `,"result":`...), r.text)
		}
		out = append(out, '}')
	}
	return string(append(out, ']'))
}

// store keeps all results under one handle; false where that failed.
func (b *batch) store(ctx context.Context, tokens int) bool {
	var text strings.Builder
	var made []string
	for i, r := range b.results {
		if i > 0 {
			text.WriteByte('\n')
		}
		text.WriteString(b.title(i) + "\n" + r.text)
		if r.fault != "" {
			text.WriteString("error: " + r.fault)
		}
		if by := madeBy(r.server, r.tool); r.server != "" && !slices.Contains(made, by) {
			made = append(made, by)
		}
	}
	b.made = strings.Join(made, " ")
	err := b.g.results.Put(ctx, results.Result{
		Handle: b.rest, Principal: b.principal, Session: b.session, Context: b.branch.Context, Tool: b.made,
		Kind: "batch", Text: text.String(), Structured: b.document(), Tokens: tokens,
	})
	if err != nil {
		b.g.log.Error("results of a batch not stored", "err", err)
	}
	return err == nil
}

// madeBy names the tool of a server among those that made a batch: some servers
// have tools with spaces in their names.
func madeBy(server, tool string) string { return server + "/" + url.PathEscape(tool) }

// maker undoes madeBy.
func maker(by string) (server, tool string) {
	server, tool, _ = strings.Cut(by, "/")
	if own, err := url.PathUnescape(tool); err == nil {
		tool = own
	}
	return server, tool
}

// keepAnswer stores the answer, once, so that its pages can be read.
func (b *batch) keepAnswer() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.kept {
		return true
	}
	size := b.g.counter.Count(b.answer)
	err := b.g.results.Put(b.g.ctx, results.Result{
		Handle: b.handle, Principal: b.principal, Session: b.session, Context: b.branch.Context, Tool: b.made,
		Kind: "answer", Text: b.answer, Tokens: size, Delivered: size,
	})
	if err != nil {
		b.g.log.Error("answer of a batch not stored", "err", err)
	}
	b.kept = err == nil
	return b.kept
}
