package trace

import (
	"hash/maphash"
	"maps"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// invariants is what a verifier knows to check that records agree with each other. It keeps ids as 64-bit
// hashes with a random seed: about 20 bytes a record.
type invariants struct {
	seed     maphash.Seed
	ids      map[uint64]uint64 // the hash of an id's context, with the last bit for requests
	branches map[contextpath.Path]*branchState
	opened   map[contextpath.Path]struct{} // branches that are not closed
	tardy    map[uint64]struct{}           // ids of requests made in a closed branch
	partial  bool                          // older records were removed: a cause may have been among them
}

type branchState struct {
	seq     uint64 // of its push
	closed  bool
	charged int // tokens delivered in it
	counter string
}

func newInvariants() invariants {
	return invariants{seed: maphash.MakeSeed(), ids: map[uint64]uint64{}, branches: map[contextpath.Path]*branchState{},
		opened: map[contextpath.Path]struct{}{}, tardy: map[uint64]struct{}{}}
}

// checkInvariants reports the rules that the next record breaks.
func (v *verifier) checkInvariants(r *Record) {
	if err := contextpath.ValidateCall(r.Context); err != nil {
		v.fault(FaultContext, "record %d: %v", r.Seq, err)
		return
	}
	if strings.HasPrefix(r.Kind, "mcp/response") && !v.answers(r) && !v.partial {
		v.fault(FaultOrphan, "record %d is a response, but none of its correlations is an earlier request in context %q", r.Seq, r.Context)
	}
	key := v.key(r.ID)
	if _, dup := v.ids[key]; dup {
		v.fault(FaultDuplicateID, "record %d: id %s was used before", r.Seq, r.ID)
	}
	v.ids[key] = v.mark(r.Context, strings.HasPrefix(r.Kind, "mcp/request"))
	if r.Context != "" {
		v.branch(r)
	}
}

// answers reports whether r correlates to an earlier request in its context.
func (v *invariants) answers(r *Record) bool {
	want := v.mark(r.Context, true)
	return slices.ContainsFunc(r.CorrelationID, func(id string) bool { return v.ids[v.key(id)] == want })
}

func (v *invariants) key(id string) uint64 { return maphash.String(v.seed, id) }

// mark returns the entry of ids for a record in a context.
func (v *invariants) mark(context string, request bool) uint64 {
	mark := v.key(context) | 1
	if !request {
		mark--
	}
	return mark
}

// branch checks a record of a context that was opened by a push. Other contexts have no rules.
func (v *verifier) branch(r *Record) {
	p := contextpath.Path(r.Context)
	b := v.branches[p]
	switch r.Kind {
	case KindPush:
		if b != nil {
			v.fault(FaultPushTwice, "record %d opens branch %s, which record %d has opened", r.Seq, p, b.seq)
			return
		}
		v.branches[p] = &branchState{seq: r.Seq}
		v.opened[p] = struct{}{}
		return
	case KindPop:
		v.pop(r, p, b)
		return
	}
	if b == nil {
		return
	}
	a := r.AuditOrEmpty()
	if a.Late {
		return
	}
	if b.closed {
		v.tooLate(r, p)
	}
	if t := a.Tokens; t != nil && t.Used > 0 {
		b.charged += t.Delivered
		b.counter = t.Counter
	}
}

// tooLate checks a record that is in a closed branch and not marked late. A call
// in a closed branch may be refused; it is a fault if one succeeds. The branch
// tools may succeed: they read or end the branch.
func (v *verifier) tooLate(r *Record, p contextpath.Path) {
	switch {
	case r.Kind == KindReflection || r.Kind == KindConclusion:
		v.fault(FaultClosed, "record %d (%s) is in branch %s, which is closed, and is not marked late", r.Seq, r.Kind, p)
	case strings.HasPrefix(r.Kind, "mcp/request"):
		v.tardy[v.key(r.ID)] = struct{}{}
	case strings.HasPrefix(r.Kind, "mcp/response"):
		a := r.AuditOrEmpty()
		tardy := func(id string) bool { _, is := v.tardy[v.key(id)]; return is }
		if !a.IsError && !r.Blocked() && !strings.HasPrefix(a.Tool, "branch_") && slices.ContainsFunc(r.CorrelationID, tardy) {
			v.fault(FaultClosed, "record %d answers a call that was made in branch %s after it was closed, and is neither refused nor marked late", r.Seq, p)
		}
	}
}

func (v *verifier) pop(r *Record, p contextpath.Path, b *branchState) {
	switch {
	case b == nil && !v.partial:
		v.fault(FaultPopUnopened, "record %d closes branch %s, which was not opened", r.Seq, p)
		return
	case b == nil:
		return
	case b.closed:
		v.fault(FaultPopTwice, "record %d closes branch %s again", r.Seq, p)
		return
	}
	for q := range v.opened {
		if p.IsAncestor(q) {
			v.fault(FaultPopOrder, "record %d closes branch %s before its child %s", r.Seq, p, q)
		}
	}
	b.closed = true
	delete(v.opened, p)
	if t := r.AuditOrEmpty().Tokens; t != nil && t.Used > 0 && t.Counter == b.counter && t.Used < b.charged {
		v.fault(FaultTokens, "record %d: branch %s ends with %d tokens, but %d were delivered in it", r.Seq, p, t.Used, b.charged)
	}
}

// noteOpen notes the branches that were opened and not closed.
func (v *verifier) noteOpen() {
	for _, p := range slices.Sorted(maps.Keys(v.opened)) {
		v.note(NoteOpen, "branch %s, opened by record %d, is not closed", p, v.branches[p].seq)
	}
}
