//go:build unix

package trace

import (
	"fmt"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// benchRecord is like a real call's: half a kilobyte of payload.
func benchRecord(i int) *Record {
	return &Record{From: "host:claude-code#s_71", To: []string{"upstream:files"}, Kind: "mcp/request:tools/call",
		Context: "br_3f1f9a52-2c5b-4f4e-9d3e-0b8c5a6c1c11/br_9a5d2d0e-1f55-4c7e-8e0b-8f1f6b1f2a10",
		Payload: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"read_file","arguments":{"path":"src/main/internal/server/handler_%d.go","start_line":1,"end_line":400,"reason":"%0400d"}}}`, i, i%1000, 0),
		Audit: &Audit{Session: "ses_71", Principal: "local", Server: "files", Tool: "read_file", Method: "tools/call", Source: "argument",
			Decision: &Decision{Result: Allowed}, Tokens: &Tokens{Counter: "o200k_base", In: 120, Used: 5120, Budget: 8192}, Bytes: 612}}
}

// BenchmarkAppend is the cost of one record on the call path.
func BenchmarkAppend(b *testing.B) {
	for _, sync := range []string{SyncNever, SyncInterval, SyncAlways} {
		for _, callers := range []int{1, 16} {
			b.Run(fmt.Sprintf("sync=%s/callers=%d", sync, callers), func(b *testing.B) {
				j, err := Open(b.TempDir(), Options{Sync: sync})
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				start := cputime.Process()
				b.SetParallelism(callers / 2)
				if callers == 1 {
					i := 0
					for b.Loop() {
						i++
						if err := j.Append(benchRecord(i)); err != nil {
							b.Fatal(err)
						}
					}
				} else {
					b.RunParallel(func(pb *testing.PB) {
						for i := 0; pb.Next(); i++ {
							if err := j.Append(benchRecord(i)); err != nil {
								b.Fatal(err)
							}
						}
					})
				}
				b.StopTimer()
				cpu(b, start)
				if err := j.Close(); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// cpu reports the processor time a round has used: unlike the clock it does
// not count what else the machine does.
func cpu(b *testing.B, start time.Duration) {
	b.ReportMetric(float64((cputime.Process()-start).Nanoseconds())/float64(b.N), "cpu-ns/op")
}
