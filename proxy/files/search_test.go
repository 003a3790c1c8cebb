package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestReadFile(t *testing.T) {
	long := strings.Repeat("0123456789abcde\n", maxText/16)
	s := serve(t, tree(t, map[string]string{
		"three":   "one\ntwo\nthree",
		"ended":   "one\r\ntwo\r\n",
		"empty":   "",
		"escapes": "<a>&\"\\\u2028\x01é😀\n",
		"latin":   strings.Repeat("caf\xe9 and some more words\n", 3),
		"nul":     "text\x00more",
		"image":   "\x89PNG\r\n\x1a\n\xff\xfe\xfd",
		"utf16":   "\xff\xfeh\x00i\x00",
		"fits":    long,
		"big":     long + "last\n",
		"wide":    "short\n" + strings.Repeat("x", maxText+1),
	}))
	for _, tt := range []struct{ args, want string }{
		{`{"path":"three"}`, "one\ntwo\nthree"},
		{`{"path":"three","start_line":2}`, "two\nthree"},
		{`{"path":"three","end_line":2}`, "one\ntwo\n"},
		{`{"path":"three","start_line":3,"end_line":3}`, "three"},
		{`{"path":"three","start_line":2,"end_line":99}`, "two\nthree"},
		{`{"path":"three","start_line":4}`, "error: three: start_line is past the end: it has 3 lines"},
		{`{"path":"ended","start_line":2}`, "two\r\n"},
		{`{"path":"ended","start_line":3}`, "error: ended: start_line is past the end: it has 2 lines"},
		{`{"path":"empty"}`, ""},
		{`{"path":"empty","start_line":2}`, "error: empty: start_line is past the end: it has 1 line"},
		{`{"path":"escapes"}`, "<a>&\"\\\u2028\x01é😀\n"},
		{`{"path":"latin","end_line":1}`, "caf\ufffd and some more words\n"},
		{`{"path":"nul"}`, "error: nul is a binary file: only text can be read"},
		{`{"path":"image"}`, "error: image is a binary file: only text can be read"},
		{`{"path":"utf16"}`, "error: utf16 is a binary file: only text can be read"},
		{`{"path":"fits"}`, long},
		{`{"path":"big"}`, "error: big: over the limit of 262144 bytes: lines 1 to 16384 fit, so read it in parts with start_line and end_line, or use grep"},
		{`{"path":"big","start_line":2}`, long[16:] + "last\n"},
		{`{"path":"big","end_line":16384}`, long},
		{`{"path":"wide"}`, "error: wide: over the limit of 262144 bytes: lines 1 to 1 fit…"},
		{`{"path":"wide","start_line":2}`, "error: wide: line 2 alone is over 262144 bytes: grep shows the matching part of a line"},
		{`{"path":"nowhere"}`, "error: nowhere does not exist: list_directory shows what does, search_files finds files by name"},
	} {
		want(t, "read_file "+tt.args, call(t, s, "read_file", tt.args), tt.want)
	}
}

func TestListDirectory(t *testing.T) {
	many := map[string]string{"empty/": "", "d/z": "", "d/B": "12345", "d/a/": "", "d/l": "->z", "d/.hidden": "x", "d/new\nline": ""}
	for i := range maxEntries + 5 {
		many[fmt.Sprintf("many/%04d", i)] = ""
	}
	s := serve(t, tree(t, many))
	want(t, "d", call(t, s, "list_directory", `{"path":"d"}`), ".hidden 1\nB 5\na/\nl@\n\"new\\nline\" 0\nz 0")
	want(t, "empty", call(t, s, "list_directory", `{"path":"empty"}`), "(empty)")
	got := call(t, s, "list_directory", `{"path":"many"}`)
	if lines := strings.Split(got, "\n"); len(lines) != maxEntries+1 || lines[0] != "0000 0" {
		t.Errorf("many: %d lines from %q", len(lines), lines[0])
	}
	want(t, "many", got, "…\n0999 0\n(5 of 1005 entries left out: search_files finds files by name)")
}

