package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/edge"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Calls that become tasks don't fill the memory of a long session: of too many
// the oldest are forgotten, and what is asked of them still finds an answer.
func TestTasksAreBounded(t *testing.T) {
	minted := 0
	tasks := fakeUpstream{version: "2025-11-25", caps: `{"tools":{},"tasks":{}}`, serve: func(_ context.Context, _ *fakeLink, c *conn.Request) (wire.Message, error) {
		switch c.Method {
		case "tools/list":
			return result(`{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			minted++
			return result(fmt.Sprintf(`{"task":{"taskId":"t%d","status":"working"}}`, minted))
		}
		return result(`{"taskId":"t1","status":"working"}`)
	}}
	r := newRig(t, false, map[string]fakeUpstream{"up": tasks})
	r.initialize()
	for range maxTasks + 2 {
		r.ok("tools/call", `{"name":"up__echo","arguments":{},"task":{}}`)
	}
	remembered := func(id string) bool { return r.s.tasks[id].upstream == "up" }
	if n := len(r.s.tasks); n != maxTasks || remembered("t2") || !remembered("t3") || !remembered(fmt.Sprint("t", maxTasks+2)) {
		t.Errorf("%d tasks are remembered, want the last %d", n, maxTasks)
	}
	r.ok("tasks/get", `{"taskId":"t1"}`) // and is remembered again
	if n := len(r.s.tasks); n != maxTasks || remembered("t3") || !remembered("t1") || len(r.s.minted) != n {
		t.Errorf("%d tasks are remembered of %d minted, want the last %d", n, len(r.s.minted), maxTasks)
	}
}

// A header says what the body says as it goes out, also where a secret was taken
// out of that: the host's own header, and the argument as it was, still have it.
func TestHeadersOfRedactedArguments(t *testing.T) {
	fl := &inbound{
		ex:     &edge.Exchange{},
		params: []paramHeader{{[]string{"k"}, "Key"}},
	}
	c := &interceptor.Call{Target: interceptor.Target{
		Method: "tools/call", Arguments: json.RawMessage(`{"k":"secret"}`),
		Header: http.Header{"Mcp-Param-Key": {"secret"}, "Mcp-Param-Zone": {"eu"}},
	}}
	got := fl.request(newRig(t, false, nil).g, c, &upstream.Server{Key: "up"}, nil, json.RawMessage(`{"name":"x","arguments":{"k":"[REDACTED:x]"}}`)).Header
	if got.Get("Mcp-Param-Key") != "[REDACTED:x]" || got.Get("Mcp-Param-Zone") != "eu" {
		t.Errorf("headers = %v", got)
	}
}

// What stands beside a request's params goes by the policy for arguments, too.
func TestBesideTheParams(t *testing.T) {
	secret := "AK" + "IAQYLPMN5HHHFPZAM2"
	host := http.Header{"Mcp-Param-Key": {secret, "plain"}, "Mcp-Param-Zone": {"eu"}, "Accept": {"x"}}
	for _, tc := range []struct{ policy, extra, key, zone string }{
		{"report", `,"x":"` + secret + `","y":1`, secret + " plain", "eu"},
		{"redact", `,"x":"[REDACTED:aws-access-token]","y":1`, "[REDACTED:aws-access-token] plain", "eu"},
		{"block", "", "plain", "eu"},
	} {
		g := newRig(t, false, nil).g
		g.cfg.Scrub.Arguments = tc.policy
		m := interceptor.Message{Server: "up", Header: forwardHeader(host), Extra: []byte(`,"x":"` + secret + `","y":1`)}
		g.boundary.Outbound(t.Context(), &m)
		extra, header := m.Extra, m.Header
		if string(extra) != tc.extra || strings.Join(header["Mcp-Param-Key"], " ") != tc.key || strings.Join(header["Mcp-Param-Zone"], " ") != tc.zone || len(header) != 2 {
			t.Errorf("%s: members %s, headers %v", tc.policy, extra, header)
		}
	}
	if host["Mcp-Param-Key"][0] != secret {
		t.Error("the host's own headers were changed")
	}
}
