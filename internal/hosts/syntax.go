package hosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
)

// syntax edits the files of one syntax. Errors name the line, and never quote a value.
type syntax interface {
	// decode returns the file's values. An empty file has none.
	decode(data []byte) (map[string]any, error)
	// names returns the names in the mapping at path, in the order of the file.
	names(data []byte, path []string) ([]string, error)
	// set adds an entry, after all others, or replaces its value. It creates the mappings around it.
	set(data []byte, at entry, e object) ([]byte, error)
	// text returns the source of an entry, for paste.
	text(data []byte, at entry) ([]byte, error)
	// paste adds an entry with the source of another text of the same syntax.
	paste(data []byte, at entry, source []byte) ([]byte, error)
	// remove takes an entry out. With empty set it also takes out a mapping that is left empty.
	remove(data []byte, at entry, empty bool) ([]byte, error)
}

// object is a mapping whose order counts. Values are strings, booleans, whole numbers, lists of
// strings, and objects.
type object []field

type field struct {
	key   string
	value any
}

// plain returns the mapping without its order.
func (o object) plain() map[string]any {
	m := map[string]any{}
	for _, f := range o {
		if inner, ok := f.value.(object); ok {
			m[f.key] = inner.plain()
		} else {
			m[f.key] = f.value
		}
	}
	return m
}

// lookup returns the mapping at path, nil if there is none.
func lookup(m map[string]any, path []string) map[string]any {
	for _, key := range path {
		m, _ = m[key].(map[string]any)
	}
	return m
}

// verify checks an edit: after must be before, but for the entries that it touches. want is the value that
// foldgate's entry must have; nil is any.
func (h Host) verify(before, after []byte, touched []entry, want object) error {
	unsafe := func(err error) error {
		return fmt.Errorf("this file can't be changed safely (%w); add the entry by hand: --print shows it", err)
	}
	was, err := h.syntax.decode(before)
	if err != nil {
		return err
	}
	is, err := h.syntax.decode(after)
	if err != nil {
		return unsafe(err)
	}
	if want != nil {
		got, err := json.Marshal(lookup(is, h.table())[Entry])
		if err != nil {
			return unsafe(err)
		}
		wanted, err := json.Marshal(want.plain())
		if err != nil {
			return err
		}
		if !bytes.Equal(got, wanted) {
			return unsafe(fmt.Errorf("%s would not be as it should", Entry))
		}
	}
	for _, t := range touched {
		strip(was, t)
		strip(is, t)
	}
	if !reflect.DeepEqual(was, is) {
		return unsafe(fmt.Errorf("something else would change"))
	}
	return nil
}

// strip removes an entry and the mappings that are empty without it.
func strip(m map[string]any, e entry) {
	if len(e) == 1 {
		delete(m, e[0])
		return
	}
	inner, ok := m[e[0]].(map[string]any)
	if ok {
		strip(inner, e[1:])
	}
	if m[e[0]] == nil || ok && len(inner) == 0 {
		delete(m, e[0])
	}
}

// newline is the end of a line in data.
func newline(data []byte) string {
	if bytes.Contains(data, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}

// lineOf returns the number of the line at offset, and lineStart that line's first offset.
func lineOf(data []byte, offset int) int { return 1 + bytes.Count(data[:offset], []byte("\n")) }

func lineStart(data []byte, offset int) int { return bytes.LastIndexByte(data[:offset], '\n') + 1 }

// indentAt returns the white space at the start of the line at offset.
func indentAt(data []byte, offset int) string {
	line := data[lineStart(data, offset):offset]
	return string(line[:len(line)-len(bytes.TrimLeft(line, " \t"))])
}

// replace returns data with the bytes from start to end replaced.
func replace(data []byte, start, end int, by string) []byte {
	return slices.Concat(data[:start], []byte(by), data[end:])
}

// trimmed returns the length of text without white space at its end.
func trimmed(text []byte) int { return len(bytes.TrimRight(text, " \t\r\n")) }
