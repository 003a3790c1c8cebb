package folding

import (
	"context"
	"strings"

	"github.com/google/uuid"
)

// StatusRequest names a branch, or a session whose active branch is meant. A
// request with neither means the caller's thread, or session without one.
type StatusRequest struct {
	BranchID, SessionID string
}

// Status returns a branch with its live usage, or false if there is none: an
// unknown, archived or foreign id, or a session with no active branch. Of a
// session with several it returns the newest that has no active children.
func (m *Manager) Status(ctx context.Context, caller Caller, req StatusRequest) (Branch, bool, error) {
	if req.BranchID != "" {
		b, ok, err := m.find(ctx, caller, req.BranchID)
		if ok && req.SessionID != "" && req.SessionID != b.Session && req.SessionID != b.Origin {
			return Branch{}, false, nil
		}
		return b, ok, err
	}
	key := caller.key()
	if req.SessionID != "" {
		key = sessionKey{principal: caller.Principal, session: req.SessionID}
	}
	if key.session == "" {
		return Branch{}, false, Errorf(ErrInvalidInput, "branch_id or session_id is missing: name the branch to look at")
	}
	if err := checkSessionID(key.session); err != nil {
		return Branch{}, false, err
	}
	if !m.opts.Sessions.ValidSession(caller, key.session) {
		return Branch{}, false, nil
	}
	b, n := m.leaves(key)
	return b, n > 0, nil
}

// Resolve returns the active branch that a call names. It fails with
// ErrNotFound for an id that is unknown, archived or not the caller's, in the
// same words. For a branch of the caller's that has ended it returns the branch
// and an [*EndedError].
func (m *Manager) Resolve(caller Caller, branchID string) (Branch, error) {
	b, ok, err := m.find(context.Background(), caller, branchID)
	switch {
	case err != nil:
		return Branch{}, err
	case !ok:
		return Branch{}, notFound(branchID)
	case b.Status.Terminal():
		return b, b.ended()
	}
	return b, nil
}

// ActiveLeaf returns the newest active branch of the caller's session that has
// no active children, and how many such branches there are: with more than
// one, which of them a call belongs to is anyone's guess. Of a caller with a
// thread they are the branches that were created in it; where there is none,
// the one that it has joined, with children or without.
func (m *Manager) ActiveLeaf(caller Caller) (b Branch, leaves int) {
	if caller.Session == "" {
		return Branch{}, 0
	}
	return m.leaves(caller.key())
}

func (m *Manager) leaves(key sessionKey) (Branch, int) {
	m.mu.Lock()
	defer m.unlock()
	m.tick()
	var newest *branch
	n := 0
	for b := range m.sessions[key] {
		if b.Status != StatusActive || b.hasActiveChild() {
			continue
		}
		n++
		if newest == nil || b.seq > newest.seq {
			newest = b
		}
	}
	if newest == nil {
		if newest = m.joined[key]; newest == nil || newest.Status != StatusActive {
			return Branch{}, 0
		}
		n = 1
	}
	return newest.snapshot(), n
}

func (b *branch) hasActiveChild() bool {
	for c := range b.children {
		if c.Status == StatusActive {
			return true
		}
	}
	return false
}

// own returns the caller's active branch of that id, or nil. m.mu is held.
func (m *Manager) own(caller Caller, id string) *branch {
	b := m.live[id]
	if b == nil || b.Status != StatusActive || !m.mine(caller, b.Branch) {
		return nil
	}
	return b
}

func (m *Manager) mine(caller Caller, b Branch) bool {
	return b.Principal == caller.Principal && m.opts.Sessions.ValidSession(caller, b.Session)
}

// find returns a branch of the caller's, active or finished.
func (m *Manager) find(ctx context.Context, caller Caller, id string) (Branch, bool, error) {
	if !IsBranchID(id) {
		return Branch{}, false, nil
	}
	m.mu.Lock()
	m.tick()
	if b := m.own(caller, id); b != nil {
		defer m.unlock()
		return b.snapshot(), true, nil
	}
	m.unlock()
	return m.findEnded(ctx, caller, id)
}

// findEnded returns a finished branch of the caller's.
func (m *Manager) findEnded(ctx context.Context, caller Caller, id string) (Branch, bool, error) {
	b, ok := m.w.pending(id)
	if !ok {
		var err error
		if b, ok, err = m.opts.Repository.Get(ctx, id); err != nil {
			return Branch{}, false, Errorf(ErrStorage, "branch %s could not be looked up: %w", id, err)
		}
	}
	if !ok || !b.Status.Terminal() || !m.mine(caller, b) {
		return Branch{}, false, nil
	}
	if m.now().Sub(b.CompletedAt) > m.cfg.Retention {
		return Branch{}, false, nil // not archived yet, but due
	}
	return b, true, nil
}

// gone returns the error for a branch that is not active.
func (m *Manager) gone(ctx context.Context, caller Caller, id string) error {
	b, ok, err := m.find(ctx, caller, id)
	switch {
	case err != nil:
		return err
	case ok && b.Status.Terminal():
		return b.ended()
	}
	return notFound(id)
}

func notFound(id string) error {
	return Errorf(ErrNotFound, "no branch %q: use the branch_id that branch_create returned, or create a branch", Shorten(id, 64))
}

// IsBranchID reports whether id could be a branch's.
func IsBranchID(id string) bool {
	rest, ok := strings.CutPrefix(id, "br_")
	return ok && len(rest) == 36 && uuid.Validate(rest) == nil
}
