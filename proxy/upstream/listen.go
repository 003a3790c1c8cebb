package upstream

import (
	"context"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// listChanges are the lists that change: the member of subscriptions/listen, the
// capability, and the notification that a legacy server sends by itself.
var listChanges = []struct{ flag, capability, method string }{
	{"toolsListChanged", "tools", "notifications/tools/list_changed"},
	{"promptsListChanged", "prompts", "notifications/prompts/list_changed"},
	{"resourcesListChanged", "resources", "notifications/resources/list_changed"},
}

// watchLists asks a modern server for changes of its lists for as long as c
// lasts, and hands them to h as a legacy server sends them. After a break every
// list may have changed.
func (r *reconnector) watchLists(c conn.Conn, h conn.Handler) {
	flags := map[string]bool{}
	for _, l := range listChanges {
		if v, _ := rawjson.Get(r.server.Capability(l.capability), "listChanged"); string(v) == "true" {
			flags[l.flag] = true
		}
	}
	if len(flags) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(r.lifetime)
	defer cancel()
	r.tasks.Go(func() {
		select {
		case <-c.Done():
			cancel()
		case <-ctx.Done():
		}
	})
	open := func(context.Context) (conn.Conn, error) { return c, nil }
	conn.Listen(ctx, open, rawjson.Marshal(flags), false, r.server.Log, listWatch{r.server, h})
}

// listWatch takes the list changes of a modern server.
type listWatch struct {
	server *Server
	h      conn.Handler
}

// Listened implements [conn.Listener].
func (w listWatch) Listened(m wire.Message) {
	for _, l := range listChanges {
		if l.method == m.Method {
			w.h.Unsolicited(wire.Message{Method: m.Method, Params: m.Params, Extra: m.Extra})
		}
	}
}

// Missed implements [conn.Listener].
func (w listWatch) Missed() {
	for _, l := range listChanges {
		if w.server.Capability(l.capability) != nil {
			w.h.Unsolicited(wire.Message{Method: l.method})
		}
	}
}
