package folding_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/foldgate/foldgate/folding"
)

// 64 calls race for the last tokens. They never get more than the budget.
func TestParallelTakesNeverExceedTheBudget(t *testing.T) {
	for _, mode := range []string{"deliver", "refund half", "exhaust on zero"} {
		t.Run(mode, func(t *testing.T) {
			m, rec := open(t, roomy(), folding.Options{})
			b := create(t, m, alice, folding.CreateRequest{Budget: 1001}) // the description takes 1
			var delivered atomic.Int64
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					c, err := acquire(ctx, m, b.ID)
					if err != nil {
						return
					}
					defer c.Release(folding.CallOutcome{Tool: "t"})
					n, err := c.ChargeUpTo(10 + i)
					if err != nil {
						return
					}
					switch mode {
					case "refund half":
						c.Refund(n / 2)
						n -= n / 2
					case "exhaust on zero":
						if n == 0 {
							c.Exhaust(ctx, folding.CallOutcome{Tool: "t"})
						}
					}
					delivered.Add(int64(n))
				})
			}
			wg.Wait()
			got := status(t, m, alice, b.ID)
			if sum := delivered.Load() + 1; sum > 1001 || mode != "refund half" && int64(got.BudgetUsed) != sum || int64(got.BudgetUsed) < sum {
				t.Errorf("delivered %d, charged %d of %d", sum, got.BudgetUsed, got.BudgetTotal)
			}
			// 64 calls ask for 2,656: a call that gets nothing ends the branch.
			if mode != "refund half" && (got.Status != folding.StatusFailed || got.Reason != folding.ReasonBudgetExhausted) {
				t.Errorf("status = %s, %s", got.Status, got.Reason)
			}
			warned := 0
			for _, k := range rec.kinds(b.ID) {
				if k == folding.EventWarned {
					warned++
				}
			}
			if mode != "refund half" && warned > 1 {
				t.Errorf("%d warnings for one crossing", warned)
			}
		})
	}
}

// The last token is delivered; the branch ends when the call is over.
func TestBudgetUsedToTheLastToken(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Budget: 101})
	c := begin(t, m, b.ID)
	if n, err := c.ChargeUpTo(100); n != 100 || err != nil {
		t.Fatal(n, err)
	}
	if c.Err() != nil {
		t.Error("the call was cancelled before its result was delivered")
	}
	c.Release(folding.CallOutcome{Tool: "read_file"})
	got := status(t, m, alice, b.ID)
	if got.Reason != folding.ReasonBudgetExhausted || got.BudgetUsed != 101 || got.Error != "budget exhausted" {
		t.Errorf("after the last token: %s, %q, used %d", got.Reason, got.Error, got.BudgetUsed)
	}
	if want := "101 of 101 tokens used; 1 call (read_file 1)"; got.Digest != want {
		t.Errorf("Digest = %q, want %q", got.Digest, want)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventWarned, folding.EventExhausted, folding.EventEnded)
}

func TestResultLargerThanTheRest(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Budget: 101})
	c := begin(t, m, b.ID)
	n, err := c.ChargeUpTo(5000)
	if n != 100 || err != nil {
		t.Fatalf("Take(5000) with 100 left = %d, %v; want 100", n, err)
	}
	wantKinds(t, rec, b.ID, folding.EventCreated) // no warning while the rest may come back
	c.Refund(70)
	c.Refund(1000) // no more than was booked: 30 are left of it
	if got := c.Remaining(); got != 100 {
		t.Errorf("Remaining = %d, want 100", got)
	}
	c.Release(folding.CallOutcome{})
	if got := status(t, m, alice, b.ID); got.Status != folding.StatusActive || got.BudgetUsed != 1 {
		t.Errorf("after the refund: %s, used %d; want active, 1", got.Status, got.BudgetUsed)
	}
}

// A call that finds nothing left because another one holds the rest waits for
// it. It does not end the branch.
func TestTakeWaitsForARefund(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := open(t, roomy(), folding.Options{})
		b := create(t, m, alice, folding.CreateRequest{Budget: 101})
		big, small := begin(t, m, b.ID), begin(t, m, b.ID)
		if n, _ := big.ChargeUpTo(5000); n != 100 {
			t.Fatalf("big Take = %d, want 100", n)
		}
		got := make(chan int, 1)
		go func() {
			n, err := small.ChargeUpTo(20)
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
		synctest.Wait()
		select {
		case n := <-got:
			t.Fatalf("small Take = %d while the rest was held", n)
		default:
		}
		big.Refund(50)
		if n := <-got; n != 20 {
			t.Errorf("small Take = %d, want 20", n)
		}
		big.Release(folding.CallOutcome{})
		small.Release(folding.CallOutcome{})
		if s := status(t, m, alice, b.ID); s.BudgetUsed != 71 || s.Status != folding.StatusActive {
			t.Errorf("used %d, %s; want 71, active", s.BudgetUsed, s.Status)
		}
	})
}

