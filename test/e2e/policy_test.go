//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// policyConfig lets alice, an analyst of team data, and bob use parts of the fake server.
func policyConfig(file, unlisted string) string {
	return strings.Replace(principals(), "alice: {", "alice: {team: data, roles: [analyst], ", 1) + fakeConfig(file, `run: {allow: ["fake__*"]}
policy:
  default: deny
  unlisted: `+unlisted+`
  rules:
    - {name: readers, who: {team: data}, allow: [fake__echo], when: 'args.sql.startsWith("SELECT")'}
    - {name: everyone, allow: [fake__text, fake__pid], prompts: {allow: ["fake__*"]}, resources: {allow: ["fake://a"]}}
    - {name: only-alice, who: {principal: "[!a]*"}, deny: ["*__pid"], prompts: {deny: ["**"]}}
    - {name: folded, who: {role: analyst}, allow: [fake__progress], require: branch}
`)
}

// A principal sees what the policy allows it, and nothing else can be used: by no method and in no
// spelling. The trace names the rule.
func TestPolicy(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx, file := testContext(t), recordFile(t)
			g := newGateway(t, policyConfig(file, "forbidden"))
			url := g.http()
			hosts := map[string]*mcpclient.Client{"alice": g.as(t, url, era, "alice"), "bob": g.as(t, url, era, "bob")}
			for _, tt := range []struct {
				who, method, field, member string
				want                       []string
			}{
				{"alice", "tools/list", "tools", "name", []string{"fake__echo", "fake__text", "fake__progress", "fake__pid"}},
				{"bob", "tools/list", "tools", "name", []string{"fake__text"}},
				{"alice", "prompts/list", "prompts", "name", []string{"fake__greet"}},
				{"bob", "prompts/list", "prompts", "name", nil},
				{"alice", "resources/list", "resources", "uri", []string{"fake://a"}},
				{"bob", "resources/templates/list", "resourceTemplates", "uriTemplate", nil},
			} {
				got := names(t, hosts[tt.who], tt.method, tt.field, tt.member)
				slices.Sort(got)
				slices.Sort(tt.want)
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("%s of %s (-want +got):\n%s", tt.method, tt.who, diff)
				}
			}
			before := len(recorded(t, file))
			refused := []string{}
			for _, tt := range []struct{ who, method, params, rule, says string }{
				{"alice", "tools/call", `{"name":"fake__echo","arguments":{"sql":"DROP"}}`, "readers", `only if args.sql.startsWith`},
				{"alice", "tools/call", `{"name":"fake__echo","arguments":{}}`, "readers", "no such key: sql"},
				{"alice", "tools/call", `{"name":"fake__echo","arguments":{"sql":"SELECT","SQL":"DROP"}}`, "readers", `write \"sql\"`},
				{"alice", "tools/call", `{"name":"fake__echo","arguments":{"sql":"SELECT","sq\u006c":"DROP"}}`, "readers", "twice"},
				{"alice", "tools/call", `{"name":"fake__progress","arguments":{"count":1}}`, "folded", "call branch_create"},
				{"alice", "tools/call", `{"name":"fake__log","arguments":{}}`, "default", "no rule of the policy allows you the tool fake__log"},
				{"bob", "tools/call", `{"name":"fake__echo","arguments":{"sql":"SELECT"}}`, "default", "no rule"},
				{"bob", "tools/call", `{"name":"fake__pid","arguments":{}}`, "only-alice", "forbids the tool fake__pid to you"},
				{"bob", "prompts/get", `{"name":"fake__greet","arguments":{"who":"x"}}`, "only-alice", "forbids the prompt"},
				{"bob", "completion/complete", `{"ref":{"type":"ref/prompt","name":"fake__greet"},"argument":{"name":"who","value":"x"}}`, "only-alice", "forbids the prompt"},
				{"bob", "resources/read", `{"uri":"fake://b"}`, "default", "no rule"},
				{"bob", "resources/read", `{"uri":"fake://a/../b"}`, "default", "no rule"},
				{"bob", "resources/read", `{"uri":"fake://unlisted"}`, "default", "no rule"},
				{"bob", "completion/complete", `{"ref":{"type":"ref/resource","uri":"fake://{id}"},"argument":{"name":"id","value":"x"}}`, "default", "no rule"},
				{"bob", map[mcpclient.Era]string{mcpclient.Legacy: "resources/subscribe", mcpclient.Modern: "subscriptions/listen"}[era],
					`{"uri":"fake://b","notifications":{"resourceSubscriptions":["fake://a","fake://b"]}}`, "default", "no rule"},
				{"bob", "x/unknown", `{}`, "default", "no rule of the policy allows you the method x/unknown"},
			} {
				m, err := hosts[tt.who].Call(ctx, tt.method, tt.params)
				if err != nil {
					t.Fatal(err)
				}
				if got := string(m.Error) + string(m.Result); !strings.Contains(strings.ReplaceAll(got, `\\\"`, `\"`), tt.says) || tt.method == "tools/call" && !parseResult(t, m).IsError {
					t.Errorf("%s %s of %s = %s, want %s", tt.method, tt.params, tt.who, got, tt.says)
				}
				refused = append(refused, tt.who+" "+tt.method+" "+tt.rule)
			}
			batch := said(t, tool(t, hosts["alice"], ctx, "branch_run", `{"tool":"fake__echo","each":[{"sql":"DROP"},{"sql":"SELECT 7"}]}`))
			if !strings.Contains(batch, "readers") || !strings.Contains(batch, "SELECT 7") {
				t.Errorf("the batch says %s", batch)
			}
			refused = append(refused, "alice tools/call readers")
			if sent := recorded(t, file)[before:]; slices.ContainsFunc(sent, func(m string) bool {
				return strings.Contains(m, "DROP") || strings.Contains(m, "fake://b") || strings.Contains(m, "x/unknown") || strings.Contains(m, "greet")
			}) {
				t.Errorf("the server got %s", sent)
			}
			b := create(t, hosts["alice"], ctx, map[string]any{}).BranchID
			for _, tt := range []struct{ who, method, params, says string }{
				{"alice", "tools/call", `{"name":"fake__echo","arguments":{"sql":"SELECT 1"}}`, "SELECT 1"},
				{"alice", "tools/call", `{"name":"fake__progress","arguments":{"count":1,"branch_id":"` + b + `"}}`, "content"},
				{"alice", "prompts/get", `{"name":"fake__greet","arguments":{"who":"x"}}`, "messages"},
				{"alice", "completion/complete", `{"ref":{"type":"ref/prompt","name":"fake__greet"},"argument":{"name":"who","value":"x"}}`, "two"},
				{"bob", "resources/read", `{"uri":"fake://a"}`, "content of fake://a"},
				{"bob", "tools/call", `{"name":"fake__text","arguments":{"text":"hi"}}`, "hi"},
			} {
				if m := call(t, hosts[tt.who], ctx, tt.method, tt.params); !strings.Contains(string(m.Result), tt.says) || strings.Contains(string(m.Result), `"isError":true`) {
					t.Errorf("%s %s of %s = %s", tt.method, tt.params, tt.who, m.Result)
				}
			}
			g.stop()
			var got []string
			for _, r := range traceAs[audited](g, "--reason", "policy", "--blocked") {
				got = append(got, r.Audit.Principal+" "+strings.TrimPrefix(r.Kind, "mcp/response:")+" "+r.Audit.Decision.Rule)
			}
			slices.Sort(got)
			slices.Sort(refused)
			if diff := cmp.Diff(refused, got); diff != "" {
				t.Errorf("refusals in the trace (-want +got):\n%s", diff)
			}
		})
	}
}

