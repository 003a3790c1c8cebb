package preview_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/test/previewtest"
)

// quarter counts tokens of four bytes, rounded up.
func quarter(s string) int { return (len(s) + 3) / 4 }

const handle = "res_0123456789abcdefghjkmnpqrs"

func TestKinds(t *testing.T) {
	for _, f := range previewtest.Fixtures() {
		if got := preview.Of(f.Text); string(got) != f.Kind {
			t.Errorf("Of(%s) = %s, want %s", f.Name, got, f.Kind)
		}
	}
	for text, want := range map[string]preview.Kind{
		"npm warn old lockfile\n{\"name\": \"x\",\n \"items\": [1, 2]}\n":                                                                                                     preview.JSON,
		"{\"a\": 1}\n{\"a\": 2}\n":                                                                                                                                            preview.NDJSON,
		"{\n \"Dir\": \"/a/long/path/of/a\"\n}\n{\n \"Dir\": \"/a/long/path/of/b\"\n}\n":                                                                                      preview.NDJSON,
		"[{\"id\": 1, \"error\": \"fatal\"}, {\"id\": 2, \"error\": \"panic\"}, {\"id\": 3, \"er":                                                                             preview.JSON, // cut off
		"{\"nbformat\": 4, \"cells\": [{\"cell_type\": \"code\", \"source\": [\"x = 1\"]}]}":                                                                                  preview.Notebook,
		"openapi: 3.1.0\ninfo:\n  title: error\npaths:\n  /fail:\n    get: {}\n":                                                                                              preview.YAML,
		"<?xml version=\"1.0\"?>\n<Errors><Error id=\"1\"/><Error id=\"2\"/></Errors>\n":                                                                                      preview.XML,
		"<?xml version='1.1' encoding='UTF-8'?>\n<project>\n" + strings.Repeat("<builder><command>make</command></builder>\n", 4) + "</project>\n":                            preview.XML,
		"<items>" + strings.Repeat("<item><![CDATA[a <b> of </c>]]></item>", 4) + "</items>\n":                                                                                preview.XML,
		"<testsuite tests=\"1\"><testcase name=\"a\"/></testsuite>\n":                                                                                                         preview.Tests,
		"[core]\n\tbare = false\n[remote]\n\turl = x\n\tfetch = y\n\tprune = true\n":                                                                                          preview.Config,
		strings.Repeat("[[package]]\nname = \"error\"\nversion = \"1.0\"\n\n", 4):                                                                                             preview.Lock,
		strings.Repeat("0123456 fix: no error, no panic\n", 5):                                                                                                                preview.GitLog,
		strings.Repeat("0123abcd (Ada B 2026-01-02 03:04:05 +0000 1) fail()\n", 5):                                                                                            preview.Blame,
		strings.Repeat("/usr/share/doc/error/fatal.txt\n", 5):                                                                                                                 preview.Listing,
		strings.Repeat("-rw-r--r-- 1 root root 120 Jan  2 03:04 panic.go\n", 5):                                                                                               preview.Listing,
		strings.Repeat("ii  libgpg-error0:amd64  1.46-1  amd64  error codes\n", 5):                                                                                            preview.Listing,
		"PID TTY      TIME CMD\n  1 ?    00:00:01 init\n  2 ?    00:00:00 x\n  3 ?    00:00:00 y\n":                                                                           preview.Table,
		strings.Repeat("Package: a\nVersion: 1\nSection: b\nPriority: c\n\n", 4):                                                                                              preview.Records,
		strings.Repeat("goroutine 7 [select]:\nmain.main()\n\t/a/b.go:1 +0x1\n\n", 4):                                                                                         preview.Stacks,
		strings.Repeat("/a/b.js:1\nx\n^\n\nTypeError [ERR_X]: no\n    at f (/a/b.js:1:2)\n    at g (/a/b.js:3:4)\n    at h (/a/b.js:5:6)\n\nNode.js v24.1.0\n", 3):            preview.Stacks,
		strings.Repeat("java.io.IOException: fatal\n\tat a.B.c(B.java:1)\n\tat a.B.d(B.java:2)\nCaused by: a.BException: no\n\t... 2 more\n", 3):                              preview.Stacks,
		strings.Repeat("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    g()\n  File \"b.py\", line 2, in g\n    h()\nValueError: no\n", 3):             preview.Stacks,
		strings.Repeat("a.c:1:2: warning: unused [-Wunused]\n    1 | int x;\n", 4):                                                                                            preview.Compiler,
		"TAP version 13\nok 1 - error\nnot ok 2 - fatal\n# tests 2\n":                                                                                                         preview.Tests,
		"NAME\n       x - fail\n\nSYNOPSIS\n       x [error]\n\nOPTIONS\n       --panic\n           Fails.\n":                                                                 preview.Manual,
		"type Query {\n  error: String\n}\n\nenum State {\n  FAILURE\n}\n":                                                                                                    preview.Code,
		"\x7fELF\x02\x01\x01\x00\x00\x00\x00error\x00\x00\x00\x00\x00\x00\x00":                                                                                                preview.Binary,
		"#0  f (x=1) at a.c:4\n#1  0x0000555555555156 in g () at a.c:5\n        m = {next = 0x0}\n#2  0x00005555555551c8 in main () at a.c:9\n":                               preview.Stacks,
		"FROM debian AS base\nARG X=1\nRUN a && \\\n    b\nCOPY --link x /x\n# the end\nENTRYPOINT [\"/x\"]\n":                                                                preview.Code,
		"* main  52ae1a9 fail\n  one   0a515fa error\n  two   e50af2d fatal\n  three 2f0719d panic\n":                                                                         preview.Listing,
		strings.Repeat("msgid \"fail\"\nmsgstr \"Fehler\"\n\n", 4):                                                                                                            preview.Records,
		"addr  opcode  p1\n----  ------  --\n0     Init    0\n1     Open me\n2     Halt    k (a, B)\n3     Goto    7\n4     Halt\n":                                           preview.Table,
		"File      Type  Size\n--------------------\n/dev/sda  disk  100\n/dev/sdb  disk  200\n/dev/sdc  part  300\n/dev/sdd  part  400\n":                                    preview.Table,
		"Package  Version\n----------------\naaa      1.2\nbbb      1.3\nccc      1.4\nddd      2.0\n":                                                                        preview.Table,
		strings.Repeat("TLS_AES_256    TLSv1.3 Kx=any  Enc=AES(256)\n", 6):                                                                                                    preview.Table,
		"Showing top nodes\n      flat  flat%   cum\n       12B  1.00%  30B  a.F\n        8B  0.50%  20B  a.(*T).G\n         0     0%  9B  b.H\n         0     0%  2B  b.I\n": preview.Table,
		"┌──────┬──────┐\n│ path │ size │\n├──────┼──────┤\n│ a.go │ 12   │\n│ b.go │ 30   │\n│ c.go │ 7    │\n│ d.go │ 1    │\n└──────┴──────┘\n":                                                                                          preview.Table,
		strings.Repeat("Traceback (most recent call last):\n  File \"a.py\", line 1, in f\n    try: g(1, x)\n         ^^^^^^^\n    more\na.b.ValueError: no\n\nDuring handling of the above exception, another exception occurred:\n\n", 3): preview.Stacks,
		strings.Repeat("[DIR] a dir\n[FILE] error\n[FILE] fatal.go\n", 8):                                                                                                                        preview.Listing,
		strings.Repeat("a/b.go\n3:x := f(1)\n17:\ty()\n\nc.go\n12:}\n\n", 4):                                                                                                                     preview.Matches,
		strings.Repeat("  File: a\n  Size: 1\nAccess: (0644)\nModify: 2026-08-28 16:20:06.0 +0000\nChange: 2026-08-28 16:20:06.0 +0000\nBirth: -\n", 8):                                          preview.Records,
		strings.Repeat("# About it.\n#a = 1\n\t\t# (needs a restart)\n# More of it.\nb = 2\t# (needs a restart)\n", 8):                                                                           preview.Config,
		strings.Repeat("{'id': 1, 'error': None, 'at': '2026-01-02 03:04:05'}\n", 5):                                                                                                             preview.NDJSON,
		"[{'id': 1, 'error': None}, {'id': 2, 'error': 'fatal'}]":                                                                                                                                preview.JSON,
		"Found 2 errors: [{\"id\": 1, \"error\": \"fatal\"}, {\"id\": 2, \"error\": \"panic\"}]":                                                                                                 preview.JSON,
		strings.Repeat("event: x\ndata: {\"id\": 1, \"error\": \"fatal\"}\n\n", 5):                                                                                                               preview.NDJSON,
		strings.Repeat("2026-01-02T03:04:05Z api {\"level\": \"error\", \"msg\": \"it failed\"}\n", 5):                                                                                           preview.NDJSON,
		strings.Repeat("api-1 | {\"level\": \"error\", \"msg\": \"it failed\"}\n", 5):                                                                                                            preview.NDJSON,
		"package a\n\nvar x = map[string]int{\n\t\"a\": 1,\n}\n\nfunc f() {\n\tg([]int{1, 2})\n}\n\nfunc g() {\n}\n":                                                                             preview.Code,
		"a/b.go:\tx := f(1)\na/b.go:\ty := g()\na/c.go:x := h()\na/c.go:}\n":                                                                                                                     preview.Matches,
		"3:\tx := f(1)\n17:\ty := g()\n170:}\n":                                                                                                                                                  preview.Matches,
		"On branch main\nChanges not staged for commit:\n  (use \"git add\")\n\tmodified:   a b.go\n\tdeleted:    error\n\tnew file:   c.go\n\nUntracked files:\n\td\n":                          preview.Listing,
		"[INFO] Downloading x\n[WARNING] It failed\n[INFO] Total\n[INFO] Done now\n":                                                                                                             preview.Log,
		strings.Repeat("-0.25\n12.5\n", 4):                                                                                                                                                       preview.Table,
		"https://a.example/b?c=1\nhttps://a.example/d\nhttp://e.example/\nfile:///f\n":                                                                                                           preview.Listing,
		"app.rb:12:in `run': undefined method (NoMethodError)\n\tfrom /a.rb:1:in `b'\n\tfrom /a.rb:2:in `c'\n\tfrom /a.rb:3:in `d'\n":                                                            preview.Stacks,
		"Unhandled exception. System.X: no\n   at A.B.C(String x) in /a.cs:line 1\n   at A.D()\n   at A.E()\n":                                                                                   preview.Stacks,
		"thread 'main' panicked at a.rs:1:2:\nno\nstack backtrace:\n   0: std::panicking\n             at /a.rs:1:2\n   1: a::main\n             at /b.rs:1:2\n   2: main\n":                     preview.Stacks,
		"Error: no\n    at f (/a.js:1:2)\n    at async g (/a.js:3:4)\n    at Object.<anonymous> (/a.js:5:6)\n":                                                                                   preview.Stacks,
		"#1 [1/3] RUN a\n#1 0.5 Get error\n#1 DONE 0.6s\n\n#2 [2/3] RUN b\n#2 0.7 Get fatal\n#2 DONE 0.8s\n":                                                                                     preview.Plain,
		"Files a/x and b/x differ\nOnly in a: error\nOnly in b/c: d e\nBinary files a/y and b/y differ\n":                                                                                        preview.Diff,
		"diff --git a/x.png b/x.png\nindex 12..34 100644\nGIT binary patch\ndelta 12\nzcmV;J\n\ndelta 3\nzcmV\n\n":                                                                               preview.Diff,
		strings.Repeat("*************************** 1. row ***************************\n   id: 1\n  name: a b\nlevel: 2\n", 3):                                                                   preview.Records,
		strings.Repeat("-[ RECORD 1 ]----\nid    | 1\nname  | a b\nlevel | 2\n", 3):                                                                                                              preview.Records,
		strings.Repeat("Title: a\nURL: b\nScore: 3\n\n", 80):                                                                                                                                     preview.Records,
		strings.Repeat("Ada: It is a line of so many words.\n\nBen: Is it one, or are these two of them?\n\n", 30):                                                                               preview.Plain,
		strings.Repeat("[03:04] Ada: It is a line.\n[03:05] Ben: Is it?\n", 5):                                                                                                                   preview.Log,
		"     1\tpackage a\n     2\t\n     3\tfunc f() {\n     4\t}\n     5\t\n     6\tfunc g() {\n     7\t}\n":                                                                                  preview.Code,
		"Lines 3 to 8 of the file:\n3: {\n4:  \"a\": 1,\n5:  \"b\": 2,\n6:  \"c\": 3,\n7:  \"d\": [1, 2]\n8: }\n":                                                                                preview.JSON,
		"1\ta\t7\n2\tb\t8\n3\tc\t9\n4\td\t5\n5\te\t4\n6\tf\t3\n":                                                                                                                                 preview.Table,
		"1|a|7\n2|b|8\n3|c|9\n4|d|5\n5|e|4\n6|f|3\n":                                                                                                                                             preview.Table,
		"/bin/a: ELF 64-bit, error\n/bin/b:  symbolic link to c\n/bin/d:  ASCII text\n/e/f.py: Python script, fatal\n":                                                                           preview.Listing,
		strings.Repeat("B.java:2: error: cannot find symbol\nint f(){ return u; }\n                ^\n  symbol:   variable u\n  location: class B\n", 8):                                         preview.Compiler,
		"Usage: x [options]\n\nMain commands:\n  init     Prepare a directory\n  plan     Show changes\n  apply    Make changes\n  destroy  Destroy all\n\nOther commands:\n  fmt      Format\n": preview.Manual,
		"a.com/b v1.0.0\nc.com/d/e v0.1.2\nf.org/g v3.4.0\nh.org/i v1.1.1\nj.org/k v0.0.1\nl.org/m v2.0.0\n":                                                                                     preview.Table,
		"0123456 fix: no error\na/b.go\nc.md\n1234567 add: it\nd/e.go\n2345678 x\nf.go\n3456789 y\ng/h\n":                                                                                        preview.GitLog,
		"M\ta/b.go\nA\tc.go\nR087\td.go\te.go\nD\terror\n":                                                                                                                                       preview.Diff,
		strings.Repeat("  File: /a\n  Size: 1\tBlocks: 0\nDevice: 254,0\tInode: 2\nAccess: (0644)\nAccess: 2026-08-28 16:20:06.0 +0000\nModify: 2026-08-28 16:20:06.0 +0000\nChange: 2026-08-28 16:20:06.0 +0000\n Birth: -\n", 30): preview.Records,
		"- generic [ref=e1]:\n  - link \"an error\" [ref=e2] [cursor=pointer]:\n    - /url: /a\n  - text: fatal\n  - button \"b\" [ref=e3]\n  - img [ref=e4]\n":                                                                     preview.Listing,
		"uid=1_0 RootWebArea \"a\"\n  uid=1_1 link \"b\"\n    uid=1_2 StaticText \"error\"\n  uid=1_3 button \"d\"\n":                                                                                                               preview.Listing,
		"# HELP a_total About it.\n# TYPE a_total counter\na_total{code=\"200\"} 7\na_total{code=\"500\"} 1.5e+06\nb 2\nb_count 3\n":                                                                                                preview.Table,
		"":                             preview.Plain,
		"one line":                     preview.Plain,
		"[1,2,":                        preview.JSON, // cut off
		"{}":                           preview.JSON,
		"a,b,c\n1,2,3\n":               preview.Plain, // too short to be sure
		"a,b,c\n1,2,3\n1,2,3\n4,5,6\n": preview.Table,
		"<p>hi</p>":                    preview.HTML,
		"<tag> is not a page":          preview.Plain,
	} {
		if got := preview.Of(text); got != want {
			t.Errorf("Of(%q) = %s, want %s", text, got, want)
		}
	}
}

