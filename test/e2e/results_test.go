//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/previewtest"
)

// resultFiles writes the fixtures of package previewtest, to be read as files.
func resultFiles(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, f := range previewtest.Fixtures() {
		write(t, filepath.Join(dir, f.Name), f.Text)
	}
	return dir
}

func filesConfig(dir, more string) string {
	return fmt.Sprintf("upstreams:\n  files: {builtin: files, roots: [%q]}\n%s", dir, more)
}

// said is the text of a result.
func said(t *testing.T, m mcpclient.Message) string {
	t.Helper()
	var out []string
	for _, c := range parseResult(t, m).Content {
		out = append(out, c.Text)
	}
	return strings.Join(out, "\n")
}

var handleForm = regexp.MustCompile(`res_[0-9a-z]{26}`)

func handleIn(t *testing.T, text string) string {
	t.Helper()
	h := handleForm.FindString(text)
	if h == "" {
		t.Fatalf("no handle in %.300q", text)
	}
	return h
}

func readFile(t *testing.T, c *mcpclient.Client, ctx context.Context, name, branch string) mcpclient.Message {
	t.Helper()
	args := map[string]any{"path": name}
	if branch != "" {
		args["branch_id"] = branch
	}
	return tool(t, c, ctx, "files__read_file", jsonText(args))
}

func readPart(t *testing.T, c *mcpclient.Client, ctx context.Context, args map[string]any) mcpclient.Message {
	t.Helper()
	return tool(t, c, ctx, "branch_read", jsonText(args))
}

