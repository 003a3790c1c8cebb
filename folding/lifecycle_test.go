package folding_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/folding"
)

var ctx = context.Background()

func TestLifeOfABranch(t *testing.T) {
	m, rec := open(t, folding.DefaultConfig(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Description: "find the parser", Prompt: "look in p.go"})
	if !strings.HasPrefix(b.ID, "br_") || len(b.ID) != 39 {
		t.Errorf("ID = %q, want br_<uuid>", b.ID)
	}
	if b.Status != folding.StatusActive || b.Depth != 1 || b.Context != b.ID || b.Session != "s1" {
		t.Errorf("created %+v: want active, depth 1, context of its id, session s1", b)
	}
	if b.BudgetTotal != 8192 || b.BudgetUsed != 6 || b.ExpiresAt.Sub(b.CreatedAt) != 300*time.Second {
		t.Errorf("budget %d/%d, life %v; want 6/8192, 5m", b.BudgetUsed, b.BudgetTotal, b.ExpiresAt.Sub(b.CreatedAt))
	}
	c := begin(t, m, b.ID)
	if err := c.Charge(10); err != nil {
		t.Fatal(err)
	}
	if n, err := c.ChargeUpTo(100); n != 100 || err != nil {
		t.Fatalf("Take(100) = %d, %v", n, err)
	}
	if got := status(t, m, alice, b.ID); got.BudgetUsed != 116 || got.Activity.InFlight != 1 {
		t.Errorf("live status: used %d, in flight %d; want 116, 1", got.BudgetUsed, got.Activity.InFlight)
	}
	c.Release(folding.CallOutcome{Tool: "read_file"})
	r, err := m.Return(ctx, alice, b.ID, "the password is hunter2")
	if err != nil {
		t.Fatal(err)
	}
	if r.Branch.Message != "the password is [REDACTED]" || r.Branch.Late || r.Branch.BudgetUsed != 116 || r.MessageTokens != 4 || r.Granted != 4 {
		t.Errorf("Return = %+v", r)
	}
	got := status(t, m, alice, b.ID)
	if got.Status != folding.StatusCompleted || got.Message != r.Branch.Message || got.BudgetUsed != 116 || got.CompletedAt.IsZero() || got.Reason != "" {
		t.Errorf("status after return = %+v", got)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventConcluded)

	_, err = m.Return(ctx, alice, b.ID, "again")
	wantErr(t, "second Return", err, folding.ErrNotActive)
	if folding.StatusCode(err) != 409 || folding.Code(err) != "branch_not_active" {
		t.Errorf("second Return: %d %s", folding.StatusCode(err), folding.Code(err))
	}
	_, err = acquire(ctx, m, b.ID)
	wantErr(t, "Begin after return", err, folding.ErrNotActive)
	ended, err := m.Resolve(alice, b.ID)
	wantErr(t, "Resolve after return", err, folding.ErrNotActive)
	if ended.ID != b.ID || ended.Status != folding.StatusCompleted {
		t.Errorf("Resolve after return = %+v, want the branch as it ended", ended)
	}
}

func TestReturnEndsChildrenFirst(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	top := create(t, m, alice, folding.CreateRequest{})
	mid := create(t, m, alice, folding.CreateRequest{ParentID: top.ID})
	low := create(t, m, alice, folding.CreateRequest{ParentID: mid.ID})
	side := create(t, m, alice, folding.CreateRequest{ParentID: top.ID})
	if low.Context != top.ID+"/"+mid.ID+"/"+low.ID || low.Depth != 3 {
		t.Errorf("grandchild: context %s, depth %d", low.Context, low.Depth)
	}
	call := begin(t, m, low.ID)
	if _, err := m.Return(ctx, alice, top.ID, "done"); err != nil {
		t.Fatal(err)
	}
	if want := []string{low.ID, mid.ID, side.ID, top.ID}; !slices.Equal(rec.ends(), want) {
		t.Errorf("ends = %v, want %v", rec.ends(), want)
	}
	if got := status(t, m, alice, mid.ID); got.Status != folding.StatusFailed || got.Reason != folding.ReasonParentReturning || got.Error != "parent returning" {
		t.Errorf("child = %s, %s, %q", got.Status, got.Reason, got.Error)
	}
	var ended *folding.EndedError
	if cause := context.Cause(call); !errors.As(cause, &ended) || ended.BranchID != low.ID {
		t.Errorf("cause of the call in flight = %v, want *EndedError of %s", cause, low.ID)
	}
	if n, err := call.ChargeUpTo(5); n != 0 || !errors.Is(err, folding.ErrNotActive) {
		t.Errorf("late Take = %d, %v; want 0, ErrNotActive", n, err)
	}
}

func TestTimeoutForcesReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, rec := open(t, roomy(), folding.Options{})
		b := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 60})
		call := begin(t, m, b.ID)
		<-call.Done() // no operation happens: the timer ends the branch
		if lived := time.Since(b.CreatedAt); lived != 60*time.Second {
			t.Errorf("call was cancelled after %v, want 1m", lived)
		}
		synctest.Wait()
		wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventEnded)
		got := status(t, m, alice, b.ID)
		if got.Status != folding.StatusTimeout || got.Reason != folding.ReasonTimeout || got.CompletedAt.Sub(got.CreatedAt) != 60*time.Second {
			t.Errorf("status = %s, %s, after %v", got.Status, got.Reason, got.CompletedAt.Sub(got.CreatedAt))
		}
		if want := "1 of 8192 tokens used; 0 calls, 1 cancelled in flight"; got.Digest != want {
			t.Errorf("Digest = %q, want %q", got.Digest, want)
		}
		r, err := m.Return(ctx, alice, b.ID, "too late, hunter2")
		if err != nil || !r.Branch.Late || r.Branch.Status != folding.StatusTimeout || r.Branch.Message != "too late, [REDACTED]" {
			t.Errorf("late Return = %+v, %v", r, err)
		}
		if got := status(t, m, alice, b.ID); got.Message != "too late, [REDACTED]" || !got.Late || got.Status != folding.StatusTimeout {
			t.Errorf("status after late return = %+v", got)
		}
		_, err = m.Return(ctx, alice, b.ID, "and again")
		wantErr(t, "second late Return", err, folding.ErrNotActive)
	})
}

// A clock that is set back does not prolong a branch, in the process that created it or in the next one.
func TestTimeoutWhileTheClockIsSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var back atomic.Int64
		opts := folding.Options{Repository: folding.NewMemory(), Now: func() time.Time { return time.Now().Add(-time.Duration(back.Load())) }}
		cfg := roomy()
		cfg.MaxConcurrentPerSession = 3
		first, _ := open(t, cfg, opts)
		long, short := create(t, first, alice, folding.CreateRequest{TimeoutSeconds: 120}), create(t, first, alice, folding.CreateRequest{TimeoutSeconds: 60})
		create(t, first, alice, folding.CreateRequest{TimeoutSeconds: 1})
		back.Add(int64(2 * time.Hour))
		_, err := first.Create(ctx, alice, folding.CreateRequest{Description: "d"})
		if wantErr(t, "a fourth branch", err, folding.ErrTooManyBranches); folding.RetryAfter(err) > time.Second {
			t.Errorf("a branch of 1 s makes room in %v", folding.RetryAfter(err))
		}
		time.Sleep(time.Second)
		later := create(t, first, alice, folding.CreateRequest{TimeoutSeconds: 30})
		call := begin(t, first, short.ID)
		<-call.Done()
		if lived := time.Since(short.CreatedAt); lived != 60*time.Second {
			t.Errorf("a branch of 60 s lived %v", lived)
		}
		got := status(t, first, alice, short.ID)
		if got.Status != folding.StatusTimeout || got.CompletedAt.After(opts.Now()) {
			t.Errorf("the branch is %s, at %v; now it is %v", got.Status, got.CompletedAt, opts.Now())
		}
		if got := status(t, first, alice, later.ID); got.CompletedAt.Sub(got.CreatedAt) != 30*time.Second {
			t.Errorf("a branch from after the change of the clock lived %v", got.CompletedAt.Sub(got.CreatedAt))
		}
		if err := first.Leave(ctx); err != nil {
			t.Fatal(err)
		}
		second, _ := open(t, roomy(), opts)
		call, restart := begin(t, second, long.ID), time.Now()
		<-call.Done()
		if lived := time.Since(restart); lived > 120*time.Second {
			t.Errorf("after a restart a branch of 120 s lived %v", lived)
		}
	})
}

func TestBudgetForcesReturn(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Budget: 100})
	c := begin(t, m, b.ID)
	if n, err := c.ChargeUpTo(84); n != 84 || err != nil {
		t.Fatal(n, err)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventWarned)
	if err := c.Charge(16); !errors.Is(err, folding.ErrBudgetExhausted) {
		t.Errorf("Charge(16) with 15 left = %v", err)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventWarned, folding.EventExhausted, folding.EventEnded)
	got := status(t, m, alice, b.ID)
	if got.Status != folding.StatusFailed || got.Reason != folding.ReasonBudgetExhausted || got.BudgetUsed != 85 {
		t.Errorf("status = %s, %s, used %d; want failed, budget_exhausted, 85", got.Status, got.Reason, got.BudgetUsed)
	}
	if want := "85 of 100 tokens used; 0 calls"; got.Digest != want {
		t.Errorf("Digest = %q, want %q", got.Digest, want)
	}
}

