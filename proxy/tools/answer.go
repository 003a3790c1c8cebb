package tools

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	filterTime  = 10 * time.Second // of grep or jq over all results
	maxFault    = 201              // characters of one call's error, an ellipsis included
	shownFaults = 5
	stepPreview = 150 // tokens of one result's preview, if nothing filters
)

// compose stores the results together and makes the answer: a line about the batch, what the filter
// let through, and the calls that failed. If all calls failed alike, the answer is that failure
// alone. Only the filter ends with ctx.
func (b *batch) compose(ctx context.Context) (string, error) {
	none := b.failed() == len(b.results)
	faults, whole := b.faults()
	filtering, cancel := context.WithTimeout(ctx, filterTime)
	out, err := b.filter(filtering)
	cancel()
	ctx = context.WithoutCancel(ctx) // the results are kept also if the filter took too long
	switch {
	case none && (err != nil || out == "null"): // a program that reads results, without results
		out = ""
	case err != nil:
		out = fmt.Sprintf("[the filter failed, the calls were made: %v]", err)
	}
	head := ""
	if !none || !whole || out != "" { // else the faults are all there is
		head = b.head(ctx)
	}
	parts := slices.DeleteFunc([]string{head, out, faults}, isEmpty)
	// Parts that are clean alone may form a secret together.
	m := interceptor.Message{Text: strings.Join(parts, "\n"), Always: true}
	b.t.Boundary.Inbound(ctx, &m)
	return m.Text, m.Err
}

// head stores the results and says in a line what was done and where they are.
func (b *batch) head(ctx context.Context) string {
	tokens := 0
	for _, r := range b.results {
		tokens += r.tokens
	}
	head := "[" + counted(len(b.results), "call")
	if n := b.failed(); n > 0 {
		head += fmt.Sprintf(", %d failed", n)
	}
	head += fmt.Sprintf(", %d tokens read", tokens)
	if b.stored = b.store(ctx, tokens); b.stored {
		head += "; all of it: branch_read " + b.rest
	}
	return head + "]"
}

// filter applies jq to all results, or grep to each. Without either it shows a preview of each.
func (b *batch) filter(ctx context.Context) (string, error) {
	if b.in.JQ != "" {
		return b.t.Programs.JQ(ctx, b.principal(), b.document(), b.in.JQ)
	}
	var out []string
	for i, r := range b.results {
		if r.fault != "" {
			continue
		}
		text := r.text
		if b.in.Grep != "" {
			var err error
			if text, err = extract.Grep(ctx, text, extract.Pattern{Expr: b.in.Grep}); err != nil {
				return "", err
			}
			if strings.HasPrefix(text, "[no match") {
				continue
			}
		} else if p, ok := preview.Make(preview.Source{Text: text, Tokens: r.tokens, Handle: b.rest}, stepPreview, b.t.Counter.Count); ok && r.tokens > stepPreview {
			_, text, _ = strings.Cut(p.Text, "\n") // its first line would name the handle again
		}
		out = append(out, b.title(i)+"\n"+strings.TrimSuffix(text, "\n"))
	}
	if out == nil && b.in.Grep != "" && b.failed() < len(b.results) {
		return "[no match in any result]", nil
	}
	return strings.Join(out, "\n"), nil
}

// title names a call in an answer: by its arguments if all calls are of one tool.
func (b *batch) title(i int) string {
	st := b.shown[i]
	args := string(rawjson.Compact(st.Arguments))
	var only []string
	for m := range rawjson.Members(st.Arguments) {
		only = append(only, rawjson.Unquote(m.Value))
	}
	if len(only) == 1 && only[0] != "" {
		args = only[0]
	}
	if b.in.Tool == "" {
		args = st.Tool + " " + args
	}
	return fmt.Sprintf("#%d %s", i+1, folding.Shorten(args, 121))
}

// faults lists the calls that failed, equal failures once. whole is false if the list leaves
// something out.
func (b *batch) faults() (list string, whole bool) {
	whole = true
	var order []string
	who := map[string][]string{}
	for i, r := range b.results {
		if r.fault == "" {
			continue
		}
		text := strings.Join(strings.Fields(r.fault), " ")
		if short := folding.Shorten(text, maxFault); short != text {
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

// document returns all results as JSON, the input of jq: an array of {step, tool, arguments,
// result | error}. A result that is JSON stays JSON.
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

// store keeps all results under one handle. It returns false if that failed.
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
		if by := source(r.server, r.tool); r.server != "" && !slices.Contains(made, by) {
			made = append(made, by)
		}
	}
	b.sources = strings.Join(made, " ")
	return b.put(ctx, "results", results.Result{Handle: b.rest, Kind: "batch", Text: text.String(), Structured: b.document(), Tokens: tokens})
}

// keepAnswer stores the answer, once, so that its pages can be read.
func (b *batch) keepAnswer() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.kept {
		size := b.t.Counter.Count(b.answer)
		b.kept = b.put(b.t.lifetime, "answer", results.Result{Handle: b.handle, Kind: "answer", Text: b.answer, Tokens: size, Delivered: size})
	}
	return b.kept
}

// put stores the results or the answer. It returns false if that failed.
func (b *batch) put(ctx context.Context, what string, r results.Result) bool {
	r.Principal, r.Session, r.Context, r.Tool = b.principal(), b.session(), b.branch.Context, b.sources
	err := b.t.Results.Put(ctx, r)
	if err != nil {
		b.t.Log.Error(what+" of a batch not stored", "err", err)
	}
	return err == nil
}

// source names a tool among those that made a batch. Some tools have spaces in their names.
func source(server, tool string) string { return server + "/" + url.PathEscape(tool) }

func parseSource(by string) (server, tool string) {
	server, tool, _ = strings.Cut(by, "/")
	if own, err := url.PathUnescape(tool); err == nil {
		tool = own
	}
	return server, tool
}
