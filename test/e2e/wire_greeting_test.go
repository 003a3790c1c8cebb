//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// TestGreeting: a host's initialize params reach the upstream unchanged (loss 14), and unknown
// capabilities of an upstream reach the host.
func TestGreeting(t *testing.T) {
	t.Parallel()
	for _, transport := range []string{"stdio", "http"} {
		for _, upstream := range []string{"stdio", "http"} {
			t.Run(transport+" host on "+upstream, func(t *testing.T) {
				file := recordFile(t)
				g := newGateway(t, "upstreams:\n  fake: {"+fakeUpstream(t, upstream, "legacy", "-record", file)+"}\n")
				var h *rawHost
				if transport == "stdio" {
					h = rawStdio(t, g.command("run"), mcpclient.Legacy)
				} else {
					h = rawHTTP(t, g.http(), mcpclient.Legacy)
				}
				const params = `{"future":[1.0],"capabilities":{"tasks":{"list":{}},"futureCap":{"n":9007199254740993},"experimental":{},"roots":{"listChanged":false}},"protocolVersion":"2025-06-18","clientInfo":{"name":"raw \ud83d","version":"","icons":[],"x":null},"_meta":{"k":1.0}}`
				h.write(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":` + params + `}`)
				answer := receive(t, h)
				for _, want := range []string{`"futureCap":{"n":1.0}`, `"protocolVersion":"2025-06-18"`, "fakeserver obeys", `"subscribe":true`, `"completions":{}`, `"logging":{}`} {
					if !strings.Contains(answer, want) {
						t.Errorf("the host is not told %s: %s", want, answer)
					}
				}
				h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
				h.write(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fake__pid","arguments":{}}}`)
				receive(t, h)
				want := `"method":"initialize","params":` + params + `}`
				if got := strings.Join(recordedMethod(t, file, "initialize"), "\n"); !strings.Contains(got, want) {
					t.Errorf("the upstream got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func receive(t *testing.T, h *rawHost) string {
	t.Helper()
	select {
	case msg := <-h.got:
		return msg
	case <-time.After(20 * time.Second):
		t.Fatal("no answer within 20 s")
	}
	return ""
}

// A server may send a ping in any state, also before it answers initialize, and wait for the answer.
func TestPingBeforeInitialize(t *testing.T) {
	t.Parallel()
	const server = `answer() { echo '{"jsonrpc":"2.0","id":'"$(echo "$2" | sed 's/.*"id":\([0-9]*\).*/\1/')"','"$1}"; }
while read -r m; do case "$m" in
*'"method":"initialize"'*) waits=$m; echo '{"jsonrpc":"2.0","id":"p","method":"ping"}';;
*'"id":"p","result":{}'*) answer '"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}' "$waits";;
*'"method":"tools/list"'*) answer '"result":{"tools":[{"name":"a","inputSchema":{"type":"object"}}]}' "$m";;
*'"method":"notifications/'*) ;;
*) answer '"error":{"code":-32601,"message":"no"}' "$m";;
esac; done`
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		g := newGateway(t, fmt.Sprintf("upstreams:\n  up: {command: [sh, -c, %q]}\n", server))
		if got := names(t, g.connect(testContext(t), transport, era), "tools/list", "tools", "name"); !slices.Equal(got, []string{"up__a"}) {
			t.Errorf("tools = %v", got)
		}
	})
}
