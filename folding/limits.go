package folding

import "time"

// quota is what one session has used of its limits.
type quota struct {
	open   int
	bucket bucket
}

// quota returns the quota of a session. m.mu is held.
func (m *Manager) quota(key sessionKey) *quota {
	q := m.quotas[key]
	if q == nil {
		q = &quota{}
		m.quotas[key] = q
	}
	return q
}

// admit checks a session's limits and, for a branch that is rated, takes from
// its rate. m.mu is held.
func (m *Manager) admit(key sessionKey, now time.Time, rated bool) error {
	q := m.quota(key)
	if q.open >= m.cfg.MaxConcurrentPerSession {
		return failAfter(ErrTooManyBranches, m.untilFree(now, func(b *branch) bool { return b.limits == key }),
			"this session has %d branches open, the most allowed: return one with branch_return first", q.open)
	}
	if len(m.live) >= m.cfg.MaxConcurrentPerInstance {
		return failAfter(ErrInstanceFull, m.untilFree(now, func(*branch) bool { return true }),
			"foldgate has %d branches open, the most allowed: try again later", len(m.live))
	}
	if !rated {
		return nil
	}
	q.bucket.refill(now, m.cfg.MaxBranchesPerMinute)
	if wait := q.bucket.wait(m.cfg.MaxBranchesPerMinute); wait > 0 {
		return failAfter(ErrRateLimited, wait, "this session may create %d branches a minute: try again in %d s",
			m.cfg.MaxBranchesPerMinute, Seconds(wait))
	}
	q.bucket.take()
	return nil
}

// untilFree returns when the next of the branches that count ends at the latest. m.mu is held.
func (m *Manager) untilFree(now time.Time, counts func(*branch) bool) time.Duration {
	var wait time.Duration
	for _, b := range m.live {
		if left := b.ExpiresAt.Sub(now); counts(b) && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// bucket is a token bucket: it holds up to perMinute creations and regains
// them evenly. The zero bucket is full. It has no clock of its own.
type bucket struct {
	spent float64 // of perMinute, at the time below
	at    time.Time
}

// refill brings the bucket to now. A clock that runs backwards refills nothing.
func (b *bucket) refill(now time.Time, perMinute int) {
	if passed := now.Sub(b.at); passed > 0 {
		b.spent = max(0, b.spent-passed.Minutes()*float64(perMinute))
		b.at = now
	}
}

// wait returns how long until one creation is free; zero if one is. Call
// refill first.
func (b *bucket) wait(perMinute int) time.Duration {
	over := b.spent + 1 - float64(perMinute)
	if over <= 1e-9 { // the sum of many small refills is not exact
		return 0
	}
	return time.Duration(over / float64(perMinute) * float64(time.Minute))
}

// take spends one creation. Call wait first.
func (b *bucket) take() { b.spent++ }
