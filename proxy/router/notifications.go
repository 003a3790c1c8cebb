package router

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// asideTimeout bounds work that no host waits for.
const asideTimeout = 5 * time.Second

// notifications begins the methods of all notifications.
const notifications = "notifications/"

// Notify takes a notification of the host. It does not block. It drops a request without an id: a
// server would serve it without policy, limits and trace.
func (s *Session) Notify(m wire.Message) {
	if !strings.HasPrefix(m.Method, notifications) {
		fault := &wire.Error{Code: wire.CodeInvalidRequest, Message: "a request needs an id, and the method of a notification begins with " + notifications}
		s.refuseNotification(m.Method, trace.ReasonInvalid, fault.JSONRPCCode(), fault.Message)
		return
	}
	if err := s.rt.Recorder.Notification(s.fromHost(m.Method, "foldgate"), &interceptor.Message{Body: m.Params, Extra: m.Extra}); err != nil {
		s.rt.Log.Error("notification not recorded", "method", m.Method, "err", err)
	}
	switch m.Method {
	case wire.MethodInitialized: // each connection sent its own when it was opened
	case wire.MethodCancelled:
		s.cancelRequest(m.Params)
	default:
		m.Params = wire.WithoutOwnMeta(m.Params)
		if !s.outgoing.put(&s.rt.wg, len(m.Raw), func() { s.notifyServers(m) }) {
			s.refuseNotification(m.Method, trace.ReasonLimit, conn.RuleTooMany, "too many notifications wait for the upstreams")
		}
	}
}

// fromHost describes a notification of the host for the trace. to is "" if it goes nowhere.
func (s *Session) fromHost(method, to string) interceptor.Notification {
	return interceptor.Notification{From: s.traceName(), To: to, Session: s.ID, Principal: s.Principal, Method: method}
}

// refuseNotification records and logs a notification of the host that goes to no server. Of many it logs those
// that the trace has.
func (s *Session) refuseNotification(method, reason, rule, why string) {
	if count, due := s.rt.Recorder.Rejected(s.fromHost(method, ""), reason, rule, why); due {
		s.rt.Log.Warn("notifications of hosts dropped", "method", s.rt.echo(method), "reason", reason, "count", count)
	}
}

func (s *Session) notifyServers(m wire.Message) {
	for srv, c := range s.receivers(m.Method) {
		msg := interceptor.Message{Server: srv.Key, Body: m.Params, Extra: m.Extra}
		if s.rt.Boundary.ToServer(s.rt.lifetime, &msg); len(msg.Found) > 0 || msg.Verdict >= interceptor.Blocked { // the action depends on the server
			if err := s.rt.Recorder.Notification(s.fromHost(m.Method, srv.Name), &msg); err != nil {
				srv.Log.Error("notification not recorded", "method", m.Method, "err", err)
			}
		}
		if msg.Verdict >= interceptor.Blocked {
			srv.Log.Warn("notification of the host withheld: it could not be checked for secrets, or holds one", "method", m.Method)
			continue
		}
		out := m
		out.Params, out.Extra = msg.Body, msg.Extra
		// Not s.lifetime: the session of a single notification ends with it.
		ctx, cancel := context.WithTimeout(s.rt.lifetime, asideTimeout)
		if err := c.Send(ctx, out); err != nil {
			srv.Log.Debug("notification lost", "method", m.Method, "err", err)
		}
		cancel()
	}
}

// receivers returns the open connections, to which a notification of the host goes. The policy
// decides about one that foldgate does not know. If no connection is open, that notification opens
// them: the server may wait for it.
func (s *Session) receivers(method string) map[*upstream.Server]conn.Conn {
	open := map[*upstream.Server]conn.Conn{}
	known := method == wire.MethodRootsChanged || method == wire.MethodProgress
	servers := s.rt.Settings().Servers
	if !known {
		servers = s.permitted(method)
	}
	for _, srv := range servers {
		if c := srv.ConnectionIfOpen(s.scope); c != nil {
			open[srv] = c
		}
	}
	if len(open) > 0 || known {
		return open
	}
	for _, srv := range servers {
		if srv.Builtin() {
			continue
		}
		if c, err := srv.Connection(s.rt.lifetime, s.scope); err == nil {
			open[srv] = c
		}
	}
	return open
}

