// Package rawjson reads and edits JSON as bytes.
//
// foldgate forwards all that it does not change byte for byte. It never decodes a message into Go
// values and encodes it again: numbers would lose precision, keys their order and lone surrogates
// their value. Instead this package finds the byte range of a value ([Get], [Members], [Elements])
// and splices a new value in its place ([Set], [Delete]).
//
// All functions expect valid JSON: call [Valid] once on foreign bytes. On invalid input they report
// "not found" and never panic. They do not recurse into values. They keep no state and are safe for
// concurrent use. Returned slices alias the input.
package rawjson

import (
	"bytes"
	"iter"
)

// Kind is the type of a JSON value, given by its first byte.
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

// KindOf returns the kind of the value at the start of v, after white space.
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

// Get returns the value at path, which follows object members. Of duplicate keys the last one
// counts, as in encoding/json and JSON.parse. For an empty path it returns the value itself,
// trimmed.
func Get(v []byte, path ...string) (value []byte, ok bool) {
	value = Trim(v)
	for _, name := range path {
		var found []byte
		for m := range Members(value) {
			if m.Is(name) {
				found = m.Value
			}
		}
		if found == nil {
			return nil, false
		}
		value = found
	}
	return value, len(value) > 0
}

// GetString returns the string at path, unquoted. ok is false if there is no string.
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

// Member is a key and its value in an object, as byte ranges of the input.
type Member struct {
	// Key is the key's string literal, quotes and escapes included.
	Key []byte
	// Value is the value without surrounding white space.
	Value []byte
	// Start is the place of the key in the input, End the place after the value.
	Start, End int
}

// Name returns the key, unquoted.
func (m Member) Name() string { return Unquote(m.Key) }

// Is reports whether the key's name is name. It allocates only for escaped keys.
func (m Member) Is(name string) bool {
	k := m.Key
	if len(k) < 2 {
		return false
	}
	if bytes.IndexByte(k, '\\') < 0 {
		return string(k[1:len(k)-1]) == name
	}
	return Unquote(k) == name
}

// Members returns the members of obj in order, duplicates included, up to the first that is not
// valid. There are none if obj is no object.
func Members(obj []byte) iter.Seq[Member] {
	return func(yield func(Member) bool) { EachMember(obj, yield) }
}

// EachMember calls yield for each of the [Members] of obj. It reports whether obj is an object, valid
// up to its end or to the member where yield stopped.
func EachMember(obj []byte, yield func(Member) bool) bool {
	i, more, ok := first(obj, '{')
	for more {
		key := stringEnd(obj, i)
		value := colon(obj, key)
		end := skip(obj, value)
		if end < 0 {
			return false
		}
		if !yield(Member{Key: obj[i:key], Value: obj[value:end], Start: i, End: end}) {
			return true
		}
		i, more, ok = next(obj, end, '}')
	}
	return ok
}

// Elements returns the elements of arr in order, up to the first that is not valid. There are none
// if arr is no array.
func Elements(arr []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		i, more, _ := first(arr, '[')
		for more {
			end := skip(arr, i)
			if end < 0 || !yield(arr[i:end]) {
				return
			}
			i, more, _ = next(arr, end, ']')
		}
	}
}

// first returns the index of the first item in the container that b starts with. more reports
// whether there is an item, ok whether b is such a container.
func first(b []byte, open byte) (i int, more, ok bool) {
	i = space(b, 0)
	if i >= len(b) || b[i] != open {
		return 0, false, false
	}
	i = space(b, i+1)
	if i < len(b) && b[i] == open+2 { // '}' is '{'+2, ']' is '['+2
		return i, false, true
	}
	return i, true, true
}

// next returns the index of the item after the one that ends at i. more reports whether there is
// one, ok whether the container goes on or ends as it should.
func next(b []byte, i int, end byte) (item int, more, ok bool) {
	i = space(b, i)
	if i >= len(b) || b[i] != ',' {
		return i, false, i < len(b) && b[i] == end
	}
	return space(b, i+1), true, true
}

// colon returns the index of the value after the key that ends at i, or -1. It is -1 if i is.
func colon(b []byte, i int) int {
	if i < 0 {
		return -1
	}
	if i = space(b, i); i >= len(b) || b[i] != ':' {
		return -1
	}
	return space(b, i+1)
}

// space returns the index of the first byte at i or after it that is not JSON white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the index after the string literal that starts at i, or -1 without one.
func stringEnd(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
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

// skip returns the index after the value at i, or -1.
func skip(b []byte, i int) int {
	if i < 0 || i >= len(b) {
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