// Every preview keeps its budget, names the handle, and is the same each time.
func TestPreviewKeepsItsBudget(t *testing.T) {
	for _, f := range previewtest.Fixtures() {
		total := quarter(f.Text)
		for _, budget := range []int{5, 20, 40, 80, 200, 400, 1000} {
			p, ok := preview.Make(preview.Source{Text: f.Text, Tokens: total, Handle: handle}, budget, quarter)
			if !ok {
				if budget > 20 {
					t.Errorf("Make(%s, %d): nothing, want a preview", f.Name, budget)
				}
				continue
			}
			if n := quarter(p.Text); n > budget || n >= total {
				t.Errorf("Make(%s, %d) = %d tokens, of %d", f.Name, budget, n, total)
			}
			if !strings.Contains(p.Text, handle) || !strings.HasPrefix(p.Text, "[Folded") {
				t.Errorf("Make(%s, %d) does not name its handle: %q", f.Name, budget, p.Text)
			}
			again, _ := preview.Make(preview.Source{Text: f.Text, Tokens: total, Handle: handle}, budget, quarter)
			if d := cmp.Diff(p, again); d != "" {
				t.Errorf("Make(%s, %d) differs from run to run:\n%s", f.Name, budget, d)
			}
		}
	}
}

// Members of an object are listed with a short value of theirs; their lines have the name alone.
func TestNamesOfMembers(t *testing.T) {
	var members []string
	for i := range 60 {
		members = append(members, fmt.Sprintf(`"p%d": {"version": "1.0.%d", "about": "%s"}`, i, i, strings.Repeat("word ", 20)))
	}
	text := `{"packages": {` + strings.Join(members, ", ") + "}}"
	p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
	if !strings.Contains(p.Text, "p0 1.0.0, p1 1.0.1,") || !strings.Contains(p.Text, "\np1: {") {
		t.Errorf("the preview is\n%s", p.Text)
	}
}

