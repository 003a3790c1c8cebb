//go:build unix

package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
	"github.com/foldgate/foldgate/test/nofiles"
)

// envChild makes the test binary behave as an MCP server on stdio. Its value
// names the way in which the server behaves.
const envChild = "FOLDGATE_TEST_UPSTREAM_CHILD"

// TestUpstreamChild is no test: it is the child process of the tests here.
func TestUpstreamChild(t *testing.T) {
	mode := os.Getenv(envChild)
	if mode == "" {
		t.Skip("runs as the child of other tests")
	}
	if run := sdkChildren[mode]; run != nil {
		run()
		os.Exit(0)
	}
	if mode == "gateway" { // that gets killed
		l := open(t, childConfig(t, "stubborn"))
		fmt.Println(childPID(t, l))
		select {}
	}
	s := &fakeServer{mode: mode, out: os.Stdout, replies: map[string]chan wire.Message{}}
	os.Exit(s.serve(os.Stdin))
}

// childConfig is a Config whose upstream is the test binary in this mode.
func childConfig(t testing.TB, mode string) Config {
	return Config{
		Name:    "fake",
		Command: []string{os.Args[0], "-test.run=^TestUpstreamChild$"},
		Env:     []string{envChild + "=" + mode, "GORACE=atexit_sleep_ms=0", "PATH=" + os.Getenv("PATH")},
		Log:     testLog(t),
	}
}

var quiet = slog.New(slog.DiscardHandler)

// testLog logs to t while the test runs.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// open opens a connection and closes it at the end of the test, after which no
// goroutine of it may be left.
func open(t testing.TB, cfg Config) conn.Conn {
	t.Helper()
	checkGoroutines(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if cfg.Handler == nil {
		cfg.Handler = handles(func(wire.Message) {})
	}
	l, err := Open(ctx, cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// checkGoroutines fails the test if at its end code of this package's connections
// still runs in some goroutine.
func checkGoroutines(t testing.TB) {
	t.Cleanup(func() {
		var left string
		for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
			buf := make([]byte, 1<<20)
			left = ""
			for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
				if (strings.Contains(g, "/proxy/upstream") || strings.Contains(g, "/proxy/wire")) && !strings.Contains(g, "_test.go") {
					left = g
				}
			}
			if left == "" {
				return
			}
		}
		t.Errorf("goroutine left after close:\n%s", left)
	})
}

// takes makes a Receiver of a func; nil stays nil.
func takes(f func(wire.Message)) conn.Receiver {
	if f == nil {
		return nil
	}
	return handles(f)
}

// handles is a func as a Handler, and as a Receiver that ignores the response.
type handles func(wire.Message)

func (f handles) Unsolicited(m wire.Message)   { f(m) }
func (f handles) Undelivered(conn.Undelivered) {}
func (f handles) Message(m wire.Message)       { f(m) }
func (f handles) ResponseArrived(wire.Message) {}

// callTool calls a tool of the fake server.
func callTool(ctx context.Context, l conn.Conn, name string, event func(wire.Message)) (wire.Message, error) {
	p := json.RawMessage(`{"name":` + strconv.Quote(name) + `,"_meta":{"progressToken":"tok-` + name + `"}}`)
	return l.Call(ctx, &conn.Request{Method: "tools/call", Params: p, Receiver: takes(event)})
}

// leanServer answers every request with its own params, at the least cost.
func leanServer() {
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriterSize(os.Stdout, 1<<16)
	for {
		line, err := in.ReadSlice('\n')
		if err != nil {
			return
		}
		id, _ := rawjson.Get(line, "id")
		params, _ := rawjson.Get(line, "params")
		if id != nil {
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","supportedVersions":["2025-11-25"],"echo":%s}}`+"\n", id, orNull(params))
		}
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

// fakeServer is a small MCP server whose tools misbehave on demand.
type fakeServer struct {
	mode string
	mu   sync.Mutex // guards what follows
	out  io.Writer
	seen []string // notifications, as they came

	replies map[string]chan wire.Message
}

func (s *fakeServer) say(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *fakeServer) serve(in io.Reader) int {
	br := bufio.NewReaderSize(in, 1<<20)
	for {
		line, err := br.ReadBytes('\n')
		if err != nil {
			if s.mode == "stubborn" {
				select {}
			}
			return 0
		}
		m, err := wire.ParseMessage(line)
		if err != nil {
			s.say("cannot read %q: %v", line, err)
			continue
		}
		switch {
		case m.IsResponse():
			s.mu.Lock()
			c := s.replies[string(m.ID)]
			s.mu.Unlock()
			if c != nil {
				c <- m
			}
		case m.IsNotification():
			s.mu.Lock()
			s.seen = append(s.seen, string(line[:len(line)-1]))
			s.mu.Unlock()
		default:
			s.request(m)
		}
	}
}

func (s *fakeServer) request(m wire.Message) {
	switch m.Method {
	case wire.MethodInitialize:
		v, _ := rawjson.Get(m.Params, "protocolVersion")
		switch {
		case s.mode == "modern":
			s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"modern only"}}`, m.ID)
		default:
			s.say(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":%s,"capabilities":{},"got":%s,"pid":%d}}`, m.ID, v, m.Params, os.Getpid())
		}
	case wire.MethodDiscover:
		switch s.mode {
		case "modern", "both":
			s.say(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"got":%s}}`, m.ID, m.Params)
		case "silent":
		case "slow": // starts slowly
			time.Sleep(3 * time.Second)
			s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		case "stuck":
			time.Sleep(time.Hour)
		case "dies":
			os.Exit(4)
		default:
			s.say(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"method not found"}}`, m.ID)
		}
	case wire.MethodListen:
		s.listen(m)
	case "tools/call":
		name, _ := rawjson.GetString(m.Params, "name")
		s.tool(name, m)
	default:
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"method":%q,"params":%s}%s}`, m.ID, m.Method, orNull(m.Params), m.Extra)
	}
}

func orNull(b []byte) []byte {
	if b == nil {
		return []byte("null")
	}
	return b
}

// listen acknowledges, reports one change, and ends where the mode says so.
func (s *fakeServer) listen(m wire.Message) {
	meta := fmt.Sprintf(`"_meta":{"x":1,%q:%s}`, wire.MetaSubscriptionID, m.ID)
	s.say(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{%s}}`, meta)
	s.say(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{%s}}`, meta)
	if end, _ := rawjson.Get(m.Params, "end"); end != nil {
		s.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"enough"}}`, m.ID)
	}
}

