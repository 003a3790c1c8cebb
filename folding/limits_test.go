package folding_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/foldgate/foldgate/folding"
)

func TestCreateValidates(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{Count: func(s string) int { return len(s) }})
	tests := []struct {
		name string
		req  folding.CreateRequest
		want string // in the message; "" for success
	}{
		{"no description", folding.CreateRequest{}, "description is missing"},
		{"blank description", folding.CreateRequest{Description: " \n\t"}, "description is missing"},
		{"only invisible", folding.CreateRequest{Description: "\u200b\u202e\x00"}, "description is missing"},
		{"500 characters of two bytes", folding.CreateRequest{Description: strings.Repeat("é", 500)}, ""},
		{"501 characters", folding.CreateRequest{Description: strings.Repeat("é", 501)}, "501 characters, the limit is 500"},
		{"controls do not count", folding.CreateRequest{Description: strings.Repeat("e", 500) + "\x1b\x00"}, ""},
		{"10,000 in the prompt", folding.CreateRequest{Description: "d", Prompt: strings.Repeat("é", 10_000), Budget: 1 << 20}, ""},
		{"10,001 in the prompt", folding.CreateRequest{Description: "d", Prompt: strings.Repeat("é", 10_001)}, "prompt has 10001 characters"},
		{"negative budget", folding.CreateRequest{Description: "d", Budget: -1}, "can't be negative"},
		{"negative timeout", folding.CreateRequest{Description: "d", TimeoutSeconds: -1}, "can't be negative"},
		{"budget taken up by the texts", folding.CreateRequest{Description: "12345678", Budget: 8}, "take 8 tokens of a budget of 8"},
		{"budget just larger", folding.CreateRequest{Description: "12345678", Budget: 9}, ""},
		{"session id with a space", folding.CreateRequest{Description: "d", SessionID: "a b"}, "visible ASCII"},
		{"session id too long", folding.CreateRequest{Description: "d", SessionID: strings.Repeat("a", 256)}, "256 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := m.Create(ctx, alice, tt.req)
			if tt.want == "" {
				if err != nil {
					t.Errorf("Create: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, folding.ErrInvalidInput) || folding.StatusCode(err) != 400 {
				t.Errorf("Create = %v (%d), want invalid input with %q", err, folding.StatusCode(err), tt.want)
			}
		})
	}
}

func TestCreateAppliesDefaultsAndCaps(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	tests := []struct{ budget, seconds, wantBudget, wantSeconds int }{
		{0, 0, 8192, 300},
		{1000, 10, 1000, 10},
		{32768, 600, 32768, 600},
		{99999, 9999, 32768, 600},
	}
	for _, tt := range tests {
		b := create(t, m, alice, folding.CreateRequest{Budget: tt.budget, TimeoutSeconds: tt.seconds})
		if got := int(b.ExpiresAt.Sub(b.CreatedAt) / time.Second); b.BudgetTotal != tt.wantBudget || got != tt.wantSeconds {
			t.Errorf("asked %d, %d s: got %d, %d s; want %d, %d s", tt.budget, tt.seconds, b.BudgetTotal, got, tt.wantBudget, tt.wantSeconds)
		}
	}
}

func TestTextsAreCleanedAndScrubbed(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{
		Description: "a\x00b\x1b[31m\u202edcba \U000E0041\U000E0042", Prompt: "use hunter2\r\nnext\tline \u200d",
	})
	if b.Description != "ab[31mdcba " || b.Prompt != "use [REDACTED]\nnext\tline \u200d" {
		t.Errorf("description %q, prompt %q", b.Description, b.Prompt)
	}
	_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "unscrubbable"})
	wantErr(t, "Create with a failing scrubber", err, folding.ErrScrubbingFailed)
}

func TestDepth(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	parent := ""
	for depth := 1; depth <= 3; depth++ {
		b := create(t, m, alice, folding.CreateRequest{ParentID: parent})
		if b.Depth != depth {
			t.Errorf("depth = %d, want %d", b.Depth, depth)
		}
		parent = b.ID
	}
	_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: parent})
	wantErr(t, "Create at depth 4", err, folding.ErrMaxDepthExceeded)
	if folding.StatusCode(err) != 400 || folding.Code(err) != "max_depth_exceeded" {
		t.Errorf("Create at depth 4: %d %s", folding.StatusCode(err), folding.Code(err))
	}
}

