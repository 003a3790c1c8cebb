package scrub

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

const (
	// maxDepth is how often decoded text is decoded again.
	maxDepth = 3
	// minDecoded is the least length of decoded text: the bytes of 16 characters of base64.
	minDecoded = 12
)

// examine returns the ranges of text to redact and the findings to report.
func (x *examination) examine(text string) ([]mark, []Finding, error) {
	clear(x.cells) // they refer to the last text
	x.cells = x.cells[:0]
	hits, apart, err := x.hitsAndPairs(text)
	if err != nil {
		return nil, nil, err
	}
	marks := appendMarks(nil, text, hits)
	found := x.findingsOf(hits)
	hidden, err := x.decode(text, []span{{0, len(text)}}, apart, 1)
	if err != nil {
		return nil, nil, err
	}
	if len(hidden) > 0 {
		known := merge(marks)
		line, at := 1, 0
		hidden = merge(hidden)
		marks, found = slices.Grow(marks, len(hidden)), slices.Grow(found, len(hidden))
		for _, m := range hidden {
			if covered(known, m.span) {
				continue
			}
			line += strings.Count(text[at:m.Start], "\n")
			at = m.Start
			marks = append(marks, m)
			found = append(found, Finding{Rule: m.rule, Line: line})
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Rule, b.Rule))
	})
	return marks, found, nil
}

// findingsOf returns the findings to report for hits in the scanned text.
func (x *examination) findingsOf(hits []hit) []Finding {
	if len(hits) == 0 {
		return nil
	}
	hits, lines := x.reported(hits)
	found := make([]Finding, len(hits))
	for i, h := range hits {
		found[i] = Finding{Rule: h.rule.ID, Line: lines[i] + 1}
	}
	return found
}

