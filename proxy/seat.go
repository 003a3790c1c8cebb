package proxy

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// seat is what one principal has of an upstream: the link that its modern hosts
// share, and the lists that came over its links. An upstream may keep state for
// a connection, so no two principals share one.
type seat struct {
	up        *upstream
	principal string
	// shared is the link used by modern hosts, which have no sessions, and to
	// fill the catalog where no session link is at hand.
	shared *slot
	// lists is the catalog as seen by every host of the principal.
	lists view

	// answering counts the requests of the shared link that are under way.
	answering atomic.Int64

	mu sync.Mutex
	// late: a list was answered without the upstream, so its coming up is a change.
	late bool
	// serving are the modern requests at the upstream over the shared link.
	serving map[*inbound]struct{}
	// toldLevel is the legacy link that was told to log from level on.
	toldLevel conn.Conn
	level     int
}

// seat returns the principal's seat at u. There are as many as principals.
func (u *upstream) seat(principal string) *seat {
	u.mu.Lock()
	defer u.mu.Unlock()
	if st := u.seats[principal]; st != nil {
		return st
	}
	st := &seat{up: u, principal: principal}
	st.shared = u.slot(u.gw.ctx, func(ctx context.Context) (conn.Conn, error) {
		return u.dial(ctx, nil, true, st)
	}, func(l conn.Conn, again bool) { u.gw.sharedUp(st, l, again) })
	if u.seats == nil {
		u.seats = map[string]*seat{}
	}
	u.seats[principal] = st
	return st
}

// Unsolicited takes a message of the shared link that belongs to no request.
func (st *seat) Unsolicited(m wire.Message) { st.up.gw.fromShared(st, m) }

// everySeat returns the seats that there are now.
func (u *upstream) everySeat() []*seat {
	u.mu.Lock()
	defer u.mu.Unlock()
	all := make([]*seat, 0, len(u.seats))
	for _, st := range u.seats {
		all = append(all, st)
	}
	return all
}

// seat returns the seat of s's principal at u.
func (s *session) seat(u *upstream) *seat { return u.seat(s.Principal) }

// anyone is a principal in whose name foldgate looks at upstreams of its own
// accord: to tell whether it is ready, and what there is.
func (g *Gateway) anyone() string {
	if names := g.cfg.PrincipalNames(); len(names) > 0 {
		return names[0]
	}
	return edge.LocalPrincipal
}

// setLate notes that a host was answered without the upstream.
func (st *seat) setLate() {
	st.mu.Lock()
	st.late = true
	st.mu.Unlock()
}

// tookLate reports, once, that hosts were answered without the upstream.
func (st *seat) tookLate() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	late := st.late
	st.late = false
	return late
}
