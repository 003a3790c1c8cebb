package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/router"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// fakeConn is an upstream inside the test: a func answers its requests.
type fakeConn struct {
	cfg     upstream.Config
	version string
	caps    string
	serve   func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error)
	gone    chan struct{}
	once    sync.Once
	fault   error

	mu       sync.Mutex
	calls    []*conn.Request
	notes    []string
	replied  chan wire.Message
	instance int

	forgetful bool // keeps no calls

	asked   atomic.Int64 // ids of questions
	waiting sync.Map     // question id to chan Message; the rest goes to replied
}

func (l *fakeConn) Info() conn.Info {
	return conn.Info{Version: l.version, Result: json.RawMessage(`{"capabilities":` + l.caps + `,"instructions":"Be kind."}`)}
}

func (l *fakeConn) Call(ctx context.Context, c *conn.Request) (wire.Message, error) {
	l.mu.Lock()
	if !l.forgetful {
		l.calls = append(l.calls, c)
	}
	l.mu.Unlock()
	select {
	case <-l.gone:
		return wire.Message{}, fmt.Errorf("fake: %w", conn.ErrClosed)
	default:
	}
	return l.serve(ctx, l, c)
}

func (l *fakeConn) Send(_ context.Context, m wire.Message) error {
	if !m.IsResponse() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.notes = append(l.notes, m.Method)
		return nil
	}
	if ch, ok := l.waiting.Load(string(m.ID)); ok {
		ch.(chan wire.Message) <- m
		return nil
	}
	l.replied <- m
	return nil
}

func (l *fakeConn) Done() <-chan struct{} { return l.gone }
func (l *fakeConn) Err() error            { return l.fault }
func (l *fakeConn) Close() error          { l.once.Do(func() { close(l.gone) }); return nil }

// die ends the connection as a crash does.
func (l *fakeConn) die() {
	l.fault = conn.ErrClosed
	_ = l.Close()
}

// sent returns the params of the calls of one method.
func (l *fakeConn) sent(method string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.calls {
		if c.Method == method {
			out = append(out, string(c.Params))
		}
	}
	return out
}

// fakeUpstream says how to make connections to one upstream.
type fakeUpstream struct {
	version, caps string
	serve         func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error)
}

// rig is a gateway on fake upstreams, and one host session.
type rig struct {
	t        testing.TB
	g        *Gateway
	s        *router.Session
	mu       sync.Mutex
	conns    map[string][]*fakeConn
	push     chan wire.Message
	warnings *logBuffer
	ids      atomic.Int64
	closing  sync.Once
}

// newRig makes a gateway on fakes; the host speaks the modern era if modern.
func newRig(t testing.TB, modern bool, ups map[string]fakeUpstream, options ...Option) *rig {
	t.Helper()
	return newRigWith(t, modern, ups, func(*config.Config) {}, options...)
}

// newRigWith is newRig with a configuration that configure completes.
func newRigWith(t testing.TB, modern bool, ups map[string]fakeUpstream, configure func(*config.Config), options ...Option) *rig {
	t.Helper()
	r := &rig{t: t, conns: map[string][]*fakeConn{}, push: make(chan wire.Message, 100), warnings: &logBuffer{t: t}}
	cfg := config.Default()
	cfg.StateDir, cfg.Dir = t.TempDir(), t.TempDir()
	cfg.Upstreams = map[string]*config.Upstream{}
	for key := range ups {
		cfg.Upstreams[key] = &config.Upstream{Command: []string{"fake"}}
	}
	configure(&cfg)
	g, err := New(cfg, slog.New(slog.NewTextHandler(r.warnings, &slog.HandlerOptions{Level: slog.LevelWarn})), options...)
	if err != nil {
		t.Fatal(err)
	}
	g.servers.Dial = func(_ context.Context, c upstream.Config) (conn.Conn, error) {
		f := ups[c.Name]
		l := &fakeConn{cfg: c, version: f.version, caps: f.caps, serve: f.serve, gone: make(chan struct{}), replied: make(chan wire.Message, 10)}
		r.mu.Lock()
		defer r.mu.Unlock()
		l.instance = len(r.conns[c.Name])
		r.conns[c.Name] = append(r.conns[c.Name], l)
		return l, nil
	}
	r.g = g
	p := server.Peer{ID: "ses_test", Transport: "stdio", Era: wire.Legacy, Push: func(msg []byte) error {
		m, err := wire.ParseMessage(msg)
		if err == nil {
			r.push <- m
		}
		return err
	}}
	if modern {
		p = server.Peer{Transport: "http", Era: wire.Modern, SingleRequest: true}
	}
	p.Principal = interceptor.LocalPrincipal
	r.s = g.router.NewSession(p)
	t.Cleanup(r.close)
	return r
}

