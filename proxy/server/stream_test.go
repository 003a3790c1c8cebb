package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/proxy/wire"
)

// 64 calls that each ask the host, on 64 POSTs and with no GET stream: each
// question comes on the stream of its own call.
func TestLegacyElicitations(t *testing.T) {
	const n = 64
	asked := newAsker()
	c := newFakeRouter(asked.serve)
	_, url := startServer(t, c, HTTPOptions{})
	go asked.route(c.answers)
	session := openHost(t, url)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			resp, err := http.DefaultClient.Do(hostRequest(t, "POST", url, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call"}`, i), wire.HeaderSession, session))
			if err != nil {
				t.Errorf("call %d: %v", i, err)
				return
			}
			defer resp.Body.Close()
			for s := newSSEReader(t, resp); ; {
				ev, ok := s.next()
				if !ok {
					t.Errorf("call %d: the stream ended without a reply", i)
					return
				}
				if ev.data == "" { // priming
					continue
				}
				m, err := wire.ParseMessage([]byte(ev.data))
				if err != nil {
					t.Errorf("call %d: event %q: %v", i, ev.data, err)
					return
				}
				if m.IsResponse() {
					if want := fmt.Sprintf(`{"for":"ask-%d"}`, i); string(m.Result) != want {
						t.Errorf("call %d = %s, want %s", i, m.Result, want)
					}
					return
				}
				if want := fmt.Sprintf(`"ask-%d"`, i); string(m.ID) != want {
					t.Errorf("call %d was asked %s, want %s", i, m.ID, want)
				}
				answer, err := http.DefaultClient.Do(hostRequest(t, "POST", url, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"for":%s}}`, m.ID, m.ID), wire.HeaderSession, session))
				if err != nil {
					t.Errorf("answer %d: %v", i, err)
					return
				}
				answer.Body.Close()
			}
		})
	}
	wg.Wait()
	close(c.answers)
}

// later sends a request whose answer the caller reads when it comes.
func later(t *testing.T, r *http.Request) <-chan *http.Response {
	ch := make(chan *http.Response, 1)
	go func() {
		resp, err := http.DefaultClient.Do(r)
		if err != nil && r.Context().Err() == nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		ch <- resp
	}()
	return ch
}

// A plain reply while another call of the session has its stream open.
func TestLegacyPlainReplyBesideStream(t *testing.T) {
	g := newGate()
	_, url := startServer(t, g, HTTPOptions{})
	id := openHost(t, url)
	first := later(t, hostRequest(t, "POST", url, waitCall, wire.HeaderSession, id))
	ex := <-g.started
	if err := ex.Emit([]byte(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}`)); err != nil {
		t.Fatal(err)
	}
	if _, body, h := hostAnswer(t, hostRequest(t, "POST", url, `{"jsonrpc":"2.0","id":8,"method":"ping"}`, wire.HeaderSession, id)); h.Get("Content-Type") != "application/json" {
		t.Errorf("second call = %s %s, want plain JSON", h.Get("Content-Type"), body)
	}
	g.release <- doneReply
	resp := <-first
	defer resp.Body.Close()
	s := newSSEReader(t, resp)
	if ev := s.want(""); ev.id != "2-0" || ev.retry == "" {
		t.Errorf("priming event = %+v, want id 2-0 and a retry", ev)
	}
	if ev := s.want(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create"}`); ev.id != "2-1" {
		t.Errorf("first event id = %q, want 2-1", ev.id)
	}
	s.want(doneText)
	if ev, ok := s.next(); ok {
		t.Errorf("event after the reply: %+v", ev)
	}
}

func TestLegacyResume(t *testing.T) {
	g := newGate()
	e, url := startServer(t, g, HTTPOptions{})
	id := openHost(t, url)
	ctx, leave := context.WithCancel(t.Context())
	first := later(t, hostRequest(t, "POST", url, waitCall, wire.HeaderSession, id).WithContext(ctx))
	ex := <-g.started
	_ = ex.Emit([]byte(`{"n":1}`))
	resp := <-first
	s := newSSEReader(t, resp)
	prime := s.want("")
	one := s.want(`{"n":1}`)
	leave() // the connection breaks, the call goes on
	resp.Body.Close()

	if err := ex.Emit([]byte(`{"n":2}`)); err != nil {
		t.Fatalf("Emit while nobody is connected = %v, want it kept", err)
	}
	resume := func(last string) *sseReader {
		return newSSEReader(t, hostDo(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id, wire.HeaderLastEvent, last)))
	}
	s = resume(one.id)
	s.want("")
	s.want(`{"n":2}`)
	_ = ex.Emit([]byte(`{"n":3}`))
	s.want(`{"n":3}`)
	took := resume(one.id) // the host noticed a broken connection before we did
	took.want("")
	took.want(`{"n":2}`)
	took.want(`{"n":3}`)
	if ev, ok := s.next(); ok {
		t.Errorf("the connection that was taken over got %+v, want its end", ev)
	}
	g.release <- doneReply
	took.want(doneText)
	if _, ok := took.next(); ok {
		t.Error("the stream goes on after the reply")
	}
	again := resume(prime.id) // the reply was lost on the way
	again.want("")
	for _, want := range []string{`{"n":1}`, `{"n":2}`, `{"n":3}`, doneText} {
		again.want(want)
	}
	for _, bad := range []string{"2-99", "77-0", "x", "2", "-1", "2-18446744073709551615"} {
		if status, _, _ := hostAnswer(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id, wire.HeaderLastEvent, bad)); status != 400 {
			t.Errorf("Last-Event-ID %q = %d, want 400", bad, status)
		}
	}
	l := e.allSessions()[0]
	for ended, begin := false, time.Now(); !ended; time.Sleep(time.Millisecond) { // a moment after the reply
		if time.Since(begin) > time.Minute {
			t.Fatal("the stream has not ended after its reply")
		}
		l.mu.Lock()
		if ended = len(l.ended) > 0; ended {
			l.ended[0].ended = time.Now().Add(-eventTTL)
		}
		l.mu.Unlock()
	}
	if status, _, _ := hostAnswer(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id, wire.HeaderLastEvent, prime.id)); status != 400 {
		t.Errorf("resuming after the time to live = %d, want 400", status)
	}
}

