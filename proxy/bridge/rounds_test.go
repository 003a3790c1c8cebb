package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// modernConn is a modern server inside the test.
type modernConn struct{ fakeConn }

func (c *modernConn) Info() conn.Info {
	return conn.Info{Version: wire.VersionModern, Result: json.RawMessage(`{"capabilities":{}}`)}
}

// messages takes messages of a server and keeps them.
type messages chan wire.Message

func (m messages) Unsolicited(msg wire.Message) { m <- msg }
func (m messages) Undelivered(conn.Undelivered) {}
func (m messages) Message(msg wire.Message)     { m <- msg }
func (m messages) ResponseArrived(wire.Message) {}

// A log message that names no request belongs to the only request that may get it, at a server of
// either era. A change of a list concerns all hosts.
func TestUnattributedNotifications(t *testing.T) {
	for name, server := range map[string]interface {
		conn.Conn
		serveWith(func(context.Context, *conn.Request) (wire.Message, error))
	}{"legacy": &fakeConn{}, "modern": &modernConn{}} {
		hosts, own := make(messages, 10), make(messages, 10)
		c, h := newBridge(t).Wrap("up", conn.Host{Shared: true}, server, hosts)
		server.serveWith(func(context.Context, *conn.Request) (wire.Message, error) {
			for _, method := range []string{wire.MethodLogMessage, "notifications/tools/list_changed"} {
				h.Unsolicited(wire.Message{Method: method, Params: json.RawMessage(`{"level":"error"}`)})
			}
			return wire.Message{Result: json.RawMessage(`{}`)}, nil
		})
		r := roundOf(`{"name":"greet","_meta":{"` + wire.MetaLogLevel + `":"info"}}`)
		r.Receiver = own
		if _, err := c.Call(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if len(own) != 1 || len(hosts) != 1 {
			t.Fatalf("%s: the request gets %d messages and all hosts %d, want one each", name, len(own), len(hosts))
		}
		if m := <-hosts; m.Method != "notifications/tools/list_changed" {
			t.Errorf("%s: all hosts get %s", name, m.Method)
		}
	}
}

// A call may take as long as it likes. Only a host that does not come back is given up.
func TestSuspendedCallExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan error, 1)
		c := &fakeConn{replies: make(chan wire.Message, 1), serve: func(ctx context.Context, r *conn.Request) (wire.Message, error) {
			time.Sleep(2 * suspendedFor)
			r.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create"})
			<-ctx.Done()
			end <- context.Cause(ctx)
			return wire.Message{}, context.Cause(ctx)
		}}
		s := newBridge(t).legacy(t, c)
		m, err := s.Call(t.Context(), roundOf(`{`+elicitMeta+`}`))
		if kind, _ := rawjson.GetString(m.Result, "resultType"); err != nil || kind != "input_required" {
			t.Fatalf("the call ends with %s, %v, want the question", m.Result, err)
		}
		time.Sleep(suspendedFor - time.Second)
		synctest.Wait()
		if len(end) > 0 {
			t.Fatalf("the call ends with %v before its time", <-end)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(end) == 0 {
			t.Fatal("the call goes on after its time")
		}
		if err := <-end; !strings.Contains(err.Error(), "did not come back") {
			t.Errorf("the call that was given up ends with %v", err)
		}
	})
}

