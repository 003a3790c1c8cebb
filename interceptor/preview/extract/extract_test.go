package extract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
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
		{"plain", ten, Pattern{Expr: "^t"}, "2:two\n3:three\n10:ten"},
		{"context", ten, Pattern{Expr: "five|nine", Context: 1}, "4-four\n5:five\n6-six\n--\n8-eight\n9:nine\n10-ten"},
		{"contexts that touch", ten, Pattern{Expr: "four|six", Context: 1}, "3-three\n4:four\n5-five\n6:six\n7-seven"},
		{"neighbours", ten, Pattern{Expr: "four|five", Context: 1}, "3-three\n4:four\n5:five\n6-six"},
		{"a range", ten, Pattern{Expr: "e", Lines: "9-"}, "9:nine\n10:ten"},
		{"no match", ten, Pattern{Expr: "zzz", Lines: "2-5"}, "[no match in lines 2-5]"},
		{"a long line", "x\n" + long, Pattern{Expr: "needle"}, "2:…(byte 1840) " + strings.Repeat("ä", 80) + "needle" + strings.Repeat("b", 160) + "…"},
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
	if err != nil || !strings.HasSuffix(many, `go on with lines "2001-"]`) {
		t.Errorf("too many matches end with %q, %v", many[len(many)-60:], err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Grep(ctx, strings.Repeat("x\n", 5000), Pattern{Expr: "y"}); err == nil {
		t.Error("Grep went on after its context ended")
	}
}

func TestMain(m *testing.M) {
	Child()
	if os.Getenv("GORACE") == "" {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // of the children, too
	}
	os.Exit(m.Run())
}

func TestJQ(t *testing.T) {
	programs := NewPrograms(1)
	for _, tc := range []struct{ text, program, want string }{
		{`{"a":[1,2,{"b":"x<y"}]}`, ".a[2].b", "x<y"},
		{`{"n":12345678901234567890}`, ".n", "12345678901234567890"},
		{`{"f":1.5}`, "[.f,1]", "[1.5,1]"},
		{"{\"i\":1}\n{\"i\":2}\n", "map(.i)|add", "3"},
		{`[1,2]`, ".[]", "1\n2"},
		{`{}`, "empty", "[jq: no output]"},
		{`{}`, "env|length", "0"},
		{`"s"`, ".", "s"},
	} {
		if got, err := programs.JQ(t.Context(), "me", tc.text, tc.program); got != tc.want || err != nil {
			t.Errorf("JQ(%s, %s) = %q, %v; want %q", tc.text, tc.program, got, err, tc.want)
		}
	}
	for _, text := range []string{"", "no json", `{"a":`} {
		var e *Error
		if _, err := programs.JQ(t.Context(), "me", text, "."); !errors.As(err, &e) || e.Field != "jq" {
			t.Errorf("JQ(%q): %v, want an error of the caller's", text, err)
		}
	}
	for _, program := range []string{".[", "nosuchfunction", ".a.b", `import "m" as m; .`, "error(\"x\")", "input"} {
		if got, err := programs.JQ(t.Context(), "me", "[1]", program); err == nil {
			t.Errorf("JQ(%s) = %q, want an error", program, got)
		}
	}
}

func jsonString(s string) string { return `"` + s + `"` }

// No question gets more than a few words out of being wrong.
func TestFaultsAreShort(t *testing.T) {
	text := `["` + strings.Repeat("word ", 10_000) + `"]`
	programs := NewPrograms(1)
	for _, program := range []string{"error", "halt_error", "error(tojson*20)", ".[0]|fromjson", ".[0].x", `{} | has(` + jsonString(strings.Repeat("x", 20_000)) + `;1)`} {
		_, err := programs.JQ(t.Context(), "me", text, program)
		if err == nil || len(err.Error()) > maxFault+20 {
			t.Errorf("JQ(%.40s) = an error of %d bytes, want at most %d", program, len(fmt.Sprint(err)), maxFault)
		}
	}
	if _, err := Grep(t.Context(), "a", Pattern{Expr: strings.Repeat("(", 10_000)}); err == nil || len(err.Error()) > maxFault+20 {
		t.Errorf("Grep = an error of %d bytes", len(fmt.Sprint(err)))
	}
}

// Of several callers, one that has more to ask than there is time for leaves the
// others a place, and a single one has them all.
func TestJQPlacesAreShared(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for callers, places := range map[int]int{0: jqAtOnce, 1: jqAtOnce, 2: jqAtOnce - 1, 9: jqAtOnce - 1} {
		programs := NewPrograms(callers)
		for range places { // as a program that runs does
			programs.of("greedy") <- struct{}{}
			programs.slots <- struct{}{}
		}
		if _, err := programs.JQ(over, "greedy", "1", "."); err == nil || !strings.Contains(err.Error(), "others") {
			t.Errorf("of %d callers one has more than %d places: %v", callers, places, err)
		}
		if callers > 1 {
			if got, err := programs.JQ(t.Context(), "other", "1", "."); got != "1" || err != nil {
				t.Errorf("of %d callers the second reads %q, %v", callers, got, err)
			}
		}
	}
}

// A program ends with the process that asked for it, also where that was killed:
// all that is left of it then is the end of the input.
func TestJQEndsWithItsAsker(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Args = []string{childName}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	const program = "def f: f; f"
	if _, err := io.WriteString(in, "\x00\x00\x00"+string(rune(len(program)))+"\x00\x00\x00\x01"+program+"1"); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if _ = cmd.Wait(); ctx.Err() != nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the process = %v, %v; want its own end", cmd.ProcessState, ctx.Err())
	}
}

