//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Servers differ in which of two members they read, and some take "Name" for "name". So an
// ambiguous call could do something that is not allowed. It is refused, and the trace has it.
func TestCallsThatSayTwoThings(t *testing.T) {
	t.Parallel()
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake:\n    command: [%q, -era, both, -record, %q]\n    tools: {deny: [pid]}\n", fakeserverBin, file))
	url := g.http()
	c := g.dial(ctx, url, mcpclient.Legacy)
	tool(t, c, ctx, "fake__echo", `{}`)
	before := len(recorded(t, file))
	for _, params := range []string{
		`{"name":"fake__echo","Name":"pid","arguments":{}}`,
		`{"NAME":"pid","name":"fake__echo","arguments":{}}`,
		`{"name":"pid","name":"fake__echo","arguments":{}}`,
		`{"name":"fake__echo","na\u006de":"fake__echo","arguments":{}}`,
		`{"name":"fake__echo","arguments":{},"argument\u017f":{"x":1}}`,
		`{"name":"fake__echo","arguments":{"x":1},"arguments":{}}`,
		`{"name":"fake__echo","arguments":{},"_meta":{},"_META":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}`,
	} {
		m, err := c.Call(ctx, "tools/call", params)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Error), "-32602") || !strings.Contains(string(m.Error), "two spellings") {
			t.Errorf("%s = %s %s, want a refusal", params, m.Result, m.Error)
		}
	}
	if after := len(recorded(t, file)); after != before {
		t.Errorf("%d of them reached the server", after-before)
	}
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"fake__echo","arguments":{}},"Params":{"name":"pid"}}`,
		`{"jsonrpc":"2.0","id":7,"method":"x/harmless","Method":"tools/call","params":{"name":"pid"}}`,
	} {
		status, _, text := answered(t, http.DefaultClient, "POST", url, body, map[string][]string{"Mcp-Session-Id": {c.Session()}})
		if status != 400 || !strings.Contains(text, "another spelling") {
			t.Errorf("%s = %d %s, want a refusal", body, status, text)
		}
	}
	// Members that decide nothing pass unchanged.
	if got := said(t, tool(t, c, ctx, "fake__echo", `{"name":1,"Name":2,"x":1,"x":2}`)); !strings.Contains(got, `{"name":1,"Name":2,"x":1,"x":2}`) {
		t.Errorf("the arguments arrived as %s", got)
	}
	g.stop()
	if n := strings.Count(g.output("trace", "--format", "jsonl"), "two spellings"); n != 7 {
		t.Errorf("the trace has %d of the 7 refused calls", n)
	}
}

// A call that is refused for its _meta is in the trace like any other.
func TestRefusedMetaIsTraced(t *testing.T) {
	t.Parallel()
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, fakeConfig(file, "trace: {correlation: strict}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{}).BranchID
	for key, value := range map[string]string{"correlationId": `"one"`, "context": `{"id":"late"}`} {
		m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":"fake__echo","arguments":{},"_meta":{"io.github.foldgate/branch_id":%q,"io.github.foldgate/%s":%s}}`, b, key, value))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(m.Error), "-32602") || !strings.Contains(string(m.Error), key) {
			t.Errorf("%s: %s = %s %s, want a refusal", key, value, m.Result, m.Error)
		}
	}
	if n := len(recordedMethod(t, file, "tools/call")); n != 0 {
		t.Errorf("%d of them reached the server", n)
	}
	if s := statusOf(t, c, ctx, b); s.Status != "active" {
		t.Errorf("after them the branch is %+v", s)
	}
	g.stop()
	if out := g.output("trace", "--context", b, "--format", "jsonl"); strings.Count(out, `"rule":"-32602"`) != 2 {
		t.Errorf("the trace of the branch has not both refused calls:\n%s", out)
	}
}

// The result of a server that is not an object reaches the host as one, or in an error: typed hosts can't read it, and
// would wait without end.
func TestResultThatIsNoObject(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]string{`null`: `{}`, `"one"`: `not an object`, `[{"two":2}]`: `not an object`} {
		t.Run(result, func(t *testing.T) {
			p := newPlayer(t, "stdio", mcpclient.Legacy, hello(""))
			p.script = func(m mcpclient.Message) string {
				return map[string]string{"tools/list": `{"tools":[` + toolItem("a") + `]}`, "tools/call": result}[m.Method]
			}
			g := newGateway(t, "upstreams:\n  up: {"+p.config+"}\n")
			url := g.http()
			for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
				m, err := g.dial(testContext(t), url, era).Call(testContext(t), "tools/call", `{"name":"up__a","arguments":{}}`)
				got := string(m.Result) + string(m.Error)
				if want := strings.Replace(want, "{}", map[mcpclient.Era]string{mcpclient.Legacy: "{}", mcpclient.Modern: `{"resultType":"complete"}`}[era], 1); err != nil || !strings.Contains(got, want) {
					t.Errorf("%s: the host gets %s, %v; want %s", era, got, err, want)
				}
			}
		})
	}
}