// An update that comes with the answer to the subscription reaches the listen.
func TestListenMissesNoUpdate(t *testing.T) {
	got := make(messages, 10)
	c := &fakeConn{}
	b := newBridge(t)
	s := b.legacy(t, c)
	c.serve = func(_ context.Context, r *conn.Request) (wire.Message, error) {
		if r.Method == "resources/subscribe" {
			s.Unsolicited(wire.Message{Method: wire.MethodResourceUpdated, Params: json.RawMessage(`{"uri":"a:b"}`)})
		}
		return wire.Message{Result: json.RawMessage(`{}`)}, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := s.Call(ctx, &conn.Request{Method: wire.MethodListen, Params: json.RawMessage(`{"notifications":{"resourceSubscriptions":["a:b"]}}`), Receiver: got})
		done <- err
	}()
	for _, want := range []string{wire.MethodResourceUpdated, wire.MethodAcknowledged} {
		if m := <-got; m.Method != want {
			t.Errorf("the listen gets %s, want %s", m.Method, want)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) || len(s.listening) != 0 {
		t.Errorf("the listen ends with %v and leaves %d", err, len(s.listening))
	}
}

// A host with a subscription on a connection that was lost may have missed an update.
func TestRestoredSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &modernConn{fakeConn{serve: func(ctx context.Context, r *conn.Request) (wire.Message, error) {
			r.Receiver.Message(wire.Message{Method: wire.MethodAcknowledged})
			<-ctx.Done()
			return wire.Message{}, context.Cause(ctx)
		}}}
		hosts := make(messages, 10)
		c, _ := newBridge(t).Wrap("up", conn.Host{}, server, hosts)
		for _, restored := range []bool{false, true} {
			r := &conn.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"first"}`), Call: &interceptor.Call{}}
			if restored {
				r.Params, r.Call = json.RawMessage(`{"uri":"second"}`), nil
			}
			if _, err := c.Call(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if m := <-hosts; len(hosts) != 0 || m.Method != wire.MethodResourceUpdated || string(m.Params) != `{"uri":"second"}` {
			t.Errorf("the host is told %s %s and %d more, want an update of the second resource", m.Method, m.Params, len(hosts))
		}
	})
}

// A subscription that the server refuses can be made again.
func TestRefusedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		server := &modernConn{fakeConn{serve: func(context.Context, *conn.Request) (wire.Message, error) {
			asked++
			return wire.Message{Error: json.RawMessage(`{"code":-32603,"message":"not now"}`)}, nil
		}}}
		c, _ := newBridge(t).Wrap("up", conn.Host{}, server, drop{})
		for range 2 {
			r := &conn.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a:b"}`), Call: &interceptor.Call{}}
			if m, err := c.Call(t.Context(), r); err != nil || string(m.Error) != `{"code":-32603,"message":"not now"}` {
				t.Fatalf("the host is told %s%s, %v; want the refusal", m.Result, m.Error, err)
			}
		}
		if asked != 2 {
			t.Errorf("the server is asked %d times, want 2", asked)
		}
	})
}

// A subscription that is made while another to the same resource waits has the fate of the other. One
// that the host cancels does not end the other.
func TestSubscriptionsAtOnce(t *testing.T) {
	const refusal = `{"code":-32603,"message":"not now"}`
	for _, refuses := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			server := &modernConn{fakeConn{serve: func(ctx context.Context, r *conn.Request) (wire.Message, error) {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
					return wire.Message{}, context.Cause(ctx)
				}
				if refuses {
					return wire.Message{Error: json.RawMessage(refusal)}, nil
				}
				r.Receiver.Message(wire.Message{Method: wire.MethodAcknowledged})
				r.Receiver.Message(wire.ResourceUpdated("a:b"))
				<-ctx.Done()
				return wire.Message{}, context.Cause(ctx)
			}}}
			hosts := make(messages, 10)
			c, _ := newBridge(t).Wrap("up", conn.Host{}, server, hosts)
			subscribe := func(ctx context.Context) (string, error) {
				m, err := c.Call(ctx, &conn.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a:b"}`), Call: &interceptor.Call{}})
				return string(m.Error), err
			}
			cancelled, cancel := context.WithCancel(t.Context())
			first := make(chan error, 1)
			go func() {
				_, err := subscribe(cancelled)
				first <- err
			}()
			synctest.Wait()
			time.AfterFunc(time.Second/2, cancel)
			got, err := subscribe(t.Context())
			if err != nil || got != map[bool]string{true: refusal}[refuses] {
				t.Errorf("the server refuses: %v; the second subscription ends with %q, %v", refuses, got, err)
			}
			if err := <-first; !errors.Is(err, context.Canceled) {
				t.Errorf("the first subscription ends with %v", err)
			}
			synctest.Wait()
			if want := map[bool]int{false: 1}[refuses]; len(hosts) != want {
				t.Errorf("the server refuses: %v; the host hears of %d updates, want %d", refuses, len(hosts), want)
			}
			_, _ = c.Call(t.Context(), &conn.Request{Method: "resources/unsubscribe", Params: json.RawMessage(`{"uri":"a:b"}`), Call: &interceptor.Call{}})
		})
	}
}

