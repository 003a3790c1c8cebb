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
	s := stretch{text: text, yield: yield, out: buf[:0]}
	group, bits := 0, uint32(0) // digits read; their value
	first := run.start          // of the group
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
		whole := texty[byte(bits)] && (n == 2 || texty[byte(bits>>8)] && texty[byte(bits>>16)])
		switch {
		case whole && n == 4:
			if len(s.out) == 0 {
				s.begin(first)
			}
			s.out = append(s.out, byte(bits>>16), byte(bits>>8), byte(bits))
		case whole:
			if len(s.out) == 0 {
				s.from = first
			}
			s.out = append(s.out, byte(bits))
		case n == 4 && !s.tear(bits, span{first, i + 1}), n == 2 && !s.flush(first):
			return false
		}
		group, bits = 0, 0
	}
	if n == 4 && len(s.out) > 0 {
		s.out = appendRest(s.out, bits, group)
	}
	end := run.end // and the padding
	for end < len(text) && text[end] == '=' && end < run.end+2 {
		end++
	}
	return s.flush(end)
}

// A stretch is printable text in a run, as far as it is decoded. In binary data
// a text begins and ends anywhere in a group of base64, so it has what the
// groups around it hold of it.
type stretch struct {
	text  string
	yield func(decoded) bool
	out   []byte
	from  int    // where in text it begins
	lead  int    // bytes of out before its whole groups
	torn  uint32 // value of the last group that is not printable as a whole
	at    int    // where in text that is
}

// begin begins the stretch, whose first whole group is at byte first.
func (s *stretch) begin(first int) {
	s.from = first
	if texty[byte(s.torn)] {
		s.from = s.at
		if texty[byte(s.torn>>8)] {
			s.out = append(s.out, byte(s.torn>>8))
		}
		s.out = append(s.out, byte(s.torn))
	}
	s.lead = len(s.out)
}

// tear ends the stretch with a group of base64 that is not printable as a whole.
func (s *stretch) tear(bits uint32, group span) bool {
	s.torn, s.at = bits, group.start
	if len(s.out) == 0 {
		return true
	}
	end := group.start
	if texty[byte(bits>>16)] {
		end = group.end
		s.out = append(s.out, byte(bits>>16))
		if texty[byte(bits>>8)] {
			s.out = append(s.out, byte(bits>>8))
		}
	}
	return s.flush(end)
}

// flush yields the stretch, which ends before byte end, if it is long enough.
func (s *stretch) flush(end int) bool {
	out, lead := s.out, s.lead
	s.out, s.lead = s.out[:0], 0
	return len(out)-lead < minDecoded || s.yield(around(s.text, span{s.from, end}, out))
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
