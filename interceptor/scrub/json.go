package scrub

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// JSON removes secrets from all strings and keys of a JSON value, as [Scrubber.Text] does from
// each of them, and besides
//
//   - examines "key": "value" together if the value is short and the key
//     contains a literal that a rule looks for; the key is also the one around
//     an array or a "value", the "name" beside a "value", and the name of a
//     column in the first of several rows, or in an array beside the rows,
//   - examines the text blocks of one content array joined without a separator,
//     as a model reads them,
//   - examines as lines the strings of an array, those at one place of its
//     members, and, if the document contains the begin of a private key, those
//     of an object; arguments of a command and headers also as such a list,
//   - examines and encodes again the text in a base64 "blob".
//
// Only string tokens with a secret change. Without a secret, clean is raw itself. If two keys of
// an object get the same replacement, the second ends in #2. After an error, which includes JSON
// that is cut or badly nested, clean is nil and raw must be withheld.
func (s *Scrubber) JSON(ctx context.Context, raw []byte) (clean []byte, found []Finding, err error) {
	err = s.run(ctx, func(x *examination) error {
		d := &document{examination: x, raw: raw, armored: bytes.Contains(raw, []byte("PRIVATE KEY"))}
		d.listed, d.arrays = d.listed[:0], d.arrays[:0]
		for _, step := range [...]func() error{d.prefilter, d.walk, d.tables, d.together, d.examinePairs} {
			if err := step(); err != nil {
				return err
			}
		}
		clean, found = d.rewrite(), d.findings()
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return clean, found, nil
}

// A document is one JSON value under examination. A string or key of it is called by the span of
// its literal, quotes included.
type document struct {
	*examination
	raw        []byte
	all        bool                 // the prefilter rules out nothing
	ascii      bool                 // all strings shorter than long are
	armored    bool                 // the document contains the begin of a private key
	dirty      map[int]*dirtyString // by start
	found      []placedFinding
	lists      map[uint64]bool // the paths of hot strings; see together
	named      []piece         // names and values; see pair
	namedBytes int             // of the texts of those
	inText     bool            // raw is a text, of which only the pairs are of interest; see addJSON
}

// A listed is a string below an array. With private keys it is also one of an object, which stands for the path.
type listed struct {
	span
	path   uint64 // a hash, the same for all members of an array, such as of $.lines[*].text
	array  int32  // the innermost array, in document.arrays
	column int32  // the element of that array
}

// An array is what tables need to know of one.
type array struct {
	outer int32 // the next array around it, -1 for none
	owner int32 // the start of the object around it
	first bool  // it is the first element of outer
}

type dirtyString struct {
	span
	object int // start of the object, for a key; else -1
	marks  []mark
	blob   string // replaces the whole string if not ""
}

// A placedFinding is a finding in the string that starts at byte at.
type placedFinding struct {
	Finding
	at int
}

// long is the length from which on a string is examined in any case.
const long = 2048

// prefilter looks through the whole document for literals, runs of base64 and escapes, and notes in
// hot where they are. Most strings of most documents contain none and need no examination. Without
// the prefilter a result of 4 KB takes twice the time.
func (d *document) prefilter() error {
	text := view(d.raw)
	if d.all, d.ascii = !d.s.set.Filtered(), true; d.all {
		return nil
	}
	size := len(text)/64 + 1
	d.hot = slices.Grow(d.hot[:0], size)[:size]
	clear(d.hot)
	// Long strings are left out. If the JSON is wrong, the walk of its tokens fails later.
	from := 0
	var err error
	if len(text) >= long {
		_ = rawjson.Walk(d.raw, func(t rawjson.Token) bool {
			if t.End-t.Start >= long {
				err = d.prefilterPart(text[from:t.Start], from)
				from = t.End
			}
			return err == nil
		})
	}
	if err != nil {
		return err
	}
	return d.prefilterPart(text[from:], from)
}

// prefilterPart is prefilter for a part of the document that begins at byte base. It marks only
// first bytes, as a literal or run that a string contains begins in that string.
func (d *document) prefilterPart(text string, base int) error {
	if err := d.limit.spend(len(text)); err != nil {
		return err
	}
	d.ascii = d.ascii && regexset.ASCII(text)
	add := func(at int) { d.hot[(base+at)>>6] |= 1 << ((base + at) & 63) }
	if err := d.scratch.LiteralHits(text, &d.limit, add); err != nil {
		return err
	}
	for at := 0; ; {
		run, ok := nextRun(text, span{at, len(text)})
		if !ok {
			break
		}
		add(run.Start)
		at = run.End
	}
	for _, sign := range []string{"%", "&"} { // a string with a backslash is examined anyway
		for at := 0; ; at++ {
			i := strings.Index(text[at:], sign)
			if i < 0 {
				break
			}
			at += i
			add(at)
		}
	}
	return nil
}

// A frame is an object or array around the position. The spans are those of members of an object,
// empty if it does not have them.
type frame struct {
	start   int
	array   bool
	content bool   // an array that is the value of a "content"
	blocks  []span // of such an array: the texts
	cookie  bool   // an object with a member that only cookies have
	key     span   // of an object: the member that is being read
	name    string // the key, unquoted
	isText  bool   // of an object: "type" is "text"
	text    span   // of an object: its "text"
	blob    span   // of an object: its "blob"
	mime    string // of an object: its "mimeType"
	label   span   // of an object: its "name", "key" or the like, if it is hot; of an array: an option whose value is next
	labeled span   // of an object: its "value" or the like
	path    uint64 // as in listed
	inside  int32  // the array that it is or is in; -1 for none
	column  int32  // the element of that array
	owner   int32  // the start of the object that it is or is in
}

func (d *document) walk() error {
	var err error
	walkErr := rawjson.Walk(d.raw, func(t rawjson.Token) bool {
		err = d.token(t)
		return err == nil
	})
	if err == nil && walkErr != nil {
		err = fmt.Errorf("scrub: %w", walkErr)
	}
	return err
}

func (d *document) token(t rawjson.Token) error {
	at, f := span{t.Start, t.End}, d.top()
	if f != nil && f.array {
		f.column++
	}
	switch t.Event {
	case rawjson.ObjectStart, rawjson.ArrayStart:
		d.enter(t.Start, t.Event == rawjson.ArrayStart)
	case rawjson.ObjectEnd, rawjson.ArrayEnd:
		d.stack = d.stack[:len(d.stack)-1]
		err := d.leave(f)
		*f = frame{} // it refers to the document
		return err
	case rawjson.KeyToken:
		f.key, f.name = at, d.unquote(at)
		switch f.name {
		case "httpOnly", "sameSite", "hostOnly":
			f.cookie = !d.inText // a rule knows cookies in text
		}
		return d.scan(at, f.name)
	case rawjson.StringToken:
		return d.value(at)
	}
	return nil
}

func (d *document) enter(start int, isArray bool) {
	f := frame{start: start, array: isArray, inside: -1, owner: int32(start)}
	if up := d.top(); up != nil {
		f.content = isArray && !up.array && up.name == "content"
		f.path, f.inside, f.column = up.memberPath(), up.inside, up.column
		if isArray {
			f.owner = up.owner
		}
	}
	if isArray {
		d.arrays = append(d.arrays, array{f.inside, f.owner, f.column == 0})
		f.inside, f.column = int32(len(d.arrays)-1), -1
	}
	d.stack = append(d.stack, f)
}

// maxPair is the length up to which a value is examined together with its name. A longer value is
// no secret that only its name reveals.
const maxPair = 4096

func (d *document) value(at span) error {
	f := d.top()
	switch {
	case f == nil:
		return d.scan(at, d.unquote(at))
	case d.inText:
	case f.name == "blob":
		earlier := f.blob
		if f.blob = at; earlier.End > 0 { // there are two
			return d.scan(earlier, d.unquote(earlier))
		}
		return nil // its mimeType may come later
	default:
		text := d.unquoteIn(&d.unquoted, at)
		switch f.name {
		case "type":
			f.isText = text == "text"
		case "text":
			f.text = at
		case "mimeType":
			f.mime = strings.Clone(text)
		}
		if err := d.scan(at, text); err != nil {
			return err
		}
	}
	return d.relate(f, at)
}

// relate notes what a string of f is to be examined together with: the key before it, the key of the array or
// object that it is in, the option before it in an array, and the strings with the same path in other members.
func (d *document) relate(f *frame, at span) error {
	switch {
	case isValue(f.name):
		f.labeled = at
	case isLabel(f.name) && d.isHot(at):
		f.label = at
	}
	d.list(f, at)
	if f.array {
		err := d.pair(f.label, at)
		if f.label = (span{}); d.raw[at.Start+1] == '-' {
			f.label = at
		}
		if err != nil {
			return err
		}
	}
	if n := len(d.stack); n > 1 && !d.stack[n-2].array && (f.array || isValue(f.name)) {
		if err := d.pair(d.stack[n-2].key, at); err != nil {
			return err
		}
	}
	if d.inText {
		return nil // the rules know names and values that stand side by side
	}
	return d.pair(f.key, at)
}

// pair notes a value to be examined together with its name.
func (d *document) pair(name, value span) error {
	if value.End-value.Start > maxPair || name.End == 0 || !d.isHot(name) {
		return nil
	}
	if d.inText {
		if name = inside(name); isSecretName(view(d.raw), name) {
			d.cells = append(d.cells, cell{name: view(d.raw[name.Start:name.End]), value: inside(value)})
		}
		return nil
	}
	n, v := d.unquote(name), d.unquote(value)
	d.named = append(d.named, piece{name, "\"\n\x00\n\"", n, 0, len(n)}, piece{value, `": "`, v, 0, len(v)})
	if d.namedBytes += len(n) + len(v); d.namedBytes < 8*maxPair {
		return nil
	}
	return d.examinePairs()
}

// inside returns what a string literal has between its quotation marks.
func inside(literal span) span { return span{literal.Start + 1, literal.End - 1} }

// examinePairs examines the pairs noted so far, as lines of one text.
func (d *document) examinePairs() error {
	named := d.named
	if d.named, d.namedBytes = d.named[:0], 0; len(named) == 0 {
		return nil
	}
	return d.joined(named, "\"\n")
}

// tables notes the cells of tables whose columns have names of secrets. The names are in the first
// of several rows, or in an array beside that of the rows.
func (d *document) tables() error {
	type column [3]int32 // whether its name is beside the rows, their array or the start of the object around it, and its number
	var names map[column]span
	name := func(c column, l *listed) {
		if names == nil {
			names = map[column]span{}
		}
		names[c] = l.span
	}
	if !slices.ContainsFunc(d.arrays, func(a array) bool { return a.outer >= 0 }) {
		return nil // there are no rows
	}
	for i := range d.listed {
		l := &d.listed[i]
		if l.array < 0 || !d.lists[l.path] || !d.isHot(l.span) || !isSecretName(view(d.raw), inside(l.span)) {
			continue
		}
		a := &d.arrays[l.array]
		if a.outer < 0 || d.arrays[a.outer].owner != a.owner {
			name(column{1, a.owner, l.column}, l)
		} else if a.first {
			name(column{0, a.outer, l.column}, l)
		}
	}
	for i := range d.listed {
		l := &d.listed[i]
		if names == nil || l.array < 0 || d.arrays[l.array].outer < 0 {
			continue
		}
		outer := d.arrays[l.array].outer
		for _, c := range []column{{1, d.arrays[outer].owner, l.column}, {0, outer, l.column}} {
			if n, ok := names[c]; ok && n != l.span {
				if err := d.pair(n, l.span); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}

// isLabel and isValue report whether a member of an object has the name or the value of a pair.
func isLabel(key string) bool {
	switch key {
	case "variable", "field", "label", "property", "header", "id":
		return true
	}
	return strings.HasSuffix(key, "ame") || strings.HasSuffix(key, "ey")
}

func isValue(key string) bool {
	switch key {
	case "val", "text", "default", "content", "data", "string", "S", "B": // the last two of DynamoDB
		return true
	}
	return strings.HasSuffix(key, "alue")
}

// list notes a string that has to be examined together with others.
func (d *document) list(f *frame, at span) {
	note := func(path uint64) {
		d.listed = append(d.listed, listed{at, path, f.inside, f.column})
		if d.isHot(at) {
			if d.lists == nil {
				d.lists = map[uint64]bool{}
			}
			d.lists[path] = true
		}
	}
	if f.inside >= 0 {
		note(f.memberPath())
	}
	if d.armored && !f.array {
		note(uint64(f.start) | 1<<63)
	}
}

var seed = maphash.MakeSeed()

// memberPath returns the path of the member of f that is being read.
func (f *frame) memberPath() uint64 {
	if f.array {
		return (f.path*31 + 1) &^ (1 << 63)
	}
	return (f.path*31 ^ maphash.String(seed, f.name)) &^ (1 << 63)
}

// together examines the strings with one path as the lines of a text.
func (d *document) together() error {
	if len(d.lists) == 0 {
		return nil
	}
	all := slices.DeleteFunc(d.listed, func(l listed) bool { return !d.lists[l.path] })
	slices.SortStableFunc(all, func(a, b listed) int { return cmp.Compare(a.path, b.path) })
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].path == all[0].path {
			n++
		}
		for _, between := range []string{"\n", "", `", "`} {
			if n < 2 || between == "" && !d.armored || between == `", "` && !d.areArguments(all[:n]) {
				continue
			}
			pieces := make([]piece, 0, n)
			for _, l := range all[:n] {
				pieces = appendPieces(pieces, l.span, separated(pieces, between), d.unquote(l.span))
			}
			if err := d.joined(pieces, "\n"); err != nil {
				return err
			}
		}
		all = all[n:]
	}
	return nil
}

// areArguments reports whether strings have an option of a command among them, or the name of a header whose value
// stands beside it.
func (d *document) areArguments(all []listed) bool {
	return slices.ContainsFunc(all, func(l listed) bool {
		text := view(d.raw[l.Start+1 : l.End-1])
		return len(text) > 1 && text[0] == '-' && !strings.Contains(text, " ") ||
			strings.EqualFold(text, "cookie") || strings.EqualFold(text, "set-cookie") || strings.EqualFold(text, "authorization")
	})
}

// leave examines the parts of an object or array that are complete at its end.
func (d *document) leave(f *frame) error {
	if f.array {
		if len(f.blocks) < 2 {
			return nil
		}
		var pieces []piece
		for _, b := range f.blocks {
			pieces = appendPieces(pieces, b, separated(pieces, ""), d.unquote(b))
		}
		return d.joined(pieces, "")
	}
	if up := d.top(); up != nil && up.content && f.isText && f.text.End > 0 {
		up.blocks = append(up.blocks, f.text)
	}
	if f.labeled.End > 0 {
		if err := d.pair(f.label, f.labeled); err != nil {
			return err
		}
	}
	if n := f.labeled.End - f.labeled.Start; f.cookie && n > 0 && n <= maxPair {
		if err := d.joined(appendPieces(nil, f.labeled, `"value": "`, d.unquote(f.labeled)), `", "httpOnly"`); err != nil {
			return err
		}
	}
	if f.blob.End > 0 {
		return d.scanBlob(f)
	}
	return nil
}

// scanBlob examines the text in a base64 blob. Without a secret in it, it examines the blob
// itself: a token may read like base64.
func (d *document) scanBlob(f *frame) error {
	encoded := d.unquote(f.blob)
	text, err := base64.StdEncoding.DecodeString(encoded)
	if _, packed := packingOf(text[:min(len(text), 4)]); err != nil || packed != nil || !textual(f.mime) && !utf8.Valid(text) {
		return d.scan(f.blob, encoded)
	}
	marks, found, err := d.examine(string(text))
	if err != nil {
		return err
	}
	if len(marks) > 0 {
		d.dirtyAt(f.blob).blob = base64.StdEncoding.EncodeToString([]byte(redact(string(text), marks)))
		d.note(f.blob, nil, found)
		return nil
	}
	hits, _, err := d.hitsAndPairs(encoded)
	d.note(f.blob, appendMarks(nil, encoded, hits), d.findingsOf(hits))
	return err
}

func textual(mime string) bool {
	mime, _, _ = strings.Cut(strings.ToLower(mime), ";")
	kind, sub, _ := strings.Cut(strings.TrimSpace(mime), "/")
	if kind == "text" || strings.HasSuffix(sub, "+json") || strings.HasSuffix(sub, "+xml") || strings.HasSuffix(sub, "+yaml") {
		return true
	}
	return kind == "application" && slices.Contains([]string{
		"json", "xml", "yaml", "x-yaml", "toml", "javascript", "x-javascript", "ecmascript", "typescript",
		"sql", "graphql", "x-sh", "x-shellscript", "x-httpd-php", "x-ndjson", "jsonl", "x-pem-file",
		"x-www-form-urlencoded", "pkcs8", "x-env",
	}, sub)
}

// A piece is a string or an end of a long one, in a concatenation.
type piece struct {
	span            // of the string
	before   string // stands before the text
	text     string // from byte from of the value on
	from, to int    // to is where the next piece of the string begins, or its end
}

// reach is the length of the ends of a long string that are examined together with other strings.
const reach = 8192

// appendPieces appends the pieces of the string at at with a value.
func appendPieces(pieces []piece, at span, before, value string) []piece {
	if len(value) <= 3*reach {
		return append(pieces, piece{at, before, value, 0, len(value)})
	}
	head, tail := reach, len(value)-reach
	for !utf8.RuneStart(value[head]) && head < tail {
		head++
	}
	for !utf8.RuneStart(value[tail]) && head < tail {
		tail--
	}
	return append(pieces, piece{at, before, value[:head], 0, tail}, piece{at, "\n\x00\n", value[tail:], tail, len(value)})
}

// separated returns what stands before the piece behind pieces: between, or if the last one ends with padding what no
// match goes over. The sign = of padding is not that of a name before its value.
func separated(pieces []piece, between string) string {
	if len(pieces) > 0 && isPadded(pieces[len(pieces)-1].text) {
		return "\n\x00\n"
	}
	return between
}

// isPadded reports whether text ends with digits of base64 and its padding.
func isPadded(text string) bool {
	const least = 10 // digits
	padding := len(text) - len(strings.TrimRight(text, "="))
	if padding == 0 || padding > 2 {
		return false
	}
	text = text[:len(text)-padding]
	digits := text[len(strings.TrimRight(text, base64Digits+"-_")):]
	return len(digits) >= least && strings.ContainsAny(digits, "0123456789") && !secretWords.Contains(digits)
}

// joined examines the concatenation of pieces and end. It does not report known secrets again.
func (d *document) joined(pieces []piece, end string) error {
	b := d.pieces[:0]
	for i := range pieces {
		b = append(append(b, pieces[i].before...), pieces[i].text...)
	}
	b = append(b, end...)
	d.pieces = b
	marks, _, err := d.examine(view(b))
	if err != nil || len(marks) == 0 {
		return err
	}
	known := make([][]mark, len(pieces))
	for i, p := range pieces {
		if t := d.dirty[p.Start]; t != nil {
			known[i] = merge(t.marks)
		}
	}
	marks = merge(marks)
	reported := -1 // index of a mark
	at, first := 0, 0
	for i, p := range pieces {
		at += len(p.before)
		for first < len(marks) && marks[first].End <= at {
			first++
		}
		for n := first; n < len(marks) && marks[n].Start < at+len(p.text); n++ {
			m := marks[n]
			in := span{p.from + max(m.Start-at, 0), p.from + m.End - at}
			if m.End > at+len(p.text) {
				in.End = p.to
			}
			if in.Start >= in.End || covered(known[i], in) {
				continue
			}
			var found []Finding
			if reported != n {
				reported = n
				found = []Finding{{Rule: m.rule, Line: 1 + strings.Count(p.text[:in.Start-p.from], "\n")}}
			}
			d.note(p.span, []mark{{in, m.rule}}, found)
		}
		at += len(p.text)
	}
	return nil
}

// maxRepeated is the length of the longest strings that are kept in clean, numRepeated the most of them.
const maxRepeated, numRepeated = 64, 256

// A shortText is a text of at most maxRepeated bytes.
type shortText struct {
	size  uint8
	bytes [maxRepeated]byte
}

func (t *shortText) is(text string) bool { return string(t.bytes[:t.size]) == text }

func (t *shortText) set(text string) { t.size = uint8(copy(t.bytes[:], text)) }

// scan examines a string or key. text is its unquoted value.
func (d *document) scan(at span, text string) error {
	if d.inText || len(text) < d.s.set.MinLen() || !d.isHot(at) {
		return nil
	}
	var known *shortText // where text is kept if it is clean
	if len(text) <= maxRepeated && !d.escaped(at) {
		if d.clean == nil {
			d.clean = make([]shortText, numRepeated)
		}
		if known = &d.clean[maphash.String(seed, text)%numRepeated]; known.is(text) {
			return nil
		}
	}
	marks, found, err := d.examine(text)
	if known != nil && err == nil && len(marks)+len(found) == 0 {
		known.set(text)
	}
	d.note(at, marks, found)
	return err
}

func (d *document) note(at span, marks []mark, found []Finding) {
	if len(marks) > 0 {
		t := d.dirtyAt(at)
		t.marks = append(t.marks, marks...)
	}
	d.found = slices.Grow(d.found, len(found))
	for _, f := range found {
		d.found = append(d.found, placedFinding{f, at.Start})
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

func (d *document) top() *frame {
	if len(d.stack) == 0 {
		return nil
	}
	return &d.stack[len(d.stack)-1]
}

// isHot reports whether a string has to be examined.
func (d *document) isHot(s span) bool {
	if d.all || s.End-s.Start >= long {
		return true
	}
	for i := s.Start; i < s.End; i = i | 63 + 1 {
		in := ^uint64(0) << (i & 63)
		if end := s.End - i&^63; end < 64 {
			in &= 1<<(end&63) - 1
		}
		if d.hot[i>>6]&in != 0 {
			return true
		}
	}
	return d.escaped(s) || !d.ascii && !regexset.ASCII(view(d.raw[s.Start:s.End]))
}

func (d *document) unquote(at span) string {
	var own []byte
	return d.unquoteIn(&own, at)
}

// escaped reports whether a string or key has a backslash. Only without one is its value a part of raw.
func (d *document) escaped(at span) bool { return bytes.IndexByte(d.raw[at.Start:at.End], '\\') >= 0 }

// unquoteIn returns the value of a string or key. It is valid until buf changes.
func (d *document) unquoteIn(buf *[]byte, at span) string {
	body := d.raw[at.Start+1 : at.End-1]
	if !d.escaped(at) {
		return view(body)
	}
	*buf, _ = rawjson.AppendUnescaped((*buf)[:0], body)
	return view(*buf)
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
	out := make([]byte, 0, len(d.raw)+64*len(d.dirty))
	at := 0
	for _, start := range slices.Sorted(maps.Keys(d.dirty)) {
		t := d.dirty[start]
		out = append(out, d.raw[at:t.Start]...)
		at = t.End
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
	rule, quoted := "", []byte(nil) // of the last mark
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
			rule, quoted = m.rule, rawjson.Quote(replacement(m.rule))
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
	slices.SortStableFunc(d.found, func(a, b placedFinding) int { return cmp.Compare(a.at, b.at) })
	out := make([]Finding, 0, len(d.found))
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
		for at := ""; len(out) < len(d.found) && d.found[len(out)].at == t.Start; {
			if at == "" {
				at = fieldOf(path)
			}
			f := d.found[len(out)].Finding
			f.Field = at
			out = append(out, f)
		}
		if t.Event == rawjson.ObjectStart || t.Event == rawjson.ArrayStart {
			path = append(path, step{array: t.Event == rawjson.ArrayStart, index: -1})
		}
		return len(out) < len(d.found)
	})
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

// view returns b as a string without a copy. b must not change while the string is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
