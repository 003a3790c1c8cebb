package limits

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// model is what a store is to do.
type model struct {
	counts map[string]map[int64]Used
	ops    map[string]Answer
}

func (m *model) take(op Op, now time.Time) Answer {
	if a, known := m.ops[op.ID]; known {
		return a
	}
	used := make([]Used, len(op.Counters))
	for i, c := range op.Counters {
		for bucket, u := range m.counts[c.Key] {
			if bucket >= c.Oldest {
				used[i].Tokens += u.Tokens
				used[i].Calls += u.Calls
			}
		}
	}
	a := op.decide(used, now)
	if a.Stale {
		return a
	}
	if a.taken != (Used{}) {
		for _, c := range op.Counters {
			m.add(c.Key, c.Bucket, a.taken, false)
		}
	}
	m.ops[op.ID] = a
	return a
}

func (m *model) add(key string, bucket int64, by Used, raise bool) {
	if m.counts[key] == nil {
		m.counts[key] = map[int64]Used{}
	}
	u := m.counts[key][bucket]
	if raise {
		u = Used{max(u.Tokens, by.Tokens), max(u.Calls, by.Calls)}
	} else {
		u = Used{max(u.Tokens+by.Tokens, 0), max(u.Calls+by.Calls, 0)}
	}
	m.counts[key][bucket] = u
}

func (m *model) change(id string, how How, changes []Change) {
	was, known := m.ops[id]
	if how == Add && known {
		return
	}
	for _, c := range changes {
		if how == Undo {
			c.Used = Used{-was.taken.Tokens, -was.taken.Calls}
		}
		m.add(c.Key, c.Bucket, c.Used, how == Raise)
	}
	if how != Raise {
		m.ops[id] = undone
	}
}