// decode returns the marks for the secrets that text contains, in the ranges within, in other encodings,
// and of those in its pairs. depth counts how often text has been decoded, from 1. text was scanned last.
func (x *examination) decode(text string, within []span, apart pairs, depth int) ([]mark, error) {
	if depth > maxDepth {
		return nil, nil
	}
	lists, err := x.runs(text, within)
	runs := len(lists)
	quoted := x.scratch.HasSign() && isQuotedPrintable(text[within[0].Start:within[len(within)-1].End])
	for _, first := range spellings {
		if first == "=" && !quoted {
			continue
		}
		var escapes edits
		for _, w := range within {
			if err == nil {
				err = x.addEscapes(&escapes, text, w, first)
			}
		}
		lists = append(lists, escapes)
	}
	var marks []mark
	for _, cells := range apart.cells {
		for len(cells) > 0 && err == nil {
			var d decoded
			d, cells = fromCells(text, cells, merge(slices.Clone(marks))) // what is found is not sought again
			marks, err = x.appendHidden(marks, text, []decoded{d}, depth)
		}
	}
	if err == nil {
		marks, err = x.appendHidden(marks, text, apart.stripped, depth)
	}
	for i := range lists {
		if err == nil {
			marks, err = x.appendHidden(marks, text, parts(text, &lists[i], i < runs), depth)
		}
	}
	return marks, err
}

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
		if err = x.limit.spend(run.End - run.Start); err == nil {
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

// appendHidden appends the marks for the secrets in decoded parts of text, and in what they contain in other
// encodings.
func (x *examination) appendHidden(marks []mark, text string, all []decoded, depth int) ([]mark, error) {
	for i := range all {
		d := &all[i]
		was := x.paired
		x.paired = x.paired || d.paired
		hits, apart, err := x.hitsAndPairs(d.text)
		if err != nil {
			return nil, err
		}
		deeper, err := x.decode(d.text, d.fresh(), apart, depth+1)
		x.paired = was
		if err != nil {
			return nil, err
		}
		shown := append(appendMarks(nil, d.text, hits), deeper...)
		marks = slices.Grow(marks, len(shown))
		for _, m := range shown {
			if !d.touched(m.span) {
				continue
			}
			if s := d.origin(m.span); s.Start < s.End {
				marks = append(marks, mark{valueIn(text, s), m.rule})
			}
		}
	}
	return marks, nil
}

// A decoded is a part of a text with edits: for runs of base64 or hexadecimal, for escapes, or for pairs.
type decoded struct {
	text  string
	part  span // of the encoded text
	edits []edit
	last  int  // what ended returned last
	runs  bool // only what overlaps with an edit is new
	whole bool // the edits change what all of text means, not only what is near them

	// The text is pairs. No pair is sought in it: one in a value is found where it stands.
	paired bool
}

// edits replace ranges of a text, each by a few bytes or by none.
type edits struct {
	all  []edit
	with []byte // the replacements
}

// An edit is small because a text can consist of escapes. Examined texts have less than 2 GB; see find.
type edit struct {
	start, end int32 // the range
	at, until  int32 // the replacement: its place in edits.with, and in the text after the edits once apply has made that
}

func (e edit) span() span { return span{int(e.start), int(e.end)} }

// add adds the edit that replaces s.
func (l *edits) add(s span, with string) {
	at := len(l.with)
	l.with = append(l.with, with...)
	l.all = append(l.all, edit{int32(s.Start), int32(s.End), int32(at), int32(len(l.with))})
}

// fresh returns the ranges of d.text in which encodings are sought: what runs encode, or all.
func (d *decoded) fresh() []span {
	if !d.runs {
		return []span{{0, len(d.text)}}
	}
	all := make([]span, len(d.edits))
	for i := range d.edits {
		all[i] = span{int(d.edits[i].at), int(d.edits[i].until)}
	}
	return all
}

// origin maps a range of d.text to the encoded range to redact. Of a run that is the whole.
func (d *decoded) origin(s span) span {
	return span{d.back(s.Start, false), d.back(s.End, true)}
}

// back returns the place in the encoded text of byte i of d.text. Within a replacement that is
// the start of the edit or, if up, its end. In pairs it is the other one: what stands between values stays.
func (d *decoded) back(i int, up bool) int {
	n := d.ended(i)
	switch {
	case n < len(d.edits) && i > int(d.edits[n].at) && up != d.paired:
		return int(d.edits[n].end)
	case n < len(d.edits) && i > int(d.edits[n].at):
		return int(d.edits[n].start)
	case n == 0:
		return d.part.Start + i
	}
	return int(d.edits[n-1].end-d.edits[n-1].until) + i
}

// near is the distance at which an edit still reveals a secret: in \\nTOKEN the first edit gives
// \nTOKEN, and only the next one, which leaves nothing in TOKEN, separates the word.
const near = 13

// touched reports whether a range of d.text overlaps with an edit or, unless they are of runs, is near one.
func (d *decoded) touched(s span) bool {
	if !d.runs {
		s = span{s.Start - near, s.End + near}
	}
	n := d.ended(s.Start)
	return d.whole || n < len(d.edits) && int(d.edits[n].at) < s.End
}

// ended returns the number of replacements that end at or before byte i. It is asked for ascending bytes, for the most part.
func (d *decoded) ended(i int) int {
	if d.last > 0 && int(d.edits[d.last-1].until) > i {
		d.last = sort.Search(d.last, func(n int) bool { return int(d.edits[n].until) > i })
	}
	for d.last < len(d.edits) && int(d.edits[d.last].until) <= i {
		d.last++
	}
	return d.last
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

const (
	high8 = 0x8080808080808080
	// plus8 is eight times '+', the least byte of the alphabets.
	plus8 = 0x2b2b2b2b2b2b2b2b
)

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
		complete := (digits+end-from+padding)%4 == 0
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

func digitsEnd(b []byte, i int) int {
	for i < len(b) && inBase64(b[i]) {
		i++
	}
	return i
}

// addRun adds the printable texts that a run encodes. A run may begin with something else,
// such as a path, so all alignments are tried. The next line may be something else too, so the
// lines are decoded one by one and together. Hexadecimal lines are not joined.
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
	for at := run.Start; at < run.End; {
		line, rest, more := strings.Cut(text[at:run.End], "\n")
		d := digits{all: strings.Trim(line, " \t\r"), at: at + len(line) - len(strings.TrimLeft(line, " \t"))}
		for skip := range 4 {
			l.addDecoded(text, &d, skip, 4)
		}
		if more && at == run.Start {
			joined := joinLines(text, run)
			for skip := range 4 {
				l.addDecoded(text, &joined, skip, 4)
			}
		}
		at = run.End - len(rest)
	}
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

// The most bytes of context around a run. The name before a value decides whether it is a secret.
const before, after = 64, 16

// paddingEnd returns the end of the padding of base64 at byte i.
func paddingEnd(text string, i int) int {
	for end := min(len(text), i+2); i < end && text[i] == '='; {
		i++
	}
	return i
}

// margin is the number of bytes around an escape that are examined with it.
const margin = 256

// spellings are the ways to write single characters, by the bytes that their escapes begin with.
// Those of one way are decoded together. Quoted-printable is a way of its own, as a = means
// something else in most texts. Invisible characters go with the first one, unless the text is ASCII.
var spellings = []string{"%\\&\x1b\x00", "="}

// parts returns the parts of text that read differently after edits. Those near each other are applied together.
func parts(text string, l *edits, runs bool) (all []decoded) {
	around, gap := aroundEscape, 2*margin
	if runs {
		around, gap = aroundRun, before+after
	}
	for left := l.all; len(left) > 0; {
		n := 1
		for n < len(left) && (int(left[n].start-left[n-1].end) < gap || around(text, left[n].span()).Start < around(text, left[n-1].span()).End) {
			n++
		}
		d := apply(text, span{around(text, left[0].span()).Start, around(text, left[n-1].span()).End}, left[:n], l.with)
		d.runs = runs
		all, left = append(all, d), left[n:]
	}
	return all
}

// aroundRun returns a run with its context, which begins in its line.
func aroundRun(text string, s span) span {
	start := max(0, s.Start-before)
	return span{start + strings.LastIndexByte(text[start:s.Start], '\n') + 1, min(len(text), s.End+after)}
}

// aroundEscape returns an escape with its context.
func aroundEscape(text string, s span) span {
	return span{widen(text, s.Start, -1), widen(text, s.End, +1)}
}

// quotedSigns are in each text that is quoted-printable.
var quotedSigns = []string{"=3d", "=\n", "=\r\n"}

// isQuotedPrintable reports whether text has a sign of quoted-printable: a sign = or a long line that
// goes on, which does not look like the padding of base64.
func isQuotedPrintable(text string) bool {
	const short = 60 // fewer columns than lines that go on have
	for at := 0; ; at++ {
		i := strings.IndexByte(text[at:], '=')
		if i < 0 {
			return false
		}
		at += i
		rest := text[at+1:]
		if rest != "" && rest[0] != '3' && rest[0] != '\r' && rest[0] != '\n' {
			continue
		}
		switch {
		case strings.HasPrefix(rest, "3D"):
			return true
		case strings.HasPrefix(rest, "\n"), strings.HasPrefix(rest, "\r\n"):
			line := text[strings.LastIndexByte(text[:at], '\n')+1 : at]
			digits := 0
			for digits < len(line) && inBase64(line[len(line)-1-digits]) {
				digits++
			}
			if len(line) >= short && line[len(line)-1] != '=' && (digits < 16 || digits%4 != 3) {
				return true
			}
		}
	}
}

// widen moves at by a margin, and on to white space if that is near, so that it cuts no word.
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

// apply returns part of text after edits, which are in order, with their replacements. It keeps the edits.
func apply(text string, part span, edits []edit, with []byte) decoded {
	size := part.End - part.Start
	for _, e := range edits {
		size += int(e.until - e.at - e.end + e.start)
	}
	b, pos := make([]byte, 0, size), part.Start
	for i := range edits {
		e := &edits[i]
		b = append(b, text[pos:e.start]...)
		at := len(b)
		b = append(b, with[e.at:e.until]...)
		e.at, e.until = int32(at), int32(len(b))
		pos = int(e.end)
	}
	b = append(b, text[pos:part.End]...)
	return decoded{text: view(b), part: part, edits: edits}
}

// addEscapes adds the edits for the escapes of a spelling that begin within a range of the text that was
// scanned last. Those of ranges before it are known.
func (x *examination) addEscapes(l *edits, text string, within span, first string) error {
	const work = 32 // of an edit, in bytes to examine
	known := len(l.all)
	if known > 0 {
		within.Start = max(within.Start, int(l.all[known-1].end))
	}
	for _, special := range []byte(first) {
		for at := within.Start; at < within.End; at++ {
			i := strings.IndexByte(text[at:within.End], special)
			if i < 0 {
				break
			}
			at += i
			if end, with, ok := escapeAt(text, at); ok {
				l.grow(text[at:within.End])
				l.add(span{at, end}, with)
				at = end - 1
				if err := x.limit.spend(work); err != nil {
					return err
				}
			} else if special == '\\' && at+1 < within.End && text[at+1] == '\\' {
				at++ // \\u0041 is no escape of A
			}
		}
	}
	if first == spellings[0] && !x.scratch.ASCII() {
		for at := within.Start; at < within.End; {
			if at += regexset.ASCIIPrefix(text[at:within.End]); at == within.End {
				break
			}
			r, size := utf8.DecodeRuneInString(text[at:within.End])
			if with, ok := plainOf(r); ok {
				l.grow(text[at:within.End])
				l.add(span{at, at + size}, with)
				if err := x.limit.spend(work); err != nil {
					return err
				}
			}
			at += size
		}
	}
	byStart := func(a, b edit) int { return cmp.Compare(a.start, b.start) }
	if !slices.IsSortedFunc(l.all[known:], byStart) {
		slices.SortFunc(l.all[known:], byStart)
	}
	return nil
}

// grow makes room for an edit at each of the bytes of rest that are like its first. To grow step by step copies many
// edits several times.
func (l *edits) grow(rest string) {
	const many = 256
	if n := len(l.all); n == cap(l.all) && n >= many {
		l.all = slices.Grow(l.all, strings.Count(rest, rest[:1]))
	}
}

// escapeAt returns the end of the escape at byte i and what it stands for. ok says that a secret may contain that.
func escapeAt(text string, i int) (end int, with string, ok bool) {
	switch text[i] {
	case '%':
		return hexEscape(text, i, 1, 2)
	case '=':
		if i > 0 && text[i-1] == '=' {
			return i, "", false // padding
		}
		if end := i + len("=\r\n"); end <= len(text) && text[i+1:end] == "\r\n" {
			return end, "", true
		}
		if i+1 < len(text) && text[i+1] == '\n' {
			return i + 2, "", true
		}
		return hexEscape(text, i, 1, 2)
	case '&':
		return entity(text, i)
	case esc:
		return colorAt(text, i+1)
	case 0: // of UTF-16 that was read as bytes: every second one is 0
		zero := func(i int) bool { return i >= 0 && i < len(text) && text[i] == 0 }
		return i + 1, "", (zero(i-2) || zero(i+2)) && !zero(i-1) && !zero(i+1)
	}
	if i+1 >= len(text) {
		return i, "", false
	}
	end = i + 2
	switch text[i+1] {
	case '"', '/', '\'', '_', '-', '=', '+': // in JSON, Markdown and shells
		return end, text[i+1 : i+2], true
	case 'n': // the letter is no part of the word that follows
		return end, "\n", true
	case 'r':
		return end, "\r", true
	case 't':
		return end, "\t", true
	case 'f', 'b':
		return end, " ", true
	case '\r', '\n': // in a shell and in YAML a word goes on in the next line
		next := strings.TrimLeft(text[i+1:], "\r\n \t")
		end = len(text) - len(next)
		return end, "", i > 0 && next != "" && inBase64(text[i-1]) && inBase64(next[0]) && strings.Count(text[i:end], "\n") == 1
	case 'u', 'U':
		return hexEscape(text, i, 2, 4)
	case 'x', 'X':
		return hexEscape(text, i, 2, 2)
	case '\\':
		// Two of them are an escape only before another: JSON in JSON in JSON.
		return end, `\`, i+2 < len(text) && strings.IndexByte(`"/unrtfb\`, text[i+2]) >= 0
	}
	return end, "", false
}

// entities are HTML's names of the characters of secrets and of what stands around them.
var entities = map[string]string{
	"quot": `"`, "apos": "'", "amp": "&", "lt": "<", "gt": ">", "equals": "=", "lowbar": "_", "UnderBar": "_", "period": ".",
	"colon": ":", "sol": "/", "bsol": `\`, "plus": "+", "dollar": "$", "commat": "@", "percnt": "%", "num": "#", "NewLine": "\n",
	"Tab": "\t", "nbsp": " ", "shy": "", "ZeroWidthSpace": "", "zwj": "", "zwnj": "", "NoBreak": "",
}

// entity is escapeAt for a character reference of HTML.
func entity(text string, i int) (end int, with string, ok bool) {
	name, _, ok := strings.Cut(text[i+1:min(len(text), i+len("&ZeroWidthSpace;"))], ";")
	end = i + len("&;") + len(name)
	if number, numeric := strings.CutPrefix(name, "#"); ok && numeric {
		base := 10
		if strings.HasPrefix(number, "x") || strings.HasPrefix(number, "X") {
			number, base = number[1:], 16
		}
		v, err := strconv.ParseUint(number, base, 21)
		if v < utf8.RuneSelf {
			return end, string([]byte{byte(v)}), err == nil && printable(byte(v)) // a string of one byte allocates nothing
		}
		return end, "", err == nil && invisible(rune(v))
	}
	if ok {
		with, ok = entities[name]
	}
	return end, with, ok
}

// hexEscape is escapeAt for n hexadecimal digits skip bytes after i.
func hexEscape(text string, i, skip, n int) (end int, with string, ok bool) {
	if end = i + skip + n; end > len(text) {
		return i, "", false
	}
	v := 0
	for _, c := range []byte(text[i+skip : end]) {
		if hexDigit[c] == noDigit {
			return i, "", false
		}
		v = v<<4 | int(hexDigit[c])
	}
	switch {
	case v == esc:
		return colorAt(text, end)
	case n == 4 && v >= utf8.RuneSelf:
		return end, "", invisible(rune(v))
	}
	// From 0x80 on it is a byte of a longer character, which may be an invisible one.
	return end, string([]byte{byte(v)}), v >= utf8.RuneSelf || printable(byte(v)) // a string of one byte allocates nothing
}

// esc begins the sequences by which terminals color text.
const esc = 0x1b

// colorAt is escapeAt for a color sequence, of which byte i is the second character.
func colorAt(text string, i int) (end int, with string, ok bool) {
	rest, ok := strings.CutPrefix(text[i:], "[")
	rest = strings.TrimLeft(rest, "0123456789;:")
	if !ok || rest == "" || rest[0] != 'm' && rest[0] != 'K' {
		return i, "", false
	}
	return len(text) - len(rest) + 1, "", true
}

// invisible reports whether r shows nothing: a token still reads like one with it inside.
func invisible(r rune) bool {
	switch r {
	case 0x00ad, 0x034f, 0x061c, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xfeff, 0xffa0:
		return true
	}
	return r >= 0x180b && r <= 0x180f || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r >= 0xfe00 && r <= 0xfe0f || r >= 0xfff0 && r <= 0xfffb || r >= 0x1d173 && r <= 0x1d17a || r >= 0xe0000 && r <= 0xe0fff
}

// plainOf returns what stands for a character that shows nothing or a blank, that draws a table, or for an arrow.
func plainOf(r rune) (string, bool) {
	switch {
	case invisible(r):
		return "", true
	case r == 0xa0, r == 0x202f, r == 0x3000:
		return " ", true
	case r == '\u2192':
		return "->", true
	case r == '\u21d2':
		return "=>", true
	case r < 0x2500 || r > 0x257f:
		return "", false
	case strings.ContainsRune("\u2500\u2501\u2504\u2505\u2508\u2509\u254c\u254d\u2550", r):
		return "-", true
	case strings.ContainsRune("\u2502\u2503\u2506\u2507\u250a\u250b\u254e\u254f\u2551", r):
		return "|", true
	}
	return "+", true
}

// printable reports whether c is printable ASCII or white space.
func printable(c byte) bool { return c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' }