// With unlisted: unknown, what a principal does not see looks as if it did not exist. The trace
// tells the two apart.
func TestPolicyHides(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, policyConfig(recordFile(t), "unknown"))
			url := g.http()
			bob := g.as(t, url, era, "bob")
			tool(t, g.as(t, url, era, "alice"), ctx, "fake__pid", `{}`)
			for _, tt := range []struct{ method, params, hidden, missing string }{
				{"tools/call", `{"name":%q,"arguments":{}}`, "fake__pid", "fake__dip"},
				{"tools/call", `{"name":%q,"arguments":{"branch_id":7}}`, "fake__pid", "fake__dip"},
				{"prompts/get", `{"name":%q}`, "fake__greet", "fake__greed"},
				{"completion/complete", `{"ref":{"type":"ref/prompt","name":%q},"argument":{"name":"who","value":"x"}}`, "fake__greet", "fake__greed"},
			} {
				var said [2]string
				for i, name := range []string{tt.hidden, tt.missing} {
					m, err := bob.Call(ctx, tt.method, fmt.Sprintf(tt.params, name))
					if err != nil {
						t.Fatal(err)
					}
					said[i] = strings.ReplaceAll(string(m.Error)+string(m.Result), name, "NAME")
				}
				if said[0] != said[1] || strings.Contains(said[0], "policy") {
					t.Errorf("%s of %s: %s\nand of %s: %s", tt.method, tt.hidden, said[0], tt.missing, said[1])
				}
			}
			if m, err := bob.Call(ctx, "resources/read", `{"uri":"fake://b"}`); err != nil || !strings.Contains(string(m.Error), "Resource not found: fake://b") {
				t.Errorf("resources/read = %s, %v", m.Error, err)
			}
			text := said(t, tool(t, bob, ctx, "branch_run", `{"tool":"fake__pid","each":[{}]}`))
			if strings.Contains(text, "policy") || !strings.Contains(text, "Unknown tool: fake__pid") {
				t.Errorf("branch_run says %s", text)
			}
			g.stop()
			var rules []string
			for _, r := range traceAs[audited](g, "--reason", "policy") {
				rules = append(rules, r.Audit.Decision.Rule)
			}
			slices.Sort(rules)
			if want := []string{"default", "only-alice", "only-alice", "only-alice", "only-alice", "only-alice"}; !slices.Equal(rules, want) {
				t.Errorf("the trace has the rules %v, want %v", rules, want)
			}
		})
	}
}