// A call that gets the last tokens counts as completed, not as cancelled.
func TestExhaustCountsItsCall(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Budget: 100})
	other, c := begin(t, m, b.ID), begin(t, m, b.ID)
	if n, err := c.ChargeUpTo(200); n != 99 || err != nil {
		t.Fatal(n, err)
	}
	c.Exhaust(ctx, folding.CallOutcome{Tool: "read_file"})
	c.Release(folding.CallOutcome{Tool: "read_file"})
	if want := "100 of 100 tokens used; 1 call (read_file 1), 1 cancelled in flight"; status(t, m, alice, b.ID).Digest != want {
		t.Errorf("Digest = %q, want %q", status(t, m, alice, b.ID).Digest, want)
	}
	if other.Err() == nil {
		t.Error("a call outlives its branch")
	}
}

// However deep a branch is, its reason is that of the end above it.
func TestReasonsBelow(t *testing.T) {
	for _, tt := range []struct {
		end    func(m *folding.Manager, clock *manual, root string)
		reason string
	}{
		{func(m *folding.Manager, _ *manual, root string) { _, _ = m.Return(ctx, alice, root, "") }, folding.ReasonParentReturning},
		{func(m *folding.Manager, _ *manual, root string) {
			if l, err := acquire(ctx, m, root); err == nil {
				l.Exhaust(ctx, folding.CallOutcome{})
			}
		}, folding.ReasonParentEnded},
	} {
		cfg := roomy()
		cfg.MaxDepth = 5
		clock := newManual()
		m, _ := open(t, cfg, folding.Options{Now: clock.now})
		var ids []string
		for depth := range 5 {
			req := folding.CreateRequest{}
			if depth > 0 {
				req.ParentID = ids[depth-1]
			}
			ids = append(ids, create(t, m, alice, req).ID)
		}
		tt.end(m, clock, ids[0])
		for depth, id := range ids[1:] {
			if b := status(t, m, alice, id); b.Reason != tt.reason || b.Error != strings.ReplaceAll(tt.reason, "_", " ") {
				t.Errorf("the branch %d levels below: %s (%s), want %s", depth+1, b.Reason, b.Error, tt.reason)
			}
		}
	}
}

// The message of a branch that another connection returned is shown once, to anyone but that
// connection, also after a restart.
func TestTakeMessage(t *testing.T) {
	sub, thread := folding.Caller{Principal: "alice", Session: "sub"}, folding.Caller{Principal: "alice", Session: "s1", Thread: "t2"}
	modern := folding.Caller{Principal: "alice"}
	for _, tt := range []struct {
		name                    string
		creates, returns, looks folding.Caller
		want                    int
	}{
		{"same connection", alice, alice, alice, 0},
		{"another connection", alice, sub, alice, 1},
		{"another connection, by the returner", alice, sub, sub, 0},
		{"another thread", alice, thread, alice, 1},
		{"without sessions", modern, modern, modern, 1},
		{"after a reconnection", alice, sub, folding.Caller{Principal: "alice", Session: "s2"}, 1},
		{"foreign", alice, sub, bob, 0},
	} {
		for _, restart := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "s.db")
			m, err := folding.Open(ctx, roomy(), folding.Options{Repository: openDB(t, path), Count: words, Scrub: redact})
			if err != nil {
				t.Fatal(err)
			}
			b := create(t, m, tt.creates, folding.CreateRequest{})
			if _, err := m.Return(ctx, tt.returns, b.ID, "found it"); err != nil {
				t.Fatal(err)
			}
			if restart {
				if err := m.Close(ctx); err != nil {
					t.Fatal(err)
				}
				if m, err = folding.Open(ctx, roomy(), folding.Options{Repository: openDB(t, path), Count: words, Scrub: redact}); err != nil {
					t.Fatal(err)
				}
			}
			var taken atomic.Int32
			var wg sync.WaitGroup
			for range 16 {
				wg.Go(func() {
					b, _, err := m.Status(ctx, tt.looks, folding.StatusRequest{BranchID: b.ID})
					if err != nil {
						t.Error(err)
					}
					if ok, err := m.TakeMessage(ctx, tt.looks, b); err != nil {
						t.Error(err)
					} else if ok && b.Message == "found it" {
						taken.Add(1)
					}
				})
			}
			wg.Wait()
			if got := int(taken.Load()); got != tt.want {
				t.Errorf("%s, restart %v: taken %d times, want %d", tt.name, restart, got, tt.want)
			}
			if err := m.Close(ctx); err != nil {
				t.Error(err)
			}
		}
	}
}

