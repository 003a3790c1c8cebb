package folding

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget"
)

// branch is a live branch. Its fields are guarded by Manager.mu.
type branch struct {
	Branch   // BudgetUsed is stale: see snapshot
	seq      uint64
	parent   *branch
	children map[*branch]struct{}
	calls    map[*Call]struct{}
	ledger   *budget.Ledger
	limits   sessionKey   // whose quota it counts against
	thread   string       // of its host's in which it was created; "" for none
	joined   []sessionKey // the threads that were handed it, see Join
	// partial counts calls that took all that was left and have not said yet
	// how much of it they need; settled is closed when one does.
	partial int
	settled chan struct{}
}

// add makes rec a live branch. m.mu is held.
func (m *Manager) add(rec Branch, ledger *budget.Ledger, parent *branch, limits sessionKey, thread string) *branch {
	q := m.quota(limits)
	q.open++
	m.seq++
	b := &branch{
		Branch: rec, seq: m.seq, parent: parent, ledger: ledger, limits: limits, thread: thread,
		children: map[*branch]struct{}{}, calls: map[*Call]struct{}{}, settled: make(chan struct{}),
	}
	m.live[b.ID] = b
	if parent != nil {
		parent.children[b] = struct{}{}
	}
	for _, key := range b.keys() {
		if m.sessions[key] == nil {
			m.sessions[key] = map[*branch]struct{}{}
		}
		m.sessions[key][b] = struct{}{}
	}
	if m.next.IsZero() || b.ExpiresAt.Before(m.next) {
		m.next = b.ExpiresAt
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return b
}

// all returns the live branches. m.mu is held.
func (m *Manager) all() map[*branch]struct{} {
	set := make(map[*branch]struct{}, len(m.live))
	for _, b := range m.live {
		set[b] = struct{}{}
	}
	return set
}

// remove undoes add. m.mu is held.
func (m *Manager) remove(b *branch) {
	delete(m.live, b.ID)
	if b.parent != nil {
		delete(b.parent.children, b)
	}
	for _, key := range b.keys() {
		delete(m.sessions[key], b)
		if len(m.sessions[key]) == 0 {
			delete(m.sessions, key)
		}
	}
	for _, key := range b.joined {
		delete(m.joined, key)
	}
	m.quota(b.limits).open--
	if len(m.live) == 0 {
		m.next = time.Time{}
	}
}

// keys returns the sessions that b is found under.
func (b *branch) keys() []sessionKey {
	keys := []sessionKey{{principal: b.Principal, session: b.Session}}
	if b.Origin != "" && b.Origin != b.Session {
		keys = append(keys, sessionKey{principal: b.Principal, session: b.Origin})
	}
	if b.Origin != "" && b.thread != "" {
		keys = append(keys, sessionKey{b.Principal, b.Origin, b.thread})
	}
	return keys
}

// snapshot returns the branch as it is now. Manager.mu is held.
func (b *branch) snapshot() Branch {
	out := b.Branch
	if !out.Status.Terminal() {
		out.BudgetUsed = b.ledger.Balance().Used
		out.Activity.InFlight = len(b.calls)
	}
	out.Activity = out.Activity.clone()
	return out
}

// save writes what the branch has used and done. m.mu is held.
func (m *Manager) save(b *branch) *batch { return m.w.put(OpProgress, b.snapshot()) }

// inOrder returns branches deepest first, then oldest first.
func inOrder(set map[*branch]struct{}) []*branch {
	list := make([]*branch, 0, len(set))
	for b := range set {
		list = append(list, b)
	}
	slices.SortFunc(list, func(a, b *branch) int {
		return cmp.Or(cmp.Compare(b.Depth, a.Depth), cmp.Compare(a.seq, b.seq))
	})
	return list
}

func sortByAge(list []Branch) {
	slices.SortFunc(list, func(a, b Branch) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
}
