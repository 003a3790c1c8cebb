//go:build unix

package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
	"github.com/google/go-cmp/cmp"
)

func TestStdioNegotiate(t *testing.T) {
	host := json.RawMessage(`{"protocolVersion":"2025-06-18","capabilities":{"z":1.0,"a":[]},"clientInfo":{"name":"h"}}`)
	for _, tt := range []struct {
		name, mode string
		initialize json.RawMessage
		want       string
	}{
		{name: "host's own words", mode: "legacy", initialize: host, want: "2025-06-18"},
		{name: "host meets modern only", mode: "modern", initialize: host, want: wire.VersionModern},
		{name: "modern first", mode: "both", want: wire.VersionModern},
		{name: "refused probe", mode: "legacy", want: wire.VersionLegacy},
		{name: "silent probe", mode: "silent", want: wire.VersionLegacy},
		{name: "slow start", mode: "slow", want: wire.VersionLegacy},
		{name: "probe that confuses", mode: "stuck", want: wire.VersionLegacy},
		{name: "deadly probe", mode: "dies", want: wire.VersionLegacy},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := childConfig(t, tt.mode)
			cfg.Host.Initialize = tt.initialize
			l := open(t, cfg)
			if got := l.Info().Version; got != tt.want {
				t.Errorf("info().Version = %q, want %q", got, tt.want)
			}
			got, _ := rawjson.Get(l.Info().Result, "got")
			if tt.mode == "legacy" && tt.initialize != nil && string(got) != string(host) {
				t.Errorf("upstream got params %s, want %s", got, host)
			}
			m, err := callTool(t.Context(), l, "seen", nil)
			if err != nil {
				t.Fatal(err)
			}
			if same := strings.Contains(string(m.Result), wire.MethodCancelled); same != (tt.mode == "silent" || tt.mode == "slow") {
				t.Errorf("%s: the process that was probed is in use: %v", m.Result, same)
			}
			if seen := strings.Contains(string(m.Result), wire.MethodInitialized); seen == l.Info().Modern() {
				t.Errorf("upstream saw %s, modern is %v", m.Result, l.Info().Modern())
			}
		})
	}
}

// A server that had no answer in time gets the whole time for one start.
func TestSlowServerIsNotProbed(t *testing.T) {
	for mode, want := range map[string]string{"stuck": wire.VersionLegacy, "modern": wire.VersionModern} {
		t.Run(mode, func(t *testing.T) {
			cfg := childConfig(t, mode)
			cfg.Slow = true
			l := open(t, cfg)
			m, err := callTool(t.Context(), l, "seen", nil)
			if err != nil || l.Info().Version != want || strings.Contains(string(m.Result), wire.MethodDiscover) {
				t.Errorf("revision %s, %v, the server saw %s", l.Info().Version, err, m.Result)
			}
		})
	}
}

func TestStdioOpenFails(t *testing.T) {
	checkGoroutines(t)
	cfg := childConfig(t, "legacy")
	cfg.Command = []string{"/does/not/exist"}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.HasPrefix(err.Error(), "start ") {
		t.Errorf("Open of a missing command: %v", err)
	}
	cfg = childConfig(t, "silent")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("host left"))
	if _, err := Open(ctx, cfg); err == nil || !strings.Contains(err.Error(), "host left") {
		t.Errorf("Open with a cancelled context: %v", err)
	}
}

func TestStdioEnvironment(t *testing.T) {
	t.Setenv("FOLDGATE_TEST_SECRET", "of somebody else")
	cfg := childConfig(t, "legacy")
	m, err := callTool(t.Context(), open(t, cfg), "env", nil)
	if want := `{"found":` + string(rawjson.Marshal(cfg.Env)) + `}`; err != nil || string(m.Result) != want {
		t.Errorf("child's environment is %s, %v; want %s", m.Result, err, want)
	}
}