// close ends the session and the gateway; the second call does nothing.
func (r *rig) close() {
	r.closing.Do(func() {
		r.s.Close("test over")
		if err := r.g.Close(context.Background()); err != nil {
			r.t.Errorf("Close: %v", err)
		}
	})
}

// initialize greets as a legacy host.
func (r *rig) initialize() {
	r.t.Helper()
	r.ok("initialize", `{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"elicitation":{}},"clientInfo":{"name":"rig","version":"1"}}`)
}

// last returns the newest connection to an upstream.
func (r *rig) last(key string) *fakeConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	ls := r.conns[key]
	if len(ls) == 0 {
		r.t.Fatalf("no connection to %s was opened", key)
	}
	return ls[len(ls)-1]
}

// exchange sends one request; events go to the push channel too.
func (r *rig) exchange(ctx context.Context, method, params string) wire.Message {
	id := fmt.Sprintf("%d", 1000+r.ids.Add(1))
	return r.exchangeID(ctx, id, method, params)
}

func (r *rig) exchangeID(ctx context.Context, id, method, params string) wire.Message {
	m := wire.Message{ID: json.RawMessage(id), Method: method, Params: json.RawMessage(params)}
	m.Raw = m.Encode()
	p := r.s.Begin(ctx, &server.Request{Msg: m, Meta: wire.ReadMeta(m.Params), Emit: func(msg []byte) error {
		em, err := wire.ParseMessage(msg)
		if err == nil {
			r.push <- em
		}
		return err
	}})
	defer p.Sent()
	return p.Serve().Message
}

// ok sends a request that must succeed and returns its result.
func (r *rig) ok(method, params string) string {
	r.t.Helper()
	rep := r.exchange(context.Background(), method, params)
	if rep.Error != nil || rep.Result == nil {
		r.t.Fatalf("%s(%s) = error %s", method, params, rep.Error)
	}
	return string(rep.Result)
}

// tool calls a tool and returns the result.
func (r *rig) tool(name, args string) string {
	r.t.Helper()
	return r.ok("tools/call", `{"name":"`+name+`","arguments":`+args+`}`)
}

func result(s string) (wire.Message, error) { return wire.Message{Result: json.RawMessage(s)}, nil }

// echoUpstream lists one tool and answers calls with what it was sent.
func echoUpstream(version string) fakeUpstream {
	return fakeUpstream{version: version, caps: `{"tools":{"listChanged":true}}`, serve: func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		switch c.Method {
		case "tools/list":
			return result(`{"tools":[{"name":"echo","inputSchema":{"type":"object","properties":{"x":{}}}},{"name":"own","inputSchema":{"type":"object","properties":{"branch_id":{"type":"string"}}}}]}`)
		case "tools/call":
			return result(`{"content":[{"type":"text","text":` + string(rawjson.Quote(string(c.Params))) + `}]}`)
		}
		return wire.Message{Error: json.RawMessage(`{"code":-32601,"message":"no"}`)}, nil
	}}
}

// onCall is f with calls of tools answered by serve.
func (f fakeUpstream) onCall(serve func(context.Context, *fakeConn, *conn.Request) (wire.Message, error)) fakeUpstream {
	rest := f.serve
	f.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		if c.Method == "tools/call" {
			return serve(ctx, l, c)
		}
		return rest(ctx, l, c)
	}
	return f
}