// More programs than may run at a time wait for one another, no longer than
// their time.
func TestJQWaits(t *testing.T) {
	programs := NewPrograms(1)
	for range jqAtOnce {
		programs.slots <- struct{}{}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := programs.JQ(ctx, "me", "1", "."); err == nil || !strings.Contains(err.Error(), "others") {
		t.Errorf("with all places taken: %v", err)
	}
	<-programs.slots
	if got, err := programs.JQ(t.Context(), "me", "1", "."); got != "1" || err != nil {
		t.Errorf("with a place free: %q, %v", got, err)
	}
	if len(programs.slots) != jqAtOnce-1 {
		t.Errorf("%d places are taken", len(programs.slots))
	}
}

// Programs without end are ended: by time, by memory.
func TestJQIsBounded(t *testing.T) {
	programs := NewPrograms(1)
	many := jsonString(strings.Repeat("a", 2_000_000))
	for _, tc := range []struct {
		name, text, program, want string
		time                      time.Duration
		hard                      bool // one step that only the system can refuse
	}{
		{"endless", "1", "def f: f; f", "too long", 300 * time.Millisecond, false},
		{"one endless step", many, `[scan("a")]|length`, "too long", 500 * time.Millisecond, false},
		{"greedy", "1", `[range(1e9)|tostring*100000]`, "memory", 50 * time.Second, false},
		{"greedy in one step", "1", `("x" * 2000000000)|length`, "memory", 50 * time.Second, true},
		{"a long array", "[]", `.[500000000] = 1|length`, "memory", 50 * time.Second, true},
		{"talkative", "1", `range(1e9)|"some text that is written out"`, "output", 50 * time.Second, false},
		{"a large text", jsonString(strings.Repeat("a", maxJQInput)), ".", "limit", 50 * time.Second, false},
		{"a large program", "1", strings.Repeat(" ", maxJQProgram) + "1", "limit", 50 * time.Second, false},
	} {
		if tc.hard && !memoryIsLimited {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), tc.time)
		start := time.Now()
		got, err := programs.JQ(ctx, "me", tc.text, tc.program)
		var e *Error
		if !errors.As(err, &e) || !strings.Contains(e.Text, tc.want) {
			t.Errorf("%s: %.100q, %v; want it refused for %q", tc.name, got, err, tc.want)
		}
		t.Logf("%s: refused after %v", tc.name, time.Since(start).Round(time.Millisecond))
		cancel()
	}
}

// byBytes is a counter whose tokens are four bytes.
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

func pages(t *testing.T, text string, size int) []Page {
	t.Helper()
	var out []Page
	for n := 1; ; n++ {
		p, err := PageOf(text, n, size, byBytes)
		if err != nil {
			t.Fatalf("PageOf(%d): %v", n, err)
		}
		out = append(out, p)
		if !p.More {
			return out
		}
	}
}

func TestPages(t *testing.T) {
	all := pages(t, ten, 5)
	var text string
	for i, p := range all {
		text += p.Text
		if rest := strings.TrimPrefix(ten, text); p.RestLines != strings.Count(rest, "\n") {
			t.Errorf("page %d says %d more lines, want %d", i+1, p.RestLines, strings.Count(rest, "\n"))
		}
		if !strings.HasSuffix(p.Text, "\n") {
			t.Errorf("page %d ends inside a line: %q", i+1, p.Text)
		}
	}
	if text != ten {
		t.Errorf("the pages together are %q", text)
	}
	if _, err := PageOf(ten, len(all)+1, 5, byBytes); err == nil || !strings.Contains(err.Error(), "pages") {
		t.Errorf("a page too many: %v", err)
	}
}

// FuzzPages: the pages of any text together are the text, and none but a page
// of one character is larger than asked.
func FuzzPages(f *testing.F) {
	f.Add(ten, 3)
	f.Add("ä€😀 no line end", 1)
	f.Add(strings.Repeat("x", 100)+"\n", 7)
	f.Add("\xff\xfe\x80", 1)
	f.Fuzz(func(t *testing.T, text string, size int) {
		size = 1 + (size&0xff+0x100)%64
		var got strings.Builder
		for _, p := range pages(t, text[:min(len(text), 4000)], size) {
			if n := (len(p.Text) + 3) / 4; n > size && len([]rune(p.Text)) > 1 {
				t.Errorf("a page of %d tokens, asked for %d", n, size)
			}
			got.WriteString(p.Text)
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
