package console

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

const (
	pageSize = 50
	maxPage  = 500
	// pageWait bounds the search for a page of records.
	pageWait = 600 * time.Millisecond
)

// calls is the page of records that the address selects.
func (c *Console) calls(r *request) error {
	f, err := c.filter(r)
	if err != nil {
		return err
	}
	size := pageSize
	if s := r.query.Get("size"); s != "" {
		if size, err = strconv.Atoi(s); err != nil || size < 1 || size > maxPage {
			return problemf(http.StatusBadRequest, "size: %.20q is not a number from 1 to %d", s, maxPage)
		}
	}
	q := query.PageQuery{Filter: f, Order: r.query.Get("sort"), After: r.query.Get("after"), Size: size, Wait: pageWait}
	p, err := c.trace.Page(r.Context(), q)
	if err != nil {
		return err
	}
	names := map[string][]string{}
	for _, name := range []string{"principal", "team", "server", "tool", "kind", "reason"} {
		if names[name], err = c.trace.Values(r.Context(), name, 200); err != nil {
			return err
		}
	}
	d := map[string]any{
		"Fields": query.InAddress, "Q": r.query, "Chosen": chosen("/calls", r.query), "Page": p, "Names": names, "Order": q.Order, "Most": query.MaxListed,
		"Live":  q.After == "" && (q.Order == "" || q.Order == query.Newest),
		"Sorts": map[string]string{},
	}
	for _, order := range []string{query.Newest, query.Oldest, query.Tokens, query.Slowest} {
		d["Sorts"].(map[string]string)[order] = address("/calls", r.query, "sort", order, "after", "")
	}
	type export struct{ Name, Link string }
	var exports []export
	for i, name := range query.Names(c.o.Dirs) {
		exports = append(exports, export{name, address("/export", r.query, "of", strconv.Itoa(i+1), "after", "", "sort", "", "size", "")})
	}
	d["Exports"] = exports
	if p.Next != "" {
		d["Next"] = address("/calls", r.query, "after", p.Next)
	}
	if q.After != "" {
		d["First"] = address("/calls", r.query, "after", "")
	}
	return c.show(r, http.StatusOK, "calls", "Calls", d)
}

// filter returns the filter in the address. A name that no record has is an error.
func (c *Console) filter(r *request) (query.Filter, error) {
	f, err := query.FromAddress(r.query)
	if err == nil {
		err = c.trace.Resolve(r.Context(), &f)
	}
	return f, err
}

// record is the page of one record with its neighbours.
func (c *Console) record(r *request) error {
	id := r.PathValue("id")
	at, err := c.trace.Locate(r.Context(), id)
	if err != nil {
		return err
	}
	c.recordRead(r, "record", id)
	g, err := c.trace.Show(r.Context(), at)
	if _, large := errors.AsType[*query.UsageError](err); large {
		g = &query.Graph{Record: at.Record} // its chain is too long
	} else if err != nil {
		return err
	}
	return c.show(r, http.StatusOK, "record", "Record "+number(at.Record.Seq), map[string]any{
		"R": at.Record, "Before": at.Before, "After": at.After, "Dir": c.o.Dirs[at.Journal], "Graph": g, "Intact": at.Intact,
		"Joined": at.Before == nil || at.Record.Prev == at.Before.Hash,
		"Branch": branchLink(at.Record.Context),
	})
}

// recordWait bounds the wait for the gateway that records a read.
const recordWait = 2 * time.Second

// recordRead records what somebody reads before it is shown: at a gateway that runs, else with RecordRead.
// The log has it, too.
func (c *Console) recordRead(r *request, part, name string) {
	c.o.Log.Info("somebody reads the trace", "principal", r.session.Principal, part, name)
	ctx, cancel := context.WithTimeout(r.Context(), recordWait)
	defer cancel()
	var failed error
	for _, g := range c.gateways(ctx) {
		g.By = r.session.Principal
		err := g.Read(ctx, part, name)
		if err == nil {
			return
		}
		failed = errors.Join(failed, err)
	}
	if failed == nil && c.o.RecordRead != nil {
		c.reading.Lock()
		defer c.reading.Unlock()
		failed = c.o.RecordRead(r.session.Principal, part, name)
	}
	if failed != nil {
		c.o.Log.Warn("the trace does not say who reads it", "err", failed)
	}
}

// branchLink returns the address of the page of the branch of a context, "" for main.
func branchLink(context string) string {
	if b := trace.BranchOf(context); b != "" {
		return "/branch?path=" + url.QueryEscape(b)
	}
	return ""
}
