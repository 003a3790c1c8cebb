package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/proxy/control"
)

// operator is the gateway as its operator sees it. It implements [control.Gateway].
type operator struct{ *Gateway }

// OpenBranches implements [control.Gateway].
func (g operator) OpenBranches() []control.Branch {
	all := []control.Branch{}
	for _, b := range g.Branches.Active() {
		all = append(all, shown(b))
	}
	return all
}

// EndBranch implements [control.Gateway].
func (g operator) EndBranch(ctx context.Context, id, reason string) (control.Branch, error) {
	b, err := g.Branches.End(ctx, id, folding.ReasonOperator, reason)
	if errors.Is(err, folding.ErrNotFound) {
		return control.Branch{}, control.ErrNoBranch
	}
	return shown(b), err
}

func shown(b folding.Branch) control.Branch {
	return control.Branch{
		ID: b.ID, Context: b.Context, Principal: b.Principal, Session: b.Session, Description: b.Description, Created: b.CreatedAt, Expires: b.ExpiresAt,
		Used: b.BudgetUsed, Budget: b.BudgetTotal, Calls: b.Activity.Calls, InFlight: b.Activity.InFlight,
	}
}

// Budgets implements [control.Gateway].
func (g operator) Budgets(ctx context.Context) ([]control.Budget, error) {
	l := g.Limits()
	if l == nil {
		return nil, errNoLimits
	}
	states, err := l.All(ctx)
	return budgetsOf(states), err
}

func budgetsOf(states []limits.State) []control.Budget {
	all := []control.Budget{}
	for _, s := range states {
		b := control.Budget{
			Limit: s.Limit, Subject: s.Subject, Per: s.Per, Action: s.Action, Window: s.Window,
			Model: s.Model, Tokens: s.Tokens, TokensUsed: s.TokensUsed, Calls: s.Calls, CallsUsed: s.CallsUsed,
		}
		if !s.Reset.IsZero() {
			b.Reset = &s.Reset
		}
		all = append(all, b)
	}
	return all
}

var errNoLimits = errors.New("the configuration has no budgets.limits")

// maxResets is the largest number of records of one reset.
const maxResets = 1000

// ResetBudget implements [control.Gateway].
func (g operator) ResetBudget(ctx context.Context, limit, subject string) (int, error) {
	st := g.settings.Load()
	if st.Limits == nil {
		return 0, errNoLimits
	}
	var names []string
	for _, l := range st.Config.Budgets.Limits {
		names = append(names, l.Name)
	}
	if !slices.Contains(names, limit) {
		return 0, fmt.Errorf("there is no limit %q: use one of %s", limit, strings.Join(names, ", "))
	}
	before, err := st.Limits.All(ctx)
	if err != nil {
		return 0, err
	}
	n, err := st.Limits.Reset(ctx, limit, subject)
	if err == nil {
		before = slices.DeleteFunc(before, func(s limits.State) bool { return s.Limit != limit || subject != "" && s.Subject != subject })
		for _, s := range before[:min(len(before), maxResets)] {
			g.Recorder.Crossed(limits.Crossing{State: s, Kind: "reset"})
		}
		g.Log.Info("the operator reset a limit", "limit", limit, "subject", subject, "counts", n)
	}
	return n, err
}

// Erase implements [control.Gateway].
func (g operator) Erase(seqs []uint64, by string) error { return g.Journal.Erase(seqs, by) }
