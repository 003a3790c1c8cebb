package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/trace/render"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// functions are those of the templates.
var functions = template.FuncMap{
	"text":  render.Text,
	"num":   number,
	"ms":    milliseconds,
	"when":  when,
	"stamp": stamp,
	"audit": (*trace.Record).AuditOrEmpty,
	"flags": render.Flags,
	"about": render.About,
	"json":  indented,
	"short": short,
	"calls": to,
	"nav":   nav,
	"link":  func(s query.Sums, pairs ...string) linked { return linked{s, pairs} },
	"links": func(s query.Sums, more []string, pairs ...string) linked { return linked{s, append(pairs, more...)} },
	"pair":  func(a, b any) map[string]any { return map[string]any{"A": a, "B": b} },
	"list": func(label string, rs []*trace.Record) map[string]any {
		return map[string]any{"Label": label, "Records": rs}
	},
	"isflag": query.Field.IsFlag,
	"rare": func(q url.Values) bool {
		return slices.ContainsFunc(query.InAddress, func(f query.Field) bool { return !f.Often && q.Get(f.Name) != "" })
	},
	"date":   func(t time.Time) string { return t.UTC().Format(time.DateOnly) },
	"bary":   func(i int) int { return 24*i + 5 },
	"texty":  func(i int) int { return 24*i + 16 },
	"indent": func(depth int) string { return strings.Repeat("\u2003", depth) },
	"high":   func(total int64) int64 { return total * 8 / 10 },
	"who": func(by, name, span string) string {
		return address("/people", nil, "by", map[string]string{"team": "team"}[by], by, name, "span", span)
	},
	"next":    func(i int) int { return i + 1 },
	"seconds": func(from, to time.Time) string { return strconv.FormatFloat(to.Sub(from).Seconds(), 'f', 1, 64) },
	"value":   func(q url.Values, name string) string { return strings.Join(q[name], ",") },
}

// linked are sums whose figures lead to their records.
type linked struct {
	S     query.Sums
	pairs []string
}

// To returns the address of the records with further filters.
func (l linked) To(pairs ...string) string { return to(append(slices.Clone(l.pairs), pairs...)...) }

// Mean returns the mean duration of a call in milliseconds.
func (l linked) Mean() float64 { return float64(l.S.US) / 1000 / float64(max(l.S.Answers, 1)) }

type place struct {
	Name, Link string
	Here       bool
}

// parents are the pages of the navigation to which others belong.
var parents = map[string]string{"/branch": "/branches", "/definition": "/tools"}

// nav returns the pages that every page leads to.
func nav(path string) []place {
	all := []place{{Name: "Overview", Link: "/"}, {Name: "Calls", Link: "/calls"}, {Name: "Branches", Link: "/branches"}, {Name: "Budgets", Link: "/budgets"}, {Name: "People", Link: "/people"}, {Name: "Tools", Link: "/tools"}, {Name: "Integrity", Link: "/integrity"}}
	for i, p := range all {
		all[i].Here = path == p.Link || parents[path] == p.Link || p.Link == "/calls" && strings.HasPrefix(path, "/records/")
	}
	return all
}

// number writes a whole number with narrow spaces between thousands.
func number(n any) string {
	s, negative := strings.CutPrefix(fmt.Sprint(n), "-")
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:]
	}
	if negative {
		s = "−" + s
	}
	return s
}

func milliseconds(ms float64) string {
	switch {
	case ms == 0:
		return ""
	case ms < 10:
		return strconv.FormatFloat(ms, 'f', 1, 64)
	}
	return number(int64(ms))
}

// when writes the time of a record for a table.
func when(ts string) string {
	ts = strings.Replace(ts, "T", " ", 1)
	return render.Text(ts[:min(len(ts), len("2026-08-22 10:11:12.345"))])
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

// short cuts a name that is too long for a table, such as an id.
func short(s string) string {
	s = render.Text(s)
	if r := []rune(s); len(r) > 28 {
		return string(r[:26]) + "…"
	}
	return s
}

// maxShown bounds what a page shows of a payload, in bytes.
const maxShown = 256 << 10

// maxIndent is the largest depth of JSON that is indented: the indent of each line grows with it.
const maxIndent = 50

// indented writes JSON for reading.
func indented(v any) string {
	raw, ok := v.(json.RawMessage)
	if !ok {
		raw = rawjson.Marshal(v)
	}
	cut := ""
	if len(raw) > maxShown {
		raw, cut = raw[:maxShown], "\n… cut: the whole payload is in the journal"
	}
	var b bytes.Buffer
	if !rawjson.Valid(raw, maxIndent) || json.Indent(&b, raw, "", "  ") != nil {
		b.Write(raw)
	}
	return render.Text(b.String()) + cut
}
