package proxy

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// The update of a resource is due to a subscription. It does not count as caused by a call that
// happens to be at the server, as another notification does.
func TestUpdateIsNotCausedByACall(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		for _, method := range []string{"notifications/x", wire.MethodResourceUpdated} {
			l.cfg.Handler.Unsolicited(wire.Message{Method: method, Params: json.RawMessage(`{"uri":"u"}`)})
		}
		c.Receiver.Answered(wire.Message{})
		return result(`{"content":[]}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	r.ok("tools/call", `{"name":"up__echo","arguments":{}}`)
	r.close()
	causes := map[string]int{}
	for rec, err := range query.Scan(t.Context(), filepath.Join(r.g.cfg.StateDir, "trace"), query.Filter{Kinds: []string{trace.KindNotification + "*", trace.KindNotification + "notifications/*"}}) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.From == "upstream:up" {
			causes[rec.Kind] = len(rec.CorrelationID)
		}
	}
	want := map[string]int{trace.KindNotification + "notifications/x": 1, trace.KindNotification + wire.MethodResourceUpdated: 0}
	for kind, n := range want {
		if got, recorded := causes[kind]; !recorded || got != n {
			t.Errorf("%s: %d causes, recorded %v; want %d", kind, got, recorded, n)
		}
	}
}
