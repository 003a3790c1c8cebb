//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// audited holds the members of a trace record that these tests read.
type audited struct {
	ID, Kind, From string
	To             []string
	Context        string
	Payload        json.RawMessage
	Audit          struct {
		Session, Principal, Team, Server, Tool string
		Bytes                                  int
		Decision                               *struct{ Result, Reason, Rule string }
		Scrub                                  []struct{ Rule, Field, Action string }
	}
}

// ask sends a request as it is and returns its response.
func (h *rawHost) ask(id, method, params string) string {
	h.t.Helper()
	h.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":%s}`, id, method, params))
	return h.answerTo(id)
}

func (h *rawHost) answerTo(id string) string {
	h.t.Helper()
	for {
		line := receive(h.t, h)
		var m struct {
			ID     any
			Method string
		}
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			h.t.Fatalf("%s: %v", line, err)
		}
		if m.ID == id && m.Method == "" {
			return line
		}
	}
}

// begin starts a legacy session. info are the members of clientInfo.
func (h *rawHost) begin(info string) {
	h.t.Helper()
	h.ask("begin", "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{`+info+`}}`)
	h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
}

// open opens a branch and returns its id.
func (h *rawHost) open(id, arguments string) string {
	h.t.Helper()
	answer := h.ask(id, "tools/call", `{"name":"branch_create","arguments":`+arguments+`}`)
	_, rest, ok := strings.Cut(answer, `br_`)
	if !ok {
		h.t.Fatalf("branch_create %s: %s", arguments, answer)
	}
	return "br_" + rest[:36]
}

// Each way to be refused is in the trace as blocked, with its reason and rule.
func TestEveryRefusalIsRecorded(t *testing.T) {
	t.Parallel()
	secret := fixtures.Secret()
	up := func(key, more string) string {
		return fmt.Sprintf("  %s: {command: [%q, -era, both], %s}\n", key, fakeserverBin, more)
	}
	g := newGateway(t, "upstreams:\n"+up("fake", `tools: {deny: ["crash", "noise*"]}`)+up("late", "timeout_seconds: 1")+up("brittle", "timeout_seconds: 9")+
		up("shut", "scrub: {arguments: block}")+up("mute", "scrub: {results: block}")+"  gone: {command: [\"sh\", \"-c\", \"exit 3\"]}\n"+
		"trace: {correlation: strict}\nfolding: {max_concurrent_per_session: 3}\n")
	h := rawStdio(t, g.command("run"), mcpclient.Legacy)
	h.begin(`"name":"refused","version":"1"`)
	h.ask("tools", "tools/list", `{}`)
	small := h.open("small", `{"description":"small","budget":60}`)
	ended := h.open("ended", `{"description":"ended"}`)
	h.ask("end", "tools/call", `{"name":"branch_return","arguments":{"branch_id":"`+ended+`","message":"done"}}`)
	h.open("two", `{"description":"two"}`)
	h.open("three", `{"description":"three"}`)

	echo := func(members string) string {
		return `{"name":"fake__echo","arguments":{"text":"a"}` + members + `}`
	}
	meta := func(members string) string { return echo(`,"_meta":{` + members + `}`) }
	own := func(tool, arguments string) string {
		return `{"name":"` + tool + `","arguments":` + arguments + `}`
	}
	const key = `"io.github.foldgate/`
	ways := []struct{ way, reason, method, params string }{
		{"params are an array", "invalid", "tools/call", `[]`},
		{"params are a string", "invalid", "prompts/get", `"a"`},
		{"no name", "invalid", "tools/call", `{}`},
		{"the name is a number", "invalid", "tools/call", `{"name":7}`},
		{"the name is there twice", "invalid", "tools/call", `{"name":"fake__echo","name":"fake__text"}`},
		{"unknown tool", "invalid", "tools/call", `{"name":"nobody__tool"}`},
		{"denied tool", "policy", "tools/call", `{"name":"fake__crash","arguments":{}}`},
		{"tool denied by a pattern", "policy", "tools/call", `{"name":"fake__noise_of_any_kind"}`},
		{"unknown prompt", "invalid", "prompts/get", `{"name":"nobody"}`},
		{"no prompt", "invalid", "prompts/get", `{}`},
		{"no uri", "invalid", "resources/read", `{}`},
		{"nothing to subscribe to", "invalid", "resources/subscribe", `{"uri":7}`},
		{"no ref", "invalid", "completion/complete", `{}`},
		{"unknown log level", "invalid", "logging/setLevel", `{"level":"loud"}`},
		{"initialize again", "invalid", "initialize", `{}`},
		{"method of the other era", "invalid", "ping", `{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}`},

		{"_meta twice", "invalid", "tools/call", echo(`,"_meta":{},"_meta":{}`)},
		{"_meta in two spellings", "invalid", "tools/call", echo(`,"_meta":{},"_Meta":{}`)},
		{"correlation as a number", "invalid", "tools/call", meta(key + `correlationId":7`)},
		{"correlation of numbers", "invalid", "tools/call", meta(key + `correlationId":[7]`)},
		{"empty correlation", "invalid", "tools/call", meta(key + `correlationId":[""]`)},
		{"correlation as a string", "invalid", "tools/call", meta(key + `correlationId":"a"`)},
		{"later correlation as a string", "invalid", "prompts/get", meta(key + `correlation_id":"a"`)},
		{"context as a number", "invalid", "tools/call", meta(key + `context":7`)},
		{"context as an object", "invalid", "tools/call", meta(key + `context":{"id":"a"}`)},
		{"context with an operation", "invalid", "tools/call", meta(key + `context":{"id":"a","operation":"push"}`)},
		{"context that is no path", "invalid", "tools/call", meta(key + `context":"a b"`)},
		{"context too deep", "invalid", "tools/call", meta(key + `context":"a/b/c/d/e/f"`)},
		{"context that names a branch", "invalid", "tools/call", meta(key + `context":"` + small + `"`)},
		{"context with a secret", "invalid", "tools/call", meta(key + `context":"notes/` + secret + `"`)},

		{"unknown branch", "invalid", "tools/call", own("fake__echo", `{"branch_id":"`+unknownBranch+`"}`)},
		{"unknown branch in _meta", "invalid", "tools/call", meta(key + `branch_id":"` + unknownBranch + `"`)},
		{"branch as a number", "invalid", "tools/call", own("fake__echo", `{"branch_id":7}`)},
		{"ended branch", "invalid", "tools/call", own("fake__echo", `{"branch_id":"`+ended+`"}`)},
		{"too many branches", "resource_limit", "tools/call", own("branch_create", `{"description":"four"}`)},
		{"over the budget", "resource_limit", "tools/call", own("fake__echo", `{"branch_id":"`+small+`","text":"`+strings.Repeat("many words ", 200)+`"}`)},
		{"no description", "invalid", "tools/call", own("branch_create", `{}`)},
		{"negative budget", "invalid", "tools/call", own("branch_create", `{"description":"a","budget":-1}`)},
		{"secret as a session", "invalid", "tools/call", own("branch_create", `{"description":"a","session_id":"`+secret+`"}`)},
		{"unknown argument", "invalid", "tools/call", own("branch_status", `{"a":1}`)},
		{"return without a branch", "invalid", "tools/call", own("branch_return", `{"message":"a"}`)},
		{"return without a message", "invalid", "tools/call", own("branch_return", `{"branch_id":"`+ended+`"}`)},
		{"unknown result", "invalid", "tools/call", own("branch_read", `{"handle":"`+unknownResult+`"}`)},
		{"batch without calls", "invalid", "tools/call", own("branch_run", `{"steps":[]}`)},

		{"secret in the arguments", "unsafe", "tools/call", own("shut__echo", `{"text":"`+secret+`"}`)},
		{"secret in the result", "unsafe", "tools/call", own("mute__text", `{"text":"`+secret+`"}`)},
		{"server too slow", "timeout", "tools/call", own("late__slow", `{"ms":30000}`)},
		{"server crashes", "upstream", "tools/call", own("brittle__crash", `{}`)},
		{"server that does not start", "upstream", "tools/call", own("gone__tool", `{}`)},
	}
	for i, w := range ways {
		if answer := h.ask(fmt.Sprint("way ", i), w.method, w.params); !strings.Contains(answer, `"error":`) && !strings.Contains(answer, `"isError":true`) {
			t.Errorf("%s: %s, want a refusal", w.way, answer)
		}
	}
	h.ask("batch", "tools/call", own("branch_run", `{"steps":[{"tool":"nobody__a","arguments":{}},{"tool":"fake__crash","arguments":{}},{"tool":"fake__text","arguments":{}},{"tool":"branch_run","arguments":{}}]}`))
	h.write(`{"jsonrpc":"2.0","id":"twice","method":"tools/call","params":` + own("late__slow", `{"ms":500}`) + `}`)
	h.write(`{"jsonrpc":"2.0","id":"twice","method":"tools/call","params":{"name":"fake__echo"}}`)
	h.answerTo("twice")
	h.answerTo("twice")

	byID, steps, rejects := map[string]audited{}, []string(nil), 0
	for _, r := range traceAs[audited](g, "--blocked") {
		var p struct{ ID any }
		_ = json.Unmarshal(r.Payload, &p)
		id, _ := p.ID.(string)
		byID[id] = r
		if r.Audit.Decision == nil || r.Audit.Decision.Rule == "" && !strings.HasPrefix(id, "res_") {
			t.Errorf("%s has no rule: %+v", r.Kind, r.Audit)
		}
		if strings.HasPrefix(r.Kind, "mcp/request") {
			t.Errorf("a request is blocked, not its response: %s", r.Payload)
		}
		if strings.HasPrefix(id, "res_") {
			steps = append(steps, r.Audit.Tool+" "+r.Audit.Decision.Reason)
		}
		if strings.HasPrefix(r.Kind, "mcp/reject:tools/call") {
			rejects++
		}
	}
	missed := 0
	for i, w := range ways {
		r, ok := byID[fmt.Sprint("way ", i)]
		if !ok {
			t.Errorf("%s: not listed by --blocked", w.way)
			missed++
			continue
		}
		if d := r.Audit.Decision; d.Reason != w.reason || r.Audit.Principal != "local" {
			t.Errorf("%s: %+v of %q, want %s", w.way, d, r.Audit.Principal, w.reason)
		}
		if strings.HasPrefix(w.way, "denied") && (r.Audit.Server != "fake" || r.Audit.Tool != "crash") {
			t.Errorf("%s: server %q, tool %q", w.way, r.Audit.Server, r.Audit.Tool)
		}
	}
	slices.Sort(steps)
	if want := []string{"branch_run invalid", "crash policy", "nobody__a invalid", "text policy"}; !slices.Equal(steps, want) {
		t.Errorf("refused calls of a batch: %q, want %q", steps, want)
	}
	if rejects != 1 {
		t.Errorf("%d records of the id in use, want 1", rejects)
	}
	t.Logf("%d ways, %d missed", len(ways), missed)
}

// Each message that the server itself refuses is in the trace, with its rule and the answer.
func TestEveryRefusalOfTheServerIsRecorded(t *testing.T) {
	t.Parallel()
	type way struct {
		name, method, path string
		header             http.Header
		body, rule, reason string
	}
	legacy := func(body string) string { return `{"jsonrpc":"2.0","id":1,` + body + `}` }
	modern := legacy(`"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}`)
	version := func(v string, more ...string) http.Header {
		h := http.Header{"Mcp-Protocol-Version": {v}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	const now, init = "2026-07-28", `"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"a","version":"1"}}`
	ways := []way{
		{"foreign host", "POST", "", http.Header{"Host": {"evil.example"}}, legacy(init), "http_403", "policy"},
		{"foreign origin", "POST", "", http.Header{"Origin": {"https://evil.example"}}, legacy(init), "http_403", "policy"},
		{"two origins", "POST", "", http.Header{"Origin": {"http://127.0.0.1", "http://127.0.0.1"}}, legacy(init), "http_403", "policy"},
		{"no token", "POST", "", http.Header{"Authorization": nil}, legacy(init), "principals", "policy"},
		{"wrong token", "GET", "", http.Header{"Authorization": {"Bearer x"}}, "", "principals", "policy"},
		{"method", "PUT", "", nil, "", "http_405", "invalid"},
		{"method of the other era", "GET", "", version(now), "", "http_405", "invalid"},
		{"content type", "POST", "", http.Header{"Content-Type": {"text/plain"}}, "x", "http_415", "invalid"},
		{"accept", "POST", "", http.Header{"Accept": {"text/html"}}, "x", "http_406", "invalid"},
		{"accept of a stream", "GET", "", http.Header{"Accept": {"text/html"}}, "", "http_406", "invalid"},
		{"too large", "POST", "", http.Header{"Expect": {"100-continue"}}, "", "http_413", "resource_limit"},
		{"no JSON", "POST", "", nil, "{", "-32700", "invalid"},
		{"no message", "POST", "", nil, "{}", "-32600", "invalid"},
		{"no object", "POST", "", nil, "7", "-32600", "invalid"},
		{"no session", "POST", "", nil, legacy(`"method":"ping"`), "-32600", "invalid"},
		{"unknown session", "POST", "", http.Header{"Mcp-Session-Id": {"x"}}, legacy(`"method":"ping"`), "http_404", "invalid"},
		{"unknown session's stream", "GET", "", http.Header{"Mcp-Session-Id": {"x"}}, "", "http_404", "invalid"},
		{"unknown session's end", "DELETE", "", http.Header{"Mcp-Session-Id": {"x"}}, "", "http_404", "invalid"},
		{"unknown version", "POST", "", version("2020-01-01"), legacy(`"method":"ping"`), "-32022", "invalid"},
		{"array that is no JSON", "POST", "", http.Header{"Mcp-Session-Id": {"SESSION"}}, "[", "-32700", "invalid"},
		{"empty batch", "POST", "", http.Header{"Mcp-Session-Id": {"SESSION"}}, "[]", "-32600", "invalid"},
		{"message of a batch", "POST", "", http.Header{"Mcp-Session-Id": {"SESSION"}}, `[{"id":{}}]`, "-32600", "invalid"},
		{"initialize in a batch", "POST", "", http.Header{"Mcp-Session-Id": {"SESSION"}}, "[" + legacy(init) + "]", "-32600", "invalid"},
		{"stream twice", "GET", "", http.Header{"Mcp-Session-Id": {"SESSION"}, "Last-Event-Id": {"x"}}, "", "-32600", "invalid"},
		{"modern response", "POST", "", version(now), `{"jsonrpc":"2.0","id":1,"result":{}}`, "-32600", "invalid"},
		{"modern without _meta", "POST", "", version(now, "Mcp-Method", "ping"), legacy(`"method":"ping"`), "-32602", "invalid"},
		{"modern without a header", "POST", "", version(now), modern, "-32020", "invalid"},
		{"modern with another header", "POST", "", version(now, "Mcp-Method", "ping"), modern, "-32020", "invalid"},
		{"modern with two headers", "POST", "", version(now, "Mcp-Method", "a", "Mcp-Method", "b"), modern, "-32020", "invalid"},
		{"version of the future", "POST", "", version("2030-01-01"), strings.Replace(modern, now, "2030-01-01", 1), "-32022", "invalid"},
	}
	g := newGateway(t, principals()+fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\n", fakeserverBin))
	url := g.http()
	client := &http.Client{Transport: &http.Transport{ExpectContinueTimeout: 10 * time.Second}}
	send := func(w way, session string) (int, http.Header, string) {
		req, err := http.NewRequestWithContext(testContext(t), w.method, url+w.path, strings.NewReader(strings.ReplaceAll(w.body, "SESSION", session)))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Authorization": {"Bearer " + tokenOf["alice"]}}
		for k, v := range w.header {
			req.Header[k] = v
		}
		if req.Header.Get("Mcp-Session-Id") == "SESSION" {
			req.Header = req.Header.Clone()
			req.Header.Set("Mcp-Session-Id", session)
		}
		if host := w.header.Get("Host"); host != "" {
			req.Host = host
		}
		if w.header.Get("Expect") != "" {
			req.Body, req.ContentLength = io.NopCloser(zeros{}), 65<<20
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", w.name, err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Header, string(text)
	}
	_, header, _ := send(way{method: "POST", body: legacy(init)}, "")
	session := header.Get("Mcp-Session-Id")
	type refusal struct{ rule, reason, message, who string }
	var want []refusal
	answer := func(name, text, rule, reason, who string) {
		at := strings.Index(text, `"error":`)
		var fault struct{ Message string }
		if at < 0 || json.NewDecoder(strings.NewReader(text[at+len(`"error":`):])).Decode(&fault) != nil || fault.Message == "" {
			t.Errorf("%s: %s, want an error", name, text)
		}
		want = append(want, refusal{rule, reason, fault.Message, who})
	}
	for _, w := range ways {
		_, _, text := send(w, session)
		who := "alice"
		if w.rule == "principals" {
			who = ""
		}
		answer(w.name, text, w.rule, w.reason, who)
	}
	h := rawStdio(t, g.command("run"), mcpclient.Legacy)
	for _, line := range []way{
		{name: "no JSON", body: "{", rule: "-32700", reason: "invalid"}, {name: "no message", body: `{"id":1}`, rule: "-32600", reason: "invalid"},
		{name: "empty batch", body: "[]", rule: "-32600", reason: "invalid"}, {name: "no JSON in a batch", body: `[{"id":{}}]`, rule: "-32600", reason: "invalid"},
		{name: "malformed _meta", body: strings.Replace(modern, `"io.modelcontextprotocol/clientCapabilities":{}`, `"io.modelcontextprotocol/clientCapabilities":7`, 1), rule: "-32602", reason: "invalid"},
		{name: "unknown version", body: strings.Replace(modern, now, "2030-01-01", 1), rule: "-32022", reason: "invalid"},
		{name: "too large", body: strings.Repeat("x", 65<<20), rule: "http_413", reason: "resource_limit"},
	} {
		h.write(line.body)
		answer("stdio: "+line.name, receive(t, h), line.rule, line.reason, "local")
	}
	var got []refusal
	for _, r := range traceAs[audited](g, "--blocked") {
		var p struct{ Error struct{ Message string } }
		if err := json.Unmarshal(r.Payload, &p); err != nil || r.Audit.Decision == nil {
			t.Fatal(err, r)
		}
		if wantFrom := map[bool]string{true: "stdio", false: "http:127.0.0.1"}[r.Audit.Principal == "local"]; r.From != wantFrom {
			t.Errorf("%s is from %s", p.Error.Message, r.From)
		}
		got = append(got, refusal{r.Audit.Decision.Rule, r.Audit.Decision.Reason, p.Error.Message, r.Audit.Principal})
	}
	missed := 0
	for i, w := range want {
		if !slices.Contains(got, w) {
			missed++
			t.Errorf("way %d: no record of %+v", i, w)
		}
	}
	t.Logf("%d ways, %d missed, %d records", len(want), missed, len(got))
}

// zeros is a body without an end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// Whatever a host chooses, the head of a record is short: what is long is cut, and says so.
func TestHeadsOfRecordsAreBounded(t *testing.T) {
	t.Parallel()
	long, secret := strings.Repeat("long-", 200_000), fixtures.Secret()
	call := func(method, params string) string {
		return `{"jsonrpc":"2.0","id":"ID","method":"` + method + `","params":` + params + `}`
	}
	toolCall := func(name, arguments, members string) string {
		return call("tools/call", `{"name":"`+name+`","arguments":`+arguments+members+`}`)
	}
	meta := func(members string) string {
		return toolCall("fake__echo", `{}`, `,"_meta":{`+members+`}`)
	}
	const key = `"io.github.foldgate/`
	places := map[string]string{
		"id":                      strings.Replace(call("tools/call", `{"name":"fake__echo"}`), "ID", "LONG", 1),
		"method":                  call("x/LONG", `{}`),
		"notification":            `{"jsonrpc":"2.0","method":"notifications/LONG"}`,
		"cancelled":               `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"LONG","reason":"LONG"}}`,
		"tool":                    toolCall("LONG", `{}`, ""),
		"tool of a server":        toolCall("fake__LONG", `{}`, ""),
		"denied tool":             toolCall("fake__crash_LONG", `{}`, ""),
		"key before a secret":     toolCall("fake__echo", `{"LONG":"`+secret+`"}`, ""),
		"branch":                  toolCall("fake__echo", `{"branch_id":"LONG"}`, ""),
		"branch in _meta":         meta(key + `branch_id":"LONG"`),
		"context":                 meta(key + `context":"LONG"`),
		"correlation":             meta(key + `correlationId":["LONG"]`),
		"traceparent":             meta(`"traceparent":"LONG"`),
		"longer traceparent":      meta(`"traceparent":"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-LONG"`),
		"thread":                  meta(`"threadId":"LONG"`),
		"version":                 meta(`"io.modelcontextprotocol/protocolVersion":"LONG","io.modelcontextprotocol/clientCapabilities":{}`),
		"session":                 toolCall("branch_create", `{"description":"a","session_id":"LONG"}`, ""),
		"session of a status":     toolCall("branch_status", `{"session_id":"LONG"}`, ""),
		"parent":                  toolCall("branch_create", `{"description":"a","parent_branch_id":"LONG"}`, ""),
		"return":                  toolCall("branch_return", `{"branch_id":"LONG","message":"a"}`, ""),
		"handle":                  toolCall("branch_read", `{"handle":"LONG"}`, ""),
		"tool of a batch":         toolCall("branch_run", `{"steps":[{"tool":"LONG","arguments":{}}]}`, ""),
		"prompt":                  call("prompts/get", `{"name":"LONG"}`),
		"resource":                call("resources/read", `{"uri":"x://LONG"}`),
		"subscription":            call("resources/subscribe", `{"uri":"fake://LONG"}`),
		"task":                    call("tasks/get", `{"taskId":"LONG"}`),
		"cursor":                  call("tools/list", `{"cursor":"LONG"}`),
		"completion":              call("completion/complete", `{"ref":{"type":"ref/prompt","name":"LONG"},"argument":{"name":"LONG","value":"a"}}`),
		"workflow":                toolCall("flow__echo", `{"context_id":"LONG"}`, ""),
		"foreign text in a batch": `[{"jsonrpc":"LONG"}]`,
	}
	up := fmt.Sprintf("{command: [%q, -era, both]}\n", fakeserverBin)
	g := newGateway(t, "upstreams:\n  fake: "+strings.Replace(up, "both]", `both], tools: {deny: ["crash*"]}`, 1)+"  flow: "+up)
	h := rawStdio(t, g.command("run"), mcpclient.Legacy)
	h.begin(`"name":"` + long + `","version":"` + long + `"`)
	for i, place := range slices.Sorted(maps.Keys(places)) {
		id := fmt.Sprint("id ", i)
		line := strings.NewReplacer("LONG", long, "ID", id).Replace(places[place])
		h.write(line)
		switch {
		case place == "id":
			h.answerTo(long)
		case strings.Contains(line, `"id":`):
			h.answerTo(id)
		}
	}
	h.ask("last", "ping", `{}`)
	n := 0
	for line := range strings.Lines(g.output("trace", "--format", "jsonl")) {
		var r map[string]json.RawMessage
		unmarshal(t, []byte(line), &r)
		delete(r, "payload")
		n++
		for member, value := range r {
			if len(value) > 4000 {
				t.Errorf("%s: its %s has %d bytes: %.100s", r["kind"], member, len(value), value)
			}
		}
	}
	t.Logf("%d places, %d records", len(places), n)
}

// Failed logins are recorded, each of the first ten in a minute and a few of the others.
func TestFailedLoginsAreRecorded(t *testing.T) {
	t.Parallel()
	g := newGateway(t, principals()+fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\n", fakeserverBin))
	url := g.http()
	for i := range 50 {
		header := http.Header{"Authorization": {"Bearer " + strings.Repeat("wrong", 4)}}
		if i%2 == 0 {
			header = http.Header{}
		}
		if status, _, body := answered(t, http.DefaultClient, http.MethodPost, url, `{}`, header); status != http.StatusUnauthorized {
			t.Fatalf("%d %s", status, body)
		}
	}
	records := traceAs[audited](g, "--blocked", "--reason", "policy", "--kind", "mcp/reject:login")
	if len(records) < 10 || len(records) > 30 {
		t.Fatalf("%d records of 50 failed logins, want ten and a few more", len(records))
	}
	for _, r := range records {
		if r.Audit.Decision.Rule != "principals" || !strings.HasPrefix(r.From, "http:127.0.0.1") {
			t.Errorf("%+v", r)
		}
	}
}

// What a host chooses is not stored with a secret, wherever it stands.
func TestNoSecretThatAHostChoosesIsStored(t *testing.T) {
	t.Parallel()
	const key = `"io.github.foldgate/`
	call := func(id, method, params string) string {
		return `{"jsonrpc":"2.0","id":"` + id + `","method":"` + method + `","params":` + params + `}`
	}
	toolCall := func(name, arguments, members string) string {
		return call("ID", "tools/call", `{"name":"`+name+`","arguments":`+arguments+members+`}`)
	}
	meta := func(members string) string {
		return toolCall("fake__echo", `{}`, `,"_meta":{`+members+`}`)
	}
	// TOKEN is the secret, ID a fresh id.
	places := map[string]string{
		"request id":               call("TOKEN", "tools/call", `{"name":"fake__echo"}`),
		"request id, escaped":      call(`\u0067TOKEN_REST`, "tools/call", `{"name":"fake__echo"}`),
		"id of an unknown method":  call("TOKEN", "x/y", `{}`),
		"method":                   call("ID", "x/TOKEN", `{}`),
		"notification":             `{"jsonrpc":"2.0","method":"notifications/TOKEN"}`,
		"notification's params":    `{"jsonrpc":"2.0","method":"notifications/x","params":{"TOKEN":"TOKEN"}}`,
		"beside a notification":    `{"jsonrpc":"2.0","method":"notifications/x","TOKEN":"TOKEN"}`,
		"beside params":            `{"jsonrpc":"2.0","id":"ID","method":"tools/call","params":{"name":"fake__echo"},"TOKEN":["TOKEN"]}`,
		"cancelled id":             `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"TOKEN","reason":"TOKEN"}}`,
		"tool":                     toolCall("TOKEN", `{}`, ""),
		"tool of a server":         toolCall("fake__TOKEN", `{}`, ""),
		"hidden tool":              toolCall("fake__crash_TOKEN", `{}`, ""),
		"argument":                 toolCall("fake__echo", `{"a":"TOKEN"}`, ""),
		"key of an argument":       toolCall("fake__echo", `{"TOKEN":1}`, ""),
		"branch":                   toolCall("fake__echo", `{"branch_id":"TOKEN"}`, ""),
		"branch in _meta":          meta(key + `branch_id":"TOKEN"`),
		"context":                  meta(key + `context":"TOKEN"`),
		"context below":            meta(key + `context":"a/TOKEN/b"`),
		"context as an object":     meta(key + `context":{"id":"TOKEN","parent":"a"}`),
		"parent of a context":      meta(key + `context":{"id":"a","parent":"TOKEN"}`),
		"correlation":              meta(key + `correlationId":["a","TOKEN"]`),
		"correlation as a string":  meta(key + `correlationId":"TOKEN"`),
		"later correlation":        meta(key + `correlation_id":["TOKEN"]`),
		"malformed correlation":    meta(key + `correlationId":{"a":"TOKEN"}`),
		"traceparent":              meta(`"traceparent":"TOKEN"`),
		"end of a traceparent":     meta(`"traceparent":"01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-TOKEN"`),
		"thread":                   meta(`"threadId":"TOKEN"`),
		"progress token":           meta(`"progressToken":"TOKEN"`),
		"unknown member of _meta":  meta(`"TOKEN":"TOKEN"`),
		"session":                  toolCall("branch_create", `{"description":"a","session_id":"TOKEN"}`, ""),
		"session of a status":      toolCall("branch_status", `{"session_id":"TOKEN"}`, ""),
		"description and prompt":   toolCall("branch_create", `{"description":"TOKEN","prompt":"TOKEN"}`, ""),
		"parent":                   toolCall("branch_create", `{"description":"a","parent_branch_id":"TOKEN"}`, ""),
		"return":                   toolCall("branch_return", `{"branch_id":"TOKEN","message":"TOKEN"}`, ""),
		"handle":                   toolCall("branch_read", `{"handle":"TOKEN"}`, ""),
		"pattern":                  toolCall("branch_read", `{"handle":"res_00000000000000000000000000","grep":"TOKEN"}`, ""),
		"tool of a batch":          toolCall("branch_run", `{"steps":[{"tool":"TOKEN","arguments":{"a":"TOKEN"}}]}`, ""),
		"workflow":                 toolCall("flow__echo", `{"context_id":"TOKEN"}`, ""),
		"prompt":                   call("ID", "prompts/get", `{"name":"TOKEN","arguments":{"TOKEN":"TOKEN"}}`),
		"resource":                 call("ID", "resources/read", `{"uri":"x://TOKEN"}`),
		"subscription":             call("ID", "resources/subscribe", `{"uri":"fake://TOKEN"}`),
		"completion":               call("ID", "completion/complete", `{"ref":{"type":"ref/prompt","name":"TOKEN"},"argument":{"name":"TOKEN","value":"TOKEN"}}`),
		"log level":                call("ID", "logging/setLevel", `{"level":"TOKEN"}`),
		"task":                     call("ID", "tasks/get", `{"taskId":"TOKEN"}`),
		"cursor":                   call("ID", "tools/list", `{"cursor":"TOKEN"}`),
		"params that are a string": call("ID", "x/y", `"TOKEN"`),
	}
	config := fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both], tools: {deny: [\"crash*\"]}}\n  flow: {command: [%q, -era, both]}\n", fakeserverBin, fakeserverBin)
	for _, transport := range []string{"stdio", "http"} {
		t.Run(transport, func(t *testing.T) {
			secret := fixtures.Secret()
			g := newGateway(t, config)
			var h *rawHost
			if transport == "stdio" {
				h = rawStdio(t, g.command("run"), mcpclient.Legacy)
			} else {
				url := g.http()
				answered(t, http.DefaultClient, http.MethodPost, strings.Replace(url, "/mcp", "/b/"+secret+"/mcp", 1), `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`,
					http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}})
				h = rawHTTP(t, url, mcpclient.Legacy)
			}
			h.begin(`"name":"` + secret + `","version":"` + secret + `","title":"` + secret + `"`)
			n := 0
			for _, place := range slices.Sorted(maps.Keys(places)) {
				n++
				id := fmt.Sprint("id ", n)
				line := strings.NewReplacer(`\u0067TOKEN_REST`, `\u0067`+secret[1:], "TOKEN", secret, "ID", id).Replace(places[place])
				h.write(line)
				if strings.Contains(line, `"id":"`+id) {
					h.answerTo(id)
				} else if strings.Contains(line, `"id":`) {
					h.answerTo(secret)
				}
			}
			h.ask("last", "ping", `{}`)
			out, err := g.command("trace", "verify", "--secrets").Output()
			if faults := strings.Count(string(out), "finds a secret"); err != nil || faults > 0 {
				t.Errorf("verify --secrets: %v, %d faults\n%.2000s", err, faults, out)
			}
			stored := 0
			_ = filepath.WalkDir(filepath.Join(g.dir, "state"), func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				data, err := os.ReadFile(path)
				for line := range strings.Lines(string(data)) {
					if at := holds([]byte(line), secret); at != "" {
						stored++
						t.Errorf("%s holds the secret (%s): %.400q", filepath.Base(path), at, line)
					}
				}
				return err
			})
			if at := holds([]byte(g.log.String()), secret); at != "" {
				t.Errorf("the log holds the secret (%s)", at)
			}
			t.Logf("%d places, %d lines with the secret", len(places)+3, stored)
		})
	}
}

// Members beside params and a result are recorded, in both directions, without secrets.
func TestMembersBesideAreRecorded(t *testing.T) {
	t.Parallel()
	secret := fixtures.Secret()
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\n", fakeserverBin))
	h := rawStdio(t, g.command("run"), mcpclient.Legacy)
	h.begin(`"name":"beside","version":"1"`)
	large := strings.Repeat("smuggled ", 2500)
	h.write(`{"jsonrpc":"2.0","id":"one","method":"tools/call","params":{"name":"fake__echo"},"outside":"` + large + `","token":"` + secret + `"}`)
	h.answerTo("one")
	h.write(`{"jsonrpc":"2.0","method":"notifications/x","params":{},"outside":"` + large + `"}`)
	h.ask("two", "ping", `{}`)
	found := 0
	for _, r := range traceAs[audited](g) {
		if r.Kind != "mcp/request:tools/call" && r.Kind != "mcp/notification:notifications/x" {
			continue
		}
		found++
		if !strings.Contains(string(r.Payload), `"outside":"`+large) || r.Audit.Bytes < len(large) {
			t.Errorf("%s of %d bytes lacks the member outside: %.200s", r.Kind, r.Audit.Bytes, r.Payload)
		}
		if strings.Contains(string(r.Payload), secret) {
			t.Errorf("%s holds the secret", r.Kind)
		}
	}
	if found != 2 {
		t.Errorf("%d records, want the request and the notification", found)
	}
}

// The trace tells what became of each secret. It says [REDACTED] only where the message did.
func TestTheTraceTellsWhatBecameOfASecret(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy             string
		sent, got          bool // with the secret: by the host to the server, by the server to the host
		arguments, results string
	}{
		{"{}", true, false, "let_through", "redacted"},
		{"{arguments: redact}", false, false, "redacted", ""},
		{"{arguments: block}", false, false, "blocked", ""},
		{"{arguments: off}", true, false, "let_through", "redacted"},
		{"{results: block}", true, false, "let_through", "blocked"},
		{"{results: off}", true, true, "let_through", "let_through"},
	} {
		t.Run(tt.policy, func(t *testing.T) {
			secret, answer := fixtures.Secret(), fixtures.Secret()
			file := recordFile(t)
			g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -record, %q], scrub: %s}\npolicy: {rules: [{name: no-echo, deny: [fake__echo]}]}\n", fakeserverBin, file, tt.policy))
			h := rawStdio(t, g.command("run"), mcpclient.Legacy)
			h.begin(`"name":"scrub","version":"1"`)
			sent := h.ask("one", "tools/call", `{"name":"fake__raw","arguments":{"token":"`+secret+`","result":{"content":[{"type":"text","text":"use `+answer[:8]+`"},{"type":"text","text":"`+answer[8:]+`"}],"structuredContent":{"a":"`+answer+`"}}}}`)
			h.ask("branch", "tools/call", `{"name":"fake__raw","arguments":{"branch_id":"`+unknownBranch+`","token":"`+secret+`"}}`)
			h.ask("policy", "tools/call", `{"name":"fake__echo","arguments":{"token":"`+secret+`"}}`)
			h.ask("tool", "tools/call", `{"name":"unknown","arguments":{"token":"`+secret+`"}}`) // of no server, so tt.policy is not for it
			if got := strings.Contains(strings.Join(recorded(t, file), "\n"), secret); got != tt.sent {
				t.Fatalf("the server got the secret: %t, want %t", got, tt.sent)
			}
			if got := strings.Contains(sent, answer); got != tt.got {
				t.Fatalf("the host got the secret: %t, want %t", got, tt.got)
			}
			shown := map[bool]string{true: "[SECRET:github-pat]", false: "[REDACTED:github-pat]"}
			responses := 0
			for _, r := range traceAs[audited](g, "--kind", "mcp/*:tools/call") {
				var p struct {
					ID     string
					Params struct{ Arguments struct{ Token string } }
				}
				_ = json.Unmarshal(r.Payload, &p)
				request := strings.HasPrefix(r.Kind, "mcp/request")
				if want := shown[tt.arguments != "redacted" || p.ID == "tool"]; request && p.Params.Arguments.Token != want {
					t.Errorf("request %s shows %s, want %s", p.ID, p.Params.Arguments.Token, want)
				}
				if !request && p.ID == "one" && tt.results != "" && tt.results != "blocked" && !strings.Contains(string(r.Payload), shown[tt.got]) {
					t.Errorf("the result lacks %s: %s", shown[tt.got], r.Payload)
				}
				actions := map[string]string{}
				for _, f := range r.Audit.Scrub {
					part := "results"
					if strings.HasPrefix(f.Field, "$.arguments.token") {
						part = "arguments"
					} else if strings.HasPrefix(f.Field, "$.arguments") {
						continue // the result, on its way to the server
					}
					actions[part] = f.Action
				}
				want := map[string]string{}
				switch {
				case request:
				case p.ID != "one": // it never left
					want["arguments"] = "blocked"
					responses++
				default:
					responses++
					want["arguments"] = tt.arguments
					if tt.results != "" {
						want["results"] = tt.results
					}
				}
				if !maps.Equal(actions, want) {
					t.Errorf("%s %s: %v, want %v", r.Kind, p.ID, actions, want)
				}
			}
			if responses != 4 {
				t.Errorf("%d responses are recorded, want 4", responses)
			}
		})
	}
}

