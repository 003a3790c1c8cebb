package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/google/go-cmp/cmp"
)

const modernMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`

// stdioLines serves input with c and returns what was written, line by line.
func stdioLines(t *testing.T, c Router, input string) []string {
	t.Helper()
	var out bytes.Buffer
	if err := ServeStdio(t.Context(), c, strings.NewReader(input), &out, testLog(t)); err != nil {
		t.Fatalf("serveStdio = %v, want nil at the end of the input", err)
	}
	text := strings.TrimSuffix(out.String(), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// A request that the router can't register, or open a session for, is answered.
func TestStdioBeginPanics(t *testing.T) {
	for _, where := range []string{"Open", "Begin"} {
		c, panics := newFakeRouter(nil), func() { panic("in " + where) }
		if where == "Open" {
			c.onOpen = panics
		} else {
			c.onBegin = func(*Request) { panics() }
		}
		for _, params := range []string{`{}`, `{` + modernMeta + `}`} {
			for _, method := range []string{"m", "server/discover"} {
				var in strings.Builder
				const requests = stdioMaxPending + 1 // each leaves its place to others
				for n := range requests {
					fmt.Fprintf(&in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", n, method, params)
				}
				var out bytes.Buffer
				if err := ServeStdio(t.Context(), c, strings.NewReader(in.String()), &out, slog.New(slog.DiscardHandler)); err != nil {
					t.Fatal(err)
				}
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				for _, line := range lines {
					if !strings.HasSuffix(line, `"error":{"code":-32603,"message":"internal error"}}`) {
						t.Fatalf("%s %s: %s", where, method, line)
					}
				}
				if len(lines) != requests {
					t.Errorf("%s %s: %d answers", where, method, len(lines))
				}
			}
		}
	}
}

func TestStdioAnswers(t *testing.T) {
	for _, tc := range []struct {
		name, in, want string // want "" is silence
		opened         int
	}{
		{"legacy", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"result":{"method":"ping","params":null}}`, 1},
		{"string id kept", `{"jsonrpc":"2.0","id":"a\u0062","method":"ping"}`, `{"jsonrpc":"2.0","id":"a\u0062","result":{"method":"ping","params":null}}`, 1},
		{"big id kept", `{"jsonrpc":"2.0","id":9007199254740993,"method":"x/y"}`, `{"jsonrpc":"2.0","id":9007199254740993,"result":{"method":"x/y","params":null}}`, 1},
		{"modern", `{"jsonrpc":"2.0","id":1,"method":"m","params":{` + modernMeta + `}}`, `{"jsonrpc":"2.0","id":1,"result":{"method":"m","params":{` + modernMeta + `}}}`, 1},
		{"unsupported version", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"protocol version \"2031-01-01\" is not supported","data":{"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"2031-01-01"}}}`, 0},
		{"missing capabilities", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`,
			`{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"params._meta[\"io.modelcontextprotocol/clientCapabilities\"] must be an object"}}`, 0},
		{"not JSON", `{"jsonrpc":`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"not valid JSON"}}`, 0},
		{"not JSON-RPC", `{"id":7,"method":"x"}`, `{"jsonrpc":"2.0","id":7,"error":{"code":-32600,"message":"not a JSON-RPC 2.0 message: jsonrpc is \"\", want \"2.0\""}}`, 0},
		{"bad id", `{"jsonrpc":"2.0","id":true,"method":"x"}`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC 2.0 message: id must be a string or a number"}}`, 0},
		{"scalar", `17`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"not a JSON-RPC 2.0 message: not an object"}}`, 0},
		{"empty batch", `[]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"empty batch"}}`, 0},
		{"notification", `{"jsonrpc":"2.0","method":"notifications/x"}`, "", 1},
		{"stray response", `{"jsonrpc":"2.0","id":1,"result":{}}`, "", 0},
		{"blank lines", "\n  \r\n\t", "", 0},
		{"no line end, CR", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r", `{"jsonrpc":"2.0","id":1,"result":{"method":"ping","params":null}}`, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newFakeRouter(nil)
			got := strings.Join(stdioLines(t, c, tc.in), "\n")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("answer to %s (-want +got):\n%s", tc.in, diff)
			}
			if opened, closed := c.counts(); opened != tc.opened || closed != tc.opened {
				t.Errorf("sessions opened, closed = %d, %d, want %d of each", opened, closed, tc.opened)
			}
		})
	}
}

// A bare server/discover belongs to the session that there is.
func TestStdioDiscoverInASession(t *testing.T) {
	const ping, discover = `{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":2,"method":"server/discover"}`
	for first, second := range map[string]string{ping: discover, discover: ping} {
		c := newFakeRouter(nil)
		if got := stdioLines(t, c, first+"\n"+second); len(got) != 2 {
			t.Errorf("answers = %q, want two", got)
		}
		want := 1
		if first == discover { // a probe has a session of its own, before the host chose an era
			want = 2
		}
		if opened, _ := c.counts(); opened != want {
			t.Errorf("%s and then %s opened %d sessions, want %d", first, second, opened, want)
		}
	}
}

