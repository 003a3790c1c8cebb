package rawjson

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

var literals = []string{
	`""`, `"a"`, `"\n"`, `"a\"b\\c\/d\b\f\r\t"`, `"\u00e9\uD83D\uDE00"`, `"\ud800"`, `"\ud800\ud800x"`, `"\udc00\ud83d\ude00"`, `"\ud83d\n"`,
	`"\`, `"\"`, `"\u12"`, `"\u123g"`, `"\x"`, `"a\n"b"`, "\"\\n\x01\"", "\"\\n\xff\xe2\x82\"", `"` + strings.Repeat(`line\n`, 50) + `"`, `x`, ``, `"`,
}

// Property: a literal with an escape is read as encoding/json reads it, and
// what encoding/json refuses is "".
func FuzzUnquote(f *testing.F) {
	for _, s := range literals {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, lit []byte) {
		if len(lit) == 0 || lit[0] != '"' || !strings.Contains(string(lit), `\`) || lit[len(lit)-1] != '"' {
			return // white space around it, or nothing to unescape
		}
		var want string
		if json.Unmarshal(lit, &want) != nil {
			want = ""
		}
		if got := Unquote(lit); got != want {
			t.Errorf("Unquote(%q) = %q, want %q", lit, got, want)
		}
		if got := AppendUnquote([]byte("x"), lit); string(got) != "x"+want {
			t.Errorf("AppendUnquote(x, %q) = %q, want x%q", lit, got, want)
		}
	})
}

// Property: AppendUnescaped replaces each escape sequence alone, at every place of the bytes that it copies at once.
func FuzzAppendUnescaped(f *testing.F) {
	for _, s := range literals {
		f.Add([]byte(s), uint8(0))
		f.Add([]byte(s+"0123456789abcdef"+s), uint8(13))
	}
	f.Fuzz(func(t *testing.T, body []byte, shift uint8) {
		body = append([]byte(strings.Repeat("p", int(shift)%32)), body...)
		want := []byte("x")
		for rest := body; len(rest) > 0; {
			if rest[0] != '\\' {
				want, rest = append(want, rest[0]), rest[1:]
				continue
			}
			r, n := UnescapeAny(rest)
			want, rest = utf8.AppendRune(want, r), rest[n:]
		}
		got, valid := AppendUnescaped([]byte("x"), body)
		if string(got) != string(want) {
			t.Errorf("AppendUnescaped(x, %q) = %q, want %q", body, got, want)
		}
		lit := append(append([]byte{'"'}, body...), '"')
		if end := validString(lit, 0); valid != (end == len(lit)) {
			t.Errorf("AppendUnescaped(x, %q) says that it is valid: %t", body, valid)
		}
	})
}

func BenchmarkUnquote(b *testing.B) {
	lit := Quote(strings.Repeat("if token == nil { return errors.New(\"no secret\") }\n", 80))
	b.SetBytes(int64(len(lit)))
	b.ReportAllocs()
	for b.Loop() {
		Unquote(lit)
	}
}
