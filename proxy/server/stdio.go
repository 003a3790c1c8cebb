package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	// stdioMaxLine is the longest message read from a stdio host, in bytes.
	stdioMaxLine = 64 << 20
	// stdioMaxQueue is how many bytes may wait for a stdio host that does not read: the largest
	// message and some more.
	stdioMaxQueue = stdioMaxLine + 16<<20
	// stdioMaxPending is the limit on pending requests of one host.
	stdioMaxPending = 4096
	// stdioGrace is how long requests may finish after the host closed its end, so that a script
	// may pipe requests in and read the replies.
	stdioGrace = 500 * time.Millisecond
)

var (
	errSlowHost = errors.New("the host does not read what it is sent")
	errHostGone = errors.New("the host is gone")
)

// stdioServer serves one host on a pair of byte streams. A connection has at most one legacy session,
// and a modern one for each set of capabilities that requests declare.
type stdioServer struct {
	router    Router
	log       *slog.Logger
	out       *wire.LineWriter
	lifetime  context.Context // of the requests; ends before the sessions are closed
	sessionID string
	pending   sync.WaitGroup
	slots     chan struct{} // one element for each pending request

	handling sync.Mutex // held while a line is handled; guards what follows
	sessions []Session  // all that are open, but those of probes
	legacy   Session    // nil until first used
	greeted  bool       // legacy has had an initialize
	modern   map[wire.Capabilities]Session
}

// ServeStdio speaks newline-delimited JSON-RPC with the host on in and out, in both eras, until in
// ends, out is closed or ctx is done; then it returns nil. It returns the fault of a stream that
// fails otherwise. It writes nothing but protocol to out. When it returns, every request is over and
// the sessions are closed. If in is an io.Closer, it is closed unless it has ended. A read that even
// this does not interrupt is left behind, and does nothing more.
func ServeStdio(ctx context.Context, r Router, in io.Reader, out io.Writer, log *slog.Logger) error {
	lifetime, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &stdioServer{
		router: r, log: log, out: wire.NewLineWriter(out, stdioMaxQueue), lifetime: lifetime,
		sessionID: "ses_" + uuid.NewString(), modern: map[wire.Capabilities]Session{}, slots: make(chan struct{}, stdioMaxPending),
	}
	read := make(chan error, 1)
	go func() { read <- s.read(in) }()

	var err error
	reason, ended := "the host closed the connection", false
	select {
	case err = <-read:
		if ended = err == nil; ended {
			s.drain()
		}
	case <-s.out.Done():
		reason = "the host is gone"
		if fault := s.out.Err(); !errors.Is(fault, syscall.EPIPE) {
			err = fmt.Errorf("writing to the host: %w", fault)
		}
	case <-ctx.Done():
		reason = Shutdown
	}
	cancel(errors.New(reason))
	if closer, ok := in.(io.Closer); ok && !ended {
		_ = closer.Close()
	}
	s.out.Hurry()
	s.handling.Lock() // from here on the reader handles nothing more
	open := s.sessions
	s.handling.Unlock()
	s.pending.Wait()
	for _, session := range open {
		closeSession(session, reason, log)
	}
	s.closeOutput()
	return err
}

// closeOutput writes the queue. A write that hangs ends with the process.
func (s *stdioServer) closeOutput() {
	s.out.Close()
	select {
	case <-s.out.Done():
	case <-time.After(stdioGrace):
	}
}

// drain gives pending requests a moment to finish.
func (s *stdioServer) drain() {
	done := make(chan struct{})
	go func() { s.pending.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(stdioGrace):
	case <-s.lifetime.Done():
	case <-s.out.Done():
	}
}

// read handles line after line until in ends or the lifetime is over.
func (s *stdioServer) read(in io.Reader) error {
	lines := wire.NewLineReader(in, stdioMaxLine+len("\n"))
	for {
		line, err := lines.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the host: %w", err)
		}
		if !s.handle(line) {
			return nil
		}
	}
}

// handle takes one line. It reports false if the lifetime is over.
func (s *stdioServer) handle(line wire.Line) bool {
	s.handling.Lock()
	defer s.handling.Unlock()
	if s.lifetime.Err() != nil {
		return false
	}
	data := wire.Trim(line.Head)
	switch {
	case line.Tail != nil:
		var m wire.Message
		if m.ID, m.Method = wire.Salvage(data, line.Tail); m.Method == "" { // it may be a response
			m.ID = nil
		}
		s.refuse(http.StatusRequestEntityTooLarge, idOf(m), invalid(wire.CodeInvalidRequest, "message larger than 64 MiB"))
	case len(data) > 0:
		if line.Borrowed { // messages outlive their line
			data = bytes.Clone(data)
		}
		guard(s.log, "a message of the host", func() { s.messages(data) })
	}
	return true
}

