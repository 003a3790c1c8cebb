//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/llmstub"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// tasks/list has a page of each server. One that is down hides no tasks of the others; its failure is recorded
// and logged.
func TestTaskListOfSeveralServers(t *testing.T) {
	t.Parallel()
	for _, llm := range []bool{true, false} {
		t.Run(fmt.Sprint("own tasks ", llm), func(t *testing.T) {
			t.Parallel()
			ctx, first, second := testContext(t), recordFile(t), recordFile(t)
			model := ""
			if llm {
				model = fmt.Sprintf("llm: {api: openai, url: %q, model: m, key: k}\n", startModel(t, play(llmstub.Say("done"))).URL())
			}
			g := newGateway(t, fmt.Sprintf("%supstreams:\n  down: {command: [%q]}\n  none: {%s}\n  first: {%s}\n  second: {%s}\n", model, "false",
				fakeUpstream(t, "stdio", "legacy"), fakeUpstream(t, "stdio", "legacy", "-record", first), fakeUpstream(t, "stdio", "legacy", "-record", second)))
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			for name, more := range map[string]string{"first": `,"nextCursor":"p2"`, "second": ""} {
				call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"%s__raw","arguments":{"result":{"content":[]},"answers":{"tasks/list":{"result":{"tasks":[{"taskId":"of-%s","n":1.0}]%s}}}}}`, name, name, more))
			}
			own := ""
			if llm {
				own = "br_"
				call(t, c, ctx, "tools/call", `{"name":"branch_create","arguments":{"description":"open"},"task":{}}`)
			}
			m := call(t, c, ctx, "tasks/list", `{}`)
			at := -1
			for _, want := range []string{own, `{"taskId":"of-first","n":1.0}`, `{"taskId":"of-second","n":1.0}`, `"nextCursor":`} {
				next := strings.Index(string(m.Result), want)
				if next <= at && want != "" {
					t.Fatalf("tasks/list = %s, want %s after the rest", m.Result, want)
				}
				at = next
			}
			var page struct{ NextCursor string }
			unmarshal(t, m.Result, &page)
			m = call(t, c, ctx, "tasks/list", jsonText(map[string]string{"cursor": page.NextCursor}))
			if n := strings.Count(string(m.Result), `"taskId"`); n != 1 || !strings.Contains(string(m.Result), "of-first") {
				t.Errorf("the second page is %s, want the tasks of the server with more", m.Result)
			}
			if got := recordedMethod(t, first, "tasks/list"); len(got) != 2 || !strings.Contains(got[1], `"cursor":"p2"`) {
				t.Errorf("the server with two pages was asked %s", got)
			}
			if got := recordedMethod(t, second, "tasks/list"); len(got) != 1 {
				t.Errorf("the server with one page was asked %s", got)
			}
			for _, cursor := range []string{"p2", `{"none of them":""}`} {
				if m, err := c.Call(ctx, "tasks/list", jsonText(map[string]string{"cursor": cursor})); err != nil || !strings.Contains(string(m.Error), "-32602") {
					t.Errorf("tasks/list with the cursor %s = %s %s, %v", cursor, m.Result, m.Error, err)
				}
			}
			g.stop()
			if log := g.log.String(); !strings.Contains(log, "tasks of an upstream are not listed") || !strings.Contains(log, "upstream=down") || strings.Contains(log, "not listed\" upstream=none") {
				t.Errorf("the log: %s", log)
			}
			refused := 0
			for _, r := range g.trace() {
				if strings.HasSuffix(r.Kind, ":tasks/list") && r.From == "upstream:down" && strings.Contains(string(r.Payload), "upstream_unavailable") {
					refused++
				}
			}
			if refused == 0 {
				t.Error("the trace lacks the failure")
			}
		})
	}
}

// A page of tasks may come from a server of the other era, or over a connection that sessions share.
func TestTaskListOfBothEras(t *testing.T) {
	t.Parallel()
	for _, share := range []string{"", "share: principal, "} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			ctx := testContext(t)
			upstreams := ""
			for _, transport := range []string{"stdio", "http"} {
				for _, of := range []string{"legacy", "modern"} {
					upstreams += fmt.Sprintf("  %s_%s: {%s%s}\n", transport, of, share, fakeUpstream(t, transport, of))
				}
			}
			g := newGateway(t, "upstreams:\n"+upstreams)
			c := g.connect(ctx, "stdio", era)
			for range 2 {
				m, err := c.Call(ctx, "tasks/list", `{}`)
				if err != nil || m.Error != nil && !strings.Contains(string(m.Error), "-32601") {
					t.Errorf("%s, %q: tasks/list = %s %s, %v", era, share, m.Result, m.Error, err)
				}
			}
			call(t, c, ctx, "tools/list", `{}`)
			g.stop()
			if log := g.log.String(); strings.Contains(log, "panic") {
				t.Errorf("%s, %q: the log: %s", era, share, log)
			}
		}
	}
}
