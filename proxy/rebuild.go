package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Rebuilt is the result of [RebuildLimits].
type Rebuilt struct {
	Counts  int // that were compared with the traces
	Raised  []RaisedCount
	Missing []MissingRecords
}

// RaisedCount is a count that a rebuild has raised.
type RaisedCount struct {
	limits.Raised
	Undoes time.Time // when the operator had reset it; zero if the traces have no reset of it
}

// MissingRecords are records that a journal no longer has. What they charged is not counted.
type MissingRecords struct {
	Dir         string
	First, Last uint64
	Before      time.Time // of the record after them; zero if they were at the end
}

// RebuildLimits raises the counts of the limits in c to what the journals in dirs say. It lowers none,
// so it can be repeated. The journals must be those of all gateways that share the store.
func RebuildLimits(ctx context.Context, c config.Config, dirs []string, log *slog.Logger) (done Rebuilt, err error) {
	all, store, err := limitsAndStore(c, log, slog.New(slog.DiscardHandler)) // that counts are lost is no news
	if err != nil {
		return done, err
	}
	named := &interceptor.Limits{Limits: all, Shown: c.ShownName, Stateless: wire.VersionModern}
	resets := map[[2]string]time.Time{} // by limit and subject, the last one
	charges := func(yield func(limits.Charge, error) bool) {
		for _, dir := range dirs {
			next, open := uint64(1), requests{named, c.Budgets.Limits, map[string]limits.Charge{}}
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
				if limit, subject, ok := readReset(r); ok {
					resets[[2]string{limit, subject}] = r.Time()
				}
				for _, one := range open.charges(r) {
					if !yield(one, nil) {
						return
					}
				}
			}
			for _, one := range open.byID { // they are under way, or their gateway was killed
				if !yield(one, nil) {
					return
				}
			}
			if last >= next {
				done.Missing = append(done.Missing, MissingRecords{Dir: dir, First: next, Last: last})
			}
		}
	}
	var raised []limits.Raised
	done.Counts, raised, err = all.Rebuild(ctx, charges)
	for _, r := range raised {
		done.Raised = append(done.Raised, RaisedCount{r, resets[[2]string{r.Limit, r.Subject}]})
	}
	return done, errors.Join(err, store.Close())
}

// readReset returns the limit and the subject that the operator reset, if a record is of that and its window
// has not ended.
func readReset(r *trace.Record) (limit, subject string, ok bool) {
	if r.Kind != trace.KindBudget+"reset" {
		return "", "", false
	}
	var reset struct {
		Limit, Subject string
		ResetsAt       time.Time `json:"resets_at"`
	}
	err := json.Unmarshal(r.Payload, &reset) // it may be erased
	return reset.Limit, reset.Subject, err == nil && (reset.ResetsAt.IsZero() || time.Now().Before(reset.ResetsAt))
}

// limitsAndStore opens the limits of a configuration without a gateway. The caller closes the store.
// lost gets the warning that counts are lost.
func limitsAndStore(c config.Config, log, lost *slog.Logger) (*limits.Limits, limits.Store, error) {
	if len(c.Budgets.Limits) == 0 {
		return nil, nil, errNoLimits
	}
	store, err := engine.OpenLimitStore(c, lost, nil)
	if err != nil {
		return nil, nil, err
	}
	all, err := limits.New(c.Budgets.Limits, store, limits.Options{Wait: time.Duration(c.Budgets.WaitMS) * time.Millisecond, Log: log})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("budgets.limits: %w", err), store.Close())
	}
	return all, store, nil
}

// StoredBudgets returns what a limit in c has left, that of all if it is "". It needs the store and no gateway.
func StoredBudgets(ctx context.Context, c config.Config, limit string, log *slog.Logger) ([]control.Budget, error) {
	if err := checkLimit(&c, limit); err != nil || len(c.Budgets.Limits) == 0 {
		return nil, err
	}
	all, store, err := limitsAndStore(c, log, log)
	if err != nil {
		return nil, err
	}
	states, err := all.All(ctx)
	return ofLimit(states, limit), errors.Join(err, store.Close())
}

