package folding_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/foldgate/foldgate/folding"
)

// on is a thread of a caller's connection.
func on(c folding.Caller, thread string) folding.Caller {
	c.Thread = thread
	return c
}

func wantLeaf(t *testing.T, m *folding.Manager, c folding.Caller, id string, leaves int) {
	t.Helper()
	if b, n := m.ActiveLeaf(c); b.ID != id || n != leaves {
		t.Errorf("ActiveLeaf(%v) = %q, %d; want %q, %d", c, b.ID, n, id, leaves)
	}
}

// A thread is like a session of its own for calls that name no branch.
func TestThreadsAreApart(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	one, two := on(alice, "one"), on(alice, "two")
	a := create(t, m, one, folding.CreateRequest{})
	wantLeaf(t, m, one, a.ID, 1)
	wantLeaf(t, m, two, "", 0)
	wantLeaf(t, m, on(folding.Caller{Principal: "alice", Session: "s2"}, "one"), "", 0) // the same name elsewhere
	wantLeaf(t, m, on(bob, "one"), "", 0)
	b := create(t, m, two, folding.CreateRequest{SessionID: "label"})
	wantLeaf(t, m, one, a.ID, 1)
	wantLeaf(t, m, two, b.ID, 1)
	wantLeaf(t, m, alice, b.ID, 2) // the whole session
	create(t, m, alice, folding.CreateRequest{SessionID: "one"})
	wantLeaf(t, m, one, a.ID, 1) // a label is no thread
	c := create(t, m, one, folding.CreateRequest{})
	wantLeaf(t, m, one, c.ID, 2)
	if got, ok, err := m.Status(ctx, two, folding.StatusRequest{}); got.ID != b.ID || !ok || err != nil {
		t.Errorf("Status of a thread = %q, %v, %v; want its own branch", got.ID, ok, err)
	}
	if err := m.EndSession(ctx, alice, "closed"); err != nil {
		t.Fatal(err)
	}
	wantLeaf(t, m, one, "", 0)
}

// A thread that has joined a branch stays in it while it is active, unless the
// thread opens a branch of its own.
func TestJoin(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	main, sub := on(alice, "main"), on(folding.Caller{Principal: "alice", Session: "s2"}, "sub")
	a := create(t, m, main, folding.CreateRequest{})
	other := create(t, m, main, folding.CreateRequest{})
	m.Join(sub, a.ID)
	m.Join(sub, other.ID) // a single call elsewhere
	wantLeaf(t, m, sub, a.ID, 1)
	below := create(t, m, main, folding.CreateRequest{ParentID: a.ID})
	wantLeaf(t, m, sub, a.ID, 1)
	own := create(t, m, sub, folding.CreateRequest{})
	wantLeaf(t, m, sub, own.ID, 1)
	ended(t, m, sub, own.ID)
	wantLeaf(t, m, sub, a.ID, 1)
	ended(t, m, main, a.ID)
	wantLeaf(t, m, sub, "", 0)
	if got := status(t, m, main, below.ID); got.Reason != folding.ReasonParentReturning {
		t.Errorf("the child ended with %q", got.Reason)
	}
	m.Join(sub, a.ID) // it has ended
	wantLeaf(t, m, sub, "", 0)
	m.Join(sub, other.ID)
	wantLeaf(t, m, sub, other.ID, 1)
	if err := m.EndSession(ctx, sub, "closed"); err != nil {
		t.Fatal(err)
	}
	wantLeaf(t, m, sub, "", 0)
	if got := status(t, m, main, other.ID); got.Status != folding.StatusActive {
		t.Errorf("the end of a handed branch's guest left it %s", got.Status)
	}
}

// Only a thread can join, and only a branch of its principal.
func TestJoinNeedsARight(t *testing.T) {
	cfg := roomy()
	strict := cfg
	strict.SessionValidation = folding.ValidationStrict
	for _, tc := range []struct {
		name string
		cfg  folding.Config
		who  folding.Caller
	}{
		{"another principal", cfg, on(bob, "sub")},
		{"no thread", cfg, folding.Caller{Principal: "alice", Session: "s2"}},
		{"no session", cfg, folding.Caller{Principal: "alice", Thread: "sub"}},
		{"another session, strictly", strict, on(folding.Caller{Principal: "alice", Session: "s2"}, "sub")},
	} {
		m, _ := open(t, tc.cfg, folding.Options{})
		m.Join(tc.who, create(t, m, on(alice, "main"), folding.CreateRequest{}).ID)
		m.Join(tc.who, "br_"+uuid.NewString())
		if _, n := m.ActiveLeaf(tc.who); n != 0 {
			t.Errorf("%s: joined", tc.name)
		}
	}
}

// Made-up threads count against the limits of their client and use no memory.
func TestInventedThreads(t *testing.T) {
	cfg := folding.DefaultConfig()
	m, _ := open(t, cfg, folding.Options{})
	var last error
	made := 0
	for i := range 20 {
		if _, err := m.Create(ctx, on(alice, fmt.Sprint("t", i)), folding.CreateRequest{Description: "d"}); err != nil {
			last = err
		} else {
			made++
		}
	}
	if made != cfg.MaxBranchesPerMinute {
		t.Errorf("%d branches with a thread each, want %d of one connection", made, cfg.MaxBranchesPerMinute)
	}
	wantErr(t, "one more", last, folding.ErrRateLimited)
	b, joined := create(t, m, bob, folding.CreateRequest{}), 0
	for i := range 1000 {
		c := on(bob, fmt.Sprint("t", i))
		m.Join(c, b.ID)
		if _, n := m.ActiveLeaf(c); n == 1 {
			joined++
		}
	}
	if joined == 0 || joined > 100 {
		t.Errorf("%d threads are remembered for one branch", joined)
	}
}

// An ephemeral branch counts against the open branches of LimitSession, but not
// against its rate. Neither session has it as its active branch.
func TestEphemeralBranch(t *testing.T) {
	cfg := folding.DefaultConfig()
	m, _ := open(t, cfg, folding.Options{})
	for i := range cfg.MaxConcurrentPerSession {
		errand(t, m, i)
	}
	wantLeaf(t, m, alice, "", 0)
	_, err := m.Create(ctx, folding.Caller{Principal: "alice", Session: "run"}, folding.CreateRequest{Description: "d", Ephemeral: true, LimitSession: "s1"})
	wantErr(t, "one errand more", err, folding.ErrTooManyBranches)
	_, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
	wantErr(t, "a branch beside the errands", err, folding.ErrTooManyBranches)
	create(t, m, bob, folding.CreateRequest{})
}

func errand(t *testing.T, m *folding.Manager, i int) {
	t.Helper()
	c := folding.Caller{Principal: "alice", Session: fmt.Sprint("run_", i)}
	create(t, m, c, folding.CreateRequest{SessionID: c.Session, Ephemeral: true, LimitSession: "s1"})
}

func ended(t *testing.T, m *folding.Manager, c folding.Caller, id string) {
	t.Helper()
	if _, err := m.Return(ctx, c, id, ""); err != nil {
		t.Fatal(err)
	}
}
