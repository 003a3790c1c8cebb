package scrub

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// margin is how much of the text around an escape is examined with it.
const margin = 256

// An edit replaces a range of a text by a few bytes, or by none.
type edit struct {
	span
	with string
}

// escapes calls yield with the parts of text, around within, that read
// differently once %41, \u0041, \x41, \n, \" and \/ are decoded and invisible
// characters and the colors of terminals removed, until it returns false.
func escapes(text string, within span, yield func(decoded) bool) bool {
	edits := appendEdits(nil, text, within)
	for len(edits) > 0 {
		// Escapes that are near each other are decoded together.
		n := 1
		for n < len(edits) && edits[n].start-edits[n-1].end < 2*margin {
			n++
		}
		from := widen(text, edits[0].start, -1)
		to := widen(text, edits[n-1].end, +1)
		if !yield(apply(text, span{from, to}, edits[:n])) {
			return false
		}
		edits = edits[n:]
	}
	return true
}

// widen moves at by a margin and on to the next white space, if there is some
// soon: what is cut in a word could look like a word of its own.
func widen(text string, at, step int) int {
	end := len(text)
	if step < 0 {
		end = 0
	}
	for n := 0; n < 4*margin && at != end; n++ {
		if c := text[min(at, at+step)]; n >= margin && (c == ' ' || c == '\n' || c == '\t') {
			break
		}
		at += step
	}
	return at
}

func appendEdits(edits []edit, text string, within span) []edit {
	for _, special := range []byte{'%', '\\', esc} {
		for at := within.start; at < within.end; at++ {
			i := strings.IndexByte(text[at:within.end], special)
			if i < 0 {
				break
			}
			at += i
			if e, ok := escapeAt(text, at); ok {
				edits = append(edits, e)
				at = e.end - 1
			} else if special == '\\' && at+1 < within.end && text[at+1] == '\\' {
				at++ // \\u0041 is no escape of A
			}
		}
	}
	edits = appendInvisible(edits, text, within)
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(a.start, b.start) })
	return edits
}

// escapeAt returns the edit for the escape at byte i, if it stands for a
// character that a secret may hold.
func escapeAt(text string, i int) (edit, bool) {
	switch text[i] {
	case '%':
		return hexEscape(text, i, 1, 2)
	case esc:
		return colorAt(text, span{i, i + 1})
	}
	if i+1 >= len(text) {
		return edit{}, false
	}
	switch c := text[i+1]; c {
	case '"', '/', '\'':
		return edit{span{i, i + 2}, string(c)}, true
	case 'n', 'r', 't', 'f', 'b': // the letter is no part of the word that follows
		return edit{span{i, i + 2}, blanks[c]}, true
	case 'u', 'U':
		return hexEscape(text, i, 2, 4)
	case 'x', 'X':
		return hexEscape(text, i, 2, 2)
	case '\\':
		// Two of them: JSON in JSON in JSON.
		if i+2 < len(text) && strings.IndexByte(`"/unrtfb\`, text[i+2]) >= 0 {
			return edit{span{i, i + 2}, `\`}, true
		}
	}
	return edit{}, false
}

// blanks are the escapes of white space in JSON and its kin.
var blanks = [256]string{'n': "\n", 'r': "\r", 't': "\t", 'f': " ", 'b': " "}

// hexEscape reads n hexadecimal digits skip bytes after i.
func hexEscape(text string, i, skip, n int) (edit, bool) {
	if i+skip+n > len(text) {
		return edit{}, false
	}
	v := 0
	for _, c := range []byte(text[i+skip : i+skip+n]) {
		if alphabet[c]&inHex == 0 {
			return edit{}, false
		}
		v = v<<4 | int(digits[c].hex)
	}
	e := edit{span: span{i, i + skip + n}}
	switch {
	case v == esc:
		return colorAt(text, e.span)
	case v < utf8.RuneSelf:
		e.with = string(rune(v))
		return e, printable(byte(v))
	case n == 4:
		return e, invisible(rune(v))
	}
	// A byte of a longer character, which may be an invisible one.
	e.with = string([]byte{byte(v)})
	return e, true
}

// esc begins the sequences by which terminals color text.
const esc = 0x1b

// colorAt returns the edit that removes the sequence of which start is the
// first character, if it is one.
func colorAt(text string, start span) (edit, bool) {
	end := start.end
	if end == len(text) || text[end] != '[' {
		return edit{}, false
	}
	for end++; end < len(text) && (text[end] >= '0' && text[end] <= '9' || text[end] == ';' || text[end] == ':'); end++ {
	}
	if end == len(text) || text[end] != 'm' && text[end] != 'K' {
		return edit{}, false
	}
	return edit{span{start.start, end + 1}, ""}, true
}

// invisible reports whether r is a character that shows nothing, so that a
// token with it inside still reads like a token.
func invisible(r rune) bool {
	switch r {
	case 0x00ad, 0x034f, 0x061c, 0x180e, 0xfeff:
		return true
	}
	return r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x2064 ||
		r >= 0x2066 && r <= 0x2069 || r >= 0xfe00 && r <= 0xfe0f || r >= 0xe0000 && r <= 0xe007f
}

func appendInvisible(edits []edit, text string, within span) []edit {
	if ascii(text[within.start:within.end]) {
		return edits
	}
	for i := within.start; i < within.end; {
		if text[i] < utf8.RuneSelf {
			if i++; i+8 <= within.end && ascii(text[i:i+8]) {
				i += 8
			}
			continue
		}
		r, size := utf8.DecodeRuneInString(text[i:])
		if invisible(r) {
			edits = append(edits, edit{span{i, i + size}, ""})
		}
		i += size
	}
	return edits
}

// apply returns part of text with the edits, which are in order, made.
func apply(text string, part span, edits []edit) decoded {
	var b strings.Builder
	b.Grow(part.end - part.start)
	// The n-th edit's replacement is at[n] in the result.
	at := make([]span, len(edits))
	pos := part.start
	for n, e := range edits {
		b.WriteString(text[pos:e.start])
		at[n].start = b.Len()
		b.WriteString(e.with)
		at[n].end = b.Len()
		pos = e.end
	}
	b.WriteString(text[pos:part.end])
	return decoded{text: b.String(), fresh: span{0, b.Len()}, part: part, edits: edits, at: at}
}
