package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// An upstream may take a question back before it has reached the host: the host
// is not asked, or is told.
func TestQuestionWithdrawnAtOnce(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	l := r.last("up")
	const n = 8 // what the fakes take without a reader
	for i := range n {
		id := fmt.Sprintf(`"q%d"`, i)
		l.cfg.Handler.Unsolicited(wire.Message{ID: json.RawMessage(id), Method: "elicitation/create", Params: json.RawMessage(`{}`)})
		l.cfg.Handler.Unsolicited(wire.Message{Method: wire.MethodCancelled, Params: json.RawMessage(`{"requestId":` + id + `}`)})
	}
	r.s.Close("test") // and what is under way ends
	r.close()
	open := map[string]bool{}
	for len(r.push) > 0 {
		switch m := <-r.push; m.Method {
		case "elicitation/create":
			open[string(m.ID)] = true
		case wire.MethodCancelled:
			var p struct{ RequestID json.RawMessage }
			_ = json.Unmarshal(m.Params, &p)
			delete(open, string(p.RequestID))
		}
	}
	if len(open) > 0 {
		t.Errorf("the host waits with %d questions", len(open))
	}
}

// A modern host is asked at the end of a round: what was withdrawn by then it
// never hears of, nor of the upstream's id.
func TestQuestionWithdrawnFromAModernHost(t *testing.T) {
	for _, own := range []bool{true, false} { // the question says for which call it is
		up := echoUpstream("2025-11-25").onCall(func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
			say := l.cfg.Handler.Unsolicited
			if own {
				say = c.Receiver.Message
			}
			say(wire.Message{ID: json.RawMessage("7"), Method: "elicitation/create", Params: json.RawMessage(`{}`)})
			say(wire.Message{Method: wire.MethodCancelled, Params: json.RawMessage(`{"requestId":7}`)})
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			return result(`{"content":[]}`)
		})
		r := newRig(t, true, map[string]fakeUpstream{"up": up})
		got := r.ok("tools/call", `{"name":"up__echo","arguments":{},`+elicitMeta+`}`)
		if !strings.Contains(got, `"complete"`) {
			t.Errorf("own %v: the call ends with %s", own, got)
		}
		if len(r.push) > 0 {
			t.Errorf("own %v: the host is told %s", own, (<-r.push).Encode())
		}
	}
}