func TestModernMeta(t *testing.T) {
	l := open(t, childConfig(t, "modern"))
	own := `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},"io.modelcontextprotocol/clientInfo":` + string(clientInfo())
	host := `{"a":1.0,"_meta":{"x":null,"io.modelcontextprotocol/clientInfo":{"name":"h"},"io.modelcontextprotocol/clientCapabilities":{"q":{}},"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`
	for params, want := range map[string]string{
		``:                                `{"_meta":{` + own + `}}`,
		`{}`:                              `{"_meta":{` + own + `}}`,
		`{"a":1e2}`:                       `{"a":1e2,"_meta":{` + own + `}}`,
		`{"_meta":{},"a":1}`:              `{"_meta":{` + own + `},"a":1}`,
		`{"_meta":{"k":"\ud83d"},"b":[]}`: `{"_meta":{"k":"\ud83d",` + own + `},"b":[]}`,
		host:                              host,
	} {
		c := &conn.Request{Method: "x/any", Extra: []byte(`,"ext":1`)}
		if params != "" {
			c.Params = json.RawMessage(params)
		}
		m, err := l.Call(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := rawjson.Get(m.Result, "params")
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("call(%s) arrived as (-want +got)\n%s", params, diff)
		}
		if string(m.Extra) != `,"ext":1` {
			t.Errorf("Extra = %q", m.Extra)
		}
	}
}

// A result stays what it is when the memory that it arrived in is used again.
func TestStdioResultsAreKept(t *testing.T) {
	l := open(t, childConfig(t, "legacy"))
	for _, sizes := range [][]string{{"big:20000", "big:10000"}, {"big:90000", "big:70000"}, {"big:900000", "big:40000", "big:1000000"}} {
		var got, want []string
		var results []wire.Message
		for _, tool := range sizes {
			m, err := callTool(t.Context(), l, tool, nil)
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, m)
			n, _ := strconv.Atoi(strings.TrimPrefix(tool, "big:"))
			want = append(want, `{"text":"`+strings.Repeat("x", n)+`"}`)
		}
		for _, m := range results {
			got = append(got, string(m.Result))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%v: the results changed after they had arrived", sizes)
		}
	}
}

// One call fails, the connection goes on.
func TestStdioBadMessages(t *testing.T) {
	cfg := childConfig(t, "legacy")
	cfg.MaxMessage = 200_000
	l := open(t, cfg)
	for _, tt := range []struct {
		tool string
		want error
	}{
		{"noise", nil},
		{"big:199000", nil},
		{"big:200001", errUnreadable},
		{"big:3000000", errUnreadable},
		{"big-late:3000000", errUnreadable},
		{"deep:1990", nil},
		{"deep:2001", errUnreadable},
		{"deep:90000", errUnreadable},
		{"string-id", nil},
		{"batch", nil},
	} {
		// A second call is in flight, so that the id has to be found.
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		started := make(chan struct{})
		wg.Go(func() {
			callTool(ctx, l, "hang", func(wire.Message) { close(started) })
		})
		<-started
		m, err := callTool(t.Context(), l, tt.tool, nil)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: error %v, want %v", tt.tool, err, tt.want)
		}
		if tt.want == nil && m.Result == nil {
			t.Errorf("%s: %+v, want a result", tt.tool, m)
		}
		cancel()
		wg.Wait()
	}
	if m, err := callTool(t.Context(), l, "big-request:3000000", nil); err != nil || !strings.Contains(string(m.Result), "-32600") {
		t.Errorf("too large a request was answered %s, %v; want a refusal", m.Result, err)
	}
}

