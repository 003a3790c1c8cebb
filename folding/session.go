package folding

// SessionValidator decides whether a caller may use a session, when a branch
// is created in it and each time one of its branches is named. The principal
// has been matched before it is asked. It must be fast: it is called on every
// call that names a branch.
type SessionValidator interface {
	// ValidSession reports whether c may use session.
	ValidSession(c Caller, session string) bool
}

// Permissive lets a principal use all its sessions from any connection.
type Permissive struct{}

// ValidSession returns true.
func (Permissive) ValidSession(Caller, string) bool { return true }

// Strict lets a connection use its own session only. A connection without one
// (the modern era on HTTP) can't use branches at all.
type Strict struct{}

// ValidSession compares whole ids: no prefix, no folding of case.
func (Strict) ValidSession(c Caller, session string) bool {
	return c.Session != "" && c.Session == session
}

// sessionKey is a session of one principal, or a thread of one: sessions of the
// same name of two principals have nothing in common, nor have threads of the
// same name on two connections. thread is "" for the session as a whole.
type sessionKey struct {
	principal, session, thread string
}