// What comes after Close fails, also for the branches that another replica goes on with.
func TestReturnAfterClose(t *testing.T) {
	for _, replica := range []string{"", "k3f9x"} {
		m, _ := open(t, roomy(), folding.Options{Replica: replica})
		b := create(t, m, alice, folding.CreateRequest{})
		if err := m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			_, err := m.Return(t.Context(), alice, b.ID, "late")
			ended <- err
		}()
		select {
		case err := <-ended:
			if !errors.Is(err, folding.ErrClosed) {
				t.Errorf("replica %q: %v, want ErrClosed", replica, err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("replica %q: the return hangs", replica)
		}
	}
}

// The log has the begin and the end of each branch, and none of its texts.
func TestLog(t *testing.T) {
	var log bytes.Buffer
	m, _ := open(t, roomy(), folding.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	p := create(t, m, alice, folding.CreateRequest{Description: "a secret plan", Prompt: "a secret prompt", Budget: 100})
	c := create(t, m, alice, folding.CreateRequest{Description: "a secret plan", ParentID: p.ID, Budget: 90})
	if _, err := m.Return(ctx, alice, p.ID, "a secret message"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`msg="branch created" context=` + p.Context + " principal=alice status=created tokens=6 budget=100\n",
		`msg="branch created" context=` + c.Context + " principal=alice status=created tokens=3 budget=90\n",
		`msg="branch ended" context=` + c.Context + " principal=alice status=parent_returning tokens=3 budget=90\n",
		`msg="branch returned" context=` + p.Context + " principal=alice status=completed tokens=6 budget=100\n",
	} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log lacks %s", want)
		}
	}
	if strings.Contains(log.String(), "secret") || strings.Count(log.String(), "\n") != 4 {
		t.Errorf("the log is\n%s", log.String())
	}
}

// The time left is that of the manager's clock, which may differ from the machine's.
func TestTimeLeft(t *testing.T) {
	clock := newManual()
	m, _ := open(t, roomy(), folding.Options{Now: clock.now})
	b := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 60})
	clock.advance(20 * time.Second)
	if left := m.TimeLeft(b.ID); left != 40*time.Second {
		t.Errorf("%v are left of 60 s after 20 s", left)
	}
}

// A step of the clock ends no branch, old or new, whichever time turns out to be right. Ended branches stay known.
func TestBranchesDuringAStep(t *testing.T) {
	for _, step := range []time.Duration{40 * 24 * time.Hour, -40 * 24 * time.Hour} {
		for _, right := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				var off, counts atomic.Int64 // ns: of the clock of the machine; of it what the steady clock has taken over
				steady := func() time.Time { return time.Now().Add(time.Duration(counts.Load())) }
				m, _ := open(t, roomy(), folding.Options{Steady: steady, Now: func() time.Time { return time.Now().Add(time.Duration(max(off.Load(), counts.Load()))) }})
				ended := create(t, m, alice, folding.CreateRequest{}).ID
				if _, err := m.Return(ctx, alice, ended, ""); err != nil {
					t.Fatal(err)
				}
				old := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 600})
				time.Sleep(time.Minute)
				off.Store(int64(step))
				young := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 600})
				below := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 60, ParentID: old.ID})
				time.Sleep(40 * time.Second)                                                               // the loop looks
				last := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 6000, ParentID: old.ID}) // with its parent
				if got := []time.Duration{below.ExpiresAt.Sub(below.CreatedAt), last.ExpiresAt.Sub(last.CreatedAt)}; got[0] != time.Minute || got[1] != 500*time.Second {
					t.Errorf("after a step of %v, branches have %v, want 1 minute and what is left of the parent", step, got)
				}
				for _, b := range []folding.Branch{old, young, below} {
					if got := status(t, m, alice, b.ID); got.Status != folding.StatusActive {
						t.Errorf("a step of %v: %s, %s", step, got.Status, got.Reason)
					}
				}
				if left := m.TimeLeft(young.ID); left != 560*time.Second {
					t.Errorf("a step of %v: %v are left of 10 minutes after 40 s", step, left)
				}
				if right {
					counts.Store(int64(step))
				} else {
					off.Store(0)
				}
				if got := status(t, m, alice, young.ID); got.Status != folding.StatusActive && (step > 0 || !right) {
					t.Errorf("a step of %v, right is %t: %s, %s", step, right, got.Status, got.Reason)
				}
				if _, found, err := m.Status(ctx, alice, folding.StatusRequest{BranchID: ended}); err != nil || !found && !right {
					t.Errorf("a step of %v: the ended branch: %t, %v", step, found, err)
				}
				time.Sleep(600 * time.Second)
				for _, b := range []folding.Branch{old, young} {
					if right && step > 0 && b.ID == old.ID { // it is known no longer
						continue
					}
					if got := status(t, m, alice, b.ID); got.Status != folding.StatusTimeout {
						t.Errorf("a step of %v, right is %t: after its time %s", step, right, got.Status)
					}
				}
			})
		}
	}
}
