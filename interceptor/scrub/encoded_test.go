package scrub

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// encodings are the ways in which a secret may be hidden.
var encodings = []struct {
	name   string
	encode func(string) string
}{
	{"base64", func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }},
	{"base64 url", func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }},
	{"hex", func(s string) string { return hex.EncodeToString([]byte(s)) }},
	{"upper hex", func(s string) string { return strings.ToUpper(hex.EncodeToString([]byte(s))) }},
	{"percent", func(s string) string { return each(s, "%%%02X") }},
	{"unicode escapes", func(s string) string { return each(s, `\u%04x`) }},
	{"hex escapes", func(s string) string { return each(s, `\x%02x`) }},
	{"zero width", func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") }},
	{"soft hyphen", func(s string) string { return s[:9] + "\u00ad" + s[9:] }},
	{"one percent", func(s string) string { return s[:4] + fmt.Sprintf("%%%02x", s[4]) + s[5:] }},
	{"wrapped base64", func(s string) string {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("lorem ipsum dolor\n", 5) + s))
		var out strings.Builder
		for len(b) > 76 {
			out.WriteString(b[:76] + "\n")
			b = b[76:]
		}
		return out.String() + b
	}},
}

// each formats every byte of s, or every character for an escape of those.
func each(s, format string) string {
	var b strings.Builder
	if strings.Contains(format, "u") {
		for _, r := range s {
			fmt.Fprintf(&b, format, r)
		}
		return b.String()
	}
	for i := range len(s) {
		fmt.Fprintf(&b, format, s[i])
	}
	return b.String()
}

func TestEncodedSecrets(t *testing.T) {
	s := newScrubber(t, Options{})
	for i, outer := range encodings {
		for k, inner := range encodings {
			pat := github(uint64(100 + i*50 + k))
			hidden := outer.encode("a " + inner.encode(pat) + " b")
			for _, in := range []string{hidden, "see " + hidden + " there", "x: \"" + hidden + "\"\n"} {
				got, found, err := s.Text(context.Background(), in)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(got, hidden) || len(found) == 0 {
					t.Errorf("%s in %s: Text(%.200q) = %.200q, %v", inner.name, outer.name, in, got, found)
				}
			}
		}
	}
}

func TestEncodedAfterAPath(t *testing.T) {
	s := newScrubber(t, Options{})
	for n := range 8 {
		hidden := base64.RawStdEncoding.EncodeToString([]byte("the token is " + github(uint64(n))))
		in := "/" + strings.Repeat("x", n) + "/" + hidden
		if got, _, err := s.Text(context.Background(), in); err != nil || strings.Contains(got, hidden[24:]) {
			t.Errorf("Text(%q) = %q, %v", in, got, err)
		}
	}
}

func TestJSONInJSON(t *testing.T) {
	s := newScrubber(t, Options{})
	secret := token(31, "", 24) + "Zq7"
	v := any(map[string]string{"api_key": secret})
	for depth := range 4 {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		got, found, err := s.JSON(context.Background(), b)
		if err != nil || strings.Contains(string(got), secret) || len(found) == 0 || !json.Valid(got) {
			t.Errorf("depth %d: JSON(%s) = %s, %v, %v", depth, b, got, found, err)
		}
		v = map[string]any{"text": string(b)}
	}
}

// TestAfterAnEscape: the letter of an escape is no part of the word after it.
func TestAfterAnEscape(t *testing.T) {
	s := newScrubber(t, Options{})
	key := "AK" + "IAQYLPMN5HHHFPZAM2"
	for _, in := range []string{
		`{"out":"one\nKEY\ntwo"}`, `{"out":"one\tKEY\t"}`, `one\r\nKEY\r\n`, `"{\"out\":\"one\\nKEY\\n\"}"`, `one\\\\nKEY\\\\n`, `one\\\nKEY`, `one\\\\nKEY`,
		"\x1b[32mKEY \x1b[0m", `{"out":"\u001b[1;32mKEY \u001b[0m"}`, `\x1b[01;31m\x1b[KKEY`, `\\\u001b[32mKEY`,
	} {
		in = strings.ReplaceAll(in, "KEY", key)
		want := strings.ReplaceAll(in, key, "[REDACTED:aws-access-token]")
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q)\n got %q, %v\nwant %q", in, got, err, want)
		}
	}
}

// TestColored: a search that colors what it found splits words.
func TestColored(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(42)
	in := "token: " + pat[:4] + "\x1b[01;31m\x1b[K" + pat[4:9] + "\x1b[m\x1b[K" + pat[9:] + " \x1b[1mend\x1b[0m \x1b[x \x1b["
	want := "token: " + githubMark + " \x1b[1mend\x1b[0m \x1b[x \x1b["
	if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
		t.Errorf("Text(%q)\n got %q, %v\nwant %q", in, got, err, want)
	}
}