// messages takes a message, or the messages of an array, which revision 2025-03-26 has. The
// responses to an array go out singly.
func (s *stdioServer) messages(data []byte) {
	if data[0] != '[' || !rawjson.Valid(data, wire.MaxDepth) {
		s.message(data)
		return
	}
	n := 0
	for v := range rawjson.Elements(data) {
		n++
		s.message(v)
	}
	if n == 0 {
		s.refuse(http.StatusBadRequest, nil, invalid(wire.CodeInvalidRequest, "empty batch"))
	}
}

func (s *stdioServer) message(data []byte) {
	m, err := wire.ParseMessage(data)
	switch {
	case err != nil:
		s.refuse(http.StatusBadRequest, idOf(m), parseError(err))
	case m.IsRequest():
		s.request(m)
	case m.IsNotification():
		s.notification(m)
	case s.legacy != nil:
		accept(s.legacy, m, s.log)
	default:
		s.log.Debug("dropped a response: nothing was asked on this connection")
	}
}

// request registers a request, and serves it on a goroutine of its own.
func (s *stdioServer) request(m wire.Message) {
	req := NewRequest(m)
	req.Emit = s.send
	isModern := modern(req.Meta)
	if isModern {
		if fault := checkMeta(req.Meta); fault != nil {
			s.refuse(http.StatusBadRequest, m.ID, fault)
			return
		}
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.refuse(http.StatusTooManyRequests, m.ID, invalid(wire.CodeInternal, fmt.Sprintf("%d requests are in flight, wait for a reply first", stdioMaxPending)))
		return
	}
	// Without a legacy session, server/discover means the modern era. A host that only probes gets
	// no lasting session.
	discover := m.Method == wire.MethodDiscover && s.legacy == nil
	isModern = isModern || discover
	var can wire.Capabilities // none in a legacy session that is opened before initialize, as by a ping
	switch {
	case m.Method == wire.MethodInitialize:
		can = declared(m)
	case isModern:
		can = wire.ReadCapabilities(req.Meta.ClientCapabilities)
	}
	if m.Method == wire.MethodInitialize && !isModern {
		if !s.greeted && can != 0 {
			s.legacy = nil // another takes its place; its own requests may be under way
		}
		s.greeted = true
	}
	var session Session
	probe := discover && s.modern[can] == nil
	p := begin(m.ID, s.log, func() Pending {
		if probe {
			session = s.open(isModern, can)
		} else {
			session = s.session(isModern, can)
		}
		return session.Begin(s.lifetime, req)
	})
	s.pending.Go(func() {
		defer func() { <-s.slots }()
		defer p.Sent()
		if reply := p.Serve(); reply.ID != nil { // a failed writer ends the connection
			_ = s.out.Write(reply.AppendLine)
		}
		if probe && session != nil {
			closeSession(session, "probe answered", s.log)
		}
	})
}

// notification hands a notification to its session. It need not name its era and capabilities: one
// without an era goes to the legacy session, else to all; a modern one without capabilities goes to all
// modern sessions; a cancellation goes to all.
func (s *stdioServer) notification(m wire.Message) {
	meta, to := wire.ReadMeta(m.Params), s.sessions
	switch {
	case m.Method == wire.MethodCancelled && len(to) > 0:
	case modern(meta) && meta.ClientCapabilities == nil && len(s.modern) > 0:
		to = slices.Collect(maps.Values(s.modern))
	case modern(meta):
		to = []Session{s.session(true, wire.ReadCapabilities(meta.ClientCapabilities))}
	case s.legacy != nil || len(to) == 0:
		to = []Session{s.session(false, 0)}
	}
	for _, session := range to {
		accept(session, m, s.log)
	}
}

// session returns the connection's session of an era, opened on first use.
func (s *stdioServer) session(modern bool, can wire.Capabilities) Session {
	session := s.legacy
	if modern {
		session = s.modern[can]
	}
	if session != nil {
		return session
	}
	session = s.open(modern, can)
	s.sessions = append(s.sessions, session)
	if modern {
		s.modern[can] = session
	} else {
		s.legacy = session
	}
	return session
}

func (s *stdioServer) open(modern bool, can wire.Capabilities) Session {
	era := wire.Legacy
	if modern {
		era = wire.Modern
	}
	return s.router.Open(Peer{ID: s.sessionID, Identity: interceptor.Identity{Principal: interceptor.LocalPrincipal}, Capabilities: can, Transport: "stdio", Era: era, Push: s.send})
}

// refuse answers with an error of the server's own, and tells the router. The id may be nil.
func (s *stdioServer) refuse(status int, id []byte, fault *wire.Error) {
	s.router.Rejected(Rejection{From: "stdio", Principal: interceptor.LocalPrincipal, Status: status, Fault: fault})
	s.log.Debug("refused a message of the host", "error", fault)
	_ = s.out.Write(func(line []byte) []byte { return append(line, fault.Response(id)...) })
}

// send queues a message for the host and never blocks.
func (s *stdioServer) send(msg []byte) error {
	wire.OneLine(msg)
	err := s.out.Offer(func(line []byte) []byte { return append(line, msg...) })
	if _, full := errors.AsType[*wire.QueueFullError](err); full {
		return errSlowHost
	}
	if err == wire.ErrWriterClosed {
		return errHostGone
	}
	return err
}
