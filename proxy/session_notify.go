package proxy

import (
	"context"
	"encoding/json"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Notify takes a notification of the host.
func (s *session) Notify(m wire.Message) {
	g := s.gw
	g.recordHostNotification(s, m)
	switch m.Method {
	case "notifications/initialized":
		// Each link sent its own when it was opened.
	case "notifications/cancelled":
		s.cancelFlight(m.Params)
	default:
		m.Params = stripOurMeta(m.Params)
		took := s.notes.put(g, len(m.Raw), func() {
			for u, l := range s.targets(m.Method) {
				msg := interceptor.Message{Server: u.Key, Body: m.Params, Extra: m.Extra}
				if g.boundary.Outbound(s.ctx, &msg); msg.Verdict >= interceptor.Blocked {
					u.Log.Warn("notification of the host withheld: it could not be checked for secrets, or holds one", "method", m.Method)
					continue
				}
				out := m
				out.Params, out.Extra = msg.Body, msg.Extra
				// Not s.ctx: a modern session is over with its notification.
				ctx, cancel := context.WithTimeout(g.ctx, asideTimeout)
				err := l.Notify(ctx, out)
				cancel()
				if err != nil {
					u.Log.Debug("notification lost", "method", m.Method, "err", err)
				}
			}
		})
		if !took {
			g.log.Debug("notification lost: too many wait for the upstreams", "method", m.Method)
		}
	}
}

// targets returns the links that a notification of the host goes to: those
// that are open. One that foldgate does not know may be all that its upstream
// waits for, so for that a session that has none yet opens them.
func (s *session) targets(method string) map[*upstream.Server]conn.Conn {
	links := s.openLinks()
	if len(links) > 0 || method == "notifications/roots/list_changed" || method == "notifications/progress" {
		return links
	}
	for _, u := range s.gw.ups {
		if u.Builtin() {
			continue
		}
		if l, err := u.Connection(s.ctx, s.scope(s.Modern)); err == nil {
			links[u] = l
		}
	}
	return links
}

// cancelFlight ends the request that a notifications/cancelled names. Some
// hosts cancel calls that are long finished: those are ignored.
func (s *session) cancelFlight(params json.RawMessage) {
	id, ok := rawjson.Get(params, "requestId")
	if !ok {
		return
	}
	reason, _ := rawjson.GetString(params, "reason")
	if reason == "" {
		reason = errCancelledByHost.Error()
	}
	s.mu.Lock()
	fl := s.flights[string(id)]
	s.mu.Unlock()
	if fl == nil {
		return
	}
	s.mu.Lock()
	said := interceptor.Message{Server: fl.to, Text: reason}
	s.mu.Unlock()
	if s.gw.boundary.Outbound(s.ctx, &said); said.Verdict >= interceptor.Blocked {
		said.Text = errCancelledByHost.Error()
	}
	fl.cancel(&cancelReason{said.Text})
}
