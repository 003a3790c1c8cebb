// Package control is the interface for the operator of a gateway: a small HTTP and JSON API on a Unix
// socket that only the user of the gateway can reach. [Serve] offers it; [Find] connects to the
// gateways that use a state directory.
//
//	GET    /v1/branches          {"branches":[Branch, …]}
//	DELETE /v1/branches/{id}     Branch; ?reason= is for the trace
//	GET    /v1/budgets           {"budgets":[Budget, …]}; ?limit= names one limit
//	DELETE /v1/budgets/{limit}   {"reset":2}; ?subject= names one subject
//	POST   /v1/read              {}; the trace records that somebody reads ?record= or ?export= of it
//	POST   /v1/reload            Reloaded
//	POST   /v1/trace/erase       {}; the body [[2,5],[9,9]] names records by ranges of their numbers
//
// A failure has a status of 400 or more and the body {"error":"what to do"}. Later versions may add
// members; what is removed or changes its meaning gets another path.
package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Gateway is what the operator can do. Errors are told to the operator.
type Gateway interface {
	// OpenBranches returns the open branches of all principals, oldest first.
	OpenBranches() []Branch
	// EndBranch ends a branch by force, for a reason that the trace has.
	EndBranch(ctx context.Context, id, reason string) (Branch, error)
	// Budgets returns what a limit or, with "", all limits have left, for each subject with use in its window.
	Budgets(ctx context.Context, limit string) ([]Budget, error)
	// ResetBudget sets the use of a limit to 0, by one subject or, with "", by all. It returns how many
	// there were.
	ResetBudget(ctx context.Context, limit, subject string) (int, error)
	// Reload puts the changed configuration in force.
	Reload() (Reloaded, error)
	// Erase erases the payloads of the records of the trace with these numbers, for by.
	Erase(seqs []uint64, by string) error
}

// ErrNoBranch is the error of [Gateway.EndBranch] for a branch that is not open at the gateway.
var ErrNoBranch = errors.New("no branch with this id is open")

// ErrNoLimit is the error of [Gateway.Budgets] and [Gateway.ResetBudget] for a limit that the configuration does
// not have. The name of the limit follows.
var ErrNoLimit = errors.New("there is no limit")

// Branch is an open branch, or one that has just been ended.
type Branch struct {
	ID          string    `json:"id"`
	Context     string    `json:"context"` // the ids of its parents and itself, a/b/c
	Principal   string    `json:"principal"`
	Session     string    `json:"session"`
	Description string    `json:"description"`
	Created     time.Time `json:"created"`
	Expires     time.Time `json:"expires"`
	Used        int       `json:"used"`   // tokens
	Budget      int       `json:"budget"` // tokens
	Calls       int       `json:"calls"`
	InFlight    int       `json:"in_flight"`
}

// Budget is the state of a limit for one subject.
type Budget = limits.State

// Quantity is what a [Budget] counts in one unit.
type Quantity = limits.Quantity

// Reloaded is what a reload did.
type Reloaded struct {
	Config  string   `json:"config,omitempty"` // the SHA-256 of the file that is in force
	Changed []string `json:"changed"`          // keys with a new value
	// Restart are keys with a new value in the file that takes effect only after a restart.
	Restart []string `json:"restart"`
}

// socket returns the socket of a gateway by its state directory. Its own directory is closed to other
// users also if the state directory is not.
func socket(state string) string { return filepath.Join(state, "control", "socket") }

// maxPath is the longest path of a socket that every system takes, in bytes.
const maxPath = 103

type userKey struct{}

// User returns the number of the user whose process sent a request over the socket, "" if the system does
// not tell, and for other requests.
func User(r *http.Request) string {
	user, _ := r.Context().Value(userKey{}).(string)
	return user
}

// byHeader is the header of a request over the socket with [Client.By], escaped as in a query.
const byHeader = "Foldgate-By"

// By returns the person for whom a request over the socket asks, as [Client.By] says. It is "" if the user of
// the client's process asks.
func By(r *http.Request) string {
	by, err := url.QueryUnescape(r.Header.Get(byHeader))
	if err != nil || User(r) == "" {
		return ""
	}
	return by
}

// Serve offers h, a [Handler], in the state directory until ctx is done. The caller holds the directory: a
// socket that is there is a dead process's.
func Serve(ctx context.Context, state string, h http.Handler, log *slog.Logger) error {
	path := socket(state)
	if len(path) > maxPath {
		return fmt.Errorf("%s has %d bytes, more than the %d of a socket's path: set a shorter state_dir", path, len(path), maxPath)
	}
	dir := filepath.Dir(path)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is not a directory: remove it", dir)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return errors.Join(err, ln.Close())
	}
	srv := &http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if uid, known := peer(c); known {
				ctx = context.WithValue(ctx, userKey{}, strconv.Itoa(uid))
			}
			return ctx
		},
		Handler: h, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	if err := srv.Serve(ownListener{ln}); ctx.Err() == nil {
		return err
	}
	return nil
}

// ownListener closes connections of other users, where the system tells who they are.
type ownListener struct{ net.Listener }

// Accept implements [net.Listener].
func (l ownListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, known := peer(c); !known || uid == os.Geteuid() || uid == 0 {
			return c, nil
		}
		_ = c.Close()
	}
}