// Two calls that hold tokens and ask again do not wait for each other. The end
// of the branch or of the call wakes a waiting call.
func TestWaitingTakesAlwaysEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := open(t, roomy(), folding.Options{})
		b := create(t, m, alice, folding.CreateRequest{Budget: 101})
		x, y := begin(t, m, b.ID), begin(t, m, b.ID)
		x.ChargeUpTo(60)
		if n, _ := y.ChargeUpTo(50); n != 40 { // y holds the rest
			t.Fatalf("Take = %d, want 40", n)
		}
		if n, err := y.ChargeUpTo(5); n != 0 || err != nil {
			t.Errorf("second Take of the holder = %d, %v; want 0", n, err)
		}
		host, cancel := context.WithCancel(ctx)
		z, err := acquire(host, m, b.ID)
		if err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 2)
		go func() { _, err := z.ChargeUpTo(5); errs <- err }()
		synctest.Wait()
		cancel()
		wantErr(t, "Take of a cancelled call", <-errs, context.Canceled)
		go func() { _, err := x.ChargeUpTo(5); errs <- err }()
		synctest.Wait()
		if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
			t.Fatal(err)
		}
		wantErr(t, "Take of a call whose branch ended", <-errs, folding.ErrNotActive)
	})
}

func TestCallAfterItsEnd(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	c := begin(t, m, b.ID)
	c.Release(folding.CallOutcome{Tool: "t"})
	c.Release(folding.CallOutcome{Tool: "t"})
	if _, err := c.ChargeUpTo(1); err == nil {
		t.Error("Take after End succeeded")
	}
	if err := c.Charge(1); err == nil {
		t.Error("Charge after End succeeded")
	}
	c.Refund(1)
	c.Exhaust(ctx, folding.CallOutcome{Tool: "t"})
	if got := status(t, m, alice, b.ID); got.Activity.Calls != 1 || got.BudgetUsed != 1 || got.Status != folding.StatusActive {
		t.Errorf("after a late use: %+v", got)
	}
	d := begin(t, m, b.ID)
	for name, f := range map[string]func() error{
		"Charge": func() error { return d.Charge(-1) },
		"Take":   func() error { _, err := d.ChargeUpTo(-1); return err },
	} {
		wantErr(t, name+"(-1)", f(), folding.ErrInvalidInput)
	}
	d.Refund(-1)
	for range 2 {
		if used, total := d.Release(folding.CallOutcome{}); used != 1 || total != b.BudgetTotal {
			t.Errorf("after negative amounts %d of %d used, want 1 of %d", used, total, b.BudgetTotal)
		}
	}
}

// progressLog notes what a branch's page says after each write.
type progressLog struct {
	folding.Repository
	full  bool
	pages []folding.Branch
}

func (r *progressLog) Progress(b folding.Branch) error {
	if r.full {
		return errors.New("disk full")
	}
	r.pages = append(r.pages, b)
	return r.Repository.Progress(b)
}

// TestEndedBranchOfACancelledCall: a call that was cancelled with the branch, before it began, is told how
// the branch ended.
func TestEndedBranchOfACancelledCall(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{Repository: openDB(t, filepath.Join(t.TempDir(), "s.db"))})
	b := create(t, m, alice, folding.CreateRequest{})
	if _, err := m.Return(ctx, alice, b.ID, "done"); err != nil {
		t.Fatal(err)
	}
	cut, cancel := context.WithCancel(ctx)
	cancel()
	_, err := acquire(cut, m, b.ID)
	if ended, ok := errors.AsType[*folding.EndedError](err); !ok || ended.Status != folding.StatusCompleted {
		t.Errorf("Acquire = %v, want how the branch ended", err)
	}
}

