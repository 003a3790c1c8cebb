package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// stuck is a gateway that does not answer. It says in asked that an erasure has begun.
type stuck struct {
	Gateway
	asked chan struct{}
}

func (s stuck) Erase([]uint64, string) error {
	s.asked <- struct{}{}
	select {}
}

func (s stuck) OpenBranches() []Branch { select {} }

// serveStuck returns a client of a gateway that does not answer.
func serveStuck(t *testing.T, g stuck) *Client {
	dir, err := os.MkdirTemp("", "") // t.TempDir is longer than a socket's path may be on some systems
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	go func() { _ = Serve(t.Context(), dir, Handler(g, ""), slog.New(slog.DiscardHandler)) }()
	var found []*Client
	for found == nil {
		found, _ = Find(t.Context(), dir)
	}
	return found[0]
}

// A gateway that is stopped does not hold up who asks it.
func TestNoAnswer(t *testing.T) {
	c := serveStuck(t, stuck{})
	c.wait = 10 * time.Millisecond
	if _, err := c.OpenBranches(t.Context()); err == nil || !strings.Contains(err.Error(), "none for 10ms; see its log") {
		t.Errorf("branches of a gateway that does not answer: %v", err)
	}
}

// Who no longer waits for an erasure reads that the gateway goes on.
func TestInterruptedErasure(t *testing.T) {
	g := stuck{asked: make(chan struct{})}
	c := serveStuck(t, g)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	go func() {
		<-g.asked
		interrupt()
	}()
	err := c.Erase(ctx, []uint64{1})
	if err == nil || !strings.Contains(err.Error(), "goes on erasing") || !errors.Is(err, context.Canceled) {
		t.Errorf("an interrupted erasure: %v", err)
	}
}

// counts is a gateway that says of whom it shows and resets limits, and which branches it ends.
type counts struct {
	Gateway
	did []string
}

func (c *counts) ResetBudget(_ context.Context, limit, subject string) (int, error) {
	c.did = append(c.did, limit+" of "+subject)
	return 1, nil
}

func (c *counts) EndBranch(_ context.Context, id, reason string) (Branch, error) {
	c.did = append(c.did, id+": "+reason)
	return Branch{}, nil
}

func (c *counts) Budgets(_ context.Context, limit string) ([]Budget, error) {
	c.did = append(c.did, "shows "+limit)
	return nil, nil
}

func (c *counts) OpenBranches() []Branch { return nil }

// A query that is spelled wrong does nothing: without its subject a reset would be one of all.
func TestQueries(t *testing.T) {
	for target, want := range map[string]string{
		"DELETE /v1/budgets/day":                         "day of ",
		"DELETE /v1/budgets/day?subject=alice":           "day of alice",
		"DELETE /v1/budgets/day?sbject=alice":            "",
		"DELETE /v1/budgets/day?subject=":                "",
		"DELETE /v1/budgets/day?subject=a;b":             "",
		"DELETE /v1/budgets/day?subject=50%":             "",
		"DELETE /v1/budgets/day?subject=alice&subject=b": "",
		"DELETE /v1/branches/br_1":                       "br_1: ",
		"DELETE /v1/branches/br_1?reason=wrong":          "br_1: wrong",
		"DELETE /v1/branches/br_1?subject=alice":         "",
		"GET /v1/branches?principal=alice":               "",
		"GET /v1/budgets?limit=day":                      "shows day",
		"GET /v1/budgets?limit=":                         "",
	} {
		c := &counts{}
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		Handler(c, "").ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if got := strings.Join(c.did, ", "); got != want || (want == "") != (w.Code == http.StatusBadRequest) {
			t.Errorf("%s: %q, %d %s, want %q", target, got, w.Code, w.Body, want)
		}
	}
}

// noBranches is a gateway without an open branch.
type noBranches struct{ Gateway }

func (noBranches) EndBranch(context.Context, string, string) (Branch, error) {
	return Branch{}, ErrNoBranch
}

// The answer for a branch that is not open names it.
func TestEndOfNoBranch(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(noBranches{}, "").ServeHTTP(w, httptest.NewRequest("DELETE", "/v1/branches/br_1", nil))
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), `br_1`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The answer for a path or method that is not in the API names it, and those that are.
func TestUnknownPath(t *testing.T) {
	for _, r := range [][2]string{{"GET", "/v1/branchs"}, {"POST", "/v1/branches"}, {"GET", "/"}} {
		w := httptest.NewRecorder()
		Handler(noBranches{}, "").ServeHTTP(w, httptest.NewRequest(r[0], r[1], nil))
		var fault struct{ Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &fault); err != nil || w.Code != http.StatusNotFound ||
			!strings.Contains(fault.Error, r[0]+` "`+r[1]+`"`) || !strings.Contains(fault.Error, "DELETE /v1/branches/{id}") {
			t.Errorf("%v: %d %s", r, w.Code, w.Body)
		}
	}
}

// blanks is a text without an end.
type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Who names too many records for one request reads what to do.
func TestTooManySpans(t *testing.T) {
	_, err := readSpans(io.MultiReader(strings.NewReader("["), blanks{}))
	if err == nil || !strings.Contains(err.Error(), "name fewer") {
		t.Errorf("a body that is too large: %v", err)
	}
	var seqs []uint64
	for n := range uint64(maxSpans/len("[10000000000000000000,10000000000000000000],") + 1) {
		seqs = append(seqs, 10_000_000_000_000_000_000+2*n)
	}
	if err := new(Client).Erase(t.Context(), seqs); err == nil || !strings.Contains(err.Error(), "name fewer") {
		t.Errorf("a request that would be too large: %v", err)
	}
}

// Any body is refused, or read as numbers whose spans are read as the same numbers. No body makes more of
// them than the limit.
func FuzzSpans(f *testing.F) {
	for _, text := range []string{`[[1,3],[7,7]]`, `[[2,1]]`, `[[1,18446744073709551615]]`, `[[18446744073709551614,18446744073709551615]]`, `[[1]]`, `null`, `[[1,15000000],[1,15000000]]`, `{}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		seqs, err := readSpans(strings.NewReader(text))
		if err != nil {
			return
		}
		if len(seqs) > maxErased {
			t.Fatalf("%q: %d records", text, len(seqs))
		}
		want := slices.Compact(slices.Sorted(slices.Values(seqs)))
		body, err := json.Marshal(trace.Ranges(seqs))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readSpans(strings.NewReader(string(body))); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q is read as %v, and its spans %s as %v, %v", text, want, body, got, err)
		}
	})
}
