package scrub

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxPair is the length up to which a value is also examined together with its
// key. What is longer is no secret that only its key gives away.
const maxPair = 4096

// JSON removes secrets from all strings and keys of a JSON value, as
// [Scrubber.Text] does from each of them, and besides
//
//   - examines "key": "value" together where the value is short,
//   - examines the text blocks of one content array joined without a separator,
//     as a model reads them,
//   - examines and encodes again what is in a base64 "blob" of text.
//
// Only the string tokens with a secret change; all other bytes stay. Where
// there is none, clean is raw itself. Where two keys of an object get the same
// replacement, the second ends in #2. On an error, which includes JSON that is
// cut or badly nested, raw must be withheld; clean is then nil.
func (s *Scrubber) JSON(ctx context.Context, raw []byte) (clean []byte, found []Finding, err error) {
	defer func() {
		if e := recover(); e != nil {
			clean, found, err = nil, nil, fault(e)
		}
	}()
	d := &document{job: s.begin(ctx), raw: raw}
	if err = d.job.limit.check(); err != nil {
		return nil, nil, err
	}
	d.stack = d.job.scratch.stack[:0]
	if err = d.survey.look(&d.job, raw); err != nil {
		return nil, nil, err
	}
	walkErr := rawjson.Walk(raw, func(t rawjson.Token) bool {
		err = d.token(t)
		return err == nil
	})
	if err == nil && walkErr != nil {
		err = fmt.Errorf("scrub: %w", walkErr)
	}
	if err != nil {
		return nil, nil, err
	}
	d.job.scratch.stack = keep(d.stack)
	d.job.scratch.hot = keep(d.survey.hot)
	d.job.end()
	if len(d.dirty) == 0 {
		return raw, d.findings(), nil
	}
	return d.rewrite(), d.findings(), nil
}

// A document is one JSON value on its way through the scrubber.
type document struct {
	job    job
	raw    []byte
	survey survey
	stack  []frame
	dirty  map[int]*stringToken // those with a secret, by where they start; nil for none
	found  []placed
}

// placed is a finding in the string that starts at byte at.
type placed struct {
	Finding
	at int
}

// A quoted is a string literal of the document, quotes included.
type quoted struct{ start, end int }

// A stringToken is a literal with a secret.
type stringToken struct {
	quoted
	object int // start of the object, for a key; else -1
	marks  []mark
	blob   string // replaces the whole string if not ""
}

// A frame is an object or array around the position. The quoted of an object
// are those of some of its members, none where end is 0.
type frame struct {
	start   int
	array   bool
	content bool     // an array that is the value of a "content"
	blocks  []quoted // of such an array
	key     quoted   // of an object: the member that is being read
	name    string   // the key, decoded
	isText  bool     // of an object: "type" is "text"
	text    quoted   // of an object: its "text"
	blob    quoted   // of an object: its "blob"
	mime    string   // of an object: its "mimeType"
}

func (d *document) token(t rawjson.Token) error {
	switch t.Event {
	case rawjson.ObjectStart, rawjson.ArrayStart:
		f := frame{start: t.Start, array: t.Event == rawjson.ArrayStart}
		if up := d.top(); up != nil && f.array && !up.array && up.name == "content" {
			f.content = true
		}
		d.stack = append(d.stack, f)
	case rawjson.ObjectEnd, rawjson.ArrayEnd:
		f := d.top()
		d.stack = d.stack[:len(d.stack)-1]
		err := d.leave(f)
		*f = frame{} // it holds parts of the document
		return err
	case rawjson.KeyToken:
		f := d.top()
		f.key = quoted{t.Start, t.End}
		f.name = d.decode(f.key)
		return d.scan(f.key, f.name)
	case rawjson.StringToken:
		return d.value(quoted{t.Start, t.End})
	}
	return nil
}

func (d *document) top() *frame {
	if len(d.stack) == 0 {
		return nil
	}
	return &d.stack[len(d.stack)-1]
}

