package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"

	"github.com/google/go-cmp/cmp"
)

type sseGot struct {
	Name, Data, ID string
	Retry          time.Duration
}

// readSSE reads all events of r.
func readSSE(r io.Reader, max int) []sseGot {
	var got []sseGot
	var pos position
	p := newEventReader(r, max, &pos)
	for {
		ev, err := p.next()
		if err != nil {
			return got
		}
		data := string(ev.data.Head)
		if ev.data.Tail != nil {
			data = "too large"
		}
		got = append(got, sseGot{ev.name, data, pos.id, pos.retry})
	}
}

func TestEventReader(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []sseGot
	}{
		{"simple", "data: x\n\n", []sseGot{{Data: "x"}}},
		{"fields", "event: message\nid: 7\nretry: 1500\ndata: {}\n\n", []sseGot{{"message", "{}", "7", 1500 * time.Millisecond}}},
		{"id stays, name does not", "event: a\nid: 1\ndata: x\n\ndata: y\n\n", []sseGot{{Name: "a", Data: "x", ID: "1"}, {Data: "y", ID: "1"}}},
		{"one space only", "data:x\n\ndata:  y\n\n", []sseGot{{Data: "x"}, {Data: " y"}}},
		{"lines", "data: a\ndata\ndata: b\n\n", []sseGot{{Data: "a\n\nb"}}},
		{"empty data", "id: p\ndata:\n\n", []sseGot{{ID: "p"}}},
		{"no data", "event: x\nid: 3\n\ndata: y\n\n", []sseGot{{Data: "y", ID: "3"}}},
		{"comments", ": hi\n:\n\ndata: x\n: data: z\n\n", []sseGot{{Data: "x"}}},
		{"unknown", "foo: 1\ndatadatadatadatadatadata: 2\ndata: x\n\n", []sseGot{{Data: "x"}}},
		{"CRLF", "data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", []sseGot{{Data: "a\nb"}, {Data: "c"}}},
		{"CR", "data: a\rdata: b\r\rdata: c\r\r", []sseGot{{Data: "a\nb"}, {Data: "c"}}},
		{"mark", "\xef\xbb\xbfdata: x\n\n", []sseGot{{Data: "x"}}},
		{"mark only at the start", "data: x\n\n\xef\xbb\xbfdata: y\n\n", []sseGot{{Data: "x"}}},
		{"cut", "data: x\n\ndata: y\n", []sseGot{{Data: "x"}}},
		{"null in id", "id: a\x00b\ndata: x\n\n", []sseGot{{Data: "x"}}},
		{"id that no header can hold", "id: 1\ndata: x\n\nid: a\x01b\ndata: y\n\n", []sseGot{{Data: "x", ID: "1"}, {Data: "y", ID: "1"}}},
		{"id with a tab", "id: a\tb\u0080\ndata: x\n\n", []sseGot{{Data: "x", ID: "a\tb\u0080"}}},
		{"bad retry", "retry: -1\nretry: 1e3\nretry: 99999999999\ndata: x\n\n", []sseGot{{Data: "x"}}},
		{"colon in data", "data: a:b\n\n", []sseGot{{Data: "a:b"}}},
		{"too large", "data: " + strings.Repeat("x", 101) + "\n\ndata: y\n\n", []sseGot{{Data: "too large"}, {Data: "y"}}},
		{"too large in lines", strings.Repeat("data: xxxxxxxxx\n", 11) + "\ndata: y\n\n", []sseGot{{Data: "too large"}, {Data: "y"}}},
		{"long id", "id: " + strings.Repeat("x", 5000) + "\ndata: y\n\n", []sseGot{{Data: "y"}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, readSSE(strings.NewReader(tt.in), 100)); diff != "" {
				t.Errorf("at once (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tt.want, readSSE(iotest.OneByteReader(strings.NewReader(tt.in)), 100)); diff != "" {
				t.Errorf("byte by byte (-want +got)\n%s", diff)
			}
		})
	}
}

