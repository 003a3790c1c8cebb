package rawjson

import (
	"bytes"
	"encoding/json"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Quote returns s as a JSON string literal. Unlike json.Marshal it does not escape <, > and &,
// which would change bytes and token counts.
func Quote(s string) []byte { return AppendQuote(nil, s) }

// AppendQuote appends s as a JSON string literal to dst; see [Quote].
func AppendQuote(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			return append(dst, Marshal(s)...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// Marshal encodes v compactly, without HTML escaping and without a trailing newline. It returns
// "null" for values that encoding/json cannot encode.
func Marshal(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return json.RawMessage("null")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// Unquote returns the value of a string literal, or "" if lit is not one. A lone surrogate becomes
// U+FFFD, as in encoding/json: use the result to compare or to read, and the literal itself to
// forward.
func Unquote(lit []byte) string {
	if len(lit) >= 2 && lit[0] == '"' && lit[len(lit)-1] == '"' && bytes.IndexByte(lit, '\\') < 0 {
		return string(lit[1 : len(lit)-1])
	}
	value := AppendUnquote(nil, lit)
	return unsafe.String(unsafe.SliceData(value), len(value)) // value has no other reference
}

// AppendUnquote appends the value of a string literal to dst, or nothing if lit is not one; see
// [Unquote].
//
// Every counted text passes here, and encoding/json, which reads it byte by byte three times, took a fifth of
// the time of a call.
func AppendUnquote(dst, lit []byte) []byte {
	if len(lit) < 2 || lit[0] != '"' || lit[len(lit)-1] != '"' {
		return dst
	}
	body := lit[1 : len(lit)-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return append(dst, body...)
	}
	value, valid := AppendUnescaped(dst, body)
	if !valid {
		return dst
	}
	if !utf8.Valid(value[len(dst):]) {
		var s string
		_ = json.Unmarshal(lit, &s) // valid but for bytes that it replaces
		return append(dst, s...)
	}
	return value
}

// AppendUnescaped appends body, which is what a string literal has between its quotation marks, and replaces
// its escape sequences by their characters; see [UnescapeAny]. It reports whether the literal is valid.
func AppendUnescaped(dst, body []byte) (value []byte, valid bool) {
	valid = true
	size := len(dst) + len(body) + atOnce
	dst = slices.Grow(dst, len(body)+atOnce)
	out := dst[len(dst):size]
	for {
		n, read := unescapeShort(out, body)
		out, body = out[n:], body[read:]
		if len(body) == 0 {
			return dst[:size-len(out)], valid
		}
		if c := body[0]; c == '\\' {
			r, length := Unescape(body)
			if length == 0 {
				valid = false
				r, length = UnescapeAny(body)
			}
			out, body = out[utf8.EncodeRune(out, r):], body[length:]
		} else {
			valid = valid && c >= 0x20 && c != '"'
			out[0] = body[0]
			out, body = out[1:], body[1:]
		}
	}
}

// atOnce is how many bytes unescapeShort copies at once, also those behind something special.
const atOnce = 16

// unescapeShort writes body to out and decodes two-byte escapes. It stops at any other special byte and near
// the end of body. It returns how many bytes it wrote and read.
func unescapeShort(out, body []byte) (n, read int) {
	for read+atOnce <= len(body) && n+atOnce <= len(out) {
		from, to := body[read:read+atOnce:read+atOnce], out[n:n+atOnce:n+atOnce]
		*(*[atOnce]byte)(to) = [atOnce]byte(from)
		found, plain := special(from), 0
		if found == 0 {
			if found, plain = special(from[8:]), 8; found == 0 {
				n, read = n+atOnce, read+atOnce
				continue
			}
		}
		plain += bits.TrailingZeros64(found) / 8
		n, read = n+plain, read+plain
		if body[read] != '\\' || read+1 == len(body) || escapes[body[read+1]] == 0 {
			break
		}
		out[n] = escapes[body[read+1]]
		n, read = n+1, read+2
	}
	return n, read
}

// Unescape returns the character of the escape sequence at the start of s, and the length of the
// sequence. The length is 0 without one. The character of a lone surrogate is U+FFFD.
func Unescape(s []byte) (r rune, n int) {
	if len(s) < 2 || s[0] != '\\' {
		return 0, 0
	}
	if c := escapes[s[1]]; c != 0 {
		return rune(c), 2
	}
	if s[1] != 'u' {
		return 0, 0
	}
	if r = hex4(s); r < 0 {
		return 0, 0
	}
	if !utf16.IsSurrogate(r) {
		return r, 6
	}
	if whole := utf16.DecodeRune(r, hex4(s[6:])); whole != utf8.RuneError {
		return whole, 12
	}
	return utf8.RuneError, 6
}

// UnescapeAny is [Unescape] for bytes that begin with a backslash and may not be valid JSON. A broken sequence
// stands for the character after the backslash: a reader may read it so.
func UnescapeAny(s []byte) (r rune, n int) {
	if r, n = Unescape(s); n > 0 {
		return r, n
	}
	n = min(2, len(s))
	return rune(s[n-1]), n
}

// escapes has the characters of the escape sequences of two bytes, by the second one.
var escapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// hex4 returns the code of the escape \uXXXX at the start of s, or -1.
func hex4(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	code, err := strconv.ParseUint(string(s[2:6]), 16, 16)
	if err != nil {
		return -1
	}
	return rune(code)
}
