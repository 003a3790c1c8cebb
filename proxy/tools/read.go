package tools

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Limits of one branch_read.
const (
	readTokens  = 2000            // a page, if the call does not say
	leastTokens = 100             // the smallest page, before scaling
	readTime    = 5 * time.Second // regular expressions, jq, search; pages
	searchHits  = 8
	readReserve = 256 // tokens that a read leaves to a branch
	noteTokens  = 60  // kept free for the line that names the next page, before scaling
)

// readArguments are the arguments of branch_read, without branch_id, which Attribute reads.
type readArguments struct {
	Handle, Lines, Grep, JQ, Search string

	Context, Page float64
	Count         bool
	MaxTokens     float64 `json:"max_tokens"`
}

// attributeRead charges the branch of the stored result while it is active: a call without
// branch_id must be no way around a budget.
func (t *Tools) attributeRead(ctx context.Context, c *interceptor.Call) {
	handle, _ := rawjson.GetString(c.Target.Arguments, "handle")
	if c.Attribution.BranchID != "" || handle == "" {
		return
	}
	path, _ := t.Results.Context(ctx, c.Caller(), handle) // read reports the error
	if b := t.batch(c.Caller(), handle); b != nil {       // not stored yet
		path = b.context()
	}
	if path == "" {
		return
	}
	id := path[strings.LastIndexByte(path, '/')+1:]
	if _, err := t.Branches.Resolve(c.Caller(), id); err == nil {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceResult
	}
}

func (t *Tools) read(ctx context.Context, r *Request) ([]byte, error) {
	var in readArguments
	c := r.Call
	if err := decode(c, &in); err != nil {
		return nil, err
	}
	if err := in.check(); err != nil {
		return nil, err
	}
	if b := t.batch(c.Caller(), in.Handle); b != nil {
		if running, err := b.waitStored(ctx, r); running != nil || err != nil {
			return running, err
		}
	}
	at := "" // not c.Attribution.Context, to which the host may have added a path of its own
	if c.Attribution.Branch != nil {
		at = c.Attribution.Branch.Context
	}
	stored, err := t.Results.Get(ctx, c.Caller(), at, in.Handle)
	if err != nil {
		return nil, err
	}
	if err := given(c.Attribution, stored); err != nil {
		return nil, err
	}
	if err := t.mayRead(stored); err != nil {
		return nil, err
	}
	extracting, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	text, err := t.extract(extracting, c.Origin.Principal, stored, &in)
	if err != nil {
		return nil, err
	}
	body, err := t.deliver(ctx, &page{t: t, c: c, text: text, number: int(in.Page)}, int(in.MaxTokens))
	if err == nil {
		c.Outcome.Read = readOf(stored)
	}
	return body, err
}

// check fills in the defaults and refuses arguments that make no sense together.
func (in *readArguments) check() error {
	asked := slices.DeleteFunc([]string{in.Grep, in.JQ, in.Search}, isEmpty)
	switch {
	case in.Handle == "":
		return &extract.Error{Field: "handle", Text: "is missing: give the handle that a folded result names"}
	case len(asked) > 1:
		return &extract.Error{Field: "grep, jq, search", Text: "use one of them at a time"}
	case in.Count && in.Grep == "":
		return &extract.Error{Field: "count", Text: "goes with grep: it counts the lines that match"}
	case in.Lines != "" && (in.JQ != "" || in.Search != ""):
		return &extract.Error{Field: "lines", Text: "goes with grep or alone"}
	case in.Page < 0 || in.MaxTokens < 0 || in.Context < 0:
		return &extract.Error{Field: "page, max_tokens, context", Text: "must not be negative"}
	}
	in.Page, in.MaxTokens = max(in.Page, 1), cmp.Or(in.MaxTokens, readTokens)
	return nil
}

// extract returns the part of a stored result that the arguments ask for, whole.
func (t *Tools) extract(ctx context.Context, principal string, s results.Result, in *readArguments) (string, error) {
	switch {
	case in.Grep != "":
		return extract.Grep(ctx, s.Text, extract.Pattern{Expr: in.Grep, Context: int(in.Context), Lines: in.Lines, Count: in.Count})
	case in.Lines != "":
		return extract.Lines(s.Text, in.Lines)
	case in.JQ != "":
		run, input := t.Programs.JQ, cmp.Or(s.Structured, s.Text)
		if s.Server == "" && s.Structured != "" { // a batch
			run = t.Programs.JQResults
		}
		out, err := run(ctx, principal, input, in.JQ)
		// A program can decode a secret, and a page would cut it in two.
		m := interceptor.Message{Text: out, Always: true}
		t.Boundary.ToHost(ctx, &m)
		return m.Text, err
	case in.Search != "":
		hits, err := results.Search(ctx, s.Text, in.Search, searchHits)
		if err != nil {
			return "", err
		}
		if len(hits) == 0 {
			return "[no passage has these words]", nil
		}
		parts := make([]string, len(hits))
		for i, h := range hits {
			parts[i] = fmt.Sprintf("[lines %d-%d]\n%s", h.From, h.To, h.Lines)
		}
		return strings.Join(parts, "\n"), nil
	}
	return s.Text, nil
}