// naiveSSE is the standard's algorithm on a complete input, written for
// clarity: what eventReader must agree with.
func naiveSSE(in string, max int) []sseGot {
	var got []sseGot
	in = strings.TrimPrefix(in, sseByteOrder)
	in = strings.ReplaceAll(strings.ReplaceAll(in, "\r\n", "\n"), "\r", "\n")
	var cur sseGot
	var data []string
	id, name := "", ""
	lines := strings.Split(in, "\n")
	for _, line := range lines[:len(lines)-1] {
		if line == "" {
			cur.ID = id
			if data != nil {
				cur.Name, cur.Data = name, strings.Join(data, "\n")
				if len(cur.Data) > max {
					cur.Data = "too large"
				}
				got = append(got, cur)
			}
			data, name = nil, ""
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		if field != "data" && len(value) > sseMaxValue {
			continue
		}
		switch field {
		case "data":
			data = append(data, value)
		case "event":
			name = value
		case "id":
			if !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
				id = value
			}
		case "retry":
			var pos position
			p := newEventReader(strings.NewReader("retry:"+value+"\ndata:\n\n"), 1, &pos)
			if p.next(); pos.retry > 0 || value == "0" {
				cur.Retry = pos.retry
			}
		}
	}
	return got
}

// FuzzEventReader: the reader agrees with a plain implementation of the standard,
// however the input is cut into reads.
func FuzzEventReader(f *testing.F) {
	f.Add("data: x\r\n\r\nid: 1\revent: e\r\rretry: 12\n: c\ndata\n\n", 10)
	f.Add("\xef\xbb\xbfdata:1234567890\ndata:1\n\ndata", 5)
	f.Fuzz(func(t *testing.T, in string, max int) {
		if max < 0 || max > 1<<20 || strings.Contains(in, "retry") && strings.Contains(in, "\x00") {
			t.Skip()
		}
		whole := readSSE(strings.NewReader(in), max)
		if diff := cmp.Diff(whole, readSSE(iotest.HalfReader(iotest.OneByteReader(strings.NewReader(in))), max)); diff != "" {
			t.Errorf("readSSE(%q) depends on how it is read:\n%s", in, diff)
		}
		if strings.Contains(in, "retry") { // naiveSSE borrows our reading of numbers
			return
		}
		if diff := cmp.Diff(naiveSSE(in, max), whole); diff != "" {
			t.Errorf("readSSE(%q, %d) (-want +got)\n%s", in, max, diff)
		}
	})
}

// However a server spells the id of its answer, and whatever stands around it on the line, the call
// ends at once.
func TestReceiveSpellings(t *testing.T) {
	ids := []string{`1`, `1.0`, `1.000`, `1e0`, `1E+0`, `10e-1`, `0.1e1`, `"1"`, `"1.0"`, `"1e0"`}
	around := []string{"A", "\ufeffA", " \ufeff A\r", "[A]", "\ufeff[A]", "AN", "NA", "N A", "A garbage", `NNA{"x`, "\ufeffN\ufeffA"}
	for _, id := range ids {
		for _, form := range around {
			for _, outcome := range []string{`"result":{}`, `"error":{"code":1,"message":"m"}`} {
				line := strings.NewReplacer("A", `{"jsonrpc":"2.0","id":`+id+`,`+outcome+`}`, "N", `{"jsonrpc":"2.0","method":"x"}`).Replace(form)
				for _, borrowed := range []bool{true, false} {
					in := connection{queues: true}
					refused := refusals(0)
					in.init(&Config{Handler: handles(func(wire.Message) {}), Log: quiet}, &refused)
					c, _, _ := in.calls.begin(&conn.Request{Method: "tools/call"})
					in.receive([]byte(line), borrowed, nil)
					if in.calls.abandon(c) {
						t.Errorf("%s, borrowed %v: the call goes on", line, borrowed)
					}
				}
			}
		}
	}
}

