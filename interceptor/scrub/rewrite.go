package scrub

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
)

type dirtyString struct {
	span
	object int // start of the object, for a key; else -1
	marks  []mark
	with   []byte // replaces the whole string, or array of bytes, if not nil
}

// placedFindings are those in the string that starts at byte at.
type placedFindings struct {
	found []Finding
	at    int
}

func (d *document) note(at span, marks []mark, found []Finding) {
	if len(marks) > 0 {
		t := d.dirtyAt(at)
		if t.marks == nil {
			t.marks = marks
		} else {
			t.marks = append(t.marks, marks...)
		}
	}
	if len(found) > 0 {
		d.found = append(d.found, placedFindings{found, at.Start})
	}
}

func (d *document) dirtyAt(at span) *dirtyString {
	t := d.dirty[at.Start]
	if t == nil {
		t = &dirtyString{span: at, object: -1}
		if f := d.top(); f != nil && f.key == at {
			t.object = f.start
		}
		if d.dirty == nil {
			d.dirty = map[int]*dirtyString{}
		}
		d.dirty[at.Start] = t
	}
	return t
}

// rewrite returns the document with the marked parts of its strings replaced.
func (d *document) rewrite() []byte {
	if len(d.dirty) == 0 {
		return d.raw
	}
	type name struct {
		object int
		key    string
	}
	keys := map[name]int{}
	marks := 0
	for _, t := range d.dirty {
		marks += len(t.marks)
	}
	out := make([]byte, 0, len(d.raw)+32*marks)
	at := 0
	for _, start := range slices.Sorted(maps.Keys(d.dirty)) {
		t := d.dirty[start]
		out = append(out, d.raw[at:t.Start]...)
		at = t.End
		if t.with != nil {
			out = append(out, t.with...)
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

// appendRedacted appends the literal of t with its marks replaced. A mark that covers a part of
// an escape sequence takes all of it.
func (d *document) appendRedacted(dst []byte, t *dirtyString) []byte {
	body := d.raw[t.Start+1 : t.End-1]
	dst = append(dst, '"')
	i, pos := 0, 0 // in the literal and in its value
	// step goes on by an escape sequence, or to the next one but not beyond limit.
	step := func(limit int) {
		if body[i] == '\\' {
			r, size := rawjson.UnescapeAny(body[i:])
			i, pos = i+size, pos+utf8.RuneLen(r)
			return
		}
		plain, _, _ := bytes.Cut(body[i:min(i+limit-pos, len(body))], []byte{'\\'})
		i, pos = i+len(plain), pos+len(plain)
	}
	rule, quoted := (*rule)(nil), []byte(nil) // of the last mark
	for _, m := range merge(t.marks) {
		from, to := i, i
		for i < len(body) && pos < m.Start {
			if step(m.Start); pos <= m.Start {
				to = i
			}
		}
		dst = append(dst, body[from:to]...)
		for i < len(body) && pos < m.End {
			step(m.End)
		}
		if quoted == nil || m.rule != rule {
			rule, quoted = m.rule, rawjson.Quote(replacement(m.rule.ID))
		}
		dst = append(dst, quoted[1:len(quoted)-1]...)
	}
	dst = append(dst, body[i:]...)
	return append(dst, '"')
}

// findings returns the findings in the order of the document, with paths. The path of a key is
// that of its value.
func (d *document) findings() []Finding {
	if len(d.found) == 0 {
		return nil
	}
	slices.SortStableFunc(d.found, func(a, b placedFindings) int { return cmp.Compare(a.at, b.at) })
	left := d.found
	var path []step
	_ = rawjson.Walk(d.raw, func(t rawjson.Token) bool {
		last := len(path) - 1
		switch t.Event {
		case rawjson.ObjectEnd, rawjson.ArrayEnd:
			path = path[:last]
		case rawjson.KeyToken:
			path[last].key, path[last].hidden = d.raw[t.Start:t.End], d.dirty[t.Start] != nil
		default:
			if last >= 0 {
				path[last].index++ // of no use in an object
			}
		}
		for at := ""; len(left) > 0 && left[0].at == t.Start; left = left[1:] {
			if at == "" {
				at = fieldOf(path)
			}
			for i := range left[0].found {
				left[0].found[i].Field = at
			}
		}
		if t.Event == rawjson.ObjectStart || t.Event == rawjson.ArrayStart {
			path = append(path, step{array: t.Event == rawjson.ArrayStart, index: -1})
		}
		return len(left) > 0
	})
	if len(d.found) == 1 {
		return d.found[0].found
	}
	var out []Finding
	for _, f := range d.found {
		out = append(out, f.found...)
	}
	return out
}

type step struct {
	array  bool
	index  int
	key    []byte // its literal
	hidden bool   // the key contains a secret
}

// maxField bounds the length of a finding's path.
const maxField = 200

func fieldOf(path []step) string {
	var b strings.Builder
	b.WriteByte('$')
	for _, s := range path {
		switch name := rawjson.Unquote(s.key); {
		case b.Len() > maxField:
			b.WriteString("…")
			return b.String()
		case s.array:
			b.WriteString("[" + strconv.Itoa(s.index) + "]")
		case s.hidden:
			b.WriteString(`["[REDACTED]"]`)
		case plain(name):
			b.WriteString("." + name)
		default:
			b.WriteString("[" + strconv.Quote(name[:min(len(name), maxField)]) + "]")
		}
	}
	return b.String()
}

// plain reports whether a key can stand behind a dot.
func plain(name string) bool {
	const set = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$"
	return name != "" && len(name) <= maxField && strings.TrimLeft(name, set) == ""
}
