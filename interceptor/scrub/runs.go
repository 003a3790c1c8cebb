package scrub

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
	"unsafe"
)

// runs returns the edits that put texts in the place of the runs that encode them. A run may encode several
// texts, so there are several layers, in each of which no edits overlap.
func (x *examination) runs(text string, within []span) (layers []edits, err error) {
	var of edits // one run
	for at := 0; len(within) > 0; {
		run, ok := nextRun(text, span{max(at, within[0].Start), within[0].End})
		if !ok {
			within = within[1:]
			continue
		}
		if strings.HasPrefix(text[run.Start:run.End], "0x") {
			run.Start += len("0x") // no base64 of packed bytes begins so
		}
		of.all, of.with = of.all[:0], of.with[:0]
		if err = x.limit.Spend(perRun + perDigit*(run.End-run.Start)); err == nil {
			of.addRun(text, run)
			err = x.addUnpacked(&of, text, run)
		}
		if err != nil {
			return nil, err
		}
		for _, e := range of.all {
			free := slices.IndexFunc(layers, func(l edits) bool { return l.all[len(l.all)-1].end <= e.start })
			if free < 0 {
				free, layers = len(layers), append(layers, edits{})
			}
			layers[free].add(e.span(), view(of.with[e.at:e.until]))
		}
		at = run.End
	}
	return layers, nil
}

// nextRun returns the first run of at least 16 digits of base64 in text that overlaps within.
func nextRun(text string, within span) (span, bool) {
	b := unsafe.Slice(unsafe.StringData(text), len(text))
	// A run of 16 contains one of the blocks of 8 bytes that are looked at, and 8 bytes beside it.
	for i := within.Start; i+8 <= len(b) && i < within.End+8; {
		if low(b, i) != 0 || bits.LeadingZeros64(low(b, i-8))/8+bits.TrailingZeros64(low(b, i+8))/8 < 8 {
			i += 8
			continue
		}
		at := i + 8
		for at > i && inBase64(b[at-1]) {
			at--
		}
		if at > i {
			i += 8
			continue
		}
		for at > 0 && at > i-16 && inBase64(b[at-1]) {
			at--
		}
		end := runEnd(b, at, i+8)
		if end-at >= 16 {
			return span{at, end}, at < within.End
		}
		i = end
	}
	return span{}, false
}

const (
	high8 = 0x8080808080808080
	// plus8 is eight times '+', the least byte of the alphabets.
	plus8 = 0x2b2b2b2b2b2b2b2b
)

// low marks those of the 8 bytes of b from i on that are below '+', the least byte of the alphabets, or not ASCII,
// each by its highest bit. It marks none if b has not all of them.
func low(b []byte, i int) uint64 {
	if i < 0 || i+8 > len(b) {
		return 0
	}
	w := binary.LittleEndian.Uint64(b[i : i+8 : i+8])
	return (^((w | high8) - plus8) | w) & high8
}

// runEnd returns the end of the run that starts at byte from and contains the bytes up to i. A run
// goes on after a line break if the next line ends in the same column, as encoders wrap their
// lines. The last line may be shorter, if the digits are complete with it; after a single line only
// if that has nothing else and a usual width.
func runEnd(b []byte, from, i int) int {
	const least, usual, most = 40, 60, 80 // widths of wrapped lines
	digits, column, wrapped := 0, 0, true
	for lines := 0; ; lines++ {
		i = digitsEnd(b, i)
		next := i
		if next < len(b) && b[next] == '\r' {
			next++
		}
		if next >= len(b) || b[next] != '\n' || lines == 0 && i-from < least {
			return i
		}
		if next++; lines == 0 {
			column = i - 1 - bytes.LastIndexByte(b[:i], '\n')
			wrapped = usual <= column && column <= most && len(bytes.TrimLeft(b[i-column:i], " \t")) == i-from
		}
		width := i - from
		digits += width
		for from = next; from < len(b) && (b[from] == ' ' || b[from] == '\t'); from++ {
		}
		end, padding := digitsEnd(b, from), 0
		for end+padding < len(b) && b[end+padding] == '=' {
			padding++
		}
		alone := padding > 0 || end == len(b) || strings.IndexByte("\r\n\"'`<\\,;)]}", b[end]) >= 0
		complete := (digits+end-from+padding)%4 == 0 || (digits+end-from)%2 == 0 && isHex(b[from:end])
		switch full := end-next == column || end-from == width; {
		case end > from && full && alone:
		case end > from && end-next < column && complete && (alone && wrapped || padding > 0 || lines > 0):
			return end
		default:
			return i
		}
		i, wrapped = from, true
	}
}