// requests are those without a response so far: what limits were charged before they had an effect.
type requests struct {
	limits *interceptor.Limits
	all    []limits.Limit
	byID   map[string]limits.Charge // of their records
}

// maxRequests bounds requests. Of a trace with more, what these were charged is counted at once, and
// again with their responses.
const maxRequests = 1 << 18

// charges returns what a record says that limits were charged.
func (open requests) charges(r *trace.Record) (all []limits.Charge) {
	a := r.AuditOrEmpty()
	o := interceptor.Origin{Identity: interceptor.Identity{Principal: a.Principal, Team: a.Team}, Session: a.Session, Revision: a.Revision}
	inBranch := slices.ContainsFunc(strings.Split(r.Context, "/"), folding.IsBranchID)
	c := limits.Charge{At: r.Time(), Use: open.limits.Use(&o, a.Server, cmp.Or(a.Tool, a.ForTool), inBranch)}
	request, found := limits.Charge{}, false
	if a.Model != nil {
		c.Use.Model, c.Tokens = true, int64(a.Model.Input+a.Model.Output)
		return []limits.Charge{c}
	}
	switch {
	case strings.HasPrefix(r.Kind, trace.KindRequest) && a.Args != nil:
		c.Tokens, c.Calls = int64(*a.Args), 1
		return open.add(r.ID, c)
	case strings.HasPrefix(r.Kind, trace.KindResponse) && !a.Lost:
		for _, id := range r.CorrelationID {
			if request, found = open.byID[id]; found {
				delete(open.byID, id)
				break
			}
		}
	case !strings.HasPrefix(r.Kind, trace.KindNotification) && a.LeftOut == 0:
		return nil
	}
	t, control := a.Tokens, a.Server == "" && slices.Contains([]string{"branch_create", "branch_return", "branch_status"}, a.Tool)
	switch {
	case t == nil:
		return nil
	case t.Charged != nil:
		if c.Tokens = int64(*t.Charged); c.Tokens > 0 {
			if control {
				c.Use.Branch = t.InBranch
			}
			all = append(all, c)
		}
		return all
	case found: // in the window of its time, and of what was known of its server then
		c.Use = request.Use
	case r.Blocked() && t.Out == 0 && open.refuse(a.Decision.Rule): // it was not made
		return nil
	case control: // only the message of a branch is charged
		if c.Tokens = int64(t.Delivered); a.Tool == "branch_create" {
			return all
		}
		if path := r.Context; a.Tool == "branch_return" { // a host that names no branch is in the one that it returns
			c.Use.Branch = strings.Contains(path, "/") && folding.IsBranchID(path[strings.LastIndexByte(path, '/')+1:])
		}
		return append(all, c)
	case strings.HasPrefix(r.Kind, trace.KindResponse):
		request = limits.Charge{At: c.At, Use: c.Use, Tokens: int64(t.In), Calls: 1}
	}
	if request.Calls > 0 {
		all = append(all, request)
	}
	if c.Tokens = int64(t.Delivered); c.Tokens == 0 {
		return all
	}
	c.Use = open.limits.Reading(c.Use, a.Read)
	return append(all, c)
}

// add notes the charge of a request, by the id of its record. It returns those of the requests that it forgets.
func (open requests) add(id string, c limits.Charge) (all []limits.Charge) {
	if len(open.byID) == maxRequests {
		all = slices.Collect(maps.Values(open.byID))
		clear(open.byID)
	}
	open.byID[id] = c
	return all
}

// refuse reports whether a rule is that of a call which the limits refused.
func (open requests) refuse(rule string) bool {
	return rule == trace.RuleUnavailable || slices.ContainsFunc(open.all, func(l limits.Limit) bool { return l.Name == rule })
}