// A host may ping before initialize, and its capabilities still count. A request that is being served
// meanwhile is answered.
func TestStdioCapabilitiesAfterAPing(t *testing.T) {
	const initialize = `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"capabilities":{"elicitation":{"url":{}}}}}`
	for _, early := range []string{waitCall, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`} {
		g := newGate()
		in, out, stop := stdioPipe(t, g)
		fmt.Fprintln(in, early)
		fmt.Fprintln(in, initialize)
		if got := readLineOf(t, out); !strings.Contains(got, `"id":2,"result"`) {
			t.Errorf("answer to initialize = %s, want a result", got)
		}
		if got := g.lastPeer().Capabilities.String(); got != "elicitation.url" {
			t.Errorf("capabilities after %s and initialize = %q, want elicitation.url", early, got)
		}
		if early == waitCall {
			fmt.Fprintln(in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
			g.release <- doneReply
			if got := strings.TrimSpace(readLineOf(t, out)); got != doneText {
				t.Errorf("answer to a request before initialize = %s, want %s", got, doneText)
			}
		}
		fmt.Fprintln(in, `{"jsonrpc":"2.0","id":3,"method":"initialize","params":{}}`)
		readLineOf(t, out)
		stop()
		if opened, closed := g.counts(); opened != 2 || closed != 2 {
			t.Errorf("sessions opened, closed after %s = %d, %d, want 2, 2", early, opened, closed)
		}
		if early == waitCall && !slices.Equal(g.notified, []string{wire.MethodCancelled, wire.MethodCancelled}) {
			t.Errorf("the sessions are told %q, want the cancellation in both", g.notified)
		}
	}
}

// A host may leave while a request is open that it sent before initialize.
func TestStdioEndsWithAnEarlyRequest(t *testing.T) {
	in, out, stop := stdioPipe(t, newGate())
	fmt.Fprintln(in, waitCall)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{"capabilities":{"elicitation":{"url":{}}}}}`)
	readLineOf(t, out)
	stop()
}

// A modern notification need not say what the host can do: it goes to the sessions that there are.
func TestStdioModernNotificationWithoutCapabilities(t *testing.T) {
	const notification = `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`
	const other = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"roots":{}}}`
	c := newFakeRouter(nil)
	stdioLines(t, c, `{"jsonrpc":"2.0","id":1,"method":"m","params":{`+other+`}}`+"\n"+`{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}`+"\n"+notification)
	if opened, _ := c.counts(); opened != 2 {
		t.Errorf("%d sessions opened, want 2: none for the notification", opened)
	}
	if diff := cmp.Diff([]string{"notifications/x"}, c.notified); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

func TestStdioBatchIsAnsweredSingly(t *testing.T) {
	got := stdioLines(t, newFakeRouter(nil), `[{"jsonrpc":"2.0","id":1,"method":"a"},{"jsonrpc":"2.0","method":"notifications/b"},3,{"jsonrpc":"2.0","id":2,"method":"c"}]`)
	if len(got) != 3 {
		t.Errorf("batch of two requests and one fault got %d lines, want 3: %q", len(got), got)
	}
}

// A probe and then the legacy handshake on one connection is what dual-era
// hosts do: the probe's session is over before the real one.
func TestStdioProbeLeavesNothing(t *testing.T) {
	c := newFakeRouter(nil)
	in, out, stop := stdioPipe(t, c)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{`+modernMeta+`}}`)
	readLineOf(t, out)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}`)
	readLineOf(t, out)
	if p := c.lastPeer(); !p.Era.OwnConnections {
		t.Errorf("session after initialize: Modern = true, want false")
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{`+modernMeta+`}}`)
	readLineOf(t, out)
	if p := c.lastPeer(); p.Era.OwnConnections {
		t.Errorf("session of a modern request beside a legacy one: Modern = false, want true")
	}
	stop()
	if opened, closed := c.counts(); opened != 3 || closed != 3 {
		t.Errorf("sessions opened, closed = %d, %d, want 3, 3", opened, closed)
	}
}