// Deliver stores the charge and the end of the call in one write, before it returns. A call that does not
// get all that it asked for, or takes the last token, ends with its release.
func TestDeliver(t *testing.T) {
	repo := &progressLog{Repository: folding.NewMemory()}
	m, _ := open(t, roomy(), folding.Options{Repository: repo})
	b := create(t, m, alice, folding.CreateRequest{Budget: 101})
	outcome := folding.CallOutcome{Tool: "read"}
	page := func(writes, used, calls, running int) {
		t.Helper()
		last := repo.pages[len(repo.pages)-1]
		if len(repo.pages) != writes || last.BudgetUsed != used || last.Activity.Calls != calls || last.Activity.InFlight != running {
			t.Errorf("%d writes, the last of %d tokens, %d calls, %d running; want %d, %d, %d, %d", len(repo.pages), last.BudgetUsed, last.Activity.Calls, last.Activity.InFlight, writes, used, calls, running)
		}
	}
	c := begin(t, m, b.ID)
	if err := c.Charge(10); err != nil {
		t.Fatal(err)
	}
	page(1, 11, 0, 1)
	if n, err := c.Deliver(20, outcome); n != 20 || err != nil {
		t.Fatalf("Deliver(20) = %d, %v", n, err)
	}
	page(2, 31, 1, 0)
	c.Release(outcome)
	page(2, 31, 1, 0)

	d := begin(t, m, b.ID)
	repo.full = true
	n, err := d.Deliver(20, outcome)
	wantErr(t, "Deliver to a full disk", err, folding.ErrStorage)
	repo.full = false
	if used, total := d.Release(outcome); n != 0 || used != 31 || total != 101 {
		t.Errorf("after a full disk %d tokens are granted, %d of %d used; want 0, 31 of 101", n, used, total)
	}
	if got := status(t, m, alice, b.ID).Activity; got.Calls != 2 || got.Failed != 1 || !strings.Contains(got.LastError, "could not be stored") {
		t.Errorf("after a full disk: %+v, want a failed one of two calls", got)
	}

	e := begin(t, m, b.ID)
	if n, err := e.Deliver(100, outcome); n != 70 || err != nil {
		t.Fatalf("Deliver(100) = %d, %v, want the 70 that are left", n, err)
	}
	if got := status(t, m, alice, b.ID); got.Activity.InFlight != 1 || got.Status != folding.StatusActive {
		t.Errorf("a call that holds the rest: %+v, want it running in an active branch", got.Activity)
	}
	e.Refund(1)
	e.Release(outcome)
	f := begin(t, m, b.ID)
	if n, err := f.Deliver(1, outcome); n != 1 || err != nil {
		t.Fatalf("Deliver of the last token = %d, %v", n, err)
	}
	f.Release(outcome)
	if got := status(t, m, alice, b.ID); got.Reason != folding.ReasonBudgetExhausted || got.BudgetUsed != 101 {
		t.Errorf("the branch of the last token: %s, used %d; want it ended", got.Reason, got.BudgetUsed)
	}
}

// A return message is charged to the parent branch.
func TestReturnChargesTheParent(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	p := create(t, m, alice, folding.CreateRequest{Budget: 11})
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID})
	call := begin(t, m, c.ID)
	if _, err := call.ChargeUpTo(500); err != nil {
		t.Fatal(err)
	}
	call.Release(folding.CallOutcome{})
	if got := status(t, m, alice, p.ID).BudgetUsed; got != 1 {
		t.Errorf("parent used %d while the child works, want 1: budgets are independent", got)
	}
	r, err := m.Return(ctx, alice, c.ID, "one two three")
	if err != nil || r.MessageTokens != 3 || r.Granted != 3 {
		t.Errorf("Return = %+v, %v", r, err)
	}
	if got := status(t, m, alice, p.ID).BudgetUsed; got != 4 {
		t.Errorf("parent used %d after the return, want 4", got)
	}
	d := create(t, m, alice, folding.CreateRequest{ParentID: p.ID})
	r, err = m.Return(ctx, alice, d.ID, strings.Repeat("word ", 50))
	if err != nil || r.MessageTokens != 50 || r.Granted != 7 {
		t.Errorf("Return into 7 tokens = %+v, %v", r, err)
	}
	if got := status(t, m, alice, p.ID); got.Reason != folding.ReasonBudgetExhausted || got.BudgetUsed != 11 {
		t.Errorf("parent after a message that did not fit: %s, used %d", got.Reason, got.BudgetUsed)
	}
}

func TestReturnScrubsBeforeItCloses(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	p := create(t, m, alice, folding.CreateRequest{})
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID})
	for _, msg := range []string{"unscrubbable", "panic!"} {
		r, err := m.Return(ctx, alice, p.ID, msg)
		wantErr(t, "Return of "+msg, err, folding.ErrScrubbingFailed)
		if r.Branch.Message != "" || folding.StatusCode(err) != 500 || strings.Contains(err.Error(), msg) {
			t.Errorf("Return of %s leaks: %+v, %v", msg, r, err)
		}
		for _, id := range []string{p.ID, c.ID} {
			if got := status(t, m, alice, id); got.Status != folding.StatusActive {
				t.Errorf("%s after a failed scrub: %s, want active", id, got.Status)
			}
		}
	}
	_, err := m.Return(ctx, alice, p.ID, strings.Repeat("é", 50_001))
	wantErr(t, "Return of 50,001 characters", err, folding.ErrInvalidInput)
	if _, err := m.Return(ctx, alice, p.ID, strings.Repeat("é", 50_000)); err != nil {
		t.Errorf("Return of 50,000 characters: %v", err)
	}
}

