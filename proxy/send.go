package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// This file is the end of the chain: a call leaves for its upstream, and what
// can go wrong there gets its words.

// forward runs c down the chain and on to u.
func (g *Gateway) forward(fl *inbound, c *interceptor.Call, u *upstream.Server) (*interceptor.Result, error) {
	c.Target.Server, c.Target.To = u.Key, "upstream:"+u.Key
	fl.setCall(c)
	return g.through(fl.ctx, c, func(ctx context.Context, c *interceptor.Call) (*interceptor.Result, error) {
		return g.send(ctx, fl, c, u)
	})
}

// send is the end of the chain: the request leaves for the upstream. An
// upstream that forgot the session did nothing, so it is asked once more, in a
// new one.
func (g *Gateway) send(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream.Server) (*interceptor.Result, error) {
	res, err := g.sendObserved(ctx, fl, c, u)
	if errors.Is(err, conn.ErrSessionGone) && ctx.Err() == nil {
		return g.sendObserved(ctx, fl, c, u)
	}
	return res, err
}

// sendOnce puts the request on the link that it belongs to, in the upstream's
// era, and waits for the response.
func (g *Gateway) sendOnce(ctx context.Context, fl *inbound, c *interceptor.Call, u *upstream.Server) (*interceptor.Result, error) {
	l, err := u.Connection(ctx, fl.s.scope(fl.modern))
	if err != nil {
		return nil, upstreamDown(ctx, u, err)
	}
	fl.s.mu.Lock()
	fl.to = u.Key
	fl.s.mu.Unlock()
	if u.Config.TimeoutSeconds > 0 {
		limit := time.Duration(u.Config.TimeoutSeconds) * time.Second
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, &interceptor.Refusal{
			Reason: "timeout", Code: "upstream_timeout", Status: 504,
			Message: fmt.Sprintf("%s did not answer within %s (timeout_seconds of upstream %s) and was cancelled; ask for less, or have the limit raised", c.Target.Name, limit, u.Key),
		})
		defer cancel()
	}
	if fl.modern {
		defer fl.s.tenant(u).enter(fl)()
	}
	c.Target.Forward = withTraceparent(c.Target.Forward, c.Outgoing())
	switch {
	case fl.modern && !l.Info().Modern():
		return g.sendParked(ctx, fl, c, u, l)
	case !fl.modern && l.Info().Modern():
		return g.sendRounds(ctx, fl, c, u, l)
	}
	m, err := fl.callInTurn(ctx, c, u, l, c.Target.Forward)
	if err != nil {
		return nil, callFault(ctx, u, c, err)
	}
	if _, task := rawjson.Get(c.Target.Params, "task"); task || strings.HasPrefix(c.Target.Method, "tasks/") {
		fl.s.noteTask(m.Result, u, c)
	}
	return resultOf(m), nil
}

// caller takes what the server u sends over l while it handles the request fl.
type caller struct {
	fl *inbound
	u  *upstream.Server
	l  conn.Conn
	// passage orders the response among the messages of u; nil: they have no order.
	passage   *passage
	departure departure // set by Answered
}

// Message takes a notification or a request.
func (r *caller) Message(m wire.Message) { r.fl.s.gw.fromCall(r.fl, r.u, r.l, m) }

// Answered gives the response its place among the messages of u.
func (r *caller) Answered() {
	if r.passage != nil {
		r.departure = r.passage.depart(r.fl.s.gw)
	}
}

// request describes c to the connection of u. r takes what u sends meanwhile.
func (fl *inbound) request(g *Gateway, c *interceptor.Call, u *upstream.Server, r conn.Caller, params json.RawMessage) *conn.Request {
	var arguments json.RawMessage
	if len(fl.params) > 0 {
		arguments, _ = rawjson.Get(params, "arguments") // as they go out: scrub.arguments may have redacted them
	}
	return &conn.Request{
		Method: c.Target.Method, Params: params, Extra: c.Target.Extra, Header: bindHeaders(c.Target.Header, fl.params, arguments), HostID: fl.ex.Msg.ID,
		Caller: r, Call: c,
	}
}

// resultOf is a response as a result of the chain.
func resultOf(m wire.Message) *interceptor.Result {
	return &interceptor.Result{Body: m.Result, Error: m.Error, Extra: m.Extra}
}

// upstreamDown is a call that never left.
func upstreamDown(ctx context.Context, u *upstream.Server, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_unavailable", Status: 502, Err: err,
		Message: fmt.Sprintf("%v. Nothing was sent; try again in a few seconds, or go on without the tools of %s", err, u.Key)}
}

// callFault is a call that left and did not come back.
func callFault(ctx context.Context, u *upstream.Server, c *interceptor.Call, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, conn.ErrClosed) || errors.Is(err, conn.ErrSessionGone) {
		return &interceptor.Refusal{Reason: "upstream", Code: "upstream_crashed", Status: 502, Err: err,
			Message: fmt.Sprintf("upstream %s ended while it handled %s: %v. The call may have had an effect; the upstream is started again with the next call", u.Key, c.Target.Name, err)}
	}
	return &interceptor.Refusal{Reason: "upstream", Code: "upstream_failed", Status: 502, Err: err, Message: fmt.Sprintf("upstream %s: %v", u.Key, err)}
}

// task is what tasks/* need to know of the call that became one.
type task struct {
	upstream string // its key
	tool     string
	branch   string // id of the branch that pays for the result; "" in main
}

// maxTasks is how many tasks a session remembers. Where it has forgotten one,
// its upstream is found by asking each, and whoever asks pays.
const maxTasks = 1000

// noteTask remembers which upstream minted a task, to route tasks/* to it, and
// by which call c; of too many it forgets the oldest.
func (s *session) noteTask(result []byte, u *upstream.Server, c *interceptor.Call) {
	id, ok := rawjson.GetString(result, "task", "taskId")
	if !ok {
		if id, ok = rawjson.GetString(result, "taskId"); !ok {
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, known := s.tasks[id]
	if !known {
		if len(s.minted) == maxTasks {
			delete(s.tasks, s.minted[0])
			s.minted = slices.Delete(s.minted, 0, 1)
		}
		s.minted = append(s.minted, id)
	}
	if t.upstream = u.Key; c.Target.Method == "tools/call" {
		if t.tool = c.Target.Name; c.Attribution.Branch != nil {
			t.branch = c.Attribution.Branch.ID
		}
	}
	s.tasks[id] = t
}

// maxSubscriptions is how many resources one session, or one listen, may be told of.
const maxSubscriptions = 1000

func tooManySubscriptions() *wire.Error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf("at most %d resources can be subscribed to at once: end some first, or ask for fewer", maxSubscriptions)}
}

// noteSubscription keeps what must be made again when the upstream restarts. It
// reports whether there was none yet; ok is false where there are too many.
func (s *session) noteSubscription(u *upstream.Server, uri string) (fresh, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, uris := range s.subs {
		n += len(uris)
	}
	fresh = !s.subs[u.Key][uri]
	if fresh && n >= maxSubscriptions {
		return false, false
	}
	if s.subs[u.Key] == nil {
		s.subs[u.Key] = map[string]bool{}
	}
	s.subs[u.Key][uri] = true
	return fresh, true
}

// dropSubscription forgets one that ended, or never began.
func (s *session) dropSubscription(u *upstream.Server, uri string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.subs[u.Key], uri)
}
