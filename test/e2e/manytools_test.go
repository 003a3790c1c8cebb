//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// 61 servers with 1,040 tools. Sessions share one list: a list that the gateway has costs about what its
// bytes cost to record and to write, and a further session keeps no copy of it.
func TestManyTools(t *testing.T) {
	definition := func(i int) string {
		return fmt.Sprintf(`{"name":"tool_%d","description":%s,"inputSchema":{"type":"object","properties":{"path":{"type":"string","description":"The file to read, relative to the project."},"limit":{"type":"integer","description":"The largest number of lines."}},"required":["path"]}}`,
			i, jsonText(strings.Repeat("Reads a file of the project and returns its lines with their numbers. ", 4)))
	}
	server := func(tools int) string {
		var all []string
		for i := range tools {
			all = append(all, definition(i))
		}
		file := filepath.Join(t.TempDir(), "answers.json")
		write(t, file, `{"tools/list":{"tools":[`+strings.Join(all, ",")+`]}}`)
		return fakeserverHTTP(t, "-answers", file)
	}
	small, large := server(17), server(20)
	config := fmt.Sprintf("pins: off\nupstreams:\n  last: {url: %q}\n", large)
	for i := range 60 {
		config += fmt.Sprintf("  server%d: {url: %q}\n", i, small)
	}
	g := newGateway(t, config)
	url := g.http()

	post := func(session, message string) (string, []byte) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Accept", "application/json, text/event-stream")
		if session != "" {
			req.Header.Set("Mcp-Session-Id", session)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode >= 300 {
			t.Fatalf("%.80s: status %d, %v: %.300s", message, res.StatusCode, err, body)
		}
		return res.Header.Get("Mcp-Session-Id"), body
	}
	open := func() string {
		session, _ := post("", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"many","version":"1"}}}`)
		post(session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		return session
	}
	list := func(session string) []byte {
		_, body := post(session, `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}`)
		return body
	}

	first := open()
	var answer struct {
		Result struct{ Tools []struct{ Name string } }
	}
	body := list(first)
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	own := func(tool struct{ Name string }) bool { return !strings.Contains(tool.Name, "__") }
	if n := len(slices.DeleteFunc(answer.Result.Tools, own)); n != 1040 {
		t.Fatalf("the list has %d tools of servers, want 1,040", n)
	}

	const lists, sessions = 300, 200
	var took []time.Duration
	before := cpuOf(t, g.pid)
	for range lists {
		start := time.Now()
		list(first)
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	cpu := (cpuOf(t, g.pid) - before) / lists
	memory := g.footprint().rss
	for range sessions {
		list(open())
	}
	each := (g.footprint().rss - memory) * 1024 / sessions
	t.Logf("a list of %d bytes again: %v (median of %d), %v of processor time; a further session that reads it: %d bytes of memory", len(body), took[lists/2], lists, cpu, each)
	const most = 5 // times the time in which encoding/json checks it; it takes about once that
	start := cputime.Process()
	for range 20 {
		if !json.Valid(body) {
			t.Fatal("the list is no JSON")
		}
	}
	if check := (cputime.Process() - start) / 20; cpu > most*check {
		t.Errorf("a list that the gateway has takes %v of processor time, a check that it is JSON %v: want at most %d times that", cpu, check, most)
	}
	if each > len(body)/4 {
		t.Errorf("a further session takes %d bytes of memory, want less than a quarter of the list of %d", each, len(body))
	}
}

// cpuOf returns the processor time of a process.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text := read(t, fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
