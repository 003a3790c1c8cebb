//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// through calls a tool by call_tool.
func through(t *testing.T, c *mcpclient.Client, ctx context.Context, name, args, more string) mcpclient.Message {
	t.Helper()
	return call(t, c, ctx, "tools/call", fmt.Sprintf(`{"name":"call_tool","arguments":{"name":%q,"arguments":%s%s},"_meta":{"k":1.0,"progressToken":"p"}}`, name, args, more))
}

// With tools.mode: search a host lists few tools, finds the others and calls them as if they were listed.
// The list stays as it is when an upstream's changes.
func TestSearch(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx, file := testContext(t), recordFile(t)
		g := newGateway(t, fakeConfig(file, "tools: {mode: search, always: [fake__pid]}\n"))
		c := g.unstarted(transport, era)
		var changes, progress atomic.Int32
		c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
			switch m.Method {
			case "notifications/tools/list_changed":
				changes.Add(1)
			case "notifications/progress":
				progress.Add(1)
			}
			return nil, nil
		}
		if greeting, err := c.Start(ctx); err != nil || !strings.Contains(string(greeting), "find_tools") {
			t.Fatalf("the instructions do not name find_tools: %s, err %v", greeting, err)
		}
		want := []string{"find_tools", "call_tool", "fake__pid"}
		if diff := cmp.Diff(want, names(t, c, "tools/list", "tools", "name")); diff != "" {
			t.Fatalf("listed (-want +got):\n%s", diff)
		}
		found := text(t, c, ctx, "find_tools", `{"query":"echo","limit":1}`)
		definition, note, _ := strings.Cut(found, "\n")
		if definition != `{"name":"fake__echo","description":"test tool","inputSchema":{"type":"object","properties":{"n":{"type":"number","maximum":9007199254740993}},"x-future":1.0}}` || !strings.Contains(note, "fake (18)") {
			t.Errorf("found %s", found)
		}
		if all := text(t, c, ctx, "find_tools", `{"server":"fake","limit":3}`); strings.Count(all, "inputSchema") != 3 || strings.Count(all, "\nfake__") != 11 || strings.Count(all, " fake__") != 4 {
			t.Errorf("all of fake: %s", all)
		}
		for args, says := range map[string]string{
			`{}`:                            "query is missing",
			`{"query":"x","server":"nope"}`: "there are fake (18)",
			`{"query":"x","limit":21}`:      "limit must be at most 20",
			`{"query":"` + strings.Repeat("x", 1001) + `"}`: "more than 1000",
		} {
			if m := tool(t, c, ctx, "find_tools", args); !parseResult(t, m).IsError || !strings.Contains(string(m.Result), says) {
				t.Errorf("find_tools %.40s = %s, want %s", args, m.Result, says)
			}
		}
		if none := text(t, c, ctx, "find_tools", `{"query":"qwertz"}`); !strings.HasPrefix(none, "[no tool has these words") {
			t.Errorf("found %s", none)
		}

		// The server gets the same, and the host gets the same back, byte for byte.
		const args = `{"n":9007199254740993,"a":"\ud83d","b":1.0}`
		direct := call(t, c, ctx, "tools/call", `{"name":"fake__echo","arguments":`+args+`,"_meta":{"k":1.0,"progressToken":"p"}}`)
		if by := through(t, c, ctx, "fake__echo", args, ""); withoutTrace(by.Result) != withoutTrace(direct.Result) {
			t.Errorf("through call_tool:\n%s\ndirect:\n%s", by.Result, direct.Result)
		}
		sent := recordedMethod(t, file, "tools/call")
		if a, b := withoutTrace([]byte(sent[len(sent)-2])), withoutTrace([]byte(sent[len(sent)-1])); a != b {
			t.Errorf("the server got\n%s\nand\n%s", a, b)
		}
		if m := through(t, c, ctx, "fake__raw", `{"result":{"content":[],"structuredContent":{"a":1.0},"isError":true,"resultType":"complete"}}`, ""); !strings.Contains(string(m.Result), `"structuredContent":{"a":1.0}`) || !parseResult(t, m).IsError {
			t.Errorf("raw = %s", m.Result)
		}
		through(t, c, ctx, "fake__progress", `{"count":3}`, "")
		if n := progress.Load(); n != 3 {
			t.Errorf("%d progress notifications, want 3", n)
		}
		slowIsCancelledAs(t, ctx, c, transport, era, `{"name":"call_tool","arguments":{"name":"fake__slow","arguments":{"ms":50000}}}`, file)

		// A branch pays the same, whichever way it is named.
		b := create(t, c, ctx, map[string]any{}).BranchID
		began := statusOf(t, c, ctx, b).BudgetUsed
		text(t, c, ctx, "fake__text", `{"text":"hello","branch_id":"`+b+`"}`)
		used := statusOf(t, c, ctx, b).BudgetUsed - began
		through(t, c, ctx, "fake__text", `{"text":"hello"}`, `,"branch_id":"`+b+`"`)
		through(t, c, ctx, "fake__text", `{"text":"hello","branch_id":"`+b+`"}`, "")
		if now := statusOf(t, c, ctx, b).BudgetUsed - began; used == 0 || now != 3*used {
			t.Errorf("one call costs %d, three %d", used, now)
		}
		text(t, c, ctx, "find_tools", `{"query":"echo","branch_id":"`+b+`"}`)
		if now := statusOf(t, c, ctx, b).BudgetUsed - began; now < 3*used+50 {
			t.Errorf("what find_tools found cost the branch %d", now-3*used)
		}

		// foldgate's own tools can be called so, too; what can't be called says why.
		if m := through(t, c, ctx, "branch_status", `{}`, `,"branch_id":"`+b+`"`); !strings.Contains(string(m.Result), b) {
			t.Errorf("branch_status = %s", m.Result)
		}
		if batch := text(t, c, ctx, "branch_run", `{"steps":[{"tool":"call_tool"}]}`); !strings.Contains(batch, "can't be part of a batch") {
			t.Errorf("a batch of call_tool: %s", batch)
		}
		for args, says := range map[string]string{
			`{"name":"fake__ecko","arguments":{}}`:                                        "did you mean fake__echo",
			`{"name":"nope","arguments":{}}`:                                              "find_tools finds tools",
			`{"arguments":{}}`:                                                            "name is missing",
			`{"name":"fake__echo","arguments":[]}`:                                        "arguments must be an object",
			`{"name":"call_tool","arguments":{"name":"fake__echo"}}`:                      "call itself",
			`{"name":"fake__echo","branch_id":"br_00000000-0000-4000-8000-000000000000"}`: "branch",
		} {
			m := tool(t, c, ctx, "call_tool", args)
			if r := parseResult(t, m); !strings.Contains(string(m.Result), says) || !r.IsError {
				t.Errorf("call_tool %s = %s, want %s", args, m.Result, says)
			}
		}

		// A change at the upstream is found, and not announced.
		through(t, c, ctx, "fake__list_changed", `{}`, "")
		until(t, "the new tool is found", func() bool {
			return strings.HasPrefix(text(t, c, ctx, "find_tools", `{"query":"extra"}`), `{"name":"fake__extra"`)
		})
		if m := through(t, c, ctx, "fake__extra", `{"text":"new"}`, ""); said(t, m) != "new" {
			t.Errorf("fake__extra = %s", m.Result)
		}
		if diff := cmp.Diff(want, names(t, c, "tools/list", "tools", "name")); diff != "" {
			t.Errorf("listed after the change (-want +got):\n%s", diff)
		}
		g.stop()
		if n := changes.Load(); n != 0 {
			t.Errorf("%d changes of the list were announced", n)
		}
		type called struct {
			Kind  string
			Audit struct{ Tool, Via, Server string }
		}
		kinds := map[string]int{}
		for _, r := range traceAs[called](g, "--tool", "extra") {
			kinds[strings.Join([]string{r.Kind, r.Audit.Server, r.Audit.Tool, r.Audit.Via}, " ")]++
		}
		if diff := cmp.Diff(map[string]int{"definition/new fake extra ": 1, "mcp/request:tools/call fake extra call_tool": 1, "mcp/response:tools/call fake extra call_tool": 1}, kinds); diff != "" {
			t.Errorf("in the trace (-want +got):\n%s", diff)
		}
	})
}

