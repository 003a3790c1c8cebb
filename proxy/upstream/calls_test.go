package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Only what is a progress token gets one of ours: null asks for no progress.
func TestNullIsNoProgressToken(t *testing.T) {
	fs := newCalls(&Config{Host: conn.Host{Shared: true}})
	for meta, want := range map[string]string{
		`{"progressToken":null}`: `{"progressToken":null}`, `{"progressToken":"a"}`: `{"progressToken":1}`, `{"progress\u0054oken":7}`: `{"progress\u0054oken":1}`,
	} {
		fs.last = 0
		_, params, err := fs.begin(&conn.Request{Method: "m", Params: json.RawMessage(`{"_meta":` + meta + `}`)})
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"_meta":` + want + `}`; string(params) != want {
			t.Errorf("params = %s, want %s", params, want)
		}
	}
}

// A call hears of its answer from whoever reads it, before the next message is read.
func TestAnsweredIsCalledByTheReader(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want int
	}{{nil, 1}, {errors.New("unreadable"), 0}} {
		fs, called := newCalls(&Config{}), 0
		f, _, err := fs.begin(&conn.Request{Method: "m", Receiver: answered{&called}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second is late
			fs.resolve(f.id, wire.Message{}, tc.err, nil)
		}
		if called != tc.want {
			t.Errorf("error %v: called %d times, want %d", tc.err, called, tc.want)
		}
	}
}

// answered counts the responses.
type answered struct{ n *int }

func (answered) Message(wire.Message)           {}
func (a answered) ResponseArrived(wire.Message) { *a.n++ }

// An error without an id belongs to the only open call, but not if several principals share the
// connection: it could be about a call of another one that was given up.
func TestErrorWithoutAnID(t *testing.T) {
	for everyone, want := range map[bool]bool{false: true, true: false} {
		fs := newCalls(&Config{Host: conn.Host{Shared: true, Everyone: everyone}})
		f, _, err := fs.begin(&conn.Request{Method: "m"})
		if err != nil {
			t.Fatal(err)
		}
		if got := fs.suspect(nil) == f.id; got != want {
			t.Errorf("everyone %t: the open call is suspected: %t", everyone, got)
		}
		if fs.suspect(f) != f.id {
			t.Errorf("everyone %t: the call on whose stream it came is not suspected", everyone)
		}
	}
}

// A lost connection fails its calls with the reason of its loss, also if its owner sees the loss and
// closes it before they have failed.
func TestCloseAfterALossKeepsTheReason(t *testing.T) {
	var s connection
	s.init(&Config{}, nil)
	c, _, err := s.calls.begin(&conn.Request{Method: "m"})
	if err != nil {
		t.Fatal(err)
	}
	s.end(conn.ErrSessionGone) // the first half of lose(conn.ErrSessionGone)
	ctx, cancel := s.context(t.Context())
	defer cancel()
	<-ctx.Done()
	if err := context.Cause(ctx); !errors.Is(err, conn.ErrSessionGone) {
		t.Errorf("a message is given up with %v, want %v", err, conn.ErrSessionGone)
	}
	s.lose(nil)
	if <-c.done; !errors.Is(c.err, conn.ErrSessionGone) {
		t.Errorf("the call failed with %v, want %v", c.err, conn.ErrSessionGone)
	}
}
