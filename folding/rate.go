package folding

import "time"

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
