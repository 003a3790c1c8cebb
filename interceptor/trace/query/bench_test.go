//go:build unix

package query

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/sqlitedb"
	"github.com/foldgate/foldgate/test/cputime"
)

// benchRecord is like a real call's: half a kilobyte of payload.
func benchRecord(i int) *trace.Record {
	return &trace.Record{From: "host:claude-code#s_71", To: []string{"upstream:files"}, Kind: "mcp/request:tools/call",
		Context: "br_3f1f9a52-2c5b-4f4e-9d3e-0b8c5a6c1c11/br_9a5d2d0e-1f55-4c7e-8e0b-8f1f6b1f2a10",
		Payload: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"src/main/internal/server/handler_%d.go","start_line":1,"end_line":400,"reason":"%0400d"}}}`, i, i%1000, 0),
		Audit: &trace.Audit{Session: "ses_71", Principal: "local", Server: "files", Tool: "read_file", Method: "tools/call", Source: "argument",
			Decision: &trace.Decision{Result: trace.Allowed}, Tokens: &trace.Tokens{Counter: "o200k_base", In: 120, Used: 5120, Budget: 8192}, Bytes: 612}}
}

// cpu reports the processor time a round has used: unlike the clock it does
// not count what else the machine does.
func cpu(b *testing.B, start time.Duration) {
	b.ReportMetric(float64((cputime.Process()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
}

// lines is how many records the query benchmarks ask; 10 million by hand:
//
//	FOLDGATE_BENCH_LINES=10000000 go test ./interceptor/trace/query -run '^$' -bench Query -benchtime 3x -timeout 1h
func lines(b *testing.B) int {
	n := 1_000_000
	if s := os.Getenv("FOLDGATE_BENCH_LINES"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	return n
}

// benchJournal writes calls in pairs, 20 to a branch, 5 branches to a session.
func benchJournal(b *testing.B, dir string, n int) (middle *trace.Record) {
	j, err := trace.Open(dir, trace.Options{Sync: trace.SyncNever})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n / 2 {
		req := benchRecord(i)
		req.Context = fmt.Sprintf("br_%08d-2c5b-4f4e-9d3e-0b8c5a6c1c11", i/20)
		req.Audit.Session = fmt.Sprintf("ses_%08d", i/100)
		req.Audit.Tool = fmt.Sprintf("tool_%d", i%50)
		req.Payload = nil
		audit := *req.Audit
		audit.MS, audit.Late, audit.IsError = 12.5, i%100_000 == 7, i%1000 == 3
		resp := &trace.Record{From: "upstream:files", To: []string{req.From}, Kind: "mcp/response:tools/call", Context: req.Context, Audit: &audit}
		if err := j.Append(req); err != nil {
			b.Fatal(err)
		}
		resp.CorrelationID = trace.IDs{req.ID}
		if err := j.Append(resp); err != nil {
			b.Fatal(err)
		}
		if i == n/4 {
			middle = req
		}
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	return middle
}

// BenchmarkQuery asks a journal of a million lines.
func BenchmarkQuery(b *testing.B) {
	dir, n := b.TempDir(), lines(b)
	middle := benchJournal(b, dir, n)
	count := func(b *testing.B, f Filter) (hits int) {
		for _, err := range Select(b.Context(), dir, f) {
			if err != nil {
				b.Fatal(err)
			}
			hits++
		}
		return hits
	}
	b.Run("first, building the indexes", func(b *testing.B) {
		start := cputime.Process()
		defer func() { cpu(b, start) }()
		for b.Loop() {
			b.StopTimer()
			if err := sqlitedb.Remove(filepath.Join(dir, indexName)); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			count(b, Filter{ID: middle.ID})
		}
	})
	at, err := time.Parse(time.RFC3339Nano, middle.TS)
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		f    Filter
	}{
		{"id", Filter{ID: middle.ID}},
		{"correlates", Filter{Correlates: middle.ID}},
		{"chain", Filter{Chain: middle.ID}},
		{"context", Filter{Context: middle.Context}},
		{"tree", Filter{Context: middle.Context, Tree: true}},
		{"session", Filter{Session: middle.Audit.Session}},
		{"tool and errors", Filter{Tools: []string{"tool_3"}, Errors: true}},
		{"late", Filter{Late: true}},
		{"time window of 10 ms", Filter{Since: at, Until: at.Add(10 * time.Millisecond)}},
		{"orphans", Filter{Orphans: true}},
		{"context, no index", Filter{Context: middle.Context, NoIndex: true}},
	} {
		b.Run(c.name, func(b *testing.B) {
			hits := 0
			start := cputime.Process()
			for b.Loop() {
				hits = count(b, c.f)
			}
			cpu(b, start)
			b.ReportMetric(float64(hits), "hits")
		})
	}
	b.Run("contexts", func(b *testing.B) {
		for b.Loop() {
			if _, err := Contexts(Select(b.Context(), dir, Filter{Session: middle.Audit.Session})); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("verify", func(b *testing.B) {
		start := cputime.Process()
		defer func() { cpu(b, start) }()
		for b.Loop() {
			if r, err := Verify(b.Context(), dir, trace.VerifyOptions{}); err != nil || !r.OK() {
				b.Fatal(r.Faults, err)
			}
		}
	})
}