// Generated operations: each store does what the model does, a second store on the same counters
// too, and no hard counter gets more than it has.
func TestStoresAreTheModel(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		stores := []Store{open(), open()}
		_, sqlite := stores[0].(*file)
		m := &model{map[string]map[int64]Used{}, map[string]Answer{}}
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Now().Unix()
		type kind struct {
			key           string
			tokens, calls int64
			hard, rolling bool
		}
		var kinds []kind
		for i := range 8 {
			kinds = append(kinds, kind{fmt.Sprintf("k%d:%d:ä : %d\x00", i, now, i), rng.Int64N(2) * (1 + rng.Int64N(20_000)), rng.Int64N(2) * (1 + rng.Int64N(200)), i%4 != 3, i%4 == 1})
		}
		counter := func(k kind) Counter {
			c := Counter{Key: k.key, From: now - 100, Until: now + 1000, Expires: now + 2000, Tokens: k.tokens, Calls: k.calls, Hard: k.hard}
			if k.rolling { // parts of 10 s
				c.Bucket = now - rng.Int64N(4)*10
				c.Oldest = now - 50
			}
			if rng.IntN(100) == 0 {
				c.Until = now - 50 // stale
			}
			return c
		}
		var takes []Op
		var done int
		for i := range 3000 {
			s := stores[rng.IntN(2)]
			var op Op
			switch x := rng.IntN(100); {
			case x < 70:
				op = Op{ID: fmt.Sprint("op", i), Tokens: rng.Int64N(300), Calls: rng.Int64N(2), ExtraTokens: rng.Int64N(200), ExtraCalls: rng.Int64N(5)}
				op.Whole = op.Calls > 0
				picked := rng.Perm(len(kinds))[:1+rng.IntN(5)]
				for _, k := range picked {
					op.Counters = append(op.Counters, counter(kinds[k]))
				}
				takes = append(takes, op)
				fallthrough
			case x < 80: // a retry, perhaps by another caller
				if len(takes) == 0 {
					continue
				}
				if x >= 70 {
					back := min(len(takes), 50)
					op = takes[len(takes)-1-rng.IntN(back)]
				}
				if sqlite {
					s = stores[0] // ids are of one process
				}
				got, err := s.Take(t.Context(), op)
				if was, known := m.ops[op.ID]; known && was.Used == nil {
					if !errors.Is(err, errUndone) {
						t.Fatalf("a take that is undone: %+v, %v", got, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(m.take(op, got.Now), got, cmp.AllowUnexported(Answer{}), cmpopts.EquateEmpty(), cmpopts.IgnoreFields(Answer{}, "Now")); diff != "" {
					t.Fatalf("step %d, %+v: %s", i, op, diff)
				}
				done++
			case x < 98:
				how := []How{Add, Undo, Raise}[rng.IntN(3)] // the first Undo can be of no take
				id := fmt.Sprint("change", i)
				k := kinds[rng.IntN(len(kinds))]
				c := counter(k)
				changes := []Change{{c.Key, c.Bucket, c.Expires, Used{rng.Int64N(200) - 100, rng.Int64N(20) - 10}}}
				if how == Undo && len(takes) > 0 {
					op := takes[len(takes)-1-rng.IntN(min(len(takes), 10))]
					id = op.ID
					changes = nil
					for _, c := range op.Counters {
						changes = append(changes, Change{Key: c.Key, Bucket: c.Bucket, Expires: c.Expires})
					}
				} else if how == Raise {
					id = ""
				}
				if sqlite {
					s = stores[0]
				}
				for range 1 + rng.IntN(2) { // twice is as good as once
					if err := s.Change(t.Context(), id, how, changes); err != nil {
						t.Fatal(err)
					}
				}
				m.change(id, how, changes)
			default:
				k := kinds[rng.IntN(len(kinds))]
				if err := s.Delete(t.Context(), []string{k.key, "none"}); err != nil {
					t.Fatal(err)
				}
				delete(m.counts, k.key)
			}
			if i%100 != 0 {
				continue
			}
			list, err := s.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]map[int64]Used{}
			for _, c := range list {
				if got[c.Key] == nil {
					got[c.Key] = map[int64]Used{}
				}
				got[c.Key][c.Bucket] = c.Used
			}
			zero := cmpopts.IgnoreMapEntries(func(_ int64, u Used) bool { return u == Used{} })
			none := cmpopts.IgnoreMapEntries(func(_ string, m map[int64]Used) bool {
				return !slices.ContainsFunc(slices.Collect(maps.Values(m)), func(u Used) bool { return u != Used{} })
			})
			if diff := cmp.Diff(m.counts, got, zero, none, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("step %d: %s", i, diff)
			}
			if one, err := s.List(t.Context(), kinds[0].key); err != nil || slices.ContainsFunc(one, func(c Count) bool { return c.Key != kinds[0].key }) {
				t.Fatalf("List of one: %v, %v", one, err)
			}
		}
		if done < 1000 {
			t.Errorf("%d takes", done)
		}
	})
}

// What op.decide grants never exceeds a hard counter, and is all that the tightest has left.
func TestDecide(t *testing.T) {
	for range 100_000 {
		n := 1 + rand.IntN(5)
		op := Op{Tokens: rand.Int64N(100), Calls: rand.Int64N(2), ExtraTokens: rand.Int64N(100), ExtraCalls: rand.Int64N(3)}
		op.Whole = rand.IntN(2) == 0
		var before []Used
		least := op.Tokens
		for range n {
			c := Counter{Until: 1 << 40, Tokens: rand.Int64N(2) * rand.Int64N(300), Calls: rand.Int64N(2) * rand.Int64N(10), Hard: rand.IntN(3) > 0}
			op.Counters = append(op.Counters, c)
			u := Used{rand.Int64N(300), rand.Int64N(10)}
			before = append(before, u)
			if c.Hard {
				least = min(least, left(c.Tokens, u.Tokens))
			}
		}
		a := op.decide(slices.Clone(before), time.Unix(1, 0))
		if a.Refused != (a.taken == Used{}) && op.Tokens+op.Calls > 0 && op.Whole {
			t.Fatalf("%+v of %v: %+v", op, before, a)
		}
		if !a.Refused && a.Tokens != least || a.Tokens > op.Tokens || a.taken.Tokens != a.Tokens+a.ExtraTokens || a.ExtraTokens > op.ExtraTokens {
			t.Fatalf("%+v of %v: %+v, want %d", op, before, a, least)
		}
		for i, c := range op.Counters {
			if grown := (Used{a.Used[i].Tokens - before[i].Tokens, a.Used[i].Calls - before[i].Calls}); grown != a.taken {
				t.Fatalf("counter %d grew by %v", i, grown)
			}
			if c.Hard && a.taken.Tokens > left(c.Tokens, before[i].Tokens) || c.Hard && a.taken.Calls > left(c.Calls, before[i].Calls) {
				t.Fatalf("%+v of %v exceeds counter %d: %+v", op, before, i, a)
			}
		}
		if a.Tokens < op.Tokens && a.Tightest < 0 {
			t.Fatalf("%+v of %v: nobody is the tightest: %+v", op, before, a)
		}
	}
}

