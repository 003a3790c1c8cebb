package bpe

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/corpus"
	"github.com/foldgate/foldgate/test/cputime"
)

// A sample is a kind of text to measure with.
type sample struct {
	kind string
	text string
	draw func(seed uint64, size int) string // another text, or nil
}

func samples(size int) []sample {
	list := []sample{{"mixed", corpus.Mixed(size), corpus.MixedFrom}}
	if text := corpus.GoTree(); text != "" {
		list = append(list, sample{"go tree", text[:min(size, len(text))], nil})
	}
	for seed, c := range corpus.Kinds {
		list = append(list, sample{c.Name, c.Text(uint64(seed), size), c.Text})
	}
	return list
}

// megabytesPerSecond runs count until b is content and returns the throughput by CPU time.
func megabytesPerSecond(b *testing.B, text string, count func(string)) float64 {
	count(text)
	n, start := 0, cputime.Process()
	for b.Loop() {
		count(text)
		n++
	}
	return float64(n*len(text)) / 1e6 / (cputime.Process() - start).Seconds()
}

// unseenPerSecond is megabytesPerSecond with another text each time, drawn
// outside of the time that counts.
func unseenPerSecond(b *testing.B, draw func(seed uint64, size int) string, count func(string)) float64 {
	bytes, used := 0, time.Duration(0)
	for seed := uint64(1 << 20); b.Loop(); seed += 1 << 20 {
		b.StopTimer()
		text := draw(seed, 1<<20)
		runtime.GC() // what the drawing left behind, not while it counts
		b.StartTimer()
		start := cputime.Process()
		count(text)
		used += cputime.Process() - start
		bytes += len(text)
	}
	return float64(bytes) / 1e6 / used.Seconds()
}

// BenchmarkCount measures the throughput of Count and of tiktoken-go on the same
// texts, in megabytes for each second of CPU time, and how many times faster the
// one is: once with the memory of pieces warm, as it is for what a gateway sees
// over and over, and once for text drawn anew for each count. tiktoken-go keeps
// nothing from one text to the next, so its figure is the same for both.
func BenchmarkCount(b *testing.B) {
	for _, name := range testEncodings[:2] {
		c, enc := mustTokenizer(b, name), oracle(b, name)
		for _, s := range samples(1 << 20) {
			var slow float64
			report := func(b *testing.B, rate float64) {
				b.ReportMetric(rate, "MB/cpu-s")
				if slow > 0 {
					b.ReportMetric(rate/slow, "times")
				}
			}
			b.Run(name+"/"+s.kind+"/tiktoken-go", func(b *testing.B) {
				text := s.text[:min(len(s.text), 64<<10)]
				slow = megabytesPerSecond(b, text, func(t string) { enc.EncodeOrdinary(t) })
				b.ReportMetric(slow, "MB/cpu-s")
			})
			b.Run(name+"/"+s.kind+"/foldgate", func(b *testing.B) {
				b.ReportAllocs()
				report(b, megabytesPerSecond(b, s.text, func(t string) { c.Count(t) }))
			})
			if s.draw != nil {
				b.Run(name+"/"+s.kind+"/foldgate-unseen", func(b *testing.B) {
					report(b, unseenPerSecond(b, s.draw, func(t string) { c.Count(t) }))
				})
			}
		}
	}
}

// BenchmarkCold measures texts of 4 KB, as a gateway counts them: their words are known, but other
// work has displaced the tables from the caches of the processor since the last count.
func BenchmarkCold(b *testing.B) {
	c := mustTokenizer(b, "o200k_base")
	text := keywords(400 << 10)
	other := make([]uint64, 3<<20/8)
	var used []time.Duration
	for n := 0; b.Loop(); n++ {
		b.StopTimer()
		for i := 0; i < len(other); i += 8 { // a cache line each
			other[i]++
		}
		b.StartTimer()
		start := time.Now()
		c.Count(text[n%100*(4<<10):][:4<<10])
		used = append(used, time.Since(start))
	}
	slices.Sort(used)
	b.ReportMetric(float64(used[len(used)/2].Nanoseconds())/1e3, "median-us")
}

// keywords returns lines of words that recur and numbers that don't.
func keywords(size int) string {
	rng := rand.New(rand.NewPCG(1, 1))
	words := []string{"token", "secret", "password", "api_key", "client_key", "auth", "credential", "access"}
	var b strings.Builder
	for b.Len() < size {
		w, n := words[rng.IntN(len(words))], rng.IntN(1e6)
		line := []string{
			fmt.Sprintf("if %s == nil { return errors.New(no %s for %d) }", w, w, n),
			fmt.Sprintf("%s := config.Lookup(%s, %d) // see the %s file", w, words[n%len(words)], n, w),
			fmt.Sprintf("level=info msg=checked %s count=%d of=%d ok", w, n%10_000, n),
			fmt.Sprintf("the %s of user %d was rotated %d days ago", w, n, n%900),
		}[rng.IntN(4)]
		fmt.Fprintf(&b, "%-62s\n", line)
	}
	return b.String()
}