// With action: warn, all is shown and nothing is refused. The trace has the rules that would refuse. A reload
// puts them in force.
func TestPolicyWarns(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx, file := testContext(t), recordFile(t)
			g := newGateway(t, strings.Replace(policyConfig(file, "unknown"), "  unlisted:", "  action: warn\n  unlisted:", 1))
			url := g.http()
			bob := g.as(t, url, era, "bob")
			if got := names(t, bob, "tools/list", "tools", "name"); !slices.Contains(got, "fake__pid") || !slices.Contains(got, "fake__log") {
				t.Errorf("bob sees %v, want all", got)
			}
			if out := g.output("check", "--as", "bob"); !strings.Contains(out, "(rule only-alice would hide it") {
				t.Errorf("check does not say what would be hidden:\n%s", out)
			}
			if out := g.output("check"); !strings.Contains(out, "policy.action: is warn") || !strings.Contains(g.log.String(), "the policy only records") {
				t.Errorf("neither check nor the log may pass over it:\n%s", out)
			}
			tool(t, bob, ctx, "fake__pid", `{}`)
			tool(t, bob, ctx, "fake__text", `{"text":"hi"}`) // the policy allows it
			tool(t, bob, ctx, "fake__echo", `{"sql":"SELECT"}`)
			b := create(t, bob, ctx, map[string]any{}).BranchID
			tool(t, bob, ctx, "fake__pid", fmt.Sprintf(`{"branch_id":%q}`, b))
			if m := call(t, bob, ctx, "prompts/get", `{"name":"fake__greet","arguments":{"who":"x"}}`); !strings.Contains(string(m.Result), "messages") {
				t.Errorf("prompts/get = %s", m.Result)
			}
			tool(t, g.as(t, url, era, "alice"), ctx, "fake__progress", `{"count":1}`) // outside of a branch
			text := read(t, g.config)
			write(t, g.config, strings.Replace(string(text), "action: warn", "action: refuse", 1))
			until(t, "the policy is in force", func() bool { return !slices.Contains(names(t, bob, "tools/list", "tools", "name"), "fake__pid") })
			if m, err := bob.Call(ctx, "tools/call", `{"name":"fake__pid","arguments":{}}`); err != nil || !strings.Contains(string(m.Result)+string(m.Error), "Unknown tool: fake__pid") {
				t.Errorf("a refused call = %s%s, %v", m.Result, m.Error, err)
			}
			g.stop()
			var warned []string
			refused := 0
			for _, r := range traceAs[audited](g, "--reason", "policy") {
				if d := r.Audit.Decision; d.Result == "blocked" {
					refused++
				} else {
					warned = append(warned, r.Audit.Principal+" "+strings.TrimPrefix(r.Kind, "mcp/response:")+" "+d.Rule)
				}
			}
			want := []string{"bob tools/call only-alice", "bob tools/call default", "bob tools/call only-alice", "bob prompts/get only-alice", "alice tools/call folded"}
			if diff := cmp.Diff(want, warned); diff != "" || refused != 1 {
				t.Errorf("%d refusals, want 1; warnings in the trace (-want +got):\n%s", refused, diff)
			}
		})
	}
}

// A request without an id reaches no server, on any transport. The trace has it as refused.
func TestRequestsWithoutID(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx, file := testContext(t), recordFile(t)
		g := newGateway(t, fakeConfig(file, ""))
		c := g.connect(ctx, transport, era)
		tool(t, c, ctx, "fake__echo", `{}`)
		for _, method := range []string{"tools/call", "x/delete"} {
			_ = c.Notify(ctx, method, `{"name":"pid","arguments":{}}`) // modern HTTP refuses a tools/call that has no headers for it
		}
		if err := c.Notify(ctx, "notifications/x", `{}`); err != nil {
			t.Fatal(err)
		}
		until(t, "the notification after them arrives", func() bool { return len(recordedMethod(t, file, "notifications/x")) == 1 })
		if n, m := len(recordedMethod(t, file, "tools/call")), len(recordedMethod(t, file, "x/delete")); n != 1 || m != 0 {
			t.Errorf("the server got %d calls of tools and %d x/delete, want 1 and 0", n, m)
		}
		g.stop()
		if out := g.output("trace", "--blocked", "--format", "jsonl"); !strings.Contains(out, `mcp/reject:x/delete`) {
			t.Errorf("the trace has no refusal:\n%s", out)
		}
	})
}

// A policy that can't be used stops the start, with the line.
func TestPolicyFaults(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "policy:\n  default: deny\n  rules:\n    - {name: a, allow: [x], when: 'arg.x == 1'}\n")
	cmd := g.command("check")
	cmd.Stderr = nil
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "line 5: policy.rules[0].when: ") || !strings.Contains(string(out), "undeclared reference to 'arg'") {
		t.Errorf("check = %v, %s", err, out)
	}
}