// Without a parent id a branch is never nested.
func TestSiblingsByDefault(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	for range 3 {
		if b := create(t, m, alice, folding.CreateRequest{}); b.Depth != 1 || b.ParentID != "" {
			t.Errorf("depth %d below %q, want a first-level branch", b.Depth, b.ParentID)
		}
	}
}

func TestChildEndsWithItsParentAtTheLatest(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	p := create(t, m, alice, folding.CreateRequest{TimeoutSeconds: 30})
	c := create(t, m, alice, folding.CreateRequest{ParentID: p.ID, TimeoutSeconds: 300})
	if before := p.ExpiresAt.Sub(c.ExpiresAt); before < 0 || before > time.Second {
		t.Errorf("the child expires %v before its parent", before)
	}
}

func TestParentMustBeActive(t *testing.T) {
	m, _ := open(t, roomy(), folding.Options{})
	p := create(t, m, alice, folding.CreateRequest{})
	if _, err := m.Return(ctx, alice, p.ID, ""); err != nil {
		t.Fatal(err)
	}
	_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: p.ID})
	wantErr(t, "Create below a returned branch", err, folding.ErrNotActive)
	_, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: "br_nonsense"})
	wantErr(t, "Create below an unknown branch", err, folding.ErrNotFound)
	q := create(t, m, alice, folding.CreateRequest{})
	_, err = m.Create(ctx, bob, folding.CreateRequest{Description: "d", ParentID: q.ID})
	wantErr(t, "Create below another's branch", err, folding.ErrNotFound)
	_, err = m.Create(ctx, alice, folding.CreateRequest{Description: "d", ParentID: q.ID, SessionID: "other"})
	wantErr(t, "Create below a branch of another session", err, folding.ErrInvalidInput)
}

// Each limit holds exactly while 64 creations race for it.
func TestLimitsUnderParallelCreates(t *testing.T) {
	tests := []struct {
		name string
		set  func(*folding.Config)
		ok   int
		err  error
		code string
	}{
		{"session", func(c *folding.Config) { c.MaxConcurrentPerSession = 10 }, 10, folding.ErrTooManyBranches, "too_many_branches"},
		{"instance", func(c *folding.Config) { c.MaxConcurrentPerInstance = 7 }, 7, folding.ErrInstanceFull, "instance_full"},
		{"rate", func(c *folding.Config) { c.MaxBranchesPerMinute = 5 }, 5, folding.ErrRateLimited, "rate_limited"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := roomy()
			tt.set(&cfg)
			m, _ := open(t, cfg, folding.Options{Now: newManual().now})
			var ok atomic.Int32
			var wg sync.WaitGroup
			for range 64 {
				wg.Go(func() {
					_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
					switch {
					case err == nil:
						ok.Add(1)
					case !errors.Is(err, tt.err) || folding.StatusCode(err) != 429 || folding.Code(err) != tt.code || folding.RetryAfter(err) <= 0:
						t.Errorf("Create = %v (%d %s, retry after %v)", err, folding.StatusCode(err), folding.Code(err), folding.RetryAfter(err))
					}
				})
			}
			wg.Wait()
			if got := int(ok.Load()); got != tt.ok {
				t.Errorf("%d creations passed, want %d", got, tt.ok)
			}
		})
	}
}

func TestLimitsAreFreedByReturns(t *testing.T) {
	cfg := roomy()
	cfg.MaxConcurrentPerSession, cfg.MaxConcurrentPerInstance = 2, 3
	m, _ := open(t, cfg, folding.Options{})
	refused := func(c folding.Caller, want error) {
		t.Helper()
		_, err := m.Create(ctx, c, folding.CreateRequest{Description: "d"})
		wantErr(t, "Create over the limit", err, want)
	}
	first := create(t, m, alice, folding.CreateRequest{})
	create(t, m, alice, folding.CreateRequest{ParentID: first.ID})
	refused(alice, folding.ErrTooManyBranches)
	create(t, m, bob, folding.CreateRequest{}) // same session id, other principal
	refused(bob, folding.ErrInstanceFull)
	if _, err := m.Return(ctx, alice, first.ID, ""); err != nil { // ends its child, too
		t.Fatal(err)
	}
	create(t, m, alice, folding.CreateRequest{})
	create(t, m, alice, folding.CreateRequest{})
	refused(alice, folding.ErrTooManyBranches)
}

