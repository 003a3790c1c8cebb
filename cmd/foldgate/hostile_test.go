package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// hostile are strings that change what a terminal shows, or add lines to a table.
var hostile = []string{
	"\x1b]0;PWNED\x07", "\x1b[2J", "\x1b[31m", "a\u009b31m", "a\u202egnp.exe", "\u2066b\u2069", "c\u200fd", "\u2028e",
	"f\nFAULT forged", "g\rover", "h\ttab", "i\x00\x7f\x08", "j\U000e0041", "k\ufeff", "l\u00a0m", "n\u2029", "o\v\f",
}

// runs runs a command as main does, and returns its output and exit code.
func runs(t *testing.T, args ...string) (out, errOut string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &o, &e)
	return o.String(), e.String(), code
}

// progress is what a command of over a second shows on a terminal.
var progress = regexp.MustCompile(`\r(\x1b\[K|foldgate [^\r\n]*: \d+ s(, \d+ %)?)`)

// ofTerminal runs the rest of the test as if every stream were a terminal.
func onTerminal(t *testing.T) {
	t.Helper()
	before := isTerminal
	isTerminal = func(any) bool { return true }
	t.Cleanup(func() { isTerminal = before })
}

// unsafe returns the first character of text that can change what a terminal shows, 0 if there is none.
func unsafe(text string) rune {
	if !utf8.ValidString(text) {
		return utf8.RuneError
	}
	for _, c := range text {
		if !unicode.IsPrint(c) && c != '\n' && c != '\t' {
			return c
		}
	}
	return 0
}

// hostileTrace writes a journal in which every text of a record is s, for each hostile s.
func hostileTrace(t *testing.T) (dir string, records int) {
	t.Helper()
	dir = t.TempDir()
	j, err := trace.Open(dir, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range hostile {
		text, _ := json.Marshal(s)
		for k, kind := range []string{"mcp/request:tools/call", "mcp/response:tools/call", "context/push", "context/pop", "conclusion", "workflow/start", "system/warning", s} {
			a := &trace.Audit{Tokens: &trace.Tokens{}, Decision: &trace.Decision{}, Fold: &trace.Fold{}, Read: &trace.Read{}, IsError: true}
			fill(reflect.ValueOf(a), s)
			a.Workflow = fmt.Appendf(nil, `{"step":%s,"path":%[1]s,"a2a":{"taskId":%[1]s,"contextId":%[1]s}}`, text)
			id := fmt.Sprintf("%d-%d-%s", i, k, s)
			r := &trace.Record{
				ID: id, From: s, To: []string{s}, Kind: kind, Context: fmt.Sprintf("c%d", i), CorrelationID: trace.IDs{s, id}, Audit: a,
				Payload: fmt.Appendf(nil, `{"id":%s,"params":{"arguments":{"path":%[1]s}},"error":{"message":%[1]s},"reason":%[1]s}`, text),
			}
			if err := j.Append(r); err != nil {
				t.Fatal(err)
			}
			records++
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, records
}

// fill sets every string below v to s.
func fill(v reflect.Value, s string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			fill(v.Elem(), s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), s)
		}
	case reflect.String:
		v.SetString(s)
	case reflect.Slice:
		if kind := v.Type().Elem().Kind(); kind == reflect.String || kind == reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fill(v.Index(0), s)
		}
	case reflect.Int:
		v.SetInt(max(v.Int(), 1))
	}
}

