package upstream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// set is a Set of one server, which dial connects.
func set(t *testing.T, dial func(context.Context) (conn.Conn, error)) (s *Set, up *Server) {
	cfg := config.Config{StateDir: t.TempDir(), Upstreams: map[string]*config.Upstream{"up": {Command: []string{"x"}}}}
	s = NewSet(Options{
		Config: cfg, Log: testLog(t), CleanText: strings.Clone, CleanJSON: asIs, Bridge: noBridge,
	})
	s.Dial = func(ctx context.Context, _ Config) (conn.Conn, error) { return dial(ctx) }
	s.Shared = func(Group) Owner { return owner{} }
	return s, s.Servers(cfg, nil)[0]
}

func asIs(_ context.Context, raw []byte) ([]byte, error) { return raw, nil }

func noBridge(_ string, _ conn.Host, c conn.Conn, h conn.Handler) (conn.Conn, conn.Handler) {
	return c, h
}

type owner struct{}

func (owner) Unsolicited(*Server, conn.Conn, wire.Message) {}
func (owner) Undelivered(*Server, conn.Undelivered)        {}
func (owner) Opened(*Server, conn.Conn, bool)              {}
func (owner) Uses(*Server) bool                            { return false }
func (owner) Retired(*Server)                              {}

// lossy is a connection that a test loses.
type lossy struct {
	conn.Conn
	lost   chan struct{}
	end    sync.Once
	closed atomic.Bool
}

func (*lossy) Info() conn.Info         { return conn.Info{Version: wire.VersionLegacy} }
func (l *lossy) Done() <-chan struct{} { return l.lost }
func (*lossy) Err() error              { return conn.ErrClosed }
func (l *lossy) lose()                 { l.end.Do(func() { close(l.lost) }) }
func (l *lossy) Close() error          { l.closed.Store(true); l.lose(); return nil }

// A server that can't be reached is logged once a minute for each cause, and not for each spelling of one.
func TestFaultsAreLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Server
		warnings := func(causes ...string) (n int) {
			for _, cause := range causes {
				if s.levelOf(fmt.Errorf("initialize: %w", errors.New(cause))) == slog.LevelWarn {
					n++
				}
			}
			return n
		}
		if n := warnings("refused", "HTTP 401", "refused", "HTTP 401"); n != 2 {
			t.Errorf("%d warnings of two causes, want 2", n)
		}
		for i := range 1000 {
			if n := warnings(fmt.Sprint("died at ", i)); n != 0 && i > maxWarnings {
				t.Fatalf("a warning for the text %d of a cause", i)
			}
		}
		time.Sleep(repeatWarning + 1)
		if n := warnings("refused", "refused"); n != 1 {
			t.Errorf("%d warnings a minute later, want 1", n)
		}
		s.levelOf(nil)
		if n := warnings("refused"); n != 1 {
			t.Errorf("%d warnings after a success, want 1", n)
		}
	})
}

// A connection that was lost and replaced is closed, too: its child process may still run.
func TestLostConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dialled []*lossy
		s, up := set(t, func(context.Context) (conn.Conn, error) {
			dialled = append(dialled, &lossy{lost: make(chan struct{})})
			return dialled[len(dialled)-1], nil
		})
		for range 2 {
			if _, err := up.Connection(t.Context(), Scope{}); err != nil {
				t.Fatal(err)
			}
			if len(dialled) == 1 {
				dialled[0].lose()
			}
		}
		s.Close()
		for i, c := range dialled {
			if !c.closed.Load() {
				t.Errorf("connection %d of %d is not closed", i+1, len(dialled))
			}
		}
	})
}

// A session that ends while it connects says nothing about the server.
func TestEndedSessionIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, up := set(t, func(ctx context.Context) (conn.Conn, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		lifetime, end := context.WithCancel(t.Context())
		session := NewConnections(lifetime, Group{Principal: "local"}, owner{})
		go func() {
			_, _ = up.Connection(lifetime, Scope{Own: session})
		}()
		synctest.Wait()
		end()
		session.Close()
		if state, fault := up.Status(); state != "idle" {
			t.Errorf("the server is %s: %v", state, fault)
		}
		s.Close()
	})
}

// A closed Set opens no connection.
func TestClosedSet(t *testing.T) {
	s, up := set(t, func(context.Context) (conn.Conn, error) { return nil, errors.New("dialled") })
	s.Close()
	if _, err := up.Connection(t.Context(), Scope{Group: Group{Principal: "late"}}); !errors.Is(err, errSessionEnded) {
		t.Errorf("Connection returns %v, want that the session ended", err)
	}
}