func repo(t testing.TB) *Server {
	return serve(t, tree(t, map[string]string{
		".gitignore":           "# comment\n\n*.log\n/build/\nnode_modules/\r\n!keep.log\n\\#odd\ndoc/**/*.tmp\n",
		".git/config":          "needle",
		".git/info/exclude":    "excluded.txt\n",
		".github/ci.yml":       "needle",
		"a.log":                "needle",
		"keep.log":             "needle",
		"excluded.txt":         "needle",
		"#odd":                 "needle",
		"build/out.txt":        "needle",
		"src/build/in.txt":     "needle",
		"src/main.go":          "package main\n\n// Needle\nvar needle = 1\n",
		"src/.gitignore":       "gen_*.go\n!/gen_keep.go\n",
		"src/gen_a.go":         "needle",
		"src/gen_keep.go":      "needle",
		"src/deep/gen_b.go":    "needle",
		"src/deep/x.ts":        "let needle\n",
		"src/deep/y.tsx":       "let needle\n",
		"src/deep/z.log":       "needle",
		"node_modules/m/i.c":   "needle",
		"node_modules/m/l.log": "needle",
		"doc/a/b/c.tmp":        "needle",
		"doc/a/b/c.md":         "needle",
		"bin/tool":             "\x7fELF\x00needle",
		"link.go":              "->src/main.go",
	}))
}

func TestSearchFiles(t *testing.T) {
	s := repo(t)
	for _, tt := range []struct{ args, want string }{
		{`{"pattern":"*"}`, ".github/ci.yml\n.gitignore\nbin/tool\ndoc/a/b/c.md\nkeep.log\nsrc/.gitignore\nsrc/build/in.txt\nsrc/deep/x.ts\nsrc/deep/y.tsx\nsrc/gen_keep.go\nsrc/main.go"},
		{`{"pattern":"*.{ts,tsx}"}`, "src/deep/x.ts\nsrc/deep/y.tsx"},
		{`{"pattern":"src/**/*.go"}`, "src/gen_keep.go\nsrc/main.go"},
		{`{"pattern":"./src/*.go"}`, "src/gen_keep.go\nsrc/main.go"},
		{`{"pattern":"deep/*","path":"src"}`, "src/deep/x.ts\nsrc/deep/y.tsx"},
		{`{"pattern":"*.go","path":"src/deep"}`, "(no file matches *.go; ignored files are only found in a path that is itself ignored)"},
		{`{"pattern":"*","path":"src/deep"}`, "src/deep/x.ts\nsrc/deep/y.tsx"},
		{`{"pattern":"*","path":"doc/a"}`, "doc/a/b/c.md"},
		{`{"pattern":"*","path":"node_modules"}`, "node_modules/m/i.c\nnode_modules/m/l.log"},
		{`{"pattern":"*","path":"node_modules/m"}`, "node_modules/m/i.c\nnode_modules/m/l.log"},
		{`{"pattern":"in.txt","path":"src/build/in.txt"}`, "src/build/in.txt"},
		{`{"pattern":"*","path":"nowhere"}`, "error: nowhere does not exist…"},
	} {
		want(t, "search_files "+tt.args, call(t, s, "search_files", tt.args), tt.want)
	}
}

func TestSearchFilesCap(t *testing.T) {
	many := map[string]string{}
	for i := range maxEntries + 7 {
		many[fmt.Sprintf("%04d.txt", i)] = ""
	}
	for i := range 300 {
		many[fmt.Sprintf("long/%0240d.md", i)] = ""
	}
	s := serve(t, tree(t, many))
	want(t, "count", call(t, s, "search_files", `{"pattern":"*.txt"}`), "…\n0999.txt\n(7 of 1007 files left out: narrow pattern or path)")
	got := call(t, s, "search_files", `{"pattern":"*.md"}`)
	if len(got) > maxReport+100 {
		t.Errorf("result of %d bytes, want at most %d", len(got), maxReport)
	}
	want(t, "bytes", got, "…of 300 files left out: narrow pattern or path)")
}

