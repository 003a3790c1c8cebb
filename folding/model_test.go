package folding_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

var models = flag.Int("models", 150, "how many random histories TestModel plays")

// The model implements the rules of the package a second time, on plain values,
// without locks, storage or timers.

type modelBranch struct {
	id, parent, session, origin string
	depth, seq                  int
	used, total                 int
	refunded                    int // may not be durable yet
	expires                     time.Time
	status                      folding.Status
	reason                      string
	late                        bool
	calls                       []*modelCall
}

type modelCall struct {
	c       lease
	b       *modelBranch
	booked  int
	partial bool
	over    bool
}

type model struct {
	t        *testing.T
	rng      *rand.Rand
	clock    *manual
	cfg      folding.Config
	repo     *mortal
	m        *folding.Manager
	rec      *recorder
	branches []*modelBranch
	calls    []*modelCall
	log      []string
}

// mortal is a repository that writes nothing once dead is set, as after the
// death of its process.
type mortal struct {
	folding.Repository
	mu   sync.Mutex
	dead bool
}

func (r *mortal) Apply(ctx context.Context, c []folding.Branch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return nil
	}
	return r.Repository.Apply(ctx, c)
}

func (r *mortal) Progress(b folding.Branch) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead {
		return nil
	}
	return r.Repository.Progress(b)
}

func (r *mortal) Close() error { return nil }

func (x *model) active() []*modelBranch {
	var out []*modelBranch
	for _, b := range x.branches {
		if b.status == folding.StatusActive {
			out = append(out, b)
		}
	}
	return out
}

func (x *model) find(id string) *modelBranch {
	i := slices.IndexFunc(x.branches, func(b *modelBranch) bool { return b.id == id })
	if i < 0 {
		return nil
	}
	return x.branches[i]
}

func (x *model) finish(b *modelBranch, s folding.Status, reason string) {
	below := folding.ReasonParentEnded
	if s == folding.StatusCompleted || reason == folding.ReasonParentReturning {
		below = folding.ReasonParentReturning
	}
	for _, c := range x.active() {
		if c.parent == b.id {
			x.finish(c, folding.StatusFailed, below)
		}
	}
	b.status, b.reason = s, reason
}

// finishSet ends the active branches of a set, deepest first.
func (x *model) finishSet(set []*modelBranch, s folding.Status, reason string) {
	slices.SortStableFunc(set, func(a, b *modelBranch) int { return cmp.Compare(b.depth, a.depth) })
	for _, b := range set {
		if b.status == folding.StatusActive {
			x.finish(b, s, reason)
		}
	}
}

func (x *model) expire() {
	var due []*modelBranch
	for _, b := range x.active() {
		if !x.clock.now().Before(b.expires) {
			due = append(due, b)
		}
	}
	x.finishSet(due, folding.StatusTimeout, folding.ReasonTimeout)
}

func (x *model) held(b *modelBranch) bool {
	return slices.ContainsFunc(b.calls, func(c *modelCall) bool { return c.partial })
}

func (x *model) settle(b *modelBranch) {
	if b.status == folding.StatusActive && !x.held(b) && b.used == b.total {
		x.finish(b, folding.StatusFailed, folding.ReasonBudgetExhausted)
	}
}

func (x *model) chargeParent(b *modelBranch, n int) int {
	p := x.find(b.parent)
	if p == nil || p.status != folding.StatusActive {
		return n
	}
	got := min(n, p.total-p.used)
	p.used += got
	x.settle(p)
	return got
}

func (x *model) errorf(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nafter:\n%s", fmt.Sprintf(format, args...), strings.Join(x.log, "\n"))
}

func (x *model) note(format string, args ...any) { x.log = append(x.log, fmt.Sprintf(format, args...)) }

func pick[T any](r *rand.Rand, list []T) (v T, ok bool) {
	if len(list) == 0 {
		return v, false
	}
	return list[r.IntN(len(list))], true
}

// Each operation does the same to the Manager and the model and compares the
// answers.

