//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	collectlogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/test/mcpclient"
)

// Two gateways with directories of their own are one audit: queries, sums and verification read both,
// in the order of time, and say whose each record is. What one principal said is found, exported and
// erased in both, of which one still runs; both chains stay provable, and what others said stays.
func TestAuditOfSeveralDirectories(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	var gates [2]*gateway
	var at [2]string
	for i := range gates {
		gates[i] = newGateway(t, "listen: 127.0.0.1:0\n"+principals()+"upstreams:\n  files: {builtin: files, roots: [.]}\n")
		write(t, filepath.Join(gates[i].dir, "note.txt"), "one line\n")
		at[i] = gates[i].http()
	}
	for n := range 6 {
		for _, who := range []string{"alice", "bob"} {
			g := gates[n%2]
			c := g.as(t, at[n%2], mcpclient.Modern, who)
			tool(t, c, ctx, "files__search_files", fmt.Sprintf(`{"pattern":"said by %s %d"}`, who, n))
		}
	}
	gates[0].stop()
	// One by name, the other by a pattern.
	audit := newGateway(t, "")
	dirs := []string{"--dir", filepath.Join(gates[0].dir, "state"), "--dir", filepath.Join(gates[1].dir, "stat*")}
	run := func(args ...string) string { t.Helper(); return audit.output(append(args, dirs...)...) }

	rows := strings.Split(strings.TrimSpace(run("trace", "--kind", "mcp/request:tools/call", "--principal", "alice")), "\n")
	if len(rows) != 7 || !strings.HasPrefix(rows[0], "INSTANCE") {
		t.Fatalf("records of alice:\n%s", strings.Join(rows, "\n"))
	}
	for n, row := range rows[1:] {
		if name := filepath.Base(gates[n%2].dir); !strings.HasPrefix(row, name+" ") && !strings.HasPrefix(row, filepath.Base(filepath.Dir(gates[n%2].dir))+" ") ||
			!strings.HasSuffix(row, fmt.Sprintf("said by alice %d", n)) {
			t.Errorf("row %d: %s", n, row)
		}
	}
	if out := run("stats"); !strings.HasPrefix(out, "12 calls") {
		t.Errorf("stats: %s", out)
	}
	if out := run("stats", "--by", "instance"); len(regexp.MustCompile(`(?m)^ *\d+ +6 .* 00[12]$`).FindAllString(out, -1)) != 2 {
		t.Errorf("stats by instance: %s", out)
	}
	verified := run("trace", "verify")
	heads := regexp.MustCompile(`head (sha256:\w+)\n\d+ records in 1 file, seq 1 to (\d+): ok`).FindAllStringSubmatch(verified, -1)
	if len(heads) != 2 || !strings.HasSuffix(verified, "2 journals: ok\n") {
		t.Fatalf("verify: %s", verified)
	}

	// The copy of alice's records is provable record by record, and has nobody else's.
	copied := filepath.Join(audit.dir, "alice.jsonl")
	write(t, copied, run("trace", "--principal", "alice", "--format", "jsonl"))
	data, err := os.ReadFile(copied)
	if err != nil || bytes.Count(data, []byte("said by alice")) < 6 || bytes.Contains(data, []byte("said by bob")) {
		t.Errorf("%v, alice's records: %s", err, data)
	}
	for i := range gates { // a file of lines is of one journal
		part := filepath.Join(audit.dir, fmt.Sprintf("alice-%d.jsonl", i))
		write(t, part, audit.output("trace", "--principal", "alice", "--format", "jsonl", dirs[2*i], dirs[2*i+1]))
		audit.output("trace", "verify", "--selection", "--export", part)
	}

	run("trace", "erase", "--principal", "alice", "--yes")
	tool(t, gates[1].as(t, at[1], mcpclient.Modern, "alice"), ctx, "files__search_files", `{"pattern":"said after that"}`)
	if got := gates[1].trace("--principal", "alice", "--tool", "search_files"); len(got) != 8 || len(got[0].Payload) > 0 || !strings.Contains(string(got[6].Payload), "said after that") {
		t.Errorf("the gateway that runs: %d records of alice, %+v", len(got), got)
	}
	if got := gates[1].trace("--kind", "system/access"); len(got) != 1 || !strings.Contains(string(got[0].Payload), "/v1/trace/erase") {
		t.Errorf("the operator's requests: %+v", got)
	}
	for _, g := range gates {
		files, err := filepath.Glob(filepath.Join(g.dir, "state", "trace", "*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		bob := 0
		for _, f := range files {
			data := read(t, f)
			if bytes.Contains(data, []byte("said by alice")) {
				t.Errorf("%s still has what alice said", f)
			}
			bob += bytes.Count(data, []byte("said by bob"))
		}
		if bob == 0 {
			t.Errorf("what bob said is gone from %s", g.dir)
		}
	}
	// The heads from before the erasure still prove both chains.
	anchors := []string{"trace", "verify"}
	for _, h := range heads {
		anchors = append(anchors, "--anchor", h[2]+":"+h[1])
	}
	if out := run(anchors...); strings.Count(out, " payloads erased: ok\n") != 2 || !strings.HasSuffix(out, "2 journals: ok\n") {
		t.Errorf("verify after the erasure: %s", out)
	}
	wrong := append(append([]string{}, anchors...), "--anchor", "2:sha256:"+strings.Repeat("1", 64))
	if out, err := audit.command(append(wrong, dirs...)...).Output(); err == nil || !strings.Contains(string(out), "which you hold, is in none of the journals") {
		t.Errorf("verify with an anchor of none: %v, %s", err, out)
	}
}

// logStore is an OTLP receiver of logs that refuses requests while down is set. It keeps what it takes
// as the file exporter of a collector writes it.
type logStore struct {
	url  string
	mu   sync.Mutex
	down bool
	file bytes.Buffer
}

func newLogStore(t *testing.T) *logStore {
	s := new(logStore)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		var m collectlogs.ExportLogsServiceRequest
		_, err := body.ReadFrom(r.Body)
		if err == nil {
			err = proto.Unmarshal(body.Bytes(), &m)
		}
		line, errOfLine := protojson.MarshalOptions{}.Marshal(&m)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil || errOfLine != nil || s.down || r.URL.Path != "/v1/logs" {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		s.file.Write(append(line, '\n'))
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

func (s *logStore) setDown(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *logStore) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.file.String(), text)
}

// Every record reaches the log store, without payloads, through a log store that is down and a gateway
// that is killed. What the log store has is checked against the head of the journal, and each change of
// it is found.
func TestRecordsInALogStore(t *testing.T) {
	ctx := testContext(t)
	store := newLogStore(t)
	t.Setenv("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", store.url+"/v1/logs")
	g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
	write(t, filepath.Join(g.dir, "note.txt"), "Erika Mustermann\n")
	read := func(c *mcpclient.Client, n int) {
		for range n {
			tool(t, c, ctx, "files__read_file", `{"path":"note.txt"}`)
		}
	}
	c := g.stdio(mcpclient.Legacy)
	read(c, 1)
	until(t, "the log store has the records", func() bool { return store.has("files") && store.has("read_file") })
	store.setDown(true)
	read(c, 20)
	g.stop() // it could not send the rest
	store.setDown(false)
	c = g.stdio(mcpclient.Legacy)
	read(c, 1)
	g.stop()

	verified := g.output("trace", "verify")
	head := regexp.MustCompile(`head (sha256:\w+)\n(\d+) records`).FindStringSubmatch(verified)
	if head == nil {
		t.Fatal(verified)
	}
	logs := filepath.Join(g.dir, "logs.jsonl")
	write(t, logs, store.file.String())
	if store.has("Mustermann") {
		t.Error("the log store has a payload")
	}
	check := func(text string) (string, error) {
		file := filepath.Join(g.dir, "checked.jsonl")
		write(t, file, text)
		out, err := g.command("trace", "verify", "--export", file, "--anchor", head[2]+":"+head[1]).Output()
		return string(out), err
	}
	whole := store.file.String()
	if out, err := check(whole); err != nil || !strings.Contains(out, head[2]+" records, seq 1 to "+head[2]+": ok") || !strings.HasSuffix(out, "1 journal: ok\n") {
		t.Errorf("the export: %v, %s\njournal: %s", err, out, verified)
	}
	lines := strings.SplitAfter(whole, "\n")
	for what, changed := range map[string]string{
		"another tool":     strings.Replace(whole, `\"tool\":\"read_file\"`, `\"tool\":\"list_file\"`, 1),
		"a missing line":   strings.Join(append(append([]string{}, lines[:1]...), lines[2:]...), ""),
		"a missing end":    strings.Join(lines[:len(lines)-2], ""),
		"another's record": strings.Replace(whole, `\"seq\":5,`, `\"seq\":6,`, 1),
	} {
		if out, err := check(changed); err == nil || !strings.Contains(out, "FAULT") || changed == whole {
			t.Errorf("%s: %v, %s", what, err, out)
		}
	}
}

// A start removes files whose records are all too old, and ends one that could not go otherwise.
func TestRetentionByAge(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\ntrace: {retain_days: 7}\n")
	dir := filepath.Join(g.dir, "state", "trace")
	for _, days := range []int{30, 8, 3} { // the day on which each file was written
		j, err := trace.Open(dir, trace.Options{RotateBytes: 1, Now: func() time.Time { return time.Now().AddDate(0, 0, -days) }})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Append(&trace.Record{Kind: "conclusion", Payload: fmt.Appendf(nil, `{"days":%d}`, days)}); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
	tool(t, g.stdio(mcpclient.Legacy), ctx, "files__search_files", `{"pattern":"x"}`)
	g.stop()
	if out := g.output("trace", "--kind", "conclusion", "--format", "jsonl"); strings.Count(out, "\n") != 1 || !strings.Contains(out, `{"days":3}`) {
		t.Errorf("conclusions: %s", out)
	}
	if out := g.output("trace", "verify"); !strings.Contains(out, "retention removed") || !strings.HasSuffix(out, ": ok\n") {
		t.Errorf("verify: %s", out)
	}
}
