package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/trace/query"
	"github.com/foldgate/foldgate/proxy/config"
)

const (
	branchA = "br_3fea63c2-0000-7000-8000-000000000001"
	branchB = "br_3fea63c2-0000-7000-8000-000000000002"
	branchC = "br_99999999-0000-7000-8000-000000000003"
)

// auditState writes the traces of three instances: alice and bob call tools on two days, in turns.
// It returns the configuration.
func auditState(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "foldgate.yaml")
	write(t, file, "state_dir: state\n")
	var journals []*trace.Journal
	now := time.Date(2026, 11, 20, 23, 59, 0, 0, time.UTC)
	for n := 1; n <= 3; n++ {
		j, err := trace.Open(filepath.Join(config.InstanceDir(filepath.Join(dir, "state"), n), "trace"), trace.Options{Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		journals = append(journals, j)
	}
	for i := range 12 {
		now = now.Add(10 * time.Second)
		who, context := []string{"alice", "bob"}[i%2], []string{"", branchA, branchA + "/" + branchC, branchB}[i%4]
		q := &trace.Record{
			ID: fmt.Sprintf("env_q%d", i), Kind: "mcp/request:tools/call", From: "host:h", To: []string{"upstream:files"}, Context: context,
			Payload: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"branch_id":"br_x","limit":5,"path":"secrets/%d.env"}}}`, i, i),
			Audit:   &trace.Audit{Principal: who, Team: map[string]string{"alice": "data"}[who], Server: "files", Tool: "read_file", Session: "ses_" + who, Tokens: &trace.Tokens{Counter: "o200k_base", In: 10}},
		}
		a := *q.Audit
		a.Tokens = &trace.Tokens{Counter: "o200k_base", Out: 100, Delivered: 100}
		r := &trace.Record{ID: fmt.Sprintf("env_r%d", i), Kind: "mcp/response:tools/call", From: "upstream:files", Context: context, CorrelationID: trace.IDs{q.ID}, Audit: &a}
		if i == 5 {
			a.Decision = &trace.Decision{Result: trace.Blocked, Reason: "unsafe", Rule: "github-pat"}
			a.IsError, a.Scrub = true, []trace.Finding{{Rule: "github-pat", Count: 2}}
			r.Payload = []byte(`{"jsonrpc":"2.0","id":5,"result":{"isError":true,"content":[{"type":"text","text":"secret_in_arguments: remove it and call again"}]}}`)
		}
		for _, rec := range []*trace.Record{q, r} {
			if err := journals[i%3].Append(rec); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, j := range journals {
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

// succeeds runs a command with a configuration and returns its output.
func succeeds(t *testing.T, config string, args ...string) string {
	t.Helper()
	out, errOut, code := runs(t, append(args, "--config", config)...)
	if code != 0 || errOut != "" {
		t.Fatalf("%q: code %d, %s", args, code, errOut)
	}
	return out
}

// says holds an output to lines that regular expressions match.
func says(t *testing.T, out string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile("(?m)" + p).MatchString(out) {
			t.Errorf("nothing matches %s in\n%s", p, out)
		}
	}
}

// --rule selects what one rule refused or found, and says which rules there are. What a limit or a policy let pass
// shows the rule.
func TestRules(t *testing.T) {
	file := auditState(t)
	j, err := trace.Open(filepath.Join(filepath.Dir(file), "state", "trace"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, d := range map[string]trace.Decision{
		"budget/refused":          {Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: "day"},
		"mcp/response:tools/call": {Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: "day"},
		"mcp/response:ping":       {Result: trace.Allowed, Reason: trace.ReasonPolicy, Rule: "no-grep"},
	} {
		if err := j.Append(&trace.Record{Kind: kind, From: "foldgate", Audit: &trace.Audit{Principal: "carol", Decision: &d}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]int{"--rule day": 2, "--rule day --blocked": 1, "--rule github-*": 1, "--rule no-grep": 1, "--rule day --no-index": 2} {
		out := succeeds(t, file, append(strings.Fields("trace --format jsonl"), strings.Fields(args)...)...)
		if n := strings.Count(out, "\n"); n != want {
			t.Errorf("%s: %d records, want %d:\n%s", args, n, want, out)
		}
	}
	says(t, succeeds(t, file, "trace", "--principal", "carol"), `ping .* policy:no-grep$`, `budget/refused .* over-budget,resource_limit:day\b`, `tools/call .* blocked,over-budget,resource_limit\b`)
	says(t, succeeds(t, file, "stats", "--by", "rule", "--principal", "carol"), `^ +2 .* 1 .* day$`)
	if _, errOut, code := runs(t, "trace", "--rule", "nope", "--config", file); code != exitUsage || !strings.Contains(errOut, `--rule: no record has the name "nope"; there are day, github-pat, no-grep`) {
		t.Errorf("code %d, %s", code, errOut)
	}
}

func TestTableShowsWhoAndWhat(t *testing.T) {
	file := auditState(t)
	out := succeeds(t, file, "trace")
	says(t, out, `^INSTANCE +SEQ .*PRINCIPAL.*ABOUT$`, ` alice .*files read_file.* secrets/4\.env$`, ` bob .*blocked,.* secret_in_arguments: remove it and call again$`)
	says(t, succeeds(t, file, "trace", "--format", "tree"), `files read_file 10 tokens in by alice secrets/4\.env$`)
}

// The argument that matters is the first short string, whatever its name and place.
func TestAbout(t *testing.T) {
	dir := t.TempDir()
	j, err := trace.Open(dir, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 5000)
	tests := []struct{ kind, payload, want string }{
		{"mcp/request:tools/call", `{"params":{"name":"t","arguments":{"query":"a b"}}}`, `a b`},
		{"mcp/request:tools/call", `{"params":{"name":"t","arguments":{"content":"` + long + `","path":"p.txt"}}}`, `p\.txt`},
		{"mcp/request:tools/call", `{"params":{"name":"t","arguments":{"n":1,"paths":["one","two"]}}}`, `one`},
		{"mcp/request:tools/call", `{"params":{"_meta":{"a":"b"},"name":"t","arguments":{"branch_id":"br_1","o":{"url":"https://x"}}}}`, `https://x`},
		{"mcp/request:tools/call", `{"params":{"name":"t","arguments":{"text":"` + long + `"}}}`, `x{200}`},
		{"mcp/request:resources/read", `{"params":{"uri":"file:///a"}}`, `file:///a`},
		{"mcp/response:tools/call", `{"error":{"code":-32602,"message":"no such tool"}}`, `no such tool`},
		{"mcp/notification:notifications/initialized", `{"jsonrpc":"2.0"}`, ``},
		{"context/push", `{"branch_id":"br_1","budget":5,"description":"look around"}`, `look around`},
		{"conclusion", `{"decision":"it was the cache"}`, `it was the cache`},
	}
	for _, tt := range tests {
		if err := j.Append(&trace.Record{Kind: tt.kind, Payload: []byte(tt.payload), Audit: &trace.Audit{IsError: strings.HasPrefix(tt.kind, "mcp/response")}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	out, _, _ := runs(t, "trace", "--dir", dir)
	lines := strings.Split(out, "\n")
	for i, tt := range tests {
		says(t, strings.TrimPrefix(lines[i+1], strings.Fields(lines[i+1])[0]), `\benv_\S+( error)? *`+tt.want+"$")
	}
}

// A record that was changed is not shown as sound: neither its audit fields nor its payload.
func TestShowOfAChangedRecord(t *testing.T) {
	for _, change := range [][2]string{{`secrets/5.env`, `secrets/9.env`}, {`"tool":"read_file"`, `"tool":"read_fil2"`}} {
		file := auditState(t)
		if out := succeeds(t, file, "trace", "show", "env_q5"); strings.Contains(out, "CHANGED") {
			t.Errorf("sound: %s", out)
		}
		segments, err := filepath.Glob(filepath.Join(filepath.Dir(file), "state", "*", "trace", "trace-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range segments {
			lines, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			before, after, found := strings.Cut(string(lines), `"id":"env_q5"`)
			if found {
				after = strings.Replace(after, change[0], change[1], 1)
				write(t, name, before+`"id":"env_q5"`+after)
			}
		}
		says(t, succeeds(t, file, "trace", "show", "env_q5"), `^CHANGED the record or its payload is not as it was written`)
	}
}

func TestShowHasTheReasonAndThePayload(t *testing.T) {
	file := auditState(t)
	says(t, succeeds(t, file, "trace", "show", "env_r5"), `^  blocked, reason unsafe, rule github-pat$`, `secret_in_arguments: remove it`, `^payload$`, `^ +"text": "secret_in_arguments`, `^ +"rule": "github-pat"`)
	says(t, succeeds(t, file, "trace", "show", "env_q5"), `"path": "secrets/5\.env"`, `^led to$`)
	row := regexp.MustCompile(`(?m)^(instance-3)?#?(\d+) .*env_q2`).FindStringSubmatch(succeeds(t, file, "trace", "--instance", "instance-3"))
	if row == nil {
		t.Fatal("env_q2 has no number")
	}
	for _, args := range [][]string{{row[2], "--instance", "instance-3"}, {"#" + row[2], "--instance", "3"}, {"instance-3#" + row[2]}} {
		says(t, succeeds(t, file, append([]string{"trace", "show"}, args...)...), `env_q2`, `secrets/2\.env`)
	}
	for number, want := range map[string]string{
		row[2]: "3 journals have a record " + row[2] + ": name one, such as '", "99999": "the record 99999: no such record", "0": "no such record",
		"99999999999999999999": "too large", "nope#1": `--instance: "nope" is no instance`,
	} {
		if _, errOut, code := runs(t, "trace", "show", number, "--config", file); code == 0 || !strings.Contains(errOut, want) {
			t.Errorf("%s: code %d, %s", number, code, errOut)
		}
	}
	if _, errOut, code := runs(t, "trace", "show", "env_none", "--config", file); code != exitFailed || !strings.Contains(errOut, "no such record") {
		t.Errorf("code %d, %s", code, errOut)
	}
}

func TestShortContext(t *testing.T) {
	file := auditState(t)
	want := succeeds(t, file, "trace", "--context", branchA+"/"+branchC, "--format", "jsonl")
	if strings.Count(want, "\n") != 6 {
		t.Fatalf("records of the child:\n%s", want)
	}
	for _, short := range []string{"br_99999999", "br_99999999~", "br_3fea63c2~/br_99999999~", branchC, branchA + "/br_9"} {
		if out := succeeds(t, file, "trace", "--context", short, "--format", "jsonl"); out != want {
			t.Errorf("--context %s: %d records, want 6", short, strings.Count(out, "\n"))
		}
	}
	says(t, succeeds(t, file, "trace", "contexts", "--context", branchA, "--tree"), branchC)
	for _, args := range [][]string{{"trace"}, {"trace", "contexts"}, {"stats"}, {"trace", "--follow", "--instance", "1"}} {
		_, errOut, code := runs(t, append(args, "--context", "br_3fea63c2", "--config", file)...)
		if code != exitUsage || args[len(args)-1] != "1" && (!strings.Contains(errOut, branchA) || !strings.Contains(errOut, branchB)) {
			t.Errorf("%q: code %d, %s", args, code, errOut)
		}
	}
}

func TestUnknownNames(t *testing.T) {
	file := auditState(t)
	for _, tt := range [][]string{
		{"principal", "alcie", "alice, bob"}, {"tool", "reed_file", "read_file"}, {"tool", "reed*", "read_file"}, {"server", "fils", "files"},
		{"session", "ses_1", "ses_alice, ses_bob"}, {"context", "br_4", branchA}, {"server", "files,git", "files"},
		{"team", "dta", "data"}, {"kind", "foo", "mcp/request, mcp/response"}, {"tool", "files__read_file", "--server files --tool read_file; there are read_file"},
	} {
		for _, command := range [][]string{{"trace"}, {"trace", "contexts"}, {"stats"}} {
			out, errOut, code := runs(t, append(command, "--"+tt[0], tt[1], "--config", file)...)
			if code != exitUsage || out != "" || !strings.Contains(errOut, "--"+tt[0]+": no record has the name") || !strings.Contains(errOut, tt[2]) {
				t.Errorf("%q --%s %s: code %d, %s%s", command, tt[0], tt[1], code, out, errOut)
			}
		}
	}
	for _, args := range [][]string{{"--kind", "budget/refused,definition/*"}, {"--kind", "mcp/request:prompts/get"}, {"--until", "2026-01-01T00:00:00Z"}} {
		says(t, succeeds(t, file, append([]string{"trace"}, args...)...), `^There is no record yet, or none that the filters select\.$`)
	}
	if out := succeeds(t, file, "stats", "--until", "2026-01-01T00:00:00Z"); out != nothingYet+"\n" {
		t.Errorf("stats of nothing: %s", out)
	}
	for _, args := range [][]string{{"--principal", "ali*"}, {"--team", "da*"}, {"--tool", "read_*", "--server", "files"}, {"--principal", "alcie", "--no-index"}} {
		succeeds(t, file, append([]string{"trace"}, args...)...)
	}
}

// An empty filter, as from a shell variable that is not set, selects nothing, and main is no depth.
func TestEmptyFilters(t *testing.T) {
	file := auditState(t)
	for _, command := range [][]string{{"trace"}, {"trace", "contexts"}, {"trace", "erase"}, {"stats"}} {
		refused := func(flag, value, want string) {
			out, errOut, code := runs(t, append(command, "--config", file, "--principal=alice", "--"+flag+"="+value)...)
			if code != exitUsage || out != "" || !strings.Contains(errOut, "--"+flag+": "+want) {
				t.Errorf("%q --%s=%s: code %d, %s%s", command, flag, value, code, out, errOut)
			}
		}
		for _, f := range query.Fields {
			switch f.At(&query.Filter{}).(type) {
			case *bool:
			case *int:
				refused(f.Name, "0", "0 is main: use --main")
			case *[]string:
				refused(f.Name, "", "is empty")
				refused(f.Name, "a,", "is empty")
			default:
				refused(f.Name, "", "is empty")
			}
		}
		refused("context", "~", "is empty")
		refused("instance", "", "is empty")
	}
}

func TestContextsLimitsRows(t *testing.T) {
	file := auditState(t)
	if got := succeeds(t, file, "trace", "contexts", "--limit", "2"); strings.Count(got, "\n") != 3 {
		t.Errorf("want a header and two rows:\n%s", got)
	}
	if got := succeeds(t, file, "trace", "contexts", "--limit", "2", "--json"); strings.Count(got, `"path"`) != 2 {
		t.Errorf("want two contexts:\n%s", got)
	}
	says(t, succeeds(t, file, "trace", "contexts", "--limit", "1"), `^\(main\) +0 +main +\d+ +3 `)
}

func TestSumsBy(t *testing.T) {
	file := auditState(t)
	for _, tt := range []struct {
		by   string
		rows []string // records, calls and tokens
	}{
		{"principal", []string{`12 +6 .* 600 +0 +alice`, `12 +6 .* 600 +0 +bob`}},
		{"principal,day", []string{`6 +3 .* 300 +0 +alice 2026-11-20`, `6 +3 .* alice 2026-11-21`, `4 +2 .* bob 2026-11-20`, `8 +4 .* 400 +0 +bob 2026-11-21`}},
		{"team", []string{`12 +6 .* 600 +0 +data`, `12 +6 .* -`}},
		{"server", []string{`24 +12 .* 1200 +0 +files`}},
		{"tool", []string{`24 +12 .* 1200 +0 +files/read_file`}},
		{"rule", []string{`1 +0 .* 100 +0 +github-pat`}},
		{"server,rule", []string{`1 +0 .* 100 +0 +files github-pat`}},
		{"session", []string{`12 +6 .* 600 +0 +ses_alice`}},
		{"instance", []string{`8 +4 .* 400 +0 +instance-2`}},
		{"day", []string{`10 +5 .* 500 +0 +2026-11-20`, `14 +7 .* 2026-11-21`}},
		{"branch", []string{`6 +3 .* 300 +0 +main`, `6 +3 .* ` + branchA}},
	} {
		for _, row := range tt.rows {
			says(t, succeeds(t, file, "stats", "--by", tt.by), "^ *"+row+"$")
		}
	}
	if out := succeeds(t, file, "stats", "--by", "principal,day", "--limit", "1"); !strings.Contains(out, "bob 2026-11-21\n(3 more; --limit 0 shows them)") || strings.Contains(out, "alice") {
		t.Errorf("want the last row of four:\n%s", out)
	}
	var sums query.Stats
	if err := json.Unmarshal([]byte(succeeds(t, file, "stats", "--by", "principal", "--json", "--principal", "bob")), &sums); err != nil || len(sums.Tables["principal"]) != 1 || sums.Tables["principal"][0].Delivered != 600 {
		t.Errorf("%+v, %v", sums, err)
	}
	if _, errOut, code := runs(t, "stats", "--by", "weekday", "--config", file); code != exitUsage || !strings.Contains(errOut, "use any of branch, day, instance, principal") {
		t.Errorf("code %d, %s", code, errOut)
	}
}

func TestAllInstances(t *testing.T) {
	file := auditState(t)
	var last string
	calls := 0
	for line := range strings.Lines(succeeds(t, file, "trace", "--kind", "mcp/request", "--format", "jsonl")) {
		var r trace.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("env_q%d", calls); r.TS < last || r.ID != want {
			t.Errorf("%s at %s after %s, want %s", r.ID, r.TS, last, want)
		}
		last = r.TS
		calls++
	}
	if calls != 12 {
		t.Errorf("%d calls, want 12", calls)
	}
	says(t, succeeds(t, file, "trace", "--limit", "1"), `env_q0 `)
	says(t, succeeds(t, file, "stats"), `^12 calls`)
	says(t, succeeds(t, file, "stats", "--instance", "2"), `^4 calls`)
	says(t, succeeds(t, file, "trace", "contexts"), `^\(main\) +0 +main +6 +3 `)
	says(t, succeeds(t, file, "trace", "contexts", "--instance", "3"), branchC)
	for _, number := range []string{"4", "99"} {
		if _, errOut, code := runs(t, "trace", "--instance", number, "--config", file); code != exitUsage || !strings.Contains(errOut, "--instance: there is no trace of an instance "+number+"; there are 1, 2, 3") {
			t.Errorf("instance %s: code %d, %s", number, code, errOut)
		}
	}
	one := filepath.Join(filepath.Dir(file), "state", "instance-[2]", "trace") // names of one journal are parts of its path
	says(t, succeeds(t, file, "stats", "--dir", one, "--instance", "instance-2"), `^4 calls`)
	if _, errOut, code := runs(t, "stats", "--dir", one, "--instance", "instance-3"); code != exitUsage || !strings.Contains(errOut, "there is only "+filepath.Dir(file)) {
		t.Errorf("code %d, %s", code, errOut)
	}
	log := filepath.Join(filepath.Dir(file), "state", "instance-2.log")
	write(t, log, "")
	says(t, succeeds(t, file, "stats", "--dir", filepath.Join(filepath.Dir(log), "instance-2*")), `^4 calls`)
	says(t, succeeds(t, file, "trace", "show", "env_q2"), `^instance-3#\d+ .*secrets/2\.env`)
	says(t, succeeds(t, file, "trace", "verify"), `instance-2.trace$`, `: ok\n3 journals: ok\n\z`)
	lost, _, code := runs(t, "trace", "verify", "--config", file, "--json", "--anchor", "2:sha256:"+strings.Repeat("f", 64))
	values := json.NewDecoder(strings.NewReader(lost))
	for values.More() {
		var v map[string]any
		if err := values.Decode(&v); err != nil {
			t.Fatalf("%v in\n%s", err, lost)
		}
	}
	if code != exitFailed || !strings.Contains(lost, `"missing_anchors"`) {
		t.Errorf("code %d\n%s", code, lost)
	}
	says(t, succeeds(t, file, "trace", "verify", "--instance", "3"), `^9 records in 1 file, seq 1 to 9: ok\n\z`)
	if err := os.Remove(filepath.Join(filepath.Dir(file), "state", "instance-2", "trace", "head.json")); err != nil {
		t.Fatal(err)
	}
	out, _, code := runs(t, "trace", "verify", "--config", file)
	if says(t, out, `^FAULT head\.json`, `3 journals: 1 fault\n\z`); code != exitFailed {
		t.Errorf("verify of a faulty instance: code %d", code)
	}
	held := regexp.MustCompile(`head (\S+)\n9 records`).FindStringSubmatch(out)
	if out, _, code := runs(t, "trace", "verify", "--anchor", "9:"+held[1], "--anchor", "1:sha256:"+strings.Repeat("0", 64), "--config", file); code != exitFailed ||
		!strings.Contains(out, "FAULT record 1 with sha256:0000") || !strings.HasSuffix(out, "3 journals: 2 faults\n") {
		t.Errorf("anchors of several journals, one of them of none: code %d, %s", code, out)
	}
	if all, followed := succeeds(t, file, "trace"), succeeds(t, file, "trace", "--follow", "--limit", "24"); followed != all {
		t.Errorf("all instances followed:\n%s\nwant\n%s", followed, all)
	}
}

// Work of over a second shows on a terminal that it goes on, and the line goes with the first output.
func TestProgress(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(1500 * time.Millisecond):
		case <-r.Context().Done():
		}
	}))
	defer srv.Close()
	file := filepath.Join(t.TempDir(), "foldgate.yaml")
	write(t, file, fmt.Sprintf("upstreams: {slow: {url: %q}}\n", srv.URL))
	if _, errOut, _ := runs(t, "check", "--config", file); strings.Contains(errOut, "\r") {
		t.Errorf("without a terminal: %q", errOut)
	}
	onTerminal(t)
	if _, errOut, _ := runs(t, "check", "--config", file); !strings.Contains(errOut, "\rfoldgate check: 1 s") || !strings.Contains(errOut, "\r\x1b[K") {
		t.Errorf("on a terminal: %q", errOut)
	}
}
