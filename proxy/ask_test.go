package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// An upstream that asks without end fills neither memory nor the host: of its
// questions only so many are under way.
func TestQuestionsOfAnUpstreamAreBounded(t *testing.T) {
	over := make(chan struct{})
	t.Cleanup(func() { close(over) }) // after the gateway's end, which the host sees
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	l := r.last("up")
	var asked atomic.Int64
	go func() {
		for { // the host reads, and answers nothing
			select {
			case <-r.push:
				asked.Add(1)
			case <-l.replied:
			case <-over:
				return
			}
		}
	}()
	for i := range 3 * maxServerRequests {
		l.cfg.Handler.Unsolicited(wire.Message{ID: json.RawMessage(fmt.Sprint(i)), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)})
	}
	for asked.Load() < maxServerRequests { // some are on their way
		runtime.Gosched()
	}
	l.cfg.Handler.Unsolicited(wire.Message{ID: json.RawMessage(`"last"`), Method: "sampling/createMessage", Params: json.RawMessage(`{}`)})
	if n := asked.Load(); n != maxServerRequests {
		t.Errorf("%d questions wait for the host, want %d", n, maxServerRequests)
	}
}

// Nor does one call of a modern host gather them.
func TestQuestionsOfACallAreBounded(t *testing.T) {
	const more = 20
	refusals := make(chan string, more)
	up := echoUpstream("2025-11-25").onCall(func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		for i := range maxQuestions + more {
			c.Receiver.Message(wire.Message{ID: json.RawMessage(fmt.Sprint(i)), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
		}
		for range more {
			refusals <- string((<-l.replied).Error)
		}
		<-ctx.Done()
		return wire.Message{}, context.Cause(ctx)
	})
	r := newRig(t, true, map[string]fakeUpstream{"up": up})
	got := r.ok("tools/call", `{"name":"up__echo","arguments":{},`+elicitMeta+`}`)
	asked := 0
	questions, _ := rawjson.Get([]byte(got), "inputRequests")
	for range rawjson.Members(questions) {
		asked++
	}
	if asked == 0 || asked > maxQuestions {
		t.Errorf("the host is asked %d questions, want at most %d", asked, maxQuestions)
	}
	for range more {
		if text := <-refusals; !strings.Contains(text, "-32603") || !strings.Contains(text, "wait for their answers") {
			t.Errorf("a question in excess is answered with %q", text)
		}
	}
}

// Why an upstream took a question back is for the host to read, without secrets.
func TestReasonOfAWithdrawnQuestionIsScrubbed(t *testing.T) {
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	l := r.last("up")
	secret := "ghp" + "_aZ3kQ9xW2mN8vB5cR7tY1uP4sD6fG0hJ2kLq"
	l.cfg.Handler.Unsolicited(wire.Message{ID: json.RawMessage(`"q"`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"?"}`)})
	if m := <-r.push; m.Method != "elicitation/create" {
		t.Fatalf("the host was told %s", m.Encode())
	}
	l.cfg.Handler.Unsolicited(wire.Message{Method: wire.MethodCancelled, Params: json.RawMessage(`{"requestId":"q","reason":"no more: ` + secret + `"}`)})
	m := <-r.push
	reason, _ := rawjson.GetString(m.Params, "reason")
	if m.Method != wire.MethodCancelled || reason != "no more: [REDACTED:github-pat]" {
		t.Errorf("the host was told %s", m.Encode())
	}
	r.close()
	told := 0
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{trace.KindNotification + wire.MethodCancelled}}) {
		if told++; rec.From != "foldgate" || !strings.HasPrefix(rec.To[0], "host") || strings.Contains(string(rec.Payload), secret) {
			t.Errorf("the cancellation is recorded as from %s to %v: %s", rec.From, rec.To, rec.Payload)
		}
	}
	if told != 1 {
		t.Errorf("the cancellation is recorded %d times, want once", told)
	}
}