func TestStdioConcurrentEvents(t *testing.T) {
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%v", shared), func(t *testing.T) {
			cfg := childConfig(t, "legacy")
			cfg.Host.Shared = shared
			cfg.Handler = handles(func(m wire.Message) { t.Errorf("Handle(%s)", m.Raw) })
			l := open(t, cfg)
			var wg sync.WaitGroup
			for i := range 64 {
				wg.Go(func() {
					token := fmt.Sprintf(`"t%d"`, i)
					if shared {
						token = `"same"` // several hosts, same token
					}
					n := 0
					var over atomic.Bool
					m, err := l.Call(t.Context(), &conn.Request{
						Method: "tools/call",
						Params: json.RawMessage(`{"name":"progress:50","_meta":{"progressToken":` + token + `}}`),
						Receiver: takes(func(m wire.Message) {
							want := fmt.Sprintf(`{"progressToken":%s,"progress":%d}`, token, n)
							if n++; string(m.Params) != want || over.Load() {
								t.Errorf("event %s, want %s", m.Params, want)
							}
						}),
					})
					over.Store(true)
					if err != nil || n != 50 || m.Error != nil {
						t.Errorf("call %d: %d events, %v, %s", i, n, err, m.Error)
					}
				})
			}
			wg.Wait()
		})
	}
}

func TestStdioServerRequests(t *testing.T) {
	cfg := childConfig(t, "legacy")
	asked := make(chan wire.Message, 64)
	cfg.Handler = handles(func(m wire.Message) { asked <- m })
	l := open(t, cfg)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 64 {
			m := <-asked
			if err := l.Send(t.Context(), wire.Message{ID: m.ID, Result: json.RawMessage("{\"got\":\n" + string(m.Params) + "}")}); err != nil {
				t.Error(err)
			}
		}
	})
	for range 64 {
		wg.Go(func() {
			m, err := callTool(t.Context(), l, "elicit", nil)
			if err != nil || !strings.HasPrefix(string(m.Result), `{"answer":{"got": {"of":`) {
				t.Errorf("elicit: %s, %v", m.Result, err)
			}
		})
	}
	wg.Wait()
}

func TestStdioCancel(t *testing.T) {
	cfg := childConfig(t, "legacy")
	var handled atomic.Int32
	cfg.Handler = handles(func(wire.Message) { handled.Add(1) })
	l := open(t, cfg)
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New(`user "pressed" stop`)
	_, err := callTool(ctx, l, "hang", func(wire.Message) { cancel(stop) })
	if err != stop {
		t.Errorf("call = %v, want the cause %v", err, stop)
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	go cancel(stop)
	if _, err := callTool(ctx, l, "late:2", func(wire.Message) { t.Error("event after the cancellation") }); err != stop {
		t.Errorf("call = %v, want the cause %v", err, stop)
	}
	m, err := callTool(t.Context(), l, "seen", nil)
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	found, _ := rawjson.Get(m.Result, "found")
	json.Unmarshal(found, &seen)
	// The second call may have been cancelled before it was sent.
	if len(seen) < 2 || len(seen) > 3 || !strings.Contains(seen[1], `"reason":"user \"pressed\" stop"`) {
		t.Errorf("upstream saw %q, want the reason of the cancellation", seen)
	}
}

func TestStdioListen(t *testing.T) {
	cfg := childConfig(t, "modern")
	cfg.Handler = handles(func(m wire.Message) { t.Errorf("Handle(%s)", m.Raw) })
	l := open(t, cfg)
	var got []string
	_, err := l.Call(t.Context(), &conn.Request{
		Method: wire.MethodListen, Params: json.RawMessage(`{"end":true}`),
		Receiver: takes(func(m wire.Message) { got = append(got, string(m.Raw)) }),
	})
	if !errors.Is(err, errListenEnded) || !strings.Contains(err.Error(), "enough") {
		t.Errorf("call = %v, want %v with the reason", err, errListenEnded)
	}
	want := []string{
		`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"x":1,"io.modelcontextprotocol/subscriptionId":2}}}`,
		`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"x":1,"io.modelcontextprotocol/subscriptionId":2}}}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got)\n%s", diff)
	}
}

// A panic on a message of a server ends its connection, and nothing else.
func TestStdioPanic(t *testing.T) {
	cfg := childConfig(t, "legacy")
	cfg.Handler = handles(func(wire.Message) { panic("of a handler") })
	for _, name := range []string{"batch", "progress:1"} {
		l := open(t, cfg)
		_, err := callTool(t.Context(), l, name, func(wire.Message) { panic("of a receiver") })
		if <-l.Done(); !errors.Is(err, conn.ErrClosed) || !errors.Is(l.Err(), conn.ErrClosed) {
			t.Errorf("%s: call = %v, the connection ended with %v; want %v", name, err, l.Err(), conn.ErrClosed)
		}
	}
	l := open(t, cfg)
	if m, err := l.Call(t.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"env"}`), Receiver: answers(func() { panic("at the answer") })}); err != nil || m.Result == nil {
		t.Errorf("call = %s, %v; want the response that has arrived", m.Result, err)
	}
	<-l.Done()
}