// A reply that follows an event at once can be resumed as others can.
func TestLegacyResumeOfQuickReply(t *testing.T) {
	c := newFakeRouter(func(ctx context.Context, ex *Request) wire.Message {
		if ex.Msg.Method == "wait" {
			_ = ex.Emit([]byte(`{"n":1}`))
			return doneReply
		}
		return echo(ctx, ex)
	})
	_, url := startServer(t, c, HTTPOptions{})
	id := openHost(t, url)
	for range 20 {
		s := newSSEReader(t, hostDo(t, hostRequest(t, "POST", url, waitCall, wire.HeaderSession, id)))
		prime := s.want("")
		s.want(`{"n":1}`)
		s.want(doneText)
		s = newSSEReader(t, hostDo(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id, wire.HeaderLastEvent, prime.id)))
		s.want("")
		s.want(`{"n":1}`)
		s.want(doneText)
	}
}

// A legacy host that leaves before anything was sent: the call goes on, and what
// it sends waits for the GET stream.
func TestLegacyDisconnectIsNoCancel(t *testing.T) {
	bubble(t, HTTPOptions{}, func(t *testing.T, g *gate, e *HTTP) {
		id := openIn(t, e)
		ctx, leave := context.WithCancel(t.Context())
		conn, wait := serveIn(t, e, hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, id).WithContext(ctx))
		ex := <-g.started
		leave()
		synctest.Wait()
		if n := g.serving.Load(); n != 1 || conn.code() != 0 {
			t.Fatalf("%d calls running, answer %d, want 1 running and no answer", n, conn.code())
		}
		if err := ex.Emit([]byte(`{"n":1}`)); err != nil {
			t.Errorf("Emit after the host left = %v", err)
		}
		get, _ := serveIn(t, e, hostRequest(t, "GET", localURL, "", wire.HeaderSession, id))
		if !strings.Contains(get.text(), `{"n":1}`) {
			t.Errorf("GET stream = %q, want what the call sent", get.text())
		}
		g.release <- doneReply
		wait()
		if conn.code() != 499 {
			t.Errorf("answer %d to a host that left", conn.code())
		}
	})
}

