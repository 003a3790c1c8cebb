package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	// httpMaxHeader bounds the head of a request, in bytes.
	httpMaxHeader = 64 << 10
	// httpReadHeader is how long the head of a request may take to arrive, and
	// httpKeepAlive how long a connection may wait for its next request.
	httpReadHeader = 10 * time.Second
	httpKeepAlive  = 2 * time.Minute
)

// Handler returns the whole URL space: the MCP endpoints, /healthz (200 while
// the process lives) and /readyz (200 or 503, with the body of opts.Ready for
// those who may use the endpoint).
func (e *HTTP) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", e)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if !e.hostAllowed(r) { // it names upstreams
			http.Error(w, "Host "+r.Host+" is not served here; add it to allowed_hosts", http.StatusForbidden)
			return
		}
		status, ok, body := http.StatusOK, true, []byte(`{"status":"ready"}`)
		if e.opts.Ready != nil {
			var whole []byte
			ok, whole = e.opts.Ready()
			if _, _, known := e.opts.Tokens.authenticate(r.Header); known {
				body = whole
			} else if !ok {
				body = []byte(`{"status":"unready"}`)
			}
		}
		if !ok {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, body)
	})
	return mux
}

// Listen opens the address of the edge. Only port 0 differs afterwards: the
// listener knows the port that was chosen. Serve writes replies in fewer pieces
// on its connections, also if TLS is between.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listening on %s: another program has this port: stop it, or choose another port", addr)
	}
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", addr, err)
	}
	return gatherListener{ln}, nil
}

// Serve serves h on ln until ctx is done, then lets calls in flight finish
// for at most grace, ends the edge and every connection, and returns nil; or it
// returns the listener's fault. h is e.Handler(), or that behind middleware.
func Serve(ctx context.Context, ln net.Listener, e *HTTP, h http.Handler, grace time.Duration) error {
	srv := &http.Server{
		Handler:           h,
		ConnContext:       withGather,
		ReadHeaderTimeout: httpReadHeader,
		// Of a body that nobody asks for, too, and of what is not written under a
		// deadline of its own: else whoever sends half a request, or does not read,
		// holds a connection for good, with a token or without.
		ReadTimeout:    e.opts.IOTimeout,
		WriteTimeout:   2 * e.opts.IOTimeout, // from the head on: the body may take one
		IdleTimeout:    httpKeepAlive,
		MaxHeaderBytes: httpMaxHeader,
		ErrorLog:       slog.NewLogLogger(e.log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	_ = ln.Close() // no new connections while calls finish
	if e.Shutdown(limit) != nil {
		e.log.Warn("cancelled the calls that did not finish in time", "grace", grace)
	}
	if srv.Shutdown(limit) != nil {
		_ = srv.Close()
	}
	if err == nil {
		<-served
	}
	if err == nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving %s: %w", ln.Addr(), err)
}
