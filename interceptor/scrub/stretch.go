package scrub

import "strings"

// plausible reports whether stretches may find something in a run that is one
// line. What it finds has minDecoded bytes, 3 in a group of 4 digits and 1 in
// one of 2, so that of each so many groups in a row it holds the last one, too.
func plausible(text string, run span, skip, n int) bool {
	every := minDecoded
	if n == 4 {
		every /= 3
	}
	for run.start < run.end && alphabet[text[run.start]] == 0 {
		run.start++ // blanks before a line of a wrapped run
	}
	for i := run.start + skip + (every-1)*n; i+n <= run.end; i += every * n {
		if n == 2 {
			if texty[digits[text[i]].hex<<4|digits[text[i+1]].hex] {
				return true
			}
			continue
		}
		var bits uint32
		for _, c := range []byte(text[i : i+4]) {
			bits = bits<<6 | uint32(digits[c].base64)
		}
		if texty[byte(bits)] && texty[byte(bits>>8)] && texty[byte(bits>>16)] {
			return true
		}
	}
	return false
}

// stretches decodes a run after skip digits, in groups of n digits, and yields
// what is printable for long enough.
func stretches(text string, run span, skip, n int, yield func(decoded) bool) bool {
	var buf [256]byte
	out := buf[:0]
	from, group, bits := 0, 0, uint32(0) // of the stretch; digits read; their value
	first := run.start                   // of the group
	flush := func(end int) bool {
		if len(out) < minDecoded {
			out = out[:0]
			return true
		}
		d := around(text, span{from, end}, out)
		out = out[:0]
		return yield(d)
	}
	for i := run.start; i < run.end; i++ {
		c := text[i]
		if alphabet[c] == 0 {
			continue // a line break in a wrapped run
		}
		if skip > 0 {
			skip--
			continue
		}
		if group == 0 {
			first = i
		}
		if n == 4 {
			bits = bits<<6 | uint32(digits[c].base64)
		} else {
			bits = bits<<4 | uint32(digits[c].hex)
		}
		if group++; group < n {
			continue
		}
		group = 0
		if texty[byte(bits)] && (n == 2 || texty[byte(bits>>8)] && texty[byte(bits>>16)]) {
			if len(out) == 0 {
				from = first
			}
			if n == 4 {
				out = append(out, byte(bits>>16), byte(bits>>8))
			}
			out = append(out, byte(bits))
			bits = 0
			continue
		}
		bits = 0
		if !flush(first) {
			return false
		}
	}
	if n == 4 && len(out) > 0 {
		out = appendRest(out, bits, group)
	}
	end := run.end // and the padding
	for end < len(text) && text[end] == '=' && end < run.end+2 {
		end++
	}
	return flush(end)
}

// appendRest appends what the last digits of base64 hold, which are n < 4.
func appendRest(out []byte, digits uint32, n int) []byte {
	digits <<= 6 * (4 - n)
	for k := range n - 1 {
		if c := byte(digits >> (16 - 8*k)); texty[c] {
			out = append(out, c)
		}
	}
	return out
}

// printable reports whether c is printable ASCII or white space.
func printable(c byte) bool { return c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' }

// texty holds the bytes of decoded text: printable ASCII, and those of the
// usual invisible characters.
var texty = func() (t [256]bool) {
	for c := range 256 {
		t[c] = printable(byte(c))
	}
	for _, c := range []byte("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff") {
		t[c] = true
	}
	return t
}()

// around returns plain, which part of text encodes, with the text around it.
func around(text string, part span, plain []byte) decoded {
	pre := text[max(0, part.start-before):part.start]
	if i := strings.LastIndexByte(pre, '\n'); i >= 0 {
		pre = pre[i+1:]
	}
	post := text[part.end:min(len(text), part.end+after)]
	b := make([]byte, 0, len(pre)+len(plain)+len(post))
	b = append(append(append(b, pre...), plain...), post...)
	return decoded{text: view(b), fresh: span{len(pre), len(pre) + len(plain)}, part: part}
}

// digits holds the value of a byte as a base64 digit, of both alphabets, and
// above it as a hexadecimal digit.
var digits = func() (t [256]struct{ base64, hex uint8 }) {
	const std = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := range std {
		t[std[i]].base64 = uint8(i)
	}
	t['-'].base64, t['_'].base64 = 62, 63
	for i := range 16 {
		t["0123456789abcdef"[i]].hex = uint8(i)
		t["0123456789ABCDEF"[i]].hex = uint8(i)
	}
	return t
}()
