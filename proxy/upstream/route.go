package upstream

import (
	"fmt"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// route hands a request or notification of the upstream to the call that it
// belongs to: by progress token, by subscription, else to own (the call on
// whose stream it came, nil where that is unknown), else to Config.Handle.
func (t *flights) route(m wire.Message, own *flight, modern bool) {
	switch {
	case !m.IsNotification():
	case m.Method == wire.MethodProgress:
		f, forward := t.progress(&m)
		if !forward {
			return
		}
		if f != nil {
			own = f
		}
	case modern && m.Method == wire.MethodCancelled && own == nil:
		// A modern server makes no requests, so the id is one of ours, and
		// cancelling is how a stdio server ends a subscription.
		id, _ := rawjson.Get(m.Params, "requestId")
		reason, _ := rawjson.GetString(m.Params, "reason")
		if f := t.get(ownID(id)); f != nil && f.call.Method == wire.MethodListen {
			t.resolve(f.id, outcome{err: fmt.Errorf("%w: %q", errListenEnded, reason)}, nil)
		}
		return
	case modern:
		if f := t.subscription(&m); f != nil {
			own = f
		}
	}
	if own == nil || !own.event(m) {
		t.cfg.Handler.Unsolicited(m)
	}
}

// progress finds the call to which a progress notification belongs and gives
// the host its own token back. forward is false for one that makes no sense to
// anybody: a token of ours whose call is over.
func (t *flights) progress(m *wire.Message) (f *flight, forward bool) {
	lit, ok := rawjson.Get(m.Params, "progressToken")
	if !ok {
		return nil, true
	}
	t.mu.Lock()
	f = t.tokens[tokenKey(lit)]
	t.mu.Unlock()
	if !t.cfg.Shared {
		return f, true
	}
	if f == nil {
		return nil, false
	}
	*m = m.WithParams(rawjson.Set(m.Params, f.token, "progressToken"))
	return f, true
}

// subscription finds the subscriptions/listen that a notification belongs to
// and puts the host's id of it in the place of ours.
func (t *flights) subscription(m *wire.Message) *flight {
	lit, ok := rawjson.Get(m.Params, "_meta", wire.MetaSubscriptionID)
	if !ok {
		return nil
	}
	f := t.get(ownID(lit))
	if f == nil || f.call.Method != wire.MethodListen {
		return nil
	}
	if f.call.HostID != nil {
		*m = m.WithParams(rawjson.Set(m.Params, f.call.HostID, "_meta", wire.MetaSubscriptionID))
	}
	return f
}
