package scrub

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"hash/maphash"
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
//   - examines and encodes again the text in a base64 "blob" and in an array of bytes.
//
// Only string tokens and arrays of bytes with a secret change. Without a secret, clean is raw itself. If two keys of
// an object get the same replacement, the second ends in #2. After an error, which includes JSON
// that is cut or badly nested, clean is nil and raw must be withheld.
func (s *Scrubber) JSON(ctx context.Context, raw []byte) (clean []byte, found []Finding, err error) {
	err = s.run(ctx, len(raw), func(x *examination) error {
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
	found      []placedFindings
	lists      map[uint64]bool // the paths of hot strings; see together
	named      []piece         // names and values; see pair
	namedBytes int             // of the texts of those
	inText     bool            // raw is a text, of which only the pairs are of interest; see addJSON
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
	if err := d.limit.Spend(perByte * len(text)); err != nil {
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
	for i := 0; i+listWindow <= len(text); i += listStride {
		if !hasLetter(text, i) && mayBeList(text[i:i+listWindow]) {
			add(i)
		}
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
	numbers int    // of its elements or members, those that are short enough to be a byte
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
	escapes := bytes.Count(d.raw[at.Start:at.End], []byte{'\\'})
	if err := d.limit.Spend(perToken + perByte*(at.End-at.Start) + perEscape*escapes); err != nil {
		return err
	}
	if f != nil && f.array {
		f.column++
	}
	switch t.Event {
	case rawjson.ObjectStart, rawjson.ArrayStart:
		d.enter(t.Start, t.Event == rawjson.ArrayStart)
	case rawjson.ObjectEnd, rawjson.ArrayEnd:
		d.stack = d.stack[:len(d.stack)-1]
		err := d.leave(f, t.End)
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
	case rawjson.ScalarToken:
		if f != nil && t.End-t.Start <= len("255") {
			f.numbers++
		}
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

// leave examines the parts of an object or array that are complete at its end.
func (d *document) leave(f *frame, end int) error {
	if f.array {
		if f.numbers >= minDecoded && !d.inText {
			if err := d.scanNumbers(span{f.start, end}); err != nil {
				return err
			}
		}
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

// scanNumbers examines the text in an array of bytes, as of a Buffer in JavaScript.
func (d *document) scanNumbers(at span) error {
	var plain []byte
	for number := range strings.SplitSeq(view(d.raw[at.Start+1:at.End-1]), ",") {
		c, err := strconv.ParseUint(strings.TrimSpace(number), 10, 8)
		if err != nil {
			return nil
		}
		plain = append(plain, byte(c))
	}
	if !utf8.Valid(plain) {
		return nil
	}
	text := string(plain)
	marks, found, err := d.examine(text)
	if err != nil || len(marks) == 0 {
		return err
	}
	var with []byte
	for i, c := range []byte(redact(text, marks)) {
		with = strconv.AppendUint(append(with, "[,"[min(i, 1)]), uint64(c), 10)
	}
	d.dirtyAt(at).with = append(with, ']')
	d.note(at, nil, found)
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
		d.dirtyAt(f.blob).with = rawjson.Quote(base64.StdEncoding.EncodeToString([]byte(redact(string(text), marks))))
		d.note(f.blob, nil, found)
		return nil
	}
	hits, _, err := d.hitsAndPairs(encoded)
	if err == nil {
		found, err = d.findingsOf(hits)
	}
	d.note(f.blob, appendMarks(nil, encoded, hits), found)
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

// view returns b as a string without a copy. b must not change while the string is used.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
