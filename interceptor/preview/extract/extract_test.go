package extract

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const ten = "one\ntwo\nthree\nfour\nfive\nsix\nseven\neight\nnine\nten\n"

func TestLines(t *testing.T) {
	for spec, want := range map[string]string{
		"2-3": "two\nthree", "9-": "nine\nten", "-2": "nine\nten", "4": "four", " 1 - 2 ": "one\ntwo", "10-99": "ten", "-99": strings.TrimSuffix(ten, "\n"),
	} {
		if got, err := Lines(ten, spec); got != want || err != nil {
			t.Errorf("Lines(%q) = %q, %v; want %q", spec, got, err, want)
		}
	}
	for _, spec := range []string{"", "-", "0-3", "3-2", "a-b", "1-2-3", "11-12", "-0", "99999999999999999999"} {
		var e *Error
		if got, err := Lines(ten, spec); !errors.As(err, &e) || e.Field != "lines" {
			t.Errorf("Lines(%q) = %q, %v; want an error of lines", spec, got, err)
		}
	}
	for _, spec := range []string{"11", "11-12", "11-"} {
		if _, err := Lines(ten, spec); err == nil || err.Error() != "lines: the text has 10 lines" {
			t.Errorf("Lines(%q): %v; want an error that says where the text ends", spec, err)
		}
	}
	if got, _ := Lines("", "1"); got != "" {
		t.Errorf("Lines of an empty text = %q", got)
	}
}