// answers is a func as a Receiver that takes the response.
type answers func()

func (answers) Message(wire.Message)           {}
func (f answers) ResponseArrived(wire.Message) { f() }

func TestStdioDeath(t *testing.T) {
	for name, want := range map[string]string{"exit:7": "exit status 7", "exit:0": "exit status 0"} {
		t.Run(name, func(t *testing.T) {
			l := open(t, childConfig(t, "legacy"))
			start := time.Now()
			_, err := callTool(t.Context(), l, name, nil)
			if !errors.Is(err, conn.ErrClosed) || !strings.Contains(err.Error(), want) {
				t.Errorf("call = %v, want %q", err, want)
			}
			if d := time.Since(start); d > time.Second {
				t.Errorf("call failed after %v, want at once", d)
			}
			<-l.Done()
			if _, err2 := callTool(t.Context(), l, "any", nil); err2 == nil || err2.Error() != l.Err().Error() {
				t.Errorf("next call = %v, err() = %v", err2, l.Err())
			}
		})
	}
	t.Run("kill -9", func(t *testing.T) {
		l := open(t, childConfig(t, "legacy"))
		pid := childPID(t, l)
		start := time.Now()
		_, err := callTool(t.Context(), l, "hang", func(wire.Message) { syscall.Kill(pid, syscall.SIGKILL) })
		if !errors.Is(err, conn.ErrClosed) || !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("call = %v", err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("call failed after %v, want at once", d)
		}
	})
	t.Run("last words", func(t *testing.T) {
		l := open(t, childConfig(t, "legacy"))
		if _, err := callTool(t.Context(), l, "last-words", nil); err != nil {
			t.Errorf("call = %v, want the answer given before the exit", err)
		}
		<-l.Done()
	})
	t.Run("closed stdin", func(t *testing.T) {
		cfg := childConfig(t, "")
		cfg.Command = []string{"sh", "-c", `read -r initialize; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{}}}'; read -r initialized; exec sleep 60 <&-`}
		cfg.Host.Initialize = json.RawMessage(`{}`)
		l := open(t, cfg)
		for l.Err() == nil { // the shell takes a moment to close it
			_ = l.Send(t.Context(), wire.Message{Method: wire.MethodRootsChanged})
			runtime.Gosched()
		}
		if _, err := callTool(t.Context(), l, "any", nil); !errors.Is(err, conn.ErrClosed) || !strings.Contains(err.Error(), "closed its stdin") {
			t.Errorf("call = %v", err)
		}
	})
	t.Run("close", func(t *testing.T) {
		l := open(t, childConfig(t, "legacy"))
		_, err := callTool(t.Context(), l, "hang", func(wire.Message) { go l.Close() })
		if !errors.Is(err, conn.ErrClosed) {
			t.Errorf("call = %v, want %v", err, conn.ErrClosed)
		}
		l.Close()
		if l.Err() != nil {
			t.Errorf("err() after close = %v, want nil", l.Err())
		}
	})
}

func childPID(t *testing.T, l conn.Conn) int {
	t.Helper()
	raw, _ := rawjson.Get(l.Info().Result, "pid")
	var pid int
	if err := json.Unmarshal(raw, &pid); err != nil || pid <= 1 {
		t.Fatalf("pid of child: %s, %v", raw, err)
	}
	return pid
}

