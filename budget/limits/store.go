package limits

import (
	"context"
	"errors"
	"time"
)

// Store counts. Stores are safe for concurrent use, also by several processes.
//
// Its operations have ids. A store that has done an operation answers a second one of the same id
// within ten minutes as it answered the first, and counts nothing. Ids PLACE.N outlive their process: N,
// in base 36, grows, and the store keeps the last one of each place, so a later process can ask for it.
type Store interface {
	// Take takes from all counters of op or from none. It returns when ctx is done at the latest:
	// the operation may then happen or not.
	Take(ctx context.Context, op Op) (Answer, error)
	// Change changes counters; an id that is empty is not remembered.
	Change(ctx context.Context, id string, how How, changes []Change) error
	// List returns the counters with these keys; without keys all. Some may have expired.
	List(ctx context.Context, keys ...string) ([]Count, error)
	// Delete deletes counters.
	Delete(ctx context.Context, keys []string) error
	// Close closes the store.
	Close() error
}

// Counter is one count, and what an operation may take from it. Times are in seconds since 1970.
type Counter struct {
	Key           string
	From, Until   int64 // the time of the store must be within these
	Bucket        int64 // which part of the counter is added to; 0 if it has one
	Oldest        int64 // the first part that counts
	Expires       int64
	Tokens, Calls int64 // what it has; 0: any number
	Hard          bool  // it is never exceeded
}

// Op is one take.
type Op struct {
	ID                      string
	Counters                []Counter
	Tokens, Calls           int64 // wanted; Calls are taken all or not at all
	Whole                   bool  // Tokens too
	ExtraTokens, ExtraCalls int64 // wanted besides: at most 1/16 of what is left after it
}

// Used is what has been taken from a counter.
type Used struct{ Tokens, Calls int64 }

// Answer is what a take has got.
type Answer struct {
	Now                     time.Time // the time of the store
	Stale                   bool      // Now is not in the window of a counter: nothing was taken
	Refused                 bool      // nothing was taken, of what must be taken whole
	Tokens                  int64     // granted
	ExtraTokens, ExtraCalls int64
	Tightest                int    // the counter that had the least, if less was granted than wanted
	TooFewCalls             bool   // it was calls that it had too few of
	Used                    []Used // of each counter, after this take

	taken Used // from each counter
}

// How a counter changes.
type How int

const (
	Add   How = iota // by an amount; a counter does not sink below 0
	Undo             // reverts the take with the id, or prevents it
	Raise            // to at least an amount
)

// Change is a change of one part of a counter.
type Change struct {
	Key             string
	Bucket, Expires int64
	Used
}

// Count is the value of one part of a counter.
type Count struct {
	Key    string
	Bucket int64
	Used
}

// errUndone is the answer to a take that has been undone.
var errUndone = errors.New("the operation has been undone")

// undone is what is remembered of it.
var undone = Answer{Refused: true, Tightest: -1}

const (
	share       = 16               // the part of what is left that can be reserved
	rememberOps = 10 * time.Minute // ids of operations
	maxCounters = 100_000          // beyond it a new one replaces the one that expires first
)

// decide says what op gets from its counters. used is what has been taken from each.
func (op Op) decide(used []Used, now time.Time) Answer {
	a := Answer{Now: now, Tightest: -1}
	for _, c := range op.Counters {
		if s := now.Unix(); s < c.From || s >= c.Until {
			a.Stale = true
			return a
		}
	}
	a.Tokens, a.Used = op.Tokens, used
	for i, c := range op.Counters {
		if !c.Hard {
			continue
		}
		if left := left(c.Tokens, used[i].Tokens); left < a.Tokens || left == 0 && !a.Refused {
			a.Tokens, a.Tightest, a.TooFewCalls, a.Refused = min(a.Tokens, left), i, false, op.Whole
		}
		if op.Calls > 0 && left(c.Calls, used[i].Calls) < op.Calls {
			return Answer{Now: now, Refused: true, Tightest: i, TooFewCalls: true, Used: used}
		}
	}
	if a.Refused {
		a.Tokens = 0
		return a
	}
	if a.Tightest < 0 {
		a.ExtraTokens, a.ExtraCalls = op.ExtraTokens, op.ExtraCalls
		for i, c := range op.Counters {
			a.ExtraTokens = min(a.ExtraTokens, left(c.Tokens, used[i].Tokens+a.Tokens)/share)
			a.ExtraCalls = min(a.ExtraCalls, left(c.Calls, used[i].Calls+op.Calls)/share)
		}
	}
	a.taken = Used{a.Tokens + a.ExtraTokens, op.Calls + a.ExtraCalls}
	for i := range used {
		used[i].Tokens += a.taken.Tokens
		used[i].Calls += a.taken.Calls
	}
	return a
}
