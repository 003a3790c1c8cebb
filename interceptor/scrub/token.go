package scrub

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// view returns b as a string without a copy. b must not change while it is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// decode returns the value of a string literal.
func (d *document) decode(t quoted) string {
	var own []byte
	return d.decodeIn(&own, t)
}

// decodeIn returns the value of a string literal, for as long as buf holds it.
func (d *document) decodeIn(buf *[]byte, t quoted) string {
	body := d.raw[t.start+1 : t.end-1]
	if bytes.IndexByte(body, '\\') < 0 {
		return view(body)
	}
	out := slices.Grow((*buf)[:0], len(body))
	for len(body) > 0 {
		n := bytes.IndexByte(body, '\\')
		if n < 0 {
			n = len(body)
		}
		out = append(out, body[:n]...)
		if body = body[n:]; len(body) > 0 {
			r, size := escape(body)
			out = utf8.AppendRune(out, r)
			body = body[size:]
		}
	}
	*buf = keep(out)
	return view(out)
}

// escape returns the character of the escape sequence that b starts with, and
// the sequence's length. Of a broken one the backslash is left out: whoever
// reads the string may read the rest.
func escape(b []byte) (r rune, size int) {
	if r, size = rawjson.Unescape(b); size > 0 {
		return r, size
	}
	if len(b) < 2 {
		return '\\', 1
	}
	return rune(b[1]), 2
}

// rewrite returns the document with the marked parts of its strings replaced.
func (d *document) rewrite() []byte {
	type name struct {
		object int
		key    string
	}
	keys := map[name]int{}
	out := make([]byte, 0, len(d.raw)+64*len(d.dirty))
	at := 0
	for _, start := range slices.Sorted(maps.Keys(d.dirty)) {
		t := d.dirty[start]
		out = append(out, d.raw[at:t.start]...)
		at = t.end
		if t.blob != "" {
			out = rawjson.AppendQuote(out, t.blob)
			continue
		}
		from := len(out)
		out = d.appendRedacted(out, t)
		if t.object >= 0 {
			n := name{t.object, string(out[from:])}
			if keys[n]++; keys[n] > 1 {
				out = append(out[:len(out)-1], '#')
				out = strconv.AppendInt(out, int64(keys[n]), 10)
				out = append(out, '"')
			}
		}
	}
	return append(out, d.raw[at:]...)
}

// appendRedacted appends the literal of t with its marks replaced. A mark that
// covers a part of an escape sequence takes all of it.
func (d *document) appendRedacted(dst []byte, t *stringToken) []byte {
	body := d.raw[t.start+1 : t.end-1]
	dst = append(dst, '"')
	i, pos := 0, 0 // in the literal and in the decoded text
	// step goes on by an escape sequence, or to the next one, but not beyond limit.
	step := func(limit int) {
		if body[i] == '\\' {
			r, size := escape(body[i:])
			i, pos = i+size, pos+utf8.RuneLen(r)
			return
		}
		plain := body[i:min(i+limit-pos, len(body))] // and no further: there may be many marks
		n := bytes.IndexByte(plain, '\\')
		if n < 0 {
			n = len(plain)
		}
		i, pos = i+n, pos+n
	}
	for _, m := range merge(t.marks) {
		from, to := i, i
		for i < len(body) && pos < m.start {
			if step(m.start); pos <= m.start {
				to = i
			}
		}
		dst = append(dst, body[from:to]...)
		for i < len(body) && pos < m.end {
			step(m.end)
		}
		quoted := rawjson.Quote(replacement(m.rule))
		dst = append(dst, quoted[1:len(quoted)-1]...)
	}
	dst = append(dst, body[i:]...)
	return append(dst, '"')
}

// maxWhere bounds the length of a finding's path.
const maxWhere = 200

// findings returns what was found, in the order of the document, each with the
// path of its string. The path of a key is that of its value.
func (d *document) findings() []Finding {
	if len(d.found) == 0 {
		return nil
	}
	slices.SortStableFunc(d.found, func(a, b placed) int { return cmp.Compare(a.at, b.at) })
	out := make([]Finding, 0, len(d.found))
	next := 0
	var path []step
	_ = rawjson.Walk(d.raw, func(t rawjson.Token) bool {
		switch t.Event {
		case rawjson.ObjectStart, rawjson.ArrayStart:
			advance(path)
			path = append(path, step{array: t.Event == rawjson.ArrayStart, index: -1})
		case rawjson.ObjectEnd, rawjson.ArrayEnd:
			path = path[:len(path)-1]
		case rawjson.KeyToken:
			s := &path[len(path)-1]
			s.key, s.hidden = d.raw[t.Start:t.End], d.dirty[t.Start] != nil
		default:
			advance(path)
		}
		for ; next < len(d.found) && d.found[next].at == t.Start; next++ {
			f := d.found[next].Finding
			f.Where = where(path)
			out = append(out, f)
		}
		return next < len(d.found)
	})
	return out
}

// A step is one level of a path.
type step struct {
	array  bool
	index  int
	key    []byte // literal
	hidden bool   // the key holds a secret
}

// advance counts an element if path ends in an array.
func advance(path []step) {
	if n := len(path); n > 0 && path[n-1].array {
		path[n-1].index++
	}
}

func where(path []step) string {
	var b strings.Builder
	b.WriteByte('$')
	for _, s := range path {
		switch name := rawjson.Unquote(s.key); {
		case b.Len() > maxWhere:
			b.WriteString("…")
			return b.String()
		case s.array:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case s.hidden:
			b.WriteString(`["[REDACTED]"]`)
		case plain(name):
			b.WriteString("." + name)
		default:
			b.WriteString("[" + strconv.Quote(name[:min(len(name), maxWhere)]) + "]")
		}
	}
	return b.String()
}

// plain reports whether a key can stand behind a dot.
func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c != '_' && c != '$' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
			return false
		}
	}
	return name != "" && len(name) <= maxWhere
}
