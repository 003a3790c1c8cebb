//go:build e2e

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// exits returns the places at which a secret of an upstream could reach a model. Each is a call
// with the secret in its answer, or in a message before the answer. docs/security.md lists the
// same places.
func exits(secret string, era mcpclient.Era) []struct{ place, method, params string } {
	raw := func(result string) string {
		if era == mcpclient.Modern {
			result = `{"resultType":"complete",` + result[1:]
		}
		return `{"name":"fake__raw","arguments":{"result":` + result + `}}`
	}
	half := len(secret) / 2
	const tokenBlob = "AK" + "IAQYLPMN5HHHFPZAM2" // reads like base64
	blob := base64.StdEncoding.EncodeToString([]byte("token = " + secret + "\n"))
	return []struct{ place, method, params string }{
		{"text block", "tools/call", raw(`{"content":[{"type":"text","text":"a ` + secret + ` b"}]}`)},
		{"split over two text blocks", "tools/call", raw(`{"content":[{"type":"text","text":"a ` + secret[:half] + `"},{"type":"text","text":"` + secret[half:] + ` b"}]}`)},
		{"text with escapes", "tools/call", raw(`{"content":[{"type":"text","text":"\u0022` + strings.ReplaceAll(secret, "g", `\u0067`) + `"}]}`)},
		{"structured content", "tools/call", raw(`{"content":[],"structuredContent":{"a":[{"b":"` + secret + `"}]}}`)},
		{"key of structured content", "tools/call", raw(`{"content":[],"structuredContent":{"` + secret + `":1}}`)},
		{"embedded resource", "tools/call", raw(`{"content":[{"type":"resource","resource":{"uri":"a:b","text":"` + secret + `"}}]}`)},
		{"embedded blob of text", "tools/call", raw(`{"content":[{"type":"resource","resource":{"uri":"a:b","mimeType":"text/plain","blob":"` + blob + `"}}]}`)},
		{"resource link", "tools/call", raw(`{"content":[{"type":"resource_link","uri":"https://h/?t=` + secret + `","name":"` + secret + `","description":"` + secret + `"}]}`)},
		{"_meta of a result", "tools/call", raw(`{"content":[],"_meta":{"x/y":"` + secret + `"}}`)},
		{"unknown member of a result", "tools/call", raw(`{"content":[],"future":["` + secret + `"]}`)},
		{"tool error", "tools/call", raw(`{"isError":true,"content":[{"type":"text","text":"no access with ` + secret + `"}]}`)},
		{"error message and data", "tools/call", `{"name":"fake__raw","arguments":{"error":{"code":-32000,"message":"bad ` + secret + `","data":{"t":"` + secret + `"}}}}`},
		{"base64 in text", "tools/call", raw(`{"content":[{"type":"text","text":"` + blob + `"}]}`)},
		{"progress", "tools/call", `{"name":"fake__progress","arguments":{"count":1,"text":"` + secret + `"},"_meta":{"progressToken":"p1"}}`},
		{"logging", "tools/call", `{"name":"fake__log","arguments":{"params":{"level":"error","data":{"t":"` + secret + `"}}}}`},
		{"elicitation", "tools/call", `{"name":"fake__elicit","arguments":{"params":{"message":"use ` + secret + `?","requestedSchema":{"type":"object","properties":{}}}}}`},
		{"sampling", "tools/call", `{"name":"fake__sample","arguments":{"params":{"messages":[{"role":"user","content":{"type":"text","text":"` + secret + `"}}],"maxTokens":1}}}`},
		{"unknown messages", "tools/call", `{"name":"fake__unknown","arguments":{"params":{"t":"` + secret + `"}}}`},
		{"name of a notification", "tools/call", `{"name":"fake__log","arguments":{"method":"notifications/` + secret + `","params":{}}}`},
		{"name of a request", "tools/call", `{"name":"fake__elicit","arguments":{"method":"x/` + secret + `","params":{}}}`},
		{"unknown method", "x/leak", `{"t":"` + secret + `"}`},
		{"name of an unknown method", "x/" + secret, `{}`},
		{"tracestate", "tools/call", `{"name":"fake__text","arguments":{"text":"a"},"_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"v=` + secret + `"}}`},
		{"prompt", "prompts/get", `{"name":"fake__greet","arguments":{"t":"` + secret + `"}}`},
		{"resource read", "resources/read", `{"uri":"fake://a"}`},
		{"tool descriptions", "tools/list", `{}`},
		{"prompt list", "prompts/list", `{}`},
		{"resource list", "resources/list", `{}`},
		{"branch description and prompt", "tools/call", `{"name":"branch_create","arguments":{"description":"use ` + secret + `","prompt":"with ` + secret + `"}}`},
		{"branch status", "tools/call", `{"name":"branch_status","arguments":{"session_id":"` + "x" + `"}}`},
		{"unknown tool", "tools/call", `{"name":"nobody__` + secret + `","arguments":{}}`},
		{"unknown prompt", "prompts/get", `{"name":"` + secret + `"}`},
		{"unknown branch", "tools/call", `{"name":"fake__raw","arguments":{"branch_id":"` + secret + `"}}`},
		{"unknown argument", "tools/call", `{"name":"branch_status","arguments":{"` + secret + `":1}}`},
		{"blob that is a token", "tools/call", raw(`{"content":[],"structuredContent":{"a":{"blob":"` + tokenBlob + `","mimeType":"text/plain"},"b":{"blob":"` + secret + `","blob":""}}}`)},
		{"batch", "tools/call", `{"name":"branch_run","arguments":{"steps":[{"tool":"fake__echo","arguments":{"text":"` + secret + `"}},{"tool":"nobody__` + secret + `","arguments":{}}],"jq":"."}}`},
		{"what the upstream prints", "tools/call", `{"name":"fake__stderr","arguments":{"text":"starting with ` + secret + `"}}`},
	}
}

