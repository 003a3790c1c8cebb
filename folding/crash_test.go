package folding_test

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

var crashes = flag.Int("crashes", 25, "how often TestKilledProcess kills its child")

// victimDB makes this test binary the process that TestKilledProcess kills.
const victimDB = "FOLDING_TEST_VICTIM_DB"

func TestMain(m *testing.M) {
	if path := os.Getenv(victimDB); path != "" {
		if err := victim(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	os.Exit(m.Run())
}

// victim works on branches until it is killed. It prints each result that an
// agent has seen in one write, after the Manager has allowed it.
func victim(path string) error {
	repo, err := folding.OpenSQLite(path)
	if err != nil {
		return err
	}
	cfg := roomy()
	cfg.MaxBudget = 1 << 20
	m, err := folding.Open(ctx, cfg, folding.Options{Repository: repo, Count: words, Scrub: redact})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for {
				b, err := m.Create(ctx, alice, folding.CreateRequest{Description: "work", Budget: 1 << 20, TimeoutSeconds: 600})
				if err != nil {
					return
				}
				fmt.Fprintf(os.Stdout, "created %s\n", b.ID)
				for range 1 + rand.IntN(40) {
					c, err := acquire(ctx, m, b.ID)
					if err != nil {
						return
					}
					if err := c.Charge(3); err != nil {
						return
					}
					fmt.Fprintf(os.Stdout, "sent %s 3\n", b.ID)
					n, err := c.ChargeUpTo(1 + rand.IntN(50))
					if err != nil {
						return
					}
					fmt.Fprintf(os.Stdout, "delivered %s %d\n", b.ID, n)
					c.Release(folding.CallOutcome{Tool: "t"})
				}
				if _, err := m.Return(ctx, alice, b.ID, "done"); err != nil {
					return
				}
				fmt.Fprintf(os.Stdout, "returned %s\n", b.ID)
			}
		})
	}
	wg.Wait()
	return fmt.Errorf("the victim ran out of work")
}

// seen sums up the output of the killed process for one branch.
type seen struct {
	tokens   int
	returned bool
}