func TestCallIsRoutedAndStripped(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	created := r.tool("branch_create", `{"description":"d"}`)
	id, _ := rawjson.GetString([]byte(created), "structuredContent", "branch_id")
	r.ok("tools/call", `{"name":"up__echo","arguments":{"x":1.0,"branch_id":"`+id+`"},"_meta":{"k":1,"io.github.foldgate/context":"sub"},"future":null}`)
	r.tool("up__own", `{"branch_id":"theirs"}`)
	r.tool("up__echo", `{"x":2,"branch_id":""}`)
	want := []string{
		`{"name":"echo","arguments":{"x":1.0},"_meta":{"k":1},"future":null}`,
		`{"name":"own","arguments":{"branch_id":"theirs"}}`,
		`{"name":"echo","arguments":{"x":2}}`,
	}
	got := r.last("up").sent("tools/call")
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("forwarded params =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Params that are null are none, as most servers have it.
func TestNullParams(t *testing.T) {
	up := echoUpstream("2025-11-25")
	serve := up.serve
	up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		if c.Method == "x/y" {
			return result(`{}`)
		}
		return serve(ctx, l, c)
	}
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	for _, method := range []string{"ping", "tools/list", "x/y"} {
		r.ok(method, "null")
	}
	if got := r.last("up").sent("x/y"); len(got) != 1 || got[0] != "" {
		t.Errorf("forwarded params = %q, want none", got)
	}
	if rep := r.exchange(t.Context(), "x/y", "[]"); wire.ErrorCode(rep.Error) != wire.CodeInvalidParams {
		t.Errorf("an array is answered with %s %s", rep.Result, rep.Error)
	}
}

func TestUnknownBranchForwardsNothing(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	got := r.tool("up__echo", `{"branch_id":"br_00000000-0000-4000-8000-000000000000"}`)
	if code, _ := rawjson.GetString([]byte(got), "structuredContent", "error", "code"); code != "branch_not_found" {
		t.Errorf("result = %s, want branch_not_found", got)
	}
	if sent := r.last("up").sent("tools/call"); len(sent) != 0 {
		t.Errorf("forwarded %v, want nothing", sent)
	}
}

func TestHostCancelsACall(t *testing.T) {
	started := make(chan struct{})
	cause := make(chan error, 1)
	up := echoUpstream("2025-11-25").onCall(func(ctx context.Context, _ *fakeConn, _ *conn.Request) (wire.Message, error) {
		close(started)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return wire.Message{}, context.Cause(ctx)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	done := make(chan wire.Message)
	go func() {
		done <- r.exchangeID(context.Background(), `"c1"`, "tools/call", `{"name":"up__echo","arguments":{}}`)
	}()
	<-started
	r.s.Notify(wire.Message{Method: "notifications/cancelled", Params: json.RawMessage(`{"requestId":"c1","reason":"user pressed stop"}`)})
	if rep := <-done; rep.Result != nil || rep.Error != nil {
		t.Errorf("reply = %s %s, want none", rep.Result, rep.Error)
	}
	if got := (<-cause).Error(); got != "user pressed stop" {
		t.Errorf("cause = %q, want the host's reason", got)
	}
}

func TestCrashedUpstreamComesBack(t *testing.T) {
	crash := true
	up := echoUpstream("2025-11-25")
	up.caps = `{"tools":{"listChanged":true},"resources":{"subscribe":true}}`
	serve := up.serve
	up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		switch {
		case c.Method == "tools/call" && crash:
			crash = false
			l.die()
			return wire.Message{}, fmt.Errorf("exit status 9: %w", conn.ErrClosed)
		case c.Method == "resources/list":
			return result(`{"resources":[{"uri":"mem://a","name":"a"}]}`)
		case strings.HasPrefix(c.Method, "resources/"):
			return result(`{}`)
		}
		return serve(ctx, l, c)
	}
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	r.ok("resources/subscribe", `{"uri":"mem://a"}`)
	got := r.tool("up__echo", `{}`)
	if code, _ := rawjson.GetString([]byte(got), "structuredContent", "error", "code"); code != "upstream_crashed" {
		t.Errorf("first call = %s, want upstream_crashed", got)
	}
	if got := r.tool("up__echo", `{"x":1}`); !strings.Contains(got, `\"x\":1`) {
		t.Errorf("second call in the same session = %s", got)
	}
	if subs := r.last("up").sent("resources/subscribe"); len(subs) != 1 || r.last("up").instance == 0 {
		t.Errorf("subscriptions on the new connection = %v, want the one of the host", subs)
	}
	if m := <-r.push; !strings.HasSuffix(m.Method, "list_changed") {
		t.Errorf("host was told %s, want a list_changed", m.Method)
	}
}

func TestListChangeReachesTheHostOnce(t *testing.T) {
	n := 0
	up := echoUpstream("2025-11-25")
	up.serve = func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		n++
		return result(fmt.Sprintf(`{"tools":[{"name":"t%d","inputSchema":{"type":"object"}}]}`, n))
	}
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	if got := r.ok("tools/list", `{}`); !strings.Contains(got, `"up__t1"`) {
		t.Fatalf("first list = %s", got)
	}
	for range 10 {
		r.last("up").cfg.Handler.Unsolicited(wire.Message{Method: "notifications/tools/list_changed"})
	}
	if m := <-r.push; m.Method != "notifications/tools/list_changed" {
		t.Errorf("host was told %s", m.Method)
	}
	if got := r.ok("tools/list", `{}`); !strings.Contains(got, `"up__t2"`) {
		t.Errorf("list after the change = %s", got)
	}
	if len(r.push) != 0 {
		t.Errorf("%d more messages to the host, want the burst to be one", len(r.push))
	}
}

// The list of a host that searches has no tool of a server, so it does not wait for one.
func TestSearchListWaitsForNoServer(t *testing.T) {
	for mode, want := range map[string]time.Duration{config.ModeSearch: 0, config.ModeList: 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			slow := false
			up := echoUpstream("2025-11-25")
			serve := up.serve
			up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
				if c.Method == "tools/list" && slow {
					time.Sleep(time.Minute)
				}
				return serve(ctx, l, c)
			}
			r := newRigWith(t, false, map[string]fakeUpstream{"up": up}, func(c *config.Config) { c.Tools.Mode = mode })
			r.initialize()
			r.ok("tools/list", `{}`)
			r.tool("up__echo", `{}`)
			time.Sleep(time.Minute)
			slow = true
			r.last("up").cfg.Handler.Unsolicited(wire.Message{Method: "notifications/tools/list_changed"})
			asked := time.Now()
			if list := r.ok("tools/list", `{}`); time.Since(asked) != want {
				t.Errorf("%s: the list comes after %v, want %v: %d bytes", mode, time.Since(asked), want, len(list))
			}
			time.Sleep(2 * time.Minute)
			r.close()
		})
	}
}

