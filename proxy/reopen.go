package proxy

import (
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// This file restores, over a link that is new, what hosts had set up over the
// one before it. watch.go does the same for subscriptions at modern upstreams.

// Opened prepares a session's own link: what the host had set up on the last
// one is made again.
func (s *session) Opened(u *upstream.Server, l conn.Conn, again bool) {
	s.mu.Lock()
	level := s.logLevel
	var uris []string
	for uri := range s.subs[u.Key] {
		uris = append(uris, uri)
	}
	s.mu.Unlock()
	if level != nil && !l.Info().Modern() && u.Capability("logging") != nil {
		_, _ = l.Call(s.ctx, &conn.Request{Method: "logging/setLevel", Params: level})
	}
	s.gw.background(func() { s.revive(u, l) })
	late := s.tenant(u).tookLate()
	if !again && !late {
		return
	}
	for _, uri := range uris {
		if l.Info().Modern() {
			break // watchResource sees to it
		}
		if _, err := l.Call(s.ctx, &conn.Request{Method: "resources/subscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})}); err != nil {
			u.Log.Warn("subscription could not be made again", "uri", uri, "err", err)
		}
	}
	s.gw.allChanged(s.tenant(u), s)
}

// revive opens a session's own link again as soon as it dies, if the host waits
// for updates over it. Otherwise the next call does.
func (s *session) revive(u *upstream.Server, l conn.Conn) {
	<-l.Done()
	for fails := 0; s.ctx.Err() == nil; fails++ {
		s.mu.Lock()
		wanted := len(s.subs[u.Key]) > 0
		s.mu.Unlock()
		if !wanted {
			return
		}
		if _, err := u.Connection(s.ctx, s.scope(false)); err == nil {
			return
		}
		if upstream.Backoff.Wait(s.ctx, fails) != nil {
			return
		}
	}
}

// allChanged announces a change of every list that the upstream offers.
func (g *Gateway) allChanged(st *tenant, s *session) {
	for _, k := range []listKind{listTools, listPrompts, listResources} {
		if st.up.Capability(kinds[k].capability) != nil {
			g.listChanged(st, s, kinds[k].changed)
		}
	}
}
