//go:build unix

package scrub

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/test/cputime"
)

// source returns about size bytes of the standard library's source, which is
// dense with the keywords of rules and has hardly a secret.
func source(b testing.TB, size int) string {
	b.Helper()
	var text strings.Builder
	for _, dir := range []string{"crypto", "net", "cmd/go"} {
		_ = filepath.WalkDir(filepath.Join(standardLibrary(b), dir), func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && text.Len() < size {
				src, _ := os.ReadFile(path)
				text.Write(src)
			}
			return nil
		})
	}
	if text.Len() < size/2 {
		b.Skip("the source of the standard library is not here")
	}
	return text.String()[:min(size, text.Len())]
}

// prose returns text without a keyword.
func prose(size int) string {
	const p = "It was a bright cold day in April, and the clocks were striking thirteen; a man with his chin in his " +
		"breast slipped through the glass doors, though not quickly enough to stop a swirl of gritty dust.\n"
	return strings.Repeat(p, size/len(p)+1)[:size]
}

// answers returns JSON such as an API gives, dense with tokens and keys.
func answers(size int) string {
	const p = `{"id":4711,"node_id":"MDEwOlJlcG9zaXRvcnkx","name":"auth-service","keys_url":"https://api.example.com/repos/x/keys{/key_id}",` +
		`"owner":{"login":"octo","token_count":3,"access":"read","api":"v3"},"private":false,"pushed_at":"2026-01-02T03:04:05Z",` +
		`"description":"Issues tokens and checks secrets for the API gateway","permissions":{"admin":false,"key":true}},` + "\n"
	return "[" + strings.Repeat(p, size/len(p)) + "{}]"
}

// dense returns lines of 62 bytes that are different from each other and full
// of the words that secrets stand next to, as the load of test/bench is.
func dense(size int) string {
	words := []string{"token", "secret", "password", "api_key", "client_key", "auth", "credential", "access"}
	r := rand.New(rand.NewPCG(1, 2))
	word := func() string { return words[r.IntN(len(words))] }
	var b strings.Builder
	for b.Len() < size {
		w, line := word(), ""
		switch r.IntN(4) {
		case 0:
			line = fmt.Sprintf("if %s == nil { return errors.New(no %s for %d) }", w, w, r.IntN(1e6))
		case 1:
			line = fmt.Sprintf("%s := config.Lookup(%s, %d) // see the %s file", w, word(), r.IntN(1e6), w)
		case 2:
			line = fmt.Sprintf("level=info msg=checked %s count=%d of=%d ok", w, r.IntN(1e4), r.IntN(1e6))
		default:
			line = fmt.Sprintf("the %s of user %d was rotated %d days ago", w, r.IntN(1e6), r.IntN(900))
		}
		fmt.Fprintf(&b, "%-62.62s\n", line)
	}
	return b.String()[:size]
}

// result returns text as the result of a tool.
func result(text string) string {
	return `{"content":[{"type":"text","text":` + string(rawjson.Quote(text)) + `}],"isError":false}`
}

func benchText(b *testing.B, text string, run func(string)) {
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	run(text)
	before := cputime.Process()
	for b.Loop() {
		run(text)
	}
	// What a busy machine does not blur.
	b.ReportMetric(float64(len(text))*float64(b.N)/1e6/(cputime.Process()-before).Seconds(), "MB/cpu-s")
}

func BenchmarkText(b *testing.B) {
	s, d := newScrubber(b, Options{}), reference(b)
	scrub := func(text string) {
		if _, _, err := s.Text(context.Background(), text); err != nil {
			b.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, text string
	}{
		{"source", source(b, 2<<20)},
		{"answers", answers(1 << 20)},
		{"prose", prose(2 << 20)},
		{"small", "A short result of a tool, with one key and two tokens in it.\n"},
		{"hostile/key", strings.Repeat("key ", 1<<17)},
		{"hostile/key_", strings.Repeat("key_", 1<<17)},
		{"hostile/key=a", strings.Repeat("key=a ", 1<<16)},
		{"hostile/begin", strings.Repeat("-----BEGIN PRIVATE KEY----- ", 1<<14)},
		{"hostile/curl-H", strings.Repeat("curl -H ", 1<<16)},
		{"hostile/curl-u", strings.Repeat(`curl -u "`, 1<<16)},
		{"hostile/minified", strings.Repeat(`{"key":"A1b2C3d4E5f6G7h8","x":1},`, 1<<14)},
	} {
		b.Run(c.name+"/foldgate", func(b *testing.B) { benchText(b, c.text, scrub) })
		if os.Getenv("FOLDGATE_BENCH_GITLEAKS") != "" && !strings.Contains(c.name, "minified") {
			b.Run(c.name+"/gitleaks", func(b *testing.B) { benchText(b, c.text, func(text string) { d.DetectString(text) }) })
		}
	}
}

func BenchmarkJSON(b *testing.B) {
	s := newScrubber(b, Options{})
	for _, c := range []struct{ name, text string }{
		{"result of source", result(source(b, 1<<20))},
		{"result of 100 B", result(dense(100))},
		{"result of 4 KB", result(dense(4096))},
		{"answers", answers(1 << 20)},
	} {
		b.Run(c.name, func(b *testing.B) {
			raw := []byte(c.text)
			benchText(b, c.text, func(string) {
				if _, _, err := s.JSON(context.Background(), raw); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkLarge measures texts that are expensive, and the results that hold them.
func BenchmarkLarge(b *testing.B) {
	s := newScrubber(b, Options{})
	texts := largeTexts(1 << 20)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		text, raw := texts[name], []byte(result(texts[name]))
		b.Run(name+"/text", func(b *testing.B) {
			benchText(b, text, func(string) {
				if _, _, err := s.Text(context.Background(), text); err != nil {
					b.Fatal(err)
				}
			})
		})
		b.Run(name+"/result", func(b *testing.B) {
			benchText(b, text, func(string) {
				if _, _, err := s.JSON(context.Background(), raw); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		newScrubber(b, Options{})
	}
}