func TestStdioOrderOfNotifications(t *testing.T) {
	var in strings.Builder
	var want []string
	for i := range 200 {
		name := fmt.Sprintf("notifications/n%d", i)
		want = append(want, name)
		fmt.Fprintf(&in, "{\"jsonrpc\":\"2.0\",\"method\":%q}\n", name)
	}
	c := newFakeRouter(nil)
	stdioLines(t, c, in.String())
	if diff := cmp.Diff(want, c.notified); diff != "" {
		t.Errorf("notifications (-want +got):\n%s", diff)
	}
}

// A host may cancel a request at once: the router knows of the request by then.
func TestStdioBeginsBeforeItReadsOn(t *testing.T) {
	const n = 200
	c := newFakeRouter(nil)
	cancelled := 0
	c.onNotify = func(wire.Message) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if cancelled++; len(c.began) != cancelled {
			t.Errorf("%d requests have begun when the %d. is cancelled", len(c.began), cancelled)
		}
	}
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","id":%d,"method":"slow"}`+"\n", i)
		fmt.Fprintf(&in, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`+"\n", i)
	}
	if got := stdioLines(t, c, in.String()); len(got) != n || cancelled != n {
		t.Errorf("%d replies and %d cancellations, want %d of each", len(got), cancelled, n)
	}
}

// 64 calls that each ask the host and wait for its answer, on one connection.
func TestStdioElicitations(t *testing.T) {
	const n = 64
	asked := newAsker()
	c := newFakeRouter(asked.serve)
	in, out, stop := stdioPipe(t, c)
	go asked.route(c.answers)
	for i := range n {
		fmt.Fprintf(in, "{\"jsonrpc\":\"2.0\",\"id\":%d,\"method\":\"tools/call\"}\n", i)
	}
	for done := 0; done < n; {
		m, err := wire.ParseMessage([]byte(readLineOf(t, out)))
		if err != nil {
			t.Fatalf("ParseMessage: %v", err)
		}
		if m.IsRequest() {
			fmt.Fprintf(in, "{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"for\":%s}}\n", m.ID, m.ID)
			continue
		}
		if want := fmt.Sprintf(`{"for":"ask-%s"}`, m.ID); string(m.Result) != want {
			t.Errorf("call %s = %s, want %s", m.ID, m.Result, want)
		}
		done++
	}
	close(c.answers)
	stop()
}

func TestStdioEndOfInputCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return wire.Message{}
		})
		start := time.Now()
		got := stdioLines(t, c, `{"jsonrpc":"2.0","id":1,"method":"slow"}`)
		if len(got) != 0 {
			t.Errorf("output = %q, want none for a cancelled exchange", got)
		}
		if d := time.Since(start); d != stdioGrace {
			t.Errorf("cancelled after %v, want %v", d, stdioGrace)
		}
		if cause == nil || cause.Error() != "the host closed the connection" {
			t.Errorf("cause = %v", cause)
		}
		if c.serving.Load() != 0 {
			t.Error("serveStdio returned while an exchange was running")
		}
	})
}

func TestStdioContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	inR, inW := io.Pipe()
	defer inW.Close()
	done := make(chan error, 1)
	go func() { done <- ServeStdio(ctx, newFakeRouter(nil), inR, io.Discard, testLog(t)) }()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("serveStdio = %v, want nil", err)
	}
}

// A notification that makes the session panic does not end the connection.
func TestStdioPanicIsContained(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	var out bytes.Buffer
	c := newFakeRouter(echo)
	c.onNotify = func(wire.Message) { panic("notify") }
	in := `{"jsonrpc":"2.0","method":"n"}` + "\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	if err := ServeStdio(t.Context(), c, strings.NewReader(in), &out, quiet); err != nil {
		t.Fatal(err)
	}
	if want := `{"jsonrpc":"2.0","id":1,"result":`; !strings.HasPrefix(out.String(), want) {
		t.Errorf("output = %s, want %s", out.String(), want)
	}
}

// A host that never reads: the writer hangs, what the router sends must not, and
// the connection still ends.
func TestStdioHostNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outR, outW := io.Pipe()
		s := &stdioServer{out: wire.NewLineWriter(outW, 100)}
		var err error
		sent := 0
		for ; err == nil && sent < 1000; sent++ {
			err = s.send([]byte("0123456789"))
			synctest.Wait() // until the writer hangs with the first line
		}
		if !errors.Is(err, errSlowHost) || sent > 20 {
			t.Errorf("send = %v after %d lines, want %v within 20", err, sent, errSlowHost)
		}
		blocked := make(chan error, 1)
		go func() { blocked <- s.out.Write(func(line []byte) []byte { return append(line, 'x') }) }()
		synctest.Wait()
		s.out.Hurry()
		var full *wire.QueueFullError
		if err := <-blocked; !errors.As(err, &full) {
			t.Errorf("Write after Hurry = %v, want a full queue", err)
		}
		start := time.Now()
		s.closeOutput()
		if d := time.Since(start); d != stdioGrace {
			t.Errorf("closeOutput took %v, want the whole grace", d)
		}
		if err := s.send([]byte("x")); !errors.Is(err, errHostGone) {
			t.Errorf("send after closeOutput = %v, want %v", err, errHostGone)
		}
		outR.Close()
		<-s.out.Done()
	})
}

func TestStdioOutputFails(t *testing.T) {
	full := errors.New("no space left")
	for fault, want := range map[error]error{full: full, syscall.EPIPE: nil} {
		inR, inW := io.Pipe()
		defer inW.Close()
		outR, outW := io.Pipe()
		outR.CloseWithError(fault)
		go fmt.Fprintln(inW, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
		c := newFakeRouter(nil)
		if err := ServeStdio(t.Context(), c, inR, outW, testLog(t)); !errors.Is(err, want) {
			t.Errorf("after %v serveStdio = %v, want %v", fault, err, want)
		}
		if opened, closed := c.counts(); opened != 1 || closed != 1 {
			t.Errorf("sessions opened, closed = %d, %d, want 1, 1", opened, closed)
		}
	}
}

func TestStdioLineLimit(t *testing.T) {
	in := strings.NewReader(strings.Repeat("a", stdioMaxLine+1) + "\n" + `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")
	var out bytes.Buffer
	if err := ServeStdio(t.Context(), newFakeRouter(nil), in, &out, testLog(t)); err != nil {
		t.Fatal(err)
	}
	want := `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"message larger than 64 MiB"}}` + "\n" +
		`{"jsonrpc":"2.0","id":1,"result":{"method":"ping","params":null}}` + "\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("answers to a line that is too long and one that is not (-want +got):\n%s", diff)
	}
	lines := wire.NewLineReader(strings.NewReader(strings.Repeat("a", 100)+"\nshort\n"+strings.Repeat("b", 64)+"\nlast"), 64+len("\n"))
	for i, want := range []struct {
		line string
		long bool
		err  error
	}{{"", true, nil}, {"short", false, nil}, {strings.Repeat("b", 64), false, nil}, {"last", false, nil}, {"", false, io.EOF}} {
		line, err := lines.Next()
		if (line.Tail != nil) != want.long || !want.long && string(line.Head) != want.line || err != want.err {
			t.Errorf("line %d = %q, too long %v, %v, want %q, %v, %v", i, line.Head, line.Tail != nil, err, want.line, want.long, want.err)
		}
	}
}

