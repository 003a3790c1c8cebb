package limits

import (
	"cmp"
	"context"
	"slices"
	"strings"
)

// Status returns the limits that match a use, in the order of the configuration.
func (l *Limits) Status(ctx context.Context, u Use) ([]State, error) {
	if l == nil || len(l.all) == 0 {
		return nil, nil
	}
	l.mu.Lock()
	a := l.newAccount(u, l.o.Now().Add(l.offset))
	l.mu.Unlock()
	if len(a.counters) == 0 {
		return nil, nil
	}
	counts, err := l.counts(ctx, a.keys()...)
	if err != nil {
		return nil, err
	}
	var out []State
	for i, m := range a.matches {
		out = append(out, m.stateOf(counts[a.counters[i].Key]))
	}
	return out, nil
}

// All returns every limit and subject with use in its window, in the order of the configuration.
func (l *Limits) All(ctx context.Context) ([]State, error) {
	if l == nil || len(l.all) == 0 {
		return nil, nil
	}
	counts, err := l.counts(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	now := l.o.Now().Add(l.offset)
	l.mu.Unlock()
	var out []State
	for _, one := range l.all {
		from := len(out)
		for key, parts := range counts {
			name, start, subject, ok := cutKey(key)
			window := one.Window
			if one.Per == PerSession && start != 0 { // of requests without a session
				window = cmp.Or(window, Window{n: 1, unit: day})
			}
			m := match{one, subject, window.at(now, one.zone)}
			if !ok || name != one.Name || start != m.span.key {
				continue
			}
			if s := m.stateOf(parts); s.TokensUsed != 0 || s.CallsUsed != 0 {
				out = append(out, s)
			}
		}
		slices.SortFunc(out[from:], func(a, b State) int { return strings.Compare(a.Subject, b.Subject) })
	}
	return out, nil
}

// Err returns why the store can't be reached, nil if it answered last.
func (l *Limits) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// Reset sets the counts of a limit to 0 and returns how many there were. subject "" means all.
func (l *Limits) Reset(ctx context.Context, limit, subject string) (n int, err error) {
	counts, err := l.counts(ctx)
	if err != nil {
		return 0, err
	}
	var keys []string
	for k := range counts {
		if name, _, who, ok := cutKey(k); ok && name == limit && (subject == "" || who == subject) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	if err := l.store.Delete(ctx, keys); err != nil {
		return 0, &UnavailableError{err}
	}
	return len(keys), nil
}

// counts returns what the store has counted, without what this process has reserved. No keys mean
// all.
func (l *Limits) counts(ctx context.Context, keys ...string) (map[string][]Count, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Wait) // as take does
	defer cancel()
	if down := l.Err(); down != nil {
		return nil, &UnavailableError{down}
	}
	l.returnReserves(ctx)
	list, err := l.store.List(ctx, keys...)
	if err != nil {
		return nil, &UnavailableError{err}
	}
	counts := map[string][]Count{}
	for _, c := range list {
		counts[c.Key] = append(counts[c.Key], c)
	}
	return counts, nil
}

// stateOf returns the state by the parts of the counter.
func (m match) stateOf(parts []Count) State {
	parts = slices.DeleteFunc(slices.Clone(parts), func(c Count) bool { return c.Bucket < m.span.oldest })
	total, latest := m.total(m.subject), int64(0)
	for _, c := range parts {
		if total.Tokens > 0 && c.Tokens > 0 || total.Calls > 0 && c.Calls > 0 {
			latest = max(latest, c.Bucket)
		}
	}
	return m.state(sum(parts), latest)
}

func sum(parts []Count) (sum Used) {
	for _, c := range parts {
		sum.Tokens += c.Tokens
		sum.Calls += c.Calls
	}
	return sum
}
