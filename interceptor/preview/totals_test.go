package preview_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// said returns the preview of a text on one line of totals and in lines.
func said(text string, budget int) string {
	p, _ := preview.Make(preview.Source{Text: text, Tokens: 1e6, Handle: handle}, budget, quarter)
	return strings.Replace(p.Text, ". Read more", "]", 1)
}

// The added and removed lines of a diff are those of its hunks, also if they look like its heads.
func TestLinesOfADiff(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	for _, git := range []bool{true, false} {
		for range 50 {
			var b strings.Builder
			files, hunks, added, removed := 1+r.IntN(9), 0, 0, 0
			for f := range files {
				if git {
					fmt.Fprintf(&b, "diff --git a/d/f%d.sql b/d/f%d.sql\nindex 1..2 100644\n", f, f)
				}
				fmt.Fprintf(&b, "--- a/d/f%d.sql\n+++ b/d/f%d.sql\n", f, f)
				for range 1 + r.IntN(3) {
					hunks++
					var lines []string
					before, after := 0, 0
					for range 3 + r.IntN(9) {
						line := []string{"SELECT 1;", "-- a comment", "++ i", "", "@@ x", "--- y", "diff --git a/x b/x"}[r.IntN(7)]
						switch r.IntN(3) {
						case 0:
							lines, before, after = append(lines, " "+line), before+1, after+1
						case 1:
							lines, after, added = append(lines, "+"+line), after+1, added+1
						case 2:
							lines, before, removed = append(lines, "-"+line), before+1, removed+1
						}
					}
					fmt.Fprintf(&b, "@@ -1,%d +1,%d @@ f\n%s\n", before, after, strings.Join(lines, "\n"))
				}
			}
			want := fmt.Sprintf("changed file, +%d -%d, %d hunk", added, removed, hunks)
			if files > 1 {
				want = fmt.Sprintf("%d changed files, +%d -%d, %d hunk", files, added, removed, hunks)
			}
			if got := said(b.String(), 400); !strings.Contains(got, want) {
				t.Fatalf("git %v: want %s in\n%s\nof\n%s", git, want, got, b.String())
			}
		}
	}
}

// Results of tests count once for each test, also if tests of several suites have the same name.
func TestResultsOfTests(t *testing.T) {
	for name, k := range map[string]struct{ text, says string }{
		"unittest": {"test_a (m.A.test_a) ... ok\ntest_a (m.B.test_a) ... ok\ntest_b (m.B.test_b) ... FAIL\n\nFAIL: test_b (m.B.test_b)\n----\nRan 3 tests in 0.1s\n\nFAILED (failures=1)\n", "1 fail 2 pass"},
		"spec":     {"▶ first\n  ✔ works (1.2ms)\n  ✔ ends (0.1ms)\n▶ second\n  ✔ works (0.4ms)\n  ✖ fails (0.4ms)\nℹ tests 4\nℹ pass 3\n✖ failing tests:\n✖ fails (0.4ms)\n", "1 fail 3 pass"},
		"jest":     {"PASS a.test.js\n  a\n    ✓ works (5 ms)\n    ✓ ends\n  b\n    ✓ works (2 ms)\nTests:       3 passed, 3 total\n", "3 pass, files with tests: 1 pass"},
		"TAP":      {"TAP version 13\n# Subtest: a\n    ok 1 - works\n    ok 2 - ends\nok 1 - a\n# Subtest: b\n    ok 1 - works\n    not ok 2 - ends\nnot ok 2 - b\n# tests 4\n", "2 fail 4 pass"},
		"mocha":    {"  suite a\n    ✔ works\n    ✔ ends\n    1) breaks\n    2) fails\n\n  2 passing (20ms)\n  2 failing\n\n  1) suite a\n       breaks:\n     AssertionError: x\n\n  2) suite a\n       fails:\n     AssertionError: y\n", "2 fail 2 pass"},
		"go":       {"=== RUN   TestA\n--- PASS: TestA (0.00s)\n=== RUN   TestB\n--- FAIL: TestB (0.10s)\n--- FAIL: TestB (0.10s)\nFAIL\nFAIL\tx\t0.1s\n", "1 fail 1 pass"},
		"pytest":   {"a_test.py::test_x PASSED [ 50%]\nb_test.py::test_x PASSED [100%]\n===== 2 passed in 0.1s =====\n", "2 pass"},
		"cargo":    {"running 2 tests\ntest a::works ... ok\ntest b::works ... ok\n\ntest result: ok. 2 passed; 0 failed\n", "2 pass"},
	} {
		if got := said(k.text, 400); !strings.Contains(got, "results in lines: "+k.says+"]") {
			t.Errorf("%s: want %s in\n%s", name, k.says, got)
		}
	}
}

