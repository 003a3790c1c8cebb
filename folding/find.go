package folding

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/internal/replicaid"
)

// StatusRequest names a branch, or a session to look at its active branch. An empty request means
// the caller's thread or, without one, its session.
type StatusRequest struct {
	BranchID, SessionID string
}

// Status returns a branch with its current usage. It returns false for an unknown, deleted or
// foreign id, and for a session without an active branch. If a session has several, it returns
// the newest one that has no active children.
func (m *Manager) Status(ctx context.Context, caller Caller, req StatusRequest) (Branch, bool, error) {
	if req.BranchID != "" {
		b, ok, err := m.find(ctx, caller, req.BranchID)
		if ok && req.SessionID != "" && req.SessionID != b.Session && req.SessionID != b.Origin {
			return Branch{}, false, nil
		}
		return b, ok, err
	}
	of := caller
	if req.SessionID != "" {
		of = Caller{Principal: caller.Principal, Subject: caller.Subject, Session: req.SessionID}
	}
	if of.Session == "" {
		return Branch{}, false, Errorf(ErrInvalidInput, "branch_id or session_id is missing: name the branch to look at")
	}
	if err := checkSessionID(of.Session); err != nil {
		return Branch{}, false, err
	}
	if !m.mayUse(caller, of.Session) {
		return Branch{}, false, nil
	}
	b, n := m.ActiveLeaf(of)
	return b, n > 0, nil
}

// Active returns the active branches of all principals, oldest first.
func (m *Manager) Active() (all []Branch) {
	m.mu.Lock()
	defer m.unlock()
	m.now()
	for _, b := range slices.SortedFunc(maps.Values(m.live), func(a, b *branch) int { return cmp.Compare(a.seq, b.seq) }) {
		if b.Status == StatusActive {
			all = append(all, b.snapshot())
		}
	}
	return all
}

// Resolve returns an active branch of the caller. It fails with [ErrNotFound] if the id is
// unknown, deleted or not the caller's. If the branch has ended, it returns the branch and an
// [*EndedError].
func (m *Manager) Resolve(caller Caller, branchID string) (Branch, error) {
	b, ok, err := m.find(context.Background(), caller, branchID)
	if err != nil || !ok || b.Status.Terminal() {
		err = notActiveError(branchID, b, ok, err)
	}
	return b, err
}

// ActiveLeaf returns the newest active branch of the caller that has no active children, and how
// many such branches there are. With more than one, the branch of a call is ambiguous. For a
// caller with a thread it looks at the branches that were created in the thread; if there are
// none, it returns the branch that the thread has joined.
func (m *Manager) ActiveLeaf(caller Caller) (b Branch, leaves int) {
	if caller.Session == "" {
		return Branch{}, 0
	}
	key := caller.key()
	m.mu.Lock()
	defer m.unlock()
	m.now()
	var newest *branch
	for b := range m.sessions[key] {
		if b.Status != StatusActive || b.Subject != caller.Subject || b.unattended || b.hasActiveChild() {
			continue
		}
		leaves++
		if newest == nil || b.seq > newest.seq {
			newest = b
		}
	}
	if newest == nil {
		if newest = m.joined[key]; newest == nil || newest.Status != StatusActive {
			return Branch{}, 0
		}
		leaves = 1
	}
	return newest.snapshot(), leaves
}

func (b *branch) hasActiveChild() bool {
	for c := range b.children {
		if c.Status == StatusActive && !c.unattended {
			return true
		}
	}
	return false
}

// maxJoined bounds the threads that have joined one branch.
const maxJoined = 32

// Join assigns a branch to the caller's thread: calls of the thread that name no branch belong to
// it, until the branch or the connection ends. It is for threads that were given a branch to work
// in and have named it once. It does nothing if the thread has a branch already, if the caller
// has no session or no thread, or if the branch is not active or not the caller's.
func (m *Manager) Join(caller Caller, branchID string) {
	if caller.Session == "" || caller.Thread == "" {
		return
	}
	m.mu.Lock()
	defer m.unlock()
	m.now()
	b, key := m.own(caller, branchID), caller.key()
	if b == nil || m.joined[key] != nil || len(m.sessions[key]) > 0 || len(b.joined) == maxJoined {
		return
	}
	b.joined = append(b.joined, key)
	m.joined[key] = b
}

func (m *Manager) find(ctx context.Context, caller Caller, id string) (Branch, bool, error) {
	m.mu.Lock()
	m.now()
	if b := m.own(caller, id); b != nil {
		defer m.unlock()
		return b.snapshot(), true, nil
	}
	m.unlock()
	return m.findEnded(ctx, caller, id)
}

// findEnded returns a finished branch of the caller. A branch past its retention is not found,
// even if it is not deleted yet.
func (m *Manager) findEnded(ctx context.Context, caller Caller, id string) (Branch, bool, error) {
	b, ok, err := m.load(ctx, id)
	if !ok || !b.Status.Terminal() || !m.owns(caller, b) || m.steady().Sub(b.CompletedAt) > m.config().Retention {
		return Branch{}, false, err
	}
	return b, true, nil
}

// load returns a branch as it was stored, or as its end is being stored.
func (m *Manager) load(ctx context.Context, id string) (Branch, bool, error) {
	if !IsBranchID(id) {
		return Branch{}, false, nil
	}
	if b, ok := m.w.pending(id); ok {
		return b, true, nil
	}
	// A call is often cancelled because its branch has ended. It is told that, not that a read was cut off.
	b, ok, err := m.opts.Repository.Get(context.WithoutCancel(ctx), id)
	if err != nil {
		return Branch{}, false, Errorf(ErrStorage, "branch %s could not be looked up: %w", id, err)
	}
	return b, ok, nil
}

// own returns the caller's active branch with an id, or nil. m.mu is held.
func (m *Manager) own(caller Caller, id string) *branch {
	if b := m.live[id]; b != nil && b.Status == StatusActive && m.owns(caller, b.Branch) {
		return b
	}
	return nil
}

func (m *Manager) owns(caller Caller, b Branch) bool {
	return b.Principal == caller.Principal && b.Subject == caller.Subject && m.mayUse(caller, b.Session)
}

// mayUse reports whether the caller may use a session of its principal; see
// Config.SessionValidation.
func (m *Manager) mayUse(caller Caller, session string) bool {
	return m.config().SessionValidation != ValidationStrict || caller.Session != "" && caller.Session == session
}

// notActiveError returns the error for a branch that is not active. Its arguments are an id and
// the results of find or load for it.
func notActiveError(id string, b Branch, ok bool, err error) error {
	switch {
	case err != nil:
		return err
	case ok && b.Status.Terminal():
		return b.ended()
	}
	return Errorf(ErrNotFound, "no branch %q: use the branch_id that branch_create returned, or create a branch", Shorten(id, 64))
}

// IsBranchID reports whether id has the form of a branch id.
func IsBranchID(id string) bool {
	_, rest, ok := replicaid.Cut("br_", id)
	return ok && len(rest) == 36 && uuid.Validate(rest) == nil
}