// TestSecretInBinary: in binary data a secret begins and ends in the middle of
// a group of base64, beside bytes that are no text.
func TestSecretInBinary(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(43)
	for _, before := range []string{"", "\xff", "\xd9(", "\x00\x01\xd9(", "\u00e9", "x\u00e9", "xx\u00e9"} {
		for _, after := range []string{"", "\x00", "\x00\x01", "z\x00", "\x00\x00\x00zz"} {
			hidden := base64.StdEncoding.EncodeToString([]byte("\x00\x01" + before + pat + after))
			if got, found, err := s.Text(context.Background(), "data: "+hidden); err != nil || len(found) == 0 || len(got) > len("data: ")+len(hidden)/2 {
				t.Errorf("between %q and %q: Text(%q) = %q, %v", before, after, hidden, got, err)
			}
		}
	}
}

// TestSecretBeforeBinary: the last digits of a run are no full group. A letter after a byte that
// is no text does not lengthen the secret before it.
func TestSecretBeforeBinary(t *testing.T) {
	s := newScrubber(t, Options{})
	hidden := base64.RawStdEncoding.EncodeToString([]byte(" AK" + "IAQYLPMN5HHHFPZAM2\xffz"))
	if got, found, err := s.Text(context.Background(), "data: "+hidden); err != nil || len(found) == 0 {
		t.Errorf("Text(%q) = %q, %v, %v, want a finding", hidden, got, found, err)
	}
}

// TestRunEndsWithItsLine: the line after a line of base64 stays, unless it ends in the same column or
// is the short end of wrapped lines.
func TestRunEndsWithItsLine(t *testing.T) {
	s := newScrubber(t, Options{})
	for n := range 12 {
		for _, encode := range []func([]byte) string{base64.StdEncoding.EncodeToString, base64.RawURLEncoding.EncodeToString, hex.EncodeToString} {
			hidden := encode([]byte("the token: " + github(uint64(n)) + strings.Repeat("!", n)))
			for _, next := range []string{"// Use of", "return nil", "EOF", "}", "import foo", "-----END X-----", "x", "", "\tkey: value", "done"} {
				for _, brk := range []string{"\n", "\r\n"} {
					in := "x=" + hidden + brk + next
					got, _, err := s.Text(context.Background(), in)
					if err != nil || !strings.HasSuffix(got, "]"+brk+next) || strings.Contains(got, hidden) {
						t.Errorf("Text(%q) = %q, %v", in, got, err)
					}
				}
			}
		}
	}
	// Wrapped base64 with the secret across the end of a line.
	for width := 60; width <= 80; width += 4 {
		for n := range 3 {
			for _, indent := range []string{"", "    "} {
				hidden := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("lorem ipsum dolor ", 3) + "token " + github(uint64(n)) + strings.Repeat(" x", width*n)))
				var lines []string
				for rest := hidden; ; rest = rest[width:] {
					if len(rest) <= width {
						lines = append(lines, rest)
						break
					}
					lines = append(lines, rest[:width])
				}
				in := "a:\n" + indent + strings.Join(lines, "\n"+indent) + "\nend of it"
				got, _, err := s.Text(context.Background(), in)
				if err != nil || strings.Contains(got, lines[1]) || !strings.HasSuffix(got, "\nend of it") {
					t.Errorf("width %d: Text(%q) = %q, %v", width, in, got, err)
				}
			}
		}
	}
}

func TestDecodingKeepsTheRest(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(41)
	for in, want := range map[string]string{
		"a%20b " + pat[:5] + "%" + fmt.Sprintf("%02x", pat[5]) + pat[6:] + " c%20d": "a%20b " + githubMark + " c%20d",
		"x\u200by " + pat[:7] + "\u200b" + pat[7:] + " \u200bz":                     "x\u200by " + githubMark + " \u200bz",
		`{\"a\":\"b\",\"k\":\"` + pat + `\"}`:                                       `{\"a\":\"b\",\"k\":\"` + githubMark + `\"}`,
	} {
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q)\n got %q, %v\nwant %q", in, got, err, want)
		}
	}
}

// TestPlausibleLosesNothing: where something can be decoded, that is plausible.
func TestPlausibleLosesNothing(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
	found, ruledOut := 0, 0
	for range 100000 {
		random := func(from string, n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = from[rnd.IntN(len(from))]
			}
			return string(b)
		}
		hexadecimal := rnd.IntN(2) == 0
		alphabet, encode, n := digits, base64.RawStdEncoding.EncodeToString, 4
		if hexadecimal {
			alphabet, encode, n = digits[52:62]+"abcdefABCDEF", hex.EncodeToString, 2
		}
		run := random(alphabet, rnd.IntN(40)) + encode([]byte(random("plain text 123", rnd.IntN(40)))) + random(alphabet, rnd.IntN(40))
		text := random(" \t", rnd.IntN(3)) + run
		for skip := range n {
			whole := span{0, len(text)}
			yields := len(appendDecoded(nil, text, whole, skip, n))
			switch plausible := plausible(text, whole, skip, n); {
			case yields > 0 && !plausible:
				t.Fatalf("plausible(%q, %d, %d) = false, but %d texts are decoded", text, skip, n, yields)
			case yields > 0:
				found++
			case !plausible:
				ruledOut++
			}
		}
	}
	if found < 10000 || ruledOut < 10000 {
		t.Errorf("%d runs decoded and %d ruled out, want more of both", found, ruledOut)
	}
}