// Every record names its principal, and the records about branches their host. A session that bob
// claims is not alice's. Alice is in a team, and bob is not.
func TestRecordsNameTheirPrincipalAndHost(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, strings.Replace(principals(), "alice: {", "alice: {team: data, ", 1)+fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both]}\n", fakeserverBin))
			url := g.http()
			alice, bob := g.as(t, url, era, "alice"), g.as(t, url, era, "bob")
			session := alice.Session()
			hers := own[created](t, tool(t, alice, ctx, "branch_create", `{"description":"hers"}`))
			if session == "" {
				session = hers.SessionID
			}
			his := own[created](t, tool(t, bob, ctx, "branch_create", `{"description":"his","session_id":"`+session+`"}`))
			for c, b := range map[*mcpclient.Client]created{alice: hers, bob: his} {
				call(t, c, ctx, "tools/call", `{"name":"fake__progress","arguments":{"count":3,"branch_id":"`+b.BranchID+`"},"_meta":{"progressToken":"p"}}`)
				call(t, c, ctx, "tools/call", `{"name":"fake__log","arguments":{"params":{"level":"error","data":"a"}}}`)
				tool(t, c, ctx, "branch_return", `{"branch_id":"`+b.BranchID+`","message":"done"}`)
			}
			g.stop()
			for _, r := range traceAs[audited](g) {
				if p := r.Audit.Principal; p != "alice" && p != "bob" || r.Audit.Team != map[string]string{"alice": "data"}[p] {
					t.Errorf("%s of %q: %.200s", r.Kind, p, r.Payload)
				}
				if r.Context != "" && !strings.HasPrefix(r.From+strings.Join(r.To, ""), "host:") && !strings.Contains(strings.Join(r.To, ""), "host:") {
					t.Errorf("%s from %s to %v names no host", r.Kind, r.From, r.To)
				}
			}
			view := session
			if era == mcpclient.Modern { // no connection has a session: hers is a claim, too
				view = "alice/" + session
			}
			for _, r := range traceAs[audited](g, "--session", view) {
				if r.Audit.Principal != "alice" {
					t.Errorf("in alice's session: %s of %s in %s", r.Kind, r.Audit.Principal, r.Context)
				}
			}
			if all, team := len(g.trace("--principal", "alice")), len(g.trace("--team", "data")); all == 0 || all != team {
				t.Errorf("%d records of alice, %d of her team", all, team)
			}
			if n := len(g.trace("--session", "bob/"+session)); n < 3 {
				t.Errorf("%d records of the session that bob claims, want his branch", n)
			}
			if n := len(g.trace("--to", "host:*", "--kind", "context/*")); n < 4 {
				t.Errorf("%d records of branches to hosts, want 4", n)
			}
		})
	}
}