// Processes start a few at a time, each with its own clock, and one that hangs does not keep the
// others from starting.
func TestStartsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const servers, takes = 61, 8 * time.Second // of one that starts
		cfg := config.Config{StateDir: t.TempDir(), Upstreams: map[string]*config.Upstream{}}
		for n := range servers {
			cfg.Upstreams[fmt.Sprint("up", n)] = &config.Upstream{Command: []string{"x"}, ConnectSeconds: 20}
		}
		s := NewSet(Options{Config: cfg, Log: testLog(t), CleanText: strings.Clone, CleanJSON: asIs, Bridge: noBridge})
		s.Shared = func(Group) Owner { return owner{} }
		var running, most atomic.Int64
		s.Dial = func(ctx context.Context, c Config) (conn.Conn, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			if c.Name == "up0" { // hangs
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			time.Sleep(takes)
			return &lossy{lost: make(chan struct{})}, ctx.Err()
		}
		var failed atomic.Int64
		var wg sync.WaitGroup
		for _, srv := range s.Servers(cfg, nil) {
			wg.Go(func() {
				if _, err := srv.Connection(t.Context(), Scope{}); err != nil {
					failed.Add(1)
				}
			})
		}
		wg.Wait()
		if limit := int64(cap(s.starts) + 1); failed.Load() != 1 || most.Load() > limit { // one more while up0 hangs
			t.Errorf("%d of %d failed, %d started at once; want one, and at most %d", failed.Load(), servers, most.Load(), limit)
		}
		s.Close()
	})
}

// The fault of a server that does not answer tells whether it had more time than connect_seconds.
func TestNoAnswer(t *testing.T) {
	for patience, want := range map[time.Duration]string{time.Second: "within 30s (connect_seconds)", time.Minute: "within 1m0s (more than connect_seconds)"} {
		synctest.Test(t, func(t *testing.T) {
			s, up := set(t, func(ctx context.Context) (conn.Conn, error) {
				<-ctx.Done()
				return nil, context.Cause(ctx)
			})
			s.Patience(patience)
			if _, err := up.Connection(t.Context(), Scope{}); !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), want) {
				t.Errorf("Connection returns %v, want %q", err, want)
			}
			s.Close()
		})
	}
}

// resting is a connection that no call uses.
type resting struct {
	*lossy
	since time.Time
}

func (r *resting) idle() (time.Time, bool) { return r.since, true }
func (r *resting) retire() bool            { return true }

// Who asks for an open connection uses it in a moment, so that is not idle. Who asks whether it is open
// does not.
func TestAskedConnectionIsNotIdle(t *testing.T) {
	for name, ask := range map[string]func(*Server){
		"asked for":    func(s *Server) { s.ConnectionIfOpen(Scope{}) },
		"looked after": func(s *Server) { s.State(Scope{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c := &resting{lossy: &lossy{lost: make(chan struct{})}, since: time.Now()}
			s, up := set(t, func(context.Context) (conn.Conn, error) { return c, nil })
			up.idle = time.Minute
			if _, err := up.Connection(t.Context(), Scope{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(40 * time.Second)
			ask(up)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			if got, want := c.closed.Load(), name != "asked for"; got != want {
				t.Errorf("%s: the connection is closed: %t", name, got)
			}
			s.Close()
		})
	}
}

// A server that a reload removes leaves nothing in the sessions that shared a connection to it.
func TestRetiredServerHasNoViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, up := set(t, func(context.Context) (conn.Conn, error) { return &lossy{lost: make(chan struct{})}, nil })
		defer s.Close()
		up.Config.Share = "principal"
		open, ended := NewConnections(t.Context(), Group{}, owner{}), NewConnections(t.Context(), Group{}, owner{})
		for _, session := range []*Connections{open, ended} {
			if _, err := up.Connection(t.Context(), Scope{Own: session}); err != nil {
				t.Fatal(err)
			}
		}
		if len(open.views) != 1 || len(up.usedBy) != 3 { // one has the connection that both share
			t.Fatalf("a session has %d views, %d use the server", len(open.views), len(up.usedBy))
		}
		ended.Close()
		if len(up.usedBy) != 2 {
			t.Error("the server knows a session that ended")
		}
		seen := up.View(Scope{Own: open})
		up.Retire(t.Context(), errors.New("removed"))
		if len(open.views) != 0 || !isDone(seen) {
			t.Errorf("the session has %d views of a server that is gone", len(open.views))
		}
		open.Close()
	})
}

