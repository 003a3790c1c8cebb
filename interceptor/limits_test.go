package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
)

func limitStore(t *testing.T) limits.Store {
	t.Helper()
	store, err := limits.OpenSQLite(filepath.Join(t.TempDir(), "budgets.db"), slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return store
}

// limitOf returns one limit for all, of so many tokens a day.
func limitOf(t *testing.T, name string, tokens int, store limits.Store, o limits.Options) *Limits {
	t.Helper()
	one := limits.Limit{Name: name, Per: limits.PerAll, Tokens: limits.Amount(tokens)}
	if err := one.Window.UnmarshalText([]byte("1d")); err != nil {
		t.Fatal(err)
	}
	l, err := limits.New([]limits.Limit{one}, store, o)
	if err != nil {
		t.Fatal(err)
	}
	return &Limits{Limits: l, Shown: func(server, tool string) string { return server + "__" + tool }, Stateless: "2026-07-28"}
}

func tokensLeft(t *testing.T, l *Limits) (left int) {
	t.Helper()
	states, err := l.States(t.Context(), &Origin{}, false)
	if err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
	return int(states[0].Tokens - states[0].TokensUsed)
}

// Whatever is metered, wherever it runs and however little a limit has left: no more is delivered
// than that, what is delivered is charged to the token, and the branch goes on.
func TestLimitsOfEveryKind(t *testing.T) {
	f, store, n := newFoldBench(t), limitStore(t), 0
	kinds := map[string]struct {
		target Target
		from   Direction
		body   string
		fault  string
	}{
		"tool":     {Target{Server: "db", Method: "tools/call", Name: "query"}, FromHost, textBody(words(600)), ""},
		"failure":  {Target{Server: "db", Method: "tools/call", Name: "query"}, FromHost, textBody(words(600))[:len(textBody(words(600)))-1] + `,"isError":true}`, ""},
		"error":    {Target{Server: "db", Method: "tools/call", Name: "query"}, FromHost, "", `{"code":-32000,"message":` + fmt.Sprintf("%q", words(600)) + `}`},
		"folded":   {Target{Server: "db", Method: "tools/call", Name: "query"}, FromHost, textBody(words(20000)), ""},
		"own":      {Target{Method: "tools/call", Name: "branch_read"}, FromHost, textBody(words(600)), ""},
		"task":     {Target{Server: "db", Method: MethodTaskResult, Name: "query"}, FromHost, textBody(words(600)), ""},
		"resource": {Target{Server: "db", Method: "resources/read", Name: "x://y"}, FromHost, `{"contents":[{"uri":"x","text":` + fmt.Sprintf("%q", words(600)) + `}]}`, ""},
		"prompt":   {Target{Server: "db", Method: "prompts/get", Name: "p"}, FromHost, `{"messages":[{"role":"user","content":{"type":"text","text":` + fmt.Sprintf("%q", words(600)) + `}}]}`, ""},
		"unknown":  {Target{Server: "db", Method: "x/y"}, FromHost, `{"x":` + fmt.Sprintf("%q", words(600)) + `}`, ""},
		"sampling": {Target{Server: "db", Method: "sampling/createMessage", Params: json.RawMessage(`{"messages":[{"role":"user","content":{"type":"text","text":"what is this?"}}]}`)}, ToHost,
			`{"role":"assistant","content":{"type":"text","text":` + fmt.Sprintf("%q", words(600)) + `}}`, ""},
	}
	for name, k := range kinds {
		for _, budget := range []int{0, 400, 32768} {
			for _, total := range []int{4, 20, 100, 300, 599, 620, 1000, 100000} {
				func() {
					at := fmt.Sprintf("%s in a branch of %d, limit %d", name, budget, total)
					n++
					l := limitOf(t, fmt.Sprint(n), total, store, limits.Options{})
					c := &Call{Origin: Origin{Direction: k.from, Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: k.target}
					c.Target.Metered, c.Target.Arguments = true, json.RawMessage(`{"sql":"select"}`)
					if budget > 0 {
						c.Attribution.Branch = f.branch(budget)
					}
					if b := c.Attribution.Branch; b != nil {
						defer func() { _, _ = f.m.Return(context.Background(), me, b.ID, "") }()
					}
					made := false
					h := wrap(func(context.Context, *Call) (*Result, error) {
						made = true
						if k.fault != "" {
							return &Result{Error: json.RawMessage(k.fault)}, nil
						}
						return &Result{Body: json.RawMessage(k.body)}, nil
					}, Meter(f.m, func() *Limits { return l }, f.gauge), Fold(f.store, f.gauge, func() *FoldPolicy { return &f.policy }, testBoundary(t), slog.New(slog.DiscardHandler)))
					res, err := h(t.Context(), c)
					in, delivered := f.gauge.request(c), 0
					if res != nil {
						delivered = f.gauge.Result(res)
					}
					if !made {
						in = 0
					}
					if left := tokensLeft(t, l); left != total-in-delivered || left < 0 {
						t.Errorf("%s: %d in and %d delivered, %d left", at, in, delivered, left)
					}
					if delivered != c.Outcome.Tokens.Delivered {
						t.Errorf("%s: %d recorded, %d delivered", at, c.Outcome.Tokens.Delivered, delivered)
					}
					if name == "folded" && budget != 400 && total >= 100 && c.Outcome.Truncated {
						t.Errorf("%s: the preview was cut, not made smaller", at)
					}
					var r *Refusal
					var spent *limits.ExceededError
					if err != nil && (!errors.As(err, &r) || !errors.As(err, &spent) && budget != 400) {
						t.Errorf("%s: %v", at, err)
					}
					if spent != nil && (r.Code != "limit_exceeded" || r.Rule != fmt.Sprint(n) || r.Status != 429 || (r.RetryAfter > 0) != (!made && !spent.Reset.IsZero())) { // neither a call that was made nor one that never fits is to be made again
						t.Errorf("%s: %+v", at, r)
					}
					if budget == 32768 {
						b, _, err := f.m.Status(t.Context(), me, folding.StatusRequest{BranchID: c.Attribution.Branch.ID})
						if err != nil || b.Status != folding.StatusActive || b.BudgetUsed != in+delivered+f.gauge.Counter.Count("d") {
							t.Errorf("%s: the branch is %s with %d used, %d delivered, %v", at, b.Status, b.BudgetUsed, delivered, err)
						}
					}
				}()
			}
		}
	}
}

// Without the store on_error decides: no call, or all of it.
func TestLimitsWithoutTheirStore(t *testing.T) {
	f := newFoldBench(t)
	for _, allow := range []bool{false, true} {
		store := limitStore(t)
		l := limitOf(t, "l", 1000, store, limits.Options{Allow: allow})
		_ = store.Close()
		c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Server: "db", Method: "tools/call", Name: "query", Metered: true}}
		res, err := wrap(func(context.Context, *Call) (*Result, error) {
			return &Result{Body: json.RawMessage(textBody("x"))}, nil
		},
			Meter(f.m, func() *Limits { return l }, f.gauge))(t.Context(), c)
		var r *Refusal
		if allow != (res != nil) || !allow && (!errors.As(err, &r) || r.Code != "limits_unavailable") {
			t.Errorf("allow %v: %v, %v", allow, res, err)
		}
		if c.Outcome.Unconfirmed != allow {
			t.Errorf("allow %v: unconfirmed is %v", allow, c.Outcome.Unconfirmed)
		}
	}
}

