package limits

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Each kind of crossing is told once for a subject and window.
func TestCrossings(t *testing.T) {
	repeat := func(n int, of ...int) []int { return slices.Repeat(of, n) }
	for _, c := range []struct {
		name   string
		action string
		window string // "" is the life of a session
		takes  []int  // tokens of 1000; 0: half of the window passes; -1: the count is set to 0
		want   []string
	}{
		{"near", Refuse, "1mo", repeat(90, 10), []string{"near"}},
		{"near and refused", Refuse, "1mo", repeat(120, 10), []string{"near", "refused"}},
		{"refused at once", Refuse, "1mo", []int{5000}, []string{"refused"}},
		{"too large and small in turn", Refuse, "1mo", repeat(50, 5000, 10), []string{"refused"}},
		{"the same in a session", Refuse, "", repeat(50, 5000, 10), []string{"refused"}},
		{"the same in a rolling window", Refuse, "rolling 24h", repeat(50, 5000, 10), []string{"refused"}},
		{"the same until it is near", Refuse, "1mo", repeat(85, 5000, 10), []string{"refused", "near"}},
		{"the same until it is spent", Refuse, "1mo", repeat(110, 5000, 10), []string{"refused", "near"}},
		{"near, then too large and small in turn", Refuse, "1mo", slices.Concat([]int{850}, repeat(10, 5000, 10)), []string{"near", "refused"}},
		{"over", Warn, "1mo", repeat(120, 10), []string{"near", "over"}},
		{"over at once", Fold, "1mo", []int{5000, 10, 10}, []string{"over"}},
		{"two rolling windows", Refuse, "rolling 24h", []int{5000, 10, 5000, 0, 5000, 10, 0, 0, 5000, 10, 5000}, []string{"refused", "refused"}},
		{"two months", Refuse, "1mo", []int{850, 5000, 0, 0, 5000, 850, 5000}, []string{"near", "refused", "refused", "near"}},
		{"a reset", Refuse, "1mo", []int{850, 5000, 10, -1, 10, 850, 10, 5000}, []string{"near", "refused", "near", "refused"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock := &clock{t: time.Date(2026, 11, 10, 12, 0, 0, 0, time.UTC)}
			var got []string
			limit := Limit{Name: "me", Per: PerSession, Tokens: 1000, Action: c.action}
			half := 16 * 24 * time.Hour
			if c.window != "" {
				limit.Window = window(t, c.window)
			}
			if c.window == "rolling 24h" {
				half = 12*time.Hour + time.Hour // and its parts
			}
			l := newLimits(t, Options{Now: clock.now, MaxResult: 1, Notify: func(x Crossing) { got = append(got, x.Kind) }}, limit)
			l.pause = 0
			u := Use{Session: "s"}
			for _, n := range c.takes {
				switch {
				case n > 0:
					pay(t, l, u, n)
				case n == 0:
					l.Close(t.Context())
					clock.set(clock.now().Add(half))
				default:
					if _, err := l.Reset(t.Context(), "me", ""); err != nil {
						t.Fatal(err)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("told %v, want %v", got, c.want)
			}
		})
	}
}

// TestCrossingsOutOfOrder: answers to calls at the same time come in any order, and each crossing is told
// once all the same.
func TestCrossingsOutOfOrder(t *testing.T) {
	limit := Limit{Name: "me", Per: PerSession, Tokens: 1000, Window: window(t, "1mo"), Action: Refuse}
	l := newLimits(t, Options{MaxResult: 1, Notify: func(Crossing) {}}, limit)
	u := Use{Session: "s"}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(u)
	for range 200 {
		clear(l.levels)
		asked := time.Now()
		answers := []Answer{}
		for range 30 {
			x := Answer{Used: []Used{{Tokens: rand.Int64N(1000)}}, Tightest: -1}
			if rand.N(4) == 0 {
				x = Answer{Used: []Used{{Tokens: 1000}}}
			}
			answers = append(answers, x)
		}
		told := map[string]int{}
		for _, x := range answers {
			for _, c := range l.noteAnswer(a, u, x, asked) {
				told[c.Kind]++
			}
		}
		if told["near"] > 1 || told["refused"] > 1 {
			t.Fatalf("told %v by %v", told, answers)
		}
		later := l.noteAnswer(a, u, Answer{Used: []Used{{Tokens: 10}}, Tightest: -1}, time.Now())
		if len(later) > 0 || len(l.levels) > 0 {
			t.Fatalf("a later answer far below told %v, left %v", later, l.levels)
		}
	}
}