// A line that lacks a field in the middle has the others under their names.
func TestAlignedLinesWithGaps(t *testing.T) {
	var ports, right strings.Builder
	for i := range 60 {
		port, size := []string{"80/tcp", ""}[i%2], []string{"", fmt.Sprint(i)}[i/3%2]
		fmt.Fprintf(&ports, "%-10s   %-10s   %-12s   %-6s   %s\n", fmt.Sprintf("id%d", i), "img", fmt.Sprintf("Up %d hours", i%3), port, fmt.Sprintf("name%d", i))
		fmt.Fprintf(&right, "%-8s %6s %6d %6d\n", fmt.Sprintf("n%d", i), size, i, 100+i)
	}
	for text, says := range map[string][]string{
		"CONTAINER    IMAGE        STATUS         PORTS    NAMES\n" + ports.String(): {"60 rows", "PORTS (in 30): 80/tcp ×30", "all 60 have IMAGE img"},
		"NAME       SIZE   USED   FREE\n" + right.String():                           {"60 rows", "FREE: min 100 max 159", "USED: min 0 max 59", "SIZE (in 30): min 3 max 59"},
	} {
		got := said(text, 500)
		for _, s := range says {
			if !strings.Contains(got, s) {
				t.Errorf("without %s:\n%s", s, got)
			}
		}
	}
}

// The number before an entry of several fields is that of the field it names.
func TestTheNumberOfAnEntryNamesItsField(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "goroutine %d [%s]:\nmain.f%d(0x1)\n\t/a/b.go:1 +0x1\n\n", i, []string{"select", "running", "IO wait"}[i%3], i%2)
	}
	if got := said(b.String(), 400); !strings.Contains(got, "1: (frame ×20) select main.f0\n") {
		t.Error(got)
	}
}

// What looks like an entry within another is none.
func TestEntriesWithinOthers(t *testing.T) {
	var rss, toml, du strings.Builder
	for i := range 40 {
		fmt.Fprintf(&rss, "<item><id>%d</id><tag>a</tag><tag>b</tag></item>\n", i)
		fmt.Fprintf(&toml, "[s%d]\na = 1\nb = [\n  1,\n]\nc = \"\"\"\nx = 1\n[y]\n\"\"\"\n", i)
		fmt.Fprintf(&du, "%dK\t./d%d\n", 4*(i+1), i)
	}
	for says, text := range map[string]string{
		"40 items]":             "<rss><channel>\n" + rss.String() + "</channel></rss>\n",
		"40 sections, 120 keys": toml.String(),
		"min 4K max 2.1M":       du.String() + "2.1M\t.\n",
		"41 rows]":              du.String() + "2.1M\t.\n",
		"40 rows]":              du.String() + "2.1M\ttotal\n",
		" 39 rows]":             strings.Repeat("  7   8  99 a/b.go\n", 39) + "273 312 3861 total\n",
	} {
		if got := said(text, 400); !strings.Contains(got, says) {
			t.Errorf("without %s:\n%s", says, got)
		}
	}
}

// A word of a message is no level.
func TestLevelsOfLogs(t *testing.T) {
	for form, says := range map[string]string{
		"2026-11-20T09:00:%02dZ INFO the error of %d\n":                     "level INFO",
		"2026-11-20T09:00:%02dZ error: disk %d\n":                           "level ERROR",
		"2026-11-20 09:00:%02d [main] [warn] disk %d\n":                     "level WARN",
		"time=\"2026-11-20T09:00:%02dZ\" level=debug msg=\"an error %d\"\n": "level DEBUG",
		"2026-11-20T09:00:%02dZ disk %d has an error\n":                     "",
		"2026-11-20T09:00:%02dZ saved the notice %d of info\n":              "",
	} {
		text := ""
		for i := range 40 {
			text += fmt.Sprintf(form, i, i)
		}
		got := said(text, 400)
		if says == "" && strings.Contains(got, "level") || !strings.Contains(got, says) {
			t.Errorf("%q without %q:\n%s", form, says, got)
		}
	}
	if got := said("\uFEFFid,name\n"+strings.Repeat("7,a\n8,b\n", 20), 400); !strings.Contains(got, "\nid: 7") {
		t.Error(got)
	}
}

// The links of a page are its elements, and not what looks like one in a script or a comment.
func TestLinksOfAPage(t *testing.T) {
	page := "<!DOCTYPE html><html><script>var a = '<a href=x>'</script><!-- <a href=x> --><body>" + strings.Repeat("<h2>H</h2><p>text <a\nhref=x>l</a><A HREF='y'>m</A></p>\n", 20) + "</body></html>"
	if got := said(page, 300); !strings.Contains(got, "20 headings, 40 links]") {
		t.Error(got)
	}
}
