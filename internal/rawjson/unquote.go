package rawjson

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Unquote returns the value of a string literal, or "" if lit is not one. Lone
// surrogates become U+FFFD, as in encoding/json: use the result to compare or
// to read, and the literal itself to forward.
func Unquote(lit []byte) string {
	if len(lit) >= 2 && lit[0] == '"' && lit[len(lit)-1] == '"' && bytes.IndexByte(lit, '\\') < 0 {
		return string(lit[1 : len(lit)-1])
	}
	value := AppendUnquote(nil, lit)
	return unsafe.String(unsafe.SliceData(value), len(value)) // nobody else has it
}

// AppendUnquote appends the value of a string literal to dst, nothing if lit is
// not one; see [Unquote].
//
// It copies what stands between escapes in one piece: every text that is
// counted passes here, and encoding/json, which reads it byte by byte three
// times, was a fifth of the cost of a call.
func AppendUnquote(dst, lit []byte) []byte {
	if len(lit) < 2 || lit[0] != '"' || lit[len(lit)-1] != '"' {
		return dst
	}
	body := lit[1 : len(lit)-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return append(dst, body...)
	}
	start := len(dst)
	dst = slices.Grow(dst, len(body))
	for {
		i := plain(body, 0)
		dst = append(dst, body[:i]...)
		if i == len(body) {
			break
		}
		r, n := Unescape(body[i:])
		if n == 0 {
			return dst[:start] // no escape, or a quote or control character, which must be one
		}
		dst = utf8.AppendRune(dst, r)
		body = body[i+n:]
	}
	if !utf8.Valid(dst[start:]) {
		var s string
		_ = json.Unmarshal(lit, &s) // it was read to its end: what is left is replacing bytes
		return append(dst[:start], s...)
	}
	return dst
}

// Unescape returns what the escape sequence at the start of s stands for, and
// its length; 0 if there is none, as in a string that [Valid] refuses. A lone
// surrogate stands for U+FFFD.
func Unescape(s []byte) (r rune, n int) {
	if len(s) < 2 || s[0] != '\\' {
		return 0, 0
	}
	switch s[1] {
	case '"', '\\', '/':
		return rune(s[1]), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		r = hex4(s)
		if r < 0 {
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
	return 0, 0
}

// hex4 reads an escape of the form \uXXXX at the start of s; -1 if it is none.
func hex4(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	r := rune(0)
	for _, c := range s[2:6] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
