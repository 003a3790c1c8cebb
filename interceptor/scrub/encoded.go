package scrub

import (
	"encoding/binary"
	"sort"
	"strings"
	"unsafe"
)

const (
	// maxDepth is how often what was decoded is decoded again.
	maxDepth = 3
	// minDecoded is the least number of printable bytes in a row that are
	// taken for decoded text: what 16 characters of base64 hold.
	minDecoded = 12
	// Of the text around an encoded run so much is examined with it, as the
	// name before a value decides whether it is a secret.
	before, after = 64, 16

	high8 = 0x8080808080808080
	// plus8 is eight times '+', the least byte of the alphabets.
	plus8 = 0x2b2b2b2b2b2b2b2b
)

// Classes of bytes in encoded runs.
const (
	inBase64 = 1 << iota
	inHex
)

var alphabet = func() (t [256]uint8) {
	for c := range 256 {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'f', c >= 'A' && c <= 'F':
			t[c] = inBase64 | inHex
		case c >= 'g' && c <= 'z', c >= 'G' && c <= 'Z', c == '+', c == '/', c == '-', c == '_':
			t[c] = inBase64
		}
	}
	return t
}()

// A decoded text is what a part of another one says in another encoding.
type decoded struct {
	text  string
	fresh span // the part of text that was decoded; the rest is around it
	part  span // the encoded text that text stands for
	edits []edit
	at    []span // by edit: where in text its replacement is; none for a run
}

// origin maps a range of text to the range of the encoded text to redact.
func (d *decoded) origin(s span) span {
	if d.at == nil {
		return d.part // of a run the whole is redacted
	}
	return span{d.back(s.start, false), d.back(s.end, true)}
}

// touched reports whether a range of text holds what was decoded.
func (d *decoded) touched(s span) bool {
	if d.at == nil {
		return s.start < d.fresh.end && s.end > d.fresh.start
	}
	n := sort.Search(len(d.at), func(n int) bool { return d.at[n].end >= s.start-near })
	return n < len(d.at) && d.at[n].start <= s.end+near
}

// near is how far an edit may be from what it revealed: of \\nTOKEN the first
// gives \nTOKEN, and only the next one, of which nothing is in TOKEN, sets it off.
const near = 12

// back returns where byte i of text comes from: where the edit that it is in
// starts or, if up, ends.
func (d *decoded) back(i int, up bool) int {
	n := sort.Search(len(d.at), func(n int) bool { return d.at[n].end > i }) // edits before i
	switch {
	case n < len(d.at) && i > d.at[n].start && up:
		return d.edits[n].end
	case n < len(d.at) && i > d.at[n].start:
		return d.edits[n].start
	case n == 0:
		return d.part.start + i
	}
	return d.edits[n-1].end + i - d.at[n-1].end
}

// runs calls yield with every decoded base64 or hexadecimal run in text that
// overlaps within, until it returns false.
func runs(text string, within span, yield func(decoded) bool) bool {
	for at := within.start; ; {
		run, ok := nextRun(text, span{at, within.end})
		if !ok {
			return true
		}
		if !decodeRun(text, run, yield) {
			return false
		}
		at = run.end
	}
}

// nextRun returns the first run of at least 16 characters in text that
// overlaps within.
func nextRun(text string, within span) (span, bool) {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	for i := within.start; i+16 <= len(b) && i < within.end; {
		// Whatever run of 16 starts in the next 8 bytes holds all of those
		// after them.
		if w := binary.LittleEndian.Uint64(b[i+8:]); (w-plus8)&^w&high8 != 0 || w&high8 != 0 {
			i += 8
			continue
		}
		at := i + 15
		for at > i && alphabet[b[at-1]] != 0 {
			at--
		}
		if at > i+8 || alphabet[b[i+15]] == 0 {
			i = max(at, i+8)
			continue
		}
		for at > 0 && at > i-16 && alphabet[b[at-1]] != 0 {
			at--
		}
		end := runEnd(b, i+8)
		if end-at >= 16 {
			return span{at, end}, true
		}
		i = end
	}
	return span{}, false
}

// runEnd returns the end of the run that byte i is in. A run goes on after a
// line break if its line is as long as encoders make them.
func runEnd(b []byte, i int) int {
	line := i
	for {
		for i < len(b) && alphabet[b[i]] != 0 {
			i++
		}
		next := i
		if next < len(b) && b[next] == '\r' {
			next++
		}
		if i-line < 40 || next >= len(b) || b[next] != '\n' {
			return i
		}
		for next++; next < len(b) && (b[next] == ' ' || b[next] == '\t'); next++ {
		}
		if next >= len(b) || alphabet[b[next]] == 0 {
			return i
		}
		line, i = next, next
	}
}

// decodeRun yields the printable texts that a run encodes. A run may begin
// with something else, such as a path, so all alignments are tried. The next
// line may be something else too, so the lines are decoded each by itself and
// together. Hexadecimal lines are not joined.
func decodeRun(text string, run span, yield func(decoded) bool) bool {
	for at := run.start; at < run.end; {
		end := at
		for end < run.end && alphabet[text[end]]&inHex != 0 {
			end++
		}
		for skip := 0; skip < 2 && end-at >= 2*minDecoded; skip++ {
			if plausible(text, span{at, end}, skip, 2) && !stretches(text, span{at, end}, skip, 2, yield) {
				return false
			}
		}
		at = end + 1
	}
	for at, lines := run.start, 0; at < run.end; lines++ {
		line := span{at, run.end}
		if i := strings.IndexByte(text[at:run.end], '\n'); i >= 0 {
			line.end = at + i
		}
		at = line.end + 1
		if line.end < run.end && text[line.end-1] == '\r' {
			line.end--
		}
		if !aligned(text, line, false, yield) || lines == 1 && !aligned(text, run, true, yield) {
			return false
		}
	}
	return true
}

// aligned decodes a run of base64, perhaps a wrapped one, in all alignments.
func aligned(text string, run span, wrapped bool, yield func(decoded) bool) bool {
	for skip := range 4 {
		if (wrapped || plausible(text, run, skip, 4)) && !stretches(text, run, skip, 4, yield) {
			return false
		}
	}
	return true
}
