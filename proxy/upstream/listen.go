package upstream

import (
	"context"
	"encoding/json"
	"log/slog"

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
// lasts, and hands them to the owner as if the server had sent them by itself.
// After a break every list may have changed.
func (r *reconnector) watchLists(c conn.Conn) {
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
	missed := func() {
		for _, l := range listChanges {
			if r.server.Capability(l.capability) != nil {
				r.Unsolicited(wire.Message{Method: l.method})
			}
		}
	}
	Resubscribe(ctx, r.server.Log, "list changes", missed, func(ctx context.Context, stands func()) (bool, error) {
		return Listen(ctx, c, rawjson.Marshal(flags), stands, func(m wire.Message) {
			for _, l := range listChanges {
				if l.method == m.Method {
					r.Unsolicited(wire.Message{Method: m.Method, Params: m.Params, Extra: m.Extra})
				}
			}
		})
	})
}

// Resubscribe runs try until ctx ends or try says not to go on. The pause before
// the next try grows until one calls stands: the subscription stands. From the
// second time on, missed is called then.
func Resubscribe(ctx context.Context, log *slog.Logger, to string, missed func(), try func(ctx context.Context, stands func()) (goOn bool, err error)) {
	stood := false
	for fails := 0; ctx.Err() == nil; fails++ {
		goOn, err := try(ctx, func() {
			if stood {
				missed()
			}
			stood, fails = true, 0
		})
		if ctx.Err() != nil {
			return
		}
		log.Debug("subscription ended", "to", to, "err", err)
		if !goOn || Backoff.Wait(ctx, fails) != nil {
			return
		}
	}
}

// Listen holds one subscriptions/listen open over c. It calls stands when the
// server acknowledges, and event for each notification. goOn is false if the
// server refuses.
func Listen(ctx context.Context, c conn.Conn, notifications json.RawMessage, stands func(), event func(wire.Message)) (goOn bool, err error) {
	params := append(append([]byte(`{"notifications":`), notifications...), '}')
	m, err := c.Call(ctx, &conn.Request{Method: wire.MethodListen, Params: params, Caller: listener{stands, event}})
	if err == nil && m.Error != nil {
		return false, wire.NewAnswerError(m.Error)
	}
	return true, err
}

// listener takes the messages of a subscriptions/listen.
type listener struct {
	stands func()
	event  func(wire.Message)
}

// Message takes a notification.
func (l listener) Message(m wire.Message) {
	if m.Method == "notifications/subscriptions/acknowledged" {
		l.stands()
		return
	}
	l.event(m)
}

// Answered does nothing: the subscription is over.
func (l listener) Answered() {}
