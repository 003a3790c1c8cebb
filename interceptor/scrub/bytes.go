package scrub

import (
	"encoding/binary"
	"strings"
	"unsafe"
)

// A byteList is bytes that are written apart in a text: as numbers, as pairs of hexadecimal digits, or as a dump, whose
// lines begin with an offset and end with the characters.
type byteList struct {
	numbers []byteNumber
	dump    bool
	next    int // where the next list may begin
}

// A byteNumber is a number in a list: a byte, or up to four bytes in hexadecimal digits.
type byteNumber struct {
	start, digits, end int32 // digits begin behind 0x
	first              bool  // in its line, in a dump behind the offset
}

// inList says which bytes lists of bytes are made of, and which of these are digits.
var inList = func() (kinds [256]uint8) {
	for _, c := range []byte(" ,:\t\r\nxX") {
		kinds[c] = listSign
	}
	for c, v := range hexDigit {
		if v != noDigit {
			kinds[c] = listDigit
		}
	}
	return kinds
}()

const (
	listSign = 1 + iota
	listDigit
)

// A list of minDecoded bytes takes 32 bytes of text or more. So one of the windows that begin each listStride bytes lies in it.
const listStride, listWindow = 24, 8

// hasLetter reports whether the window from byte i on has a letter behind f but x, or a byte that is not ASCII. Nearly all
// windows of texts do, so this test spares a branch for each byte.
func hasLetter(text string, i int) bool {
	const low7, x8, from8 = ^uint64(high8), 0x7878787878787878, 0x1919191919191919 // from8 takes 'g' and what comes behind it over 0x7f
	w := binary.LittleEndian.Uint64(unsafe.Slice(unsafe.StringData(text[i:i+listWindow]), listWindow))
	return (((w^x8)&low7+low7)&(w&low7+from8)|w)&high8 != 0
}

// mayBeList reports whether the bytes of text are numbers and signs between them.
func mayBeList(text string) bool {
	const least = 2 // digits
	digits := 0
	for _, c := range []byte(text) {
		if inList[c] == 0 {
			return false
		}
		digits += int(inList[c] >> 1)
	}
	return digits >= least && digits < len(text)
}

// nextByteList finds the next list in text from byte from on that begins before byte until. The list is valid until the
// next call.
func (x *examination) nextByteList(text string, from, until int) (l byteList, ok bool) {
	for i := from; i+listWindow <= len(text) && i < until+listStride; i += listStride {
		if hasLetter(text, i) || !mayBeList(text[i:i+listWindow]) {
			continue
		}
		at := i
		for at > from && inList[text[at-1]] != 0 {
			at--
		}
		for at < i && isWord(text, at-1) && isWord(text, at) {
			at++ // the end of a word
		}
		for at <= i && at < until {
			l = listAt(x.numbers[:0], text, at)
			if x.numbers = l.numbers; len(l.numbers) >= minDecoded/4 {
				return l, true
			}
			at = l.next + 1
		}
		from, i = at, max(i, at-listStride)
	}
	return byteList{}, false
}

// listAt reads the list that begins at byte i, into the memory of numbers.
func listAt(numbers []byteNumber, text string, i int) byteList {
	const offset, most, width, gap = 6, 8, 16, 2 // digits of an offset and of a number; bytes of a line, and blanks between them
	l := byteList{numbers: numbers}
	inLine := 0
	for i < len(text) {
		n, ok := numberAt(text, i)
		size := int(n.end - n.digits)
		switch {
		case ok && size >= offset && (n.first && l.dump || !l.dump && (n.first || len(l.numbers) == 0) && isOffset(text, n)):
			if !l.dump {
				l.numbers = l.numbers[:0] // numbers of lines above
			}
			l.dump, inLine, i = true, 0, int(n.end)
			continue
		case l.dump && inLine > 0 && (!ok || n.first || inLine >= width || int(n.start)-i > gap):
			i, inLine = lineAt(text, i).End, 0 // over the characters
			continue
		case ok && size <= most && !(l.dump && n.first):
			n.first = l.dump && inLine == 0
			l.numbers = append(l.numbers, n)
			inLine, i = inLine+max(1, size/2), int(n.end)
			continue
		}
		l.next = int(n.end)
		return l
	}
	l.next = i
	return l
}