func TestGrep(t *testing.T) {
	s := repo(t)
	for _, tt := range []struct{ args, want string }{
		{`{"pattern":"needle","path":"src"}`, "src/build/in.txt\n1:needle\n\nsrc/deep/x.ts\n1:let needle\n\nsrc/deep/y.tsx\n1:let needle\n\nsrc/gen_keep.go\n1:needle\n\nsrc/main.go\n4:var needle = 1"},
		{`{"pattern":"needle","glob":"*.go"}`, "src/gen_keep.go\n1:needle\n\nsrc/main.go\n4:var needle = 1"},
		{`{"pattern":"needle","glob":"deep/**","path":"src"}`, "src/deep/x.ts\n1:let needle\n\nsrc/deep/y.tsx\n1:let needle"},
		{`{"pattern":"NEEDLE","path":"src/main.go","ignore_case":true}`, "src/main.go\n3:// Needle\n4:var needle = 1"},
		{`{"pattern":"var","path":"src/main.go","context":2}`, "src/main.go\n2-\n3-// Needle\n4:var needle = 1"},
		{`{"pattern":"^package","path":"src/main.go","context":1}`, "src/main.go\n1:package main\n2-"},
		{`{"pattern":"needle","path":"node_modules"}`, "node_modules/m/i.c\n1:needle\n\nnode_modules/m/l.log\n1:needle"},
		{`{"pattern":"needle","path":"bin"}`, "(no match in 0 text files)"},
		{`{"pattern":"needle","path":"a.log"}`, "a.log\n1:needle"},
		{`{"pattern":"needle","path":"src","max_matches":2}`, "src/build/in.txt\n1:needle\n\nsrc/deep/x.ts\n1:let needle\n(stopped at 2 matches, more from line 1 of src/deep/y.tsx on: narrow pattern, path or glob, or raise max_matches)"},
		{`{"pattern":"needle","path":"src","max_matches":5}`, "…4:var needle = 1"},
	} {
		want(t, "grep "+tt.args, call(t, s, "grep", tt.args), tt.want)
	}
	if got := call(t, s, "grep", `{"pattern":"needle","path":"src","max_matches":5}`); strings.Contains(got, "stopped") {
		t.Errorf("grep with exactly max_matches matches = %q, want no notice", got)
	}
}

func TestGrepContext(t *testing.T) {
	var b strings.Builder
	for i := 1; i <= 20; i++ {
		fmt.Fprintf(&b, "line %d%s\r\n", i, map[bool]string{true: " hit"}[i == 3 || i == 5 || i == 12 || i == 20])
	}
	s := serve(t, tree(t, map[string]string{"f": b.String()}))
	want(t, "grep", call(t, s, "grep", `{"pattern":"hit$","context":1}`),
		"f\n2-line 2\n3:line 3 hit\n4-line 4\n5:line 5 hit\n6-line 6\n--\n11-line 11\n12:line 12 hit\n13-line 13\n--\n19-line 19\n20:line 20 hit")
	want(t, "grep", call(t, s, "grep", `{"pattern":"hit","context":1,"max_matches":1}`),
		"f\n2-line 2\n3:line 3 hit\n4-line 4\n(stopped at 1 match, more from line 5 of f on: narrow pattern, path or glob, or raise max_matches)")
}

func TestGrepLongLines(t *testing.T) {
	pad := strings.Repeat("é", 1000)
	s := serve(t, tree(t, map[string]string{
		"min.js": pad + "needle" + pad + "\nneedle at the start" + pad + "\n",
		"huge":   strings.Repeat("x", maxLine+5) + "needle\nlast needle",
	}))
	got := call(t, s, "grep", `{"pattern":"needle","path":"min.js"}`)
	for i, line := range strings.Split(got, "\n")[1:] {
		if !strings.Contains(line, "needle") || !strings.Contains(line, "bytes cut]") || len(line) > maxShown+60 || strings.Contains(line, "\ufffd") {
			t.Errorf("line %d = %q", i+1, line)
		}
	}
	want(t, "huge", call(t, s, "grep", `{"pattern":"needle","path":"huge"}`), "huge\n1:xxxxxneedle\n2:last needle")
}

func TestGrepByteCap(t *testing.T) {
	s := serve(t, tree(t, map[string]string{"f": strings.Repeat(strings.Repeat("x", 399)+"\n", 1000)}))
	got := call(t, s, "grep", `{"pattern":"x","max_matches":1000}`)
	if len(got) > maxReport+200 {
		t.Errorf("result of %d bytes, want at most about %d", len(got), maxReport)
	}
	want(t, "grep", got, "…of f on: narrow pattern, path or glob)")
}

// Patterns that take a backtracking matcher hours take seconds here, and less than two minutes on a
// busy machine with the race detector.
func TestHostilePatterns(t *testing.T) {
	dir := tree(t, map[string]string{strings.Repeat("a/", 40) + strings.Repeat("a", 200): strings.Repeat("a", 5000)})
	s := serve(t, dir)
	start := time.Now()
	for _, args := range []string{
		`{"pattern":"` + strings.Repeat("a*", 100) + `b"}`,
		`{"pattern":"` + strings.Repeat("**/a*/", 60) + `b"}`,
		`{"pattern":"` + strings.Repeat("{"+strings.Repeat("a*,", 20)+"*a}", 4) + `b"}`,
		`{"pattern":"{a,{a,{a,{a,b}*}*}*}*z"}`,
	} {
		call(t, s, "search_files", args)
	}
	call(t, s, "grep", `{"pattern":"(a*)*(a|aa)+b"}`)
	call(t, s, "grep", `{"pattern":"(((a{1,30}){1,30})|b)*c"}`)
	if took := time.Since(start); took > 2*time.Minute {
		t.Errorf("hostile patterns took %v", took)
	}
}