// BenchmarkHostile measures a megabyte of each hostile input, in milliseconds of CPU time.
func BenchmarkHostile(b *testing.B) {
	for _, name := range testEncodings[:2] {
		c := mustTokenizer(b, name)
		for _, h := range hostiles {
			text := h.text(1 << 20)
			b.Run(name+"/"+h.name, func(b *testing.B) {
				mbps := megabytesPerSecond(b, text, func(t string) { c.Count(t) })
				b.ReportMetric(float64(len(text))/1e3/mbps, "cpu-ms")
			})
		}
	}
}

// BenchmarkBuild measures making the tables of an encoding, which happens once.
func BenchmarkBuild(b *testing.B) {
	for _, name := range testEncodings {
		b.Run(name, func(b *testing.B) {
			n, start := 0, cputime.Process()
			for b.Loop() {
				loadVocabulary(name)
				n++
			}
			b.ReportMetric((cputime.Process()-start).Seconds()*1e3/float64(n), "cpu-ms")
		})
	}
}

// startText is counted by the process that firstCount starts. Each encoding
// counts it differently.
const startText = "func (c *Cat) Sit() {\n\treturn c.n==1234567 // it's «ok», Привет, 世界!\n\n}\nAB1cd don't\t\tX\n"

// firstCount starts this test binary as a process whose first count is that of
// startText; it makes none for the encoding "". It returns what the process writes.
func firstCount(tb testing.TB, name string) (out string, cpu time.Duration) {
	tb.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "BUDGET_START="+name+".")
	b, err := cmd.Output()
	if err != nil {
		tb.Fatalf("process that counts first in %q: %v", name, err)
	}
	return string(b), cmd.ProcessState.SystemTime() + cmd.ProcessState.UserTime()
}

// TestMain is also the process that firstCount starts.
func TestMain(m *testing.M) {
	name, ok := os.LookupEnv("BUDGET_START")
	if !ok {
		os.Exit(m.Run())
	}
	if name = strings.TrimSuffix(name, "."); name == "" {
		return
	}
	c := mustTokenizer(&testing.B{}, name)
	fmt.Print(c.Count(startText), ends(c, startText))
}

// ends returns where the pieces of text end, as the counter finds them at full speed.
func ends(c *counter, text string) (ends []int) {
	fillClasses()
	g := &c.pattern
	b := bytesOf(text + strings.Repeat(" ", blockSize))
	for i := 0; i < len(text); {
		var k block
		k.load(b[i:], blockSize)
		starts := uint64(0)
		if k.cut > 0 {
			starts = k.certain(g.split(&k))
		}
		for starts &= starts - 1; starts != 0; starts &= starts - 1 {
			ends = append(ends, i+bits.TrailingZeros64(starts))
		}
		if len(ends) > 0 {
			i = max(i, ends[len(ends)-1])
		}
		i = g.next(b, i)
		ends = append(ends, i)
	}
	return ends
}

// TestFirstCount holds that the first counter of a process is right, down to where
// it ends pieces: that depends on the order in which the tables are made.
func TestFirstCount(t *testing.T) {
	for _, name := range testEncodings {
		got, _ := firstCount(t, name)
		want := fmt.Sprint(len(oracle(t, name).EncodeOrdinary(startText)), ends(mustTokenizer(t, name), startText))
		if got != want {
			t.Errorf("%s: first count of a process and ends of pieces = %s, want %s", name, got, want)
		}
	}
}

// BenchmarkStart measures a process from its start to its first count, beside the
// same process without it.
func BenchmarkStart(b *testing.B) {
	for _, name := range []string{"", "cl100k_base", "o200k_base"} {
		b.Run("count="+name, func(b *testing.B) {
			var cpu time.Duration
			n := 0
			for b.Loop() {
				_, used := firstCount(b, name)
				cpu += used
				n++
			}
			b.ReportMetric(cpu.Seconds()*1e3/float64(n), "cpu-ms")
		})
	}
}

// BenchmarkStream measures a stream of a text in parts of 32 KB.
func BenchmarkStream(b *testing.B) {
	c := mustTokenizer(b, "o200k_base")
	text := []byte(corpus.Mixed(4 << 20))
	b.ReportAllocs()
	b.ReportMetric(megabytesPerSecond(b, string(text), func(string) {
		s := c.Stream()
		for rest := text; len(rest) > 0; {
			n := min(32<<10, len(rest))
			s.Write(rest[:n])
			rest = rest[n:]
		}
		s.Close()
	}), "MB/cpu-s")
}