// Values in lines are shown with the numbers of their lines, and what is before them is a field.
func TestValuesInLines(t *testing.T) {
	var b strings.Builder
	for i := range 60 {
		level := []string{"info", "error"}[i/50%2*(i%50/9)]
		fmt.Fprintf(&b, "2026-01-02T03:04:%02dZ pod-%d {\"level\": %q, \"ms\": %d, \"msg\": \"a request was answered\"}\n", i, i%2, level, (i*7)%61)
	}
	text := b.String()
	p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
	for _, part := range []string{"60 items, 2026-01-02T03:04:00Z to 2026-01-02T03:04:59Z", "before: pod-0 ×30, pod-1 ×30", "level: info ×59, error ×1", "\n60: 2026-01-02T03:04:59Z pod-1 {"} {
		if !strings.Contains(p.Text, part) {
			t.Errorf("without %q:\n%s", part, p.Text)
		}
	}
}

// Prose is no table, though its lines have the same number of words.
func TestWordsAreNoTable(t *testing.T) {
	var b strings.Builder
	for i := range 60 {
		for j := range 9 {
			fmt.Fprintf(&b, "%c%c%d ", 'a'+(i*7+j*11)%26, 'a'+(i*3+j)%26, (i*j)%17)
			b.WriteString("word"[:1+(i+j)%4])
		}
		b.WriteString("\n")
	}
	if got := preview.Of(b.String()); got != preview.Plain {
		t.Error(got)
	}
}