// No command sends a character to a terminal that changes what it shows, and no name adds a line.
func TestNothingHostileReachesTheTerminal(t *testing.T) {
	onTerminal(t)
	dir, records := hostileTrace(t)
	var commands [][]string
	for _, format := range []string{"table", "tree", "jsonl", "mew", "otlp", "a2a"} {
		commands = append(commands, []string{"trace", "--format", format})
	}
	commands = append(commands, []string{"trace", "contexts"}, []string{"trace", "verify"},
		[]string{"trace", "verify", "--json"}, []string{"stats"}, []string{"stats", "--json"})
	for _, by := range []string{"principal", "server", "tool", "rule", "session", "principal,day"} {
		commands = append(commands, []string{"stats", "--by", by})
	}
	for _, s := range hostile {
		commands = append(commands, []string{"trace", "--principal", "x" + s}, []string{"trace", "--tool", "x" + s}, []string{"trace", "show", s}, []string{s}, []string{"trace", "--" + s})
		for i := range hostile {
			commands = append(commands, []string{"trace", "show", fmt.Sprintf("%d-0-%s", i, s)})
		}
	}
	for _, args := range commands {
		where := args
		if args[0] == "trace" || args[0] == "stats" {
			where = append(slices.Clone(args), "--dir", dir)
		}
		out, errOut, _ := runs(t, where...)
		if c := unsafe(out + progress.ReplaceAllString(errOut, "")); c != 0 {
			t.Errorf("%q prints %U", args, c)
		}
		if strings.Contains("\n"+out, "\nFAULT forged") || args[0] == "stats" && strings.Contains(out, "\nforged") {
			t.Errorf("%q prints a forged line:\n%s", args, out)
		}
		if len(args) == 3 && args[2] == "table" && strings.Count(out, "\n") != records+1 {
			t.Errorf("the table has %d lines, want a header and %d", strings.Count(out, "\n"), records)
		}
	}
}

// Machine formats have the values of the records, on a terminal too; jsonl elsewhere is the journal.
func TestMachineFormatsAreExact(t *testing.T) {
	dir, _ := hostileTrace(t)
	journal, err := os.ReadFile(filepath.Join(dir, trace.SegmentName(1)))
	if err != nil {
		t.Fatal(err)
	}
	if out, _, code := runs(t, "trace", "--dir", dir, "--journal", "--format", "jsonl"); code != 0 || out != string(journal) {
		t.Errorf("jsonl is not the journal, code %d", code)
	}
	onTerminal(t)
	out, _, _ := runs(t, "trace", "--dir", dir, "--journal", "--format", "jsonl")
	if got, want := values(t, out), values(t, string(journal)); !reflect.DeepEqual(got, want) {
		t.Error("jsonl on a terminal has other values than the journal")
	}
	if c := unsafe(out); c != 0 {
		t.Errorf("jsonl prints %U", c)
	}
}

func values(t *testing.T, lines string) (out []any) {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(lines))
	for {
		var v any
		err := dec.Decode(&v)
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
}

// An upstream's names and errors reach check.
func TestCheckOfAHostileUpstream(t *testing.T) {
	onTerminal(t)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		var result any
		switch {
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		case m.Method == "initialize":
			result = map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": hostile[0], "version": hostile[1]}}
		case m.Method == "tools/list":
			var tools []any
			for _, s := range hostile {
				tools = append(tools, map[string]any{"name": "evil" + s, "description": s, "inputSchema": map[string]any{"type": "object"}})
			}
			result = map[string]any{"tools": tools}
		}
		w.Header().Set("Content-Type", "application/json")
		reply := map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result}
		if result == nil {
			reply = map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": strings.Join(hostile, " ")}}
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	defer srv.Close()
	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"jsonrpc": "2.0", "id": 1, "error": map[string]any{"code": -32000, "message": strings.Join(hostile, " ")}})
	}))
	defer refuses.Close()
	file := filepath.Join(t.TempDir(), "foldgate.yaml")
	config := fmt.Sprintf("upstreams:\n  a: {url: %q, prefix: \"\"}\n  b: {url: %[1]q, prefix: \"\"}\n  refuses: {url: %[2]q}\n", srv.URL, refuses.URL)
	write(t, file, config)
	out, errOut, code := runs(t, "check", "--config", file)
	if code != exitFailed || !strings.Contains(out, `evil\u001b]0;PWNED\u0007`) || !strings.Contains(out, "clash: evil") || !strings.Contains(out, "refuses: FAILED") {
		t.Errorf("code %d\n%s%s", code, out, errOut)
	}
	if c := unsafe(out + progress.ReplaceAllString(errOut, "")); c != 0 {
		t.Errorf("check prints %U:\n%s", c, out)
	}
	if strings.Contains(out, "\nFAULT forged") {
		t.Errorf("check prints a forged line:\n%s", out)
	}
}
