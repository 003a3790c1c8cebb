package server

import (
	"errors"
	"sync"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Bounds of one stream: what waits for a slow host, and what is kept of it so
// that a host may resume where its connection broke.
const (
	streamMaxEvents = 1024
	streamKeepBytes = 1 << 20
)

var (
	errStreamClosed = errors.New("the stream has ended")
	errStreamLost   = errors.New("the host left the stream and can't resume it")
)

// stream is the way of messages to one host: of one POST, or of the GET stream
// of a session. Those that produce never block; at most one connection at a time
// consumes. The queue and the store for Last-Event-ID are the same list: events
// up to sent were written to a connection, those after it wait for one.
type stream struct {
	id     uint64 // within the session; 0 is the GET stream
	resume bool   // keep what was sent, and outlive the connection
	limit  int    // bytes that may wait

	mu      sync.Mutex
	events  [][]byte // numbers base+1, base+2, …
	base    uint64
	sent    uint64
	queued  int           // bytes in events after sent
	kept    int           // bytes in events up to sent
	conn    *streamConn   // the connection that consumes; nil while there is none
	sse     bool          // an event stream was begun: the host knows an event id
	pending int           // replies still to come
	replies [][]byte      // replies that came before an event stream was begun
	over    chan struct{} // closed when the last reply is there; nil for a GET stream
}

// streamConn is one connection's hold on a stream.
type streamConn struct {
	wake chan struct{} // capacity 1: there is something to look at
	lost bool          // another connection took the stream over; under stream.mu

	early func() // starts the answer before its time; nil once it has begun; under stream.mu
}

func (c *streamConn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// newStream returns the stream of a POST with so many requests, and the hold of
// the connection that it came on.
func newStream(id uint64, replies, limit int, resume bool) (*stream, *streamConn) {
	c := &streamConn{wake: make(chan struct{}, 1)}
	return &stream{id: id, resume: resume, limit: limit, pending: replies, conn: c, over: make(chan struct{})}, c
}

// emit queues a message ahead of the reply.
func (s *stream) emit(msg []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.pending == 0 && s.over != nil:
		return errStreamClosed
	case s.conn == nil && !(s.resume && s.sse):
		return errStreamLost
	case s.full():
		return errSlowHost
	}
	s.add(singleLine(msg))
	return nil
}

func (s *stream) full() bool {
	return s.queued > s.limit || s.base+uint64(len(s.events))-s.sent >= streamMaxEvents
}

// add appends an event and wakes the connection; s.mu is held.
func (s *stream) add(msg []byte) {
	s.events = append(s.events, msg)
	s.queued += len(msg)
	if s.conn != nil {
		s.conn.signal()
		s.hurryLocked()
	}
}

// finish hands in one reply, which becomes the stream's; nil for a request that
// must not get an answer. It reports whether that was the last one.
func (s *stream) finish(msg []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case msg == nil:
	case s.sse || len(s.events) > 0:
		s.add(fit(msg))
	case s.pending > 1: // it waits for others
		s.replies = append(s.replies, fit(msg))
	default:
		s.replies = append(s.replies, msg)
	}
	if s.pending--; s.pending > 0 {
		return false
	}
	close(s.over)
	if s.conn != nil {
		s.conn.signal()
	}
	return true
}

// begin decides how the POST is answered: with the replies if all of them are
// there and nothing comes before them, else with an event stream.
func (s *stream) begin() (sse bool, replies [][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) == 0 && s.pending == 0 {
		return false, s.replies
	}
	s.sse = true
	for _, r := range s.replies { // of a batch; the events go first, they are older or independent
		s.add(fit(r))
	}
	s.replies = nil
	return true, nil
}

// next returns the events that wait, with the number of the first, and whether
// the stream is at its end after them. alive is false once another connection
// took over.
func (s *stream) next(c *streamConn) (first uint64, events [][]byte, end, alive bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.lost {
		return 0, nil, false, false
	}
	s.trim() // not after taking: what is taken now may have to be sent again
	first = s.sent + 1
	events = append(events, s.events[s.sent-s.base:]...)
	s.sent += uint64(len(events))
	if s.resume {
		s.kept += s.queued
	} else {
		s.events, s.base = nil, s.sent
	}
	s.queued = 0
	return first, events, s.over != nil && s.pending == 0, true
}

// trim forgets the oldest events that were sent; the last of them stays, since
// it is the one most likely to be lost with its connection. s.mu is held.
func (s *stream) trim() {
	n := 0
	for s.base+uint64(n)+1 < s.sent && (s.kept > streamKeepBytes || len(s.events)-n > streamMaxEvents) {
		s.kept -= len(s.events[n])
		s.events[n] = nil
		n++
	}
	s.events, s.base = s.events[n:], s.base+uint64(n)
}

// attach gives the stream to a new connection. With from it continues after the
// event of that number, and takes over from a connection that the host must have
// lost; it fails where the number was never given out. Without from it continues
// with what was not sent yet, and fails where another connection has the stream.
func (s *stream) attach(from *uint64) (*streamConn, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == nil && s.conn != nil {
		return nil, false
	}
	if from != nil {
		if *from > s.sent {
			return nil, false
		}
		back := max(*from, s.base)
		for _, e := range s.events[back-s.base : s.sent-s.base] {
			s.queued += len(e)
			s.kept -= len(e)
		}
		s.sent = back
	}
	if s.conn != nil {
		s.conn.lost = true
		s.conn.signal()
	}
	s.conn = &streamConn{wake: make(chan struct{}, 1)}
	s.sse = true
	return s.conn, true
}

// detach ends c's hold. It reports whether the stream can still be of use: it
// is resumable and the host knows an event id of it.
func (s *stream) detach(c *streamConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.conn = nil
	}
	return s.resume && s.sse
}

// attached reports whether a connection consumes the stream.
func (s *stream) attached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conn != nil
}

// last is the number of the last event sent, for a priming event.
func (s *stream) last() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent
}

// size is how many bytes the stream keeps.
func (s *stream) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept + s.queued
}

// park queues a message on a GET stream, with or without a connection. Where
// the bound is reached the oldest notification that waits makes room and is
// returned; where only requests wait, which someone needs answered, the message
// is refused.
func (s *stream) park(msg []byte) (dropped []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full() {
		at := -1
		for i := int(s.sent - s.base); i < len(s.events); i++ {
			if _, isRequest := rawjson.Get(s.events[i], "id"); !isRequest {
				at = i
				break
			}
		}
		if at < 0 {
			return nil, errSlowHost
		}
		dropped = s.events[at]
		s.queued -= len(dropped)
		s.events = append(s.events[:at:at], s.events[at+1:]...)
	}
	s.add(singleLine(msg))
	return dropped, nil
}
