package folding_test

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	if r.Message != "the password is [REDACTED]" || r.Late || r.Branch.BudgetUsed != 116 || r.MessageTokens != 4 || r.Granted != 4 {
		t.Errorf("Return = %+v", r)
	}
	got := status(t, m, alice, b.ID)
	if got.Status != folding.StatusCompleted || got.Message != r.Message || got.BudgetUsed != 116 || got.CompletedAt.IsZero() || got.Reason != "" {
		t.Errorf("status after return = %+v", got)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventConcluded)

	_, err = m.Return(ctx, alice, b.ID, "again")
	wantErr(t, "second Return", err, folding.ErrNotActive)
	if folding.StatusCode(err) != 409 || folding.Code(err) != "branch_not_active" {
		t.Errorf("second Return: %d %s", folding.StatusCode(err), folding.Code(err))
	}
	_, err = m.Acquire(ctx, b.ID)
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
	if cause := context.Cause(call.Context()); !errors.As(cause, &ended) || ended.BranchID != low.ID {
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
		<-call.Context().Done() // no operation happens: the timer ends the branch
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
		if err != nil || !r.Late || r.Branch.Status != folding.StatusTimeout || r.Message != "too late, [REDACTED]" {
			t.Errorf("late Return = %+v, %v", r, err)
		}
		if got := status(t, m, alice, b.ID); got.Message != "too late, [REDACTED]" || !got.Late || got.Status != folding.StatusTimeout {
			t.Errorf("status after late return = %+v", got)
		}
		_, err = m.Return(ctx, alice, b.ID, "and again")
		wantErr(t, "second late Return", err, folding.ErrNotActive)
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
	if other.Context().Err() == nil || c.Context().Err() == nil {
		t.Error("a call outlives its branch")
	}
}
