package limits

import (
	"context"
	"iter"
	"slices"
	"time"
)

// Charge is what a use had at a time, as a trace tells.
type Charge struct {
	At            time.Time
	Use           Use
	Tokens, Calls int64
}

// Raised is the state of a limit for a subject whose count was raised.
type Raised struct {
	State
	From Used // what was used before
}

// Rebuild raises the counters of the present windows to the sums of the charges, for a store that
// has lost its data. It never lowers a counter: to repeat it is harmless. The charges must be those
// of all gateways that share the store. A counter can be lower than its sum by what another gateway
// has in reserve at this moment: let them be idle. Rebuild returns how many counts it has compared, and the
// states of those that it has raised.
func (l *Limits) Rebuild(ctx context.Context, charges iter.Seq2[Charge, error]) (compared int, raised []Raised, err error) {
	before, err := l.All(ctx)
	if err != nil {
		return 0, nil, err
	}
	l.mu.Lock()
	now := l.o.Now().Add(l.offset)
	l.mu.Unlock()
	all := sums{}
	for c, err := range charges {
		if err != nil {
			return 0, nil, err
		}
		for _, one := range l.all {
			for _, u := range one.uses(c.Use) {
				counter, _ := one.counter(u, c.At)
				present, _ := one.counter(u, now)
				if counter.Key == present.Key && counter.Bucket >= present.Oldest { // else it is of another window
					all.add(counter, c.Tokens, c.Calls)
				}
			}
		}
	}
	changes := slices.DeleteFunc(all.inOrder(), func(c Change) bool { return c.Expires <= now.Unix() })
	for some := range slices.Chunk(changes, 256) {
		if err := l.store.Change(ctx, "", Raise, some); err != nil {
			return compared, nil, &UnavailableError{err}
		}
		compared += len(some)
	}
	after, err := l.All(ctx)
	for _, s := range after {
		r := Raised{State: s}
		if i := slices.IndexFunc(before, func(b State) bool { return b.Limit == s.Limit && b.Subject == s.Subject }); i >= 0 {
			r.From = Used{before[i].TokensUsed, before[i].CallsUsed}
		}
		if s.TokensUsed > r.From.Tokens || s.CallsUsed > r.From.Calls {
			raised = append(raised, r)
		}
	}
	return compared, raised, err
}
