package proxy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// aftermath is what a process that died left unfinished in the trace. The
// books (the branches' database) and the trace are two files, and a process
// can die between writing the one and the other; after [Gateway.reconcile] they
// agree again: every request has its response, every push will get one pop.
type aftermath struct {
	// calls are the requests without a response, in order; lostSteps are those of
	// workflows whose calls a start that failed has ended already.
	calls     []*trace.Record
	lostSteps []string
	// open are the pushes without a pop, closed the reasons of the pops, both
	// by branch id.
	open   map[string]*trace.Record
	closed map[string]string
	// conclusions are those of returned branches, by the parent's id; concluded
	// has the ids of such branches.
	conclusions map[string][]string
	concluded   map[string]bool
}

// reconcile brings trace and books into agreement after a process that died.
// It must run before the manager takes over the active branches. Whatever ends
// this process before New has succeeded, the next start does it again.
func (g *Gateway) reconcile(ctx context.Context, repo folding.Repository, dir string) error {
	from, to, interrupted := g.journal.Interrupted()
	if !interrupted {
		return nil
	}
	active, err := repo.Active(ctx)
	if err != nil {
		return err
	}
	// Whatever was unfinished began after that process did, and no longer ago
	// than a branch may live; what was taken over by it may be older.
	since := to.Add(-time.Duration(g.cfg.Folding.MaxTimeoutSeconds)*time.Second - time.Minute)
	if from.After(since) && !from.After(to) { // else the clock was set back
		since = from
	}
	for _, b := range active {
		if b.CreatedAt.Before(since) {
			since = b.CreatedAt
		}
	}
	a, err := readAftermath(ctx, dir, since.Add(-time.Second)) // clocks of files are coarser
	if err != nil {
		return fmt.Errorf("trace: reading what the last process left: %w", err)
	}
	g.lostSteps = a.lostSteps
	for _, call := range a.calls {
		if id := stepOf(call); id != "" {
			g.lostSteps = append(g.lostSteps, id)
		}
		g.append(lostCall(call))
	}
	alive := map[string]bool{}
	for _, b := range active {
		reason, popped := a.closed[b.ID]
		if !popped {
			alive[b.ID] = true
			if push := a.open[b.ID]; push != nil {
				g.lifelines.begin(b.ID, lifeline{push: push.ID, conclusions: a.conclusions[b.ID]})
			}
			continue
		}
		if err := repo.Apply(ctx, []folding.Change{{Op: folding.OpFinish, Branch: endedAs(b, reason)}}); err != nil {
			return err
		}
	}
	return g.closeLost(ctx, repo, a, alive)
}

// closeLost writes the pops of branches that have ended in the books, deepest
// first.
func (g *Gateway) closeLost(ctx context.Context, repo folding.Repository, a *aftermath, alive map[string]bool) error {
	var lost []folding.Branch
	for id, push := range a.open {
		if alive[id] {
			continue
		}
		b, found, err := repo.Get(ctx, id)
		if err != nil {
			return err
		}
		if !found { // the process died before it was stored: nobody has its id
			b = folding.Branch{ID: id, Context: push.Context, Status: folding.StatusFailed, Reason: folding.ReasonStorageFailed}
			if push.Audit != nil {
				b.Session, b.Principal = push.Audit.Session, push.Audit.Principal
			}
		}
		g.lifelines.begin(id, lifeline{push: push.ID})
		lost = append(lost, b)
	}
	slices.SortFunc(lost, func(x, y folding.Branch) int {
		return cmp.Or(cmp.Compare(strings.Count(y.Context, "/"), strings.Count(x.Context, "/")), strings.Compare(x.ID, y.ID))
	})
	for _, b := range lost {
		if b.Status == folding.StatusCompleted && !a.concluded[b.ID] {
			g.branchEvent(folding.Event{Kind: folding.EventConcluded, Branch: b})
			continue
		}
		g.popped(b, cmp.Or(b.Reason, reasonReturned))
	}
	return nil
}