// The facts that 44 questions ask for are in the preview, or one branch_read
// away. With the arguments of the reads counted, most of the tokens are saved.
func TestAnswerRecall(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := resultFiles(t)
	g := newGateway(t, filesConfig(dir, "results: {main_threshold: 1000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	questions, shown, oneRead, lost := 0, 0, 0, 0
	raw, previews, reads, writes := 0, 0, 0, 0
	for _, f := range previewtest.Fixtures() {
		m := readFile(t, c, ctx, f.Name, "")
		text := said(t, m)
		raw, previews = raw+tokens(t, f.Text), previews+resultTokens(t, m)
		for _, q := range f.Questions {
			questions++
			if strings.Contains(text, q.Fact) {
				shown++
				continue
			}
			q.Read["handle"] = handleIn(t, text)
			answer := readPart(t, c, ctx, q.Read)
			reads, writes = reads+resultTokens(t, answer), writes+tokens(t, jsonText(q.Read))
			if strings.Contains(said(t, answer), q.Fact) {
				oneRead++
				continue
			}
			lost++
			t.Errorf("%s: %s %q is neither in the preview nor in %.400s", f.Name, q.Ask, q.Fact, said(t, answer))
		}
	}
	t.Logf("%d questions: %d answered by the preview, %d by one branch_read, %d lost", questions, shown, oneRead, lost)
	all := previews + reads + writes
	t.Logf("%d tokens raw; previews %d (%.1f %% saved); with the reads' results %d and arguments %d: %d (%.1f %% saved)",
		raw, previews, 100-100*float64(previews)/float64(raw), reads, writes, all, 100-100*float64(all)/float64(raw))
	if questions < 40 {
		t.Errorf("%d questions, want 40 at least", questions)
	}
	if all*10 > raw*2 {
		t.Errorf("%d of %d tokens delivered with all questions answered, want under 20 %%", all, raw)
	}
}

// No read delivers more at once than a result may have.
func TestReadsAreBounded(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, filesConfig(resultFiles(t), "results: {main_threshold: 3000}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	h := handleIn(t, said(t, readFile(t, c, ctx, "access.log", "")))
	if n := resultTokens(t, readPart(t, c, ctx, map[string]any{"handle": h, "max_tokens": 1_000_000})); n > 3000 || n < 2500 {
		t.Errorf("a read of all has %d tokens, want nearly 3000", n)
	}
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"small","budget":600}`))
	m := readPart(t, c, ctx, map[string]any{"handle": h, "branch_id": b.BranchID})
	if s := statusOf(t, c, ctx, b.BranchID); resultTokens(t, m) > 600 || s.BudgetUsed > 600 {
		t.Errorf("a read in a branch of 600 tokens has %d; %+v", resultTokens(t, m), s)
	}
}

// All pages of a text together are the text.
func TestPagesAreTheText(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := resultFiles(t)
	g := newGateway(t, filesConfig(dir, "results: {main_threshold: 1500}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, name := range []string{"issues.json", "app.log"} {
		h := handleIn(t, said(t, readFile(t, c, ctx, name, "")))
		var got strings.Builder
		next := regexp.MustCompile(`\n\[page \d+(?:; .* more: repeat with page (\d+), max_tokens 1500|, the last)\]$`)
		for page := "1"; page != ""; {
			m := readPart(t, c, ctx, map[string]any{"handle": h, "page": json.RawMessage(page), "max_tokens": 1500})
			if n := resultTokens(t, m); n > 1500 {
				t.Fatalf("%s: page %s has %d tokens", name, page, n)
			}
			text := said(t, m)
			at := next.FindStringSubmatchIndex(text)
			if at == nil {
				t.Fatalf("%s: page %s ends without a word: %.200q", name, page, text[max(0, len(text)-200):])
			}
			got.WriteString(text[:at[0]])
			if name == "app.log" { // a page that ends with a line shows the line end as the start of the note
				got.WriteString("\n")
			}
			if page = ""; at[2] >= 0 {
				page = text[at[2]:at[3]]
			}
		}
		want := read(t, filepath.Join(dir, name))
		if strings.TrimSpace(got.String()) != strings.TrimSpace(string(want)) {
			t.Errorf("%s: the pages together are not the file", name)
		}
	}
}

// Ten files of 110,000 tokens are read in a branch of the default budget. Reads of folded results
// are charged to it. Its parent can read them after the return, also after a restart; other
// branches can't.
func TestFoldedResults(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		ctx := testContext(t)
		dir := resultFiles(t)
		g := newGateway(t, filesConfig(dir, ""))
		c := g.connect(ctx, transport, era)
		call(t, c, ctx, "tools/list", `{}`)
		m := tool(t, c, ctx, "branch_create", `{"description":"find the fault"}`)
		b := own[created](t, m)
		limit := 50
		if b.SessionID != "" { // of a host without sessions
			limit = 80
		}
		if n := tokens(t, parseResult(t, m).Content[0].Text); n >= limit {
			t.Errorf("the result of branch_create has %d tokens, want under %d", n, limit)
		}
		var meta struct {
			Meta map[string]time.Time `json:"_meta"`
		}
		if err := json.Unmarshal(m.Result, &meta); err != nil || !meta.Meta["io.github.foldgate/expires_at"].After(time.Now()) {
			t.Errorf("_meta of branch_create = %v, %v; want when the branch ends", meta.Meta, err)
		}
		used, handle := tokens(t, "find the fault"), ""
		for _, f := range previewtest.Fixtures()[:10] {
			m := readFile(t, c, ctx, f.Name, b.BranchID)
			used += resultTokens(t, m) + tokens(t, jsonText(map[string]any{"path": f.Name}))
			if f.Name == "app.log" {
				handle = handleIn(t, said(t, m))
			}
		}
		// Without a branch_id the read is the result's branch's.
		args := map[string]any{"handle": handle, "grep": "card expired"}
		m = readPart(t, c, ctx, args)
		if !strings.Contains(said(t, m), "378:") {
			t.Errorf("branch_read = %s", m.Result)
		}
		used += resultTokens(t, m) + tokens(t, jsonText(args))
		s := statusOf(t, c, ctx, b.BranchID)
		if s.Status != "active" || s.BudgetUsed != used || s.BudgetUsed > 8192 {
			t.Errorf("the branch is %s with %d used, an independent count gives %d", s.Status, s.BudgetUsed, used)
		}
		other := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"another"}`))
		if f := refused(t, readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "1-2", "branch_id": other.BranchID})); f.Error.Code != "result_not_found" {
			t.Errorf("a read from a sibling branch = %+v, want it unknown", f)
		}
		own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"card expired"}`, b.BranchID)))
		own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"nothing"}`, other.BranchID)))
		g.stop()
		c = g.connect(ctx, transport, era)
		m = readPart(t, c, ctx, map[string]any{"handle": handle, "lines": "378"})
		if !strings.HasSuffix(said(t, m), "card expired") {
			t.Errorf("after the return and a restart branch_read = %s", m.Result)
		}
		for _, h := range []string{"res_00000000000000000000000000", "nonsense"} {
			if f := refused(t, readPart(t, c, ctx, map[string]any{"handle": h})); f.Error.Code != "result_not_found" || f.Error.Status != 404 {
				t.Errorf("branch_read of %s = %+v", h, f)
			}
		}
	})
}

