package budget

import (
	"syscall"
	"testing"
	"time"
)

// cpuTime returns the CPU time that the process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCount(b *testing.B) {
	for _, name := range testEncodings[:2] {
		c := mustCounter(b, name)
		for seed, kind := range corpora {
			text := kind.text(uint64(seed), 1<<20)
			if kind.kind == "go tree" {
				text = goTree()
			}
			b.Run(name+"/"+kind.kind, func(b *testing.B) {
				b.ReportAllocs()
				c.Count(text)
				n, start := 0, cpuTime()
				for b.Loop() {
					c.Count(text)
					n++
				}
				b.ReportMetric(float64(n*len(text))/1e6/(cpuTime()-start).Seconds(), "MB/cpu-s")
				b.ReportMetric(float64(len(text))/float64(c.Count(text)), "bytes/token")
			})
		}
	}
}
