package proxy

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A request that ends with its session says so, and blames no server.
func TestCutOffRequest(t *testing.T) {
	for _, byEdge := range []bool{false, true} {
		for method, params := range map[string]string{"tools/call": `{"name":"up__echo","arguments":{}}`, "x/other": `{}`} {
			started := make(chan struct{})
			up := echoUpstream("2025-11-25")
			rest := up.serve
			up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
				if c.Method != method {
					return rest(ctx, l, c)
				}
				close(started)
				<-ctx.Done()
				return wire.Message{}, context.Cause(ctx)
			}
			r := newRig(t, false, map[string]fakeUpstream{"up": up})
			r.initialize()
			ctx, cancel := context.WithCancelCause(t.Context())
			done := make(chan wire.Message)
			go func() { done <- r.exchange(ctx, method, params) }()
			<-started
			why := errors.New("the host's session ended")
			if byEdge {
				why = errors.New("ended by the host")
				cancel(why)
			} else {
				r.s.Close("test over")
			}
			rep := <-done
			cancel(nil)
			if got := string(rep.Result) + string(rep.Error); !strings.Contains(got, "session_ended") || !strings.Contains(got, why.Error()) || !strings.Contains(got, "may have had an effect") {
				t.Errorf("%s answers %s, want that its session has ended: %s", method, got, why)
			}
		}
	}
}

// What foldgate answers itself says what is wrong with the params.
func TestParamsThatSayNothing(t *testing.T) {
	r := newRig(t, false, nil)
	r.initialize()
	for _, tc := range []struct{ method, params, want string }{
		{"logging/setLevel", `{"level":"loud"}`, `invalid log level "loud": use debug, info, notice, warning, error, critical, alert, emergency`},
		{"logging/setLevel", `{}`, `invalid log level ""`},
		{"resources/read", `{}`, "params.uri is missing"},
	} {
		rep := r.exchange(t.Context(), tc.method, tc.params)
		if text, _ := rawjson.GetString(rep.Error, "message"); wire.ErrorCode(rep.Error) != wire.CodeInvalidParams || !strings.HasPrefix(text, tc.want) {
			t.Errorf("%s %s = %s, want %q", tc.method, tc.params, rep.Error, tc.want)
		}
	}
	r.ok("logging/setLevel", `{"level":"notice"}`)
}

// A call that is refused for its params is in the trace like any other, with
// why it was blocked and without the secrets in it.
func TestRefusedParamsAreRecorded(t *testing.T) {
	const secret = "AK" + "IAQYLPMN5HHHFPZAM2"
	r := newRig(t, false, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")})
	r.initialize()
	r.ok("tools/list", `{}`)
	for _, tc := range []struct{ params, want string }{
		{`{"arguments":{}}`, "tools/call needs params.name, a string"},
		{`{"name":7}`, "tools/call needs params.name, a string"},
		{`{"name":"up__echo","arguments":{"branch_id":7}}`, "arguments.branch_id is 7; it must be a string from branch_create"},
		{`{"name":"up__echo","arguments":{"branch_id":{"` + secret + `":1}}}`, "arguments.branch_id is {"},
	} {
		rep := r.exchangeID(t.Context(), `"`+secret+`"`, "tools/call", tc.params)
		if text, _ := rawjson.GetString(rep.Error, "message"); wire.ErrorCode(rep.Error) != wire.CodeInvalidParams || !strings.HasPrefix(text, tc.want) || strings.Contains(text, secret) {
			t.Errorf("tools/call %s = %s, want %q", tc.params, rep.Error, tc.want)
		}
	}
	blocked := 0
	for rec := range scan(t, r.g.Start.StateDir, query.Filter{Kinds: []string{"mcp/request", "mcp/response"}}) {
		if strings.Contains(string(rec.Payload), secret) {
			t.Errorf("a secret is stored: %s", rec.Payload)
		}
		if d := rec.Audit.Decision; d != nil && rec.Kind == trace.KindResponse+"tools/call" && *d == (trace.Decision{Result: trace.Blocked, Reason: trace.ReasonInvalid, Rule: "-32602"}) {
			blocked++
		}
	}
	if blocked != 4 {
		t.Errorf("%d refusals are recorded as blocked, want 4", blocked)
	}
}

// A server gets the host's reason for a cancellation by its policy for arguments.
func TestReasonsCrossTheBoundary(t *testing.T) {
	const secret = "AK" + "IAQYLPMN5HHHFPZAM2"
	for policy, want := range map[string]string{"redact": "[REDACTED:aws-access-token]", "block": "cancelled by the host", "report": secret} {
		started, cause := make(chan struct{}), make(chan error, 1)
		up := echoUpstream("2025-11-25")
		rest := up.serve
		up.serve = func(ctx context.Context, l *fakeConn, c *conn.Request) (wire.Message, error) {
			if c.Method != "x/other" {
				return rest(ctx, l, c)
			}
			close(started)
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return wire.Message{}, context.Cause(ctx)
		}
		r := newRig(t, false, map[string]fakeUpstream{"up": up})
		r.g.settings.Load().Config.Scrub.Arguments = policy
		r.initialize()
		done := make(chan wire.Message)
		go func() { done <- r.exchangeID(t.Context(), "1", "x/other", `{}`) }()
		<-started
		r.s.Notify(wire.Message{Method: "notifications/cancelled", Params: []byte(`{"requestId":1,"reason":"` + secret + `"}`)})
		if got := (<-cause).Error(); got != want {
			t.Errorf("policy %s: the server is told %q, want %q", policy, got, want)
		}
		<-done
	}
}