// A take in the wrong window takes nothing and says what time it is.
func TestStale(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		s, now := open(), time.Now().Unix()
		for i, c := range []Counter{{From: now + 1000, Until: now + 2000}, {From: now - 2000, Until: now - 1000}} {
			c.Key, c.Expires = "a:1:b", now+3000
			a, err := s.Take(context.Background(), Op{ID: fmt.Sprint(i), Counters: []Counter{c}, Tokens: 5})
			if err != nil || !a.Stale || a.Tokens != 0 || a.Now.Unix() < now || a.Now.Unix() > now+60 {
				t.Errorf("%+v, %v", a, err)
			}
			c.From, c.Until = now-1000, now+1000 // the same operation in the right window
			if a, err := s.Take(context.Background(), Op{ID: fmt.Sprint(i), Counters: []Counter{c}, Tokens: 5}); err != nil || a.Tokens != 5 {
				t.Errorf("%+v, %v", a, err)
			}
		}
	})
}

func TestReadAnswer(t *testing.T) {
	for _, bad := range []string{"", "x", "1", strings.Repeat("1,", 11), "1,0,0,0,0,0,-1,0,0,0", "1,0,0,0,0,0,1,0,0,0,1,1", "1,0,0,0,0,0,-2,0,0,0,1,1", "99999999999999999999,0,0,0,0,0,-1,0,0,0,1,1"} {
		if a, err := readAnswer(bad, 1); err == nil {
			t.Errorf("%q is %+v", bad, a)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add("1795356000000000,0,0,7,100,1,-1,0,107,2,107,2", 1)
	f.Add("1795356000000000,1,0,0,0,0,-1,0,0,0", 5)
	f.Fuzz(func(t *testing.T, text string, counters int) {
		if a, err := readAnswer(text, counters); err == nil && !a.Stale && (len(a.Used) != counters || a.Tightest >= counters) {
			t.Errorf("%+v", a)
		}
	})
}

// Counters that have expired are deleted, and if there are too many, those that expire first.
func TestBounds(t *testing.T) {
	const most, live = 50, 40
	eachStore(t, func(t *testing.T, open func() Store) {
		s, now := open(), time.Now().Unix()
		switch s := s.(type) {
		case *file:
			s.most = most
		case *remote:
			s.most = most
		}
		take := func(i int, expires int64) {
			c := Counter{Key: fmt.Sprintf("a:1:%d-%d", expires, i), Until: 1 << 40, Expires: expires}
			if _, err := s.Take(t.Context(), Op{ID: fmt.Sprint(expires, i), Counters: []Counter{c}, Tokens: 1}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range live {
			take(i, now+1<<20)
		}
		for i := range tidyAfter * 2 {
			take(i, now-10)      // long over
			take(i, now+1000+60) // a session's
		}
		list, err := s.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		kept := 0
		for _, c := range list {
			if strings.HasPrefix(c.Key, fmt.Sprintf("a:1:%d-", now+1<<20)) {
				kept++
			}
		}
		if kept != live || len(list) > most+tidyAfter {
			t.Errorf("%d counters are left, %d of %d that expire last", len(list), kept, live)
		}
	})
}

// An operation on an old part of a rolling window, which comes late, deletes no newer part.
func TestLateOperations(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() Store) {
		s, now := open(), time.Now().Unix()
		part := func(key string, age int64) Counter {
			return Counter{Key: key, Until: 1 << 40, Bucket: now - age, Oldest: now - 100, Expires: now - age + 50, Tokens: 1000, Hard: true}
		}
		take := func(id string, c Counter, tokens int64) Answer {
			t.Helper()
			a, err := s.Take(t.Context(), Op{ID: id, Counters: []Counter{c}, Tokens: tokens})
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		for _, age := range []int64{10, 50, 51, 80} {
			for name, late := range map[string]func(id string, c Counter) error{
				"undo": func(id string, c Counter) error {
					return s.Change(t.Context(), id, Undo, []Change{{Key: c.Key, Bucket: c.Bucket, Expires: c.Expires}})
				},
				"add": func(id string, c Counter) error {
					return s.Change(t.Context(), id+"x", Add, []Change{{c.Key, c.Bucket, c.Expires, Used{-5, 0}}})
				},
				"raise": func(_ string, c Counter) error {
					return s.Change(t.Context(), "", Raise, []Change{{c.Key, c.Bucket, c.Expires, Used{1, 0}}})
				},
				"take": func(id string, c Counter) error {
					_, err := s.Take(t.Context(), Op{ID: id + "y", Counters: []Counter{c}, Tokens: 1})
					return err
				},
			} {
				id := fmt.Sprint(name, age)
				key := "a:-1:" + id
				take(id+" new", part(key, 0), 700)
				if err := late(id, part(key, age)); err != nil {
					t.Fatal(err)
				}
				take(id+" other", part("a:-1:other", 0), 1) // it deletes what has expired
				if a := take(id+" look", part(key, 0), 0); a.Used[0].Tokens < 700 || a.Used[0].Tokens > 701 {
					t.Errorf("%s of a part %d s old: the counter has %+v", name, age, a.Used[0])
				}
			}
		}
	})
}

// Parts of rolling windows don't pile up, and those that count stay.
func TestOldParts(t *testing.T) {
	for _, text := range []string{"rolling 1m", "rolling 5m", "rolling 24h", "rolling 30d"} {
		eachStore(t, func(t *testing.T, open func() Store) {
			s, start, at := open(), time.Now(), &clock{}
			if f, ok := s.(*file); ok {
				f.now = at.now
			}
			one, err := Limit{Name: "a", Per: PerAll, Tokens: 1e9, Window: window(t, text)}.prepare()
			if err != nil {
				t.Fatal(err)
			}
			length := time.Duration(one.Window.n) * time.Duration(one.Window.unit)
			steps := tidyAfter * 2
			var last Answer
			for i := range steps { // over 20 windows, up to now
				at.set(start.Add(-20 * length / time.Duration(steps) * time.Duration(steps-1-i)))
				c, _ := one.counter(Use{}, at.now())
				c.From, c.Until = 0, 1<<40 // the clock of Redis stands still
				if last, err = s.Take(t.Context(), Op{ID: fmt.Sprint(i), Counters: []Counter{c}, Tokens: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if n := last.Used[0].Tokens; n < int64(steps/20) || n > int64(steps/20)*9/8 {
				t.Errorf("%s: %d count, want some %d", text, n, steps/20)
			}
			if err := s.Change(t.Context(), "", Raise, nil); err != nil { // SQLite does it after it has deleted
				t.Fatal(err)
			}
			list, err := s.List(t.Context())
			if most := parts*2 + 4; err != nil || text != "rolling 30d" && len(list) > most {
				t.Errorf("%s: %d parts are left, want %d at most; %v", text, len(list), most, err)
			}
		})
	}
}
