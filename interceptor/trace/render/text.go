package render

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// instanceFormat is the first column of a table of several journals.
const instanceFormat = "%-16s "

const rowFormat = "%-8v %-23s %-27s %-12s %-26s %-28s %11s %8s  %-40s %-24s %s"

var tableHeader = fmt.Sprintf(rowFormat, "SEQ", "TIME (UTC)", "KIND", "PRINCIPAL", "CONTEXT", "SERVER TOOL", "TOKENS", "MS", "ID", "FLAGS", "ABOUT") + "\n"

func tableRow(r *trace.Record) (string, error) {
	a := r.AuditOrEmpty()
	row := fmt.Sprintf(rowFormat, r.Seq, shortTime(r.TS), clean(r.Kind), clean(a.Principal), shortContext(r.Context), target(a),
		tokenText(a.Tokens), msText(a.MS), clean(r.ID), strings.Join(Flags(r), ","), About(r))
	if r.Instance != "" {
		row = fmt.Sprintf(instanceFormat, clean(r.Instance)) + row
	}
	return strings.TrimRight(row, " ") + "\n", nil
}

// About returns what a record is about, in one safe line: the first short string among the arguments of a call, the
// parameters of another message or the payload of an event, or the text of an error. Of an access it is who
// asked for what.
func About(r *trace.Record) string {
	v := []byte(r.Payload)
	switch {
	case strings.HasPrefix(r.Kind, trace.KindBudget):
		return aboutLimit(v)
	case r.Kind == trace.KindAccess:
		if text := aboutAccess(v); text != "" {
			return text
		}
	case strings.HasPrefix(r.Kind, trace.KindResponse) || strings.HasPrefix(r.Kind, trace.KindReject):
		if !r.AuditOrEmpty().IsError && !r.Blocked() {
			return ""
		}
		part := resultParts(v)[0]
		if v = part.Data; v == nil {
			v = rawjson.Quote(part.Text)
		}
	case strings.HasPrefix(r.Kind, "mcp/"):
		v, _ = rawjson.Get(v, "params")
		if arguments, ok := rawjson.Get(v, "arguments"); ok {
			v = arguments
		}
	}
	text := cmp.Or(firstString(v, aboutBytes), firstString(v, len(v)))
	return clean(text[:min(len(text), aboutBytes)])
}

// aboutLimit returns the limit and the subject of a crossing, and what is used of the total.
func aboutLimit(payload []byte) string {
	var x struct {
		Limit, Subject string
		Tokens, Calls  int64
		TokensUsed     int64 `json:"tokens_used"`
		CallsUsed      int64 `json:"calls_used"`
	}
	if json.Unmarshal(payload, &x) != nil || x.Limit == "" {
		return ""
	}
	text := x.Limit
	if x.Subject != "" {
		text += " of " + x.Subject[:min(len(x.Subject), aboutBytes)]
	}
	var used []string
	if x.Tokens > 0 {
		used = append(used, fmt.Sprintf("%d of %d tokens", x.TokensUsed, x.Tokens))
	}
	if x.Calls > 0 {
		used = append(used, fmt.Sprintf("%d of %d calls", x.CallsUsed, x.Calls))
	}
	return clean(text + ": " + strings.Join(used, ", "))
}

// aboutAccess returns who used the trace, branches or limits, if it is no principal of the record, and how.
func aboutAccess(payload []byte) string {
	var x struct{ Method, Path, Query, User, By string }
	if json.Unmarshal(payload, &x) != nil || x.Path == "" {
		return ""
	}
	who := x.By
	if who == "" && x.User != "" {
		who = "user " + x.User
	}
	if who != "" {
		who += ":"
	}
	if x.Query != "" {
		x.Path += "?" + x.Query
	}
	text := strings.Join(slices.DeleteFunc([]string{who, x.Method, x.Path}, func(s string) bool { return s == "" }), " ")
	return clean(text[:min(len(text), aboutBytes)])
}

const aboutBytes = 200

// firstString returns the first string in v of at most so many bytes that is neither empty nor
// foldgate's own.
func firstString(v []byte, most int) (found string) {
	switch rawjson.KindOf(v) {
	case rawjson.String:
		if s := rawjson.Unquote(v); len(s) <= most {
			return s
		}
	case rawjson.Array:
		for e := range rawjson.Elements(v) {
			if found = firstString(e, most); found != "" {
				break
			}
		}
	case rawjson.Object:
		for m := range rawjson.Members(v) {
			if m.Is("_meta") || m.Is("branch_id") {
				continue
			}
			if found = firstString(m.Value, most); found != "" {
				break
			}
		}
	}
	return found
}