// permitted returns the servers to which the policy lets a notification go that foldgate does not
// know. It records the refusal of the others.
func (s *Session) permitted(method string) (servers []*upstream.Server) {
	st, rule, why := s.rt.Settings(), "", ""
	for _, srv := range st.Servers {
		if d := st.Rules.PermitNotification(s.identity(), srv.Key, method); d.Allowed {
			servers = append(servers, srv)
		} else {
			rule, why = d.Rule, d.Message
		}
	}
	if rule != "" {
		s.refuseNotification(method, trace.ReasonPolicy, rule, why)
	}
	return servers
}

// cancelRequest ends the request that a notifications/cancelled names. It ignores requests that
// are over.
func (s *Session) cancelRequest(params json.RawMessage) {
	id, _ := rawjson.Get(params, "requestId")
	reason, _ := rawjson.GetString(params, "reason")
	s.mu.Lock()
	r := s.pending[string(id)]
	server := ""
	if r != nil {
		server = r.server
	}
	s.mu.Unlock()
	if r == nil {
		return
	}
	msg := interceptor.Message{Server: server, Text: cmp.Or(reason, errCancelledByHost.Error())}
	if s.rt.Boundary.ToServer(s.lifetime, &msg); msg.Verdict >= interceptor.Blocked {
		msg.Text = errCancelledByHost.Error()
	}
	r.cancel(cancelled{errCancelledByHost, msg.Text})
}

// Unsolicited implements [upstream.Owner]: it takes messages of a server that belong to no
// request, on a connection of the session.
func (s *Session) Unsolicited(srv *upstream.Server, c conn.Conn, m wire.Message) {
	r, cause := s.inferCause(srv.Key)
	s.received(source{srv.Key, c, r, cause, true}, m)
}

// Undelivered implements [upstream.Owner].
func (s *Session) Undelivered(srv *upstream.Server, r conn.Undelivered) { s.undelivered(srv.Key, r) }

func (s *Session) undelivered(server string, r conn.Undelivered) {
	s.rt.undelivered(interceptor.Notification{Session: s.ID, Principal: s.Principal}, server, r)
}

// undelivered records a message of a server that goes to no host. n names the session and the principal of
// the connection. If the call is known, its own replace them.
func (rt *Router) undelivered(n interceptor.Notification, server string, r conn.Undelivered) {
	n.From, n.Server, n.Method = trace.UpstreamName(server), server, r.Message.Method
	if c := r.Call; c != nil {
		n.Session, n.Principal, n.Revision, n.Context, n.Correlates = c.Origin.Session, c.Origin.Principal, c.Origin.Revision, c.Attribution.Context, []string{c.Outcome.Record}
	}
	reason := trace.ReasonInvalid
	switch r.Rule {
	case conn.RuleShare:
		reason = trace.ReasonPolicy
	case conn.RuleTooMany:
		reason = trace.ReasonLimit
	}
	rt.Log.Debug("message of an upstream refused", "upstream", server, "method", n.Method, "rule", r.Rule)
	rt.Recorder.Rejected(n, reason, r.Rule, r.Text)
}

// received takes a message of a server. It is called from the connection's reader, as a [conn.Receiver] is.
func (s *Session) received(from source, m wire.Message) {
	switch {
	case m.IsRequest() && !s.Era.ServerRequests:
		s.undelivered(from.server, conn.Undelivered{Message: m, Rule: conn.RuleEra, Text: "a modern host is asked with input_required"})
	case m.IsRequest():
		s.forwardServerRequest(from, m)
	case catalog.ChangedKinds(m.Method) != nil:
		if srv := s.rt.Settings().Server(from.server); srv != nil { // else the configuration has it no longer
			s.rt.listChanged(srv, s.scope.Group, s, m.Method)
		}
	case m.Method == wire.MethodCancelled:
		s.withdrawServerRequest(from, m.Params)
	default:
		if from.inferred && m.Method == wire.MethodResourceUpdated && s.subscribed.has(from.server, m.Params) {
			from.r, from.cause = nil, cause{} // it is due to the subscription, not to a call
		}
		if token, ok := rawjson.Get(m.Params, "progressToken"); ok && from.inferred && m.Method == wire.MethodProgress {
			from.r, from.cause = nil, s.recentlyEnded(from.server, wire.TokenKey(token)) // no open call has the token
		}
		if !s.inOrder(from.server, len(m.Params), func() {
			if !from.inferred && m.Method == wire.MethodProgress && from.r.lifetime.Err() != nil {
				return // the call failed meanwhile, and has no progress after its end
			}
			s.relay(from, m)
		}) {
			s.undelivered(from.server, conn.Undelivered{Message: m, Rule: conn.RuleTooMany, Text: "too many messages wait for the host"})
		}
	}
}