// quiet holds the exits at which the host normally sees nothing of the secret.
var quiet = map[string]bool{"name of a notification": true, "name of a request": true, "prompt list": true, "resource list": true, "branch description and prompt": true, "branch status": true, "what the upstream prints": true, "tracestate": true}

// quietModern holds the exits at which the host may see nothing in the modern era: on stdio such
// messages do not name their call.
var quietModern = map[string]bool{"logging": true, "unknown messages": true}

// TestNothingLeaks walks every exit towards a model and looks for the secret in
// everything that the host received, in the log, in the telemetry and in every file on disk.
func TestNothingLeaks(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		secret := fixtures.Secret()
		g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q, -era, both, -record, %q, -leak, %q]}\n", fakeserverBin, recordFile(t), " "+secret)+"run: {allow: [\"fake__*\"]}\n")
		g.env = []string{"OTEL_TRACES_EXPORTER=console", "OTEL_METRICS_EXPORTER=console", "OTEL_LOGS_EXPORTER=console"} // to the log
		c := g.unstarted(transport, era)
		c.Capabilities = `{"elicitation":{},"sampling":{},"roots":{}}`
		c.Handle = func(m mcpclient.Message) (json.RawMessage, json.RawMessage) {
			return json.RawMessage(`{"action":"decline"}`), nil
		}
		startHost(t, ctx, c)
		for _, e := range exits(secret, era) {
			before := len(c.Received())
			if _, err := c.Call(ctx, e.method, e.params); err != nil {
				t.Errorf("%s: %v", e.place, err)
				continue
			}
			came := c.Received()[before:]
			if !quiet[e.place] && !(era == mcpclient.Modern && quietModern[e.place]) && !bytes.Contains(bytes.Join(came, nil), []byte("[REDACTED:")) && !bytes.Contains(bytes.Join(came, nil), []byte("UkVEQUNURUQ6")) {
				t.Errorf("%s: nothing was redacted, so nothing was tried: %.500s", e.place, came)
			}
			for _, msg := range came {
				if at := holds(msg, secret); at != "" {
					t.Errorf("%s: the host received the secret (%s): %.300s", e.place, at, msg)
				}
			}
		}
		b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"return it"}`))
		inBranch := `,"_meta":{"io.github.foldgate/branch_id":"` + b.BranchID + `"}}`
		for _, what := range []string{`{"uri":"nobody://x/?token=` + secret + `"` + inBranch, `{"uri":"fake://a"` + inBranch} {
			call(t, c, ctx, "resources/read", what)
		}
		if s := statusOf(t, c, ctx, b.BranchID); s.BudgetUsed == 0 {
			t.Error("the branch paid for nothing, so nothing was tried")
		}
		tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": "the token is " + secret}))
		for _, msg := range c.Received() { // instructions came with the start
			if at := holds(msg, secret); at != "" {
				t.Errorf("the host received the secret (%s): %.300s", at, msg)
			}
		}
		g.stop()
		if at := holds([]byte(g.log.String()), secret); at != "" {
			t.Errorf("the log holds the secret (%s)", at)
		}
		for _, signal := range []string{`"Name":"tools/call`, `"Name":"foldgate.calls"`, "foldgate.trace.record"} {
			if !strings.Contains(g.log.String(), signal) {
				t.Errorf("no %s was exported, so nothing was tried", signal)
			}
		}
		files := 0
		err := filepath.WalkDir(filepath.Join(g.dir, "state"), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			files++
			data, err := os.ReadFile(path)
			if at := holds(data, secret); at != "" {
				t.Errorf("%s holds the secret (%s)", filepath.Base(path), at)
			}
			return err
		})
		if err != nil || files < 3 {
			t.Errorf("looked at %d files of the state directory, %v; want the journal, the database and more", files, err)
		}
	})
}

