package trace

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	rowFormat   = "%-8s %-23s %-27s %-26s %-28s %11s %8s  %-40s %s\n"
	columnTime  = len("2026-08-22T10:11:12.345")
	shortLength = 11
)

var tableHeader = strings.TrimRight(fmt.Sprintf(rowFormat, "SEQ", "TIME (UTC)", "KIND", "CONTEXT", "SERVER TOOL", "TOKENS", "MS", "ID", "FLAGS"), "\n")

func writeRow(w io.Writer, r *Record) error {
	a := r.Audit
	if a == nil {
		a = &Audit{}
	}
	_, err := fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf(rowFormat, strconv.FormatUint(r.Seq, 10), shortTime(r.TS), clean(r.Kind),
		shortContext(r.Context), target(a), tokenText(a.Tokens), msText(a.MS), clean(r.ID), flagText(r)), " \n"))
	return err
}

// summary is a record in one line, for trees and graphs.
func summary(r *Record) string {
	a := r.Audit
	if a == nil {
		a = &Audit{}
	}
	parts := []string{fmt.Sprintf("#%d", r.Seq), shortTime(r.TS), clean(r.Kind), target(a)}
	if r.Context != "" {
		parts = append(parts, "in "+shortContext(r.Context))
	}
	parts = append(parts, tokenWords(a.Tokens))
	if a.MS > 0 {
		parts = append(parts, msText(a.MS)+" ms")
	}
	parts = append(parts, flagText(r), clean(r.ID))
	return strings.Join(strings.Fields(strings.Join(parts, " ")), " ")
}

func shortTime(ts string) string { return clean(ts[:min(len(ts), columnTime)]) }

// target is the server and tool, safe for a terminal.
func target(a *Audit) string {
	return strings.TrimSpace(clean(a.Server) + " " + clean(a.Tool))
}

// tokenText is "in>delivered", with "/sent" where the upstream sent more, or
// "=used/budget" for the state of a branch.
func tokenText(t *Tokens) string {
	if t == nil {
		return ""
	}
	number := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
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

// tokenWords says what tokenText says where there is room for words.
func tokenWords(t *Tokens) string {
	if t == nil {
		return ""
	}
	var out []string
	if t.In > 0 {
		out = append(out, fmt.Sprintf("%d tokens in", t.In))
	}
	switch {
	case t.Out > t.Delivered:
		out = append(out, fmt.Sprintf("%d of %d tokens delivered", t.Delivered, t.Out))
	case t.Delivered > 0:
		out = append(out, fmt.Sprintf("%d tokens delivered", t.Delivered))
	case t.In == 0 && (t.Used > 0 || t.Budget > 0):
		out = append(out, fmt.Sprintf("%d of %d tokens used", t.Used, t.Budget))
	}
	return strings.Join(out, ", ")
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
		if len(s) > shortLength+3 {
			segments[i] = s[:shortLength] + "~"
		}
	}
	return clean(strings.Join(segments, "/"))
}

func flagText(r *Record) string {
	var out []string
	a := r.Audit
	if a == nil {
		a = &Audit{}
	}
	bits := flagsOf(r)
	for _, f := range []struct {
		set  bool
		name string
	}{
		{bits&flagBlocked != 0, "blocked"}, {a.IsError, "error"}, {a.Fold != nil, "folded"}, {bits&flagScrubbed != 0, "scrubbed"},
		{bits&flagOverBudget != 0, "over-budget"}, {a.Ambiguous, "ambiguous"}, {a.Late, "late"}, {a.Lost, "lost"},
		{a.Truncated, "truncated"}, {bits&flagDeprecated != 0, "deprecated"},
	} {
		if f.set {
			out = append(out, f.name)
		}
	}
	if a.Decision != nil && a.Decision.Reason != "" {
		out = append(out, clean(a.Decision.Reason))
	}
	if len(a.Workflow) > 0 {
		out = append(out, stepText(a.Workflow))
	}
	return strings.Join(out, ",")
}

// stepText is a step of a workflow in short, such as activation#2:join; the
// evidence is left out where the call itself gave the handle.
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

// clean makes foreign text safe for a terminal: what is not printable becomes '?'.
func clean(s string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsPrint(c) {
			return c
		}
		return '?'
	}, s)
}

// Write renders a graph as text.
func (g *Graph) Write(w io.Writer) error { return writeGraph(w, g) }

// contextLess orders paths so that a tree is together, parents first.
func contextLess(a, b contextpath.Path) bool {
	return strings.ReplaceAll(string(a), "/", "\x00") < strings.ReplaceAll(string(b), "/", "\x00")
}
