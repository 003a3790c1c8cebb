package rawjson

import (
	"bytes"
	"slices"
)

// Compact returns v without insignificant white space. It returns a part of v itself if there is
// none inside it. It returns all of v if v is not valid, or deeper than encoding/json reads.
func Compact(v []byte) []byte {
	if !Valid(v, 10_000) {
		return v
	}
	v = Trim(v)
	var out []byte
	from := 0 // the bytes before are in out
	for i := 0; i < len(v); {
		switch v[i] {
		case '"':
			i = stringEnd(v, i)
		case ' ', '\n', '\r', '\t':
			if out == nil {
				out = make([]byte, 0, len(v))
			}
			out = append(out, v[from:i]...)
			i = space(v, i)
			from = i
		default:
			i++
		}
	}
	if out == nil {
		return v
	}
	return append(out, v[from:]...)
}

// Set returns obj with the value at path replaced. If there is none, it adds the value as the last
// member of its object, and creates missing objects on the way. It replaces the last of duplicate
// keys, since that one counts. If obj, or a value on the way, is not an object, an object replaces
// it. All other bytes stay as they are. The result is a new slice.
func Set(obj, value []byte, path ...string) []byte {
	if len(path) == 0 {
		return bytes.Clone(value)
	}
	obj = Trim(obj)
	var at Member
	found, empty := false, true
	if !EachMember(obj, func(m Member) bool {
		empty = false
		if m.Is(path[0]) {
			at, found = m, true
		}
		return true
	}) {
		obj, at, found, empty = []byte("{}"), Member{}, false, true
	}
	if len(path) > 1 {
		value = Set(at.Value, value, path[1:]...) // an absent value becomes an object
	}
	if found {
		return slices.Concat(obj[:at.End-len(at.Value)], value, obj[at.End:])
	}
	out := make([]byte, 0, len(obj)+len(path[0])+len(value)+4)
	out = append(out, obj[:len(obj)-1]...)
	if !empty {
		out = append(out, ',')
	}
	out = AppendQuote(out, path[0])
	out = append(out, ':')
	out = append(out, value...)
	return append(out, '}')
}

// Delete returns obj without the members called name. If there is none, it returns obj itself.
func Delete(obj []byte, name string) []byte {
	return DeleteFunc(obj, func(m Member) bool { return m.Is(name) })
}

// DeleteFunc returns obj without the members for which drop returns true. If there is none, it
// returns obj itself.
func DeleteFunc(obj []byte, drop func(Member) bool) []byte {
	var keep []Member
	n := 0
	if !EachMember(obj, func(m Member) bool {
		n++
		if !drop(m) {
			keep = append(keep, m)
		}
		return true
	}) || len(keep) == n {
		return obj
	}
	out := make([]byte, 0, len(obj))
	out = append(out, '{')
	for i, m := range keep {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, obj[m.Start:m.End]...)
	}
	return append(out, '}')
}
