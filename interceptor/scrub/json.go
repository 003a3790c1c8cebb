package scrub

import (
	"context"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// JSON removes secrets from all strings and keys of a JSON value, as
// [Scrubber.Text] does from each of them, and besides
//
//   - examines "key": "value" together where the value is short and the key
//     holds a literal that a rule looks for,
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
		earlier := f.blob
		if f.blob = t; earlier.end > 0 { // there are two of them
			return d.scan(earlier, d.decode(earlier))
		}
		return nil // its mimeType may come later
	}
	if err := d.scan(t, text); err != nil {
		return err
	}
	if len(text) > maxPair || !d.survey.isHot(f.key) {
		return nil
	}
	return d.joined([]quoted{f.key, t}, []string{`"`, f.name, `": "`, text, "\"\n"})
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