func (s *fakeServer) tool(name string, m wire.Message) {
	token, _ := rawjson.Get(m.Params, "_meta", "progressToken")
	reply := func() { s.say(`{"jsonrpc":"2.0","id":%s,"result":{"name":%q,"token":%s}}`, m.ID, name, orNull(token)) }
	progress := func(n int) {
		s.say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, token, n)
	}
	arg := ""
	name, arg, _ = strings.Cut(name, ":")
	n, _ := strconv.Atoi(arg)
	switch name {
	case "progress":
		go func() {
			for i := range n {
				progress(i)
			}
			reply()
		}()
	case "noise":
		s.say("Server listening…\n\n\x00\xff{\"half\": \n[1,2\n42\n\"text\"\nnull\n{}")
		reply()
	case "big": // the id comes first
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"text":"%s"}}`, m.ID, strings.Repeat("x", n))
	case "big-late": // and last
		s.say(`{"jsonrpc":"2.0","result":{"text":"%s"},"id":%s}`, strings.Repeat("x", n), m.ID)
	case "big-request":
		s.ask(m, `{"jsonrpc":"2.0","id":"big","method":"sampling/createMessage","params":{"text":"`+strings.Repeat("x", n)+`"}}`, "big")
	case "deep":
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"found":%s%s}}`, m.ID, strings.Repeat("[", n), strings.Repeat("]", n))
	case "string-id":
		s.say(`{"jsonrpc":"2.0","id":"%s","result":{}}`, m.ID)
	case "elicit":
		id := fmt.Sprintf(`"e-%s"`, m.ID)
		s.ask(m, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":{"of":%s}}`, id, m.ID), id)
	case "batch":
		s.say(`[{"jsonrpc":"2.0","method":"notifications/message","params":{}},{"jsonrpc":"2.0","id":%s,"result":{"batch":true}}]`, m.ID)
	case "exit":
		fmt.Fprintln(os.Stderr, "going down")
		os.Exit(n)
	case "last-words":
		reply()
		os.Exit(3)
	case "grandchild": // answers with the pid of a process that outlives us
		cmd := exec.Command("sleep", "300")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"found":%d}}`, m.ID, cmd.Process.Pid)
	case "env":
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"found":%s}}`, m.ID, rawjson.Marshal(os.Environ()))
	case "seen":
		s.mu.Lock()
		seen := rawjson.Marshal(s.seen)
		s.mu.Unlock()
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"found":%s}}`, m.ID, seen)
	case "late": // answers, but only after the cancellation came
		go func() {
			for s.count(wire.MethodCancelled) < n {
				runtime.Gosched()
			}
			progress(1)
			reply()
		}()
	case "hang":
		progress(0)
	default:
		reply()
	}
}

func (s *fakeServer) count(method string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(strings.Join(s.seen, "\n"), `"`+method+`"`)
}

// ask sends a request to the host and answers m with what comes back.
func (s *fakeServer) ask(m wire.Message, request, id string) {
	c := make(chan wire.Message, 1)
	s.mu.Lock()
	s.replies[id], s.replies[strconv.Quote(id)] = c, c
	s.mu.Unlock()
	s.say("%s", request)
	go func() {
		r := <-c
		s.say(`{"jsonrpc":"2.0","id":%s,"result":{"answer":%s,"error":%s}}`, m.ID, orNull(r.Result), orNull(r.Error))
	}()
}

// A server that can't be started for want of file descriptors is told with the limit.
func TestTooManyOpenFiles(t *testing.T) {
	var err error
	nofiles.During(t, func() { _, err = startChild(&Config{Command: []string{"true"}}) })
	if err == nil || !strings.Contains(err.Error(), "ulimit -n") {
		t.Error(err)
	}
}