// TestStdioUnreadableRequests: a request that is too large or nests too deep is refused by its id. The
// id of a response is not repeated, because a request of the host can have the same.
func TestStdioUnreadableRequests(t *testing.T) {
	deep := strings.Repeat("[", wire.MaxDepth+1) + strings.Repeat("]", wire.MaxDepth+1)
	large := `"` + strings.Repeat("a", stdioMaxLine) + `"`
	const tooDeep, tooLarge = "nests deeper than 2000 levels", "message larger than 64 MiB"
	const both = "not a JSON-RPC 2.0 message: a response has either result or error"
	for _, test := range []struct{ in, id, message string }{
		{`{"jsonrpc":"2.0","id":34,"method":"m","params":` + deep + `}`, "34", tooDeep},
		{`{"jsonrpc":"2.0","method":"m","params":` + deep + `,"id":"x"}`, `"x"`, tooDeep},
		{`{"jsonrpc":"2.0","id":35,"result":` + deep + `}`, "null", tooDeep},
		{`{"jsonrpc":"2.0","id":{},"method":"m","params":` + deep + `}`, "null", tooDeep},
		{`{"jsonrpc":"2.0","id":40,"result":1,"error":{}}`, "null", both},
		{deep, "null", tooDeep},
		{`{"jsonrpc":"2.0","id":36,"method":"m","params":` + large + `}`, "36", tooLarge},
		{`{"method":"m","params":` + large + `,"jsonrpc":"2.0","id":37}`, "37", tooLarge},
		{`{"jsonrpc":"2.0","id":{},"method":"m","params":` + large + `}`, "null", tooLarge},
		{`{"jsonrpc":"2.0","id":38,"result":` + large + `}`, "null", tooLarge},
		{`{"result":` + large + `,"jsonrpc":"2.0","id":39}`, "null", tooLarge},
	} {
		var out bytes.Buffer
		if err := ServeStdio(t.Context(), newFakeRouter(nil), strings.NewReader(test.in+"\n"), &out, testLog(t)); err != nil {
			t.Fatal(err)
		}
		want := `{"jsonrpc":"2.0","id":` + test.id + `,"error":{"code":-32600,"message":"` + test.message + `"}}` + "\n"
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("the answer to %.60s (-want +got):\n%s", test.in, diff)
		}
	}
}