// A line of many values costs a moment, not the stack.
func TestReceiveManyValues(t *testing.T) {
	in := connection{queues: true}
	refused := refusals(0)
	got := 0
	in.init(&Config{Handler: handles(func(wire.Message) { got++ }), Log: quiet}, &refused)
	in.receive([]byte(strings.Repeat(`{"jsonrpc":"2.0","method":"x"}`, 100_000)+strings.Repeat("{}", 1_000_000)), false, nil)
	if got != 100_000 {
		t.Errorf("%d of 100,000 notifications arrived", got)
	}
}

// FuzzReceive: no bytes of an upstream make the reader panic, and a request is
// always answered or handed on.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`), true)
	f.Add([]byte(`[{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}]`), false)
	f.Add([]byte(`{"jsonrpc":"2.0","method":"m","id":"q","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":2}}}`), true)
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`), true)
	f.Fuzz(func(t *testing.T, raw []byte, modern bool) {
		handled := 0
		cfg := &Config{Host: conn.Host{Shared: modern}, Handler: handles(func(m wire.Message) {
			if handled++; !m.IsRequest() && !m.IsNotification() {
				t.Errorf("Handle(%+v)", m)
			}
		}), Log: quiet}
		in := connection{queues: true}
		refused := refusals(0)
		in.init(cfg, &refused)
		if modern {
			in.setInfo(conn.Info{Version: wire.VersionModern})
		}
		f1, _, _ := in.calls.begin(&conn.Request{Method: "tools/call"})
		f2, _, _ := in.calls.begin(&conn.Request{Method: wire.MethodListen})
		in.receive(bytes.Clone(raw), false, nil)
		for _, f := range []*call{f1, f2} {
			if !in.calls.abandon(f) {
				<-f.done
				if f.err == nil && (f.response.Result == nil) == (f.response.Error == nil) {
					t.Errorf("outcome %+v", f.response)
				}
				if f.err != nil && !errors.Is(f.err, errUnreadable) && !errors.Is(f.err, errListenEnded) {
					t.Errorf("outcome %v", f.err)
				}
			}
		}
		if m, err := wire.ParseMessage(raw); err == nil && m.IsRequest() && !modern && handled+int(refused) != 1 {
			t.Errorf("request handled %d times, refused %d times", handled, refused)
		}
	})
}

// refusals counts the requests that are refused.
type refusals int

func (n *refusals) send(context.Context, wire.Message, *call) error { *n++; return nil }

// TestRetryIsRespected: a stream is not opened again earlier than its server wants, as the protocol
// demands, and by the first attempt not later either. No server makes foldgate open more than ten in a second.
func TestRetryIsRespected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for ms := 1; ms < int(sseMaxRetry/time.Millisecond); ms *= 3 {
			for n := range 4 {
				retry, start := time.Duration(ms)*time.Millisecond, time.Now()
				if err := (position{retry: retry}).wait(t.Context(), n); err != nil {
					t.Fatal(err)
				}
				if waited, least := time.Since(start), max(retry, retryMin); waited < least || n == 0 && waited > least {
					t.Errorf("retry %v, attempt %d: waited %v", retry, n, waited)
				}
			}
		}
	})
}

// A GET stream that ended without an event, but after a while, is opened again at once, however often: a proxy may end
// those that are quiet, and what a server says meanwhile is lost.
func TestQuietStreamIsOpenedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHTTPConn(&Config{Log: testLog(t), URL: "http://server.test", MaxMessage: 1000})
		streams := 0
		h.client.Transport = transportFunc(func(r *http.Request) (*http.Response, error) {
			streams++
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {mediaEvents}}, Body: quietBody{}, Request: r}, nil
		})
		h.start()
		time.Sleep(time.Hour)
		h.Close()
		if least := int(time.Hour / (time.Minute + retryDefault)); streams < least {
			t.Errorf("%d streams of a minute in an hour, want at least %d", streams, least)
		}
	})
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// quietBody ends after a minute.
type quietBody struct{}

func (quietBody) Read([]byte) (int, error) { time.Sleep(time.Minute); return 0, io.EOF }
func (quietBody) Close() error             { return nil }