// holds says in which form data has the secret, "" if in none.
func holds(data []byte, secret string) string {
	if bytes.Contains(data, []byte(secret)) {
		return "as it is"
	}
	var plain bytes.Buffer
	for _, part := range bytes.Split(data, []byte(`\u0067`)) {
		plain.Write(part)
		plain.WriteByte('g')
	}
	if bytes.Contains(plain.Bytes(), []byte(secret)) {
		return "escaped"
	}
	half := secret[len(secret)/2:]
	if bytes.Contains(data, []byte(half)) {
		return "its second half"
	}
	for shift := range 3 { // base64 at each alignment
		enc := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + secret))
		if inner := enc[4 : len(enc)-4]; bytes.Contains(data, []byte(inner)) {
			return "as base64"
		}
	}
	return ""
}

// An error shows the beginning of what a server says, and no part of a secret: a URL's password is found only with
// what follows it.
func TestNoPartOfASecretInErrors(t *testing.T) {
	t.Parallel()
	const password = "Qm7vX2kLp9ZtRr4XyWq3"
	g := newGateway(t, fmt.Sprintf(`upstreams:
  bad:
    command: [sh, -c, 'while read -r line; do id=$(printf %%s "$line" | sed "s/.*\"id\":\([0-9]*\).*/\1/"); printf "{\"jsonrpc\":\"2.0\",\"id\":%%s,\"error\":{\"code\":-32000,\"message\":\"%s postgres://app:%s@db.internal/app\"}}\n" "$id"; done']
`, strings.Repeat("no database ", 14), password))
	c := g.connect(testContext(t), "stdio", mcpclient.Legacy)
	answer := call(t, c, testContext(t), "tools/call", `{"name":"bad__x","arguments":{}}`)
	if !bytes.Contains(answer.Result, []byte("no database")) {
		t.Errorf("the error is not that of the server: %s", answer.Result)
	}
	g.stop()
	trace := g.output("trace", "--format", "jsonl")
	for place, text := range map[string]string{"answer": string(answer.Result), "log": g.log.String(), "trace": trace} {
		if strings.Contains(text, password[:8]) {
			t.Errorf("the %s has a part of the password: %s", place, text)
		}
	}
}