func BenchmarkGrep(b *testing.B) {
	dir := b.TempDir()
	text := strings.Repeat("some ordinary line of a source file, with words in it\n", 1000)
	for i := range 100 {
		must(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%03d.txt", i)), []byte(text), 0o644))
	}
	s := serve(b, dir)
	b.SetBytes(int64(100 * len(text)))
	for b.Loop() {
		call(b, s, "grep", `{"pattern":"no(thing|where) like this"}`)
	}
}

// Of many searches at once a few run. The others wait, and are told to when it takes too long.
func TestSearchesAtOnce(t *testing.T) {
	s := serve(t, tree(t, map[string]string{"a": "x", "huge": strings.Repeat("x", 4<<20)}))
	const slow = `{"path":"huge","pattern":"[xy]{900}z"}`
	s.limit = time.Second
	var wg sync.WaitGroup
	var refused, stopped atomic.Int64
	for range 4 * maxSearches {
		wg.Go(func() {
			switch got := call(t, s, "grep", slow); {
			case strings.Contains(got, "4 searches are under way"):
				refused.Add(1)
			case strings.Contains(got, "(stopped after "):
				stopped.Add(1)
			}
		})
	}
	wg.Wait()
	if refused.Load() == 0 || stopped.Load() < maxSearches || refused.Load()+stopped.Load() != 4*maxSearches {
		t.Errorf("%d searches were refused and %d were stopped, of %d", refused.Load(), stopped.Load(), 4*maxSearches)
	}
	s.limit = maxTime
	want(t, "a search after them", call(t, s, "grep", `{"pattern":"x","path":"a"}`), "a\n1:x")
	want(t, "a read", call(t, s, "read_file", `{"path":"a"}`), "x")
}

// However a search becomes expensive, one call ends soon after its limit and says where, and a
// cancelled call ends soon after the cancellation.
func TestGrepIsBounded(t *testing.T) {
	line := strings.Repeat("x", 4<<20)
	files := map[string]string{"one line": line, "lines": strings.Repeat(line[:2000]+"\n", 2<<10)}
	for i := range 400 {
		files[fmt.Sprintf("many/%03d", i)] = line[:10<<10]
	}
	s := serve(t, tree(t, files))
	const soon = 10 * time.Second // with the race detector, on a busy machine; without a limit they took up to 83
	for _, pattern := range []string{"[xy]{900}z", strings.Repeat("(x?){30}", 30) + "z", strings.Repeat("x*", 500) + "z", "(?i)" + strings.Repeat("[a-x]+", 200) + "$y"} {
		for _, path := range []string{"one line", "lines", "many"} {
			args := fmt.Sprintf(`{"path":%q,"pattern":%q}`, path, pattern)
			s.limit = 200 * time.Millisecond
			start := time.Now()
			if got := call(t, s, "grep", args); !strings.HasPrefix(got, "(stopped after 200ms at line ") || !strings.Contains(got, " of "+path) {
				t.Errorf("grep %.60s = %q, want where it stopped", args, got)
			}
			if took := time.Since(start); took > soon {
				t.Errorf("grep %.60s took %v, the limit is 200ms", args, took)
			}
			s.limit = maxTime
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			time.AfterFunc(20*time.Millisecond, cancel)
			start = time.Now()
			want(t, "a cancelled grep", callCtx(t, ctx, s, "grep", args), "error: stopped before the end: cancelled")
			if took := time.Since(start); took > soon {
				t.Errorf("grep %.60s took %v after its cancellation", args, took)
			}
		}
	}
	want(t, "a large pattern", call(t, s, "grep", fmt.Sprintf(`{"pattern":%q}`, strings.Repeat("x{1000}", 11))), "error: the pattern has 11…")
	want(t, "a match in a long line", call(t, s, "grep", fmt.Sprintf(`{"path":"one line","pattern":"%sx{900}"}`, "^")), "one line\n1:"+line[:maxShown]+" […")
}