// withoutTrace returns a message without what differs from call to call.
func withoutTrace(m []byte) string {
	return regexp.MustCompile(`\\?"traceparent\\?":\\?"[^"]*"|"id":\d+|\\?"progressToken\\?":[^,}]*`).ReplaceAllString(string(m), "")
}

// The policy decides about what is found and what is called by call_tool as about a list and a direct call.
func TestSearchPolicy(t *testing.T) {
	t.Parallel()
	for _, unlisted := range []string{"forbidden", "unknown"} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			t.Run(unlisted+"-"+string(era), func(t *testing.T) {
				ctx, file := testContext(t), recordFile(t)
				g := newGateway(t, policyConfig(file, unlisted)+"tools: {mode: search}\n")
				url := g.http()
				alice, bob := g.as(t, url, era, "alice"), g.as(t, url, era, "bob")
				for who, c := range map[string]*mcpclient.Client{"alice": alice, "bob": bob} {
					found := text(t, c, ctx, "find_tools", `{"server":"fake","limit":20}`)
					for _, name := range []string{"fake__echo", "fake__text", "fake__pid", "fake__raw"} {
						listed := name == "fake__text" || who == "alice" && name != "fake__raw"
						if strings.Contains(found, name) != listed {
							t.Errorf("%s finds %s", who, found)
						}
					}
				}
				if found := text(t, bob, ctx, "find_tools", `{"query":"echo pid"}`); strings.Contains(found, "inputSchema") {
					t.Errorf("bob finds %s", found)
				}
				before := len(recordedMethod(t, file, "tools/call"))
				for _, name := range []string{"fake__echo", "fake__pid", "fake__raw"} {
					direct, by := tool(t, bob, ctx, name, `{"sql":"SELECT"}`), through(t, bob, ctx, name, `{"sql":"SELECT"}`, "")
					if string(direct.Result) != string(by.Result) || !parseResult(t, by).IsError {
						t.Errorf("direct: %s\nby call_tool: %s", direct.Result, by.Result)
					}
				}
				if strings.Contains(string(through(t, bob, ctx, "fake__ecko", `{}`, "").Result), "fake__echo") {
					t.Error("bob is told the name of a tool that he must not see")
				}
				if sent := recordedMethod(t, file, "tools/call")[before:]; len(sent) > 0 {
					t.Errorf("the server got %s", sent)
				}
				if m := through(t, alice, ctx, "fake__echo", `{"sql":"DROP"}`, ""); !strings.Contains(string(m.Result), "only if") {
					t.Errorf("alice: %s", m.Result)
				}
				if m := through(t, alice, ctx, "fake__echo", `{"sql":"SELECT 1"}`, ""); !strings.Contains(string(m.Result), "SELECT 1") {
					t.Errorf("alice: %s", m.Result)
				}
			})
		}
	}
}