// A trace that another program moved away refuses calls until foldgate is started again, and the refusal says so: to
// move the trace back is not enough.
func TestAMovedTraceNeedsARestart(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\n", fakeserverBin))
	c, err := mcpclient.Stdio(g.command("run"), mcpclient.Legacy) // it ends with an error: its last records are lost
	if err != nil {
		t.Fatal(err)
	}
	startHost(t, ctx, c)
	echo := func() string { return said(t, tool(t, c, ctx, "fake__echo", `{"text":"a"}`)) }
	echo()
	dir := filepath.Join(g.dir, "state", "trace")
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	var refusal string
	for start := time.Now(); !strings.Contains(refusal, "restart foldgate"); refusal = echo() { // within sync_interval_ms
		if time.Since(start) > 10*time.Second {
			t.Fatalf("no refusal names the remedy: %s", refusal)
		}
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if text := echo(); !strings.Contains(text, "restart foldgate") {
		t.Errorf("with the trace in its place again: %s", text)
	}
	_ = c.Close()
	if text := said(t, tool(t, g.connect(ctx, "stdio", mcpclient.Legacy), ctx, "fake__echo", `{"text":"a"}`)); strings.Contains(text, "trace_unavailable") {
		t.Errorf("after the restart: %s", text)
	}
}

// A gateway that can't write its trace is unready, or degraded if it serves calls without records.
func TestReadyWithoutATrace(t *testing.T) {
	t.Parallel()
	for onError, want := range map[string]string{"refuse": `503 {"status":"unready",`, "warn": `200 {"status":"degraded",`} {
		g := newGateway(t, fakeConfig(recordFile(t), "trace: {on_error: "+onError+"}\n"))
		c := g.connect(testContext(t), "http", mcpclient.Legacy)
		blocked := filepath.Join(g.dir, "state", "trace", "head.json.tmp") // a directory where the new head is written
		if err := os.Mkdir(blocked, 0o700); err != nil {
			t.Fatal(err)
		}
		_, _ = c.Call(testContext(t), "ping", `{}`) // has a record, so the head is written
		for _, want := range []string{want, `200 {"status":"ready",`} {
			until(t, "/readyz has "+want, func() bool {
				status, body := readyz(t, g.url, "")
				return strings.HasPrefix(fmt.Sprint(status, " ", body), want)
			})
			_ = os.Remove(blocked)
		}
	}
}