// A store over its quota evicts the oldest and says so.
func TestEviction(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	for i := range 6 {
		write(t, filepath.Join(dir, fmt.Sprint(i)), strings.Repeat(fmt.Sprintf("line of file %d\n", i), 15_000))
	}
	g := newGateway(t, filesConfig(dir, "results: {quota_mb: 1}\n"))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	var handles []string
	for i := range 6 {
		handles = append(handles, handleIn(t, said(t, readFile(t, c, ctx, fmt.Sprint(i), ""))))
	}
	f := refused(t, readPart(t, c, ctx, map[string]any{"handle": handles[0], "lines": "1"}))
	if f.Error.Code != "result_evicted" || !strings.Contains(f.Error.Message, "quota_mb") || !strings.Contains(f.Error.Message, "read_file") {
		t.Errorf("the oldest handle = %+v, want that it was evicted, why, and what to call", f)
	}
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handles[5], "lines": "1"})); got != "line of file 5" {
		t.Errorf("the newest handle = %q", got)
	}
}

// Off-switch and thresholds by tool; a tool that may fold lists no outputSchema.
func TestFoldRules(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	config := fakeConfig(recordFile(t), "results:\n  tools: {\"fake__*\": {threshold: 500}, \"fake__huge\": {fold: off}}\n")
	g := newGateway(t, config)
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	if n := resultTokens(t, tool(t, c, ctx, "fake__huge", `{"bytes":100000}`)); n < 20000 {
		t.Errorf("with fold: off %d tokens arrive, want all", n)
	}
	rows := `{"rows":[` + strings.TrimSuffix(strings.Repeat(`{"id":1},`, 400), ",") + `]}`
	for _, body := range []string{
		`{"content":[{"type":"text","text":"400 rows"}],"structuredContent":` + rows + `,"_meta":{"a":1.0}}`,
		`{"content":[{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"text","text":` + jsonText(rows) + `}]}`,
	} {
		m := tool(t, c, ctx, "fake__raw", `{"result":`+body+`}`)
		r := parseResult(t, m)
		if r.StructuredContent != nil || !strings.Contains(said(t, m), "400 items in .rows") {
			t.Errorf("folded: %s", m.Result)
		}
		if strings.Contains(body, "image") != strings.Contains(string(m.Result), `{"type":"image","data":"aGk=","mimeType":"image/png"}`) {
			t.Errorf("the image did not pass: %s", m.Result)
		}
		h := handleIn(t, said(t, m))
		if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "jq": ".rows|length"})); got != "400" {
			t.Errorf("jq on the stored result = %q, want 400", got)
		}
	}
	// An error is read whole up to 2,000 tokens.
	long := jsonText(strings.Repeat("reason ", 1500))
	if m := tool(t, c, ctx, "fake__raw", `{"result":{"content":[{"type":"text","text":`+long+`}],"isError":true}}`); strings.Contains(said(t, m), "[Folded") {
		t.Errorf("an error of 1,500 tokens was folded: %.200s", said(t, m))
	}
}

// A secret never reaches the store, nor a read from it.
func TestStoredResultsAreScrubbed(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	secret := "ghp_" + "0aB1cD2eF3gH4iJ5kL6mN7oP8qR9sT0uV1wX"
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.txt"), strings.Repeat("some line of text\n", 3000)+"token = "+secret+"\n")
	g := newGateway(t, filesConfig(dir, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	h := handleIn(t, said(t, readFile(t, c, ctx, "a.txt", "")))
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "grep": "token"})); !strings.Contains(got, "[REDACTED:") {
		t.Errorf("grep for the secret's line = %q", got)
	}
	all := c.Received()
	g.stop()
	g.keepsSecret(secret, all)
}

// A jq program takes neither the gateway's memory nor its time, even in one large step.
func TestJQIsOutOfProcess(t *testing.T) { // alone: a busy machine reaches the time limit before the memory limit
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.dial(ctx, g.http(), mcpclient.Legacy)
	text := jsonText(`{"text":"` + strings.Repeat("a", 2_000_000) + `"}`)
	h := handleIn(t, said(t, tool(t, c, ctx, "fake__raw", `{"result":{"content":[{"type":"text","text":`+text+`}]}}`)))
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "jq": ".text|length"})); got != "2000000" {
		t.Errorf("the length is %s", got)
	}
	before := peakMemory(t, g.pid)
	// With the race detector the time limit may be first; that memory has a limit is a unit test's to show.
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "jq": `[range(1e9)|tostring*1000000]`})); !strings.Contains(got, "memory") && !strings.Contains(got, "too long") {
		t.Errorf("a program that takes all memory: %s", got)
	}
	for program, want := range map[string]string{`.text|[scan("a")]|length`: "too long", `env|length`: "0"} {
		m := readPart(t, c, ctx, map[string]any{"handle": h, "jq": program})
		if !strings.Contains(said(t, m), want) {
			t.Errorf("%s: %s, want %s", program, said(t, m), want)
		}
	}
	// An error is delivered whole and costs nothing, so it must not carry the result.
	for _, program := range []string{"error", ".text|error", "halt_error", "error(tojson*3)"} {
		if m := readPart(t, c, ctx, map[string]any{"handle": h, "jq": program}); len(m.Result) > 4000 {
			t.Errorf("%s delivers %d bytes", program, len(m.Result))
		}
	}
	if grown := peakMemory(t, g.pid) - before; grown > 128<<10 {
		t.Errorf("the gateway's peak grew by %d KiB", grown)
	}
}

