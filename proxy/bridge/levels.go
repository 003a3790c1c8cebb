package bridge

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A legacy server has one log level for a whole connection. A modern host names
// a level with each request, or wants no log messages. So the server is told the
// lowest level that any request asked for, and each request gets the messages
// that it asked for.

// noLevel means that a request wants no log messages. It is above all levels.
const noLevel = 1 << 10

// askedLevel returns the level that a modern request asks for, as an index of
// wire.LogLevels. An unknown level asks for all messages.
func askedLevel(params json.RawMessage) int {
	level, ok := rawjson.GetString(params, "_meta", wire.MetaLogLevel)
	if !ok {
		return noLevel
	}
	return max(slices.Index(wire.LogLevels, level), 0)
}

// wants reports whether a request gets a notification of a legacy server:
// everything but log messages that it did not ask for.
func (r *request) wants(m wire.Message) bool {
	if m.Method != wire.MethodLogMessage {
		return true
	}
	level, _ := rawjson.GetString(m.Params, "level")
	i := slices.Index(wire.LogLevels, level)
	return r.level != noLevel && (i < 0 || i >= r.level)
}

// raiseLevel makes the server send the log messages that a request asks for.
func (s *legacyServer) raiseLevel(ctx context.Context, asked int) {
	if _, logs := rawjson.Get(s.Info().Result, "capabilities", "logging"); !logs {
		return
	}
	s.mu.Lock()
	told := s.level <= asked
	if !told {
		s.level = asked
	}
	s.mu.Unlock()
	if told {
		return
	}
	m, err := s.Conn.Call(ctx, &conn.Request{Method: "logging/setLevel", Params: rawjson.Marshal(map[string]string{"level": wire.LogLevels[asked]})})
	if err != nil || m.Error != nil {
		s.log.Debug("log level not set", "err", err, "error", string(m.Error))
	}
}

// enter notes a request at the server until leave is called.
func (s *legacyServer) enter(r *request) (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serving[r] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.serving, r)
	}
}

// only returns the request that an unattributed notification must be about: the
// only one that may get it, or one of several of the same session. It returns
// nil if that can't be told.
func (s *legacyServer) only(m wire.Message) (found *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.serving {
		if !r.wants(m) {
			continue
		}
		if found != nil && (r.Call.Origin.Session == "" || found.Call.Origin.Session != r.Call.Origin.Session) {
			return nil
		}
		found = r
	}
	return found
}
