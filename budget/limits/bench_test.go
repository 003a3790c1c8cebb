package limits

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// BenchmarkCall is what five limits cost one call, which takes its arguments and its result: with
// much left, with 100 calls, and if nothing can be reserved.
func BenchmarkCall(b *testing.B) {
	for _, kind := range []string{"sqlite", "redis"} {
		for _, callers := range []int{1, 16} {
			for _, left := range []string{"much", "little", "nothing"} {
				b.Run(fmt.Sprintf("%s/callers=%d/%s", kind, callers, left), func(b *testing.B) {
					place := filepath.Join(b.TempDir(), "budgets.db")
					if kind == "redis" {
						place = newRedis(b).URL()
					}
					store, err := openAt(place)
					if err != nil {
						b.Fatal(err)
					}
					defer store.Close()
					asked := &counting{Store: store}
					var all []Limit
					for i, per := range []string{PerPrincipal, PerTeam, PerTool, PerServer, PerAll} {
						all = append(all, Limit{Name: fmt.Sprint("l", i), Per: per, Tokens: 1e12, Calls: 1e12, Window: Window{n: 1, unit: month}})
					}
					o := Options{Wait: time.Minute}
					switch left {
					case "little": // as for 100 calls an hour, again and again
						all[0].Calls = 100
					case "nothing":
						o.MaxResult = 1
						all[0].Action, all[0].Calls = Warn, 1 // nothing can be reserved
					}
					l, err := New(all, asked, o)
					if err != nil {
						b.Fatal(err)
					}
					defer l.Close(b.Context())
					u := Use{Principal: "alice", Team: "data", Server: "db", Tool: "db__query"}
					var rest atomic.Int64
					start := cputime.Process()
					var wg sync.WaitGroup
					for range callers {
						wg.Go(func() {
							for range b.N / callers {
								if left == "little" && rest.Add(-1)%100 == 0 {
									if _, err := l.Reset(b.Context(), "l0", ""); err != nil {
										b.Error(err)
									}
								}
								s, err := l.Begin(b.Context(), u, 20)
								var exceeded *ExceededError
								if errors.As(err, &exceeded) && left == "little" {
									continue // another caller is about to reset it
								} else if err != nil {
									b.Error(err)
									return
								}
								if got, _, err := s.Take(b.Context(), 300); got != 300 || err != nil {
									b.Errorf("Take = %d, %v", got, err)
								}
							}
						})
					}
					wg.Wait()
					b.ReportMetric(float64((cputime.Process()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
					b.ReportMetric(float64(asked.n.Load())/float64(b.N), "trips/op")
				})
			}
		}
	}
}

// counting counts the operations of a store.
type counting struct {
	Store
	n, lists atomic.Int64
}

func (c *counting) List(ctx context.Context, keys ...string) ([]Count, error) {
	c.lists.Add(1)
	return c.Store.List(ctx, keys...)
}

func (c *counting) Take(ctx context.Context, op Op) (Answer, error) {
	c.n.Add(1)
	return c.Store.Take(ctx, op)
}
