package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/foldgate/foldgate/internal/backoff"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

const (
	// retryDefault is how long to wait before a stream is opened again where
	// the upstream does not say.
	retryDefault = time.Second
	retryMax     = 30 * time.Second
	// resumeAttempts is how often in a row the stream of a call is resumed
	// without a single event before the call fails.
	resumeAttempts = 6
)

// errStreamBroken: the response stream of a call ended without a response.
var errStreamBroken = errors.New("upstream ended the response stream without an answer")

// position is how far a stream was read.
type position struct {
	id    string        // of the last event, "" if the upstream gives none
	retry time.Duration // what the upstream asked for, 0 if nothing
}

// backoff returns the waits between attempts to resume the stream.
func (p position) backoff() backoff.Backoff {
	first := retryDefault
	if p.retry > 0 {
		first = p.retry
	}
	return backoff.Backoff{First: first, Max: max(first, retryMax)}
}

// readStream reads the response stream of f until f is resolved. A broken one
// is resumed where the upstream numbers its events; the modern era can't.
func (l *httpLink) readStream(ctx context.Context, f *flight, body io.ReadCloser) error {
	var pos position
	for empty := 0; ; {
		events, resolved, err := l.readEvents(body, f, &pos)
		if resolved {
			l.finishBody(f, body)
			return nil
		}
		body.Close()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.call.Method == wire.MethodListen:
			return fmt.Errorf("%w: stream ended: %v", errListenEnded, err)
		case pos.id == "" || l.Info().Modern():
			return fmt.Errorf("%w: %v", errStreamBroken, err)
		}
		if empty++; events > 0 {
			empty = 0
		}
		if body, empty, err = l.resume(ctx, pos, empty); err != nil {
			return err
		}
	}
}

// resume asks for the rest of a stream. empty counts the attempts so far that
// brought nothing.
func (l *httpLink) resume(ctx context.Context, pos position, empty int) (io.ReadCloser, int, error) {
	for ; empty < resumeAttempts; empty++ {
		if err := pos.backoff().Wait(ctx, empty); err != nil {
			return nil, empty, err
		}
		resp, err := l.get(ctx, pos.id)
		if err == nil {
			return resp.Body, empty, nil
		}
		var status *statusError
		if errors.Is(err, conn.ErrClosed) || (errors.As(err, &status) && !retryable(status.code)) {
			return nil, empty, fmt.Errorf("%w: resuming it: %w", errStreamBroken, err)
		}
	}
	return nil, empty, fmt.Errorf("%w, also after %d attempts to resume it", errStreamBroken, empty)
}

func retryable(status int) bool {
	return status/100 == 5 && status != http.StatusNotImplemented ||
		status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status == http.StatusConflict
}

// finishBody reads the rest of a stream whose answer is there, in the
// background and for a short while: only a connection read to its end can be
// used again.
func (l *httpLink) finishBody(f *flight, body io.ReadCloser) {
	finish := func() {
		t := time.AfterFunc(drainTimeout, func() { f.abort(nil) })
		_, _ = io.Copy(io.Discard, io.LimitReader(body, maxErrorBody)) // nothing of it matters
		t.Stop()
		body.Close()
		f.abort(nil)
	}
	if !l.spawn(finish) {
		body.Close()
		f.abort(nil)
	}
}

// readEvents takes the events of one response body. own is the call whose
// stream it is, nil for the GET stream. It stops at the end of the body or
// when own is resolved, and returns how many events came.
func (l *httpLink) readEvents(body io.Reader, own *flight, pos *position) (events int, resolved bool, err error) {
	r := newEventReader(body, l.cfg.MaxMessage)
	r.id, r.lastID = pos.id, pos.id
	for {
		ev, err := r.next()
		pos.id = r.lastID
		if r.retry > 0 {
			pos.retry = r.retry
		}
		if err != nil {
			return events, false, err
		}
		events++
		l.take(ev, own)
		if own != nil && l.flights.get(own.id) == nil {
			return events, true, nil
		}
	}
}

// get opens an event stream, from the event after id on.
func (l *httpLink) get(ctx context.Context, id string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.cfg.URL, nil)
	if err != nil {
		return nil, err
	}
	l.setHeaders(req.Header)
	req.Header.Set("Accept", mediaEvents)
	if id != "" {
		req.Header.Set("Last-Event-Id", id)
	}
	resp, err := doHTTP(l.client, req)
	if err != nil {
		return nil, err
	}
	if l.forgotten(resp) {
		resp.Body.Close()
		return nil, conn.ErrSessionGone
	}
	if err := checkStatus(l.cfg, resp); err != nil {
		return nil, err
	}
	if contentType(resp.Header) != mediaEvents {
		resp.Body.Close()
		return nil, &statusError{code: resp.StatusCode, text: "no event stream"}
	}
	return resp, nil
}

// start opens the GET stream of a legacy upstream and keeps it open.
func (l *httpLink) start() {
	if l.Info().Modern() || !l.spawn(func() { defer close(l.noGet); l.listen() }) {
		close(l.noGet)
	}
}

// listen reads the GET stream, again and again, until the link is dead or the
// upstream has no such stream.
func (l *httpLink) listen() {
	ctx, cancel := l.context(context.Background())
	defer cancel()
	var pos position
	for failures := 0; ctx.Err() == nil; failures++ {
		resp, err := l.get(ctx, pos.id)
		if err == nil {
			var n int
			if n, _, err = l.readEvents(resp.Body, nil, &pos); n > 0 {
				failures = 0
			}
			resp.Body.Close()
		}
		var status *statusError
		if errors.As(err, &status) && !retryable(status.code) {
			l.cfg.Log.Debug("upstream has no GET stream", "because", err)
			return
		}
		l.cfg.Log.Debug("GET stream ended", "err", err)
		if pos.backoff().Wait(ctx, failures) != nil {
			return
		}
	}
}

// end makes the link dead; reason is nil for a plain close.
func (l *httpLink) end(reason error) {
	if l.die(reason) {
		l.flights.fail(l.deathReason())
	}
}

func (l *httpLink) Close() error {
	l.end(nil)
	if s := l.session.Swap(nil); s != nil && l.Err() == nil {
		l.deleteSession(*s)
	}
	l.wait()
	l.client.CloseIdleConnections()
	return nil
}

// deleteSession tells the upstream that its session is over. Upstreams may
// refuse, and one that does not answer soon has lost its chance.
func (l *httpLink) deleteSession(id string) {
	ctx, cancel := context.WithTimeout(context.Background(), deleteTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodDelete, l.cfg.URL, nil)
	if err != nil {
		return
	}
	l.setHeaders(req.Header)
	req.Header.Set(wire.HeaderSession, id)
	resp, err := doHTTP(l.client, req)
	if err != nil {
		l.cfg.Log.Debug("session not deleted", "err", err)
		return
	}
	resp.Body.Close()
}