// tools.mode: auto decides by the host and by the cost of the definitions, once for a session.
func TestSearchAuto(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		g := newGateway(t, fakeConfig(recordFile(t), ""))
		cost := regexp.MustCompile(`pays (\d+) tokens`).FindStringSubmatch(g.output("check"))
		most, _ := strconv.Atoi(cost[1])
		for _, tt := range []struct {
			host     string
			most     int
			searches bool
		}{
			{"foldgate-test", most, false},
			{"foldgate-test", most - 1, true},
			{"claude-code", most - 1, false},
			{"codex-mcp-client", 1, false},
		} {
			write(t, g.config, "state_dir: state\n"+fakeConfig(recordFile(t), fmt.Sprintf("tools: {mode: auto, auto_tokens: %d}\n", tt.most)))
			c := g.unstarted(transport, era)
			c.Name = tt.host
			startHost(t, ctx, c)
			list := func() []string { return names(t, c, "tools/list", "tools", "name") }
			text(t, c, ctx, "fake__text", `{"text":"the upstream is up"}`)
			before := list()
			if slices.Contains(before, "find_tools") != tt.searches || slices.Contains(before, "fake__echo") == tt.searches {
				t.Errorf("%s with auto_tokens %d lists %s", tt.host, tt.most, before)
			}
			text(t, c, ctx, "fake__list_changed", `{}`) // now they cost more
			if !tt.searches {
				until(t, "the list has the new tool", func() bool { return slices.Contains(list(), "fake__extra") })
			} else if diff := cmp.Diff(before, list()); diff != "" {
				t.Errorf("the list changed (-want +got):\n%s", diff)
			}
			if m := through(t, c, ctx, "fake__text", `{"text":"hi"}`, ""); said(t, m) != "hi" {
				t.Errorf("call_tool = %s", m.Result)
			}
			g.stop()
		}
	})
}