// isOffset reports whether n, the first number of a line or list, is the offset of a dump.
func isOffset(text string, n byteNumber) bool {
	behind := text[n.end:min(int(n.end)+2, len(text))]
	return strings.HasPrefix(text[n.start:n.end], "0000") || behind == ": " || behind == "  "
}

// bytes appends the bytes of n in base 16 or 10 to dst. ok is false if n is of the other base.
func (n byteNumber) bytes(dst []byte, text string, base int) (_ []byte, ok bool) {
	digits := text[n.digits:n.end]
	if base == 10 {
		v := 0
		for _, c := range []byte(digits[:min(len(digits), 4)]) {
			v = 10*v + int(c-'0')
		}
		return append(dst, byte(v)), v <= 255 && strings.Trim(digits, "0123456789") == "" && n.digits == n.start
	}
	for k := 0; k+1 < len(digits); k += 2 {
		dst = append(dst, hexDigit[digits[k]]<<4|hexDigit[digits[k+1]])
	}
	return dst, len(digits)%2 == 0
}

// numberAt returns the number at byte i, behind signs.
func numberAt(text string, i int) (n byteNumber, ok bool) {
	n.first = i == 0 || text[i-1] == '\n'
	for i < len(text) && strings.IndexByte(" ,:\t\r\n", text[i]) >= 0 {
		n.first = n.first || text[i] == '\n'
		i++
	}
	n.start, n.end = int32(i), int32(i)
	if i > 0 && isWord(text, i-1) {
		return n, false
	}
	if i+1 < len(text) && text[i] == '0' && text[i+1]|0x20 == 'x' {
		i += len("0x")
	}
	n.digits = int32(i)
	for i < len(text) && hexDigit[text[i]] != noDigit {
		i++
	}
	n.end = int32(i)
	return n, n.end > n.digits && !isWord(text, i)
}

// appendByteLists appends the edits that put texts in the place of the lists of bytes within ranges of text, by base.
func (x *examination) appendByteLists(all []edits, text string, within []span) ([]edits, error) {
	var hexadecimal, decimal edits
	at := 0
	for _, w := range within {
		for at = max(at, w.Start); ; {
			l, ok := x.nextByteList(text, at, w.End)
			if !ok {
				break
			}
			if err := x.limit.Spend(perRun + perDigit*(l.next-int(l.numbers[0].start))); err != nil {
				return nil, err
			}
			hexadecimal.addBytes(text, &l, 16)
			if !l.dump {
				decimal.addBytes(text, &l, 10)
			}
			at = l.next
		}
	}
	for _, l := range []edits{hexadecimal, decimal} {
		if len(l.all) > 0 {
			all = append(all, l)
		}
	}
	return all, nil
}

// addBytes adds the texts in a list of numbers of a base. Those in a dump are of whole lines, with their characters.
func (l *edits) addBytes(text string, list *byteList, base int) {
	var buf [64]byte
	out, from := buf[:0], 0
	flush := func(next int) {
		if len(out) >= minDecoded {
			end := int(list.numbers[next-1].end)
			if list.dump {
				end = lineAt(text, end).End
			}
			l.add(span{int(list.numbers[from].start), end}, string(out)+" ")
		}
		out, from = out[:0], next
	}
	for i, n := range list.numbers {
		size := len(out)
		more, ok := n.bytes(out, text, base)
		for k := size; k < len(more); k++ {
			if list.dump && !texty[more[k]] {
				more[k] = '\n'
			}
			ok = ok && texty[more[k]]
		}
		switch {
		case list.dump && n.first && size > 0 && ok && (more[size-1] == '\n' || more[size] == '\n'): // no token goes over the end of the line
			flush(i)
			out = append(out, more[size:]...)
		case ok:
			out = more
		default:
			flush(i)
			from = i + 1
		}
	}
	flush(len(list.numbers))
}