func (x *model) create() {
	caller := folding.Caller{Principal: "alice", Session: fmt.Sprint("s", x.rng.IntN(2))}
	req := folding.CreateRequest{Description: "d", Budget: 5 + x.rng.IntN(40), TimeoutSeconds: 1 + x.rng.IntN(60)}
	var parent *modelBranch
	if x.rng.IntN(2) == 0 {
		parent, _ = pick(x.rng, x.branches)
	}
	session := caller.Session
	var want error
	if parent != nil {
		req.ParentID, session = parent.id, parent.session
		if parent.status != folding.StatusActive {
			want = folding.ErrNotActive
		} else if parent.depth == x.cfg.MaxDepth {
			want = folding.ErrMaxDepthExceeded
		}
	}
	open := 0
	for _, b := range x.active() {
		if b.session == session {
			open++
		}
	}
	if want == nil && open >= x.cfg.MaxConcurrentPerSession {
		want = folding.ErrTooManyBranches
	} else if want == nil && len(x.active()) >= x.cfg.MaxConcurrentPerInstance {
		want = folding.ErrInstanceFull
	}
	b, err := x.m.Create(ctx, caller, req)
	x.note("create below %q in %s = %s, %v", req.ParentID, session, b.ID, err)
	if !errors.Is(err, want) {
		x.errorf("Create = %v, want %v", err, want)
	}
	if err != nil {
		return
	}
	mb := &modelBranch{id: b.ID, session: session, origin: caller.Session, depth: 1, seq: len(x.branches), used: 1, total: req.Budget, status: folding.StatusActive,
		expires: x.clock.now().Add(time.Duration(req.TimeoutSeconds) * time.Second)}
	if parent != nil {
		mb.parent, mb.depth = parent.id, parent.depth+1
		if parent.expires.Before(mb.expires) {
			mb.expires = parent.expires
		}
	}
	x.branches = append(x.branches, mb)
}

func (x *model) begin() {
	b, ok := pick(x.rng, x.branches)
	if !ok {
		return
	}
	c, err := acquire(ctx, x.m, b.id)
	x.note("begin %s = %v", b.id, err)
	if (err == nil) != (b.status == folding.StatusActive) || err != nil && !errors.Is(err, folding.ErrNotActive) {
		x.errorf("Begin in a branch that is %s = %v", b.status, err)
	}
	if err == nil {
		mc := &modelCall{c: c, b: b}
		b.calls = append(b.calls, mc)
		x.calls = append(x.calls, mc)
	}
}

func (x *model) charge() {
	c, ok := pick(x.rng, x.calls)
	if !ok || c.over {
		return
	}
	n := x.rng.IntN(15)
	err := c.c.Charge(n)
	x.note("charge %d to %s = %v", n, c.b.id, err)
	switch {
	case c.b.status != folding.StatusActive:
		wantErr(x.t, "Charge", err, folding.ErrNotActive)
	case n > c.b.total-c.b.used:
		wantErr(x.t, "Charge", err, folding.ErrBudgetExhausted)
		x.finish(c.b, folding.StatusFailed, folding.ReasonBudgetExhausted)
	case err != nil:
		x.errorf("Charge = %v", err)
	default:
		c.b.used += n
		c.booked += n
	}
}

func (x *model) take() {
	c, ok := pick(x.rng, x.calls)
	if !ok || c.over {
		return
	}
	if c.b.status == folding.StatusActive && c.b.used == c.b.total && x.held(c.b) && !c.partial {
		return // would wait
	}
	n := x.rng.IntN(30)
	got, err := c.c.ChargeUpTo(n)
	x.note("take %d from %s = %d, %v", n, c.b.id, got, err)
	if c.b.status != folding.StatusActive {
		wantErr(x.t, "Take", err, folding.ErrNotActive)
		if got != 0 {
			x.errorf("late Take = %d", got)
		}
		return
	}
	want := min(n, c.b.total-c.b.used)
	if got != want || err != nil {
		x.errorf("Take(%d) with %d left = %d, %v", n, c.b.total-c.b.used, got, err)
	}
	c.b.used += got
	c.booked += got
	c.partial = c.partial || 0 < got && got < n
}

