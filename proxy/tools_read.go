package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/results"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Limits of one branch_read.
const (
	readTokens  = 2000            // a page, where the call does not say
	leastTokens = 100             // the smallest page, before scaling
	readTime    = 5 * time.Second // regular expressions, jq, search
	searchHits  = 8
	readReserve = 256 // what a read leaves of a branch
	noteTokens  = 60  // kept free for the line that names the next page, before scaling
)

// readQuestion are the arguments of branch_read.
type readQuestion struct {
	Handle    string `json:"handle"`
	BranchID  string `json:"branch_id"`
	Lines     string `json:"lines"`
	Grep      string `json:"grep"`
	Context   whole  `json:"context"`
	JQ        string `json:"jq"`
	Search    string `json:"search"`
	Page      whole  `json:"page"`
	MaxTokens whole  `json:"max_tokens"`
}

// placeRead finds the branch that pays for a branch_read: the one it names,
// else the one that the result belongs to while that is active, so that
// leaving the id out is no way around a budget.
func placeRead(fl *inbound, c *interceptor.Call) {
	if id, ok := rawjson.GetString(c.Target.Arguments, branchArgument); ok && id != "" {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceArgument
		return
	}
	handle, _ := rawjson.GetString(c.Target.Arguments, "handle")
	if c.Attribution.BranchID != "" || handle == "" {
		return
	}
	g := fl.s.gw
	path := ""
	if b := g.batches.get(c.Caller(), g.strict(), handle); b != nil { // not stored yet
		path = b.place()
	} else {
		path, _ = g.results.Context(fl.ctx, c.Caller(), handle) // branchRead says what is wrong
	}
	if path == "" {
		return
	}
	id := path[strings.LastIndexByte(path, '/')+1:]
	if _, err := g.branches.Resolve(c.Caller(), id); err == nil {
		c.Attribution.BranchID, c.Attribution.Source = id, interceptor.SourceResult
	}
}

// strict reports whether sessions of one principal are kept apart.
func (g *Gateway) strict() bool {
	return g.cfg.Folding.SessionValidation == folding.ValidationStrict
}

// branchRead serves branch_read.
func branchRead(ctx context.Context, fl *inbound, c *interceptor.Call) (*interceptor.Result, error) {
	var in readQuestion
	if err := arguments(c, &in); err != nil {
		return nil, err
	}
	if err := in.check(); err != nil {
		return nil, refused(c, err)
	}
	g := fl.s.gw
	if b := g.batches.get(c.Caller(), g.strict(), in.Handle); b != nil {
		if res, err := b.awaitStored(ctx, fl, c); res != nil || err != nil {
			return res, err
		}
	}
	at := "" // not c.Context, to which the host may have added a path of its own
	if c.Attribution.Branch != nil {
		at = c.Attribution.Branch.Context
	}
	stored, err := g.results.Get(ctx, c.Caller(), at, in.Handle)
	if err != nil {
		return nil, refused(c, err)
	}
	if err := g.mayRead(stored); err != nil {
		return nil, refused(c, err)
	}
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	out, err := in.answer(ctx, g.programs, c.Origin.Principal, stored)
	if err != nil {
		return nil, refused(c, err)
	}
	size := g.pageSize(c, int(in.MaxTokens))
	page := func(size int) (*interceptor.Result, error) { return g.page(fl, out, "", int(in.Page), size) }
	res, err := page(size)
	if err != nil {
		return nil, refused(c, err)
	}
	c.Outcome.Read = readOf(stored)
	c.Outcome.Shrink = func(budget int) *interceptor.Result {
		small, err := page(budget)
		if err != nil {
			return nil
		}
		return small
	}
	return res, nil
}

// check fills in what was left out, and refuses what makes no sense together.
func (in *readQuestion) check() error {
	asked := 0
	for _, set := range []bool{in.Grep != "", in.JQ != "", in.Search != ""} {
		if set {
			asked++
		}
	}
	switch {
	case in.Handle == "":
		return &extract.Error{Field: "handle", Text: "is missing: give the handle that a folded result names"}
	case asked > 1:
		return &extract.Error{Field: "grep, jq, search", Text: "use one of them at a time"}
	case in.Lines != "" && (in.JQ != "" || in.Search != ""):
		return &extract.Error{Field: "lines", Text: "goes with grep or alone"}
	case in.Page < 0 || in.MaxTokens < 0 || in.Context < 0:
		return &extract.Error{Field: "page, max_tokens, context", Text: "must not be negative"}
	}
	in.Page = max(in.Page, 1)
	if in.MaxTokens == 0 {
		in.MaxTokens = readTokens
	}
	return nil
}

