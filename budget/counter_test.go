package budget

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"weak"
)

func mustCounter(tb testing.TB, name string) *Counter {
	tb.Helper()
	c, err := NewCounter(name)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestNewCounter(t *testing.T) {
	for name, want := range map[string]string{
		"o200k_base":             "o200k_base",
		"o200k_harmony":          "o200k_harmony",
		"p50k_edit":              "p50k_edit",
		"gpt2":                   "gpt2",
		"gpt-4":                  "cl100k_base",
		"gpt-4-0314":             "cl100k_base",
		"gpt-4o":                 "o200k_base",
		"gpt-4o-mini":            "o200k_base",
		"ft:gpt-4o-mini:acme::7": "o200k_base",
		"ft:gpt-4:acme":          "cl100k_base",
		"gpt-oss-120b":           "o200k_harmony",
		"text-davinci-003":       "p50k_base",
		"davinci":                "r50k_base",
	} {
		if got := mustCounter(t, name).Name(); got != want {
			t.Errorf("NewCounter(%q).Name() = %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"", "o200k", "claude-5", "gpt-4*", "gpt-", "davinci-003"} {
		_, err := NewCounter(name)
		if err == nil {
			t.Errorf("NewCounter(%q) succeeded, want an error", name)
			continue
		}
		for _, known := range slices.Concat(encodings(), models()) {
			if !strings.Contains(err.Error(), known) {
				t.Errorf("NewCounter(%q): error does not list %q", name, known)
			}
		}
	}
}

// TestAllocations holds that no call allocates more for more text.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	c := mustCounter(t, "o200k_base")
	calls := map[string]func(text string){
		"Count":      func(text string) { c.Count(text) },
		"CountBytes": func(text string) { c.CountBytes(bytesOf(text)) },
		"Exceeds":    func(text string) { c.Exceeds(text, len(text)/2) },
		"Truncate":   func(text string) { c.Truncate(text, 200) },
		"Stream": func(text string) {
			s := c.Stream()
			s.Write(bytesOf(text))
			s.Close()
		},
	}
	small, large := mixed(1), mixed(1<<20)
	for kind, texts := range map[string][2]string{
		"mixed":      {small, large},
		"one letter": {strings.Repeat("a", 1<<10), strings.Repeat("a", 1<<20)},
		"broken":     {strings.Repeat("\xff", 1<<14), strings.Repeat("\xff", 1<<20)},
	} {
		for name, call := range calls {
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
	c := mustCounter(t, "gpt-4o")
	text := []byte(mixed(1))
	text = text[:len(text):len(text)]
	kept := weak.Make(&text[0])
	c.CountBytes(text)
	text = nil
	runtime.GC()
	if kept.Value() != nil {
		t.Error("the text that was counted last is still in memory")
	}
}

// TestConcurrent counts in many goroutines at once.
func TestConcurrent(t *testing.T) {
	c := mustCounter(t, "gpt-4o")
	text := mixed(1)
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

// TestDependencies holds that the vocabularies reach the binary only in their
// compact form: neither tiktoken-go nor its loader is part of the package.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skip("no go command:", err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		if strings.Contains(pkg, "pkoukk") || strings.Contains(pkg, "regexp2") {
			t.Errorf("the package depends on %s, want it in tests only", pkg)
		}
	}
}
