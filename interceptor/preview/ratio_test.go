//go:build linux && !race

package preview_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/test/cputime"
)

// TestRatioOfTests: the output of a test runner takes at most some five times what a log of the same size takes.
// It took up to eight times as much when each line was matched with every expression.
func TestRatioOfTests(t *testing.T) {
	const most = 6.5
	text := func(form string, more ...string) string {
		var b strings.Builder
		for i := 0; b.Len() < 1<<20; i++ {
			fmt.Fprintf(&b, form, i%977, i%13, i%7)
			if i%200 == 0 {
				b.WriteString(strings.Join(more, "\n"))
			}
		}
		return b.String()
	}
	log := text("2026-01-02 03:04:05 INFO server: request %d of user %d took %d ms at a.b.c/path\n", "2026-01-02 03:04:05 ERROR it failed\n")
	for name, tests := range map[string]string{
		"go":       text("=== RUN   TestParse/case_%d\n--- PASS: TestParse/case_%d (0.0%ds)\n", "    parse_test.go:12: got 3, want 4\n", "--- FAIL: TestX (0.00s)\n"),
		"pytest":   text("tests/test_parse.py::test_case[%d-%d] PASSED                              [ %d%%]\n", "E       assert 3 == 4\n", "tests/test_x.py:12: AssertionError\n"),
		"unittest": text("test_case_%d (tests.test_parse.TestParse%d.test_%d) ... ok\n", "AssertionError: 3 != 4\n"),
		"TAP":      "TAP version 13\n" + text("ok %d - parses the case of %d\n  ---\n  duration_ms: 0.%d\n  ...\n", "not ok 7 - fails\n  error: 'expected 3, got 4'\n"),
	} {
		if got := preview.Of(tests); got != preview.Tests {
			t.Errorf("%s: %s", name, got)
		}
		before := cputime.Process()
		preview.Of(tests)
		took := cputime.Process() - before
		r := cputime.Ratio(2, func() { preview.Of(tests) }, func() { preview.Of(log) })
		if r > most {
			t.Errorf("%s: %.1f times the time of a log, want at most %.1f", name, r, most)
		}
		t.Logf("%s: %v, %.1f times", name, took, r)
	}
}

// TestMemoryOfItems: an array of the smallest items takes some seven times its bytes. It took 80 times as much when each
// item was a slice. Elements of XML that are no items are only counted; the decoder takes most of their 11 times. They
// took 26 times their bytes when the values of their attributes were kept.
func TestMemoryOfItems(t *testing.T) {
	var elements strings.Builder
	for i := range 1 << 17 {
		fmt.Fprintf(&elements, "<b x='%d'/>", i)
	}
	for _, k := range []struct {
		text string
		kind preview.Kind
		most uint64
	}{
		{"[" + strings.Repeat("0,", 1<<20) + "0]", preview.JSON, 10},
		{"<r><a/><a/>" + elements.String() + "</r>", preview.XML, 16},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if got := preview.Of(k.text); got != k.kind {
			t.Error(got)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / uint64(len(k.text)); n > k.most {
			t.Errorf("%s: the items take %d times their bytes", k.kind, n)
		} else {
			t.Log(n)
		}
	}
}