// A text of which most lines begin as many do shows those that begin as few do.
func TestRareStarts(t *testing.T) {
	text := strings.Repeat("  + create a thing\n      + its name = \"x\"\n    }\n", 60) + "      ~ version = 14 -> 15\n" + strings.Repeat("  + create a thing\n      + its name = \"x\"\n    }\n", 60)
	if got := said(text, 150); !strings.Contains(got, "181:       ~ version = 14 -> 15") {
		t.Error(got)
	}
}

// Numbers before lines are no part of them; a part of a file is told where it begins.
func TestNumberedLines(t *testing.T) {
	for _, first := range []int{200, 0} {
		var b strings.Builder
		for i := range 60 {
			fmt.Fprintf(&b, "%6d→%s\n", first+i, []string{"func f() {", "\treturn 1", "}", ""}[i%4])
		}
		if got := said(b.String(), 200); !strings.Contains(got, "Folded source") || !strings.Contains(got, fmt.Sprintf("numbered from %d, 15 declarations", first)) || !strings.Contains(got, "\n1: func f() {") {
			t.Error(got)
		}
	}
}

// The bad step of many good ones is shown, and these are no results of tests.
func TestFatalStep(t *testing.T) {
	steps := strings.Repeat("TASK [a : b] ****\nok: [host0]\nok: [host1]\n\n", 40)
	if got := said(steps+"fatal: [host2]: FAILED! => {\"msg\": \"disk full\"}\n"+steps, 200); !strings.Contains(got, "161: fatal: [host2]") || strings.Contains(got, "results") {
		t.Error(got)
	}
}

