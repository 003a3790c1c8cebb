package router

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/wire"
)

// metaRouter is a router that reads _meta and records nothing.
func metaRouter(t *testing.T, correlation string) *Router {
	journal, err := trace.Open(t.TempDir(), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = journal.Close() })
	log := slog.New(slog.DiscardHandler)
	st := &Settings{}
	st.Config.Trace.Correlation = correlation
	return New(t.Context(), Options{Log: log, Settings: func() *Settings { return st }, Recorder: &interceptor.Recorder{Journal: journal, Log: log}})
}

// readMeta reads the _meta of a request into a call.
func readMeta(t *testing.T, mode, meta string) (*interceptor.Call, error) {
	params := json.RawMessage(`{"_meta":` + meta + `}`)
	c := &interceptor.Call{Target: interceptor.Target{Params: params}}
	return c, metaRouter(t, mode).readMeta(&request{Request: server.NewRequest(wire.Message{Params: params})}, c)
}

func TestCorrelate(t *testing.T) {
	tests := []struct {
		name, mode, meta string
		want             []string
		deprecated       bool
		err              string
	}{
		{"none", "strict", `{}`, nil, false, ""},
		{"array", "strict", `{"io.github.foldgate/correlationId":["a","b","a"]}`, []string{"a", "b"}, false, ""},
		{"string", "transition", `{"io.github.foldgate/correlationId":"a"}`, []string{"a"}, true, ""},
		{"string, strict", "strict", `{"io.github.foldgate/correlationId":"a"}`, nil, false, "array"},
		{"later name", "transition", `{"io.github.foldgate/correlation_id":["a"],"io.github.foldgate/correlationId":["b"]}`, []string{"b", "a"}, true, ""},
		{"number", "transition", `{"io.github.foldgate/correlationId":[1]}`, nil, false, "string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := readMeta(t, tt.mode, tt.meta)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("correlate(%s) = %v, want an error with %q", tt.meta, err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, c.Origin.Correlates); diff != "" {
				t.Errorf("correlates (-want +got):\n%s", diff)
			}
			if got := len(c.Origin.Deprecated) > 0; got != tt.deprecated {
				t.Errorf("deprecated = %v, want %t", c.Origin.Deprecated, tt.deprecated)
			}
		})
	}
}

func TestSubContext(t *testing.T) {
	for _, tt := range []struct{ name, mode, value, want, deprecated, err string }{
		{"path", "strict", `"a/b"`, "a/b", "", ""},
		{"null", "strict", `null`, "", "", ""},
		{"object", "transition", `{"id":"b","parent":"a"}`, "a/b", "context_object", ""},
		{"object, strict", "strict", `{"id":"b","parent":"a"}`, "", "", `send the path as a string: "a/b"`},
		{"operation", "transition", `{"operation":"push","topic":"x"}`, "", "", "branch_create"},
		{"number", "transition", `7`, "", "", "send a string"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := readMeta(t, tt.mode, `{"io.github.foldgate/context":`+tt.value+`}`)
			if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("subContext(%s) = %v, want an error with %q", tt.value, err, tt.err)
			}
			if got := strings.Join(c.Origin.Deprecated, " "); c.Attribution.SubContext != tt.want || got != tt.deprecated {
				t.Errorf("subContext(%s): %q, deprecated %q; want %q, %q", tt.value, c.Attribution.SubContext, got, tt.want, tt.deprecated)
			}
		})
	}
}

// A session remembers a bounded number of tasks, and forgets the oldest first.
func TestTasksAreBounded(t *testing.T) {
	s := stdioSession(t)
	note := func(id, method string) {
		c := &interceptor.Call{Target: interceptor.Target{Server: "up", Name: "echo", Method: method, Params: json.RawMessage(`{"task":{}}`)}}
		s.tasks.note(fmt.Appendf(nil, `{"task":{"taskId":%q,"status":"working"}}`, id), c)
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
