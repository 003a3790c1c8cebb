package rawjson

import "bytes"

// Member is one key/value pair of an object, as byte ranges of the input.
type Member struct {
	// Key is the key's string literal, quotes and escapes included.
	Key []byte
	// Value is the value without surrounding white space.
	Value []byte
	// Start and End delimit the pair in the input: Start is the first byte of
	// the key, End the byte after the value.
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

// Members calls yield for every member of obj in order, duplicates included,
// until yield returns false. It reports whether obj is an object that was read
// to its end (or to where yield stopped).
func Members(obj []byte, yield func(Member) bool) bool {
	i := space(obj, 0)
	if i >= len(obj) || obj[i] != '{' {
		return false
	}
	i = space(obj, i+1)
	if i < len(obj) && obj[i] == '}' {
		return true
	}
	for i < len(obj) {
		if obj[i] != '"' {
			return false
		}
		ke := stringEnd(obj, i)
		if ke < 0 {
			return false
		}
		v := space(obj, ke)
		if v >= len(obj) || obj[v] != ':' {
			return false
		}
		v = space(obj, v+1)
		ve := skip(obj, v)
		if ve < 0 {
			return false
		}
		if !yield(Member{Key: obj[i:ke], Value: obj[v:ve], Start: i, End: ve}) {
			return true
		}
		i = space(obj, ve)
		if i >= len(obj) {
			return false
		}
		if obj[i] == '}' {
			return true
		}
		if obj[i] != ',' {
			return false
		}
		i = space(obj, i+1)
	}
	return false
}

// Elements calls yield for every element of arr in order until yield returns
// false. It reports whether arr is an array that was read to its end (or to
// where yield stopped).
func Elements(arr []byte, yield func(value []byte) bool) bool {
	i := space(arr, 0)
	if i >= len(arr) || arr[i] != '[' {
		return false
	}
	i = space(arr, i+1)
	if i < len(arr) && arr[i] == ']' {
		return true
	}
	for i < len(arr) {
		e := skip(arr, i)
		if e < 0 {
			return false
		}
		if !yield(arr[i:e]) {
			return true
		}
		i = space(arr, e)
		if i >= len(arr) {
			return false
		}
		if arr[i] == ']' {
			return true
		}
		if arr[i] != ',' {
			return false
		}
		i = space(arr, i+1)
	}
	return false
}
