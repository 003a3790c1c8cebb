package rawjson

import (
	"bytes"
	"encoding/json"
)

// Quote returns s as a JSON string literal. Unlike json.Marshal it does not
// escape <, > and &, which would change bytes and token counts.
func Quote(s string) []byte { return AppendQuote(nil, s) }

// AppendQuote appends s as a JSON string literal to dst; see [Quote].
func AppendQuote(dst []byte, s string) []byte {
	plain := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			plain = false
			break
		}
	}
	if plain {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) // a string always encodes
	return append(dst, bytes.TrimRight(b.Bytes(), "\n")...)
}

// Marshal encodes v compactly, without HTML escaping and without a trailing
// newline. It returns "null" for values that encoding/json cannot encode.
func Marshal(v any) json.RawMessage {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if enc.Encode(v) != nil {
		return json.RawMessage("null")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}

// Compact returns v without insignificant white space: a part of v itself where
// there is none inside it, and all of v if it is not valid, or nests deeper
// than encoding/json reads.
func Compact(v []byte) []byte {
	if !Valid(v, 10_000) {
		return v
	}
	v = Trim(v)
	var out []byte
	from := 0 // of what is not in out yet
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

// Set returns obj with the value at path replaced, or added as the last member
// of its object where it is absent. Objects missing on the way are created.
// Of duplicate keys the last is replaced, which is the one that counts. All
// other bytes stay as they are. If obj, or a value on the way, is not an
// object, it is replaced by one. The result is a new slice.
func Set(obj []byte, value []byte, path ...string) []byte {
	if len(path) == 0 {
		return bytes.Clone(value)
	}
	obj = Trim(obj)
	var at Member
	found, any := false, false
	if !Members(obj, func(m Member) bool {
		any = true
		if m.Is(path[0]) {
			at, found = m, true
		}
		return true
	}) {
		obj, any, found = []byte("{}"), false, false
	}
	if found {
		inner := value
		if len(path) > 1 {
			inner = Set(at.Value, value, path[1:]...)
		}
		out := make([]byte, 0, len(obj)+len(inner))
		out = append(out, obj[:at.End-len(at.Value)]...)
		out = append(out, inner...)
		return append(out, obj[at.End:]...)
	}
	inner := value
	if len(path) > 1 {
		inner = Set([]byte("{}"), value, path[1:]...)
	}
	out := make([]byte, 0, len(obj)+len(path[0])+len(inner)+4)
	out = append(out, obj[:len(obj)-1]...)
	if any {
		out = append(out, ',')
	}
	out = AppendQuote(out, path[0])
	out = append(out, ':')
	out = append(out, inner...)
	return append(out, '}')
}

// Delete returns obj without the member at path, every duplicate of it
// included. Where there is none it returns obj itself.
func Delete(obj []byte, path ...string) []byte {
	if len(path) == 0 {
		return obj
	}
	if len(path) > 1 {
		inner, ok := Get(obj, path[0])
		if !ok {
			return obj
		}
		cut := Delete(inner, path[1:]...)
		if len(cut) == len(inner) {
			return obj
		}
		return Set(obj, cut, path[0])
	}
	return DeleteFunc(obj, func(m Member) bool { return m.Is(path[0]) })
}

// DeleteFunc returns obj without the members for which drop returns true, or
// obj itself where there is none.
func DeleteFunc(obj []byte, drop func(Member) bool) []byte {
	var keep []Member
	dropped := false
	if !Members(obj, func(m Member) bool {
		if drop(m) {
			dropped = true
		} else {
			keep = append(keep, m)
		}
		return true
	}) || !dropped {
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
