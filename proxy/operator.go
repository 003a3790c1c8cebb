package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/proxy/config"
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
func (g operator) Budgets(ctx context.Context, limit string) ([]control.Budget, error) {
	st := g.settings.Load()
	if err := checkLimit(&st.Config, limit); err != nil || st.Limits == nil {
		return []control.Budget{}, err
	}
	states, err := st.Limits.All(ctx)
	return append([]control.Budget{}, ofLimit(states, limit)...), err
}

// ofLimit returns the states of a limit, "" for all.
func ofLimit(states []limits.State, limit string) []limits.State {
	return slices.DeleteFunc(states, func(s limits.State) bool { return limit != "" && s.Limit != limit })
}

// checkLimit returns an error if there is no limit with a name that is not "".
func checkLimit(c *config.Config, name string) error {
	var names []string
	for _, l := range c.Budgets.Limits {
		names = append(names, l.Name)
	}
	switch {
	case name == "" || slices.Contains(names, name):
		return nil
	case len(names) == 0:
		return fmt.Errorf("%w %q: %w", control.ErrNoLimit, name, errNoLimits)
	}
	return fmt.Errorf("%w %q: use one of %s", control.ErrNoLimit, name, strings.Join(names, ", "))
}

var errNoLimits = errors.New("the configuration has no limits: write some under budgets.limits")

// maxResets is the largest number of records of one reset.
const maxResets = 1000

// ResetBudget implements [control.Gateway].
func (g operator) ResetBudget(ctx context.Context, limit, subject string) (int, error) {
	st := g.settings.Load()
	if err := checkLimit(&st.Config, limit); err != nil {
		return 0, err
	}
	if st.Limits == nil { // and no limit is named
		return 0, errNoLimits
	}
	before, err := st.Limits.All(ctx)
	if err != nil {
		return 0, err
	}
	before = slices.DeleteFunc(before, func(s limits.State) bool { return s.Limit != limit })
	if subject, err = subjectOf(before, limit, subject); err != nil {
		return 0, err
	}
	n, err := st.Limits.Reset(ctx, limit, subject)
	if err == nil {
		before = slices.DeleteFunc(before, func(s limits.State) bool { return subject != "" && s.Subject != subject })
		for _, s := range before[:min(len(before), maxResets)] {
			g.Recorder.Crossed(limits.Crossing{State: s, Kind: "reset"})
		}
		g.Log.Info("the operator reset a limit", "limit", limit, "subject", subject, "counts", n)
	}
	return n, err
}

// subjectOf returns the subject of a limit's states that an operator names: "" for all, or without its kind
// if one subject only ends so, such as data-7 of "principal data-7".
func subjectOf(states []limits.State, limit, name string) (string, error) {
	if name == "" || name == "all" && len(states) > 0 && states[0].Per == limits.PerAll {
		return "", nil
	}
	var all, ends []string
	for _, s := range states {
		if s.Subject == name {
			return name, nil
		}
		if s.Subject != "" { // as that of a principal without a team
			all = append(all, strconv.Quote(s.Subject))
		}
		if strings.HasSuffix(s.Subject, " "+name) {
			ends = append(ends, s.Subject)
		}
	}
	switch {
	case len(ends) == 1:
		return ends[0], nil
	case len(all) == 0:
		return "", fmt.Errorf("limit %s has no counts: nothing of it is used in its window", limit)
	}
	more := ""
	if n := len(all) - maxSubjects; n > 0 {
		all, more = all[:maxSubjects], fmt.Sprintf(" and %d more; foldgate budgets lists them", n)
	}
	return "", fmt.Errorf("limit %s has no count of %q: use one of %s%s", limit, name, strings.Join(all, ", "), more)
}

// maxSubjects is how many subjects an error names.
const maxSubjects = 20

// Erase implements [control.Gateway].
func (g operator) Erase(seqs []uint64, by string) error { return g.Journal.Erase(seqs, by) }
