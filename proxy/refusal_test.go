package proxy

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A request that ends with its session says so, and blames no server.
func TestCutOffRequest(t *testing.T) {
	for _, byEdge := range []bool{false, true} {
		for method, params := range map[string]string{"tools/call": `{"name":"up__echo","arguments":{}}`, "x/other": `{}`} {
			started := make(chan struct{})
			up := echoUpstream("2025-11-25")
			rest := up.serve
			up.serve = func(ctx context.Context, l *fakeLink, c *conn.Request) (wire.Message, error) {
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
			done := make(chan edge.Reply)
			go func() { done <- r.exchange(ctx, method, params) }()
			<-started
			why := errSessionClosed
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
