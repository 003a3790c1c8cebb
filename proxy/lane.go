package proxy

import "sync"

// What may wait in a lane: bytes of messages, each with what it costs to keep it.
const (
	maxAside  = 16 << 20
	asideCost = 512
)

// lane runs one thing after the other in the background: what goes on behind a
// host's back, or an upstream's. Its zero value is ready to use.
type lane struct {
	mu   sync.Mutex
	all  []aside // the first is running
	size int     // what all takes
}

// aside is something to do in a lane, for a message of that many bytes.
type aside struct {
	do   func()
	size int
}

// put runs f in the background, after everything given to it before. It
// reports false where too much waits already: upstreams may take long to open,
// and hosts to stop. One message is never too much.
func (q *lane) put(g *Gateway, size int, f func()) bool {
	size += asideCost
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.all) > 0 && q.size+size > maxAside {
		return false
	}
	q.all = append(q.all, aside{f, size})
	q.size += size
	if len(q.all) == 1 { // else somebody is at it
		g.background(q.run)
	}
	return true
}

func (q *lane) run() {
	for {
		q.mu.Lock()
		f := q.all[0]
		q.mu.Unlock()
		f.do()
		q.mu.Lock()
		q.all[0] = aside{} // else its message lives as long as the array
		q.all, q.size = q.all[1:], q.size-f.size
		done := len(q.all) == 0
		q.mu.Unlock()
		if done {
			return
		}
	}
}

// empty reports whether nothing waits or runs.
func (q *lane) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.all) == 0
}

// mark returns what is closed when everything given to it so far is done; nil if
// it is already.
func (q *lane) mark(g *Gateway) <-chan struct{} {
	ch := make(chan struct{})
	if q.empty() || !q.put(g, 0, func() { close(ch) }) {
		return nil
	}
	return ch
}
