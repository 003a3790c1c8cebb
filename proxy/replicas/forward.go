package replicas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
)

// Headers between replicas. Those of a host with these names are replaced.
const (
	headerTo     = "Foldgate-Replica"   // the name of the replica that is meant: an address can have got another one
	headerClient = "Foldgate-Client"    // the address of the host
	headerNot    = "Foldgate-Not-Taken" // of a response: the request had no effect, and may be sent again
)

const (
	patience = 10 * time.Second // a request waits so long for its owner to come back
	avoidFor = 10 * time.Second // a replica that was not reached gets no request that another one can take
)

var retries = backoff.Backoff{First: 20 * time.Millisecond, Max: 500 * time.Millisecond}

// Target says which replica a request is for.
type Target struct {
	Replica   string // that its ids name; "" for none: then its principal decides
	Principal string
}

// DownError says that the owner of a request is down. The request had no effect.
type DownError struct {
	Replica string
	Retry   time.Duration // when to try again
	Absent  bool          // it is down for so long that requests do not wait for it
}

func (e *DownError) Error() string {
	return fmt.Sprintf("replica %s, which this belongs to, is down: try again in %d s", e.Replica, int(e.Retry.Seconds()))
}

// errBroken says that a replica went away after it had got a request.
var errBroken = errors.New("the replica that this belongs to went away before it had answered: it may have had an effect")

// ErrHung says that a replica stopped answering after it had got a request.
var ErrHung = errors.New("the replica that this belongs to does not answer any more: the request may have had an effect")

var errNotTaken = errors.New("the replica did not take the request")

// Forward answers r by the replica that it is for. It returns false if that is this one, and then did
// nothing. An error is a [*DownError], errBroken or [ErrHung], and nothing was written. body is what was read of r's body.
// The response ends early when ctx does.
func (s *Set) Forward(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte, to Target) (forwarded bool, err error) {
	deadline := time.Now().Add(patience)
	tried := map[string]bool{} // those that did not take it, of a request without ids
	for n := 0; ; n++ {
		m, here := s.owner(to, tried)
		if here {
			return false, nil
		}
		if m.Address == "" { // it is not known where
			return true, s.count(&DownError{m.Name, patience, false})
		}
		if err = s.send(ctx, w, r, body, m); !errors.Is(err, errNotTaken) {
			return true, s.count(err)
		}
		s.miss(m)
		if to.Replica == "" {
			tried[m.Name] = true
			continue
		}
		if gone := m.Seen > absent; gone || time.Now().After(deadline) {
			return true, s.count(&DownError{m.Name, patience, gone})
		}
		if retries.Wait(ctx, n) != nil {
			if r.Context().Err() == nil { // this replica stops
				return true, &DownError{m.Name, time.Second, false}
			}
			return true, nil
		}
	}
}

// owner returns the replica for a request. here means this replica. It is also true if no replica has the
// name any more. A request without ids goes to none of tried.
func (s *Set) owner(to Target, tried map[string]bool) (m Member, here bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.Replica != "" {
		if known := s.members[to.Replica]; known != nil && to.Replica != s.opts.Name {
			return *known, false
		}
		if len(s.members) == 0 && to.Replica != s.opts.Name { // the registry was never read
			return Member{Name: to.Replica}, false
		}
		return Member{}, true
	}
	var best *Member
	highest := score(to.Principal, s.opts.Name)
	if s.state != Up {
		highest = 0
	}
	for _, other := range s.members {
		if other.Name == s.opts.Name || other.State != Up || tried[other.Name] || time.Since(other.missed) < avoidFor {
			continue
		}
		if n := score(to.Principal, other.Name); n > highest {
			best, highest = other, n
		}
	}
	if best == nil {
		return Member{}, true
	}
	return *best, false
}

// Known reports whether a replica has that name. Until the registry is read for the first time, any may be one.
func (s *Set) Known(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return name == s.opts.Name || s.members[name] != nil || len(s.members) == 0
}

// silent reports whether a replica has stopped registering although its connections still stand.
func (s *Set) silent(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.members[name]
	return m != nil && m.State == Down
}

func (s *Set) miss(m Member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if known := s.members[m.Name]; known != nil {
		known.missed = time.Now()
	}
}

// count counts a request that was forwarded, or failed with err, which it returns.
func (s *Set) count(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.counts.Failed++
	} else {
		s.counts.Forwarded++
	}
	return err
}

// send passes a request on. It fails with errNotTaken if it had no effect. After any other error nothing was
// written either.
func (s *Set) send(ctx context.Context, w http.ResponseWriter, r *http.Request, body []byte, m Member) (err error) {
	out := r.Clone(ctx)
	out.Header.Del("Upgrade") // this and Expect are about the host's connection
	out.Header.Del("Expect")
	out.Body, out.ContentLength = http.NoBody, int64(len(body))
	if len(body) > 0 {
		out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil } // lets the transport send it again
		out.Body, _ = out.GetBody()
	}
	p := httputil.ReverseProxy{
		Transport: s.out,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "https", m.Address
			p.Out.Host = p.In.Host
			p.Out.Header.Set(headerTo, m.Name)
			p.Out.Header.Set(headerClient, p.In.RemoteAddr)
		},
		ModifyResponse: func(res *http.Response) error {
			if res.Header.Get(headerNot) != "" {
				return errNotTaken
			}
			for name := range w.Header() { // what this replica has answered already, such as the origin that may ask
				res.Header.Del(name)
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, failed error) {
			switch {
			case r.Context().Err() != nil: // the host is gone
			case ctx.Err() != nil: // this replica stops
				err = errBroken
			case errors.Is(failed, errNotTaken):
				err = errNotTaken
			default:
				s.opts.Log.Warn("a request that was passed on failed", "replica", m.Name, "err", failed)
				if err = errBroken; s.silent(m.Name) {
					err = ErrHung
				}
			}
		},
	}
	defer func() {
		// A response that breaks off breaks off for the host, too, unless this replica ends it.
		if p := recover(); p != nil && (p != http.ErrAbortHandler || ctx.Err() == nil) {
			panic(p)
		}
	}()
	p.ServeHTTP(w, out)
	return err
}

type forwardedKey struct{}

// Forwarded reports whether another replica has passed a request on to this one.
func Forwarded(r *http.Request) bool { return r.Context().Value(forwardedKey{}) != nil }

// NotTaken marks a response: the request had no effect here, and its sender may send it again.
func NotTaken(h http.Header) { h.Set(headerNot, "1") }

// Serve takes the requests that other replicas pass on, and gives them to h, until Close. It does not
// wait.
func (s *Set) Serve(ln net.Listener, h http.Handler) {
	s.peers = s.keys.server(s.receive(h))
	s.peers.ErrorLog = slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug)
	s.running.Go(func() {
		if err := s.peers.ServeTLS(ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log.Error("replicas.listen: no more requests of other replicas are taken", "err", err)
		}
	})
}

// receive checks the headers of a request that another replica has passed on, and takes them out.
func (s *Set) receive(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(headerTo) != s.opts.Name {
			NotTaken(w.Header())
			http.Error(w, "another replica is meant", http.StatusMisdirectedRequest)
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), forwardedKey{}, true))
		r.RemoteAddr = r.Header.Get(headerClient)
		r.Header.Del(headerTo)
		r.Header.Del(headerClient)
		h.ServeHTTP(w, r)
	})
}
