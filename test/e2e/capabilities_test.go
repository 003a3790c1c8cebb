//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// declaredSets are capabilities of hosts: each kind with and without its members.
var declaredSets = []string{
	`{}`, `{"elicitation":{}}`, `{"elicitation":{"url":{}}}`, `{"elicitation":{"form":{},"url":{}}}`,
	`{"sampling":{}}`, `{"sampling":{"context":{}}}`, `{"sampling":{"tools":{}}}`,
	`{"roots":{}}`, `{"roots":{"listChanged":true}}`, `{"elicitation":{},"sampling":{"tools":{},"context":{}},"roots":{}}`,
}

// canTools returns the tools that the fake upstream has for these capabilities, as hosts see them.
func canTools(t *testing.T, declared string) (want []string) {
	var all map[string]map[string]any
	unmarshal(t, []byte(declared), &all)
	for name, members := range all {
		want = append(want, "fake__can-"+name)
		for member := range members {
			want = append(want, "fake__can-"+name+"."+member)
		}
	}
	slices.Sort(want)
	return want
}

// seenCanTools returns the tools of the fake upstream that the host sees for its capabilities.
func seenCanTools(t *testing.T, c *mcpclient.Client) []string {
	t.Helper()
	seen := slices.DeleteFunc(names(t, c, "tools/list", "tools", "name"), func(name string) bool { return !strings.HasPrefix(name, "fake__can-") })
	slices.Sort(seen)
	return seen
}

// TestHostsSeeWhatTheyCanCall: an upstream lists tools only for clients with a capability. Each host of a
// principal sees those for its own capabilities, whatever the others declare, and can call them, also
// when its list was stored by an earlier process. No number of different hosts has more connections
// than max_connections.
func TestHostsSeeWhatTheyCanCall(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		for _, up := range []string{"legacy", "modern"} {
			for _, share := range []string{"session", "principal"} {
				t.Run(fmt.Sprint(era, " on ", up, ", share ", share), func(t *testing.T) {
					t.Parallel()
					ctx := testContext(t)
					g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {share: %s, max_connections: 6, %s}\n", share, fakeUpstream(t, "stdio", up, "-can")))
					for range 2 {
						url := g.http()
						for _, declared := range declaredSets {
							c := mcpclient.HTTP(url, era)
							c.Capabilities = declared
							g.closes(c)
							startHost(t, ctx, c)
							want := canTools(t, declared)
							if got := seenCanTools(t, c); !slices.Equal(got, want) {
								t.Errorf("a host with %s sees %q, want %q", declared, got, want)
							}
							for _, name := range want {
								if m := tool(t, c, ctx, name, `{}`); m.Error != nil || parseResult(t, m).IsError {
									t.Errorf("a host with %s calls %s: %s%s", declared, name, m.Result, m.Error)
								}
							}
						}
						if n := g.childProcesses(); n > 6 {
							t.Errorf("%d processes, want at most 6", n)
						}
						g.stop()
					}
				})
			}
		}
	}
}

// TestCapabilitiesOfARequest: a modern host may declare other capabilities with each request. On stdio,
// too, its list is the one for these.
func TestCapabilitiesOfARequest(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy", "-can")+"}\n")
	c := g.connect(testContext(t), "stdio", mcpclient.Modern)
	for _, declared := range append(declaredSets, declaredSets...) {
		c.Capabilities = declared
		if got, want := seenCanTools(t, c), canTools(t, declared); !slices.Equal(got, want) {
			t.Errorf("a request with %s sees %q, want %q", declared, got, want)
		}
	}
}