// The parts of one record are no entries.
func TestRecordOfJSON(t *testing.T) {
	word := strings.Repeat("word ", 40)
	text := `{"user": {"login": "ada", "about": "` + word + `"}, "repo": {"name": "a/b", "private": false}, "head": {"ref": "x", "sha": "abc"}, "base": {"ref": "main"}, "links": {"self": "/x"}, "rights": {"push": true}, "milestone": {"title": "` + word + `"}}`
	if got := said(text, 100); strings.Contains(got, "items") || !strings.Contains(got, "\n.head: {ref:\"x\",sha:\"abc\"}") {
		t.Error(got)
	}
}

// What few entries have is told with their names, and what a file of comments sets is shown.
func TestShowsTheOddOnes(t *testing.T) {
	var items, processes, settings strings.Builder
	for i := range 40 {
		phase, restarts := "Running", i%3
		if i == 33 {
			phase, restarts = "Pending", 214
		}
		fmt.Fprintf(&items, `{"metadata": {"name": "web-%d"}, "spec": {"text": %q}, "status": {"phase": %q, "containers": [{"restarts": %d}]}},`, i, strings.Repeat("a ", 90), phase, restarts)
		fmt.Fprintf(&processes, "root %d %d %d sh\n", 100+i, 1+i%7, 9000-i)
		fmt.Fprintf(&settings, "# What the setting does, in more words than it has.\n# It is off if nothing else is said here.\n#setting_%d = off\n\t\t# (it needs a restart)\n", i)
		if i%10 == 4 {
			fmt.Fprintf(&settings, "limit_%d = %d\t# (it needs a restart)\n", i, 7000+i)
		}
	}
	for text, shows := range map[string][]string{
		"[" + strings.TrimSuffix(items.String(), ",") + "]": {"Running ×39, Pending ×1 (web-33)", "max 214 (web-33)"},
		"USER PID PPID SIZE  CMD\n" + processes.String():    {"PID: min 100 max 139", "SIZE: min 8961 max 9000 (PID 100 "},
		settings.String(): {"limit_4 = 7004", "limit_14 = 7014", "limit_34 = 7034"},
	} {
		p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 350, quarter)
		for _, part := range shows {
			if !strings.Contains(p.Text, part) || strings.Contains(p.Text, "PID: min 100 max 139 sum") {
				t.Errorf("without %q:\n%s", part, p.Text)
			}
		}
	}
}

// A commit may change several files. Each counts, once.
func TestFilesOfCommits(t *testing.T) {
	var b strings.Builder
	for n := range 40 {
		fmt.Fprintf(&b, "commit %040x\nAuthor: Ada <a@example.com>\nDate:   Mon Jan 5 10:%02d:00 2026 +0000\n\n    change %d\n\n a/first%d.go | 2 +-\n b/second.go | 4 ++--\n", n+1, n, n, n)
		if n%2 == 0 {
			b.WriteString(" c/third.md | Bin\n")
		}
		b.WriteString(" 2 files changed, 3 insertions(+), 3 deletions(-)\n\n")
	}
	text := b.String()
	p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 500, quarter)
	for _, part := range []string{"40 commits", "in 42 files", "b/second.go ×40", "c/third.md ×20"} {
		if p.Kind != preview.GitLog || !strings.Contains(p.Text, part) {
			t.Errorf("%s without %q:\n%s", p.Kind, part, p.Text)
		}
	}
}

