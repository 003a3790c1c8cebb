package proxy

import (
	"context"
	"errors"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/proxy/control"
)

// operator is the gateway as its operator sees it. It implements [control.Gateway].
type operator struct{ *Gateway }

// OpenBranches implements [control.Gateway].
func (g operator) OpenBranches() []control.Branch {
	all := []control.Branch{}
	for _, b := range g.branches.Active() {
		all = append(all, shown(b))
	}
	return all
}

// EndBranch implements [control.Gateway].
func (g operator) EndBranch(ctx context.Context, id, reason string) (control.Branch, error) {
	b, err := g.branches.End(ctx, id, reason)
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
func (g operator) Budgets(context.Context) ([]control.Budget, error) {
	return nil, errors.New("no limits are configured")
}

// ResetBudget implements [control.Gateway].
func (g operator) ResetBudget(_ context.Context, limit, _ string) (int, error) {
	return 0, errors.New("no limits are configured")
}
