package folding_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

// withHistory returns a Manager on disk with finished and open branches.
func withHistory(b *testing.B, finished, active int) *folding.Manager {
	b.Helper()
	cfg := roomy()
	cfg.MaxBudget = 1 << 30
	m, _ := open(b, cfg, folding.Options{
		Repository: openDB(b, filepath.Join(b.TempDir(), "state.db")),
		OnEvent:    func(folding.Event) {},
	})
	const workers = 50 // at once, to share transactions
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range finished / workers {
				br := create(b, m, alice, folding.CreateRequest{Prompt: "look at everything there is"})
				if _, err := m.Return(ctx, alice, br.ID, "this is what there was"); err != nil {
					b.Error(err)
				}
			}
		})
	}
	wg.Wait()
	for i := range active {
		create(b, m, folding.Caller{Principal: "alice", Session: fmt.Sprint("open", i/10)}, folding.CreateRequest{})
	}
	return m
}

// percentiles reports the median and the 99th percentile in microseconds.
func percentiles(b *testing.B, took []time.Duration) {
	slices.Sort(took)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	b.ReportMetric(us(took[len(took)/2]), "p50-µs")
	b.ReportMetric(us(took[len(took)*99/100]), "p99-µs")
}

// BenchmarkCreateReturn creates and returns a branch, as history grows.
func BenchmarkCreateReturn(b *testing.B) {
	for _, finished := range []int{0, 1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("finished=%d/active=100", finished), func(b *testing.B) {
			m := withHistory(b, finished, 100)
			var took []time.Duration
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				br, err := m.Create(ctx, alice, folding.CreateRequest{Description: "find the parser"})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := m.Return(ctx, alice, br.ID, "it is in p.go"); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			percentiles(b, took)
		})
	}
}

// BenchmarkCall charges a call for its arguments and its result. Both charges
// wait until they are durable; concurrent calls share transactions.
func BenchmarkCall(b *testing.B) {
	for _, parallel := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			m := withHistory(b, 1000, 90)
			took := make([][]time.Duration, parallel)
			work := make(chan struct{})
			var wg sync.WaitGroup
			for i := range parallel {
				br := create(b, m, alice, folding.CreateRequest{Budget: 1 << 30})
				wg.Go(func() {
					for range work {
						start := time.Now()
						c := begin(b, m, br.ID)
						if err := c.Charge(10); err != nil {
							b.Error(err)
						}
						if _, err := c.ChargeUpTo(100); err != nil {
							b.Error(err)
						}
						c.Release(folding.CallOutcome{Tool: "read_file"})
						took[i] = append(took[i], time.Since(start))
					}
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			percentiles(b, slices.Concat(took...))
		})
	}
}

// BenchmarkResolve looks up the branch of a call.
func BenchmarkResolve(b *testing.B) {
	m := withHistory(b, 1000, 100)
	br := create(b, m, alice, folding.CreateRequest{})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Resolve(alice, br.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a database with history. Most of it is the check of the
// file.
func BenchmarkOpen(b *testing.B) {
	for _, finished := range []int{0, 10_000, 100_000} {
		b.Run(fmt.Sprintf("finished=%d", finished), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "state.db")
			repo := openDB(b, path)
			for i := 0; i < finished; i += 1000 {
				var changes []folding.Branch
				for j := range 1000 {
					br := sample(fmt.Sprintf("br_%08d", i+j), time.Now())
					br.Status, br.CompletedAt = folding.StatusCompleted, time.Now()
					changes = append(changes, br)
				}
				if err := repo.Apply(ctx, changes); err != nil {
					b.Fatal(err)
				}
			}
			if err := repo.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if err := openDB(b, path).Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
