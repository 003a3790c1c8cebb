package bpe

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"weak"

	"github.com/foldgate/foldgate/test/corpus"
)

// TestAllocations holds that no call allocates more for more text. A stream does for a longer piece.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := mustTokenizer(t, "o200k_base")
	calls := map[string]func(text string){
		"Count":    func(text string) { c.Count(text) },
		"Exceeds":  func(text string) { c.Exceeds(text, len(text)/2) },
		"Truncate": func(text string) { c.Truncate(text, 200) },
		"Stream": func(text string) {
			s := c.Stream()
			s.Write(bytesOf(text))
			s.Close()
		},
	}
	small, large := corpus.Mixed(1), corpus.Mixed(1<<20)
	for kind, texts := range map[string][2]string{
		"mixed":      {small, large},
		"one letter": {strings.Repeat("a", 1<<10), strings.Repeat("a", 1<<20)},
		"broken":     {strings.Repeat("\xff \n", 1<<14), strings.Repeat("\xff \n", 1<<20)},
	} {
		for name, call := range calls {
			if name == "Stream" && kind == "one letter" {
				continue
			}
			call(texts[0])
			call(texts[1])
			few := testing.AllocsPerRun(3, func() { call(texts[0]) })
			many := testing.AllocsPerRun(3, func() { call(texts[1]) })
			if many > few {
				t.Errorf("%s, %s: %v allocations for %d bytes, %v for %d", name, kind, few, len(texts[0]), many, len(texts[1]))
			}
		}
	}
}

// TestKeepsNothing holds that a text can be freed once it is counted.
func TestKeepsNothing(t *testing.T) {
	c := mustTokenizer(t, "o200k_base")
	text := []byte(corpus.Mixed(1))
	text = text[:len(text):len(text)]
	kept := weak.Make(&text[0])
	c.Tokenizer.Count(text)
	text = nil
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the text that was counted last is still in memory")
	}
}

// TestConcurrent counts in many goroutines at once.
func TestConcurrent(t *testing.T) {
	c := mustTokenizer(t, "o200k_base")
	text := corpus.Mixed(1)
	want := c.Count(text)
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 5 {
				if got := c.Count(text); got != want {
					t.Errorf("Count = %d, want %d", got, want)
				}
			}
		})
	}
	group.Wait()
}
