package limits

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if order := os.Getenv("LIMITS_TEST_CHILD"); order != "" {
		child(order)
		return
	}
	os.Exit(m.Run())
}

// order is what a child process of a test does.
type order struct {
	Place, Reserves   string
	MaxResult         int
	Callers, Rounds   int
	MaxArgs, MaxTaken int
}

var processLimits = []Limit{
	{Name: "me", Per: PerPrincipal, Tokens: 200_000, Calls: 40_000, Window: Window{n: 1, unit: month}},
	{Name: "rolling", Per: PerTeam, Tokens: 400_000, Window: Window{n: 30, unit: day, rolling: true}},
	{Name: "all", Per: PerAll, Tokens: 500_000, Window: Window{n: 1, unit: month}},
	{Name: "soft", Per: PerAll, Tokens: 100, Calls: 10, Window: Window{n: 30, unit: day, rolling: true}, Action: Warn},
}

// delivery is a line that a child writes when it delivers.
type delivery struct {
	Who    int
	Tokens int
	Call   bool
}

func child(text string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var o order
	fail(json.Unmarshal([]byte(text), &o))
	store, err := openAt(o.Place)
	fail(err)
	reserves, err := OpenReserveFile(o.Reserves, "")
	fail(err)
	l, err := New(processLimits, store, Options{Wait: time.Minute, MaxResult: o.MaxResult, Reserves: reserves})
	fail(err)
	ctx := context.Background()
	say := func(who, n int, call bool) {
		line, _ := json.Marshal(delivery{who, n, call})
		_, err := os.Stdout.Write(append(line, '\n')) // one write: it is delivered or not
		fail(err)
	}
	var wg sync.WaitGroup
	for i := range o.Callers {
		wg.Go(func() {
			who := i % 4
			u := Use{Principal: fmt.Sprint("p", who), Team: fmt.Sprint("t", who%2)}
			for range o.Rounds {
				args := rand.IntN(o.MaxArgs + 1)
				s, err := l.Begin(ctx, u, args)
				var exceeded *ExceededError
				if errors.As(err, &exceeded) {
					continue
				}
				fail(err)
				say(who, args, true)
				want := 1 + rand.IntN(o.MaxTaken)
				got, tight, err := s.Take(ctx, want)
				fail(err)
				if (got < want) != (tight != nil) || got > want {
					fail(fmt.Errorf("Take(%d) = %d, %v", want, got, tight))
				}
				back := 0
				if rand.IntN(3) == 0 {
					back = rand.IntN(got + 1)
				}
				say(who, got-back, false)
				s.Refund(back)
			}
		})
	}
	wg.Wait()
	l.Close(ctx)
	fail(store.Close())
}

// run runs a child process. The cancel function kills it.
func (o order) run(t *testing.T, ctx context.Context, heard func(delivery)) error {
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), "LIMITS_TEST_CHILD="+string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var d delivery
		if err := json.Unmarshal(lines.Bytes(), &d); err != nil {
			t.Errorf("%q: %v", lines.Text(), err)
		}
		heard(d)
	}
	return cmd.Wait()
}

// tally sums up deliveries by limit and subject.
type tally struct {
	mu  sync.Mutex
	sum map[[2]string]Used
}

func (s *tally) heard(d delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, to := range [][2]string{{"me", fmt.Sprint("p", d.Who)}, {"rolling", fmt.Sprint("t", d.Who%2)}, {"all", ""}, {"soft", ""}} {
		u := s.sum[to]
		u.Tokens += int64(d.Tokens)
		if d.Call {
			u.Calls++
		}
		s.sum[to] = u
	}
}

// check compares what was delivered with the counters. over is what they may have counted too much.
func (s *tally) check(t *testing.T, place, reserves string, over Used) {
	t.Helper()
	store, err := openAt(place)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	file := openReserves(t, reserves)
	defer file.Close()
	l := onStore(t, processLimits, store, Options{Wait: time.Minute, Reserves: file})
	l.settled(t)
	for to, got := range s.sum {
		counted := l.used(t, to[0], to[1])
		if counted.Tokens < got.Tokens || counted.Calls < got.Calls {
			t.Errorf("%v: %+v was delivered, the counter has only %+v", to, got, counted)
		}
		if counted.Tokens > got.Tokens+over.Tokens || counted.Calls > got.Calls+over.Calls {
			t.Errorf("%v: %+v was delivered, the counter has %+v, more than %+v too much", to, got, counted, over)
		}
		for _, limit := range processLimits {
			if limit.Name == to[0] && limit.Action == "" && (got.Tokens > int64(limit.Tokens) || limit.Calls > 0 && got.Calls > int64(limit.Calls)) {
				t.Errorf("%v: %+v is over the limit", to, got)
			}
		}
	}
}

// Two processes with 64 callers share the limits: they get exactly what the limits have.
func TestProcesses(t *testing.T) {
	for _, maxResult := range []int{1, 3000} { // without a reserve to speak of, and with one
		eachPlace(t, func(t *testing.T, place string) {
			s := tally{sum: map[[2]string]Used{}}
			o := order{Place: place, MaxResult: maxResult, Callers: 32, Rounds: 100, MaxArgs: 20, MaxTaken: 300}
			var both sync.WaitGroup
			for i := range 2 {
				o.Reserves = filepath.Join(t.TempDir(), fmt.Sprint(i))
				o := o
				both.Go(func() {
					if err := o.run(t, t.Context(), s.heard); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			s.check(t, place, o.Reserves, Used{})
			if all := s.sum[[2]string{"all", ""}]; all.Tokens != 500_000 {
				t.Errorf("%d of 500000 tokens were delivered", all.Tokens)
			}
		})
	}
}

// A process that is killed has charged all that it delivered, and once another one has run on its
// reserve file no more than what its callers had in hand.
func TestKill(t *testing.T) {
	kills := 12
	if testing.Short() {
		kills = 3
	}
	eachPlace(t, func(t *testing.T, place string) {
		s := tally{sum: map[[2]string]Used{}}
		o := order{Place: place, Reserves: filepath.Join(t.TempDir(), "reserves"), MaxResult: 500, Callers: 16, Rounds: 1e6, MaxArgs: 5, MaxTaken: 20}
		for range kills {
			ctx, kill := context.WithCancel(t.Context())
			after := 1 + rand.IntN(300)
			_ = o.run(t, ctx, func(d delivery) {
				s.heard(d)
				if after--; after == 0 {
					kill()
				}
			})
			kill()
		}
		s.check(t, place, o.Reserves, Used{int64(kills) * 16 * 25, int64(kills) * 16})
	})
}