func (x *model) refund() {
	c, ok := pick(x.rng, x.calls)
	if !ok {
		return
	}
	n := x.rng.IntN(20)
	c.c.Refund(n)
	x.note("refund %d to %s", n, c.b.id)
	if c.over || c.b.status != folding.StatusActive {
		return
	}
	n = min(n, c.booked)
	c.booked -= n
	c.b.used -= n
	c.b.refunded += n
	c.partial = false
}

func (x *model) exhaust() {
	c, ok := pick(x.rng, x.calls)
	if !ok || x.rng.IntN(4) > 0 {
		return
	}
	c.c.Exhaust(ctx, folding.CallOutcome{Tool: "t"})
	x.note("exhaust %s", c.b.id)
	if !c.over {
		c.over, c.partial = true, false
		if c.b.status == folding.StatusActive {
			x.finish(c.b, folding.StatusFailed, folding.ReasonBudgetExhausted)
		}
	}
}

func (x *model) end() {
	c, ok := pick(x.rng, x.calls)
	if !ok {
		return
	}
	c.c.Release(folding.CallOutcome{Tool: "t"})
	x.note("end a call in %s", c.b.id)
	if !c.over {
		c.over, c.partial = true, false
		x.settle(c.b)
	}
}

func (x *model) ret() {
	b, ok := pick(x.rng, x.branches)
	if !ok {
		return
	}
	n := x.rng.IntN(6)
	r, err := x.m.Return(ctx, folding.Caller{Principal: "alice"}, b.id, strings.Repeat("w ", n))
	x.note("return %s with %d words = late %v, %v", b.id, n, r.Branch.Late, err)
	switch {
	case b.status == folding.StatusActive:
		x.finish(b, folding.StatusCompleted, "")
	case b.reason != "" && !b.late:
		b.late = true
		if !r.Branch.Late {
			x.errorf("Return of a branch that is %s is not late", b.status)
		}
	default:
		wantErr(x.t, "Return", err, folding.ErrNotActive)
		return
	}
	granted := x.chargeParent(b, n)
	if err != nil || r.Granted != granted || r.Branch.BudgetUsed != b.used || r.Branch.Status != b.status {
		x.errorf("Return = %+v, %v; want granted %d, used %d, %s", r, err, granted, b.used, b.status)
	}
}

func (x *model) advance() {
	d := time.Duration(x.rng.IntN(20)) * time.Second // so no deadline is near: time passes in the Manager, too
	x.clock.advance(d)
	x.note("advance %v", d)
	x.expire()
}

func (x *model) endSession() {
	if x.rng.IntN(8) > 0 {
		return
	}
	s := fmt.Sprint("s", x.rng.IntN(2))
	if err := x.m.EndSession(ctx, folding.Caller{Principal: "alice", Session: s}, ""); err != nil {
		x.errorf("EndSession = %v", err)
	}
	x.note("end session %s", s)
	var set []*modelBranch
	for _, b := range x.active() {
		if b.session == s || b.origin == s {
			set = append(set, b)
		}
	}
	x.finishSet(set, folding.StatusFailed, folding.ReasonSessionEnded)
}

// crash ends the process and lets another take over. Calls are lost. Branches
// go on unless their deadline has passed or their budget is used up.
func (x *model) crash() {
	if x.rng.IntN(8) > 0 {
		return
	}
	x.note("crash")
	x.repo.mu.Lock()
	x.repo.dead = true
	x.repo.mu.Unlock()
	if err := x.m.Close(ctx); err != nil {
		x.errorf("Close = %v", err)
	}
	for _, b := range x.branches {
		b.calls = nil
	}
	x.calls = nil
	x.start()
	for _, b := range x.branches { // a refund may be lost, a charge may not
		got, _, err := x.m.Status(ctx, folding.Caller{Principal: "alice"}, folding.StatusRequest{BranchID: b.id})
		if lost := got.BudgetUsed - b.used; err != nil || lost < 0 || lost > b.refunded {
			x.errorf("%s used %d after the crash and %d before, with %d refunded, %v", b.id, got.BudgetUsed, b.used, b.refunded, err)
		}
		b.used, b.refunded = got.BudgetUsed, 0
	}
	x.expire()
	list := x.active()
	slices.SortStableFunc(list, func(a, b *modelBranch) int { return cmp.Compare(b.depth, a.depth) })
	for _, b := range list {
		x.settle(b)
	}
}