// brokenRepository stores no progress while it is broken.
type brokenRepository struct {
	folding.Repository
	broken atomic.Bool
}

func (r *brokenRepository) Progress(b folding.Branch) error {
	if r.broken.Load() {
		return errors.New("disk full")
	}
	return r.Repository.Progress(b)
}

// A result that its branch can't pay durably is stored, and the refusal names its handle. It is not late:
// the branch goes on.
func TestChargeNotStored(t *testing.T) {
	f := newFoldBench(t)
	repo, err := folding.OpenSQLite(filepath.Join(t.TempDir(), "foldgate.db"))
	if err != nil {
		t.Fatal(err)
	}
	broken := &brokenRepository{Repository: repo}
	if f.m, err = folding.Open(t.Context(), folding.DefaultConfig(), folding.Options{Repository: broken, Count: f.gauge.Counter.Count, Scrub: func(_ context.Context, s string) (string, error) { return s, nil }}); err != nil {
		t.Fatal(err)
	}
	defer f.m.Close(context.Background())
	b := f.branch(8000)
	l := limitOf(t, "l", 100_000, limitStore(t), limits.Options{})
	for _, inForce := range []*Limits{nil, l} {
		broken.broken.Store(false)
		c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Server: "db", Method: "tools/call", Name: "query", Metered: true}, Attribution: Attribution{Branch: b}}
		_, err = wrap(func(context.Context, *Call) (*Result, error) {
			broken.broken.Store(true)
			return &Result{Body: json.RawMessage(textBody("what was read"))}, nil
		}, Meter(f.m, func() *Limits { return inForce }, f.gauge), Fold(f.store, f.gauge, func() *FoldPolicy { return &f.policy }, testBoundary(t), slog.New(slog.DiscardHandler)))(t.Context(), c)
		var r *Refusal
		if !errors.As(err, &r) || r.Code != "storage_failed" || c.Outcome.Late || c.Outcome.Fold == "" || !strings.Contains(r.Message, c.Outcome.Fold) {
			t.Fatalf("limits %v: %v, late %v, stored as %q", inForce != nil, err, c.Outcome.Late, c.Outcome.Fold)
		}
		if s, err := f.store.Get(t.Context(), me, b.Context, c.Outcome.Fold); err != nil || s.Text != "what was read" {
			t.Errorf("limits %v: %q, %v is stored", inForce != nil, s.Text, err)
		}
	}
	broken.broken.Store(false)
	if _, _, err := f.call(b, textBody("what was read")); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