func isHex(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return hexDigit[c] == noDigit })
}

func digitsEnd(b []byte, i int) int {
	for i < len(b) && inBase64(b[i]) {
		i++
	}
	return i
}

// addRun adds the printable texts that a run encodes. A run may begin with something else,
// such as a path, so all alignments are tried. The next line may be something else too, so the
// lines are decoded one by one and together.
func (l *edits) addRun(text string, run span) {
	for at := run.Start; at+2*minDecoded <= run.End; {
		end := at
		for end < run.End && hexDigit[text[end]] != noDigit {
			end++
		}
		for skip := 0; skip < 2 && end-at >= 2*minDecoded; skip++ {
			l.addDecoded(text, &digits{all: text[at:end], at: at}, skip, 2)
		}
		at = end + 1
	}
	first := len(l.all)
	for at := run.Start; at < run.End; {
		line, rest, more := strings.Cut(text[at:run.End], "\n")
		d := digits{all: line, at: at}
		if more || at > run.Start { // a single line has none of these around it
			d = digits{all: strings.Trim(line, " \t\r"), at: at + len(line) - len(strings.TrimLeft(line, " \t"))}
		}
		for skip := range 4 {
			l.addDecoded(text, &d, skip, 4)
		}
		if more && at == run.Start {
			joined := joinLines(text, run)
			for skip := range 4 {
				l.addDecoded(text, &joined, skip, 4)
			}
			if isHex([]byte(joined.all)) {
				l.addDecoded(text, &joined, 0, 2)
			}
		}
		at = run.End - len(rest)
	}
	// Texts of all alignments go into one layer as far as they don't overlap.
	slices.SortStableFunc(l.all[first:], func(a, b edit) int { return cmp.Compare(a.start, b.start) })
}

// digits are the digits of a run: those of one line, from byte at on, or those at places.
type digits struct {
	all    string
	at     int
	places []int32
}

func joinLines(text string, run span) digits {
	b := make([]byte, 0, run.End-run.Start)
	places := make([]int32, 0, run.End-run.Start)
	for i := run.Start; i < run.End; i++ {
		if inBase64(text[i]) {
			b, places = append(b, text[i]), append(places, int32(i))
		}
	}
	return digits{all: view(b), places: places}
}

// span returns the range of text that the digits from i to k are.
func (d *digits) span(text string, i, k int) span {
	s := span{d.at + i, d.at + k}
	if d.places != nil {
		s = span{int(d.places[i]), int(d.places[k-1]) + 1}
	}
	if k == len(d.all) {
		s.End = paddingEnd(text, s.End)
	}
	return s
}

// group returns the bytes of the n digits from i on, the first byte in bits 16 to 23, and whether
// all of them are printable. Digits after the last are 0.
func (d *digits) group(i, n int) (bytes uint32, printable bool) {
	if n == 2 {
		c := hexDigit[d.all[i]]<<4 | hexDigit[d.all[i+1]]
		return uint32(c) << 16, texty[c]
	}
	for _, c := range []byte(d.all[i:min(i+4, len(d.all))]) {
		bytes = bytes<<6 | uint32(base64Digit[c])
	}
	bytes <<= 6 * max(0, i+4-len(d.all))
	return bytes, texty[byte(bytes>>16)] && texty[byte(bytes>>8)] && texty[byte(bytes)]
}

