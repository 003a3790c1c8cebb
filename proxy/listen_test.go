package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// What a host wants to be told of is watched for it, each resource by itself: one
// message must not ask for any number.
func TestSubscriptionsAreBounded(t *testing.T) {
	up := echoUpstream("2025-11-25")
	up.caps = `{"resources":{"subscribe":true}}`
	up.serve = func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		if uri, _ := rawjson.GetString(c.Params, "uri"); uri == "mem://none" {
			return wire.Message{Error: json.RawMessage(`{"code":-32002,"message":"no such resource"}`)}, nil
		}
		if c.Method == "resources/list" {
			return result(`{"resources":[]}`)
		}
		return result(`{}`)
	}
	tooMany := func(e json.RawMessage) bool {
		return strings.Contains(string(e), "-32602") && strings.Contains(string(e), "end some")
	}

	modern := newRig(t, true, map[string]fakeUpstream{"up": up})
	uris := make([]string, maxSubscriptions+1)
	for i := range uris {
		uris[i] = fmt.Sprintf("mem://%d", i)
	}
	params := `{"notifications":{"resourceSubscriptions":` + string(rawjson.Marshal(uris)) + `},` + elicitMeta + `}`
	if rep := modern.exchange(t.Context(), wire.MethodListen, params); !tooMany(rep.Error) {
		t.Errorf("a listen for %d resources = %s", len(uris), rep.Error)
	}

	legacy := newRig(t, false, map[string]fakeUpstream{"up": up})
	legacy.initialize()
	for range 2 { // takes no place
		if rep := legacy.exchange(t.Context(), "resources/subscribe", `{"uri":"mem://none"}`); !strings.Contains(string(rep.Error), "no such resource") {
			t.Errorf("a subscription to nothing = %s %s", rep.Result, rep.Error)
		}
	}
	for _, uri := range uris[1:] {
		legacy.ok("resources/subscribe", `{"uri":"`+uri+`"}`)
	}
	if rep := legacy.exchange(t.Context(), "resources/subscribe", `{"uri":"`+uris[0]+`"}`); !tooMany(rep.Error) {
		t.Errorf("subscription %d = %s %s", len(uris), rep.Result, rep.Error)
	}
	legacy.ok("resources/subscribe", `{"uri":"`+uris[1]+`"}`) // one that there is
	legacy.ok("resources/unsubscribe", `{"uri":"`+uris[2]+`"}`)
	legacy.ok("resources/subscribe", `{"uri":"`+uris[0]+`"}`)
}

// A server that does not answer what is restored on a new connection, or refuses it, gets the calls
// all the same.
func TestRestoringIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := echoUpstream("2025-11-25")
		rest := up.serve
		up.caps = `{"tools":{},"logging":{},"resources":{"subscribe":true}}`
		up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
			switch {
			case l.instance == 1 && c.Method == "logging/setLevel":
				<-ctx.Done()
				return wire.Message{}, context.Cause(ctx)
			case l.instance == 2 && c.Method == "resources/subscribe":
				return wire.Message{Error: json.RawMessage(`{"code":-32002,"message":"no such resource"}`)}, nil
			case c.Method == "tools/list" || c.Method == "tools/call":
				return rest(ctx, l, c)
			}
			return result(`{}`)
		}
		r := newRig(t, false, map[string]fakeUpstream{"up": up})
		r.initialize()
		r.ok("logging/setLevel", `{"level":"info"}`)
		r.ok("resources/subscribe", `{"uri":"mem://a"}`)
		r.last("up").die()
		r.tool("up__echo", `{}`) // else the bubble deadlocks
		r.last("up").die()
		r.tool("up__echo", `{}`)
		r.close()
		if log := r.warnings.String(); !strings.Contains(log, "could not be made again") || !strings.Contains(log, "no such resource") {
			t.Errorf("the log does not say that the subscription is lost: %s", log)
		}
	})
}
