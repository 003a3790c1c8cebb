package server

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

func TestShutdownDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		e := NewHTTP(g, HTTPOptions{Log: testLog(t)})
		id := openIn(t, e)
		_, get := serveIn(t, e, hostRequest(t, "GET", localURL, "", wire.HeaderSession, id))
		finishes, w1 := serveIn(t, e, hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, id))
		cancelled, w2 := serveIn(t, e, hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, id))
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		done := make(chan error, 1)
		start := time.Now()
		go func() { done <- e.Shutdown(ctx) }()
		get() // ends at once
		if d := time.Since(start); d != 0 {
			t.Errorf("the GET stream ended after %v, want at once", d)
		}
		late, w3 := serveIn(t, e, hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, id))
		w3()
		if late.code() != http.StatusServiceUnavailable {
			t.Errorf("a call during shutdown = %d, want 503", late.code())
		}
		g.release <- doneReply
		synctest.Wait()
		if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown = %v, want the deadline for the call that hangs", err)
		}
		w1()
		w2()
		if !strings.Contains(finishes.text()+cancelled.text(), `"result":"done"`) {
			t.Error("the call that finished in time has no reply")
		}
		if opened, closed := g.counts(); opened != closed || g.serving.Load() != 0 {
			t.Errorf("sessions %d, %d, calls %d left", opened, closed, g.serving.Load())
		}
	})
}

// Sessions close together: a server with many of them is not slower to end than with one.
func TestSessionsCloseTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		router := newFakeRouter(nil)
		router.closing = 30 * time.Second
		e := NewHTTP(router, HTTPOptions{Log: testLog(t)})
		for range 5 {
			openIn(t, e)
		}
		start := time.Now()
		if err := e.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != router.closing {
			t.Errorf("Shutdown took %v, want %v", took, router.closing)
		}
		if _, closed := router.counts(); closed != 5 {
			t.Errorf("%d sessions closed, want 5", closed)
		}
	})
}

func TestServeHTTPLifecycle(t *testing.T) {
	ln, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := NewHTTP(newFakeRouter(nil), HTTPOptions{Log: testLog(t)})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, e, e.Handler(), time.Second) }()
	url := "http://" + ln.Addr().String() + "/mcp"
	id := openHost(t, url)
	resp := hostDo(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id))
	stop()
	if _, err := io.ReadAll(resp.Body); err != nil {
		t.Errorf("the GET stream broke instead of ending: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
	taken, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := Listen(t.Context(), taken.Addr().String()); err == nil || !strings.Contains(err.Error(), "another program has this port") {
		t.Errorf("Listen on a port that is taken: %v", err)
	}
	if _, err := Listen(t.Context(), "127.0.0.1:99999"); err == nil {
		t.Error("Listen on a port that does not exist: no error")
	}
}