// A preview of 400 tokens shows the most interesting parts.
func TestPreviewShows(t *testing.T) {
	for name, want := range map[string][]string{
		"access.log":    {"/api/checkout", "×"},
		"app.log":       {"disk /var/lib/fold is full", "card expired", "×"},
		"sales.csv":     {"98765.5", "region (4 values): ", "north ×", "900 rows"},
		"issues.json":   {".total_count: 140", "140 items in .items", "state: ", "user.login", ".items[0]: "},
		"events.ndjson": {"300 items", "type (4 values): ", "purchase", "user.plan: "},
		"git-log.txt":   {"120 commits", "author (6 values): Ada Brandt ×20", "parser: read numbers exactly"},
		"change.diff":   {"internal/part4/file9.go +8", "14 changed files, +"},
		"build.txt":     {"202:", "undefined: NewLedger", "Error 1"},
		"go-test.txt":   {"1 fail", "--- FAIL: TestLedgerRefund", "want 10"},
		"pytest.txt":    {"1 failed, 179 passed", "test_total FAILED", "Decimal('10.10')"},
		"tsc.txt":       {"130 diagnostics", "TS2345", "./legacy/shim"},
		"pods.txt":      {"240 rows", "STATUS: Running ×239", "CrashLoopBackOff", "57"},
		"docs.md":       {"1: # Widget API", "## "},
		"store.go":      {"type Store struct", "Part0 15", "func (s *Store) Part", "func newStore()"},
		"worker.py":     {"class Worker0", "class Worker19"},
		"notes.html":    {"Release notes", "## Version 4.0"},
		"grep.txt":      {"220 matches", "in 27 files", "(×13)"},
	} {
		text := fixture(t, name)
		p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
		for _, w := range want {
			if !strings.Contains(p.Text, w) {
				t.Errorf("preview of %s lacks %q:\n%s", name, w, p.Text)
			}
		}
	}
}

// Tests of one name in several Go packages are several; a result that is told twice counts once.
func TestSameTestInTwoPackages(t *testing.T) {
	one := "=== RUN   Example\n--- PASS: Example (0.00s)\n=== RUN   TestX\n--- FAIL: TestX (0.01s)\n--- FAIL: TestX (0.01s)\nFAIL\n"
	text := one + "FAIL\texample.com/a\t0.1s\n" + one + "FAIL\texample.com/b\t0.1s\n--- PASS: Example (0.00s)\nPASS\nok  \texample.com/c\t0.1s\n"
	p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
	if want := "results in lines: 2 fail 3 pass"; !strings.Contains(p.Text, want) {
		t.Errorf("the preview lacks %q:\n%s", want, p.Text)
	}
}

func fixture(t *testing.T, name string) string {
	for _, f := range previewtest.Fixtures() {
		if f.Name == name {
			return f.Text
		}
	}
	t.Fatalf("no fixture %s", name)
	return ""
}

// The line numbers of an excerpt are the numbers in the text.
func TestLineNumbers(t *testing.T) {
	for _, name := range []string{"app.log", "docs.md", "store.go", "prose.txt", "grep.txt", "sales.csv"} {
		text := fixture(t, name)
		lines := strings.Split(text, "\n")
		p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
		seen := 0
		for _, l := range strings.Split(p.Text, "\n")[1:] {
			number, rest, ok := strings.Cut(l, ":")
			n := 0
			for _, c := range number {
				if c < '0' || c > '9' {
					ok = false
				}
				n = n*10 + int(c-'0')
			}
			if !ok {
				continue // a fact
			}
			if _, after, has := strings.Cut(rest, ") "); has && strings.HasPrefix(rest, " (") {
				rest = after
			}
			seen++
			rest, _, _ = strings.Cut(strings.TrimPrefix(rest, " "), "…(+")
			for part := range strings.SplitSeq(rest, "…") { // the date that all lines have is left out
				if n < 1 || n > len(lines) || !strings.Contains(lines[n-1], part) {
					t.Errorf("%s: %q is not line %d", name, rest, n)
				}
			}
		}
		if seen < 3 {
			t.Errorf("%s: %d numbered lines, want some", name, seen)
		}
	}
}

// A preview shows the first and the last characters of giant lines.
func TestGiantLine(t *testing.T) {
	text := "start " + strings.Repeat("x1 ", 40_000) + "the end"
	p, ok := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 200, quarter)
	if !ok || !strings.Contains(p.Text, "start x1") || !strings.HasSuffix(p.Text, "the end") {
		t.Errorf("Make(giant line) = %q", p.Text)
	}
}