// value examines a string that is not a key.
func (d *document) value(t quoted) error {
	text := d.decodeIn(&d.job.scratch.decoded, t)
	f := d.top()
	if f == nil || f.array {
		return d.scan(t, text)
	}
	switch f.name {
	case "type":
		f.isText = text == "text"
	case "text":
		f.text = t
	case "mimeType":
		f.mime = strings.Clone(text)
	case "blob":
		f.blob = t // its mimeType may come later
		return nil
	}
	if err := d.scan(t, text); err != nil {
		return err
	}
	if len(text) > maxPair || !d.survey.isHot(f.key) {
		return nil
	}
	return d.joined([]quoted{f.key, t}, []string{`"`, f.name, `": "`, text, "\"\n"})
}

// leave examines what is complete at the end of an object or array.
func (d *document) leave(f *frame) error {
	if f.array {
		if len(f.blocks) < 2 {
			return nil
		}
		parts := make([]string, 0, 2*len(f.blocks))
		for _, b := range f.blocks {
			parts = append(parts, "", d.decode(b))
		}
		return d.joined(f.blocks, parts)
	}
	if up := d.top(); up != nil && up.content && f.isText && f.text.end > 0 {
		up.blocks = append(up.blocks, f.text)
	}
	if f.blob.end > 0 {
		return d.scanBlob(f)
	}
	return nil
}

// scan examines the decoded text of t.
func (d *document) scan(t quoted, text string) error {
	if len(text) < d.job.engine.shortest || !d.survey.isHot(t) {
		return nil
	}
	marks, found, err := d.job.examine(text)
	if err != nil {
		return err
	}
	if len(marks) > 0 {
		d.mark(t, marks...)
	}
	for _, f := range found {
		d.found = append(d.found, placed{f, t.start})
	}
	return nil
}

// mark notes what is to be redacted in t.
func (d *document) mark(t quoted, marks ...mark) *stringToken {
	token := d.dirty[t.start]
	if token == nil {
		token = &stringToken{quoted: t, object: -1}
		if f := d.top(); f != nil && f.key == t {
			token.object = f.start
		}
		if d.dirty == nil {
			d.dirty = map[int]*stringToken{}
		}
		d.dirty[t.start] = token
	}
	token.marks = append(token.marks, marks...)
	return token
}

// joined examines the concatenation of parts, where every second one is the
// text of a token. What was known before is not reported again.
func (d *document) joined(tokens []quoted, parts []string) error {
	b := d.job.scratch.joined[:0]
	for _, p := range parts {
		b = append(b, p...)
	}
	d.job.scratch.joined = keep(b)
	marks, _, err := d.job.examine(view(b))
	if err != nil || len(marks) == 0 {
		return err
	}
	known := make([][]mark, len(tokens))
	for i, t := range tokens {
		if token := d.dirty[t.start]; token != nil {
			known[i] = merge(slices.Clone(token.marks))
		}
	}
	for _, m := range merge(marks) {
		at, reported := 0, false
		for i, t := range tokens {
			at += len(parts[2*i])
			size := len(parts[2*i+1])
			lo, hi := max(m.start-at, 0), min(m.end-at, size)
			if at += size; lo >= hi {
				continue
			}
			if !covered(known[i], span{lo, hi}) {
				if !reported {
					reported = true
					line := 1 + strings.Count(parts[2*i+1][:lo], "\n")
					d.found = append(d.found, placed{Finding{Rule: m.rule, Line: line}, t.start})
				}
				d.mark(t, mark{span{lo, hi}, m.rule})
			}
		}
	}
	return nil
}

// scanBlob examines the text in a base64 blob, or the blob as it stands if
// there is no text in it.
func (d *document) scanBlob(f *frame) error {
	encoded := d.decode(f.blob)
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !textual(f.mime) && !utf8.Valid(text) {
		return d.scan(f.blob, encoded)
	}
	marks, found, err := d.job.examine(string(text))
	if err != nil || len(marks) == 0 {
		return err
	}
	d.mark(f.blob).blob = base64.StdEncoding.EncodeToString([]byte(redact(string(text), marks)))
	for _, x := range found {
		d.found = append(d.found, placed{x, f.blob.start})
	}
	return nil
}

// textual reports whether a media type is one of text.
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
