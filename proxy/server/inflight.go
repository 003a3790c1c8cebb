package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/foldgate/foldgate/proxy/wire"
)

// inFlight counts the requests in flight over HTTP and their bytes, of all hosts or of a principal. Its bytes include bodies that
// still arrive. Connections do not bound them: the request of a legacy host goes on when the host leaves.
type inFlight struct{ requests, bytes int }

// run lets Shutdown wait for what is no request. It returns false if Shutdown has begun. Else running.Done must be called.
func (srv *HTTP) run() bool {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if !srv.closing {
		srv.running.Add(1)
	}
	return !srv.closing
}

// enter counts a request of size bytes in. It refuses the request, and returns false, if Shutdown has begun or if too
// many are in flight. Else counted.leave must be called, by a defer: whatever panics, the request is counted out.
func (x *exchange) enter(id json.RawMessage, size int) bool {
	switch err := x.srv.enter(x.caller.Principal, size); err {
	case nil:
		x.counted = countedRequest{x.srv, x.caller.Principal, size}
		return true
	case errShutdown:
		x.refuseShutdown(id)
	default:
		x.w.Header().Set("Retry-After", "1")
		x.refuse(http.StatusTooManyRequests, id, invalid(wire.CodeInternal, err.Error()))
	}
	return false
}

// countedRequest is a request that is counted in; the zero value is none.
type countedRequest struct {
	srv       *HTTP
	principal string
	size      int
}

// leave counts the request out, once.
func (c *countedRequest) leave() {
	if c.srv != nil {
		c.srv.leave(c.principal, c.size)
		c.srv = nil
	}
}

// enter is [exchange.enter] for a caller that refuses the request itself, with the error.
func (srv *HTTP) enter(principal string, size int) error {
	several := srv.opts.Access().Auth.Several()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if srv.closing {
		return errShutdown
	}
	err := srv.take(principal, several, inFlight{1, size})
	if err == nil {
		srv.running.Add(1)
	}
	return err
}

// take counts more in, unless that is too much. The caller holds mu.
func (srv *HTTP) take(principal string, several bool, more inFlight) error {
	most := inFlight{srv.opts.MaxRequests, srv.opts.MaxRequestBytes}
	err := srv.allInFlight.tooMany(more, most)
	if several && err == nil {
		err = srv.inFlight[principal].tooMany(more, inFlight{most.requests / 2, most.bytes / 2})
	}
	if err == nil {
		srv.add(principal, more)
	}
	return err
}

// tooMany says what is too much if more comes. If nothing is in flight, nothing is too much.
func (f inFlight) tooMany(more, most inFlight) error {
	switch {
	case f.requests > 0 && f.requests+more.requests > most.requests:
		return fmt.Errorf("%d requests are in flight, wait for a reply first", f.requests)
	case f.bytes > 0 && f.bytes+more.bytes > most.bytes:
		return fmt.Errorf("%d bytes of requests are in flight, wait for a reply first", f.bytes)
	}
	return nil
}

// add counts more in, or out if it is negative. The caller holds mu.
func (srv *HTTP) add(principal string, more inFlight) {
	sum := func(f inFlight) inFlight { return inFlight{f.requests + more.requests, f.bytes + more.bytes} }
	srv.allInFlight = sum(srv.allInFlight)
	if own := sum(srv.inFlight[principal]); own == (inFlight{}) {
		delete(srv.inFlight, principal)
	} else {
		srv.inFlight[principal] = own
	}
}

// leave counts out a request that was counted in.
func (srv *HTTP) leave(principal string, size int) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	srv.add(principal, inFlight{-1, -size})
	srv.running.Done()
}

// freeBody is how much of a body is read before its bytes count as in flight, so that a cancellation is always taken.
const freeBody = 64 << 10

// countedBody is a body whose bytes count as in flight while it arrives: a host may send many, and slowly.
type countedBody struct {
	io.Reader
	x          *exchange
	read, held int
	full       error // why it is not read to its end
}

// Read implements [io.Reader].
func (b *countedBody) Read(p []byte) (n int, err error) {
	n, err = b.Reader.Read(p)
	if b.read += n; b.read-b.held > freeBody && b.hold(b.read-b.held) != nil {
		err = b.full
	}
	return n, err
}

// hold counts n bytes more in.
func (b *countedBody) hold(n int) error {
	srv, several := b.x.srv, b.x.srv.opts.Access().Auth.Several()
	srv.mu.Lock()
	defer srv.mu.Unlock()
	if b.full = srv.take(b.x.caller.Principal, several, inFlight{0, n}); b.full == nil {
		b.held += n
	}
	return b.full
}

// release counts the bytes out.
func (b *countedBody) release() {
	if b.held == 0 { // as of most bodies
		return
	}
	b.x.srv.mu.Lock()
	defer b.x.srv.mu.Unlock()
	b.x.srv.add(b.x.caller.Principal, inFlight{0, -b.held})
}
