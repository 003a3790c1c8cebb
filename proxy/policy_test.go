package proxy

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A request without an id reaches no server, whatever its method: nothing would decide and count
// it. A notification that foldgate does not know reaches a server if the policy allows its method.
func TestRequestsWithoutIDReachNoServer(t *testing.T) {
	requests := []string{"tools/call", "tools/list", "prompts/get", "resources/read", "tasks/cancel", "x/other", "Notifications/x", "notifications", "notification/x", ""}
	for _, tt := range []struct {
		byDefault string
		want      []string // that the server gets
		refused   []string // the rules in the trace
	}{
		{"allow", []string{"notifications/roots/list_changed", "notifications/x"}, nil},
		{"deny", []string{"notifications/roots/list_changed"}, []string{"notifications/x default"}},
	} {
		for _, modern := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRigWith(t, modern, map[string]fakeUpstream{"up": echoUpstream("2025-11-25")}, func(c *config.Config) { c.Policy.Default = tt.byDefault })
				if !modern {
					r.initialize()
				}
				r.ok("tools/list", "{"+elicitMeta+"}") // opens a connection
				for _, method := range append(requests, "notifications/roots/list_changed", "notifications/x") {
					m := wire.Message{Method: method, Params: json.RawMessage(`{"name":"echo","arguments":{}}`)}
					m.Raw = m.Encode()
					r.s.Notify(m)
				}
				synctest.Wait()
				got := r.last("up")
				got.mu.Lock()
				notes := slices.DeleteFunc(slices.Clone(got.notes), func(m string) bool { return m == wire.MethodInitialized })
				got.mu.Unlock()
				if diff := cmp.Diff(tt.want, notes); diff != "" {
					t.Errorf("default: %s, modern: %v: the server gets (-want +got):\n%s", tt.byDefault, modern, diff)
				}
				r.close()
				var refused []string
				for rec, err := range query.Scan(t.Context(), filepath.Join(r.g.cfg.StateDir, "trace"), query.Filter{Kinds: []string{"mcp/reject"}}) {
					if err != nil {
						t.Fatal(err)
					}
					refused = append(refused, rec.Audit.Method+" "+rec.Audit.Decision.Rule)
				}
				want := slices.Clone(tt.refused)
				for _, method := range requests[:min(len(requests), 10)] { // more in a minute are counted
					want = append(want, method+" -32600")
				}
				slices.Sort(refused)
				slices.Sort(want)
				if diff := cmp.Diff(want, refused); diff != "" {
					t.Errorf("default: %s, modern: %v: the trace has (-want +got):\n%s", tt.byDefault, modern, diff)
				}
			})
		}
	}
}
