package console

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/control"
)

const (
	maxTree  = 500 // branches of a tree that are shown
	maxPages = 200 // of branches
)

// node is a branch as a page shows it.
type node struct {
	query.Branch
	Link        string
	ID          string // the last part of its path
	Depth       int
	Description string
	Reason      string    // why it ended
	Begun       time.Time // zero if the trace does not have its beginning
	Ended       time.Time // zero while it is open
	Live        *control.Branch
	X, W        float64 // of its bar, in percent
}

// State returns open or why the branch ended.
func (n node) State() string {
	switch {
	case n.Closed == nil:
		return "open"
	case n.Reason == "":
		return "ended"
	}
	return n.Reason
}

func nodeOf(b query.Branch, live map[string]control.Branch) node {
	parts := strings.Split(b.Context, "/")
	n := node{Branch: b, Link: branchLink(b.Context), ID: parts[len(parts)-1], Depth: len(parts) - 1}
	if b.Opened != nil {
		n.Begun = b.Opened.Time()
		n.Description, _ = rawjson.GetString(b.Opened.Payload, "description")
	}
	if b.Closed != nil {
		n.Ended = b.Closed.Time()
		if n.Reason, _ = rawjson.GetString(b.Closed.Payload, "reason"); n.Reason == "" {
			if d := b.Closed.AuditOrEmpty().Decision; d != nil {
				n.Reason = d.Reason
			}
		}
	}
	if l, ok := live[b.Context]; ok && b.Closed == nil {
		n.Live, n.Used, n.Budget = &l, int64(l.Used), int64(l.Budget)
	}
	return n
}

// nodesOf returns branches with their bars, from the first beginning to the last end.
func nodesOf(all []query.Branch, live map[string]control.Branch) (nodes []node, since, until time.Time) {
	for _, b := range all {
		n := nodeOf(b, live)
		nodes = append(nodes, n)
		if !n.Begun.IsZero() && (since.IsZero() || n.Begun.Before(since)) {
			since = n.Begun
		}
		if b.Last != nil && b.Last.Time().After(until) {
			until = b.Last.Time()
		}
	}
	whole := max(until.Sub(since), time.Millisecond)
	for i := range nodes {
		n := &nodes[i]
		end := n.Ended
		if end.IsZero() {
			end = until
		}
		if !n.Begun.IsZero() {
			n.X = 100 * float64(n.Begun.Sub(since)) / float64(whole)
			n.W = max(100*float64(end.Sub(n.Begun))/float64(whole), 0.3)
		}
	}
	return nodes, since, until
}

// live returns the open branches of gateways that run, by their context.
func (c *Console) live(r *request) map[string]control.Branch {
	out := map[string]control.Branch{}
	for _, g := range c.gateways(r.Context()) {
		all, err := g.OpenBranches(r.Context())
		if err != nil {
			c.o.Log.Debug("a gateway does not tell its branches", "err", err)
		}
		for _, b := range all {
			out[b.Context] = b
		}
	}
	return out
}

// branches is the page of branches.
func (c *Console) branches(r *request) error {
	open, err := r.oneOf("open", "false", "true")
	sort, wrong := r.oneOf("sort", "newest", "tokens")
	if err = cmp.Or(err, wrong); err != nil {
		return err
	}
	q := query.BranchQuery{Size: pageSize, Open: open == "true", Principal: r.query.Get("principal"), ByCost: sort == "tokens"}
	if p := r.query.Get("page"); p != "" {
		if q.Page, err = strconv.Atoi(p); err != nil || q.Page < 0 || q.Page >= maxPages {
			return problemf(http.StatusBadRequest, "page: %.20q is not a number from 0 to %d", p, maxPages-1)
		}
	}
	all, more, err := c.trace.Branches(r.Context(), q)
	if err != nil {
		return err
	}
	nodes, _, _ := nodesOf(all, c.live(r))
	d := map[string]any{
		"Nodes": nodes, "Q": r.query, "Open": q.Open, "ByCost": q.ByCost, "Principal": q.Principal,
		"Newest": address("/branches", r.query, "sort", "", "page", ""), "Cost": address("/branches", r.query, "sort", "tokens", "page", ""),
		"OnlyOpen": address("/branches", r.query, "open", "true", "page", ""), "All": address("/branches", r.query, "open", "", "page", ""),
		"Anybody": address("/branches", r.query, "principal", "", "page", ""),
	}
	if more && q.Page+1 < maxPages {
		d["Next"] = address("/branches", r.query, "page", strconv.Itoa(q.Page+1))
	}
	if q.Page > 0 {
		d["First"] = address("/branches", r.query, "page", "")
	}
	return c.show(r, http.StatusOK, "branches", "Branches", d)
}

// branch is the page of one branch: its tree, and its story from its beginning to its end.
func (c *Console) branch(r *request) error {
	path := r.query.Get("path")
	if trace.BranchOf(path) != path || path == "" {
		return problemf(http.StatusNotFound, "%.200q is not the path of a branch", path)
	}
	root, _, _ := strings.Cut(path, "/")
	isThis := func(b query.Branch) bool { return b.Context == path }
	all, more, err := c.trace.Branches(r.Context(), query.BranchQuery{Tree: root, Size: maxTree})
	if err == nil && !slices.ContainsFunc(all, isThis) { // it is not among the first of the tree: show what is below it
		all, more, err = c.trace.Branches(r.Context(), query.BranchQuery{Tree: path, Size: maxTree})
	}
	if err != nil {
		return err
	}
	nodes, since, until := nodesOf(all, c.live(r))
	i := slices.IndexFunc(nodes, func(n node) bool { return n.Context == path })
	if i < 0 {
		return problemf(http.StatusNotFound, "the trace has no branch %.200q", path)
	}
	f := query.Filter{Context: path, Tree: true}
	p, err := c.trace.Page(r.Context(), query.PageQuery{Filter: f, Order: query.Oldest, After: r.query.Get("after"), Size: 200, Wait: pageWait})
	if err != nil {
		return err
	}
	d := map[string]any{
		"N": nodes[i], "Nodes": nodes, "Path": path, "More": more, "Shown": number(len(nodes)), "Root": all[0].Context != root, "RootLink": branchLink(root), "TreeCalls": to("context", root, "tree", "true", "kind", trace.KindPush), "Since": since, "Until": until, "Page": p,
		"Calls": to("context", path, "tree", "true"), "Height": 24 * len(nodes),
	}
	if p.Next != "" {
		d["Next"] = address("/branch", r.query, "after", p.Next)
	}
	return c.show(r, http.StatusOK, "branch", "Branch "+short(nodes[i].ID), d)
}