// writeTree groups records by context: main first, then each root with its
// descendants indented below it, also contexts that only have children. A line
// ends with the numbers of the records that it correlates to.
func writeTree(w io.Writer, records iter.Seq[*trace.Record]) error {
	lines := map[contextpath.Path][]string{}
	children := map[contextpath.Path][]contextpath.Path{} // by their first record
	known := map[contextpath.Path]bool{contextpath.Main: true}
	numbers := map[string]string{} // of a record by its id
	for r := range records {
		numbers[r.ID] = number(r)
		in := contextpath.Path(r.Context)
		lines[in] = append(lines[in], treeLine(r, numbers))
		for p := in; !known[p]; p = p.Parent() {
			known[p] = true
			children[p.Parent()] = append(children[p.Parent()], p)
		}
	}
	bw := bufio.NewWriter(w)
	var write func(p contextpath.Path, indent string)
	write = func(p contextpath.Path, indent string) {
		if p != contextpath.Main || len(lines[p]) > 0 {
			fmt.Fprintf(bw, "%s%s\n", indent, clean(cmp.Or(string(p), "main")))
		}
		for _, line := range lines[p] {
			fmt.Fprintf(bw, "%s  %s\n", indent, line)
		}
		if p != contextpath.Main {
			indent += "  "
		}
		for _, child := range children[p] {
			write(child, indent)
		}
	}
	write(contextpath.Main, "")
	return bw.Flush()
}

func treeLine(r *trace.Record, numbers map[string]string) string {
	short := *r
	short.Context, short.ID = "", ""
	line := summary(&short)
	var causes []string
	for _, id := range r.CorrelationID {
		if seq, ok := numbers[id]; ok {
			causes = append(causes, seq)
		} else {
			causes = append(causes, clean(id))
		}
	}
	if len(causes) > 0 {
		line += " <- " + strings.Join(causes, " ")
	}
	return line
}

// WriteContexts writes contexts as a table.
func WriteContexts(w io.Writer, nodes []query.Node) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CONTEXT\tDEPTH\tSTATE\tRECORDS\tCALLS\tERRORS\tTOKENS IN\tDELIVERED\tFIRST (UTC)\tLAST (UTC)")
	for _, n := range nodes {
		name, state := cmp.Or(string(n.Path), "(main)"), n.State
		if n.Reason != "" {
			state += " (" + n.Reason + ")"
		}
		if n.Implicit {
			state = "implied"
		}
		Printf(tw, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", name, n.Depth, state,
			n.Records, n.Calls, n.Errors, n.In, n.Delivered, shortTime(n.First), shortTime(n.Last))
	}
	return tw.Flush()
}