// A subscription that the server does not acknowledge counts as made after a while. One whose connection
// ends before fails.
func TestUnacknowledgedSubscription(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := &modernConn{fakeConn{gone: make(chan struct{})}}
			server.serve = func(ctx context.Context, _ *conn.Request) (wire.Message, error) {
				if dies {
					time.Sleep(time.Second)
					close(server.gone)
				}
				<-ctx.Done()
				return wire.Message{}, context.Cause(ctx)
			}
			c, _ := newBridge(t).Wrap("up", conn.Host{}, server, drop{})
			start := time.Now()
			_, err := c.Call(t.Context(), &conn.Request{Method: "resources/subscribe", Params: json.RawMessage(`{"uri":"a:b"}`), Call: &interceptor.Call{}})
			if took := time.Since(start); dies != errors.Is(err, conn.ErrClosed) || !dies && (err != nil || took != followWait) {
				t.Errorf("the connection dies: %v; the subscription ends with %v after %v", dies, err, took)
			}
			_, _ = c.Call(t.Context(), &conn.Request{Method: "resources/unsubscribe", Params: json.RawMessage(`{"uri":"a:b"}`), Call: &interceptor.Call{}})
		})
	}
}

// A question that the host declines fails the call, in the host's own words.
func TestDeclinedQuestion(t *testing.T) {
	server := &modernConn{fakeConn{serve: func(context.Context, *conn.Request) (wire.Message, error) {
		return wire.Message{Result: json.RawMessage(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create"}}}`)}, nil
	}}}
	c, _ := newBridge(t).Wrap("up", conn.Host{}, server, drop{})
	asked := make(messages, 1)
	r := roundOf(`{"name":"greet"}`)
	r.Receiver = asked
	go func() {
		_ = c.Send(context.Background(), wire.Message{ID: (<-asked).ID, Error: json.RawMessage(`{"code":-1,"message":"not today"}`)})
	}()
	_, err := c.Call(t.Context(), r)
	var refusal *interceptor.Refusal
	if !errors.As(err, &refusal) || refusal.Message != "the host declined elicitation/create: not today" || refusal.Code != "upstream_failed" {
		t.Errorf("the call ends with %v", err)
	}
}

// A question without a method fails the call, and the host gets none of the others.
func TestQuestionWithoutMethod(t *testing.T) {
	for _, q := range []string{`{"params":{}}`, `5`, `null`, `{"method":7}`, `{"method":""}`} {
		server := &modernConn{fakeConn{serve: func(context.Context, *conn.Request) (wire.Message, error) {
			return wire.Message{Result: json.RawMessage(`{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create"},"b":` + q + `}}`)}, nil
		}}}
		c, _ := newBridge(t).Wrap("up", conn.Host{}, server, drop{})
		asked := make(messages, 2)
		r := roundOf(`{"name":"greet"}`)
		r.Receiver = asked
		_, err := c.Call(t.Context(), r)
		if refusal, ok := errors.AsType[*interceptor.Refusal](err); !ok || refusal.Code != "upstream_failed" || len(asked) > 0 {
			t.Errorf("%s: the call ends with %v, after %d questions", q, err, len(asked))
		}
	}
}
