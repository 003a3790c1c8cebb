package bridge

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// sharedConn is a connection that several hosts share. A server on stdio does not say which request
// its log messages are about, so sharedConn finds the only possible one. On a connection of everyone
// it drops them: one that comes late would reach another principal.
type sharedConn struct {
	conn.Conn
	conn.Handler // of the hosts
	everyone     bool

	mu      sync.Mutex
	serving map[*conn.Request]struct{} // the hosts' requests at the server
}

// Call implements [conn.Conn].
func (s *sharedConn) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	if r.Call != nil {
		defer s.enter(r)()
	}
	return s.Conn.Call(ctx, r)
}

// enter notes a request at the server until leave is called.
func (s *sharedConn) enter(r *conn.Request) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving[r] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.serving, r)
	}
}

// Unsolicited implements [conn.Handler]. A change of a list concerns all hosts.
func (s *sharedConn) Unsolicited(m wire.Message) {
	if strings.HasSuffix(m.Method, "/list_changed") {
		s.Handler.Unsolicited(m)
		return
	}
	lost := conn.Undelivered{Message: m, Rule: conn.RuleShare, Text: "principals share this connection, and the message does not say for which call it is"}
	if !s.everyone {
		found, several := s.only(m)
		if found != nil {
			found.Receiver.Message(m)
			return
		}
		if !several && m.Method == wire.MethodLogMessage {
			return // no host asked for it
		}
		lost.Rule, lost.Text = conn.RuleNoCall, "the message does not say for which call it is, and it fits none or several"
	}
	s.Undelivered(lost)
}

// only returns the request that a notification that names no request must be about: the only one that may
// get it, or one of several of the same session. several means that it could be about several.
func (s *sharedConn) only(m wire.Message) (found *conn.Request, several bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.serving {
		if !wants(r, m) {
			continue
		}
		if found != nil && (r.Call.Origin.Session == "" || found.Call.Origin.Session != r.Call.Origin.Session) {
			return nil, true
		}
		found = r
	}
	return found, false
}

// noLevel means that a request wants no log messages. It is above all levels.
const noLevel = 1 << 10

// askedLevel returns the level that a modern request asks for, as an index of wire.LogLevels. An
// unknown level asks for all messages.
func askedLevel(r *conn.Request) int {
	level, ok := rawjson.GetString(r.Params, "_meta", wire.MetaLogLevel)
	if !ok {
		return noLevel
	}
	return max(slices.Index(wire.LogLevels, level), 0)
}

// wants reports whether a request gets a notification: everything but log messages that it did not
// ask for. A legacy server has one log level for all requests on a connection.
func wants(r *conn.Request, m wire.Message) bool {
	if m.Method != wire.MethodLogMessage {
		return true
	}
	asked := askedLevel(r)
	level, _ := rawjson.GetString(m.Params, "level")
	i := slices.Index(wire.LogLevels, level)
	return asked != noLevel && (i < 0 || i >= asked)
}
