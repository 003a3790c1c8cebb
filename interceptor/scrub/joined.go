package scrub

import (
	"encoding/base64"
	"slices"
	"strings"
	"unicode/utf8"
)

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

// scanBlob examines the text in a base64 blob, and the blob as it stands: a
// token may read like base64, and what it is called says nothing.
func (d *document) scanBlob(f *frame) error {
	encoded := d.decode(f.blob)
	text, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || !textual(f.mime) && !utf8.Valid(text) {
		return d.scan(f.blob, encoded)
	}
	marks, found, err := d.job.examine(string(text))
	if err != nil {
		return err
	}
	if len(marks) == 0 {
		return d.plain(f.blob, encoded)
	}
	d.mark(f.blob).blob = base64.StdEncoding.EncodeToString([]byte(redact(string(text), marks)))
	for _, x := range found {
		d.found = append(d.found, placed{x, f.blob.start})
	}
	return nil
}

// plain examines the decoded text of t without decoding it further.
func (d *document) plain(t quoted, text string) error {
	hits, err := d.job.secrets(text)
	if err != nil || len(hits) == 0 {
		return err
	}
	d.mark(t, appendMarks(nil, text, hits)...)
	for _, h := range exact(text, hits) {
		d.found = append(d.found, placed{Finding{Rule: h.rule.id, Line: h.at.startLine + 1}, t.start})
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

// maxPair is the length up to which a value is also examined together with its
// key. What is longer is no secret that only its key gives away.
const maxPair = 4096