// addDecoded decodes d after skip digits, in groups of n, and adds its texts of minDecoded
// bytes or more in whole groups. So one of every so many groups in a row is in such a text, and
// only that one is decoded first: most runs have none. In binary data a text begins and ends
// within a group.
func (l *edits) addDecoded(text string, d *digits, skip, n int) {
	every := minDecoded
	if n == 4 {
		every /= 3
	}
	var buf [256]byte
	groups, least := (len(d.all)-skip)/n, 0 // groups before least are known
	printable := func(g int) bool {
		_, ok := d.group(skip+g*n, n)
		return ok
	}
	for g := every - 1; g < groups; g += every {
		if !printable(g) {
			continue
		}
		from, to := g, g+1
		for from > least && printable(from-1) {
			from--
		}
		for to < groups && printable(to) {
			to++
		}
		least, g = to+1, to
		if to-from < every {
			continue
		}
		out, first, last := append(buf[:0], '.'), skip+from*n, skip+to*n
		if v := uint32(0); n == 4 && from > 0 {
			if v, _ = d.group(first-n, n); texty[byte(v)] {
				if first -= 2; texty[byte(v>>8)] {
					first--
					out = append(out, byte(v>>8))
				}
				out = append(out, byte(v))
			}
		}
		for i := skip + from*n; i < last; i += n {
			v, _ := d.group(i, n)
			if out = append(out, byte(v>>16)); n == 4 {
				out = append(out, byte(v>>8), byte(v))
			}
		}
		for k, end := 1, last; n == 4 && k < 3 && end+k < len(d.all); k++ {
			v, _ := d.group(end, n)
			c := byte(v >> (8 * (3 - k)))
			if !texty[c] {
				break
			}
			out, last = append(out, c), end+k+1
		}
		if to == groups {
			last = len(d.all)
		}
		l.addText(text, d.span(text, first, last), out)
	}
}

// addText adds the edit for a text that text encodes at part. A sign stands before it in out.
func (l *edits) addText(text string, part span, out []byte) {
	if end := discordEnd(text, part.End); end > 0 && len(bytes.Trim(out, ".0123456789")) == 0 {
		// The digits are the id in the token of a Discord bot.
		out = slices.Concat([]byte(".discord-bot "), out[1:], []byte(text[part.End:end]))
		part.End = end
	}
	// Digits beside it encode something else, such as binary data. Signs keep its words apart from them, and
	// its last word from what else could go on with it, such as the text of the next run.
	if strings.HasSuffix(text[:part.Start], "0x") {
		part.Start -= len("0x")
	}
	if part.Start == 0 || !inBase64(text[part.Start-1]) {
		out = out[1:]
	}
	if part.End < len(text) && strings.IndexByte(" \t\r\n\"'`,", text[part.End]) < 0 {
		out = append(out, ' ')
	}
	l.add(part, view(out))
}

// discordEnd returns the end of the token of a Discord bot whose first part ends at byte i, or 0.
func discordEnd(text string, i int) int {
	const second, third = 7, 8 + 27 // the sign before the second part and where the third may end
	if len(text) < i+third || text[i] != '.' || text[i+second] != '.' {
		return 0
	}
	end := i + second + 1
	for end < len(text) && inBase64(text[end]) {
		end++
	}
	if end < i+third {
		return 0
	}
	return end
}

// paddingEnd returns the end of the padding of base64 at byte i.
func paddingEnd(text string, i int) int {
	for end := min(len(text), i+2); i < end && text[i] == '='; {
		i++
	}
	return i
}

const (
	noDigit      = 0xff
	base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
)

// base64Digit and hexDigit have the value of each byte as a digit, base64 in both alphabets.
var base64Digit, hexDigit = func() (b, h [256]uint8) {
	for c := range 256 {
		b[c], h[c] = noDigit, noDigit
	}
	for i := range base64Digits {
		b[base64Digits[i]] = uint8(i)
	}
	b['-'], b['_'] = 62, 63
	for i := range 16 {
		h["0123456789abcdef"[i]], h["0123456789ABCDEF"[i]] = uint8(i), uint8(i)
	}
	return b, h
}()

func inBase64(c byte) bool { return base64Digit[c] != noDigit }

// texty has the bytes of text: printable ASCII, and the bytes of usual invisible characters.
var texty = func() (t [256]bool) {
	for c := range 256 {
		t[c] = printable(byte(c))
	}
	for _, c := range []byte("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff") {
		t[c] = true
	}
	return t
}()