// jq reads what tools really return: JSON among other text, YAML, XML and CSV. Texts that grow in the
// conversion are refused, and do not grow in the gateway.
func TestJQReadsOtherTexts(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), "results: {tools: {\"fake__*\": {threshold: 400}}}\n"))
	c := g.dial(ctx, g.http(), mcpclient.Legacy)
	row := func(format string) string {
		var rows strings.Builder
		for i := range 300 {
			fmt.Fprintf(&rows, format, i)
		}
		return rows.String()
	}
	array := "[" + strings.TrimSuffix(row("{\"id\":%d},\n"), ",\n") + "]"
	laughs := "a0: &a0 [" + strings.TrimSuffix(strings.Repeat("x,", 400), ",") + "]\n"
	for i := range 30 {
		laughs += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	call(t, c, ctx, "tools/call", `{"name":"fake__raw","arguments":{"result":{"content":[{"type":"text","text":`+jsonText(array)+`}]}}}`) // the vocabulary is loaded
	before := peakMemory(t, g.pid)
	for name, tt := range map[string]struct{ text, jq, want string }{
		"JSON":        {array, ".[299].id", "299"},
		"noise":       {"npm warn Unknown user config\n" + array + "\nexit status 1\n", ".[299].id", "[jq skipped what is not JSON: 2 lines]\n299"},
		"JSON Lines":  {row("{\"id\":%d}\n"), ".[299].id", "299"},
		"YAML":        {"items:\n" + row("- id: %d\n"), ".items[299].id", "[jq read YAML as JSON]\n299"},
		"XML":         {"<rows>\n" + row("<row id=\"%d\"/>\n") + "</rows>\n", ".rows.row[299][\"@id\"]", "repeated elements arrays]\n299"},
		"CSV":         {"id,name\n" + row("%d,a\n"), ".[299].id", "all values strings]\n299"},
		"Python":      {row("{'id': %d, 'at': None}\n"), ".[299].id", "[jq read the 300 values in the text as JSON]\n299"},
		"events":      {row("data: {\"id\": %d, \"size\": 7}\n\n"), ".[299].id", "[jq read the 300 values in the text as JSON]\n299"},
		"YAML later":  {"Warning! It is slow\n" + "items:\n" + row("- id: %d\n") + "exit status 1\n", ".items[299].id", "lines around it left out: 2]\n299"},
		"CSV later":   {"npm warn x\nid,name\n" + row("%d,a\n") + "(300 rows)\n", ".[299].id", "lines around it left out: 2]\n299"},
		"cut JSON":    {array[:len(array)-5], ".[0]", "begins in line 1 is cut off"},
		"prose":       {row("some words %d in a line\n"), ".[0]", "nor is it YAML, XML or CSV"},
		"grown YAML":  {laughs, ".a30|length", "can't be converted"},
		"nested YAML": {strings.Repeat("- ", 20_000) + "a", "length", ""},
	} {
		h := handleIn(t, said(t, tool(t, c, ctx, "fake__raw", `{"result":{"content":[{"type":"text","text":`+jsonText(tt.text)+`}]}}`)))
		m := readPart(t, c, ctx, map[string]any{"handle": h, "jq": tt.jq})
		got := said(t, m)
		if busy := strings.Contains(got, "too long") || strings.Contains(got, "too much memory"); !strings.Contains(got, tt.want) && !busy || tt.want == "" && !parseResult(t, m).IsError {
			t.Errorf("%s: jq %s reads %.300s, want %q", name, tt.jq, got, tt.want)
		}
	}
	if grown := peakMemory(t, g.pid) - before; grown > 128<<10 {
		t.Errorf("the gateway's peak grew by %d KiB", grown)
	}
}