// WriteGraph writes a graph as text.
func WriteGraph(w io.Writer, g *query.Graph) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", summary(g.Record))
	if d := g.Record.AuditOrEmpty().Decision; d != nil {
		Printf(&b, "decision\n  %s, reason %s, rule %s\n", d.Result, cmp.Or(d.Reason, "none"), cmp.Or(d.Rule, "none"))
	}
	section := func(title string, records []*trace.Record, lines ...string) {
		for _, r := range records {
			lines = append(lines, summary(r))
		}
		if len(lines) > 0 {
			fmt.Fprintf(&b, "%s\n  %s\n", title, strings.Join(lines, "\n  "))
		}
	}
	section("because of", g.Causes)
	for i, id := range g.Missing {
		g.Missing[i] = clean(id)
	}
	section("because of, not in the journal as a message", nil, slices.Sorted(slices.Values(g.Missing))...)
	section("led to", g.Effects)
	if len(g.Chain) > 1+len(g.Causes)+len(g.Effects) {
		section(fmt.Sprintf("whole chain, %d messages", len(g.Chain)), g.Chain)
	}
	for _, part := range []struct {
		name  string
		value []byte
	}{{"audit", rawjson.Marshal(g.Record.AuditOrEmpty())}, {"payload", g.Record.Payload}} {
		var indented bytes.Buffer
		if part.name == "payload" && g.Record.Erased() {
			b.WriteString("payload\n  erased\n")
		} else if json.Indent(&indented, part.value, "  ", "  ") == nil {
			fmt.Fprintf(&b, "%s\n  %s\n", part.name, indented.String())
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// summary is a record in one line, for trees and graphs.
func summary(r *trace.Record) string {
	a := r.AuditOrEmpty()
	parts := []string{number(r), shortTime(r.TS), clean(r.Kind), target(a)}
	if r.Context != "" {
		parts = append(parts, "in "+shortContext(r.Context))
	}
	parts = append(parts, tokenWords(a.Tokens))
	if a.MS > 0 {
		parts = append(parts, msText(a.MS)+" ms")
	}
	if a.Principal != "" {
		parts = append(parts, "by "+clean(a.Principal))
	}
	parts = append(parts, strings.Join(Flags(r), ","), About(r), clean(r.ID))
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}

// number is how lines name a record: #24, or gate-1#24 of one of several journals.
func number(r *trace.Record) string { return fmt.Sprintf("%s#%d", clean(r.Instance), r.Seq) }

func shortTime(ts string) string { return clean(ts[:min(len(ts), len("2026-08-22T10:11:12.345"))]) }

func target(a *trace.Audit) string {
	return strings.TrimSpace(clean(a.Server) + " " + clean(a.Tool))
}

// tokenText returns "in>delivered", with "/sent" if the upstream sent more, or
// "=used/budget" for the state of a branch.
func tokenText(t *trace.Tokens) string {
	if t == nil {
		return ""
	}
	number := func(n int) string { return strings.TrimPrefix(strconv.Itoa(n), "0") } // 0 is left out
	switch {
	case t.Out > t.Delivered:
		return fmt.Sprintf("%s>%d/%d", number(t.In), t.Delivered, t.Out)
	case t.In > 0 || t.Delivered > 0:
		return number(t.In) + ">" + number(t.Delivered)
	case t.Used > 0 || t.Budget > 0:
		return fmt.Sprintf("=%d/%d", t.Used, t.Budget)
	}
	return ""
}

func tokenWords(t *trace.Tokens) (words string) {
	if t == nil {
		return ""
	}
	if t.In > 0 {
		words = fmt.Sprintf("%d tokens in, ", t.In)
	}
	switch {
	case t.Out > t.Delivered:
		words += fmt.Sprintf("%d of %d tokens delivered", t.Delivered, t.Out)
	case t.Delivered > 0:
		words += fmt.Sprintf("%d tokens delivered", t.Delivered)
	case t.In == 0 && (t.Used > 0 || t.Budget > 0):
		words = fmt.Sprintf("%d of %d tokens used", t.Used, t.Budget)
	}
	return strings.TrimSuffix(words, ", ")
}

func msText(ms float64) string {
	if ms == 0 {
		return ""
	}
	return strconv.FormatFloat(ms, 'f', 1, 64)
}

// shortContext cuts each segment so that a path fits a column.
func shortContext(ctx string) string {
	if ctx == "" {
		return "-"
	}
	segments := strings.Split(ctx, "/")
	for i, s := range segments {
		if len(s) > 14 {
			segments[i] = s[:11] + "~"
		}
	}
	return clean(strings.Join(segments, "/"))
}

// Flags returns what is unusual about a record, in safe words: blocked, error, the reason of a refusal
// and the like.
func Flags(r *trace.Record) (out []string) {
	a := r.AuditOrEmpty()
	for _, f := range []struct {
		set  bool
		name string
	}{
		{r.Blocked(), "blocked"}, {a.IsError, "error"}, {a.Fold != nil, "folded"}, {len(a.Scrub) > 0, "scrubbed"}, {a.Injection != nil, "injection"},
		{r.OverBudget(), "over-budget"}, {a.Ambiguous, "ambiguous"}, {a.Late, "late"}, {a.Lost, "lost"},
		{a.Truncated, "truncated"}, {r.Erased(), "erased"}, {len(a.Deprecated) > 0, "deprecated"},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	if d := a.Decision; d != nil && d.Reason != "" {
		if d.Rule != "" && !r.Blocked() { // the text of a refusal names the rule
			out = append(out, clean(d.Reason+":"+d.Rule))
		} else {
			out = append(out, clean(d.Reason))
		}
	}
	if len(a.Workflow) > 0 {
		out = append(out, stepText(a.Workflow))
	}
	return out
}

// stepText returns a step of a workflow in short, such as activation#2:join. It
// leaves out the evidence if the call itself gave the handle.
func stepText(workflow []byte) string {
	step, _ := rawjson.GetString(workflow, "step")
	if step == "" {
		return "no-workflow"
	}
	if n, ok := rawjson.Get(workflow, "attempt"); ok {
		step += "#" + string(n)
	}
	if evidence, _ := rawjson.GetString(workflow, "evidence"); evidence != "explicit" && evidence != "none" && evidence != "" {
		step += ":" + evidence
	}
	return clean(step)
}
