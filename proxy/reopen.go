package proxy

import (
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
)

// This file restores, over a link that is new, what hosts had set up over the
// one before it. watch.go does the same for subscriptions at modern upstreams.

// ownUp prepares a session's own link: what the host had set up on the last
// one is made again.
func (s *session) ownUp(u *upstream, l conn.Conn, again bool) {
	s.mu.Lock()
	level := s.logLevel
	var uris []string
	for uri := range s.subs[u.key] {
		uris = append(uris, uri)
	}
	s.mu.Unlock()
	if level != nil && !l.Info().Modern() && u.capability("logging") != nil {
		_, _ = l.Call(s.ctx, &conn.Request{Method: "logging/setLevel", Params: level})
	}
	if l.Info().Modern() {
		s.gw.background(func() { s.gw.watchLists(s.seat(u), s, l) })
	}
	s.gw.background(func() { s.revive(u, l) })
	late := s.seat(u).tookLate()
	if !again && !late {
		return
	}
	for _, uri := range uris {
		if l.Info().Modern() {
			break // watchResource sees to it
		}
		if _, err := l.Call(s.ctx, &conn.Request{Method: "resources/subscribe", Params: rawjson.Marshal(map[string]string{"uri": uri})}); err != nil {
			u.log.Warn("subscription could not be made again", "uri", uri, "err", err)
		}
	}
	s.gw.allChanged(s.seat(u), s)
}

// revive opens a session's own link again as soon as it dies, if the host waits
// for updates over it. Otherwise the next call does.
func (s *session) revive(u *upstream, l conn.Conn) {
	<-l.Done()
	for fails := 0; s.ctx.Err() == nil; fails++ {
		s.mu.Lock()
		wanted := len(s.subs[u.key]) > 0
		s.mu.Unlock()
		if !wanted {
			return
		}
		if _, err := s.linkFor(s.ctx, u, false); err == nil {
			return
		}
		if retryBackoff.Wait(s.ctx, fails) != nil {
			return
		}
	}
}

// sharedUp prepares a shared link. After a restart the lists may have changed.
func (g *Gateway) sharedUp(st *seat, l conn.Conn, again bool) {
	if l.Info().Modern() && st.up.cfg.Builtin == "" {
		g.background(func() { g.watchLists(st, nil, l) })
	}
	if late := st.tookLate(); again || late {
		g.allChanged(st, nil)
	}
}

// allChanged announces a change of every list that the upstream offers.
func (g *Gateway) allChanged(st *seat, s *session) {
	for _, k := range []listKind{listTools, listPrompts, listResources} {
		if st.up.capability(kinds[k].capability) != nil {
			g.listChanged(st, s, kinds[k].changed)
		}
	}
}