func (x *model) start() {
	x.repo = &mortal{Repository: x.repo.Repository}
	var err error
	x.m, err = folding.Open(ctx, x.cfg, folding.Options{Repository: x.repo, Count: words, Scrub: redact, Now: x.clock.now, OnEvent: x.rec.on})
	if err != nil {
		x.errorf("Open = %v", err)
	}
}

// compare looks at every branch through the Manager.
func (x *model) compare() {
	for _, b := range x.branches {
		got, ok, err := x.m.Status(ctx, folding.Caller{Principal: "alice"}, folding.StatusRequest{BranchID: b.id})
		if !ok || err != nil || got.Status != b.status || got.Reason != b.reason || got.BudgetUsed != b.used || got.Late != b.late || got.Depth != b.depth {
			x.errorf("%s is %s %q, used %d, late %v (%v, %v);\nwant %s %q, used %d, late %v", b.id,
				got.Status, got.Reason, got.BudgetUsed, got.Late, ok, err, b.status, b.reason, b.used, b.late)
		}
		if got.BudgetUsed > got.BudgetTotal {
			x.errorf("%s used %d of %d", b.id, got.BudgetUsed, got.BudgetTotal)
		}
	}
	for _, c := range x.calls {
		if dead := c.c.Err() != nil; !c.over && dead != (c.b.status != folding.StatusActive) {
			x.errorf("a call in %s (%s): cancelled %v", c.b.id, c.b.status, dead)
		}
	}
}

// checkEvents checks that each branch ends once, after its children.
func (x *model) checkEvents() {
	ended := map[string]int{}
	for i, e := range x.rec.events {
		if e.Kind != folding.EventConcluded && e.Kind != folding.EventEnded {
			continue
		}
		if _, twice := ended[e.Branch.ID]; twice && !crashed(x.log) {
			x.errorf("%s ended twice", e.Branch.ID)
		}
		ended[e.Branch.ID] = i
	}
	for _, b := range x.branches {
		p, ok := ended[b.parent]
		if c, cok := ended[b.id]; ok && (!cok || c > p) && !crashed(x.log) {
			x.errorf("%s ended after its parent", b.id)
		}
	}
}

func crashed(log []string) bool { return slices.Contains(log, "crash") }

// Random operations, interleaved, leave the Manager and the model in the same
// state after every step.
func TestModel(t *testing.T) {
	for seed := range uint64(*models) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			cfg := roomy()
			cfg.MaxConcurrentPerSession, cfg.MaxConcurrentPerInstance = 5, 8
			x := &model{t: t, rng: rand.New(rand.NewPCG(seed, 1)), clock: newManual(), cfg: cfg, rec: &recorder{},
				repo: &mortal{Repository: folding.NewMemory()}}
			x.start()
			ops := []func(){x.create, x.create, x.begin, x.begin, x.charge, x.take, x.take, x.take, x.refund, x.exhaust, x.end, x.end,
				x.ret, x.advance, x.endSession}
			if seed%2 == 0 {
				ops = append(ops, x.crash)
			}
			for range 250 {
				ops[x.rng.IntN(len(ops))]()
				x.compare()
			}
			x.checkEvents()
			// Nothing leaks: after all branches have ended the limits are free again.
			x.clock.advance(time.Hour)
			x.expire()
			x.compare()
			for i := range cfg.MaxConcurrentPerInstance {
				_, err := x.m.Create(ctx, folding.Caller{Principal: "alice", Session: fmt.Sprint("end", i)}, folding.CreateRequest{Description: "d"})
				if err != nil {
					x.errorf("creation %d after the end of all: %v", i+1, err)
				}
			}
			if err := x.m.Close(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