// No process is left, whoever started it and however the connection ends.
func TestStdioNoOrphans(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(l conn.Conn, pid int)
	}{
		{"close", func(l conn.Conn, _ int) { l.Close() }},
		{"kill -9", func(l conn.Conn, pid int) { syscall.Kill(pid, syscall.SIGKILL); <-l.Done(); l.Close() }},
	} {
		for _, mode := range []string{"legacy", "stubborn"} {
			t.Run(tt.name+" "+mode, func(t *testing.T) {
				cfg := childConfig(t, mode)
				cfg.Command = []string{"sh", "-c", `"$0" "$1"; true`, cfg.Command[0], cfg.Command[1]}
				l := open(t, cfg)
				m, err := callTool(t.Context(), l, "grandchild", nil)
				if err != nil {
					t.Fatal(err)
				}
				var sleeper int
				found, _ := rawjson.Get(m.Result, "found")
				if err := json.Unmarshal(found, &sleeper); err != nil {
					t.Fatal(err)
				}
				server := childPID(t, l)
				start := time.Now()
				tt.end(l, server)
				if d := time.Since(start); d > 3*stopGrace {
					t.Errorf("took %v", d)
				}
				for _, pid := range []int{server, sleeper} {
					if !gone(pid) {
						t.Errorf("process %d is still there", pid)
						syscall.Kill(pid, syscall.SIGKILL)
					}
				}
			})
		}
	}
}

// A child does not outlive a gateway that is killed, even if it does not care
// for the end of its stdin.
func TestStdioGatewayKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a child of its parent's death")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestUpstreamChild$")
	cmd.Env = append(os.Environ(), envChild+"=gateway")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatal(err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	if !gone(pid) {
		t.Errorf("process %d is still there", pid)
		syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Links opened and closed leave no file behind.
func TestStdioFiles(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/dev/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(fds)
	}
	cfg := childConfig(t, "legacy")
	cfg.Host.Initialize = ownInitialize(wire.AllCapabilities)
	before := 0
	for i := range 12 {
		l := open(t, cfg)
		callTool(t.Context(), l, "any", nil)
		l.Close()
		if i == 2 { // what the runtime keeps is there by now
			before = count()
		}
	}
	if after := count(); after > before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

func TestNoiseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got bytes.Buffer
		log := slog.New(slog.NewTextHandler(&got, nil))
		logLines(strings.NewReader(strings.Repeat("x\n", 1000)+strings.Repeat("long", 5000)), &Config{Log: log}, &complaint{})
		if n := strings.Count(got.String(), "msg=stderr"); n != maxLogLines {
			t.Errorf("%d lines logged, want %d", n, maxLogLines)
		}
		if !strings.Contains(got.String(), "lines=951") {
			t.Errorf("log does not tell what it dropped: %s", got.String())
		}
		got.Reset()
		var n rateLimitedLog
		for range maxLogLines + 7 {
			n.log(log, slog.LevelWarn, "noise")
		}
		<-time.After(time.Second)
		n.log(log, slog.LevelWarn, "noise")
		if !strings.Contains(got.String(), "lines=7") || strings.Count(got.String(), "msg=noise") != maxLogLines+1 {
			t.Errorf("log after a second: %s", got.String())
		}
	})
}

// gone waits up to 2 s for the process to end; its new parent may take a
// moment to reap it.
func gone(pid int) bool {
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		if syscall.Kill(pid, 0) != nil {
			return true
		}
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && bytes.Contains(stat, []byte(") Z ")) {
			return true
		}
	}
	return false
}

// TestNoiseInsteadOfAnswer: the error for a program that prints something else on standard output, and then says no more
// or ends, shows what it printed.
func TestNoiseInsteadOfAnswer(t *testing.T) {
	for script, want := range map[string]string{
		"echo listens on port 3000; echo more; sleep 60": "no answer",
		"echo listens on port 3000":                      "process ended",
	} {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 500*time.Millisecond, ErrNoAnswer)
		defer cancel()
		_, err := Open(ctx, Config{Name: "fake", Command: []string{"sh", "-c", script}, Env: os.Environ(), Log: testLog(t)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), `it sent what is no message: "listens on port 3000"`) {
			t.Errorf("%s: %v", script, err)
		}
	}
}
