package trace

import (
	"strings"
	"testing"
)

func TestParseTraceparent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, c := range map[string]struct {
		in string
		ok bool
	}{
		"plain":              {good, true},
		"not sampled":        {good[:53] + "00", true},
		"later version":      {"cc" + good[2:] + "-what-the-future", true},
		"later, glued":       {"cc" + good[2:] + ".what", false},
		"00 with more":       {good + "-x", false},
		"version ff":         {"ff" + good[2:], false},
		"upper case":         {strings.ToUpper(good), false},
		"zero trace":         {"00-" + strings.Repeat("0", 32) + good[35:], false},
		"zero parent":        {good[:36] + strings.Repeat("0", 16) + good[52:], false},
		"no hex":             {strings.Replace(good, "0af7", "0ag7", 1), false},
		"short":              {good[:54], false},
		"empty":              {"", false},
		"dashes in the id":   {strings.Replace(good, "8448", "84-8", 1), false},
		"wrong first dashes": {strings.Replace(good, "00-", "000", 1), false},
	} {
		tp, ok := ParseTraceparent(c.in)
		if ok != c.ok {
			t.Errorf("%s: ParseTraceparent(%q) = %v, want %v", name, c.in, ok, c.ok)
		}
		if ok && tp.String()[2:53] != c.in[2:53] {
			t.Errorf("%s: String() = %q, want the ids of %q", name, tp, c.in)
		}
	}
}

// A value that is read and written gives itself again in version 00, and
// nothing but hexadecimal digits and dashes gets through.
func FuzzParseTraceparent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more")
	f.Fuzz(func(t *testing.T, s string) {
		tp, ok := ParseTraceparent(s)
		if !ok {
			if tp != (Traceparent{}) {
				t.Errorf("ParseTraceparent(%q) refused it and returned %v", s, tp)
			}
			return
		}
		again, ok := ParseTraceparent(tp.String())
		tp.Flags &= 3
		if !ok || again != tp {
			t.Errorf("ParseTraceparent(%q) = %v, %v; want %v", tp.String(), again, ok, tp)
		}
		if strings.Trim(tp.String(), "0123456789abcdef-") != "" {
			t.Errorf("String() = %q", tp.String())
		}
	})
}

func TestTraceID(t *testing.T) {
	call := TraceID("env_1", "local", "", "")
	for name, c := range map[string]struct {
		a, b [16]byte
		same bool
	}{
		"two calls of a session":      {TraceID("env_1", "local", "s", ""), TraceID("env_2", "local", "s", ""), true},
		"two calls without a session": {call, TraceID("env_2", "local", "", ""), false},
		"two branches of a tree":      {TraceID("env_1", "local", "s", "br_a"), TraceID("env_2", "local", "t", "br_a/br_b"), true},
		"two trees":                   {TraceID("env_1", "local", "s", "br_a"), TraceID("env_1", "local", "s", "br_b"), false},
		"one session id, two owners":  {TraceID("env_1", "ada", "s", ""), TraceID("env_1", "bob", "s", ""), false},
	} {
		if (c.a == c.b) != c.same {
			t.Errorf("%s: %x and %x, want same = %v", name, c.a, c.b, c.same)
		}
	}
}