// A call that its host cancels while it waits for the last tokens of its branch is neither refused nor late.
func TestCancelledWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFoldBench(t)
		f.policy.Rule = foldRule(FoldRule{Off: true})
		b := f.branch(100)
		lease, err := f.m.Acquire(t.Context(), func(error) {}, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := lease.ChargeUpTo(1000); n == 0 || err != nil { // it holds what is left
			t.Fatal(n, err)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancelled := errors.New("cancelled by the host")
		time.AfterFunc(time.Second, func() { cancel(cancelled) })
		c := &Call{Origin: Origin{Identity: Identity{Principal: me.Principal}, Session: me.Session}, Target: Target{Server: "db", Method: "tools/call", Name: "query", Metered: true}, Attribution: Attribution{Branch: b}}
		_, err = Meter(f.m, noLimits, f.gauge)(func(context.Context, *Call) (*Result, error) {
			return &Result{Body: json.RawMessage(textBody("what was read"))}, nil
		})(ctx, c)
		if err != cancelled || c.Outcome.Late {
			t.Errorf("the call ends with %v, late %v; want %v alone", err, c.Outcome.Late, cancelled)
		}
		lease.Release(folding.CallOutcome{})
		_ = f.m.Close(t.Context())
		_ = f.store.Close()
	})
}

// A refusal names the subject whose limit is spent: an agent can't know that its team has spent it. Main is
// the agent's own.
func TestRefusalNamesTheSubject(t *testing.T) {
	for _, tt := range []struct {
		err  limits.ExceededError
		want string
	}{
		{limits.ExceededError{Limit: "month", Subject: "data", Unit: "tokens", Total: 5}, "limit month of data has 0 of 5 tokens left: "},
		{limits.ExceededError{Limit: "all", Unit: "calls", Total: 5}, "limit all has 0 of 5 calls left: "},
		{limits.ExceededError{Limit: "main", Subject: "session ses_1", Unit: "tokens", Total: 5, Main: true}, "limit main has 0 of 5 tokens left: "},
	} {
		var r *Refusal
		if err := new(Call).limitRefusal(&tt.err, ""); !errors.As(err, &r) || !strings.HasPrefix(r.Message, tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}