// endedAs is a branch whose end was recorded and not stored. A return is kept
// as a forced end: its message went to nobody and may be given again.
func endedAs(b folding.Branch, reason string) folding.Branch {
	b.Status, b.Reason, b.CompletedAt = folding.StatusFailed, reason, time.Now().UTC().Truncate(time.Microsecond)
	switch reason {
	case folding.ReasonTimeout:
		b.Status, b.CompletedAt = folding.StatusTimeout, b.ExpiresAt
	case "", reasonReturned:
		b.Reason = folding.ReasonStorageFailed
	}
	b.Error = "foldgate was killed before the end of the branch was stored"
	b.Digest = fmt.Sprintf("%d of %d tokens used", b.BudgetUsed, b.BudgetTotal)
	return b
}

// readAftermath reads what was begun and not ended since a time.
func readAftermath(ctx context.Context, dir string, since time.Time) (*aftermath, error) {
	a := &aftermath{open: map[string]*trace.Record{}, closed: map[string]string{}, conclusions: map[string][]string{}, concluded: map[string]bool{}}
	requests := map[string]*trace.Record{}
	filter := query.Filter{Since: since, Kinds: []string{
		"mcp/request", "mcp/response", trace.KindPush, trace.KindPop, trace.KindConclusion,
	}}
	for r, err := range query.Recent(ctx, dir, filter) {
		if err != nil {
			return nil, err
		}
		path := contextpath.Path(r.Context)
		id := path.Leaf()
		switch {
		case strings.HasPrefix(r.Kind, trace.KindRequest):
			r.Payload = nil
			requests[r.ID] = r
		case strings.HasPrefix(r.Kind, trace.KindResponse):
			for _, cause := range r.CorrelationID {
				if req := requests[cause]; req != nil && r.Audit != nil && r.Audit.Lost {
					if id := stepOf(req); id != "" {
						a.lostSteps = append(a.lostSteps, id)
					}
				}
				delete(requests, cause)
			}
		case r.Kind == trace.KindPush:
			r.Payload = nil
			a.open[id] = r
		case r.Kind == trace.KindPop:
			delete(a.open, id)
			delete(a.conclusions, id)
			a.closed[id] = ""
			if r.Audit != nil && r.Audit.Decision != nil {
				a.closed[id] = r.Audit.Decision.Reason
			}
		case r.Kind == trace.KindConclusion && (r.Audit == nil || !r.Audit.Late):
			a.concluded[id] = true
			if parent := path.Parent(); parent != "" {
				a.conclusions[parent.Leaf()] = append(a.conclusions[parent.Leaf()], r.ID)
			}
		}
	}
	for _, r := range requests {
		a.calls = append(a.calls, r)
	}
	slices.SortFunc(a.calls, func(x, y *trace.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	return a, nil
}

// stepOf returns the step of a workflow that a request was at, "" where it was
// at none.
func stepOf(req *trace.Record) string {
	if req.Audit == nil {
		return ""
	}
	if status, _ := rawjson.GetString(req.Audit.Workflow, "status"); status != workflow.Working {
		return "" // none, or it asked about one
	}
	id, _ := rawjson.GetString(req.Audit.Workflow, "context_id")
	return id
}

// lostCall is the response record of a request that was in flight when the
// process died.
func lostCall(req *trace.Record) *trace.Record {
	audit := trace.Audit{}
	if req.Audit != nil {
		audit = trace.Audit{
			Session: req.Audit.Session, Principal: req.Audit.Principal, Server: req.Audit.Server, Tool: req.Audit.Tool,
			Method: req.Audit.Method, Era: req.Audit.Era, Rung: req.Audit.Rung, Thread: req.Audit.Thread, Traceparent: req.Audit.Traceparent,
		}
	}
	if stepOf(req) != "" {
		audit.Workflow = rawjson.Set(req.Audit.Workflow, rawjson.Quote(workflow.Interrupted), "status")
	}
	audit.Lost, audit.IsError = true, true
	rec := &trace.Record{
		From: "foldgate", Kind: trace.KindResponse + strings.TrimPrefix(req.Kind, trace.KindRequest),
		CorrelationID: trace.IDs{req.ID}, Context: req.Context, Audit: &audit,
		Payload: rawjson.Marshal(map[string]any{"error": map[string]string{"message": "foldgate was killed while the call was in flight"}}),
	}
	if req.From != "" {
		rec.To = []string{req.From}
	}
	return rec
}
