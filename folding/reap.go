package folding

import (
	"context"
	"time"
)

// maxSleep bounds the reaper's sleep: timers stand still while a machine is
// suspended, the clock does not.
const maxSleep = 30 * time.Second

// archiveBatch is how many branches one transaction archives: few, since
// charges wait for it.
const archiveBatch = 64

// reap ends branches at their deadline and archives old ones, until Close.
func (m *Manager) reap() {
	defer close(m.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var swept time.Time
	for {
		select {
		case <-m.quit:
			return
		case <-m.wake:
		case <-timer.C:
		}
		m.mu.Lock()
		now := m.tick()
		sleep := maxSleep
		if !m.next.IsZero() {
			sleep = min(sleep, m.next.Sub(now))
		}
		m.unlock()
		if now.Sub(swept) >= time.Minute {
			if m.sweep(now) {
				swept = now
			} else {
				sleep = 0 // more to archive, after whoever waits
			}
		}
		timer.Reset(sleep)
	}
}

// sweep forgets idle quotas and archives one batch of branches past their
// retention. It returns false if there are more.
func (m *Manager) sweep(now time.Time) bool {
	m.mu.Lock()
	for key, q := range m.quotas {
		q.bucket.refill(now, m.cfg.MaxBranchesPerMinute)
		if q.open == 0 && q.bucket.spent == 0 {
			delete(m.quotas, key)
		}
	}
	m.mu.Unlock()
	n, err := m.opts.Repository.Archive(context.Background(), now.Add(-m.cfg.Retention), archiveBatch)
	if err != nil {
		m.log.Error("finished branches were not archived", "error", err)
	}
	return n < archiveBatch
}
