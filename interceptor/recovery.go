package interceptor

import (
	"cmp"
	"context"
	"fmt"
	"maps"
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

// Reconcile makes the journal and the branches in repo agree after a process that wrote to one and not to the
// other. Afterwards each request has its response, and each push one pop, unless its branch goes on. It returns the
// workflow steps of the lost calls. A process that was shut down has lost no calls, but repo may have refused its
// ends of branches.
//
// The journal says which branches have ended: if the end of a branch was recorded, it ends here, too.
//
// It must run before the manager takes over the active branches, none of which is older than
// maxAge. known is a time in the last minutes of the process before, by a clock that does not jump; zero if it is
// unknown. If this process ends before the journal is settled, the next start does it again.
func (r *BranchRecords) Reconcile(ctx context.Context, repo folding.Repository, maxAge time.Duration, known time.Time) (lostSteps []string, err error) {
	to, interrupted := r.Recorder.Journal.Interrupted()
	active, err := repo.Active(ctx)
	if err != nil || !interrupted && len(active) == 0 {
		return nil, err
	}
	// Unfinished calls and branches began no longer ago than a branch may live. Branches that a process took over
	// can be older: it recorded the status of each.
	if !known.IsZero() && known.Before(to) { // else the clock was set forward behind what they began with
		to = known
	}
	since := to.Add(-maxAge - time.Minute)
	for _, b := range active {
		if b.CreatedAt.Before(since) {
			since = b.CreatedAt
		}
	}
	u, err := readUnfinished(ctx, r.Recorder.Journal.Dir(), since.Add(-clockSlack))
	if err != nil {
		return nil, fmt.Errorf("trace: reading what the last process left: %w", err)
	}
	if interrupted { // else the steps in u are those that an earlier start returned
		for _, call := range u.calls {
			u.addLostStep(call)
			r.Recorder.Note(lostCall(call))
		}
		lostSteps = u.lostSteps
	}
	for id, first := range u.open {
		push := first.ID
		if first.Kind == trace.KindStatus && len(first.CorrelationID) > 0 {
			push = first.CorrelationID[0]
		}
		r.change(id, func(o *openBranch) { o.push, o.host, o.conclusions = push, hostOf(first), u.conclusions[id] })
	}
	for _, b := range active {
		reason, popped := u.popped[b.ID]
		if !popped && !u.concluded[b.ID] {
			delete(u.open, b.ID)
		} else if err := repo.Apply(ctx, []folding.Branch{endedAs(b, reason)}); err != nil {
			return nil, err
		}
	}
	return lostSteps, r.popEnded(ctx, repo, u)
}

// popEnded writes the pops of the branches that are open in the journal only, deepest first.
func (r *BranchRecords) popEnded(ctx context.Context, repo folding.Repository, u *unfinished) error {
	var ended []folding.Branch
	for id, first := range u.open {
		b, found, err := repo.Get(ctx, id)
		if err != nil {
			return err
		}
		if !found { // the process died before it stored the branch: no agent has its id
			a := first.AuditOrEmpty()
			b = folding.Branch{ID: id, Context: first.Context, Status: folding.StatusFailed, Reason: folding.ReasonStorageFailed, Session: a.Session, Origin: a.Session, Principal: a.Principal}
		}
		ended = append(ended, b)
	}
	slices.SortFunc(ended, func(x, y folding.Branch) int {
		return cmp.Or(cmp.Compare(strings.Count(y.Context, "/"), strings.Count(x.Context, "/")), strings.Compare(x.ID, y.ID))
	})
	for _, b := range ended {
		conclusion := ""
		if b.Status == folding.StatusCompleted && !u.concluded[b.ID] {
			conclusion = r.conclude(b, false)
		}
		r.pop(b, cmp.Or(b.Reason, reasonReturned), conclusion)
	}
	return nil
}

// endedAs returns a branch with an end that was recorded but not stored. A return becomes a
// forced end: its message reached no agent and may be given again.
func endedAs(b folding.Branch, reason string) folding.Branch {
	b.Status, b.Reason, b.CompletedAt = folding.StatusFailed, reason, time.Now().UTC().Truncate(time.Microsecond)
	if b.ExpiresAt.Before(b.CompletedAt) { // the clock may be wrong
		b.CompletedAt = b.ExpiresAt
	}
	switch reason {
	case folding.ReasonTimeout:
		b.Status, b.CompletedAt = folding.StatusTimeout, b.ExpiresAt
	case "", reasonReturned:
		b.Reason = folding.ReasonStorageFailed
	}
	b.Error = "foldgate ended before the end of the branch was stored"
	b.Digest = fmt.Sprintf("%d of %d tokens used", b.BudgetUsed, b.BudgetTotal)
	return b
}

// unfinished lists the requests and branches that a dead process left open in the journal.
type unfinished struct {
	// calls are the requests without a response, in order. lostSteps are workflow steps of lost
	// calls, also of calls that an earlier, failed start has ended.
	calls     []*trace.Record
	lostSteps []string
	// open has the branches without a pop: the push or, if that is older, the first status. popped has
	// the reasons of the pops. Both are by branch id.
	open   map[string]*trace.Record
	popped map[string]string
	// conclusions are the records of returned branches, by the parent's id. concluded has the ids
	// of these branches.
	conclusions map[string][]string
	concluded   map[string]bool
}

// readUnfinished reads the calls and branches that began since a time and have no end.
func readUnfinished(ctx context.Context, dir string, since time.Time) (*unfinished, error) {
	u := &unfinished{open: map[string]*trace.Record{}, popped: map[string]string{}, conclusions: map[string][]string{}, concluded: map[string]bool{}}
	requests := map[string]*trace.Record{}
	filter := query.Filter{Since: since, Kinds: []string{
		"mcp/request", "mcp/response", trace.KindPush, trace.KindStatus, trace.KindPop, trace.KindConclusion,
	}}
	for r, err := range query.Recent(ctx, dir, filter) {
		if err != nil {
			return nil, err
		}
		path, audit := contextpath.Path(r.Context), r.AuditOrEmpty()
		id := path.Leaf()
		r.Payload = nil
		switch {
		case strings.HasPrefix(r.Kind, trace.KindRequest):
			requests[r.ID] = r
		case strings.HasPrefix(r.Kind, trace.KindResponse):
			for _, cause := range r.CorrelationID {
				if req := requests[cause]; req != nil && audit.Lost {
					u.addLostStep(req)
				}
				delete(requests, cause)
			}
		case r.Kind == trace.KindPush:
			u.open[id] = r
		case r.Kind == trace.KindStatus:
			if _, popped := u.popped[id]; !popped && u.open[id] == nil {
				u.open[id] = r
			}
		case r.Kind == trace.KindPop:
			delete(u.open, id)
			delete(u.conclusions, id)
			u.popped[id] = ""
			if audit.Decision != nil {
				u.popped[id] = audit.Decision.Reason
			}
		case r.Kind == trace.KindConclusion && !audit.Late:
			u.concluded[id] = true
			if parent := path.Parent(); parent != "" {
				u.conclusions[parent.Leaf()] = append(u.conclusions[parent.Leaf()], r.ID)
			}
		}
	}
	u.calls = slices.SortedFunc(maps.Values(requests), func(x, y *trace.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	return u, nil
}

// lostCall returns the response record of a request that was in flight when the process died.
func lostCall(req *trace.Record) *trace.Record {
	a := req.AuditOrEmpty()
	audit := trace.Audit{
		Session: a.Session, Principal: a.Principal, Server: a.Server, Tool: a.Tool, Method: a.Method, Revision: a.Revision, Source: a.Source,
		Thread: a.Thread, Traceparent: a.Traceparent, Lost: true, IsError: true,
	}
	if stepOf(req) != "" {
		audit.Workflow = rawjson.Set(a.Workflow, rawjson.Quote(workflow.Interrupted), "status")
	}
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

func (u *unfinished) addLostStep(req *trace.Record) {
	if id := stepOf(req); id != "" {
		u.lostSteps = append(u.lostSteps, id)
	}
}

// stepOf returns the workflow step that a request works on, "" for none.
func stepOf(req *trace.Record) string {
	flow := req.AuditOrEmpty().Workflow
	if status, _ := rawjson.GetString(flow, "status"); status != workflow.Working {
		return "" // none, or the request asks about one
	}
	id, _ := rawjson.GetString(flow, "context_id")
	return id
}
