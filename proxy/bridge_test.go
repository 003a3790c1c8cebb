package proxy

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

const elicitMeta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}}`

// A modern host calls a tool of a legacy upstream that elicits twice.
func TestSuspendedCallIsResumed(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"name?"}`)})
		first := <-l.replied
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`8`), Method: "elicitation/create", Params: json.RawMessage(`{"message":"age?"}`)})
		second := <-l.replied
		return result(`{"content":[{"type":"text","text":` + string(rawjson.Quote(string(first.Result)+string(second.Result))) + `}]}`)
	})
	r := newRig(t, true, map[string]fakeUpstream{"up": up})
	one := r.ok("tools/call", `{"name":"up__echo","arguments":{},`+elicitMeta+`}`)
	kind, _ := rawjson.GetString([]byte(one), "resultType")
	q, _ := rawjson.GetString([]byte(one), "inputRequests", "r1", "params", "message")
	if kind != "input_required" || q != "name?" {
		t.Fatalf("first round = %s, want the question", one)
	}
	state, _ := rawjson.Get([]byte(one), "requestState")
	two := r.ok("tools/call", `{"name":"up__echo","arguments":{},"requestState":`+string(state)+`,"inputResponses":{"r1":{"action":"accept","content":{"n":1.0}}},`+elicitMeta+`}`)
	if q, _ := rawjson.GetString([]byte(two), "inputRequests", "r2", "params", "message"); q != "age?" {
		t.Fatalf("second round = %s, want the second question", two)
	}
	three := r.ok("tools/call", `{"name":"up__echo","arguments":{},"requestState":`+string(state)+`,"inputResponses":{"r2":{"action":"decline"}},`+elicitMeta+`}`)
	text, _ := rawjson.Get([]byte(three), "content")
	if !strings.Contains(rawjson.Unquote(mustText(t, text)), `{"action":"accept","content":{"n":1.0}}{"action":"decline"}`) {
		t.Errorf("result = %s, want both answers as they were given", three)
	}
	if kind, _ := rawjson.GetString([]byte(three), "resultType"); kind != "complete" {
		t.Errorf("resultType = %q, want complete", kind)
	}
	if sent := r.last("up").sent("tools/call"); len(sent) != 1 || strings.Contains(sent[0], "io.modelcontextprotocol") {
		t.Errorf("upstream was sent %v, want one call without the modern era's metadata", sent)
	}
	again := r.ok("tools/call", `{"name":"up__echo","arguments":{},"requestState":`+string(state)+`,`+elicitMeta+`}`)
	if code, _ := rawjson.GetString([]byte(again), "structuredContent", "error", "code"); code != "request_state_unknown" {
		t.Errorf("a used ticket = %s, want request_state_unknown", again)
	}
}

func mustText(t *testing.T, content []byte) []byte {
	t.Helper()
	var text []byte
	for v := range rawjson.Elements(content) {
		text, _ = rawjson.Get(v, "text")
		break
	}
	if text == nil {
		t.Fatalf("no text in %s", content)
	}
	return text
}

// A host that can't elicit is not asked: the upstream is told at once.
func TestSuspendedCallDeclinesWhatTheHostLacks(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "sampling/createMessage"})
		return result(`{"content":[],"said":` + string((<-l.replied).Error) + `}`)
	})
	r := newRig(t, true, map[string]fakeUpstream{"up": up})
	got := r.ok("tools/call", `{"name":"up__echo","arguments":{},`+elicitMeta+`}`)
	if code, _ := rawjson.Get([]byte(got), "said", "code"); string(code) != "-32601" {
		t.Errorf("result = %s, want the upstream to be told that the host can't", got)
	}
}

// A legacy host calls a tool of a modern upstream that needs input.
func TestRoundsAskTheLegacyHost(t *testing.T) {
	up := echoUpstream("2026-07-28").onCall(func(_ context.Context, _ *fakeConn, c *conn.Request) (wire.Message, error) {
		if answer, ok := rawjson.Get(c.Params, "inputResponses", "q"); ok {
			return result(`{"resultType":"complete","content":[],"answer":` + string(answer) + `}`)
		}
		return result(`{"resultType":"input_required","inputRequests":{"q":{"method":"elicitation/create","params":{"message":"ok?"}}},"requestState":"s1"}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	done := make(chan string)
	go func() { done <- r.tool("up__echo", `{}`) }()
	asked := <-r.push
	if asked.Method != "elicitation/create" || asked.ID == nil {
		t.Fatalf("host was sent %+v, want an elicitation", asked)
	}
	r.s.HandleResponse(wire.Message{ID: asked.ID, Result: json.RawMessage(`{"action":"accept","content":{"v":12345678901234567890}}`)})
	got := <-done
	if answer, _ := rawjson.Get([]byte(got), "answer", "content", "v"); string(answer) != "12345678901234567890" {
		t.Errorf("result = %s, want the host's answer to the digit", got)
	}
	if strings.Contains(got, "resultType") {
		t.Errorf("result = %s, want nothing of the modern era", got)
	}
	last := r.last("up").sent("tools/call")
	if state, _ := rawjson.GetString([]byte(last[len(last)-1]), "requestState"); state != "s1" {
		t.Errorf("retry = %s, want the requestState repeated", last[len(last)-1])
	}
}

// An upstream of the legacy era asks its host in the middle of a call, and
// changes its mind about a second question.
func TestLegacyUpstreamAsksLegacyHost(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`"u1"`), Method: "roots/list"})
		answer := <-l.replied
		return result(`{"content":[],"id":` + string(answer.ID) + `,"roots":` + string(answer.Result) + `}`)
	})
	r := newRig(t, false, map[string]fakeUpstream{"up": up})
	r.initialize()
	done := make(chan string)
	go func() { done <- r.tool("up__echo", `{}`) }()
	asked := <-r.push
	r.s.HandleResponse(wire.Message{ID: asked.ID, Result: json.RawMessage(`{"roots":[]}`)})
	if got := <-done; !strings.Contains(got, `"id":"u1","roots":{"roots":[]}`) {
		t.Errorf("result = %s, want the answer under the upstream's own id", got)
	}
}

// Each round of a suspended call may have a progress token of its own.
func TestSuspendedProgressHasTheRoundsToken(t *testing.T) {
	up := echoUpstream("2025-11-25").onCall(func(_ context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
		tick := wire.Message{Method: "notifications/progress", Params: json.RawMessage(`{"progressToken":"first","progress":1.0}`)}
		c.Receiver.Message(tick)
		c.Receiver.Message(wire.Message{ID: json.RawMessage(`7`), Method: "elicitation/create"})
		<-l.replied
		c.Receiver.Message(tick)
		return result(`{"content":[]}`)
	})
	r := newRig(t, true, map[string]fakeUpstream{"up": up})
	call := func(more, token string) string {
		return r.ok("tools/call", `{"name":"up__echo","arguments":{}`+more+`,`+strings.TrimSuffix(elicitMeta, "}")+`,"progressToken":"`+token+`"}}`)
	}
	state, _ := rawjson.Get([]byte(call("", "first")), "requestState")
	call(`,"inputResponses":{"r1":{"action":"decline"}},"requestState":`+string(state), "second")
	for _, want := range []string{"first", "second"} {
		if got := string((<-r.push).Params); got != `{"progressToken":"`+want+`","progress":1.0}` {
			t.Errorf("progress = %s, want the token %s", got, want)
		}
	}
}