// TestOddTexts: a text that looks like one kind and is another has a preview, too.
func TestOddTexts(t *testing.T) {
	var falling strings.Builder
	for n := 300_000; n > 99_998; n-- {
		fmt.Fprintf(&falling, ",%d", n)
	}
	for name, text := range map[string]string{
		"sizes behind quotes":        strings.Repeat("2026-01-05 10:00:01 saved \"a.txt\" 812 bytes\n", 30),
		"a status that is none":      strings.Repeat("10.0.0.1 - - [05/Jan/2026:10:00:01 +0000] \"GET /x HTTP/1.1\" 999 12\n", 30),
		"a diff without names":       strings.Repeat("diff --git \n@@ -1 +1 @@\n-a\n+b\n", 13),
		"a patch without names":      strings.Repeat("--- \n+++ \n@@ -1 +1 @@\n-a\n+b\n", 13),
		"more numbers than are kept": "[" + falling.String()[1:] + "]",
		"and in a table":             "n,m\n" + strings.ReplaceAll(falling.String()[1:], ",", ",x\n") + ",x\n",
	} {
		if p, ok := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 200, quarter); !ok || quarter(p.Text) > 200 || !strings.Contains(p.Text, handle) {
			t.Errorf("%s: the preview is %q, %v", name, p.Text, ok)
		}
	}
}

// FuzzMake: a preview of any text is valid UTF-8, within its budget, smaller
// than the text, and deterministic.
func FuzzMake(f *testing.F) {
	for _, fx := range previewtest.Fixtures() {
		f.Add(fx.Text[:min(len(fx.Text), 3000)], 200)
		f.Add(fx.Text[:min(len(fx.Text), 700)], 60)
	}
	f.Add("{\"a\":[1,2,{\"b\":\"\\ud800\"}]}", 50)
	f.Add("diff --git \n@@ @@\n+++\n---", 90)
	f.Add("a\tb\n\"\n\t\n\t\n\t", 90)
	f.Add("\xff\xfe: \n 1:2:3", 100)
	f.Add("[{\"a\":{\"b\":1}},\n{\"c\":[2", 80)
	f.Add("a:\n- b: |\n  c\n---\nkind: x\nmetadata:\n  name: y\n", 80)
	f.Add("{\"a\":[{\"b\":\"in\xbfo\"},{\"b\":\"c\"},{\"b\":\"c\"}]}", 200)
	f.Add("<a b='c'>d<e/></a>\n<![CDATA[", 80)
	f.Add("PASS\n--- FAIL: T (0.1s)\n    x\n 1) y\nok 1 - z\n3 passed", 80)
	f.Add("A: b\n c\nD: 12 kB\n\nA: e\n[s]\nk = v\n#\n", 80)
	f.Fuzz(func(t *testing.T, text string, budget int) {
		src := preview.Source{Text: text, Tokens: quarter(text), Handle: handle}
		p, ok := preview.Make(src, budget, quarter)
		if !ok {
			return
		}
		if !utf8.ValidString(p.Text) {
			t.Errorf("not UTF-8: %q", p.Text)
		}
		if n := quarter(p.Text); n > budget || n >= src.Tokens {
			t.Errorf("%d tokens, of %d, budget %d", n, src.Tokens, budget)
		}
		if again, _ := preview.Make(src, budget, quarter); again != p {
			t.Error("not deterministic")
		}
		if len(text) < 2000 { // some kinds are known by their many lines
			many := strings.Repeat(text+"\n", 30)
			preview.Make(preview.Source{Text: many, Tokens: quarter(many), Handle: handle}, budget, quarter)
		}
	})
}

func BenchmarkMake(b *testing.B) {
	for _, f := range previewtest.Fixtures() {
		src := preview.Source{Text: f.Text, Tokens: quarter(f.Text), Handle: handle}
		b.Run(f.Name, func(b *testing.B) {
			b.SetBytes(int64(len(f.Text)))
			for b.Loop() {
				preview.Make(src, 400, quarter)
			}
		})
	}
}