func TestLegacyGetStream(t *testing.T) {
	g := newGate()
	_, url := startServer(t, g, HTTPOptions{})
	id := openHost(t, url)
	push := g.lastPeer().Push
	_ = push([]byte(`{"n":1}`)) // kept until a GET stream comes
	_ = push([]byte("{\"n\":\r\n2}"))
	ctx, leave := context.WithCancel(t.Context())
	resp := hostDo(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id).WithContext(ctx))
	s := newSSEReader(t, resp)
	if ev := s.want(""); ev.id != "0-0" {
		t.Errorf("priming id = %q, want 0-0", ev.id)
	}
	s.want(`{"n":1}`)
	last := s.want(`{"n":  2}`)
	if status, _, _ := hostAnswer(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id)); status != 409 {
		t.Errorf("second GET = %d, want 409", status)
	}
	post := later(t, hostRequest(t, "POST", url, waitCall, wire.HeaderSession, id))
	<-g.started
	_ = push([]byte(`{"n":3}`)) // the GET stream comes before an open POST
	s.want(`{"n":3}`)
	g.release <- doneReply
	if r := <-post; r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("POST beside a GET stream = %s, want plain JSON", r.Header.Get("Content-Type"))
	} else {
		r.Body.Close()
	}
	leave()
	resp = hostDo(t, hostRequest(t, "GET", url, "", wire.HeaderSession, id, wire.HeaderLastEvent, last.id))
	s = newSSEReader(t, resp)
	s.want("")
	s.want(`{"n":3}`)
	if status, _, _ := hostAnswer(t, hostRequest(t, "DELETE", url, "", wire.HeaderSession, id)); status != 204 {
		t.Errorf("DELETE = %d", status)
	}
	if ev, ok := s.next(); ok {
		t.Errorf("after DELETE: %+v, want the end of the stream", ev)
	}
	if err := push([]byte("{}")); !errors.Is(err, errHostSessionClosed) {
		t.Errorf("Push after DELETE = %v, want %v", err, errHostSessionClosed)
	}
}

// Without a GET stream a message of no call takes a POST that waits.
func TestLegacyPushOnPost(t *testing.T) {
	g := newGate()
	_, url := startServer(t, g, HTTPOptions{})
	id := openHost(t, url)
	push := g.lastPeer().Push
	post := later(t, hostRequest(t, "POST", url, waitCall, wire.HeaderSession, id))
	<-g.started
	if err := push([]byte(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)); err != nil {
		t.Fatal(err)
	}
	resp := <-post
	defer resp.Body.Close()
	s := newSSEReader(t, resp)
	s.want("")
	s.want(`{"jsonrpc":"2.0","id":"r","method":"roots/list"}`)
	g.release <- doneReply
	s.want(doneText)
}

func TestKeepDropsOldestNotification(t *testing.T) {
	s := &stream{resume: true, limit: 100}
	big := func(head string) []byte { return []byte(head + strings.Repeat(" ", 60) + "}") }
	for _, head := range []string{`{"id":1`, `{"method":"a"`, `{"method":"b"`} {
		if _, err := s.keep(big(head)); err != nil {
			t.Fatalf("keep(%s) = %v", head, err)
		}
	}
	if got := len(s.events); got != 2 {
		t.Fatalf("%d events wait, want the request and the newer notification", got)
	}
	if dropped, err := s.keep(big(`{"id":2`)); err != nil || !strings.HasPrefix(string(dropped), `{"method":"b"`) {
		t.Errorf("keep of a request dropped %q, %v, want the notification", dropped, err)
	}
	if _, err := s.keep(big(`{"id":3`)); !errors.Is(err, errSlowHost) {
		t.Errorf("keep beside requests only = %v, want %v", err, errSlowHost)
	}
}

