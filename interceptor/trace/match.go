package trace

import (
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// The predicates of a Filter, one per indexed column, so that the index can
// answer them for a whole file by its distinct values.

// matchContext applies the conditions on the context axis.
func (f *Filter) matchContext(ctx string) bool {
	p := contextpath.Path(ctx)
	switch {
	case f.Main && ctx != "",
		f.Depth > 0 && p.Depth() != f.Depth,
		f.Type != "" && contextType(p) != f.Type,
		f.Conclusions && ctx == "":
		return false
	case f.Context == "":
		return !f.Roots || f.Workflow != "" || p.Depth() == 1
	}
	return f.shape(contextpath.Path(f.Context), p)
}

// shape applies Tree, Children and Ancestors to a path on either axis.
func (f *Filter) shape(base, p contextpath.Path) bool {
	switch {
	case f.Tree:
		return p.InTree(base)
	case f.Children:
		return p.IsChild(base)
	case f.Ancestors:
		return p.IsAncestor(base)
	}
	return p == base
}

// contextType is the last segment's prefix: br for br_1f0c, reason for reason-789.
func contextType(p contextpath.Path) string {
	leaf := p.Leaf()
	if i := strings.IndexAny(leaf, "_-"); i >= 0 {
		return leaf[:i]
	}
	return leaf
}

func (f *Filter) matchKind(kind string) bool {
	k := canonicalKind(kind)
	if f.Conclusions && k != KindConclusion {
		return false
	}
	if len(f.Kinds) == 0 {
		return k != KindJournal || f.Journal || f.ID != "" || f.Chain != ""
	}
	return slices.ContainsFunc(f.Kinds, func(p string) bool { return matchKind(canonicalKind(p), k) })
}

func matchAny(patterns []string, s string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool { return glob(p, s) })
}

func matchOne(pattern, s string) bool { return pattern == "" || glob(pattern, s) }

// The bits of flags, as stored in the index.
const (
	flagBlocked uint16 = 1 << iota
	flagScrubbed
	flagOverBudget
	flagAmbiguous
	flagDeprecated
	flagLate
	flagError
	flagWorkflow // has one; the record itself decides
	flagDecision // has a reason; the record itself decides
	flagCorrelates
)

// flagsOf derives the flags of a record.
func flagsOf(r *Record) (bits uint16) {
	if strings.HasPrefix(r.Kind, KindReject) {
		bits |= flagBlocked
	}
	if len(r.CorrelationID) > 0 {
		bits |= flagCorrelates
	}
	a := r.Audit
	if a == nil {
		return bits
	}
	if d := a.Decision; d != nil {
		if d.Result == Blocked {
			bits |= flagBlocked
		}
		if d.Reason != "" {
			bits |= flagDecision
		}
		if budgetReason(d.Reason) {
			bits |= flagOverBudget
		}
	}
	for bit, set := range map[uint16]bool{
		flagScrubbed: len(a.Scrub) > 0, flagOverBudget: a.OverBudget, flagAmbiguous: a.Ambiguous,
		flagDeprecated: len(a.Deprecated) > 0, flagLate: a.Late, flagError: a.IsError, flagWorkflow: len(a.Workflow) > 0,
	} {
		if set {
			bits |= bit
		}
	}
	return bits
}

func budgetReason(reason string) bool {
	return reason == "resource_limit" || reason == "budget_exhausted"
}

// wantFlags returns the flags that a record must have to be selected.
func (f *Filter) wantFlags() (bits uint16) {
	for bit, set := range map[uint16]bool{
		flagBlocked: f.Blocked, flagScrubbed: f.Scrubbed, flagOverBudget: f.OverBudget, flagAmbiguous: f.Ambiguous,
		flagDeprecated: f.Deprecated, flagLate: f.Late, flagError: f.Errors, flagDecision: f.Reason != "",
		flagWorkflow: f.Workflow != "" || len(f.Evidence) > 0 || f.A2AContext != "" || f.A2ATask != "", flagCorrelates: f.Orphans,
	} {
		if set {
			bits |= bit
		}
	}
	return bits
}

// matchRecord applies everything but Chain, Orphans and Limit, which need more
// than one record.
func (f *Filter) matchRecord(r *Record) bool {
	want := f.wantFlags()
	return flagsOf(r)&want == want &&
		f.matchKind(r.Kind) && f.matchContext(r.Context) && f.matchTime(r.TS) && f.matchRest(r)
}

// matchTime compares as strings: TimeFormat sorts.
func (f *Filter) matchTime(ts string) bool {
	return (f.Since.IsZero() || ts >= f.Since.UTC().Format(TimeFormat)) &&
		(f.Until.IsZero() || ts < f.Until.UTC().Format(TimeFormat))
}

// matchRest applies what is not a flag, the kind, the context or the time.
func (f *Filter) matchRest(r *Record) bool {
	a := r.Audit
	if a == nil {
		a = &Audit{}
	}
	return matchOne(f.From, r.From) &&
		(f.To == "" || slices.ContainsFunc(r.To, func(to string) bool { return glob(f.To, to) })) &&
		matchOne(f.Session, a.Session) && matchOne(f.Principal, a.Principal) &&
		matchAny(f.Servers, a.Server) && matchAny(f.Tools, a.Tool) &&
		(f.ID == "" || r.ID == f.ID) &&
		(f.Reason == "" || a.Decision != nil && a.Decision.Reason == f.Reason) &&
		f.matchWorkflow(a) && f.matchCorrelates(r)
}

func (f *Filter) matchWorkflow(a *Audit) bool {
	for key, want := range map[string]string{"contextId": f.A2AContext, "taskId": f.A2ATask} {
		if got, _ := rawjson.GetString(a.Workflow, "a2a", key); want != "" && got != want {
			return false
		}
	}
	if f.Workflow == "" && len(f.Evidence) == 0 {
		return true
	}
	path, _ := rawjson.GetString(a.Workflow, "path")
	id, _ := rawjson.GetString(a.Workflow, "context_id")
	evidence, _ := rawjson.GetString(a.Workflow, "evidence")
	if len(f.Evidence) > 0 && !slices.Contains(f.Evidence, evidence) {
		return false
	}
	if path == "" {
		path = id
	}
	p, base := contextpath.Path(path), contextpath.Path(f.Workflow)
	switch {
	case f.Roots && p.Depth() != 1:
		return false
	case f.Workflow == "":
		return true
	case f.Context != "": // the shape belongs to the context axis
		return p == base || id == f.Workflow
	}
	return f.shape(base, p) || !f.Tree && !f.Children && !f.Ancestors && id == f.Workflow
}

func (f *Filter) matchCorrelates(r *Record) bool {
	if f.Correlates == "" {
		return true
	}
	if rpc, ok := strings.CutPrefix(f.Correlates, "rpc:"); ok {
		return carriesRPC(r, rpc)
	}
	return slices.Contains(r.CorrelationID, f.Correlates)
}

// carriesRPC reports whether the record's JSON-RPC id is id on either side.
func carriesRPC(r *Record, id string) bool {
	ids := make([][]byte, 0, 3)
	if v, ok := rawjson.Get(r.Payload, "id"); ok {
		ids = append(ids, v)
	}
	if r.Audit != nil && r.Audit.Hops != nil {
		ids = append(ids, r.Audit.Hops.Host, r.Audit.Hops.Upstream)
	}
	return slices.ContainsFunc(ids, func(v []byte) bool {
		return len(v) > 0 && (string(v) == id || rawjson.KindOf(v) == rawjson.String && rawjson.Unquote(v) == id)
	})
}
