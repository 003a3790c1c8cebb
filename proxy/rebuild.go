package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Rebuilt is the result of [RebuildLimits].
type Rebuilt struct {
	Counts  int // that were compared with the traces
	Missing []MissingRecords
}

// MissingRecords are records that a journal no longer has. What they charged is not counted.
type MissingRecords struct {
	Dir         string
	First, Last uint64
	Before      time.Time // of the record after them; zero if they were at the end
}

// RebuildLimits raises the counts of the limits in c to what the journals in dirs say. It lowers none,
// so it can be repeated. The journals must be those of all gateways that share the store. Of a
// branch_return the whole answer counts, because the trace does not have the tokens of its message.
func RebuildLimits(ctx context.Context, c config.Config, dirs []string, log *slog.Logger) (done Rebuilt, err error) {
	if len(c.Budgets.Limits) == 0 {
		return done, errNoLimits
	}
	store, err := engine.OpenLimitStore(c)
	if err != nil {
		return done, err
	}
	all, err := limits.New(c.Budgets.Limits, store, limits.Options{Wait: time.Duration(c.Budgets.WaitMS) * time.Millisecond, Log: log})
	if err != nil {
		return done, errors.Join(fmt.Errorf("budgets.limits: %w", err), store.Close())
	}
	shown := func(server, tool string) string { return engine.Shown(&c, server, tool) }
	refusedByLimit := func(rule string) bool {
		return rule == "limits_unavailable" || slices.ContainsFunc(c.Budgets.Limits, func(l limits.Limit) bool { return l.Name == rule })
	}
	charges := func(yield func(limits.Charge, error) bool) {
		for _, dir := range dirs {
			next := uint64(1)
			// What a process reserved that was killed is in no trace: given back later, it would be lacking.
			err := os.Remove(filepath.Join(filepath.Dir(dir), engine.ReservesFile))
			if errors.Is(err, os.ErrNotExist) {
				err = nil
			}
			last, headErr := trace.Last(dir) // before the records, so that it must be among them
			if err = errors.Join(err, headErr); err != nil {
				yield(limits.Charge{}, err)
				return
			}
			for r, err := range query.Scan(ctx, dir, query.Filter{Journal: true}) {
				if err != nil {
					yield(limits.Charge{}, err)
					return
				}
				if r.Seq > next {
					done.Missing = append(done.Missing, MissingRecords{dir, next, r.Seq - 1, r.Time()})
				}
				next = r.Seq + 1
				charge, ok := chargeOf(r, shown, refusedByLimit)
				if !ok {
					continue
				}
				for _, one := range divided(charge, r.Audit, shown) {
					if !yield(one, nil) {
						return
					}
				}
			}
			if last >= next {
				done.Missing = append(done.Missing, MissingRecords{Dir: dir, First: next, Last: last})
			}
		}
	}
	done.Counts, err = all.Rebuild(ctx, iter.Seq2[limits.Charge, error](charges))
	return done, errors.Join(err, store.Close())
}

// divided returns the charges of a call. If it read a stored result, what was delivered counts also for
// the tools that made the result.
func divided(c limits.Charge, a *trace.Audit, shown func(server, tool string) string) []limits.Charge {
	if a.Read == nil {
		return []limits.Charge{c}
	}
	delivered := limits.Charge{At: c.At, Use: c.Use, Tokens: int64(a.Tokens.Delivered)}
	c.Tokens -= delivered.Tokens
	for _, t := range a.Read.Makers() {
		name := t.Tool
		if t.Server != "" {
			name = shown(t.Server, t.Tool)
		}
		delivered.Use = delivered.Use.By(t.Server, name)
	}
	return []limits.Charge{c, delivered}
}

// chargeOf returns what a record says that limits were charged. shown returns the name under which
// hosts see a tool of a server. refusedByLimit tells the rules of calls that no limit was charged for.
func chargeOf(r *trace.Record, shown func(server, tool string) string, refusedByLimit func(rule string) bool) (c limits.Charge, ok bool) {
	a := r.AuditOrEmpty()
	call := strings.HasPrefix(r.Kind, trace.KindResponse)
	if a.Tokens == nil || !call && !strings.HasPrefix(r.Kind, trace.KindNotification) {
		return c, false
	}
	if r.Blocked() && a.Tokens.Out == 0 && refusedByLimit(a.Decision.Rule) { // it was not made
		return c, false
	}
	c = limits.Charge{At: r.Time(), Tokens: int64(a.Tokens.In + a.Tokens.Delivered), Use: limits.Use{
		Principal: a.Principal, Team: a.Team, Session: a.Session, Server: a.Server,
		Branch: slices.ContainsFunc(strings.Split(r.Context, "/"), folding.IsBranchID),
	}}
	if call {
		c.Calls = 1
	}
	if a.Era >= wire.VersionModern {
		c.Use.Session = ""
	}
	switch c.Use.Tool = cmp.Or(a.Tool, a.ForTool); {
	case c.Use.Tool == "":
	case a.Server != "":
		c.Use.Tool = shown(a.Server, c.Use.Tool)
	case a.Tool == "branch_return" || a.Tool == "branch_status": // only the message of a branch is charged
		c.Tokens, c.Calls = int64(a.Tokens.Delivered), 0
		if path := r.Context; a.Tool == "branch_return" { // a host that names no branch is in the one that it returns
			c.Use.Branch = folding.IsBranchID(path[max(strings.LastIndexByte(path, '/'), 0):]) && strings.Count(path, "/") > 0
		}
	case a.Tool == "branch_create": // free
		return c, false
	}
	return c, true
}