// A process is killed at random moments, many times on one database. Every token
// that it had delivered is accounted for afterwards.
func TestKilledProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	total := map[string]int{}
	for range *crashes {
		told := killAfter(t, path, time.Duration(rand.IntN(40_000))*time.Microsecond)
		repo := openDB(t, path)
		lost := 0
		for id, s := range told {
			b, ok, err := repo.Get(ctx, id)
			switch {
			case err != nil || !ok:
				t.Fatalf("branch %s, which was shown, is gone: %v", id, err)
			case b.BudgetUsed < s.tokens || b.BudgetUsed > b.BudgetTotal:
				t.Fatalf("branch %s: %d tokens were shown, %d are booked of %d", id, s.tokens, b.BudgetUsed, b.BudgetTotal)
			case s.returned && (b.Status != folding.StatusCompleted || b.Message != "done"):
				t.Fatalf("branch %s had returned and is %s", id, b.Status)
			}
			total["branches"]++
			total["tokens"] += s.tokens
		}
		active, err := repo.Active(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range active {
			lost += b.Activity.InFlight
		}
		total["active"] += len(active)

		// The next process takes over, before or after the deadlines.
		later := time.Duration(rand.IntN(2)) * 10 * time.Minute
		rec := &recorder{}
		m, err := folding.Open(ctx, roomy(), folding.Options{
			Repository: repo, Count: words, Scrub: redact, OnEvent: rec.on,
			Now: func() time.Time { return time.Now().Add(later) },
		})
		if err != nil {
			t.Fatal(err)
		}
		recovered := 0
		for _, e := range rec.events {
			if e.Kind == folding.EventRecovered {
				recovered += e.Branch.Activity.Lost
			}
		}
		if recovered != lost {
			t.Errorf("%d calls recorded as lost, want %d", recovered, lost)
		}
		total["lost"] += lost
		for _, b := range active {
			got := status(t, m, alice, b.ID)
			if got.BudgetUsed != b.BudgetUsed {
				t.Errorf("used %d after the restart, %d before", got.BudgetUsed, b.BudgetUsed)
			}
			want := folding.StatusActive
			if later > 0 {
				want = folding.StatusTimeout
			}
			if got.Status != want || want == folding.StatusTimeout && !got.CompletedAt.Equal(b.ExpiresAt) {
				t.Errorf("%s after %v: %s at %v, want %s", b.ID, later, got.Status, got.CompletedAt, want)
			}
		}
		if err := m.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d kills: %v", *crashes, total)
	if total["active"] == 0 || total["lost"] == 0 || total["tokens"] == 0 {
		t.Errorf("no kill met a branch at work: %v", total)
	}
}

// killAfter runs the victim, kills it some time after its first output and
// returns that output.
func killAfter(t *testing.T, path string, d time.Duration) map[string]*seen {
	t.Helper()
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(cctx, os.Args[0], "-test.run=^$") // cancel is SIGKILL
	cmd.Env = append(os.Environ(), victimDB+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := map[string]*seen{}
	lines := bufio.NewScanner(out)
	for first := true; lines.Scan(); first = false {
		if first {
			time.AfterFunc(d, cancel)
		}
		f := strings.Fields(lines.Text())
		if len(f) < 2 {
			continue
		}
		s := told[f[1]]
		if s == nil {
			s = &seen{tokens: 1} // the description
			told[f[1]] = s
		}
		switch f[0] {
		case "sent", "delivered":
			if len(f) == 3 {
				n, _ := strconv.Atoi(f[2])
				s.tokens += n
			}
		case "returned":
			s.returned = true
		}
	}
	cmd.Wait() // returns an error, since the process was killed
	if len(told) == 0 {
		t.Fatal("the victim said nothing")
	}
	return told
}

// A branch goes on in the next process.
func TestRestart(t *testing.T) {
	clock := newManual()
	path := filepath.Join(t.TempDir(), "state.db")
	image := filepath.Join(t.TempDir(), "state.db")
	m, _ := open(t, roomy(), folding.Options{Repository: openDB(t, path), Now: clock.now})
	p := create(t, m, alice, folding.CreateRequest{Description: "parent", Prompt: "the plan", Budget: 1000})
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID, Budget: 100})
	done := create(t, m, alice, folding.CreateRequest{})
	if _, err := m.Return(ctx, alice, done.ID, "result"); err != nil {
		t.Fatal(err)
	}
	late := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 1})
	clock.advance(2 * time.Second)
	status(t, m, alice, late.ID)
	call := begin(t, m, c.ID)
	if n, err := call.ChargeUpTo(85); n != 85 || err != nil {
		t.Fatal(n, err)
	}
	copyDB(t, path, image) // as a crash would leave it

	clock.advance(time.Minute)
	m2, rec := open(t, roomy(), folding.Options{Repository: openDB(t, image), Now: clock.now})
	wantKinds(t, rec, c.ID, folding.EventRecovered)
	got := status(t, m2, alice, c.ID)
	if got.Status != folding.StatusActive || got.BudgetUsed != 86 || got.Activity.Lost != 1 || got.Activity.InFlight != 0 || got.ParentID != p.ID {
		t.Errorf("child = %+v", got)
	}
	if got := status(t, m2, alice, p.ID); got.Description != "parent" || got.Prompt != "the plan" {
		t.Errorf("parent = %+v", got)
	}
	if got := status(t, m2, alice, done.ID); got.Message != "result" {
		t.Errorf("finished branch = %+v", got)
	}
	if r, err := m2.Return(ctx, alice, late.ID, "at last"); err != nil || !r.Branch.Late {
		t.Errorf("late return after a restart = %+v, %v", r, err)
	}
	next := begin(t, m2, c.ID)
	if n, err := next.ChargeUpTo(50); n != 14 || err != nil {
		t.Errorf("Take after the restart = %d, %v; want the 14 that are left", n, err)
	}
	next.Refund(14)
	next.Release(folding.CallOutcome{Tool: "t"})
	r, err := m2.Return(ctx, alice, p.ID, "done")
	if ends := rec.ends(); err != nil || !slices.Equal(ends[len(ends)-2:], []string{c.ID, p.ID}) {
		t.Errorf("Return after the restart = %+v, %v, ends %v: the tree is broken", r, err, ends)
	}
	if want := "86 of 100 tokens used; 1 call (t 1), 1 lost in a restart"; status(t, m2, alice, c.ID).Digest != want {
		t.Errorf("Digest = %q, want %q", status(t, m2, alice, c.ID).Digest, want)
	}
}

// Rows that contradict each other are corrected at start.
func TestRecoverOddRows(t *testing.T) {
	repo := folding.NewMemory()
	now := time.Now().UTC().Truncate(time.Microsecond)
	row := func(id, parent string, used, total int) folding.Branch {
		return folding.Branch{ID: id, ParentID: parent, Principal: "alice", Session: "s1", Depth: 1, Status: folding.StatusActive,
			BudgetUsed: used, BudgetTotal: total, CreatedAt: now, ExpiresAt: now.Add(time.Hour)}
	}
	orphan := row("br_00000000-0000-4000-8000-000000000001", "br_gone", 1, 10)
	spent := row("br_00000000-0000-4000-8000-000000000002", "", 10, 10)
	overspent := row("br_00000000-0000-4000-8000-000000000003", "", 11, 10)
	fine := row("br_00000000-0000-4000-8000-000000000004", "", 1, 10)
	for _, b := range []folding.Branch{orphan, spent, overspent, fine} {
		if err := repo.Apply(ctx, []folding.Branch{b}); err != nil {
			t.Fatal(err)
		}
	}
	m, _ := open(t, roomy(), folding.Options{Repository: repo})
	for b, want := range map[*folding.Branch]string{
		&orphan: folding.ReasonParentEnded, &spent: folding.ReasonBudgetExhausted, &overspent: folding.ReasonBudgetExhausted, &fine: "",
	} {
		if got := status(t, m, alice, b.ID); got.Reason != want {
			t.Errorf("%s: %s %q, want reason %q", b.ID, got.Status, got.Reason, want)
		}
	}
}

// copyDB copies a database that is not being written, log included.
func copyDB(t *testing.T, from, to string) {
	t.Helper()
	for _, suffix := range []string{"", "-wal", ".progress"} {
		raw, err := os.ReadFile(from + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+suffix, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