func TestGrep(t *testing.T) {
	long := strings.Repeat("ä", 1000) + "needle" + strings.Repeat("b", 1000)
	for _, tc := range []struct {
		name, text string
		p          Pattern
		want       string
	}{
		{"plain", ten, Pattern{Expr: "^t"}, "[3 lines match]\n2:two\n3:three\n10:ten"},
		{"context", ten, Pattern{Expr: "five|nine", Context: 1}, "[2 lines match]\n4-four\n5:five\n6-six\n--\n8-eight\n9:nine\n10-ten"},
		{"contexts that touch", ten, Pattern{Expr: "four|six", Context: 1}, "[2 lines match]\n3-three\n4:four\n5-five\n6:six\n7-seven"},
		{"neighbours", ten, Pattern{Expr: "four|five", Context: 1}, "[2 lines match]\n3-three\n4:four\n5:five\n6-six"},
		{"a range", ten, Pattern{Expr: "e", Lines: "9-"}, "[2 lines match]\n9:nine\n10:ten"},
		{"no match", ten, Pattern{Expr: "zzz", Lines: "2-5"}, "[no match in lines 2-5]"},
		{"the end of lines of DOS", "a b\r\nb a\r\na\r", Pattern{Expr: "a$"}, "[2 lines match]\n2:b a\r\n3:a\r"},
		{"their last character", "a b\r\nb a\r\n", Pattern{Expr: `b\r$`}, "[1 line matches]\n1:a b\r"},
		{"an empty line of DOS", "a\r\n\r\nb\r\n", Pattern{Expr: "^$"}, "[1 line matches]\n2:\r"},
		{"a long line", "x\n" + long, Pattern{Expr: "needle"}, "[1 line matches]\n2:…(byte 1840) " + strings.Repeat("ä", 80) + "needle" + strings.Repeat("b", 160) + "…"},
		{"two places of a long line", "needle" + long, Pattern{Expr: "needle"}, "[1 line matches]\n1:needle" + strings.Repeat("ä", 80) + "…(byte 1846) " + strings.Repeat("ä", 80) + "needle" + strings.Repeat("b", 160) + "…"},
		{"a long line from its start", long, Pattern{Expr: "^ä"}, "[1 line matches]\n1:" + strings.Repeat("ä", 81) + "…"},
		{"counted", ten, Pattern{Expr: "e", Count: true}, "[7 lines match, 9 matches]"},
		{"counted once a line", ten, Pattern{Expr: "^t", Count: true, Context: 3}, "[3 lines match]"},
		{"counted in a range", ten, Pattern{Expr: "^t", Count: true, Lines: "3-"}, "[2 lines match]"},
		{"counted in a long line", long + long, Pattern{Expr: "needle", Count: true}, "[1 line matches, 2 matches]"},
		{"counted by what the group matches", "a=1\nb=2\na=3 c=4\n\n", Pattern{Expr: `(\w)=|()never`, Count: true}, "[3 lines match, 4 matches; the group has 3 different matches]\n2 a\n1 b\n1 c"},
		{"nothing counted", ten, Pattern{Expr: "zzz", Count: true}, "[no match in lines 1-10]"},
	} {
		got, err := Grep(t.Context(), tc.text, tc.p)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		} else if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
	if _, err := Grep(t.Context(), ten, Pattern{Expr: "("}); err == nil || !strings.Contains(err.Error(), "RE2") {
		t.Errorf("a wrong expression: %v", err)
	}
	many, err := Grep(t.Context(), strings.Repeat("x\n", maxMatches+5), Pattern{Expr: "x"})
	if err != nil || !strings.HasPrefix(many, `[2005 lines match, the first 2000 shown: narrow the expression, or go on with lines "2001-"]`) || !strings.HasSuffix(many, "\n2000:x") {
		t.Errorf("too many matches: %.120q … %q, %v", many, many[len(many)-60:], err)
	}
	groups, err := Grep(t.Context(), strings.Join(numbers(maxGroups+7), "\n"), Pattern{Expr: `(\d+)`, Count: true})
	if err != nil || strings.Count(groups, "\n") != groupsSeen+2 || !strings.HasSuffix(groups, fmt.Sprintf("[%d more texts]\n[7 matches of other texts]", maxGroups-groupsSeen)) {
		t.Errorf("too many groups end with %q, %v", groups[len(groups)-60:], err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Grep(ctx, strings.Repeat("x\n", 5000), Pattern{Expr: "y"}); err == nil {
		t.Error("Grep went on after its context ended")
	}
}

func numbers(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// The context ends a search even within a line.
func TestGrepEndsWithinALine(t *testing.T) {
	giant := strings.Repeat("abcdefghij ", 1<<17)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := Grep(ctx, giant, Pattern{Expr: "(a?b?c?d?e?f?g?){60}z"})
	if err == nil || !strings.Contains(err.Error(), "took too long") || time.Since(start) > 5*time.Second {
		t.Errorf("Grep of a line of %d bytes = %v after %v", len(giant), err, time.Since(start))
	}
}

// A search by runes has the same matches as one by bytes.
func TestGrepByRunes(t *testing.T) {
	line := "äxxyä\xff" + strings.Repeat("abcdefghij ", 50) + "ende"
	for _, expr := range []string{"x{1,50}yä", "^ä(x|y|ä|.{40})+j", "(ij .{9}){3}.{20}ende$", "nowhere", "", `\bende\b`} {
		m, err := newMatcher(t.Context(), expr)
		if err != nil {
			t.Fatal(err)
		}
		want := m.find(line)
		m.steps = maxWork + 1
		if got := m.find(line); !slices.Equal(got, want) {
			t.Errorf("%q is found at %v, want %v", expr, got, want)
		}
		m.stop()
	}
}

// byBytes truncates a text to n tokens of four bytes.
func byBytes(s string, n int) (string, int) {
	if len(s) <= 4*n {
		return s, (len(s) + 3) / 4
	}
	end := 4 * n
	for end > 0 && s[end]&0xc0 == 0x80 {
		end--
	}
	return s[:end], (end + 3) / 4
}

type page struct {
	text      string
	restLines int
}

func pages(t *testing.T, text string, size int) (out []page) {
	t.Helper()
	for n := 1; ; n++ {
		part, rest, err := Page(t.Context(), text, n, size, byBytes)
		if err != nil {
			t.Fatalf("Page(%d): %v", n, err)
		}
		out = append(out, page{part, rest})
		if rest == 0 {
			return out
		}
	}
}

func TestPages(t *testing.T) {
	all := pages(t, ten, 5)
	var text string
	for i, p := range all {
		text += p.text
		if rest := strings.TrimPrefix(ten, text); p.restLines != strings.Count(rest, "\n") {
			t.Errorf("page %d says %d more lines, want %d", i+1, p.restLines, strings.Count(rest, "\n"))
		}
		if !strings.HasSuffix(p.text, "\n") {
			t.Errorf("page %d ends inside a line: %q", i+1, p.text)
		}
	}
	if text != ten {
		t.Errorf("the pages together are %q", text)
	}
	if _, _, err := Page(t.Context(), ten, len(all)+1, 5, byBytes); err == nil || !strings.Contains(err.Error(), "pages") {
		t.Errorf("a page too many: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cut := 0
	if _, _, err := Page(ctx, ten, len(all)+1, 5, func(s string, n int) (string, int) {
		if cut++; cut == 2 {
			cancel()
		}
		return byBytes(s, n)
	}); err == nil || !strings.Contains(err.Error(), "took too long: 2 pages") || cut != 2 {
		t.Errorf("a page of a call that is cancelled after two: %v, %d were cut", err, cut)
	}
}

// FuzzPages: the pages of any text together are the text, and only a page of one character is
// larger than its size.
func FuzzPages(f *testing.F) {
	f.Add(ten, 3)
	f.Add("ä€😀 no line end", 1)
	f.Add(strings.Repeat("x", 100)+"\n", 7)
	f.Add("\xff\xfe\x80", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = 1 + (size&0xff+0x100)%64
		var got strings.Builder
		for _, p := range pages(t, text[:min(len(text), 4000)], size) {
			if n := (len(p.text) + 3) / 4; n > size && len([]rune(p.text)) > 1 {
				t.Errorf("a page of %d tokens, asked for %d", n, size)
			}
			got.WriteString(p.text)
		}
		if got.String() != text[:min(len(text), 4000)] {
			t.Error("the pages together are not the text")
		}
	})
}

// FuzzGrep: every line shown as a match is that line of the text.
func FuzzGrep(f *testing.F) {
	f.Add(ten, "e", 1)
	f.Add("a\r\nb\n\n", "^$", 0)
	f.Fuzz(func(t *testing.T, text, expr string, around int) {
		got, err := Grep(t.Context(), text, Pattern{Expr: expr, Context: around & 3})
		if err != nil || strings.HasPrefix(got, "[no match") {
			return
		}
		lines := split(text)
		head, got, _ := strings.Cut(got, "\n")
		shown := 0
		if m := regexp.MustCompile(`^\[(\d+) lines? match`).FindStringSubmatch(head); m != nil {
			shown, _ = strconv.Atoi(m[1])
		}
		if found := len(regexp.MustCompile(`(?m)^\d+:`).FindAllString(got, -1)); shown == 0 || found != shown && !strings.Contains(text, "\r") {
			t.Errorf("Grep(%q) shows %d matches and says %s", expr, found, head)
		}
		if counted, err := Grep(t.Context(), text, Pattern{Expr: expr, Count: true}); err != nil || !strings.HasPrefix(counted, strings.TrimSuffix(head, "]")) {
			t.Errorf("Grep(%q) counts %q, %v, and shows %s", expr, counted, err, head)
		}
		for _, l := range strings.Split(got, "\n") {
			n := 0
			for len(l) > 0 && l[0] >= '0' && l[0] <= '9' {
				n, l = n*10+int(l[0]-'0'), l[1:]
			}
			if n == 0 || strings.Contains(text, "…") {
				continue
			}
			if n > len(lines) || (!strings.Contains(l, "…") && l[1:] != lines[n-1]) {
				t.Errorf("Grep(%q) shows %q as line %d", expr, l, n)
			}
		}
	})
}
