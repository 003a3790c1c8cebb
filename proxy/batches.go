package proxy

import (
	"fmt"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
)

// batches are those under way, and those whose answer nobody has fetched yet.
// Its zero value is ready to use.
type batches struct {
	mu  sync.Mutex
	all map[string]*batch
}

// maxBatches bounds how many are under way in the process.
const maxBatches = 16

// add enters a batch that begins. Where there are several principals, shared,
// none has more than half of the places.
func (bs *batches) add(b *batch, shared bool) error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	running, own := 0, 0
	for _, other := range bs.all {
		select {
		case <-other.done:
		default:
			running++
			if other.principal == b.principal {
				own++
			}
		}
	}
	most := maxBatches
	if shared && own >= maxBatches/2 {
		most = maxBatches / 2
	}
	if running >= most {
		return &interceptor.Refusal{Reason: "resource_limit", Code: "too_many_batches", Status: 429, RetryAfter: 5,
			Message: fmt.Sprintf("%d batches are under way, the most there can be: wait for one of them", most)}
	}
	if bs.all == nil {
		bs.all = map[string]*batch{}
	}
	bs.all[b.handle] = b
	return nil
}

// get returns the caller's batch with that handle, nil for another's; strict
// binds it to the session that it was started in, as a stored result.
func (bs *batches) get(caller folding.Caller, strict bool, handle string) *batch {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.all[handle]
	if b == nil || b.principal != caller.Principal || strict && b.session != caller.Session {
		return nil
	}
	return b
}

func (bs *batches) remove(b *batch) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	delete(bs.all, b.handle)
}

// answerKept is how long the answer of a finished batch can be fetched.
const answerKept = 10 * time.Minute

// expire forgets a finished batch after a while: by then its host has read the
// answer or lost interest.
func (bs *batches) expire(b *batch) {
	time.AfterFunc(answerKept, func() { bs.remove(b) })
}
