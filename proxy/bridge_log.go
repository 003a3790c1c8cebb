package proxy

import (
	"context"
	"slices"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Logging across the eras. A legacy upstream has one log level for a whole
// connection; a modern host names one with each request, or wants no log at
// all. So the shared connection is told the lowest level that any request
// asked for, and each request gets what it asked for.

// logLevels are the protocol's, the least severe first.
var logLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// askedLevel returns the level that a modern request asks for, as an index of
// logLevels; -1 if it wants no log.
func askedLevel(fl *inbound) int {
	level, ok := rawjson.GetString(fl.ex.Msg.Params, "_meta", wire.MetaLogLevel)
	if !ok {
		return -1
	}
	return max(slices.Index(logLevels, level), 0) // of an unknown level: all
}

// wantsLog reports whether the modern request fl may get the message m of a
// legacy upstream: anything but log messages it did not ask for.
func wantsLog(fl *inbound, m wire.Message) bool {
	if m.Method != "notifications/message" {
		return true
	}
	asked := askedLevel(fl)
	level, _ := rawjson.GetString(m.Params, "level")
	is := slices.Index(logLevels, level)
	return asked >= 0 && (is < 0 || is >= asked)
}

// raiseLevel makes the legacy upstream behind the shared link l log what fl
// asks for.
func (g *Gateway) raiseLevel(ctx context.Context, u *upstream.Server, l conn.Conn, fl *inbound) {
	asked := askedLevel(fl)
	if asked < 0 || u.Capability("logging") == nil {
		return
	}
	st := fl.s.tenant(u)
	st.mu.Lock()
	told := st.toldLevel == l && st.level <= asked
	if !told {
		st.toldLevel, st.level = l, asked
	}
	st.mu.Unlock()
	if told {
		return
	}
	m, err := l.Call(ctx, &conn.Request{Method: "logging/setLevel", Params: rawjson.Marshal(map[string]string{"level": logLevels[asked]})})
	if err != nil || m.Error != nil {
		u.Log.Debug("log level not set", "err", err, "error", string(m.Error))
	}
}

// enter notes that fl is at the upstream over the shared link, until leave is called.
func (st *tenant) enter(fl *inbound) (leave func()) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.serving == nil {
		st.serving = map[*inbound]struct{}{}
	}
	st.serving[fl] = struct{}{}
	return func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		delete(st.serving, fl)
	}
}

// whose returns the request that a notification on the shared link must be
// about, though it does not say so: the only one that may get it, or one of
// several of the same session. nil where that can't be told.
func (st *tenant) whose(m wire.Message) (found *inbound) {
	st.mu.Lock()
	defer st.mu.Unlock()
	for fl := range st.serving {
		if !wantsLog(fl, m) {
			continue
		}
		if found != nil && found.s != fl.s {
			return nil
		}
		found = fl
	}
	return found
}
