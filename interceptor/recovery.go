package interceptor

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

// clockSlack is by how much the times of files may be coarser than the clock.
const clockSlack = time.Second

// Recover brings the journal and the branches in repo into agreement after a
// process that died. The two are separate files, and a process can die between
// writing the one and the other. Afterwards each request has its response, and
// each push gets one pop. It returns the workflow steps of the calls that were
// lost.
//
// It must run before the manager takes over the active branches, none of which
// is older than maxAge. If this process ends before the journal is settled, the
// next start does it again.
func (r *BranchRecords) Recover(ctx context.Context, repo folding.Repository, maxAge time.Duration) (lostSteps []string, err error) {
	from, to, interrupted := r.Recorder.Journal.Interrupted()
	if !interrupted {
		return nil, nil
	}
	active, err := repo.Active(ctx)
	if err != nil {
		return nil, err
	}
	// What was unfinished began after that process did, and no longer ago than a
	// branch may live. Branches that it took over may be older.
	since := to.Add(-maxAge - time.Minute)
	if from.After(since) && !from.After(to) { // else the clock was set back
		since = from
	}
	for _, b := range active {
		if b.CreatedAt.Before(since) {
			since = b.CreatedAt
		}
	}
	u, err := readUnfinished(ctx, r.Dir, since.Add(-clockSlack))
	if err != nil {
		return nil, fmt.Errorf("trace: reading what the last process left: %w", err)
	}
	for _, call := range u.calls {
		if id := stepOf(call); id != "" {
			u.lostSteps = append(u.lostSteps, id)
		}
		r.Recorder.Note(lostCall(call))
	}
	alive := map[string]bool{}
	for _, b := range active {
		if reason, popped := u.popped[b.ID]; popped {
			if err := repo.Apply(ctx, []folding.Change{{Op: folding.OpFinish, Branch: endedAs(b, reason)}}); err != nil {
				return nil, err
			}
			continue
		}
		alive[b.ID] = true
		if push := u.open[b.ID]; push != nil {
			r.begin(b.ID, openBranch{push: push.ID, conclusions: u.conclusions[b.ID]})
		}
	}
	return u.lostSteps, r.popEnded(ctx, repo, u, alive)
}

// popEnded writes the pops of branches that have ended in repo and are open in
// the journal, deepest first.
func (r *BranchRecords) popEnded(ctx context.Context, repo folding.Repository, u *unfinished, alive map[string]bool) error {
	var ended []folding.Branch
	for id, push := range u.open {
		if alive[id] {
			continue
		}
		b, found, err := repo.Get(ctx, id)
		if err != nil {
			return err
		}
		if !found { // the process died before it was stored: no agent has its id
			b = folding.Branch{ID: id, Context: push.Context, Status: folding.StatusFailed, Reason: folding.ReasonStorageFailed}
			if push.Audit != nil {
				b.Session, b.Principal = push.Audit.Session, push.Audit.Principal
			}
		}
		r.begin(id, openBranch{push: push.ID})
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

// endedAs is a branch with an end that was recorded and not stored. A return
// becomes a forced end: its message reached no agent and may be given again.
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

// unfinished is what a process that died left unfinished in the journal.
type unfinished struct {
	// calls are the requests without a response, in order; lostSteps are the
	// workflow steps of calls that a start which failed has ended already.
	calls     []*trace.Record
	lostSteps []string
	// open are the pushes without a pop, popped the reasons of the pops, both
	// by branch id.
	open   map[string]*trace.Record
	popped map[string]string
	// conclusions are the records of returned branches by the parent's id;
	// concluded has the ids of such branches.
	conclusions map[string][]string
	concluded   map[string]bool
}

// readUnfinished reads what was begun and not ended since a time.
func readUnfinished(ctx context.Context, dir string, since time.Time) (*unfinished, error) {
	u := &unfinished{open: map[string]*trace.Record{}, popped: map[string]string{}, conclusions: map[string][]string{}, concluded: map[string]bool{}}
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
						u.lostSteps = append(u.lostSteps, id)
					}
				}
				delete(requests, cause)
			}
		case r.Kind == trace.KindPush:
			r.Payload = nil
			u.open[id] = r
		case r.Kind == trace.KindPop:
			delete(u.open, id)
			delete(u.conclusions, id)
			u.popped[id] = ""
			if r.Audit != nil && r.Audit.Decision != nil {
				u.popped[id] = r.Audit.Decision.Reason
			}
		case r.Kind == trace.KindConclusion && (r.Audit == nil || !r.Audit.Late):
			u.concluded[id] = true
			if parent := path.Parent(); parent != "" {
				u.conclusions[parent.Leaf()] = append(u.conclusions[parent.Leaf()], r.ID)
			}
		}
	}
	for _, r := range requests {
		u.calls = append(u.calls, r)
	}
	slices.SortFunc(u.calls, func(x, y *trace.Record) int { return cmp.Compare(x.Seq, y.Seq) })
	return u, nil
}

// stepOf returns the workflow step of a request, "" for none.
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