// Handler answers the requests of the API. It checks no rights. prefix is the path before that of a request, for those
// who have a role; it is "" on the socket, which alone takes a POST. The trace is for a handler of its own.
func Handler(g Gateway, prefix string) http.Handler {
	mux := http.NewServeMux()
	var patterns []string
	if prefix != "" {
		patterns = []string{"GET " + prefix + "/v1/trace"}
	}
	handle := func(pattern string, answer func(*http.Request) (any, error)) {
		method, path, _ := strings.Cut(pattern, " ")
		if prefix != "" && method == http.MethodPost {
			return
		}
		patterns = append(patterns, method+" "+prefix+path)
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			out, err := answer(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				status := http.StatusConflict
				if _, wrong := errors.AsType[queryError](err); wrong {
					status = http.StatusBadRequest
				} else if errors.Is(err, ErrNoBranch) || errors.Is(err, ErrNoLimit) || errors.Is(err, errNoPath) {
					status = http.StatusNotFound
				}
				w.WriteHeader(status)
				out = map[string]string{"error": err.Error()}
			}
			_ = json.NewEncoder(w).Encode(out) // after an error the client is gone
		})
	}
	handle("GET /v1/branches", func(r *http.Request) (any, error) {
		return map[string][]Branch{"branches": g.OpenBranches()}, checkQuery(r, "")
	})
	handle("DELETE /v1/branches/{id}", func(r *http.Request) (any, error) {
		if err := checkQuery(r, "reason"); err != nil {
			return nil, err
		}
		b, err := g.EndBranch(r.Context(), r.PathValue("id"), r.FormValue("reason"))
		if errors.Is(err, ErrNoBranch) {
			err = fmt.Errorf("%w: %.64q; GET branches lists those that are", err, r.PathValue("id"))
		}
		return b, err
	})
	handle("GET /v1/budgets", func(r *http.Request) (any, error) {
		if err := checkQuery(r, "limit"); err != nil {
			return nil, err
		}
		all, err := g.Budgets(r.Context(), r.FormValue("limit"))
		return map[string][]Budget{"budgets": all}, err
	})
	handle("DELETE /v1/budgets/{limit}", func(r *http.Request) (any, error) {
		if err := checkQuery(r, "subject"); err != nil {
			return nil, err
		}
		n, err := g.ResetBudget(r.Context(), r.PathValue("limit"), r.FormValue("subject"))
		return map[string]int{"reset": n}, err
	})
	handle("POST /v1/read", func(*http.Request) (any, error) { return struct{}{}, nil }) // it is recorded, as all that is no GET
	handle("POST /v1/reload", func(*http.Request) (any, error) { return g.Reload() })
	handle("POST /v1/trace/erase", func(r *http.Request) (any, error) {
		seqs, err := readSpans(r.Body)
		if err != nil {
			return nil, err
		}
		by := User(r)
		if u, err := user.LookupId(by); err == nil {
			by = u.Username
		}
		return struct{}{}, g.Erase(seqs, cmp.Or(by, "unknown"))
	})
	known := strings.Join(patterns, ", ")
	handle("/", func(r *http.Request) (any, error) {
		return nil, fmt.Errorf("%w as %s %.100q; there are %s", errNoPath, r.Method, prefix+r.URL.Path, known)
	})
	return mux
}

var errNoPath = errors.New("there is nothing in the control API")

// queryError is that of a query which a request can't have.
type queryError struct{ error }

// checkQuery returns an error if the query of a request has something else than one value of a name, if it is
// not "". A reset whose subject is spelled wrong, or empty, would be one of all subjects.
func checkQuery(r *http.Request, name string) error {
	query, err := url.ParseQuery(r.URL.RawQuery) // URL.Query leaves out what is malformed
	if err != nil {
		return queryError{fmt.Errorf("the query of %s %s is malformed: %w", r.Method, r.URL.Path, err)}
	}
	for other, values := range query {
		switch {
		case other != name:
			return queryError{fmt.Errorf("%.40q: there is no such name in the query of %s %s; use %s", other, r.Method, r.URL.Path, cmp.Or(name, "none"))}
		case len(values) > 1 || values[0] == "":
			return queryError{fmt.Errorf("%s: give it one value, or leave it out", name)}
		}
	}
	return nil
}

// Bounds of one erasure: the body in bytes, and the records.
const (
	maxSpans  = 64 << 20
	maxErased = 20_000_000
)

var errTooLarge = fmt.Errorf("one erasure names its records in at most %d MiB; name fewer, such as by --until", maxSpans>>20)

// readSpans returns the numbers in ranges.
func readSpans(r io.Reader) (seqs []uint64, err error) {
	var all []trace.Range
	body := &io.LimitedReader{R: r, N: maxSpans + 1}
	if err := json.NewDecoder(body).Decode(&all); err != nil {
		if body.N == 0 {
			err = errTooLarge
		}
		return nil, fmt.Errorf("the numbers of records: %w", err)
	}
	for _, s := range all {
		if s[1] < s[0] || s[1]-s[0] >= uint64(maxErased-len(seqs)) { // #nosec G115: not below 0
			return nil, fmt.Errorf("records %d to %d: the first comes first, and one erasure has at most %d records; name fewer, such as by --until", s[0], s[1], maxErased)
		}
		for n := range s[1] - s[0] + 1 {
			seqs = append(seqs, s[0]+n)
		}
	}
	return seqs, nil
}

// PatientWriter gives each write a deadline of its own: an answer may last as long as its reader reads.
type PatientWriter struct{ http.ResponseWriter }

// Write implements [http.ResponseWriter].
func (w PatientWriter) Write(b []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(30 * time.Second)) // not supported by test recorders
	return w.ResponseWriter.Write(b)
}