// answer is what the question of a principal comes to, whole.
func (in *readQuestion) answer(ctx context.Context, p *extract.Programs, principal string, s results.Result) (string, error) {
	switch {
	case in.Grep != "":
		return extract.Grep(ctx, s.Text, extract.Pattern{Expr: in.Grep, Context: int(in.Context), Lines: in.Lines})
	case in.Lines != "":
		return extract.Lines(s.Text, in.Lines)
	case in.JQ != "":
		text := s.Text
		if s.Structured != "" {
			text = s.Structured
		}
		return p.JQ(ctx, principal, text, in.JQ)
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

// pageSize is how much of what was asked for may be delivered: no more than a
// result of any tool, and not all that the branch has left: its agent must
// still be able to return.
func (g *Gateway) pageSize(c *interceptor.Call, asked int) int {
	least := g.scaled(leastTokens)
	size := min(max(asked, least), max(g.cfg.Results.MainThreshold, least))
	if left, ok := c.Left(); ok {
		size = min(size, max(left-readReserve, left/2))
	}
	return max(size, 1)
}

// scaled is n tokens of the encoding as they are counted, but no fewer than n.
func (g *Gateway) scaled(n int) int { return int(math.Ceil(float64(n) * max(g.cfg.Budget.Scale, 1))) }

// page returns page n of a text, of at most size tokens, with a line that
// names the next: by handle, or as a repetition of the call where that is "".
func (g *Gateway) page(fl *inbound, out, handle string, n, size int) (*interceptor.Result, error) {
	if n == 1 && !g.counter.Exceeds(out, size) {
		return &interceptor.Result{Body: plainResult(out, fl.modern)}, nil
	}
	room := size - g.scaled(noteTokens)
	if room < 1 {
		return nil, &interceptor.Refusal{Reason: "resource_limit", Code: "budget_exhausted", Status: 409,
			Message: fmt.Sprintf("of what the branch has left a read may take %d tokens, too few for a page: ask for less with lines or grep, or return the findings with branch_return", size)}
	}
	p, err := extract.PageOf(out, n, room, g.counter.Truncate)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSuffix(p.Text, "\n")
	switch {
	case p.More && handle != "":
		text += fmt.Sprintf("\n[page %d; %s more: branch_read {\"handle\":\"%s\",\"page\":%d,\"max_tokens\":%d}]", n, lineCount(p.RestLines), handle, n+1, size)
	case p.More:
		text += fmt.Sprintf("\n[page %d; %s more: repeat with page %d, max_tokens %d]", n, lineCount(p.RestLines), n+1, size)
	case n > 1:
		text += fmt.Sprintf("\n[page %d, the last]", n)
	}
	return &interceptor.Result{Body: plainResult(text, fl.modern)}, nil
}

func lineCount(n int) string {
	if n == 1 {
		return "1 line"
	}
	return fmt.Sprintf("%d lines", n)
}

// plainResult is a tool result that is read as a text. It has no structured
// content: escaping a text in JSON only costs tokens.
func plainResult(text string, modern bool) []byte {
	out := append([]byte(`{"content":[{"type":"text","text":`), rawjson.Quote(text)...)
	out = append(out, `}]`...)
	if modern {
		out = append(out, `,"resultType":"complete"`...)
	}
	return append(out, '}')
}

// readOf says for the trace whose result was read.
func readOf(s results.Result) *trace.Read {
	r := &trace.Read{Handle: s.Handle, Server: s.Server, Tool: s.Tool, Context: s.Context}
	if s.Server == "" { // a batch
		r.Tool = "branch_run"
		if makers := strings.Fields(s.Tool); len(makers) == 1 {
			r.Server, r.Tool = maker(makers[0])
		}
	}
	return r
}

// mayRead checks that the tool that made a result may still be called: who
// lost the right to call it has no right to what it said.
func (g *Gateway) mayRead(s results.Result) error {
	makers := [][2]string{{s.Server, s.Tool}}
	if s.Server == "" { // a batch, of several tools
		makers = nil
		for _, m := range strings.Fields(s.Tool) {
			server, tool := maker(m)
			makers = append(makers, [2]string{server, tool})
		}
	}
	for _, m := range makers {
		if u := g.byKey[m[0]]; u == nil || !u.Config.Tools.Shows(m[1]) {
			return &interceptor.Refusal{Reason: "policy", Code: "forbidden", Status: 403,
				Message: fmt.Sprintf("the result was made by %s of %s, which the configuration no longer allows", m[1], m[0])}
		}
	}
	return nil
}

// badQuestion turns an error of package extract into what a model reads.
func badQuestion(err error) *interceptor.Refusal {
	var e *extract.Error
	if !errors.As(err, &e) {
		return nil
	}
	return &interceptor.Refusal{Reason: "invalid", Code: "invalid_input", Status: 400, Message: e.Error(), Err: err}
}

// savedLine says what folding saved a branch, less what was read back, as one
// line; "" for nothing.
func (g *Gateway) savedLine(ctx context.Context, b folding.Branch) string {
	n, tokens, err := g.results.Savings(ctx, b.Principal, b.Context)
	if err != nil {
		g.log.Warn("savings of a branch", "branch_id", b.ID, "err", err)
	}
	if n == 0 && tokens == 0 {
		return ""
	}
	return fmt.Sprintf("%d results folded, %d tokens saved", n, tokens)
}