// A program that decodes a secret gets it neither in parts, on two pages, nor in an error.
func TestNoPartOfADecodedSecret(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	secret := fixtures.Secret()
	deep := secret
	for range 5 { // more than the scrubber decodes
		deep = base64.StdEncoding.EncodeToString([]byte(deep))
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\nresults: {main_threshold: 512}\n", fakeserverBin))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	folded := tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": jsonText(map[string]any{"x": deep, "rows": strings.Split(strings.Repeat("zebra,", 2000), ",")})}))
	handle := handleIn(t, said(t, folded))
	decoded := ".x" + strings.Repeat("|@base64d", 5)
	for n := range 24 {
		for page := 1; page <= 3; page++ {
			readPart(t, c, ctx, map[string]any{"handle": handle, "jq": fmt.Sprintf(`("w," * %d) + (%s) + (",tail" * 300)`, 6+n, decoded), "page": page, "max_tokens": 100})
		}
		readPart(t, c, ctx, map[string]any{"handle": handle, "jq": fmt.Sprintf(`error(("p" * %d) + " " + (%s))`, 455+n, decoded)})
	}
	redacted := false
	for _, m := range c.Received() {
		redacted = redacted || bytes.Contains(m, []byte("[REDACTED:"))
		if bytes.Contains(m, []byte(secret[:12])) || bytes.Contains(m, []byte(secret[len(secret)-8:])) {
			t.Errorf("the host received a part of the secret: %.400s", m)
		}
	}
	if !redacted {
		t.Error("nothing was redacted, so nothing was tried")
	}
}

// A password that only its name gives away reaches neither the host nor the log or the trace.
func TestPasswordsInTexts(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	const password = "Sommer2026!"
	g := newGateway(t, fmt.Sprintf("upstreams:\n  fake: {command: [%q]}\ntrace: {payload: scrubbed}\n", fakeserverBin))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, text := range []string{
		"Found one:\n{\n  \"name\": \"DB_PASSWORD\",\n  \"description\": \"of the database\",\n  \"value\": \"%s\"\n}\nThat is all.",
		`{"n":1}` + "\n" + `{"password":{"n":1,"value":"%s"}}` + "\n",
		`{"columns":["user","password"],"rows":[["joe","%s"]]}`,
		"<key>password</key>\n<string>%s</string>",
		"define('DB_PASSWORD', '%s');",
		"ALTER USER joe WITH PASSWORD '%s';",
		"The password for joe is %s",
		"auth: { user: 'joe', pass: '%s' }",
		"Key         Value\n---         -----\npassword    %s\n",
	} {
		answer := said(t, tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": strings.Replace(text, "%s", password, 1)})))
		if before, after, _ := strings.Cut(text, "%s"); !strings.HasPrefix(answer, before+"[REDACTED:") || !strings.HasSuffix(answer, "]"+after) {
			t.Errorf("of %q the host sees %q", text, answer)
		}
	}
	g.stop()
	for place, text := range map[string]string{"log": g.log.String(), "trace": g.output("trace", "--format", "jsonl")} {
		if strings.Contains(text, password) {
			t.Errorf("the %s has the password", place)
		}
	}
}

// What the configuration gives a server to log in with reaches neither the host nor the log or the trace, whatever stands
// around it.
func TestSecretsOfTheConfiguration(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	secrets := []string{"grey-otter-runs-42-fast", "copper-lamp-31-window", "walnut-river-77-plate", "Kx7mQ2vLp9Zt"}
	g := newGateway(t, fmt.Sprintf(`upstreams:
  fake: {command: [%q, --, --token, %q], env: {FAKE_API_TOKEN: %q, FAKE_URL: "postgres://u:%s@db/x"}}
  remote: {url: "http://127.0.0.1:1/mcp", headers: {Authorization: "Bearer %s"}}
trace: {payload: scrubbed}
`, fakeserverBin, secrets[1], secrets[0], secrets[3], secrets[2]))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, secret := range secrets {
		if answer := said(t, tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": "connected with " + secret + " now"}))); answer != "connected with [REDACTED:foldgate-token] now" {
			t.Errorf("of %q the host sees %q", secret, answer)
		}
		tool(t, c, ctx, "fake__stderr", jsonText(map[string]any{"text": "starting with " + secret}))
	}
	g.stop()
	for place, text := range map[string]string{"log": g.log.String(), "trace": g.output("trace", "--format", "jsonl")} {
		for _, secret := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("the %s has %q", place, secret)
			}
		}
	}
}
