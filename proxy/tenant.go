package proxy

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// tenant is what one principal has of an upstream beside the connections: the
// lists that came over them, and what its modern hosts do there.
type tenant struct {
	up        *upstream.Server
	principal string
	// lists is the catalog as seen by every host of the principal.
	lists view

	// answering counts the requests of the shared connection that are under way.
	answering atomic.Int64

	mu sync.Mutex
	// late: a list was answered without the upstream, so its coming up is a change.
	late bool
	// serving are the modern requests at the upstream over the shared connection.
	serving map[*inbound]struct{}
	// toldLevel is the legacy connection that was told to log from level on.
	toldLevel conn.Conn
	level     int
}

// tenants are made when they are first asked for. There are as many as
// principals and upstreams.
type tenants struct {
	mu  sync.Mutex
	all map[tenantKey]*tenant
}

type tenantKey struct {
	up        *upstream.Server
	principal string
}

// of returns the tenant of a principal at u.
func (ts *tenants) of(u *upstream.Server, principal string) *tenant {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	key := tenantKey{u, principal}
	t := ts.all[key]
	if t == nil {
		if ts.all == nil {
			ts.all = map[tenantKey]*tenant{}
		}
		t = &tenant{up: u, principal: principal}
		ts.all[key] = t
	}
	return t
}

// at returns the tenants at u that there are now.
func (ts *tenants) at(u *upstream.Server) (out []*tenant) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for key, t := range ts.all {
		if key.up == u {
			out = append(out, t)
		}
	}
	return out
}

// tenant returns the tenant of s's principal at u.
func (s *session) tenant(u *upstream.Server) *tenant { return s.gw.tenants.of(u, s.Principal) }

// shared is the scope of the connection that the principal's hosts share.
func (t *tenant) shared() upstream.Scope { return upstream.Scope{Principal: t.principal} }

// conn returns the shared connection if it is open, else nil.
func (t *tenant) conn() conn.Conn { return t.up.Live(t.shared()) }

// setLate notes that a host was answered without the upstream.
func (t *tenant) setLate() {
	t.mu.Lock()
	t.late = true
	t.mu.Unlock()
}

// tookLate reports, once, that hosts were answered without the upstream.
func (t *tenant) tookLate() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	late := t.late
	t.late = false
	return late
}

// sharedOwner owns the connections that the hosts of a principal share.
type sharedOwner struct {
	g         *Gateway
	principal string
}

// Unsolicited takes a message that belongs to no request.
func (o sharedOwner) Unsolicited(u *upstream.Server, m wire.Message) {
	o.g.fromShared(o.g.tenants.of(u, o.principal), m)
}

// Opened announces that the lists may have changed, after a restart or if hosts
// were answered without the upstream.
func (o sharedOwner) Opened(u *upstream.Server, _ conn.Conn, again bool) {
	t := o.g.tenants.of(u, o.principal)
	if late := t.tookLate(); again || late {
		o.g.allChanged(t, nil)
	}
}

// anyone is the principal in whose name foldgate looks at upstreams by itself:
// to tell whether it is ready, and what there is.
func (g *Gateway) anyone() string {
	if names := g.cfg.PrincipalNames(); len(names) > 0 {
		return names[0]
	}
	return edge.LocalPrincipal
}

// cleaner takes secrets out of what upstreams say.
type cleaner struct{ boundary *interceptor.Boundary }

// CleanText returns a text for the log or an error.
func (c cleaner) CleanText(text string) string { return c.boundary.Text(text) }

// CleanJSON returns a value for the disk.
func (c cleaner) CleanJSON(ctx context.Context, value []byte) ([]byte, error) {
	m := interceptor.Message{Body: value, Always: true}
	c.boundary.Inbound(ctx, &m)
	return m.Body, m.Err()
}
