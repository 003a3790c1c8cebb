package query

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Node is one context of the journal.
type Node struct {
	Path     contextpath.Path `json:"path"`
	Depth    int              `json:"depth"`
	Implicit bool             `json:"implicit,omitempty"` // no record is in it, only below it
	State    string           `json:"state"`              // main, open, closed, or free: neither opened nor closed by a record
	Reason   string           `json:"reason,omitempty"`   // why it was closed
	First    string           `json:"first,omitempty"`    // time of its first and last record
	Last     string           `json:"last,omitempty"`
	Sums
}

// Contexts returns the distinct contexts of records and the parents that only their paths imply,
// each tree together and parents first. Main is the first if any record is in it.
func Contexts(records iter.Seq2[*trace.Record, error]) ([]Node, error) {
	nodes := map[contextpath.Path]*Node{}
	get := func(p contextpath.Path) *Node {
		n := nodes[p]
		if n == nil {
			n = &Node{Path: p, Depth: p.Depth(), Implicit: true, State: "free"}
			if p == contextpath.Main {
				n.State = "main"
			}
			nodes[p] = n
		}
		return n
	}
	for r, err := range records {
		if err != nil {
			return nil, err
		}
		p := contextpath.Path(r.Context)
		for up := p; up != contextpath.Main; up = up.Parent() {
			get(up)
		}
		n := get(p)
		n.Implicit = false
		if n.First == "" {
			n.First = r.TS
		}
		n.Last = r.TS
		n.Sums.Add(ownSums(r))
		switch r.Kind {
		case trace.KindPush:
			n.State = "open"
		case trace.KindPop:
			n.State, n.Reason = "closed", ""
			if reason, ok := rawjson.GetString(r.Payload, "reason"); ok {
				n.Reason = reason
			} else if d := r.AuditOrEmpty().Decision; d != nil { // payloads are not stored
				n.Reason = d.Reason
			}
		}
	}
	out := make([]Node, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, *n)
	}
	// With NUL for the slash a parent's descendants follow it directly.
	order := func(p contextpath.Path) string { return strings.ReplaceAll(string(p), "/", "\x00") }
	slices.SortFunc(out, func(a, b Node) int { return strings.Compare(order(a.Path), order(b.Path)) })
	return out, nil
}

// dimensions give the values that a record has of each dimension; "" is none.
var dimensions = map[string]func(*trace.Record) []string{
	"branch":    func(r *trace.Record) []string { return []string{cmp.Or(trace.BranchOf(r.Context), "main")} },
	"day":       func(r *trace.Record) []string { return []string{r.TS[:min(len(r.TS), len(time.DateOnly))]} },
	"instance":  func(r *trace.Record) []string { return []string{r.Instance} },
	"principal": func(r *trace.Record) []string { return []string{r.AuditOrEmpty().Principal} },
	"rule":      func(r *trace.Record) []string { return rules(r.AuditOrEmpty()) },
	"server":    func(r *trace.Record) []string { return []string{r.AuditOrEmpty().Server} },
	"session":   func(r *trace.Record) []string { return []string{r.AuditOrEmpty().Session} },
	"team":      func(r *trace.Record) []string { return []string{r.AuditOrEmpty().Team} },
	"tool": func(r *trace.Record) []string {
		return []string{strings.Trim(r.AuditOrEmpty().Server+"/"+r.AuditOrEmpty().Tool, "/")}
	},
}

// Dimensions are the names that [Keys] takes.
var Dimensions = slices.Sorted(maps.Keys(dimensions))

// Keys returns the rows of a table by these dimensions that r belongs to, such as "alice 2026-11-21"
// by principal and day: one for each rule that found something in r or refused it, and none without
// dimensions.
func Keys(r *trace.Record, by []string) []string {
	keys := make([]string, min(len(by), 1))
	for _, dimension := range by {
		var longer []string
		for _, value := range dimensions[dimension](r) {
			for _, key := range keys {
				longer = append(longer, strings.TrimPrefix(key+" "+cmp.Or(value, "-"), " "))
			}
		}
		keys = longer
	}
	return keys
}

func rules(a *trace.Audit) (out []string) {
	for _, f := range a.Scrub {
		out = append(out, f.Rule)
	}
	if a.Decision != nil && a.Decision.Rule != "" {
		out = append(out, a.Decision.Rule)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
