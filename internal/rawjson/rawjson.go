// Package rawjson reads and edits JSON as bytes.
//
// foldgate forwards what it has no reason to change byte for byte, so it never
// decodes a message into Go values and encodes it again: numbers would lose
// precision, keys their order and lone surrogates their value. Instead this
// package finds the byte range of a value ([Get], [Members], [Elements]) and
// splices a new value in its place ([Set], [Delete]).
//
// All functions expect syntactically valid JSON; call [Valid] once on foreign
// bytes. On invalid input they report "not found" and never panic. Nesting is
// handled without recursion, so depth costs nothing. Nothing here keeps state;
// all functions are safe for concurrent use. Returned slices alias the input.
package rawjson

import (
	"bytes"
)

// Kind is the type of a JSON value, named by its first byte.
type Kind byte

// The kinds of JSON values. Number stands for every first byte of a number.
const (
	Invalid Kind = 0
	Object  Kind = '{'
	Array   Kind = '['
	String  Kind = '"'
	Number  Kind = '0'
	True    Kind = 't'
	False   Kind = 'f'
	Null    Kind = 'n'
)

// KindOf returns the kind of the value that v starts with, white space skipped.
func KindOf(v []byte) Kind {
	i := space(v, 0)
	if i >= len(v) {
		return Invalid
	}
	switch c := v[i]; {
	case c == '{' || c == '[' || c == '"' || c == 't' || c == 'f' || c == 'n':
		return Kind(c)
	case c == '-' || (c >= '0' && c <= '9'):
		return Number
	}
	return Invalid
}

// space returns the index of the first byte at or after i that is not JSON white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the index after the string literal that starts at i, or -1.
func stringEnd(b []byte, i int) int {
	for i++; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		j := i + n
		esc := 0
		for k := j - 1; k >= i && b[k] == '\\'; k-- {
			esc++
		}
		i = j + 1
		if esc%2 == 0 {
			return i
		}
	}
}

// skip returns the index after the value that starts at i (no leading white space), or -1.
func skip(b []byte, i int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		depth := 0
		for i < len(b) {
			switch b[i] {
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			case '"':
				if i = stringEnd(b, i); i < 0 {
					return -1
				}
				continue
			}
			i++
		}
		return -1
	case '}', ']', ',', ':':
		return -1
	}
	for i < len(b) {
		switch b[i] {
		case ',', '}', ']', ' ', '\n', '\r', '\t', ':':
			return i
		}
		i++
	}
	return i
}

// Get returns the value at path, following object members. Where a key occurs
// more than once the last one counts, as in encoding/json and JSON.parse. A
// path of no keys returns the value itself, trimmed.
func Get(v []byte, path ...string) (value []byte, ok bool) {
	value = Trim(v)
	for _, name := range path {
		var found []byte
		Members(value, func(m Member) bool {
			if m.Is(name) {
				found = m.Value
			}
			return true
		})
		if found == nil {
			return nil, false
		}
		value = found
	}
	return value, len(value) > 0
}

// GetString returns the string at path, unquoted; ok is false where there is
// no value or it is not a string.
func GetString(v []byte, path ...string) (s string, ok bool) {
	raw, ok := Get(v, path...)
	if !ok || KindOf(raw) != String {
		return "", false
	}
	return Unquote(raw), true
}

// Trim returns v without surrounding JSON white space.
func Trim(v []byte) []byte {
	v = v[space(v, 0):]
	for n := len(v); n > 0 && (v[n-1] == ' ' || v[n-1] == '\n' || v[n-1] == '\r' || v[n-1] == '\t'); n = len(v) {
		v = v[:n-1]
	}
	return v
}

// Depth returns how deep arrays and objects in b nest: 0 for a scalar.
func Depth(b []byte) int {
	depth, deepest := 0, 0
	for i := 0; i < len(b); {
		switch b[i] {
		case '{', '[':
			if depth++; depth > deepest {
				deepest = depth
			}
		case '}', ']':
			depth--
		case '"':
			if i = stringEnd(b, i); i < 0 {
				return deepest
			}
			continue
		}
		i++
	}
	return deepest
}