// Texts of 1 MB that are made to cost much end within the time of a test.
func TestHostileTexts(t *testing.T) {
	const size = 1 << 20
	fill := func(part string) string { return strings.Repeat(part, size/len(part)) }
	for name, text := range map[string]string{
		"a long name of XML":     "<a" + strings.Repeat("x", size/2) + ">" + strings.Repeat("<b/>", size/8),
		"deep XML":               fill("<a>"),
		"results of tests":       "TAP version 13\n" + fill("ok\n"),
		"failures":               fill("FAIL\n"),
		"changed files":          fill("diff --git a/x b/x\n+\n"),
		"lines of HTML":          "<html>" + fill("<p>x"),
		"items of JSON":          "[" + fill("1,") + "1]",
		"members of JSON":        "{" + fill(`"a":1,`) + `"a":1}`,
		"empty objects":          fill("{}"),
		"columns":                fill("a,b,c,d\n"),
		"many columns":           fill(strings.Repeat("a,", 10_000) + "\n"),
		"documents of YAML":      fill("---\na: 1\n"),
		"keys of YAML":           fill("- a: 1\n"),
		"blanks":                 fill("\n"),
		"one line":               fill("a"),
		"words":                  fill("a b c d e f g h\n"),
		"headings":               fill("# a\n"),
		"brackets":               fill("["),
		"assignments":            fill("a=b\n"),
		"records":                fill("A: 1\nB: 2\nC: 3\nD: 4\n\n"),
		"stacks":                 fill("goroutine 1 [running]:\nmain.f()\n\t/a.go:1 +0x1\n\n"),
		"control characters":     fill("\x00\x01abcdefgh"),
		"a line that never ends": "a: " + fill("x: "),
	} {
		p, ok := preview.Make(preview.Source{Text: text, Tokens: size, Handle: handle}, 400, quarter)
		if !ok || quarter(p.Text) > 400 || p.Text == "" {
			t.Errorf("%s: %v, %d tokens", name, ok, quarter(p.Text))
		}
	}
}

// A few lines of other text before and after a table or YAML do not hide it, and are shown.
func TestTextAroundTablesAndYAML(t *testing.T) {
	rows := func(form string) (text string) {
		for i := range 30 {
			text += fmt.Sprintf(form, i, 100+i*i, []string{"open", "closed"}[i%2])
		}
		return text
	}
	for name, k := range map[string]struct {
		text, says string
		want       preview.Kind
	}{
		"CSV":        {"id,size,state\n" + rows("%d,%d,%s\n"), "30 rows", preview.Table},
		"TSV":        {"id\tsize\tstate\n" + rows("%d\t%d\t%s\n"), "30 rows", preview.Table},
		"semicolons": {"id;size;state\n" + rows("%d;%d;%s\n"), "30 rows", preview.Table},
		"psql":       {" id | size | state\n----+------+-------\n" + rows(" %d | %d | %s\n"), "30 rows", preview.Table},
		"box":        {" id │ size │ state\n────┼──────┼──────\n" + rows(" %d │ %d │ %s\n"), "30 rows", preview.Table},
		"Markdown":   {"| id | size | state |\n|----|------|-------|\n" + rows("| %d | %d | %s |\n"), "30 rows", preview.Table},
		"YAML":       {"items:\n" + rows("- id: %d\n  size: %d\n  state: %s\n"), "30 items", preview.YAML},
		"documents":  {rows("---\nkind: K%d\nsize: %d\nstate: %s\n"), "30 documents", preview.YAML},
	} {
		for _, before := range []string{"", "npm warn old lockfile\n", "npm warn old lockfile\nnpm warn deprecated x@1.2.3: use y, or z\n\n", "> app@1.0.0 export\n> node export.js\n\n"} {
			for _, after := range []string{"", "Done in 0.42s.\n", "\nnpm notice New version\nexit status 1\n"} {
				text := before + k.text + after
				p, ok := preview.Make(preview.Source{Text: text, Tokens: 4000, Handle: handle}, 350, quarter)
				if !ok || p.Kind != k.want || !strings.Contains(p.Text[:strings.Index(p.Text, "\n")], k.says) {
					t.Errorf("%s after %q, before %q: %s, want %s and %s", name, before, after, p.Text[:min(160, len(p.Text))], k.want, k.says)
				}
				for i, l := range strings.Split(text, "\n") {
					if l != "" && (i < strings.Count(before, "\n") || i >= strings.Count(before+k.text, "\n")) && !strings.Contains(p.Text, fmt.Sprintf("%d: %s", i+1, l)) {
						t.Errorf("%s after %q, before %q: line %d is not shown: %s", name, before, after, i+1, p.Text)
					}
				}
			}
		}
	}
}

// What is counted is what the text has: names with blanks, directories, and no document behind the last mark.
func TestTotals(t *testing.T) {
	row := "drwxr-xr-x 2 root root 4096 Jan  2 03:04 same\n"
	for says, text := range map[string]string{
		"42 paths":    strings.Repeat("/a/b/c.go\n./d/e.go\n", 20) + "/a/launcher manifest.xml\n/a/script (dev).tmpl\n",
		"40 entries]": "/a:\ntotal 8\n" + strings.Repeat(row, 20) + "\n/b:\ntotal 8\n" + strings.Repeat(row, 20),
		"3 documents": strings.Repeat("---\nkind: Service\nmetadata:\n  name: web\nspec:\n  port: 80\n", 3) + "---\n",
	} {
		p, _ := preview.Make(preview.Source{Text: text, Tokens: 4000, Handle: handle}, 350, quarter)
		head, _, _ := strings.Cut(p.Text, "\n")
		if !strings.Contains(strings.ReplaceAll(head, ". Read more", "]"), says) {
			t.Errorf("%s, want %s", head, says)
		}
	}
}
