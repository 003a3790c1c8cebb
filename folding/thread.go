package folding

import "slices"

// maxJoined is how many threads may be in one branch without naming it.
const maxJoined = 32

// Join notes that the caller's thread was handed a branch: its calls that name
// none are in it from now on, until one of the two ends. It is for threads that
// work for another and name the branch they were given. A thread that has a
// branch already, created or handed, keeps that one. Without a session and a
// thread, or for a branch that is not active and the caller's, Join does
// nothing.
func (m *Manager) Join(caller Caller, branchID string) {
	if caller.Session == "" || caller.Thread == "" {
		return
	}
	m.mu.Lock()
	defer m.unlock()
	m.tick()
	b, key := m.own(caller, branchID), caller.key()
	if b == nil || m.joined[key] != nil || len(m.sessions[key]) > 0 || len(b.joined) == maxJoined {
		return
	}
	b.joined = append(b.joined, key)
	m.joined[key] = b
}

// leave forgets what the threads of a connection that ends were handed. m.mu is
// held.
func (m *Manager) leave(caller Caller) {
	for key, b := range m.joined {
		if key.principal == caller.Principal && key.session == caller.Session {
			delete(m.joined, key)
			b.joined = slices.DeleteFunc(b.joined, func(k sessionKey) bool { return k == key })
		}
	}
}
