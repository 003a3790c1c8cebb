package scrub

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/quotedprintable"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
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
	{"octal escapes", func(s string) string { return each(s, `\%03o`) }},
	{"octal escapes of a shell", func(s string) string { return each(s, `\0%03o`) }},
	{"escapes in braces", func(s string) string { return each(s, `\u{%x}`) }},
	{"long escapes", func(s string) string { return each(s, `\U%08x`) }},
	{"zero width", func(s string) string { return strings.Join(strings.Split(s, ""), "\u200b") }},
	{"soft hyphen", func(s string) string { return s[:9] + "\u00ad" + s[9:] }},
	{"one percent", func(s string) string { return s[:4] + fmt.Sprintf("%%%02x", s[4]) + s[5:] }},
	{"entities", func(s string) string { return each(s, "&#%d;") }},
	{"hex entities", func(s string) string { return each(s, "&#x%X;") }},
	{"named entities", func(s string) string {
		return strings.NewReplacer("&", "&amp;", "_", "&lowbar;", ".", "&period;", `"`, "&quot;").Replace(s)
	}},
	{"quoted-printable", func(s string) string {
		return string(packed("a = b "+strings.Repeat("word ", 9)+s, func(w io.Writer) io.WriteCloser { return quotedprintable.NewWriter(w) }))
	}},
	{"a long line that goes on", func(s string) string {
		return string(packed(strings.Repeat("word ", 11)+".... "+s, func(w io.Writer) io.WriteCloser { return quotedprintable.NewWriter(w) }))
	}},
	{"gzip", func(s string) string {
		return base64.StdEncoding.EncodeToString(packed(s, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
	}},
	{"gzip in hex", func(s string) string {
		return hex.EncodeToString(packed(s, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
	}},
	{"zlib", func(s string) string {
		return base64.RawURLEncoding.EncodeToString(packed(s, func(w io.Writer) io.WriteCloser { return zlib.NewWriter(w) }))
	}},
	{"UTF-16", func(s string) string {
		return base64.StdEncoding.EncodeToString(inUTF16(binary.LittleEndian, "\ufeff"+s))
	}},
	{"UTF-16 of the other order", func(s string) string { return base64.StdEncoding.EncodeToString(inUTF16(binary.BigEndian, "\ufeff"+s)) }},
	{"UTF-16 without a mark", func(s string) string { return base64.StdEncoding.EncodeToString(inUTF16(binary.LittleEndian, s)) }},
	{"UTF-16 as bytes", func(s string) string { return "\u00ff\u00fe" + strings.Join(strings.Split(s, ""), "\x00") + "\x00" }},
	{"wrapped base64", func(s string) string {
		b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("lorem ipsum dolor\n", 5) + s))
		var out strings.Builder
		for len(b) > 76 {
			out.WriteString(b[:76] + "\n")
			b = b[76:]
		}
		return out.String() + b
	}},
	{"continued lines", func(s string) string { return continued(s, "\\\n") }},
	{"continued lines of YAML", func(s string) string { return continued(s, "\\\r\n    ") }},
}

// continued cuts s within its words after every 20 characters or a few more.
func continued(s, sign string) string {
	var b strings.Builder
	for i, last := 0, 0; i < len(s); i++ {
		if i-last >= 20 && inBase64(s[i-1]) && inBase64(s[i]) {
			b.WriteString(sign)
			last = i
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func packed(s string, packer func(io.Writer) io.WriteCloser) []byte {
	var b bytes.Buffer
	w := packer(&b)
	_, _ = io.WriteString(w, s)
	_ = w.Close()
	return b.Bytes()
}

func inUTF16(order binary.AppendByteOrder, s string) (b []byte) {
	for _, unit := range utf16.Encode([]rune(s)) {
		b = order.AppendUint16(b, unit)
	}
	return b
}

// each formats every byte of s, or every character for an escape of those.
func each(s, format string) string {
	var b strings.Builder
	if strings.ContainsAny(format, "uU&") {
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
	texts := 0
	defer func() { t.Logf("%d texts", texts) }()
	for i, outer := range encodings {
		for k, inner := range encodings {
			if inner.name == "UTF-16 as bytes" {
				continue // a wrong way to read a file, which nothing encodes
			}
			pat := github(uint64(100 + i*50 + k))
			hidden := outer.encode("a " + inner.encode(pat) + " b")
			for _, in := range []string{hidden, "see " + hidden + " there", "x: \"" + hidden + "\"\n"} {
				texts++
				got, found, err := s.Text(context.Background(), in)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(got, hidden) || len(found) == 0 {
					t.Errorf("%s in %s: Text(%.200q) = %.200q, %v", inner.name, outer.name, in, got, found)
				}
				before, after, _ := strings.Cut(in, hidden)
				if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
					t.Errorf("%s in %s: Text(%.200q) = %.200q: the text around it has changed", inner.name, outer.name, in, got)
				}
				if !utf8.ValidString(in) {
					continue // the encoding split a character
				}
				quoted, _ := json.Marshal(map[string]string{"text": in})
				if clean, _, err := s.JSON(context.Background(), quoted); err != nil || strings.Contains(string(clean), string(rawjson.Quote(hidden))) || bytes.Equal(clean, quoted) || !json.Valid(clean) {
					t.Errorf("%s in %s: JSON(%.200q) = %.200q, %v", inner.name, outer.name, quoted, clean, err)
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
		"\x1b[32mKEY \x1b[0m", `{"out":"\u001b[1;32mKEY \u001b[0m"}`, `\x1b[01;31m\x1b[KKEY`, `\033[1;31mKEY \033[0m`, `\e[31mKEY \e[0m`, `jdbc\:KEY\!`, `\\\u001b[32mKEY`,
	} {
		in = strings.ReplaceAll(in, "KEY", key)
		want := strings.ReplaceAll(in, key, "[REDACTED:aws-access-token]")
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q)\n got %q, %v\nwant %q", in, got, err, want)
		}
	}
}

// TestPunctuationAfterABackslash: what makes Markdown of HTML puts a backslash before signs of a token.
func TestPunctuationAfterABackslash(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, secret := range []string{github(46), "github" + "_pat_" + strings.Repeat(github(47)[4:24]+"_", 4)[:82], "glp" + "at-" + github(48)[4:24], "npm" + "_" + github(49)[4:], "ey" + token(50, "", 30) + ".ey" + token(51, "", 60) + "." + token(52, "", 43)} {
		in := "see " + strings.NewReplacer("_", `\_`, "-", `\-`, ".", `\.`).Replace(secret) + " there, a\\_b"
		if got, found, err := s.Text(context.Background(), in); err != nil || len(found) != 1 || !strings.HasPrefix(got, "see [REDACTED:") || !strings.HasSuffix(got, "] there, a\\_b") {
			t.Errorf("Text(%q) = %q, %v, %v", in, got, found, err)
		}
	}
}

// TestInvisible: the characters that Unicode says to show nothing for hide no token.
func TestInvisible(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(50)
	for r := range unicode.MaxRune {
		if !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) && (!unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Prepended_Concatenation_Mark, r) || r >= 0x13430 && r < 0x1d000) {
			continue // also format characters that draw something
		}
		in := pat[:9] + string(r) + pat[9:]
		if got, _, err := s.Text(context.Background(), in); err != nil || got != githubMark {
			t.Errorf("%U: Text(%q) = %q, %v", r, in, got, err)
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
			if got, found, err := s.Text(context.Background(), "data: "+hidden); err != nil || len(found) == 0 || len(got) > len("data: ")+len(hidden)/2+4 {
				t.Errorf("between %q and %q: Text(%q) = %q, %v", before, after, hidden, got, err)
			}
		}
	}
}

// TestWordsInBinary: digits beside those of a word are no part of it, so a rule that asks for its begin
// and its end finds it. The same holds for the 0x before hexadecimal.
func TestWordsInBinary(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, secret := range []string{github(43), "AK" + "IAQYLPMN5HHHFPZAM2", "np" + "m_" + github(44)[4:], "AI" + "za" + github(45)[4:39]} {
		texts := []string{"0x" + hex.EncodeToString([]byte(secret)), "0x" + hex.EncodeToString(packed(secret, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))}
		for _, before := range []string{"\x80", "\x01\x80", "\x01\x02\x80", "\x04\x0a\x14"} {
			for _, after := range []string{"", "\x00", "\x00\x07\x80", "\xc0\x80\x80\x81"} {
				binary := []byte(before + secret + after)
				texts = append(texts, base64.StdEncoding.EncodeToString(binary), hex.EncodeToString(binary))
			}
		}
		for _, hidden := range texts {
			if got, found, err := s.Text(context.Background(), "data: "+hidden); err != nil || len(found) == 0 || strings.Contains(got, hidden[12:24]) {
				t.Errorf("%s: Text(%q) = %q, %v, %v", secret, hidden, got, found, err)
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

// TestDecodedTexts: the texts in random runs are those that decoding each byte finds.
func TestDecodedTexts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	const alphabet64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
	found, none := 0, 0
	for range 100000 {
		random := func(from string, n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = from[rnd.IntN(len(from))]
			}
			return string(b)
		}
		alphabet, encode, n, bits := alphabet64, base64.RawStdEncoding.EncodeToString, 4, 6
		if rnd.IntN(2) == 0 {
			alphabet, encode, n, bits = alphabet64[52:62]+"abcdefABCDEF", hex.EncodeToString, 2, 4
		}
		run := random(alphabet, rnd.IntN(40)) + encode([]byte(random("plain text 123", rnd.IntN(40)))) + random(alphabet, rnd.IntN(40))
		text := random(" \t", rnd.IntN(3)) + run
		d := digits{all: run, at: len(text) - len(run)}
		for skip := range n {
			if skip > len(run) {
				break
			}
			var got, want []string
			var l edits
			l.addDecoded(text, &d, skip, n)
			for _, e := range l.all {
				got = append(got, strings.Trim(string(l.with[e.at:e.until]), ". ")) // without the signs around it
			}
			b := appendBytes(nil, run, span{skip, len(run)}, bits, len(run))
			for i := 0; i < len(b); i++ {
				from := i
				for i < len(b) && texty[b[i]] {
					i++
				}
				size := n * bits / 8
				whole := i/size - (from+size-1)/size
				if whole*size >= minDecoded && len(run) >= skip+n {
					want = append(want, strings.Trim(string(b[from:i]), ". "))
				}
			}
			if !slices.Equal(got, want) {
				t.Fatalf("texts in %q after %d digits are %q, want %q", run, skip, got, want)
			}
			found += len(want)
			if len(want) == 0 {
				none++
			}
		}
	}
	if found < 10000 || none < 10000 {
		t.Errorf("%d texts and %d runs without one, want more of both", found, none)
	}
}

// TestPartOfAnEncoding: of what encodes single characters only the secret goes.
func TestPartOfAnEncoding(t *testing.T) {
	s := newScrubber(t, Options{})
	pat := github(71)
	key := token(72, "", 24) + "q7"
	for in, want := range map[string]string{
		"&lt;a title=&quot;SECRET&quot;&gt;x &amp; y":                   "&lt;a title=&quot;" + githubMark + "&quot;&gt;x &amp; y",
		"<p>&#103;" + pat[1:] + "</p> &copy; &#8364;":                   "<p>" + githubMark + "</p> &copy; &#8364;",
		"{&quot;api_key&quot;:&quot;" + key + "&quot;,&quot;n&quot;:1}": "{&quot;api_key&quot;:&quot;[REDACTED:generic-api-key]&quot;,&quot;n&quot;:1}",
		"a=3D1 =\r\n" + pat[:20] + "=\r\n" + pat[20:] + " =C3=A9 end":   "a=3D1 =\r\n" + githubMark + " =C3=A9 end",
		"<a href=3D\"https://x.y/?t=3D" + pat + "\">x</a>=\n":           "<a href=3D\"https://x.y/?t=3D" + githubMark + "\">x</a>=\n",
	} {
		in = strings.ReplaceAll(in, "SECRET", pat)
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("Text(%q)\n got %q, %v\nwant %q", in, got, err, want)
		}
	}
}

// TestPackedBlob: a blob of packed text with a secret in it goes as a whole.
func TestPackedBlob(t *testing.T) {
	s := newScrubber(t, Options{})
	text := "password list\ntoken: " + github(73) + "\n"
	for name, b := range map[string][]byte{
		"gzip":   packed(text, func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }),
		"UTF-16": inUTF16(binary.LittleEndian, "\ufeff"+text),
		"cut":    packed(text+token(74, "", 2000), func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) })[:1000],
	} {
		for _, mime := range []string{"text/plain", "application/octet-stream"} {
			in := `{"mimeType":"` + mime + `","blob":"` + base64.StdEncoding.EncodeToString(b) + `"}`
			want := `{"mimeType":"` + mime + `","blob":"` + githubMark + `"}`
			if got, _, err := s.JSON(context.Background(), []byte(in)); err != nil || string(got) != want {
				t.Errorf("%s: JSON(%s) = %s, %v, want %s", name, in, got, err, want)
			}
		}
	}
}

// TestBombs: what runs unpack to is examined up to a bound in sum, and many runs cost no more than
// their text.
func TestBombs(t *testing.T) {
	s := newScrubber(t, Options{Timeout: time.Minute})
	bomb := base64.StdEncoding.EncodeToString(packed(strings.Repeat("\x00", 64<<20), func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
	deep := base64.StdEncoding.EncodeToString(packed(strings.Repeat(bomb[:1<<15]+" ", 200), func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
	for name, in := range map[string]string{
		"one": bomb, "two": bomb + " " + bomb, "deep": deep, "heads": strings.Repeat("H4sIAAAAAAAAA0tMSk5JTUvPyMwCAA ", 1<<14),
	} {
		x := s.begin(context.Background())
		_, _, err := x.examine(in)
		if most := maxUnpacked + 1<<16; err != nil || x.unpacked > most || x.unpacked == 0 {
			t.Errorf("%s: %d bytes unpacked, %v, want at most %d", name, x.unpacked, err, most)
		}
	}
}

// TestSignsBehindRuns: what follows a run is no part of the word that its text ends with.
func TestSignsBehindRuns(t *testing.T) {
	s := newScrubber(t, Options{})
	for n, sign := range []string{".", ":", "|", "&", "%20", "=", "==", "@", "#", "!", "é"} {
		for _, text := range []string{"password=7" + token(uint64(n), "", 15), "secret: 7" + token(uint64(n), "", 23)} {
			run := strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(text)), "=") + sign
			beside := base64.StdEncoding.EncodeToString([]byte("example of a placeholder"))
			for _, in := range []string{"the " + run + "host of all", run + "x=1;", run + "/path/to/a?b=c", run + beside} {
				if got, _, err := s.Text(t.Context(), in); err != nil || strings.Contains(got, run[:20]) {
					t.Errorf("Text(%q) of %q = %q, %v", in, text, got, err)
				}
			}
		}
	}
}

// An escape at the end of a decoded text can reach over the next one.
func TestEscapeOverRuns(t *testing.T) {
	s := newScrubber(t, Options{})
	first, next := base64.StdEncoding.EncodeToString([]byte("aaaaaaaaaaaaaaaaaaaa%1b[")), base64.StdEncoding.EncodeToString([]byte("111111111111111111111"))
	in := "é " + first + ";" + next + ";m é " + github(78)
	if got, _, err := s.Text(t.Context(), in); err != nil || strings.Contains(got, github(78)) {
		t.Errorf("Text(%q) = %q, %v", in, got, err)
	}
}

// A name before packed text is not the name of its first line.
func TestPackedAfterAName(t *testing.T) {
	s := newScrubber(t, Options{})
	for n := range uint64(60) {
		for _, name := range []string{"key=", "token=", "secret: ", `"token": "`} {
			in := name + base64.StdEncoding.EncodeToString(packed("password="+token(n, "7", 13), func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }))
			if got, _, err := s.Text(t.Context(), in); err != nil || got == in {
				t.Errorf("Text(%q) = %q, %v", in, got, err)
			}
		}
	}
}

// TestRunsBesideRuns: a secret in base64 is found, whatever run stands beside it, and so is a Discord token, whatever
// its last part encodes.
func TestRunsBesideRuns(t *testing.T) {
	s := newScrubber(t, Options{})
	r := rand.New(rand.NewPCG(9, 10))
	pick := func(all ...string) string { return all[r.IntN(len(all))] }
	secret := func(n int) string {
		return pick(github(uint64(n)), "postgres://app:7"+token(uint64(n), "", 12)+"@db/app", "DB_PASSWORD=7"+token(uint64(n), "", 20))
	}
	for i := range 2000 {
		first, second := base64.StdEncoding.EncodeToString([]byte(secret(i))), base64.RawURLEncoding.EncodeToString([]byte(secret(i+1)))
		between := pick(" ", ",", "\n", `", "`, ";x=")
		if strings.HasSuffix(first, "=") {
			between = pick(between, "")
		}
		id := base64.RawStdEncoding.EncodeToString([]byte(fmt.Sprintf("%018d", 100_000_000_000_000_000+r.IntN(1e17))))
		bot := id + "." + token(uint64(i), "", 6) + "." + pick(token(uint64(i), "", 30), base64.RawURLEncoding.EncodeToString([]byte("some text of words twice"))[:30])
		text := pick("", "secret=", "the ", "path/to/") + first + between + second + pick(" ", "\n", "") + " the " + bot + pick(`"`, " ", "\n")
		got, _, err := s.Text(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{first, second, bot} {
			if strings.Contains(got, part) {
				t.Fatalf("%q keeps %q of %q", got, part, text)
			}
		}
	}
}