// The limits count the length of events, so no event is stored in much more memory.
func TestKeptRepliesFit(t *testing.T) {
	for _, events := range []int{0, 1} {
		s, _ := newStream(t.Context(), 1, 3, 1<<20, true, nil)
		for range events {
			if err := s.emit([]byte(`{}`)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			s.finish(Reply{Message: wire.Message{ID: []byte("7"), Result: doneReply.Result}})
		}
		if kept := len(s.events) + len(s.replies); kept != events+2 {
			t.Fatalf("%d messages are kept, want %d", kept, events+2)
		}
		s.begin()
		for _, msg := range s.events {
			if cap(msg) > 1024 {
				t.Errorf("after %d events a reply of %d bytes is kept in %d", events, len(msg), cap(msg))
			}
		}
	}
}

func TestSilentCallBecomesStream(t *testing.T) {
	bubble(t, HTTPOptions{}, func(t *testing.T, g *gate, e *HTTP) {
		for _, r := range []*http.Request{
			hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, openIn(t, e)),
			modernRequest(t, localURL, "wait", ""),
		} {
			c, wait := serveIn(t, e, r)
			<-g.started
			time.Sleep(5*time.Second - 1)
			synctest.Wait()
			if c.code() != 0 {
				t.Fatal("the answer began before 5 s")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if _, h := c.head(); h.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("after 5 s: %v, want an event stream", h)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if n := strings.Count(c.text(), ": keep-alive\n\n"); n != 4 {
				t.Errorf("%d keep-alive comments in a minute, want 4", n)
			}
			g.release <- doneReply
			wait()
			if !strings.Contains(c.text(), `"result":"done"`) {
				t.Errorf("stream = %q, want the reply in it", c.text())
			}
		}
	})
}

// A host that never reads its stream: Emit refuses at the bound and never
// blocks, the write gives up at its deadline, the reply is kept to be resumed.
func TestHostNeverReads(t *testing.T) {
	for _, era := range []string{"legacy", "modern"} {
		t.Run(era, func(t *testing.T) {
			bubble(t, HTTPOptions{MaxQueue: 1000}, func(t *testing.T, g *gate, e *HTTP) {
				r := modernRequest(t, localURL, "wait", "")
				if era == "legacy" {
					r = hostRequest(t, "POST", localURL, waitCall, wire.HeaderSession, openIn(t, e))
				}
				conn := &fakeConn{blocked: make(chan struct{})}
				done := make(chan struct{})
				go func() { defer close(done); e.ServeHTTP(conn, r) }()
				ex := <-g.started
				start := time.Now()
				var err error
				for range 100 {
					if err = ex.Emit([]byte(strings.Repeat("x", 100))); err != nil {
						break
					}
					synctest.Wait()
				}
				if !errors.Is(err, errSlowHost) || time.Since(start) != 0 {
					t.Errorf("Emit = %v after %v, want %v at once", err, time.Since(start), errSlowHost)
				}
				if era == "legacy" {
					g.release <- doneReply
				}
				<-done // modern: the call is cancelled when the write gives up
				if d := time.Since(start); d != ioTimeout {
					t.Errorf("gave up after %v, want %v", d, ioTimeout)
				}
				if n := g.serving.Load(); n != 0 {
					t.Errorf("%d calls are left", n)
				}
			})
		})
	}
}

// What is sent after the host has left waits for its next GET stream: the connection that is ending does
// not take it.
func TestEventsWaitForTheNextConnection(t *testing.T) {
	s := &stream{resume: true, limit: 1 << 20}
	host, leave := context.WithCancel(t.Context())
	c := s.attach(host, nil)
	if _, err := s.keep([]byte(`"first"`)); err != nil {
		t.Fatal(err)
	}
	if _, events, more := s.next(c); len(events) != 1 || !more {
		t.Fatalf("next = %q, %v, want one event and more", events, more)
	}
	leave()
	if s.attached() {
		t.Error("the stream has a connection whose host has left")
	}
	if _, err := s.keep([]byte(`"second"`)); err != nil {
		t.Fatal(err)
	}
	if _, events, more := s.next(c); len(events) > 0 || more {
		t.Errorf("next for the host that left = %q, %v, want nothing", events, more)
	}
	if _, events, _ := s.next(s.attach(t.Context(), nil)); len(events) != 1 || string(events[0]) != `"second"` {
		t.Errorf("next for the next connection = %q, want the second event", events)
	}
}
