package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A notification about a task with a result of over maxTaskNews tokens does not reach the host, which
// gets the result by tasks/get, folded.
const maxTaskNews = 1000

// Admit decides on a notification to a host: it takes the secrets out of m, charges the notification to
// the limits and to its branch, and records it. It must not be sent if there is an error. What the branch
// can't pay ends it, and the limits keep theirs. foldgate's own words, without a server, are free.
func (e *Engine) Admit(ctx context.Context, n interceptor.Notification, m *interceptor.Message) error {
	ctx = context.WithoutCancel(ctx) // the host is told also how a session ends
	m.Server = n.Server
	if e.Boundary.ToHost(ctx, m); n.Server != "" && m.Verdict < interceptor.Blocked && e.Features.Has(Meter) {
		n.Tokens = e.Tokens.Sent(n.Method, m.Body, m.Extra)
		e.charge(ctx, &n)
	}
	if e.Features.Has(Trace) {
		if err := e.Recorder.Notification(n, m); err != nil {
			e.Log.Error("notification withheld", "method", n.Method, "err", err)
			return err
		}
	}
	switch {
	case m.Verdict >= interceptor.Blocked:
		e.Log.Warn("notification withheld: it could not be checked for secrets, or holds one", "upstream", n.Server, "method", n.Method)
		return errors.New("foldgate withheld the notification: it could not be checked for secrets, or holds one that the configuration blocks")
	case n.Refused != "":
		e.Log.Debug("notification not delivered", "upstream", n.Server, "method", n.Method, "rule", n.Refused)
		return fmt.Errorf("foldgate did not deliver the notification (%s): it is too large, or its branch or a limit has too few tokens left", n.Refused)
	}
	return nil
}

// charge charges a notification to the limits, then to its branch, and notes on it what refuses it.
func (e *Engine) charge(ctx context.Context, n *interceptor.Notification) {
	if n.Tokens > maxTaskNews && strings.HasPrefix(n.Method, wire.TaskNews) {
		n.Refused = "too_large"
		return
	}
	o := interceptor.Origin{Identity: interceptor.Identity{Principal: n.Principal, Team: n.Team}, Session: n.Session, Revision: n.Revision}
	spend, refused := e.Limits().Pay(ctx, &o, n.Server, n.ForTool, n.Branch != "", n.Tokens)
	if refused != "" {
		n.Refused = refused
		return
	}
	n.Paid, n.Unconfirmed = true, !spend.Confirmed()
	if e.Branches.Pay(n.Branch, n.Tokens) < n.Tokens {
		n.Refused = "budget_exhausted"
	}
}