// No minute sees more than the creations allowed, of a session and of all sessions of a principal,
// however they are spread over time. A refusal says exactly when the next one passes.
func TestCreationRate(t *testing.T) {
	const limit, all = 5, 12
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 0))
		clock := newManual()
		cfg := roomy()
		cfg.MaxBranchesPerMinute, cfg.MaxBranchesPerMinutePerPrincipal = limit, all
		m, _ := open(t, cfg, folding.Options{Now: clock.now})
		try := func(session string) error {
			who := folding.Caller{Principal: "alice", Session: session}
			b, err := m.Create(ctx, who, folding.CreateRequest{Description: "d"})
			if err == nil && random.IntN(2) == 0 {
				_, err = m.Return(ctx, who, b.ID, "")
			}
			return err
		}
		type creation struct {
			session string
			at      time.Time
		}
		var made []creation // of the last minute
		for range 300 {
			clock.advance(time.Duration(random.IntN(8_000_000)) * time.Microsecond)
			session := []string{"", "s1", "s2", "s3"}[random.IntN(4)]
			made = slices.DeleteFunc(made, func(c creation) bool { return clock.now().Sub(c.at) >= time.Minute })
			own := slices.DeleteFunc(slices.Clone(made), func(c creation) bool { return c.session != session })
			var wait time.Duration
			if session != "" && len(own) >= limit {
				wait = own[len(own)-limit].at.Add(time.Minute).Sub(clock.now())
			}
			if len(made) >= all {
				wait = max(wait, made[len(made)-all].at.Add(time.Minute).Sub(clock.now()))
			}
			err := try(session)
			if (wait == 0) != (err == nil) {
				t.Fatalf("seed %d: with %d of %d in the last minute a creation is answered %v", seed, len(own), len(made), err)
			}
			if err != nil {
				if got := folding.RetryAfter(err); got != wait || !errors.Is(err, folding.ErrRateLimited) {
					t.Fatalf("seed %d: %v, retry after %v, want %v", seed, err, got, wait)
				}
				clock.advance(wait - time.Microsecond)
				wantErr(t, "creation just before", try(session), folding.ErrRateLimited)
				clock.advance(time.Microsecond)
				if err := try(session); err != nil {
					t.Fatalf("seed %d: creation after the wait: %v", seed, err)
				}
			}
			made = append(made, creation{session, clock.now()})
		}
		if _, err := m.Create(ctx, bob, folding.CreateRequest{Description: "d"}); err != nil {
			t.Errorf("another principal: %v", err)
		}
	}
}

// A clock that is set back frees nothing, and locks nobody out for longer than a minute.
func TestCreationRateOnAClockSetBack(t *testing.T) {
	clock := newManual()
	cfg := roomy()
	cfg.MaxBranchesPerMinute = 2
	m, _ := open(t, cfg, folding.Options{Now: clock.now})
	create(t, m, alice, folding.CreateRequest{})
	create(t, m, alice, folding.CreateRequest{})
	clock.advance(-time.Hour)
	for range 2 {
		_, err := m.Create(ctx, alice, folding.CreateRequest{Description: "d"})
		if wantErr(t, "creation on a clock set back", err, folding.ErrRateLimited); folding.RetryAfter(err) > time.Minute {
			t.Errorf("retry after %v", folding.RetryAfter(err))
		}
	}
	clock.advance(time.Minute)
	create(t, m, alice, folding.CreateRequest{})
}

