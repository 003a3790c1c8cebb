//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// TestRefusedMessagesAreRecorded: a request or notification of an upstream that no host gets has a record
// that names the rule. Kinds of messages are sent in each place where one can be refused.
func TestRefusedMessagesAreRecorded(t *testing.T) {
	t.Parallel()
	requests := []string{"elicitation/create", "sampling/createMessage", "roots/list", "x/custom"}
	notifications := []string{"notifications/message", "notifications/x/custom", "notifications/elicitation/complete"}
	const all = `{"elicitation":{},"sampling":{},"roots":{}}`
	for name, place := range map[string]struct {
		share, transport, up string
		era                  mcpclient.Era
		can                  string
		rule                 string
		refused              []string
	}{
		"everyone":                     {"everyone", "stdio", "legacy", mcpclient.Legacy, all, "share", append(notifications, requests...)},
		"everyone, modern":             {"everyone", "stdio", "legacy", mcpclient.Modern, all, "share", append(notifications, requests...)},
		"no call, legacy":              {"principal", "stdio", "legacy", mcpclient.Legacy, `{}`, "no_call", append(notifications[1:], requests...)},
		"no call, modern":              {"session", "stdio", "legacy", mcpclient.Modern, `{}`, "no_call", append(notifications[1:], requests...)},
		"capability, legacy":           {"principal", "http", "legacy", mcpclient.Legacy, `{}`, "capability", requests},
		"capability, modern":           {"session", "http", "legacy", mcpclient.Modern, `{}`, "capability", requests},
		"era, legacy":                  {"session", "stdio", "modern", mcpclient.Legacy, all, "era", requests},
		"era, modern":                  {"session", "stdio", "modern", mcpclient.Modern, all, "era", requests},
		"unreadable, on its own":       {"session", "stdio", "legacy", mcpclient.Legacy, all, "unreadable", append(notifications, requests...)},
		"unreadable, shared by legacy": {"principal", "stdio", "modern", mcpclient.Legacy, all, "unreadable", append(notifications, requests...)},
		"unreadable, shared by modern": {"session", "stdio", "legacy", mcpclient.Modern, all, "unreadable", append(notifications, requests...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			file := recordFile(t)
			g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {share: %s, %s}\n", place.share, fakeUpstream(t, place.transport, place.up, "-record", file)))
			url := g.http()
			var hosts [3]*mcpclient.Client
			for n := range hosts {
				hosts[n] = mcpclient.HTTP(url, place.era)
				hosts[n].Capabilities = place.can
				g.closes(hosts[n])
				if _, err := hosts[n].Start(ctx); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range hosts[1:] { // so that no call is the only one
				if _, _, err := c.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":600000}}`); err != nil {
					t.Fatal(err)
				}
			}
			until(t, "the other calls are at the upstream", func() bool { return len(recordedMethod(t, file, "tools/call")) == 2 })
			for n, method := range place.refused {
				id := fmt.Sprintf(`"id":%d,`, 1000+n)
				if strings.HasPrefix(method, "notifications/") {
					id = ""
				}
				params := `{"level":"alert","data":"d","message":"m"}`
				if place.rule == "unreadable" {
					params += "]"
				}
				name, arguments := "noise", fmt.Sprintf(`{"text":%s}`, jsonText(fmt.Sprintf(`{"jsonrpc":"2.0",%s"method":%q,"params":%s}`, id, method, params)))
				if place.transport == "http" { // on the stream of its call
					name, arguments = "elicit", fmt.Sprintf(`{"method":%q,"params":%s}`, method, params)
				}
				tool(t, hosts[0], ctx, "fake__"+name, arguments)
			}
			want := slices.Clone(place.refused)
			slices.Sort(want)
			var got []string
			for _, r := range traceAs[audited](g, "--blocked", "--kind", "mcp/reject") {
				method, d := strings.TrimPrefix(r.Kind, "mcp/reject:"), r.Audit.Decision
				if d == nil || d.Result != "blocked" || d.Rule != place.rule || r.From != "upstream:fake" || r.Audit.Server != "fake" || (r.Audit.Principal == "local") == (place.rule == "share") {
					t.Errorf("%s: %+v, %+v", r.Kind, r, d)
				}
				got = append(got, method)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("refused messages with a record: %q, want %q", got, want)
			}
		})
	}
}

// TestRefusedNotificationsHaveARule: a notification that the boundary or a limit keeps from the host has
// a record with the rule.
func TestRefusedNotificationsHaveARule(t *testing.T) {
	t.Parallel()
	for rule, tt := range map[string]struct{ config, arguments string }{
		"secret_in_notification": {"scrub: {results: block}\n", `{"params":{"level":"alert","data":"` + fixtures.Secret() + `"}}`},
		"limit_exceeded":         {"budgets:\n  limits:\n    - {name: few, per: all, tokens: 900, window: 1d}\n", `{"params":{"level":"alert","data":"@@"},"fill":3000}`},
		"too_large":              {"", `{"method":"notifications/tasks","params":{"taskId":"t","status":"completed","result":"@@"},"fill":3000}`},
	} {
		t.Run(rule, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			g := newGateway(t, tt.config+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
			tool(t, g.connect(ctx, "stdio", mcpclient.Legacy), ctx, "fake__log", tt.arguments)
			var rules []string
			for _, r := range traceAs[audited](g, "--blocked", "--kind", "mcp/notification") {
				rules = append(rules, r.Audit.Decision.Rule)
			}
			if !slices.Equal(rules, []string{rule}) {
				t.Errorf("rules of the refused notifications: %q, want %q", rules, rule)
			}
		})
	}
}