// relay hands a notification of a server, or of foldgate's own tools, to the host.
func (s *Session) relay(from source, m wire.Message) {
	if s.lifetime.Err() != nil {
		return
	}
	n := interceptor.Notification{From: trace.UpstreamName(from.server), Server: from.server, ForTool: from.tool}
	if from.server == "" {
		n.From = "foldgate"
	}
	if from.call != nil {
		n.Correlates, n.Context = []string{from.call.Outcome.Record}, from.call.Attribution.Context
	} else if from.branch != nil {
		n.Context = from.branch.Context
	}
	var of task
	switch {
	case strings.HasPrefix(m.Method, wire.TaskNews):
		id, _ := rawjson.GetString(m.Params, "taskId")
		of = s.tasks.task(id)
	case m.Method == wire.MethodProgress && from.r == nil: // the token of a task lasts as long as the task
		token, _ := rawjson.Get(m.Params, "progressToken")
		of = s.tasks.ofToken(from.server, wire.TokenKey(token))
	}
	n.ForTool, n.Branch = cmp.Or(of.tool, n.ForTool), cmp.Or(of.branch, branchID(from.branch))
	s.deliver(from.r, n, m)
}

// deliver hands a notification to the host, on the stream of r if there is one. n says where it comes from, and why.
func (s *Session) deliver(r *request, n interceptor.Notification, m wire.Message) {
	n.To, n.Session, n.Principal, n.Team, n.Method = s.traceName(), s.ID, s.Principal, s.identity().Team, m.Method
	if s.scope.Own == nil {
		n.Revision = wire.VersionModern
	}
	msg := interceptor.Message{Method: m.Method, Body: m.Params, Extra: m.Extra}
	if s.rt.Admit(s.lifetime, n, &msg) != nil {
		return
	}
	m.Params, m.Extra = msg.Body, msg.Extra
	if err := s.send(r, m); err != nil {
		s.rt.Log.Debug("notification could not be delivered", "method", m.Method, "err", err)
	}
}

// listChanged forgets the lists that changed and tells the hosts of a group. s is the session whose
// own connection said so, nil for a shared one.
func (rt *Router) listChanged(srv *upstream.Server, g upstream.Group, s *Session, method string) {
	changed := catalog.ChangedKinds(method)
	for _, p := range rt.groups() { // other groups may have no connection open to be told over
		p.of(srv).forget(changed)
	}
	if s != nil {
		if own := s.ownCache(srv); own != nil {
			own.forget(changed)
		}
		s.announce(method)
	} else {
		for _, other := range rt.Sessions(g.Principal) { // the connections of their groups may not be open
			if other.scope.Own == nil || srv.SharesConnections() || !srv.State(other.scope).Open { // the others are told over their own
				other.announce(method)
			}
		}
	}
	rt.tellListens(g, method)
}

// allChanged announces a change of every list that a server offers, by info.
func (rt *Router) allChanged(srv *upstream.Server, info conn.Info, g upstream.Group, s *Session) {
	for _, k := range []catalog.Kind{catalog.Tools, catalog.Prompts, catalog.Resources} {
		if info.Capability(k.Capability()) != nil {
			rt.listChanged(srv, g, s, k.Changed())
		}
	}
}

// changeDelay coalesces bursts of list_changed into one message a list.
const changeDelay = 20 * time.Millisecond

// announce tells the host that a list changed, once for a burst, and not before the answer to initialize.
func (s *Session) announce(method string) {
	if s.ignores(method) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.revision == "" || s.changes[method] {
		return
	}
	s.changes[method] = true
	s.rt.wg.Go(func() {
		if s.greeted != nil {
			<-s.greeted.Done()
		}
		select {
		case <-time.After(changeDelay):
		case <-s.lifetime.Done():
			return
		}
		s.mu.Lock()
		delete(s.changes, method)
		s.mu.Unlock()
		s.deliver(nil, interceptor.Notification{From: "foldgate"}, wire.Message{Method: method})
	})
}
