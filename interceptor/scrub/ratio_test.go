//go:build linux && !race

package scrub

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/cputime"
)

// The guard on the scrubber's speed: beside gitleaks, in one run, with room for
// a machine that is busy. test/bench/README.md has the figures.
func TestRatioToGitleaks(t *testing.T) {
	const most = 1. / 20
	s, d, text := newScrubber(t, Options{}), reference(t), dense(64<<10)
	r := cputime.Ratio(5, func() {
		for range 30 {
			if _, _, err := s.Text(context.Background(), text); err != nil {
				t.Fatal(err)
			}
		}
	}, func() { d.DetectString(text) }) / 30
	if r > most {
		t.Errorf("scrubbing takes 1/%.0f of gitleaks' time, want at most 1/%.0f", 1/r, 1/most)
	}
	t.Logf("1/%.0f of gitleaks' time", 1/r)
}

// TestRatioOfManySecrets: a text with many secrets takes no more time than its
// parts.
func TestRatioOfManySecrets(t *testing.T) {
	const parts, most = 32, 2.
	s := newScrubber(t, Options{Timeout: time.Minute})
	body := func(n int) []byte {
		return []byte(`{"content":[{"type":"text","text":"` + strings.Repeat(github(50)+" ", n) + `"}]}`)
	}
	whole, part := body(parts*1500), body(1500)
	scrub := func(raw []byte, times int) func() {
		return func() {
			for range times {
				if _, found, err := s.JSON(context.Background(), raw); err != nil || len(found) == 0 {
					t.Fatal(len(found), err)
				}
			}
		}
	}
	r := cputime.Ratio(2, scrub(whole, 1), scrub(part, parts))
	if r > most {
		t.Errorf("%d secrets in one text take %.1f times the time of %d texts, want at most %.0f", parts*1500, r, parts, most)
	}
	t.Logf("%.1f times the time of its parts", r)
}

// chunks returns the parts of s of n bytes.
func chunks(s string, n int) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(s) > n && yield(s[:n]) {
			s = s[n:]
		}
		yield(s)
	}
}

// TestRatioOfALongWord: a long word, which some expressions take whole, costs about what the same
// letters cost in lines.
func TestRatioOfALongWord(t *testing.T) {
	const most = 4.
	s := newScrubber(t, Options{Timeout: time.Minute})
	text := func(in string) func() {
		return func() {
			if _, _, err := s.Text(context.Background(), in); err != nil {
				t.Fatal(err)
			}
		}
	}
	const size = 1 << 19
	for _, before := range []string{"key=", "secret: \"", "eyJhbGciOiJIUzI1NiJ9."} {
		word := token(1, "", size)
		r := cputime.Ratio(3, text(before+word), text(strings.Join(slices.Collect(chunks(word, 100)), "\n")))
		if r > most {
			t.Errorf("a word after %q takes %.1f times the time of its parts in lines, want at most %.0f", before, r, most)
		}
		t.Logf("after %q: %.1f times", before, r)
	}
}

// TestTimeLimitBoundsAllWork: whatever the text, its examination ends soon after its time limit, and
// then it is withheld.
func TestTimeLimitBoundsAllWork(t *testing.T) {
	const limit, slack = 20 * time.Millisecond, 150 * time.Millisecond
	s := newScrubber(t, Options{Timeout: limit})
	over := 0
	for name, text := range largeTexts(2 << 20) {
		for _, doc := range []bool{false, true} {
			raw := []byte(result(text))
			before := cputime.Process()
			var err error
			if doc {
				_, _, err = s.JSON(context.Background(), raw)
			} else {
				_, _, err = s.Text(context.Background(), text)
			}
			took := cputime.Process() - before
			if took > limit+slack || err != nil && !errors.Is(err, ErrTimeLimit) {
				t.Errorf("%s (JSON: %v): %v after %v", name, doc, err, took)
			}
			if err != nil {
				over++
			}
		}
	}
	if over < 10 {
		t.Errorf("%d texts are over the limit, want more", over)
	}
}

// largeTexts returns texts of n bytes, each of which is expensive in its own way.
func largeTexts(n int) map[string]string {
	fill := func(unit string) string { return strings.Repeat(unit, n/len(unit)) }
	return map[string]string{
		"word": "key=" + token(1, "", n), "word of one letter": "api_key=" + fill("x"), "word with digits": "secret: " + fill("a1b2c3d4"),
		"base64":           "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(token(2, "", n/2))),
		"printable base64": base64.StdEncoding.EncodeToString([]byte(fill("some text of words "))),
		"hex":              hex.EncodeToString([]byte(fill("some text "))), "percent": fill("%41"), "escapes": fill(`\n\"`),
		"jwt": "ey" + token(3, "", n/2) + ".ey" + token(4, "", n/2), "pem": "-----BEGIN PRIVATE KEY-----\n" + fill(token(5, "", 64)+"\n") + "-----END PRIVATE KEY-----",
		"many keys": fill("api_key = " + token(6, "", 20) + "\n"), "assignments": fill("key=a "), "curl": fill("curl -H x\n"),
		"table": "id,password\n" + fill("1,"+token(7, "", 12)+"\n"), "headers": fill("id,token,secret\n"), "pairs": fill("name: DB_PASSWORD\nvalue: a1b2c3d4\n"),
		"entities": fill("&#65;"), "named entities": fill("&amp;"), "quoted-printable": fill("token=3Da "), "soft breaks": fill("a=\n"), "signs": fill("="), "quotes": fill(`"`),
		"zeros": fill("a\x00"), "heads of gzip": fill("H4sIAAAAAAAAA0tMSk5JTUvPyMwCAA "), "nested base64": base64.StdEncoding.EncodeToString([]byte(base64.StdEncoding.EncodeToString([]byte(fill("some text of "))))),
		"JSON table": `{"columns":["name","password"],"rows":[` + fill(`["ann","s3cr3t-x9"],`) + `["a","b"]]}`, "deep": fill("[") + fill("]"), "secrets": fill(github(50) + " "),
		"zero width": fill("\u200b"), "url": fill("https://a:b@c?token=x&"), "block": fill("token: |\n  abcdefgh\n"),
	}
}
