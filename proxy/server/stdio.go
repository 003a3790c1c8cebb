package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
	"github.com/google/uuid"
)

const (
	// stdioMaxLine is the longest message read from a stdio host, in bytes.
	stdioMaxLine = 64 << 20
	// stdioMaxInFlight bounds the requests that one host may have open.
	stdioMaxInFlight = 4096
	// stdioGrace is how long requests may finish after the host closed its end,
	// so that a script may pipe requests in and read the replies.
	stdioGrace = 500 * time.Millisecond
)

var errLineTooLong = errors.New("message larger than 64 MiB")

// stdioServer serves one host on a pair of byte streams. A connection has at most
// one session per era; a bare server/discover gets one of its own, so that a
// host that only probes leaves nothing behind.
type stdioServer struct {
	core Router
	log  *slog.Logger
	out  *lineWriter
	ctx  context.Context // of the exchanges; ends before the sessions are closed

	inFlight  sync.WaitGroup
	slots     chan struct{}
	sessionID string

	// Owned by the reader until it is done.
	legacy, modern Session
}

// ServeStdio speaks newline-delimited JSON-RPC with the host on in and out, in
// both eras, until in ends (nil), ctx is done (its cause) or out fails. Nothing
// but protocol is written to out. When it returns every exchange is over and the
// session is closed. If in is an io.Closer it is closed when ctx ends first; a
// read that even this does not interrupt is left behind, and does nothing more.
func ServeStdio(ctx context.Context, c Router, in io.Reader, out io.Writer, log *slog.Logger) error {
	exCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := &stdioServer{
		core: c, log: log, out: newLineWriter(out, maxQueue), ctx: exCtx,
		slots: make(chan struct{}, stdioMaxInFlight), sessionID: "ses_" + uuid.NewString(),
	}
	gate := &sync.Mutex{} // held by the reader while it handles a line
	read := make(chan error, 1)
	go func() { read <- e.read(in, gate) }()

	var err error
	reason := "the host closed the connection"
	select {
	case err = <-read:
		if err == nil {
			e.drain()
		}
	case <-e.out.failed:
		err, reason = fmt.Errorf("writing to the host: %w", e.out.err()), "the host is gone"
	case <-ctx.Done():
		err, reason = context.Cause(ctx), "foldgate is shutting down"
	}
	cancel(errors.New(reason))
	if closer, ok := in.(io.Closer); ok && err != nil {
		_ = closer.Close()
	}
	e.out.hurry()
	gate.Lock() // from here on the reader handles nothing more
	e.inFlight.Wait()
	for _, s := range []Session{e.legacy, e.modern} {
		if s != nil {
			guard(log, "closing the session", func() { s.Close(reason) })
		}
	}
	e.out.close(stdioGrace)
	return err
}

// drain gives what is in flight a moment to finish.
func (e *stdioServer) drain() {
	done := make(chan struct{})
	go func() { e.inFlight.Wait(); close(done) }()
	t := time.NewTimer(stdioGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
	case <-e.ctx.Done():
	case <-e.out.failed:
	}
}

// read handles line after line until in ends. It holds gate while it handles
// one and stops for good once the exchanges' context is done.
func (e *stdioServer) read(in io.Reader, gate *sync.Mutex) error {
	r := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := readLine(r, stdioMaxLine)
		gate.Lock()
		if e.ctx.Err() != nil {
			gate.Unlock()
			return nil
		}
		switch {
		case errors.Is(err, errLineTooLong):
			e.refuse(nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: err.Error()})
			err = nil
		case len(line) > 0:
			guard(e.log, "a message of the host", func() { e.handle(line) })
		}
		gate.Unlock()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the host: %w", err)
		}
	}
}

// readLine returns the next line without its end, in memory of its own, or
// errLineTooLong after it has skipped the line. A last line without an end
// counts; it comes with io.EOF.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if !tooLong && len(line)+len(part) > limit+1 {
			line, tooLong = nil, true
		}
		if !tooLong {
			line = append(line, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case tooLong && (err == nil || err == io.EOF):
			return nil, errLineTooLong
		}
		return rawjson.Trim(line), err
	}
}