// If there are several principals, none takes more than half of the places that others leave, and
// each gets one while there is room. Alone, one has all.
func TestHalfOfThePlaces(t *testing.T) {
	for _, tt := range []struct{ principals, places, want int }{{0, 7, 7}, {1, 7, 7}, {2, 7, 3}, {9, 8, 4}, {2, 1, 1}} {
		cfg := roomy()
		cfg.MaxConcurrentPerInstance = tt.places
		m, _ := open(t, cfg, folding.Options{Principals: tt.principals})
		fill := func(principal string) (opened []folding.Branch, err error) {
			for i := range 20 {
				b, err := m.Create(ctx, folding.Caller{Principal: principal, Session: fmt.Sprint(i)}, folding.CreateRequest{Description: "d"})
				if err != nil {
					return opened, err
				}
				opened = append(opened, b)
			}
			return opened, nil
		}
		opened, err := fill("alice")
		if len(opened) != tt.want || !errors.Is(err, folding.ErrInstanceFull) || folding.RetryAfter(err) <= 0 {
			t.Fatalf("%d principals, %d places: alice has %d (%v), want %d", tt.principals, tt.places, len(opened), err, tt.want)
		}
		left := tt.places - tt.want
		for i := range 12 {
			want := min(max(left/2, 1), left)
			if others, _ := fill(fmt.Sprint("other", i)); len(others) != want {
				t.Errorf("%d principals, %d places: number %d has %d of %d that are left, want %d", tt.principals, tt.places, i, len(others), left, want)
			}
			left -= want
		}
		for _, b := range opened {
			if _, err := m.Return(ctx, folding.Caller{Principal: "alice"}, b.ID, ""); err != nil {
				t.Fatal(err)
			}
		}
		want := min(max(tt.want/2, 1), tt.want)
		if tt.principals < 2 {
			want = tt.want
		}
		if again, _ := fill("alice"); len(again) != want {
			t.Errorf("%d principals, %d places: when she has returned all, alice opens %d, want %d", tt.principals, tt.places, len(again), want)
		}
	}
}

// Whatever the limits on session_id and whatever a caller gives, the remedy that the refusal names
// works, unless there is none from this connection.
func TestRemediesForSessions(t *testing.T) {
	remedy := regexp.MustCompile(`give session_id "([^"]+)"`)
	for _, validation := range []string{folding.ValidationPermissive, folding.ValidationStrict} {
		for _, require := range []bool{false, true} {
			for _, session := range []string{"", "s1"} {
				for _, given := range []string{"", "s1", "other"} {
					for _, nested := range []bool{false, true} {
						cfg := roomy()
						cfg.SessionValidation, cfg.RequireSessionID = validation, require
						m, _ := open(t, cfg, folding.Options{})
						who := folding.Caller{Principal: "alice", Session: session}
						req := folding.CreateRequest{Description: "d", SessionID: given}
						if nested {
							parent, err := m.Create(ctx, folding.Caller{Principal: "alice", Session: "s1"}, folding.CreateRequest{Description: "p", SessionID: "s1"})
							if err != nil {
								t.Fatal(err)
							}
							req.ParentID = parent.ID
						}
						_, err := m.Create(ctx, who, req)
						var texts []string
						for range 2 { // the remedies
							if err == nil {
								break
							}
							texts = append(texts, err.Error())
							switch found := remedy.FindStringSubmatch(err.Error()); {
							case found != nil:
								req.SessionID = found[1]
							case strings.Contains(err.Error(), "leave out session_id"):
								req.SessionID = ""
							case strings.Contains(err.Error(), "give that of the parent branch"):
								req.SessionID = "s1"
							}
							_, err = m.Create(ctx, who, req)
						}
						hopeless := validation == folding.ValidationStrict && session == ""
						if (err != nil) != hopeless || len(texts) > 1 && !hopeless {
							t.Errorf("%s, required %v, connection %q, given %q, nested %v: %v, after %q", validation, require, session, given, nested, err, texts)
						}
						if hopeless && !nested && !strings.Contains(err.Error(), "use a connection that keeps a session") {
							t.Errorf("without a session under strict: %v", err)
						}
					}
				}
			}
		}
	}
}

// A caller without a session gets a new one each time. All such callers of a
// principal share its quota.
func TestCallersWithoutSessionShareLimits(t *testing.T) {
	cfg := roomy()
	cfg.MaxBranchesPerMinute, cfg.MaxBranchesPerMinutePerPrincipal = 1, 6
	m, _ := open(t, cfg, folding.Options{Now: newManual().now})
	modern := folding.Caller{Principal: "alice"}
	seen := map[string]bool{}
	for range 6 {
		b := create(t, m, modern, folding.CreateRequest{})
		if !strings.HasPrefix(b.Session, "ses_") || seen[b.Session] {
			t.Errorf("session %q: want a new ses_ each time", b.Session)
		}
		seen[b.Session] = true
	}
	_, err := m.Create(ctx, modern, folding.CreateRequest{Description: "d"})
	wantErr(t, "7th creation without a session", err, folding.ErrRateLimited)
}

