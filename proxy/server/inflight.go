package server

import (
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/foldgate/foldgate/proxy/wire"
)

// inFlight is what the requests in flight over HTTP hold, of all hosts or of a principal. Connections do not bound
// them: the request of a legacy host goes on when the host leaves.
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
// many are in flight. Else leave must be called, by a defer: whatever panics, the request is counted out.
func (x *exchange) enter(id json.RawMessage, size int) bool {
	switch err := x.srv.enter(x.caller.Principal, size); err {
	case nil:
		x.entered, x.size = true, size
		return true
	case errShutdown:
		x.refuseShutdown(id)
	default:
		x.w.Header().Set("Retry-After", "1")
		x.refuse(http.StatusTooManyRequests, id, invalid(wire.CodeInternal, err.Error()))
	}
	return false
}

// leave counts out the request that enter has counted in, if it has not done so yet.
func (x *exchange) leave() {
	if x.entered {
		x.entered = false
		x.srv.leave(x.caller.Principal, x.size)
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
	own, most := srv.inFlight[principal], inFlight{srv.opts.MaxRequests, srv.opts.MaxRequestBytes}
	err := srv.allInFlight.tooMany(size, most)
	if several && err == nil {
		err = own.tooMany(size, inFlight{most.requests / 2, most.bytes / 2})
	}
	if err != nil {
		return err
	}
	own.requests, own.bytes = own.requests+1, own.bytes+size
	srv.inFlight[principal] = own
	srv.allInFlight.requests, srv.allInFlight.bytes = srv.allInFlight.requests+1, srv.allInFlight.bytes+size
	srv.running.Add(1)
	return nil
}

// tooMany says what is too much if one more request comes, of size bytes. A request alone is never too large.
func (f inFlight) tooMany(size int, most inFlight) error {
	switch {
	case f.requests > 0 && f.requests >= most.requests:
		return fmt.Errorf("%d requests are in flight, wait for a reply first", f.requests)
	case f.requests > 0 && f.bytes+size > most.bytes:
		return fmt.Errorf("%d requests with %d bytes are in flight, wait for a reply first", f.requests, f.bytes)
	}
	return nil
}

// leave counts out a request that was counted in.
func (srv *HTTP) leave(principal string, size int) {
	srv.mu.Lock()
	defer srv.mu.Unlock()
	own := srv.inFlight[principal]
	if own.requests, own.bytes = own.requests-1, own.bytes-size; own.requests == 0 {
		delete(srv.inFlight, principal)
	} else {
		srv.inFlight[principal] = own
	}
	srv.allInFlight.requests, srv.allInFlight.bytes = srv.allInFlight.requests-1, srv.allInFlight.bytes-size
	srv.running.Done()
}
