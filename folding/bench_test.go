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

// withHistory returns a Manager on disk with finished branches behind it and
// others open.
func withHistory(b *testing.B, finished, active int) *folding.Manager {
	b.Helper()
	m, _ := open(b, roomy(), folding.Options{
		Repository: openDB(b, filepath.Join(b.TempDir(), "state.db")),
		OnEvent:    func(folding.Event) {},
	})
	var wg sync.WaitGroup
	for w := range 50 { // at once, to share transactions
		wg.Go(func() {
			for range finished / 50 {
				br := create(b, m, alice, folding.CreateRequest{Prompt: "look at everything there is"})
				if _, err := m.Return(ctx, alice, br.ID, "this is what there was"); err != nil {
					b.Error(err)
				}
			}
			_ = w
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

// One branch created and returned, durably, as history grows.
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

// One call: begun, arguments charged, result taken, ended.
func BenchmarkCall(b *testing.B) {
	for _, parallel := range []int{1, 16, 64} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			m := withHistory(b, 1000, 100)
			cfg := folding.CreateRequest{Budget: 32768}
			var mu sync.Mutex
			var took []time.Duration
			work := make(chan struct{})
			var wg sync.WaitGroup
			for range parallel {
				wg.Go(func() {
					for range work {
						start := time.Now()
						br := create(b, m, alice, cfg)
						mid := time.Now()
						c := begin(b, m, br.ID)
						if err := c.Charge(10); err != nil {
							b.Error(err)
						}
						if _, err := c.Take(100); err != nil {
							b.Error(err)
						}
						c.End(folding.CallOutcome{Tool: "read_file"})
						d := time.Since(mid)
						_ = start
						mu.Lock()
						took = append(took, d)
						mu.Unlock()
						if _, err := m.Return(ctx, alice, br.ID, ""); err != nil {
							b.Error(err)
						}
					}
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
			percentiles(b, took)
		})
	}
}