// A made-up session id does not extend the limits. The quota is that of the
// connection or, without one, of the principal.
func TestInventedSessionsShareLimits(t *testing.T) {
	for _, c := range []folding.Caller{alice, {Principal: "alice"}} {
		for _, tt := range []struct {
			set  func(*folding.Config)
			want error
		}{
			{func(cfg *folding.Config) { cfg.MaxBranchesPerMinute, cfg.MaxBranchesPerMinutePerPrincipal = 5, 6 }, folding.ErrRateLimited},
			{func(cfg *folding.Config) { cfg.MaxConcurrentPerSession = 5 }, folding.ErrTooManyBranches},
		} {
			cfg := roomy()
			tt.set(&cfg)
			m, _ := open(t, cfg, folding.Options{Now: newManual().now})
			for i := range 5 {
				b := create(t, m, c, folding.CreateRequest{SessionID: fmt.Sprint("made-up-", i)})
				if b.Session != fmt.Sprint("made-up-", i) {
					t.Errorf("session %q, want the one that was asked for", b.Session)
				}
			}
			if tt.want == folding.ErrRateLimited && c.Session == "" { // the rate is the principal's
				create(t, m, c, folding.CreateRequest{})
			}
			_, err := m.Create(ctx, c, folding.CreateRequest{Description: "d", SessionID: "made-up-6"})
			wantErr(t, fmt.Sprintf("one more creation of %+v", c), err, tt.want)
			if tt.want == folding.ErrTooManyBranches || c.Session != "" {
				create(t, m, folding.Caller{Principal: "alice", Session: "s9"}, folding.CreateRequest{})
			}
			create(t, m, bob, folding.CreateRequest{SessionID: "made-up-1"})
		}
	}
}

// The event of a creation carries the caller's Cause. It comes before all other
// events of the branch, even if the branch ends at once.
func TestCauseOfCreation(t *testing.T) {
	m, rec := open(t, roomy(), folding.Options{})
	b := create(t, m, alice, folding.CreateRequest{Description: "a b c d e f g h", Budget: 10, Cause: "env_1"})
	wantKinds(t, rec, b.ID, folding.EventCreated, folding.EventWarned)
	if got := rec.events[0].Cause; got != "env_1" {
		t.Errorf("cause %q, want env_1", got)
	}
}

func TestConfigValidate(t *testing.T) {
	if err := folding.DefaultConfig().Validate().Err(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	bad := folding.Config{DefaultBudget: 10, MaxBudget: 5, MaxDepth: 6, DefaultTimeoutSeconds: -1, SessionValidation: "lax"}
	err := bad.Validate().Err()
	for _, key := range []string{"default_budget", "max_depth", "default_timeout_seconds", "max_timeout_seconds", "max_concurrent_per_session",
		"max_concurrent_per_instance", "max_branches_per_minute", "max_branches_per_minute_per_principal", "session_cleanup_seconds", "retention", "session_validation"} {
		if err == nil || !strings.Contains(err.Error(), "folding."+key+":") {
			t.Errorf("Validate() does not name folding.%s: %v", key, err)
		}
	}
}

func TestSeconds(t *testing.T) {
	for d, want := range map[time.Duration]int{0: 0, 1: 1, time.Second: 1, time.Second + 1: 2, 11900 * time.Millisecond: 12} {
		if got := folding.Seconds(d); got != want {
			t.Errorf("Seconds(%v) = %d, want %d", d, got, want)
		}
	}
}

func TestErrorsHaveCodes(t *testing.T) {
	tests := []struct {
		err    error
		status int
		code   string
	}{
		{nil, 0, ""},
		{folding.ErrInvalidInput, 400, "invalid_input"},
		{folding.ErrForbidden, 403, "forbidden"},
		{folding.ErrNotFound, 404, "branch_not_found"},
		{folding.ErrNotActive, 409, "branch_not_active"},
		{&folding.EndedError{}, 409, "branch_not_active"},
		{folding.ErrBudgetExhausted, 409, "budget_exhausted"},
		{folding.ErrScrubbingFailed, 500, "scrubbing_failed"},
		{fmt.Errorf("call: %w", folding.ErrRateLimited), 429, "rate_limited"},
		{errors.New("else"), 500, "internal_error"},
	}
	for _, tt := range tests {
		if s, c := folding.StatusCode(tt.err), folding.Code(tt.err); s != tt.status || c != tt.code {
			t.Errorf("%v: %d %q, want %d %q", tt.err, s, c, tt.status, tt.code)
		}
	}
}