// Property: whatever the host sends, every line written is one valid JSON-RPC
// message, every request is answered once, and nothing panics.
func FuzzStdio(f *testing.F) {
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"method":"a"}`, "[1,2]\n{}", `{"jsonrpc":"2.0","id":null,"error":{}}`,
		"{\"jsonrpc\":\"2.0\",\n\"id\":1}", `{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":3}}`, "\x00\xff\n[[[[", `{"jsonrpc":"2.0","id":1,"method":"m","params":{` + modernMeta + `}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		c := newFakeRouter(nil)
		if err := ServeStdio(t.Context(), c, bytes.NewReader(in), &out, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatalf("serveStdio = %v", err)
		}
		answered := 0
		for line := range bytes.Lines(out.Bytes()) {
			m, err := wire.ParseMessage(line)
			if err != nil || !m.IsResponse() {
				t.Fatalf("wrote %q: %v", line, err)
			}
			answered++
		}
		messages := 0
		for line := range bytes.Lines(in) {
			if line = bytes.TrimSpace(line); len(line) == 0 || line[0] == '[' {
				continue
			}
			if m, err := wire.ParseMessage(line); err != nil || m.IsRequest() {
				messages++
			}
		}
		if answered < messages {
			t.Fatalf("%d answers to %d messages that need one", answered, messages)
		}
	})
}

// stdioPipe starts a connection and returns its two ends; stop ends it cleanly.
func stdioPipe(t *testing.T, c Router) (in io.Writer, out *bufio.Reader, stop func()) {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- ServeStdio(t.Context(), c, inR, outW, testLog(t)) }()
	return inW, bufio.NewReader(outR), func() {
		inW.Close()
		if err := <-done; err != nil {
			t.Errorf("serveStdio = %v", err)
		}
	}
}

func readLineOf(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	line, err := r.ReadString('\n')
	if err != nil {
		t.Fatalf("reading a line: %v", err)
	}
	return line
}

// asker is a core's serve that asks the host about every call, with the request
// id "ask-<id of the call>", and returns the host's answer as the result.
type asker struct {
	mu      sync.Mutex
	waiting map[string]chan wire.Message
}

func newAsker() *asker { return &asker{waiting: map[string]chan wire.Message{}} }

func (a *asker) serve(ctx context.Context, ex *Request) wire.Message {
	if ex.Msg.Method == "initialize" {
		return echo(ctx, ex)
	}
	id := fmt.Sprintf(`"ask-%s"`, ex.Msg.ID)
	ch := make(chan wire.Message, 1)
	a.mu.Lock()
	a.waiting[id] = ch
	a.mu.Unlock()
	ask := wire.Message{ID: json.RawMessage(id), Method: "elicitation/create", Params: json.RawMessage(`{}`)}
	if err := ex.Emit(ask.Encode()); err != nil {
		return wire.Message{Error: (&wire.Error{Code: wire.CodeInternal, Message: err.Error()}).JSON()}
	}
	select {
	case m := <-ch:
		return wire.Message{Result: m.Result}
	case <-ctx.Done():
		return wire.Message{}
	}
}

// route hands the answers to the calls that wait for them.
func (a *asker) route(answers <-chan wire.Message) {
	for m := range answers {
		a.mu.Lock()
		ch := a.waiting[string(m.ID)]
		a.mu.Unlock()
		if ch != nil {
			ch <- m
		}
	}
}