// Servers that a busy machine keeps from answering in time are up in the end, and one that never answers
// does not keep the check for ever.
func TestCheckTriesBusyServersAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ups := map[string]fakeUpstream{}
		for i := range 40 {
			ups[fmt.Sprintf("up%d", i)] = echoUpstream("2025-11-25")
		}
		r := newRig(t, false, ups)
		dial := r.g.servers.Dial
		var mu sync.Mutex
		tries := map[string]int{}
		r.g.servers.Dial = func(ctx context.Context, c upstream.Config) (conn.Conn, error) {
			mu.Lock()
			tries[c.Name]++
			n := tries[c.Name]
			mu.Unlock()
			if c.Slow != (n > 1) {
				t.Errorf("attempt %d at %s: slow is %v", n, c.Name, c.Slow)
			}
			if i := len(c.Name) % 2; c.Name == "up7" || n <= i+1 && strings.HasSuffix(c.Name, "3") {
				<-ctx.Done()
				return nil, fmt.Errorf("initialize: %w", context.Cause(ctx))
			}
			return dial(ctx, c)
		}
		faults := r.g.settle(t.Context(), "local", time.Minute)
		for name, err := range faults {
			if (err != nil) != (name == "up7") {
				t.Errorf("%s after %d tries: %v", name, tries[name], err)
			}
		}
		r.close()
	})
}

// A list that changes while the host begins is announced after the answer to initialize: some hosts
// end the connection if anything else comes first.
func TestListChangeFollowsTheGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
		p := r.s.Begin(t.Context(), server.NewRequest(wire.Message{ID: json.RawMessage("1"), Method: "initialize", Params: json.RawMessage(`{"protocolVersion":"2025-11-25"}`)}))
		if reply := p.Serve(); reply.Result == nil {
			t.Fatalf("initialize: %s", reply.Error)
		}
		r.last("up").cfg.Handler.Unsolicited(wire.Message{Method: "notifications/tools/list_changed"})
		time.Sleep(time.Minute)
		if len(r.push) > 0 {
			t.Errorf("before the answer to initialize the host gets %s", (<-r.push).Method)
		}
		p.Sent()
		time.Sleep(time.Minute)
		if len(r.push) != 1 {
			t.Errorf("after the answer the host gets %d messages, want list_changed", len(r.push))
		}
		r.close()
	})
}

// logBuffer keeps what is logged, and sends it to the test's own log.
type logBuffer struct {
	t  testing.TB
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	return l.t.Output().Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// warnings sends what is logged as a warning or worse to the test's own log.
func warnings(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// scan yields the records below a state directory that a filter selects.
func scan(t testing.TB, state string, f query.Filter) iter.Seq[*trace.Record] {
	t.Helper()
	return func(yield func(*trace.Record) bool) {
		for r, err := range query.Scan(t.Context(), filepath.Join(state, "trace"), f) {
			if err != nil {
				t.Fatal(err)
			}
			if !yield(r) {
				return
			}
		}
	}
}
