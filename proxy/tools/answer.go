package tools

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	filterTime  = 10 * time.Second // of grep or jq over all results
	faultTokens = 50               // of one failed call: what failed, and how to read the rest
	frameTokens = 12               // of them at most for the words around the error, the number of one call included
	shownFaults = 5
	stepPreview = 150 // tokens of one result's preview, if nothing filters
)

// compose stores the results together and makes the answer: a line about the batch, what the filter
// let through, and the calls that failed. If all calls failed, the answer is the failures alone, and
// the handle if they do not fit. Only the filter ends with ctx.
func (b *batch) compose(ctx context.Context) (string, error) {
	none := b.failed() == len(b.results)
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
	faults, whole := b.faults(0)
	switch {
	case !none || out != "":
		head = b.head(ctx)
	case !whole:
		if b.store(ctx); b.stored {
			rest := "[rest: branch_read " + b.rest + "]"
			faults, _ = b.faults(b.t.Counter.Count(rest))
			faults += "\n" + rest
		}
	}
	parts := slices.DeleteFunc([]string{head, out, faults}, isEmpty)
	// Parts that are clean alone may form a secret together.
	m := interceptor.Message{Text: strings.Join(parts, "\n"), Always: true}
	b.t.Boundary.ToHost(ctx, &m)
	return m.Text, m.Err
}

// head stores the results and says in a line what was done and where they are.
func (b *batch) head(ctx context.Context) string {
	head := "[" + counted(len(b.results), "call")
	if n := b.failed(); n > 0 {
		head += fmt.Sprintf(", %d failed", n)
	}
	head += fmt.Sprintf(", %d tokens read", b.tokens())
	if b.store(ctx); b.stored {
		head += "; all of it: branch_read " + b.rest
	}
	return head + "]"
}

func (b *batch) tokens() (n int) {
	for _, r := range b.results {
		n += r.tokens
	}
	return n
}

// filter applies jq to all results, or grep to each. Without either it shows a preview of each.
func (b *batch) filter(ctx context.Context) (string, error) {
	if b.in.JQ != "" {
		return b.t.Programs.JQResults(ctx, b.principal(), b.document(), b.in.JQ)
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
			out = append(out, b.title(i)+" "+text)
			continue
		}
		if p, ok := preview.Make(preview.Source{Text: text, Tokens: r.tokens, Handle: b.rest}, stepPreview, b.t.Counter.Count); ok && r.tokens > stepPreview {
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

// faults lists the calls that failed, equal failures once. Each kind of failure gets at most faultTokens; follows, the
// tokens of a line after the list, is taken from that in equal parts, but not if a refusal of foldgate needs all. The
// numbers of the calls come on top. whole is false if the list leaves something out.
func (b *batch) faults(follows int) (list string, whole bool) {
	whole = true
	var order []string
	who := map[string][]int{}
	for i, r := range b.results {
		if r.fault == "" {
			continue
		}
		if who[r.fault] == nil {
			order = append(order, r.fault)
		}
		who[r.fault] = append(who[r.fault], i)
	}
	shown := order[:min(len(order), shownFaults)]
	var out []string
	for _, fault := range shown {
		which := ""
		switch calls := who[fault]; {
		case len(calls) == len(b.results) && len(calls) > 1:
			which = fmt.Sprintf(" in all %d calls", len(calls))
		case len(b.results) > 1:
			for _, i := range calls {
				which += fmt.Sprintf(" #%d", i+1)
			}
		}
		frame := min(b.t.Counter.Count("[failed"+which+": ]")+2, frameTokens)
		room := faultTokens - frame
		text, all := b.brief(fault, room-(follows+len(shown)-1)/len(shown))
		if why := b.results[who[fault][0]].refusal; !all && why != nil {
			if text, all = b.brief(fault, room); !all && why.Reason == trace.ReasonLimit {
				text = cmp.Or(b.start(fault, room), text)
			}
		}
		out, whole = append(out, "[failed"+which+": "+text+"]"), whole && all
	}
	if n := len(order) - len(shown); n > 0 {
		out, whole = append(out, fmt.Sprintf("[%d more kinds of failure]", n)), false
	}
	return strings.Join(out, "\n"), whole
}

// brief returns a failure in one line of about room tokens: all of it if it fits, else the start and
// the end of the line that says what failed.
func (b *batch) brief(fault string, room int) (line string, whole bool) {
	if line = oneLine(fault); !b.t.Counter.Exceeds(line, room) {
		return line, true
	}
	line = oneLine(whatFailed(fault))
	if !b.t.Counter.Exceeds(line, room-1) {
		return line + " …", false
	}
	head, n := b.t.Counter.Truncate(line, max(room/2, 1))
	tail := []rune(line[len(head):])
	tail = tail[max(len(tail)-4*room, 0):]
	for len(tail) > 0 && b.t.Counter.Exceeds(string(tail), max(room-n-1, 0)) {
		tail = tail[min(1+len(tail)/8, len(tail)):]
	}
	return head + "…" + string(tail), false
}

// start returns the clauses at the start of the refusal of a limit that fit in about room tokens, "" for none: the first
// says which limit it is, and until when. What can be done about it comes last.
func (b *batch) start(refusal string, room int) string {
	for line := oneLine(refusal); ; {
		i := max(strings.LastIndex(line, ": "), strings.LastIndex(line, "; "))
		if i < 0 || !strings.Contains(line[:i], ": ") { // the code alone says too little
			return ""
		}
		if line = line[:i]; !b.t.Counter.Exceeds(line, room-1) {
			return line + " …"
		}
	}
}

// whatFailed returns the line of an error text that says what failed: of a traceback the last line,
// else the first one that names an error, else the first one.
func whatFailed(text string) (line string) {
	lines := slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
	if strings.Contains(text, "Traceback (most recent call last)") {
		slices.Reverse(lines)
	}
	for _, l := range lines {
		if namesFault.MatchString(l) {
			return l
		}
	}
	return lines[0]
}

// namesFault finds the words of an error with something behind them.
var namesFault = regexp.MustCompile(`(?i)(error|exception|fatal|panic|failed|failure|cannot|can't|denied|refused|invalid|not found|no such|unknown|undefined|missing)\b.*\w`)

func oneLine(text string) string {
	return folding.Shorten(strings.Join(strings.Fields(text), " "), 1<<20)
}

// document returns all results as JSON, the input of jq: an array of {step, tool, arguments,
// result | error}. A result is its structured content, or its text.
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
		default:
			out = rawjson.AppendQuote(append(out, `,"result":`...), r.text)
		}
		out = append(out, '}')
	}
	return string(append(out, ']'))
}

// store keeps all results under one handle, and notes whether they are stored.
func (b *batch) store(ctx context.Context) {
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
	b.stored = b.put(ctx, "results", results.Result{Handle: b.rest, Kind: "batch", Text: text.String(), Structured: b.document(), Tokens: b.tokens()})
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

// put stores the results or the answer. It returns false if that failed, or if nobody can ask for them.
func (b *batch) put(ctx context.Context, what string, r results.Result) bool {
	if b.abandoned.Load() {
		return false
	}
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