func TestOpenNeedsAScrubberAndACounter(t *testing.T) {
	_, err := folding.Open(ctx, folding.DefaultConfig(), folding.Options{Repository: folding.NewMemory(), Count: words})
	wantErr(t, "Open without a scrubber", err, folding.ErrScrubbingFailed)
	if _, err := folding.Open(ctx, folding.DefaultConfig(), folding.Options{Repository: folding.NewMemory(), Scrub: redact}); err == nil {
		t.Error("Open without a counter succeeded")
	}
	if _, err := folding.Open(ctx, folding.Config{}, folding.Options{Repository: folding.NewMemory(), Count: words, Scrub: redact}); err == nil {
		t.Error("Open without limits succeeded")
	}
}

func TestDigest(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	for _, o := range []folding.CallOutcome{
		{Tool: "grep"}, {Tool: "read_file"}, {Tool: "grep", Err: "first"}, {},
		{Tool: "read_file", Err: "open a\u202e: password hunter2 " + strings.Repeat("x", 300)},
		{Tool: "a"}, {Tool: "b"}, {Tool: "c"}, {Tool: "d"}, {Tool: "e"}, {Tool: "f"}, {Tool: "g"}, {Tool: "h"},
	} {
		begin(t, m, b.ID).Release(o)
	}
	if err := m.EndSession(ctx, alice, ""); err != nil {
		t.Fatal(err)
	}
	got := status(t, m, alice, b.ID).Digest
	head := "1 of 8192 tokens used; 13 calls (grep 2, read_file 2, a 1, b 1, c 1, d 1, e 1, f 1), 2 failed; last error: open a: password [REDACTED] x"
	if !strings.HasPrefix(got, head) || !strings.HasSuffix(got, "x…") || len([]rune(got)) > 400 {
		t.Errorf("Digest = %q,\nwant %q…", got, head)
	}
	_, err := m.Resolve(alice, b.ID)
	var ended *folding.EndedError
	if !errors.As(err, &ended) || ended.Digest != got || !strings.Contains(err.Error(), got) {
		t.Errorf("Resolve = %v, want an EndedError with the digest", err)
	}
}

func TestDigestWithholdsWhatCannotBeScrubbed(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	c := begin(t, m, b.ID)
	c.Release(folding.CallOutcome{Tool: "t", Err: "unscrubbable secret"})
	if got := status(t, m, alice, b.ID).Activity.LastError; got != "(withheld: it could not be scrubbed)" {
		t.Errorf("LastError = %q", got)
	}
}

// The name in a CallOutcome can be a URI, which can contain a secret.
func TestDigestScrubsWhatCallsName(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	for _, name := range []string{"https://example.com/?" + strings.Repeat("x", 40) + "hunter2", "unscrubbable"} {
		begin(t, m, b.ID).Release(folding.CallOutcome{Tool: name})
	}
	got := status(t, m, alice, b.ID).Activity.Tools
	if len(got) != 2 || strings.Contains(got[0].Tool, "hun") || !strings.HasPrefix(got[0].Tool, "https://example.com/?xxx") || got[1].Tool != "(withheld: it could not be scrubbed)" {
		t.Errorf("Tools = %+v", got)
	}
}

// A handler that panics stops neither the operation nor other events.
func TestEventHandlerMayPanic(t *testing.T) {
	n := 0
	m, _ := open(t, roomy(), folding.Options{OnEvent: func(e folding.Event) {
		n++
		panic("handler bug")
	}})
	b := create(t, m, alice, folding.CreateRequest{})
	if _, err := m.Return(ctx, alice, b.ID, ""); err != nil {
		t.Fatal(err)
	}
	if n != 2 {
		t.Errorf("%d events delivered before Return came back, want 2", n)
	}
}

// Of two returns at the same time one closes the branch, and the other gives back what it paid.
func TestReturnGivesBack(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{})
	spent := 0
	var faster error
	_, err := m.ReturnPaid(ctx, alice, b.ID, "one two three", func(_ folding.Branch, n int) func() {
		spent += n
		_, faster = m.ReturnPaid(ctx, alice, b.ID, "one", func(_ folding.Branch, n int) func() {
			spent += n
			return func() { t.Error("the faster return gave back") }
		})
		return func() { spent -= n }
	})
	if ended := (*folding.EndedError)(nil); faster != nil || !errors.As(err, &ended) || spent != 1 {
		t.Errorf("Return = %v, the faster one %v; %d tokens are paid, want 1", err, faster, spent)
	}
}
