package server

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Limits of one stream: the events that wait for a slow host, beside their bytes, and the events and
// bytes that are kept so that a host can resume after its connection broke.
const (
	streamMaxWaiting = 1 << 16
	streamKeepEvents = 1024
	streamKeepBytes  = 1 << 20
)

var (
	errStreamClosed = errors.New("the stream has ended")
	errStreamLost   = errors.New("the host left the stream and can't resume it")
)

// stream is a queue of messages to one host, for one POST or for the GET stream of a
// session. Producers never block. At most one connection at a time consumes. The queue and the
// store for Last-Event-ID are the same list: events up to sent were written to a connection,
// later ones wait for one.
type stream struct {
	id     uint64    // within the session; 0 is the GET stream
	resume bool      // keep sent events, and outlive the connection
	limit  int       // bytes that may wait
	ended  time.Time // the time of its last reply, if a host can resume it; guarded by legacySession.mu

	mu      sync.Mutex
	events  [][]byte // numbers base+1, base+2, …
	base    uint64
	sent    uint64
	queued  int         // bytes in events after sent
	kept    int         // bytes in events up to sent
	conn    *streamConn // the connection that consumes, or nil
	sse     bool        // an event stream was begun: the host knows an event id
	post    bool        // the stream of a POST, which ends with its last reply
	pending int         // replies still to come
	replies []Reply     // replies that came before an event stream was begun
	first   [1]Reply    // the memory of replies, if there is one
}

type streamConn struct {
	host context.Context // ends when the host leaves

	wake chan struct{} // capacity 1: there is something to look at; nil before an event stream begins
	last uint64        // the number of the last event sent when the connection began

	start func() // called with each event, and must not block; nil if there is nothing to start
}

// newStream returns the stream of a POST with a number of requests, and its connection. start is called with each event.
func newStream(host context.Context, id uint64, replies, limit int, resume bool, start func()) (*stream, *streamConn) {
	c := &streamConn{host: host, start: start}
	s := &stream{id: id, resume: resume, limit: limit, post: true, pending: replies, conn: c}
	s.replies = s.first[:0]
	return s, c
}

// emit queues a message ahead of the reply.
func (s *stream) emit(msg []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.post && s.pending == 0:
		return errStreamClosed
	case s.live() == nil && !(s.resume && s.sse):
		return errStreamLost
	case s.full():
		return errSlowHost
	}
	s.add(msg)
	return nil
}

// keep queues a message on a GET stream, with or without a connection. At the limit the oldest
// notification that waits makes room and is returned. If only requests wait, which need an
// answer, the message is refused.
func (s *stream) keep(msg []byte) (dropped []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full() {
		waiting := int(s.sent - s.base)
		at := slices.IndexFunc(s.events[waiting:], func(event []byte) bool {
			_, isRequest := rawjson.Get(event, "id")
			return !isRequest
		})
		if at < 0 {
			return nil, errSlowHost
		}
		dropped = s.events[waiting+at]
		s.queued -= len(dropped)
		s.events = slices.Delete(s.events, waiting+at, waiting+at+1)
	}
	s.add(msg)
	return dropped, nil
}

// finish hands in one reply. A message without an id stands for a request that must not get an
// answer. finish reports whether this was the last reply, and if so, whether a host can resume the
// stream: an event stream has begun or is about to begin.
func (s *stream) finish(reply Reply) (last, resumable bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case reply.ID == nil:
	case s.sse || len(s.events) > 0:
		s.add(reply.Encode())
	default:
		s.replies = append(s.replies, reply)
	}
	if s.pending--; s.pending > 0 {
		return false, false
	}
	if s.conn != nil {
		s.conn.signal()
	}
	return true, s.sse || len(s.events) > 0
}

// begin decides how the POST is answered: with the replies if all of them are there and nothing
// comes before them, else with an event stream.
func (s *stream) begin() (sse bool, replies []Reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.events) == 0 && s.pending == 0 {
		return false, s.replies
	}
	s.sse = true
	if s.conn != nil && s.conn.wake == nil { // else another connection took over
		s.conn.wake = make(chan struct{}, 1)
	}
	for _, r := range s.replies { // of a batch; the events go first, they are older or independent
		s.add(r.Encode())
	}
	s.replies = nil
	return true, nil
}

// next returns the events that wait and the number of the first. more is false if none will
// follow: the stream has ended, its host has left, or another connection took over.
func (s *stream) next(c *streamConn) (first uint64, events [][]byte, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != c {
		return 0, nil, false
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
	return first, events, !s.post || s.pending > 0
}

// trim forgets the oldest events that were sent; the last of them stays, since it is the one most
// likely to be lost with its connection. s.mu is held.
func (s *stream) trim() {
	n := 0
	for s.base+uint64(n)+1 < s.sent && (s.kept > streamKeepBytes || len(s.events)-n > streamKeepEvents) {
		s.kept -= len(s.events[n])
		s.events[n] = nil
		n++
	}
	s.events, s.base = s.events[n:], s.base+uint64(n)
}

// attach gives the stream to a new connection. With from, it continues after the event of that
// number, and takes over from the connection that the host must have lost. It returns nil if the
// number was never given out. Without from, it continues with what was not sent yet, and returns
// nil if another connection has the stream.
func (s *stream) attach(host context.Context, from *uint64) *streamConn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if from == nil && s.live() != nil || from != nil && *from > s.sent {
		return nil
	}
	if from != nil {
		back := max(*from, s.base)
		for _, e := range s.events[back-s.base : s.sent-s.base] {
			s.queued += len(e)
			s.kept -= len(e)
		}
		s.sent = back
	}
	if s.conn != nil {
		s.conn.signal()
	}
	s.conn = &streamConn{host: host, wake: make(chan struct{}, 1), last: s.sent}
	s.sse = true
	return s.conn
}

func (s *stream) detach(c *streamConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == c {
		s.conn = nil
	}
}

// attached reports whether a connection consumes the stream.
func (s *stream) attached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live() != nil
}

// live returns the connection that consumes the stream. It is nil if the host has left: events take another
// way. s.mu is held.
func (s *stream) live() *streamConn {
	if s.conn != nil && s.conn.host.Err() != nil {
		s.conn = nil
	}
	return s.conn
}

// size is the number of bytes that the stream stores.
func (s *stream) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept + s.queued
}

// add appends an event, without its line ends, and wakes the connection; s.mu is held.
func (s *stream) add(msg []byte) {
	wire.OneLine(msg)
	s.events = append(s.events, msg)
	s.queued += len(msg)
	if s.conn != nil {
		s.conn.signal()
		if s.conn.start != nil {
			s.conn.start()
		}
	}
}

func (s *stream) full() bool {
	return s.queued > s.limit || s.base+uint64(len(s.events))-s.sent >= streamMaxWaiting
}

func (c *streamConn) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