// given checks that a call that names its branch reads a result of the branch, of one below it, or
// one that the branch was given: the rest of the parent's context is not its own.
func given(a interceptor.Attribution, s results.Result) error {
	b := a.Branch
	if b == nil || !a.Source.Named() || contextpath.Path(s.Context).InTree(contextpath.Path(b.Context)) ||
		strings.Contains(b.Handles+"\n"+b.Description+"\n"+b.Prompt, s.Handle) {
		return nil
	}
	return &interceptor.Refusal{Reason: trace.ReasonPolicy, Code: "forbidden", Status: 403,
		Message: fmt.Sprintf("branch %s was not given result %s: name the handle in handles, description or prompt of branch_create, or read it outside of the branch, without branch_id", b.ID, s.Handle)}
}

// mayRead checks that the tools that made a result may still be called. A result of no tool, such as the
// error of a resources/read, only needs its server: the policy has let the request pass.
func (t *Tools) mayRead(s results.Result) error {
	sources := []string{source(s.Server, s.Tool)}
	if s.Server == "" { // a batch, of several tools
		sources = strings.Fields(s.Tool)
	}
	for _, by := range sources {
		server, tool := parseSource(by)
		if u := t.Config().Upstreams[server]; u == nil || tool != "" && !u.Tools.Selects(tool) {
			return &interceptor.Refusal{Reason: trace.ReasonPolicy, Code: "forbidden", Status: 403,
				Message: fmt.Sprintf("the result was made by %s of %s, which the configuration no longer allows", cmp.Or(tool, "a method"), server)}
		}
	}
	return nil
}

// readOf describes for the trace the stored result that is read.
func readOf(s results.Result) *trace.Read {
	r := &trace.Read{Handle: s.Handle, Server: s.Server, Tool: s.Tool, Context: s.Context}
	switch {
	case s.Kind == kindMessage:
		r.Tool = "branch_return"
	case s.Server == "": // a batch
		r.Tool = "branch_run"
		for by := range strings.FieldsSeq(s.Tool) {
			server, tool := parseSource(by)
			r.Tools = append(r.Tools, trace.Tool{Server: server, Tool: tool})
		}
		if len(r.Tools) == 1 {
			r.Server, r.Tool, r.Tools = r.Tools[0].Server, r.Tools[0].Tool, nil
		}
	}
	return r
}

type page struct {
	t      *Tools
	c      *interceptor.Call
	text   string
	number int
	of     *batch // the batch that answered with the text; nil for a stored text
}

// deliver returns a page of at most asked tokens, and not all that the branch has left: its agent
// must still be able to return.
func (t *Tools) deliver(ctx context.Context, p *page, asked int) ([]byte, error) {
	least := t.scaled(leastTokens)
	size := min(max(asked, least), max(t.Config().Results.MainThreshold, least))
	if left, ok := p.c.Left(); ok {
		size = min(size, max(left-readReserve, left/2))
	}
	p.c.Outcome.Shrink = func(budget int) *interceptor.Result {
		body, err := p.body(ctx, budget)
		if err != nil {
			return nil
		}
		return &interceptor.Result{Body: body}
	}
	return p.body(ctx, max(size, 1))
}

// body returns the page in at most size tokens, with a line that says how to get the next. The
// answer of a batch is stored before a page is cut from it.
func (p *page) body(ctx context.Context, size int) ([]byte, error) {
	if p.number == 1 && !p.t.Counter.Exceeds(p.text, size) {
		return plain(p.c, p.text), nil
	}
	if p.of != nil && !p.of.keepAnswer() {
		return nil, fmt.Errorf("%w: the answer of the batch does not fit and could not be stored; filter with grep or jq", folding.ErrStorage)
	}
	room := size - p.t.scaled(noteTokens)
	if room < 1 {
		return nil, &interceptor.Refusal{Reason: trace.ReasonLimit, Code: "budget_exhausted", Status: 409,
			Message: fmt.Sprintf("of what the branch has left a read may take %d tokens, too few for a page: ask for less with lines or grep, or return the findings with branch_return", size)}
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	part, rest, err := extract.Page(ctx, p.text, p.number, room, p.t.Counter.Truncate)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSuffix(part, "\n")
	switch {
	case rest > 0 && p.of != nil:
		text += fmt.Sprintf("\n[page %d; %s more: branch_read {\"handle\":\"%s\",\"page\":%d,\"max_tokens\":%d}]", p.number, counted(rest, "line"), p.of.handle, p.number+1, size)
	case rest > 0:
		text += fmt.Sprintf("\n[page %d; %s more: repeat with page %d, max_tokens %d]", p.number, counted(rest, "line"), p.number+1, size)
	case p.number > 1:
		text += fmt.Sprintf("\n[page %d, the last]", p.number)
	}
	return plain(p.c, text), nil
}

// scaled returns n tokens of the encoding as they are counted, but no fewer than n.
func (t *Tools) scaled(n int) int {
	return int(math.Ceil(float64(n) * max(t.Config().Budget.Scale, 1)))
}

// counted returns "1 line" or "2 lines".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func isEmpty(s string) bool { return s == "" }