// The connections of a group are forgotten if none is open, for any number of principals.
func TestForgottenGroups(t *testing.T) {
	var open *lossy
	s, up := set(t, func(context.Context) (conn.Conn, error) {
		open = &lossy{lost: make(chan struct{})}
		return open, nil
	})
	defer s.Close()
	for n := range 1000 {
		g := Group{Principal: fmt.Sprint("user", n)}
		if _, err := up.Connection(t.Context(), Scope{Group: g}); err != nil {
			t.Fatal(err)
		}
		if s.Forget(g) {
			t.Fatalf("the connection of %s is forgotten while it is open", g.Principal)
		}
		open.lose()
		if !s.Forget(g) {
			t.Fatalf("the connection of %s is lost, and not forgotten", g.Principal)
		}
	}
	if s.ending.Wait(); len(s.shared) > 0 || len(up.usedBy) > 0 {
		t.Errorf("%d groups and %d connections are kept", len(s.shared), len(up.usedBy))
	}
}

// A reload ends the shared connections of principals that are no longer known, and work that goes on in the
// background makes none for them. Other principals and everyone keep theirs.
func TestKeptGroups(t *testing.T) {
	s, up := set(t, func(context.Context) (conn.Conn, error) { return &lossy{lost: make(chan struct{})}, nil })
	defer s.Close()
	ann, ben, everyone := Scope{Group: Group{Principal: "ann"}}, Scope{Group: Group{Principal: "ben", Capabilities: 1}}, Scope{}
	for _, scope := range []Scope{ann, ben, everyone} {
		if _, err := up.Connection(t.Context(), scope); err != nil {
			t.Fatal(err)
		}
	}
	live := func() (all string) {
		for name, scope := range map[string]Scope{"ann": ann, "ben": ben, "everyone": everyone} {
			if up.State(scope).Open {
				all += name + " "
			}
		}
		fields := strings.Fields(all)
		slices.Sort(fields)
		return strings.Join(fields, " ")
	}
	s.Keep(func(principal string) bool { return principal == "ben" })
	if got := live(); got != "ben everyone" {
		t.Errorf("after a reload %s have connections, want ben and everyone", got)
	}
	if _, err := up.Connection(t.Context(), ann); !errors.Is(err, errSessionEnded) {
		t.Errorf("a connection of a principal that is gone: %v, want %v", err, errSessionEnded)
	}
	if got := s.Groups(); len(got) != 1 || got[0] != ben.Group {
		t.Errorf("groups = %v, want that of ben", got)
	}
	s.Keep(func(string) bool { return true })
	if _, err := up.Connection(t.Context(), ann); err != nil || live() != "ann ben everyone" {
		t.Errorf("a principal that is back has %v, %s", err, live())
	}
}

// inboxed takes what an inbox hands on, and hears as the owner what it does not.
type inboxed struct {
	conn.Handler
	got, lost []string
}

func (i *inboxed) Unsolicited(m wire.Message) { i.got = append(i.got, m.Method) }

type losses struct {
	owner
	of *inboxed
}

func (l losses) Undelivered(_ *Server, r conn.Undelivered) {
	l.of.lost = append(l.of.lost, r.Message.Method)
}

// What a server sends before its connection is up comes in its order, before what follows. Beyond the limit
// it is reported.
func TestInbox(t *testing.T) {
	var want []string
	to := &inboxed{}
	in := &inbox{handler: handler{owner: losses{of: to}}}
	for n := range maxEarly + 2 {
		m := fmt.Sprint("m", n)
		in.Unsolicited(wire.Message{Method: m})
		if n < maxEarly {
			want = append(want, m)
		}
	}
	in.open(to)
	in.Unsolicited(wire.Message{Method: "later"})
	if want = append(want, "later"); !slices.Equal(to.got, want) {
		t.Errorf("%d messages arrive, want %d in their order", len(to.got), len(want))
	}
	if want := []string{fmt.Sprint("m", maxEarly), fmt.Sprint("m", maxEarly+1)}; !slices.Equal(to.lost, want) {
		t.Errorf("%q are reported, want %q", to.lost, want)
	}
	to = &inboxed{}
	in = &inbox{handler: handler{owner: losses{of: to}}}
	for range 3 { // few and large
		in.Unsolicited(wire.Message{Method: "large", Raw: make([]byte, maxEarlyBytes/2)})
	}
	if len(in.early) != 2 || len(to.lost) != 1 {
		t.Errorf("%d large messages are kept, %d reported", len(in.early), len(to.lost))
	}
}