// handle takes one line. Requests get a goroutine; the rest is done in order.
func (e *stdioServer) handle(line []byte) {
	if bytes.HasPrefix(line, []byte("[")) && rawjson.Valid(line, wire.MaxDepth) {
		e.batch(line)
		return
	}
	m, err := wire.ParseMessage(line)
	if err != nil {
		e.refuse(idOf(m), parseFault(err))
		return
	}
	e.dispatch(m)
}

// batch takes the messages of an array one by one, as revision 2025-03-26 has
// it; the responses go out singly.
func (e *stdioServer) batch(line []byte) {
	n := 0
	rawjson.Elements(line, func(v []byte) bool {
		n++
		if m, err := wire.ParseMessage(v); err != nil {
			e.refuse(idOf(m), parseFault(err))
		} else {
			e.dispatch(m)
		}
		return true
	})
	if n == 0 {
		e.refuse(nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "empty batch"})
	}
}

func (e *stdioServer) dispatch(m wire.Message) {
	switch {
	case m.IsRequest():
		e.request(m)
	case m.IsNotification():
		e.notification(m)
	case e.legacy != nil:
		guard(e.log, "an answer of the host", func() { e.legacy.Answer(m) })
	default:
		e.log.Debug("dropped a response: nothing was asked on this connection")
	}
}

func (e *stdioServer) request(m wire.Message) {
	meta := readMeta(m.Params)
	if meta.modern() {
		if fault := meta.check(); fault != nil {
			e.refuse(m.ID, fault)
			return
		}
	}
	select {
	case e.slots <- struct{}{}:
	default:
		e.refuse(m.ID, &wire.Error{Code: wire.CodeInternal, Message: fmt.Sprintf("%d requests are in flight, wait for a reply first", stdioMaxInFlight)})
		return
	}
	var s Session
	modern := meta.modern() || m.Method == wire.MethodDiscover // which only that era has
	probe := m.Method == wire.MethodDiscover && e.legacy == nil && e.modern == nil
	if probe {
		s = e.core.Open(e.peer(modern))
	} else {
		s = e.session(modern)
	}
	e.inFlight.Add(1)
	p := beginGuarded(e.ctx, s, &Request{Msg: m, Emit: e.out.offer}, e.log)
	go func() {
		defer e.inFlight.Done()
		defer func() { <-e.slots }()
		defer p.Sent()
		r := p.Serve()
		if !r.silent() {
			msg := r.encode(m.ID)
			_ = e.out.write(msg) // a failed writer ends the connection
			recycle(msg)         // which write has copied
		}
		if probe {
			guard(e.log, "closing a probe", func() { s.Close("probe answered") })
		}
	}()
}

// notification goes to the session it can concern. A notification does not say
// its era, so a cancellation goes to both sessions where there are two.
func (e *stdioServer) notification(m wire.Message) {
	to := []Session{e.legacy, e.modern}
	switch {
	case readMeta(m.Params).modern():
		to = []Session{e.session(true)}
	case e.legacy == nil && e.modern == nil:
		to = []Session{e.session(false)}
	case e.legacy != nil && m.Method != "notifications/cancelled":
		to = []Session{e.legacy}
	}
	for _, s := range to {
		if s != nil {
			guard(e.log, "a notification of the host", func() { s.Notify(m) })
		}
	}
}

// session returns the connection's session of the era, opened on first use.
func (e *stdioServer) session(modern bool) Session {
	at := &e.legacy
	if modern {
		at = &e.modern
	}
	if *at == nil {
		*at = e.core.Open(e.peer(modern))
	}
	return *at
}

func (e *stdioServer) peer(modern bool) Peer {
	era := wire.Legacy
	if modern {
		era = wire.Modern
	}
	return Peer{ID: e.sessionID, Principal: "local", Transport: "stdio", Era: era, ImplicitBranch: true, Ordered: true, Push: e.out.offer}
}

// refuse answers with an error of the edge's own, id null where id is nil.
func (e *stdioServer) refuse(id []byte, fault *wire.Error) {
	e.log.Debug("refused a message of the host", "error", fault)
	_ = e.out.write(fault.Response(id))
}

// idOf returns the id of a message that did not parse, where it has a usable
// one, so that even the refusal of an invalid request reaches its sender.
func idOf(m wire.Message) []byte {
	if k := rawjson.KindOf(m.ID); k == rawjson.String || k == rawjson.Number {
		return m.ID
	}
	return nil
}
