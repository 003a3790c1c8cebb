package gosdk

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// bearer sends requests with a token.
type bearer string

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(req)
}

// The principal is the user of the token, or whom Identity names. Each has limits and branches of its
// own, and the trace names it.
func TestIdentity(t *testing.T) {
	for _, era := range []string{legacy, modern} {
		for name, identity := range map[string]func(mcp.Request) interceptor.Identity{
			"token": nil,
			"own": func(req mcp.Request) interceptor.Identity {
				return interceptor.Identity{Principal: req.GetExtra().Header.Get("Authorization")[len("Bearer "):], Team: "data"}
			},
		} {
			t.Run(era+"/"+name, func(t *testing.T) {
				p := plan{Era: era}
				fg := embed(t, p, func(o *Options) {
					p.State = o.Config.StateDir
					o.Identity = identity
					l := limitOf(t, limits.Limit{Match: limits.Match{Tool: "write"}, Calls: 2})
					l[0].Per = limits.PerPrincipal
					o.Config.Budgets.Limits = l
				})
				s := mount(p.server(), fg)
				var h http.Handler = mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, &mcp.StreamableHTTPOptions{Stateless: era == modern})
				if identity == nil {
					h = auth.RequireBearerToken(func(_ context.Context, token string, _ *http.Request) (*auth.TokenInfo, error) {
						return &auth.TokenInfo{UserID: token, Expiration: time.Now().Add(time.Hour)}, nil
					}, nil)(h)
				}
				server := httptest.NewServer(h)
				t.Cleanup(server.Close)
				as := func(principal string) *rig {
					r := &rig{t: t, plan: p, wire: &buffer{}, log: &buffer{}}
					r.c = r.connect(&mcp.StreamableClientTransport{Endpoint: server.URL, DisableStandaloneSSE: true, HTTPClient: &http.Client{Transport: bearer(principal)}})
					t.Cleanup(func() { _ = r.c.Close() })
					return r
				}
				alice, bob := as("alice"), as("bob")
				b := own[branch](alice, "branch_create", `{"description":"work"}`).BranchID
				if res := bob.call("write", `{"how":"x","branch_id":"`+b+`"}`); !res.IsError || !strings.Contains(text(res), "branch_not_found") {
					t.Errorf("bob's call in alice's branch: %s", text(res))
				}
				for i := range 3 {
					if res := alice.call("write", `{"how":"x"}`); res.IsError != (i == 2) {
						t.Errorf("alice's call %d: %s", i, text(res))
					}
				}
				if res := bob.call("write", `{"how":"x"}`); res.IsError {
					t.Errorf("bob's call after alice's limit: %s", text(res))
				}
				calls := map[string]int{}
				for r := range scan(t, p.State, query.Filter{Kinds: []string{trace.KindResponse + "tools/call"}, Tools: []string{"write"}}) {
					calls[r.Audit.Principal+" "+r.Audit.Team]++
				}
				team := map[string]string{"token": "", "own": "data"}[name]
				if calls["alice "+team] != 3 || calls["bob "+team] != 2 || len(calls) != 2 {
					t.Errorf("the trace has %v", calls)
				}
			})
		}
	}
}
