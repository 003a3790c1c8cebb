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
	Counts
}

// Counts sum up records.
type Counts struct {
	Records   int     `json:"records"`
	Calls     int     `json:"calls"` // tools/call requests
	Errors    int     `json:"errors"`
	Blocked   int     `json:"blocked"`
	In        int     `json:"tokens_in"`        // of arguments
	Out       int     `json:"tokens_out"`       // of results as the upstream sent them
	Delivered int     `json:"tokens_delivered"` // of results as the host got them
	MS        float64 `json:"ms"`               // of all calls together
}

func (c *Counts) add(r *trace.Record) {
	c.Records++
	if trace.CanonicalKind(r.Kind) == trace.KindRequest+"tools/call" {
		c.Calls++
	}
	a := r.AuditOrEmpty()
	if a.IsError {
		c.Errors++
	}
	if r.Blocked() {
		c.Blocked++
	}
	if t := a.Tokens; t != nil {
		c.In += t.In
		c.Out += t.Out
		c.Delivered += t.Delivered
	}
	c.MS += a.MS
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
		n.Counts.add(r)
		switch trace.CanonicalKind(r.Kind) {
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

// Stats are the sums of [Summarize].
type Stats struct {
	Total      Counts            `json:"total"`
	Counters   []string          `json:"counters"` // the encodings that tokens were counted with
	Contexts   map[string]Counts `json:"contexts"`
	Tools      map[string]Counts `json:"tools"` // by server and tool
	Servers    map[string]Counts `json:"servers"`
	Principals map[string]Counts `json:"principals"`
	By         map[string]Counts `json:"by,omitempty"` // by the rows of [Keys]
	// SavedMeasured is the tokens that upstreams sent less those that were
	// delivered, at once or later from a stored result.
	SavedMeasured int `json:"saved_measured"`
	// SavedComputed is the tokens of closed branches less those that their
	// parents read of them. It assumes that a parent would have read all.
	SavedComputed int `json:"saved_computed"`
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
		return []string{strings.TrimPrefix(r.AuditOrEmpty().Server+"/"+r.AuditOrEmpty().Tool, "/")}
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

// Summarize sums up records, with by in s.By also for the rows of [Keys].
func Summarize(records iter.Seq2[*trace.Record, error], by ...string) (Stats, error) {
	s := Stats{Contexts: map[string]Counts{}, Tools: map[string]Counts{}, Servers: map[string]Counts{}, Principals: map[string]Counts{}}
	if len(by) > 0 {
		s.By = map[string]Counts{}
	}
	bump := func(m map[string]Counts, key string, r *trace.Record) {
		c := m[key]
		c.add(r)
		m[key] = c
	}
	for r, err := range records {
		if err != nil {
			return s, err
		}
		s.Total.add(r)
		bump(s.Contexts, r.Context, r)
		for _, key := range Keys(r, by) {
			bump(s.By, key, r)
		}
		a := r.AuditOrEmpty()
		if a.Tool != "" {
			bump(s.Tools, strings.TrimSpace(a.Server+" "+a.Tool), r)
		}
		if a.Server != "" {
			bump(s.Servers, a.Server, r)
		}
		if a.Principal != "" {
			bump(s.Principals, a.Principal, r)
		}
		t := a.Tokens
		if t == nil {
			continue
		}
		if t.Counter != "" && !slices.Contains(s.Counters, t.Counter) {
			s.Counters = append(s.Counters, t.Counter)
		}
		s.SavedMeasured += max(0, t.Out-t.Delivered)
		if a.Read != nil {
			s.SavedMeasured -= t.Delivered
		}
		if trace.CanonicalKind(r.Kind) == trace.KindPop {
			s.SavedComputed += t.Freed
		}
	}
	return s, nil
}