// A call by call_tool that becomes a task is the task of the real tool: its result folds, and the branch of
// the call pays.
func TestSearchTask(t *testing.T) {
	t.Parallel()
	ctx, file := testContext(t), recordFile(t)
	g := newGateway(t, fakeConfig(file, "tools: {mode: search}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := create(t, c, ctx, map[string]any{"budget": 2000}).BranchID
	made := call(t, c, ctx, "tools/call", `{"name":"call_tool","task":{"ttl":60000},"arguments":{"name":"fake__raw","branch_id":"`+b+`","arguments":{"result":{"task":{"taskId":"t1","status":"working"}}}}}`)
	if !strings.Contains(string(made.Result), `"taskId":"t1"`) {
		t.Fatalf("call_tool = %s", made.Result)
	}
	sent := recordedMethod(t, file, "tools/call")
	if last := sent[len(sent)-1]; !strings.Contains(last, `"name":"raw"`) || !strings.Contains(last, `"task":{"ttl":60000}`) || strings.Contains(last, "call_tool") {
		t.Errorf("the server got %s", last)
	}
	before := statusOf(t, c, ctx, b).BudgetUsed
	m := call(t, c, ctx, "tasks/result", `{"taskId":"t1"}`)
	if used := statusOf(t, c, ctx, b).BudgetUsed - before; used != resultTokens(t, m) || !strings.Contains(said(t, m), "[Folded") {
		t.Errorf("the branch was charged %d tokens for a preview of %d: %.100s", used, resultTokens(t, m), said(t, m))
	}
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handleIn(t, said(t, m)), "lines": "4000", "branch_id": b})); got != "a row of the task's result" {
		t.Errorf("the last line of the stored result is %q", got)
	}
}

// A secret in a definition is not in what find_tools finds, nor can it be found.
func TestSearchScrubs(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	secret := strings.ToLower(fixtures.Secret()) // one word: capitals would split it into short ones, which can be those of a tool
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -leak, %q]}\ntools: {mode: search}\n", fakeserverBin, " "+secret))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, args := range []string{`{"query":"echo"}`, `{"server":"fake","limit":20}`} {
		if found := text(t, c, ctx, "find_tools", args); strings.Contains(found, secret) || !strings.Contains(found, `"description":"test tool [REDACTED:`) {
			t.Errorf("find_tools %s = %s", args, found)
		}
	}
	if found := text(t, c, ctx, "find_tools", `{"query":"`+secret+`"}`); strings.Contains(found, "inputSchema") || strings.Contains(found, secret) {
		t.Errorf("the secret %s finds %s", secret, found)
	}
	g.stop()
}

// The tools of servers that we did not write are found by what they do, and called.
func TestSearchNPM(t *testing.T) {
	t.Parallel()
	ctx, dir := testContext(t), t.TempDir()
	write(t, filepath.Join(dir, "note.txt"), "a note of 17 bytes")
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fs: {command: %s}\n  every: {command: %s}\ntools: {mode: search}\n",
		jsonText([]string{node(t), module(t, filesystemJS), dir}), jsonText([]string{node(t), module(t, everythingJS), "stdio"})))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	if listed := names(t, c, "tools/list", "tools", "name"); len(listed) != 2 {
		t.Errorf("listed %s", listed)
	}
	for query, want := range map[string]string{"rename a file": "fs__move_file", "add two numbers": "every__get-sum", "read a text file": "fs__read_text_file"} {
		if found := text(t, c, ctx, "find_tools", jsonText(map[string]any{"query": query})); !strings.Contains(found, `{"name":"`+want+`"`) {
			t.Errorf("%s finds %s", query, found)
		}
	}
	if m := through(t, c, ctx, "every__get-sum", `{"a":19,"b":23}`, ""); !strings.Contains(said(t, m), "42") {
		t.Errorf("sum = %s", m.Result)
	}
	if m := through(t, c, ctx, "fs__read_text_file", jsonText(map[string]any{"path": filepath.Join(dir, "note.txt")}), ""); !strings.Contains(said(t, m), "a note of 17 bytes") {
		t.Errorf("read = %s", m.Result)
	}
	t.Log(strings.TrimSpace(g.output("check")))
}
