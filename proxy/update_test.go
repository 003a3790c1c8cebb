package proxy

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// The update of a resource is due to a subscription, if there is one to the resource. It does not count
// as caused by a call that happens to be at the server, as another notification does.
func TestUpdateIsNotCausedByACall(t *testing.T) {
	type sent struct{ method, uri string }
	want := map[sent]int{{"notifications/x", "u"}: 1, {wire.MethodResourceUpdated, "u"}: 0, {wire.MethodResourceUpdated, "other"}: 1}
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		for m := range want {
			l.cfg.Handler.Unsolicited(wire.Message{Method: m.method, Params: json.RawMessage(`{"uri":"` + m.uri + `"}`)})
		}
		c.Receiver.ResponseArrived(wire.Message{})
		return result(`{"content":[]}`)
	})
	rest := up.serve
	up.caps, up.serve = `{"tools":{},"resources":{"subscribe":true}}`, func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		if c.Method == "resources/subscribe" {
			return result(`{}`)
		}
		return rest(ctx, l, c)
	}
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	r.ok("resources/subscribe", `{"uri":"u"}`)
	r.ok("tools/call", `{"name":"up__echo","arguments":{}}`)
	r.close()
	causes := map[sent]int{}
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{trace.KindNotification + "*", trace.KindNotification + "notifications/*"}}) {
		if rec.From == "upstream:up" {
			uri, _ := rawjson.GetString(rec.Payload, "params", "uri")
			causes[sent{strings.TrimPrefix(rec.Kind, trace.KindNotification), uri}] = len(rec.CorrelationID)
		}
	}
	if diff := cmp.Diff(want, causes); diff != "" {
		t.Error(diff)
	}
}
