package router

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A session remembers a bounded number of tasks, and forgets the oldest first.
func TestTasksAreBounded(t *testing.T) {
	s := stdioSession(t)
	note := func(id, method string) {
		c := &interceptor.Call{Target: interceptor.Target{Server: "up", Name: "echo", Method: method, Params: json.RawMessage(`{"task":{}}`)}}
		s.tasks.note(fmt.Appendf(nil, `{"task":{"taskId":%q,"status":"working"}}`, id), c, false)
	}
	known := func(id string) bool { return s.tasks.task(id).server == "up" }
	for n := range maxTasks + 2 {
		note(fmt.Sprint("t", n+1), "tools/call")
	}
	if n := len(s.tasks.byID); n != maxTasks || known("t2") || !known("t3") || !known(fmt.Sprint("t", maxTasks+2)) {
		t.Errorf("%d tasks are remembered, want the last %d", n, maxTasks)
	}
	note("t1", "tasks/get") // and is remembered again
	if n := len(s.tasks.byID); n != maxTasks || known("t3") || !known("t1") || len(s.tasks.ids) != n {
		t.Errorf("%d tasks are remembered in %d places, want the last %d", n, len(s.tasks.ids), maxTasks)
	}
}

// A task keeps its connection and its group until the host has its result, its server may forget it, or it
// is cancelled.
func TestTaskIsOpenUntilItsResult(t *testing.T) {
	for name, k := range map[string]struct {
		results []string
		fetched bool // and looked at again
		want    bool
	}{
		"working":                 {[]string{`{"taskId":"t","status":"working"}`}, false, true},
		"completed, not fetched":  {[]string{`{"taskId":"t","status":"working"}`, `{"taskId":"t","status":"completed"}`}, false, true},
		"failed, not fetched":     {[]string{`{"taskId":"t","status":"failed"}`}, false, true},
		"fetched":                 {[]string{`{"taskId":"t","status":"completed"}`}, true, false},
		"with its result":         {[]string{`{"taskId":"t","status":"completed","result":{}}`}, false, false},
		"with its error":          {[]string{`{"taskId":"t","status":"failed","error":{}}`}, false, false},
		"cancelled":               {[]string{`{"taskId":"t","status":"working"}`, `{"taskId":"t","status":"cancelled"}`}, false, false},
		"completed, its time out": {[]string{`{"taskId":"t","status":"completed","ttl":0}`}, false, false},
	} {
		ts := &tasks{}
		note := func(method, result string) {
			ts.note([]byte(result), &interceptor.Call{Target: interceptor.Target{Server: "up", Method: method, Params: json.RawMessage(`{"taskId":"t"}`)}}, false)
		}
		for _, r := range k.results {
			note("tasks/get", r)
		}
		if k.fetched {
			note("tasks/result", `{"content":[]}`)
			note("tasks/get", `{"taskId":"t","status":"completed"}`)
		}
		if ts.open("up") != k.want || ts.open("") != k.want {
			t.Errorf("%s: open = %v, want %v", name, ts.open("up"), k.want)
		}
	}
}

// A header repeats the argument that is sent, also if Scrub took a secret out of
// the argument: the host's own header still has the secret.
func TestHeadersOfRedactedArguments(t *testing.T) {
	r := &request{Request: &server.Request{}, entry: catalog.Entry{Headers: []catalog.Header{{Path: []string{"k"}, Name: "Key"}}}}
	c := &interceptor.Call{Target: interceptor.Target{
		Method: "tools/call", Arguments: json.RawMessage(`{"k":"secret"}`), Forward: json.RawMessage(`{"name":"x","arguments":{"k":"[REDACTED:x]"}}`),
		Header: http.Header{"Mcp-Param-Key": {"secret"}, "Mcp-Param-Zone": {"eu"}},
	}}
	got := r.outgoing(c).Header
	if got.Get("Mcp-Param-Key") != "[REDACTED:x]" || got.Get("Mcp-Param-Zone") != "eu" {
		t.Errorf("headers = %v", got)
	}
}

// A request that panics has an internal error as its reply, and its id is free
// again.
func TestPanicIsContained(t *testing.T) {
	s := stdioSession(t)
	s.rt.Chain = func(context.Context, *interceptor.Call, interceptor.Handler) (*interceptor.Result, error) {
		panic("boom")
	}
	s.pending = map[string]*request{}
	for range 2 {
		p := s.Begin(t.Context(), server.NewRequest(wire.Message{ID: json.RawMessage("1"), Method: "ping"}))
		if got := p.Serve(); wire.ErrorCode(got.Error) != wire.CodeInternal {
			t.Errorf("reply = %s %s, want an internal error", got.Result, got.Error)
		}
		p.Sent()
	}
}
