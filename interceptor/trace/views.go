package trace

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Node is one context of the journal, as [Contexts] lists it.
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

func (c *Counts) add(r *Record) {
	c.Records++
	if canonicalKind(r.Kind) == KindRequest+"tools/call" {
		c.Calls++
	}
	a := r.Audit
	if a == nil {
		return
	}
	if a.IsError {
		c.Errors++
	}
	if a.Decision != nil && a.Decision.Result == Blocked {
		c.Blocked++
	}
	if t := a.Tokens; t != nil {
		c.In += t.In
		c.Out += t.Out
		c.Delivered += t.Delivered
	}
	c.MS += a.MS
}

// Contexts returns the distinct contexts of the records that f selects, the
// parents that only their paths imply included, each tree together and
// parents first. Main is the first if any record is in it.
func Contexts(dir string, f Filter) ([]Node, error) {
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
	err := Query(dir, f, func(r *Record) bool {
		p := contextpath.Path(r.Context)
		for _, up := range p.Ancestors() {
			get(up)
		}
		n := get(p)
		n.Implicit = false
		if n.First == "" {
			n.First = r.TS
		}
		n.Last = r.TS
		n.Counts.add(r)
		switch canonicalKind(r.Kind) {
		case KindPush:
			n.State = "open"
		case KindPop:
			n.State = "closed"
			n.Reason = popReason(r)
		}
		return true
	})
	out := make([]Node, 0, len(nodes))
	for _, n := range nodes {
		out = append(out, *n)
	}
	slices.SortFunc(out, func(a, b Node) int {
		switch {
		case contextLess(a.Path, b.Path):
			return -1
		case contextLess(b.Path, a.Path):
			return 1
		}
		return 0
	})
	return out, err
}

// popReason is why a branch was closed: in the payload or, where payloads are
// not stored, in the decision.
func popReason(r *Record) string {
	reason, ok := rawjson.GetString(r.Payload, "reason")
	if !ok && r.Audit != nil && r.Audit.Decision != nil {
		reason = r.Audit.Decision.Reason
	}
	return reason
}

// WriteContexts renders contexts as a table.
func WriteContexts(w io.Writer, nodes []Node) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "CONTEXT\tDEPTH\tSTATE\tRECORDS\tCALLS\tERRORS\tTOKENS IN\tDELIVERED\tFIRST (UTC)\tLAST (UTC)")
	for _, n := range nodes {
		name, state := string(n.Path), n.State
		if n.Path == contextpath.Main {
			name = "(main)"
		}
		if n.Reason != "" {
			state += " (" + clean(n.Reason) + ")"
		}
		if n.Implicit {
			state = "implied"
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", clean(name), n.Depth, state,
			n.Records, n.Calls, n.Errors, n.In, n.Delivered, shortTime(n.First), shortTime(n.Last))
	}
	return tw.Flush()
}

// Stats are the sums of [Summarize].
type Stats struct {
	Total      Counts            `json:"total"`
	Counters   []string          `json:"counters"` // the encodings that tokens were counted with
	Contexts   map[string]Counts `json:"contexts"`
	Tools      map[string]Counts `json:"tools"` // by server and tool
	Servers    map[string]Counts `json:"servers"`
	Principals map[string]Counts `json:"principals"`
	// SavedMeasured are tokens that were counted twice and differ: what
	// upstreams sent less what was delivered, then or later of what was stored.
	SavedMeasured int `json:"saved_measured"`
	// SavedComputed are tokens of closed branches less what their parents read
	// of them. That the parent would have read all of it otherwise is an
	// assumption.
	SavedComputed int `json:"saved_computed"`
}

// Summarize sums up the records that f selects.
func Summarize(dir string, f Filter) (Stats, error) {
	s := Stats{Contexts: map[string]Counts{}, Tools: map[string]Counts{}, Servers: map[string]Counts{}, Principals: map[string]Counts{}}
	bump := func(m map[string]Counts, key string, r *Record) {
		c := m[key]
		c.add(r)
		m[key] = c
	}
	err := Query(dir, f, func(r *Record) bool {
		s.Total.add(r)
		bump(s.Contexts, r.Context, r)
		a := r.Audit
		if a == nil {
			return true
		}
		if a.Tool != "" {
			bump(s.Tools, strings.TrimSpace(a.Server+" "+a.Tool), r)
		}
		if a.Server != "" {
			bump(s.Servers, a.Server, r)
		}
		if a.Principal != "" {
			bump(s.Principals, a.Principal, r)
		}
		if t := a.Tokens; t != nil {
			if t.Counter != "" && !slices.Contains(s.Counters, t.Counter) {
				s.Counters = append(s.Counters, t.Counter)
			}
			s.SavedMeasured += max(0, t.Out-t.Delivered)
			if a.Read != nil {
				s.SavedMeasured -= t.Delivered
			}
			if canonicalKind(r.Kind) == KindPop {
				s.SavedComputed += t.Freed
			}
		}
		return true
	})
	return s, err
}

// Write renders the sums as tables.
func (s Stats) Write(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "\tRECORDS\tCALLS\tERRORS\tBLOCKED\tTOKENS IN\tSENT\tDELIVERED\tMS\n")
	row := func(name string, c Counts) {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f\n", clean(name), c.Records, c.Calls, c.Errors, c.Blocked, c.In, c.Out, c.Delivered, c.MS)
	}
	row("total", s.Total)
	for _, group := range []struct {
		title string
		rows  map[string]Counts
	}{{"branch", s.Contexts}, {"tool", s.Tools}, {"server", s.Servers}, {"principal", s.Principals}} {
		keys := make([]string, 0, len(group.rows))
		for k := range group.rows {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			name := k
			if k == "" {
				name = "(main)"
			}
			row(group.title+" "+name, group.rows[k])
		}
	}
	fmt.Fprintf(tw, "saved, measured (sent less delivered and read back)\t%d tokens\n", s.SavedMeasured)
	fmt.Fprintf(tw, "saved, computed (branches less what parents read)\t%d tokens\n", s.SavedComputed)
	if len(s.Counters) > 0 {
		fmt.Fprintf(tw, "counted with\t%s\n", clean(strings.Join(s.Counters, ", ")))
	}
	return tw.Flush()
}