// An agent that edits a file of thousands of tokens in a branch has all of it after one read more, as
// the preview says. A result a little over the threshold needs none.
func TestWholeFileInOneRead(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	source := func(functions int) string {
		var b strings.Builder
		b.WriteString("package a\n")
		for i := range functions {
			fmt.Fprintf(&b, "\nfunc f%d(a, b int) int {\n\tif a > b {\n\t\treturn a - %d\n\t}\n\treturn b\n}\n", i, i)
		}
		return b.String()
	}
	small, middle, large := source(42), source(100), source(600)
	write(t, filepath.Join(dir, "small.go"), small)
	write(t, filepath.Join(dir, "middle.go"), middle)
	write(t, filepath.Join(dir, "large.go"), large)
	g := newGateway(t, filesConfig(dir, ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"edit"}`)).BranchID
	if n := tokens(t, small); n <= 1024 || n > 1280 {
		t.Fatalf("the small file has %d tokens", n)
	}
	if got := said(t, readFile(t, c, ctx, "small.go", b)); got != small {
		t.Errorf("a file a little over the threshold arrives as %.200s", got)
	}
	preview := said(t, readFile(t, c, ctx, "middle.go", b))
	m := regexp.MustCompile(`all of it: "lines":"1-","max_tokens":(\d+)\]`).FindStringSubmatch(preview)
	if m == nil {
		t.Fatalf("the preview of a file of %d tokens does not say how to read all: %.300s", tokens(t, middle), preview)
	}
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": handleIn(t, preview), "lines": "1-", "max_tokens": json.RawMessage(m[1]), "branch_id": b})); got != strings.TrimSuffix(middle, "\n") {
		t.Errorf("one read brings %d of %d bytes: … %s", len(got), len(middle), got[max(0, len(got)-100):])
	}
	if got := said(t, readFile(t, c, ctx, "large.go", b)); strings.Contains(got, "max_tokens") {
		t.Errorf("no read of this branch has %d tokens: %.300s", tokens(t, large), got)
	}
	if s := statusOf(t, c, ctx, b); s.Status != "active" {
		t.Errorf("after two files the branch is %+v", s)
	}
}

// peakMemory is the most that a process has held, in KiB; 0 where the system
// does not say.
func peakMemory(t *testing.T, pid int) (kib int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	if _, line, ok := strings.Cut(string(text), "VmHWM:"); ok {
		if _, err := fmt.Sscan(line, &kib); err != nil {
			t.Fatal(err)
		}
	}
	return kib
}

// The result of a call that became a task folds as it would have at once, and
// the branch of the call pays for it. A resource is never given in part.
func TestResultsOfTasks(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	start := func(id, more string) {
		call(t, c, ctx, "tools/call", `{"name":"fake__raw","task":{},"arguments":{"result":{"task":{"taskId":"`+id+`","status":"working"}}`+more+`}}`)
	}
	start("t1", "")
	h := handleIn(t, said(t, call(t, c, ctx, "tasks/result", `{"taskId":"t1"}`)))
	if got := said(t, readPart(t, c, ctx, map[string]any{"handle": h, "lines": "4000"})); got != "a row of the task's result" {
		t.Errorf("the last line of the stored result is %q", got)
	}
	b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"d","budget":2000}`)).BranchID
	start("t2", `,"branch_id":"`+b+`"`)
	before := statusOf(t, c, ctx, b).BudgetUsed
	m := call(t, c, ctx, "tasks/result", `{"taskId":"t2"}`)
	if used := statusOf(t, c, ctx, b).BudgetUsed - before; used != resultTokens(t, m) || !strings.Contains(said(t, m), "[Folded") {
		t.Errorf("the branch was charged %d tokens for a preview of %d: %.100s", used, resultTokens(t, m), said(t, m))
	}
	own[returned](t, tool(t, c, ctx, "branch_return", `{"branch_id":"`+b+`","message":""}`))
	if m, err := c.Call(ctx, "tasks/result", `{"taskId":"t2"}`); err != nil || !strings.Contains(string(m.Error), "branch_not_active") {
		t.Errorf("after the return: %s%.100s, %v", m.Error, m.Result, err)
	}
	small := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"d","budget":4}`)).BranchID
	if m, err := c.Call(ctx, "resources/read", `{"uri":"fake://a","_meta":{"io.github.foldgate/branch_id":"`+small+`"}}`); err != nil || !strings.Contains(string(m.Error), "budget_exhausted") {
		t.Errorf("a resource larger than its branch: %s%s, %v", m.Error, m.Result, err)
	}
	g.stop()
	if out := g.output("stats"); !strings.HasPrefix(out, "8 calls, ") || !strings.Contains(out, "2 results folded") {
		t.Errorf("want the 8 calls of tools, none of them for what asked for a task's result:\n%s", out)
	}
}
