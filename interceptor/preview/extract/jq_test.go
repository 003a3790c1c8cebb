package extract

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

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
			t.Errorf("JQ(%q): %v, want an Error", text, err)
		}
	}
	for _, program := range []string{".[", "nosuchfunction", ".a.b", `import "m" as m; .`, "error(\"x\")", "input"} {
		if got, err := programs.JQ(t.Context(), "me", "[1]", program); err == nil {
			t.Errorf("JQ(%s) = %q, want an error", program, got)
		} else if strings.Contains(err.Error(), "outputs") {
			t.Errorf("JQ(%s): %v, and there were no outputs", program, err)
		}
	}
}

func jsonString(s string) string { return `"` + s + `"` }

// The text of an error is short.
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

// If there are several callers, one of them can't take all slots. A single caller has all.
func TestJQPlacesAreShared(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for callers, places := range map[int]int{0: jqAtOnce, 1: jqAtOnce, 2: jqAtOnce - 1, 9: jqAtOnce - 1} {
		programs := NewPrograms(callers)
		for range places { // as a program that runs does
			own, _ := programs.of("greedy")
			own <- struct{}{}
			programs.slots <- struct{}{}
		}
		if _, err := programs.JQ(over, "greedy", "1", "."); err == nil || !strings.Contains(err.Error(), "others") {
			t.Errorf("of %d callers one has more than %d places: %v", callers, places, err)
		}
		if callers > 1 {
			if got, err := programs.JQ(t.Context(), "other", "1", "."); got != "1" || err != nil {
				t.Errorf("of %d callers the second reads %q, %v", callers, got, err)
			}
			if programs.own["greedy"] == nil || programs.own["other"] != nil {
				t.Errorf("of %d callers those with slots are %v, want the one whose programs run", callers, programs.own)
			}
		}
	}
}

// A program ends with the process that asked for it, even if that is killed. Then its input ends.
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
	if err := gob.NewEncoder(in).Encode(question{Program: program, Text: "1"}); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if _ = cmd.Wait(); ctx.Err() != nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("the process = %v, %v; want its own end", cmd.ProcessState, ctx.Err())
	}
}

// Of what a process writes, the gateway keeps no more than it may need.
func TestOutputIsLimited(t *testing.T) {
	l := limited{max: 5}
	for _, part := range []string{"abc", "def", "ghi"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write(%q) = %d, %v", part, n, err)
		}
	}
	if string(l.kept) != "abcde" {
		t.Errorf("kept %q", l.kept)
	}
	if got, err := NewPrograms(1).JQ(t.Context(), "me", `"`+strings.Repeat("x", maxJQOutput-1)+`"`, "."); len(got) != maxJQOutput-1 || err != nil {
		t.Errorf("the largest output has %d bytes, %v", len(got), err)
	}
}

// Programs wait for a slot, until their context ends.
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

// Limits of time, memory and size end a program.
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
		{"a large text", jsonString(strings.Repeat("a", MaxJQInput)), ".", "limit", 50 * time.Second, false},
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
