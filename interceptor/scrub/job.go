package scrub

import (
	"context"
	"slices"
	"strings"
)

// A job is the examination of one text or message.
type job struct {
	engine  *engine
	scratch *scratch
	limit   limit
	exact   bool // Options.Exact
}

func (s *Scrubber) begin(ctx context.Context) job {
	return job{s.engine, s.engine.acquire(), limit{ctx: ctx, timeout: s.timeout}, s.exact}
}

// end gives the memory of a job back. After an error or a panic nobody knows
// what state it is in; it is left to the garbage collector.
func (j *job) end() { j.engine.release(j.scratch) }

// examine returns what is to be redacted in text and what is to be reported.
func (j *job) examine(text string) ([]mark, []Finding, error) {
	hits, err := j.secrets(text)
	if err != nil {
		return nil, nil, err
	}
	marks := appendMarks(nil, text, hits)
	var found []Finding
	for _, h := range exact(text, hits) {
		found = append(found, Finding{Rule: h.rule.id, Line: h.at.startLine + 1})
	}
	if mayDecode(text) {
		hidden, err := j.decode(text, span{0, len(text)}, 1)
		if err != nil {
			return nil, nil, err
		}
		if len(hidden) > 0 {
			marks, found = reveal(text, hidden, marks, found)
		}
	}
	sortFindings(found)
	return marks, found, nil
}

// reveal adds hidden marks to marks and found, but for what is known.
func reveal(text string, hidden, marks []mark, found []Finding) ([]mark, []Finding) {
	known := merge(slices.Clone(marks))
	line, at := 1, 0
	for _, m := range merge(hidden) {
		if covered(known, m.span) {
			continue
		}
		line += strings.Count(text[at:m.start], "\n")
		at = m.start
		marks = append(marks, m)
		found = append(found, Finding{Rule: m.rule, Line: line})
	}
	return marks, found
}

// mayDecode reports whether text may hold something in another encoding.
func mayDecode(text string) bool {
	if strings.IndexByte(text, '%') >= 0 || strings.IndexByte(text, '\\') >= 0 || strings.IndexByte(text, esc) >= 0 || !ascii(text) {
		return true
	}
	_, ok := nextRun(text, span{0, len(text)})
	return ok
}

// secrets returns the hits in text that are neither foldgate's ids nor excepted.
func (j *job) secrets(text string) ([]hit, error) {
	if err := j.limit.spend(len(text)); err != nil {
		return nil, err
	}
	hits, err := j.engine.find(text, j.scratch, &j.limit)
	if err == nil && j.scratch.excused {
		hits, err = j.excused(text, hits)
	}
	if err != nil || len(hits) == 0 {
		return nil, err
	}
	return slices.DeleteFunc(hits, func(h hit) bool {
		return len(h.parts(text)) == 0 || !j.exact && isChecksum(text, &h)
	}), nil
}

// excused adds to the hits in text those in its last line that are excepted
// for something in another line. What comes after the last line break is for
// gitleaks in one line with everything before it; with a line break more it is
// not.
func (j *job) excused(text string, hits []hit) ([]hit, error) {
	more, err := j.engine.find(text+"\n", j.scratch, &j.limit)
	if err != nil {
		return nil, err
	}
	type place struct {
		rule  *rule
		start int
	}
	known := map[place]bool{}
	for i := range hits {
		known[place{hits[i].rule, hits[i].match.start}] = true
	}
	for _, h := range more {
		h.match.end, h.secret.end = min(h.match.end, len(text)), min(h.secret.end, len(text))
		if !known[place{h.rule, h.match.start}] {
			hits = append(hits, h)
		}
	}
	return hits, nil
}

// decode returns the marks for the secrets that text, within a part of it,
// holds in other encodings, at the given depth of decoding.
func (j *job) decode(text string, within span, depth int) ([]mark, error) {
	var marks []mark
	var err error
	look := func(d decoded) bool {
		var inner []mark
		if inner, err = j.inner(&d, depth); err != nil {
			return false
		}
		for _, m := range inner {
			if d.touched(m.span) {
				marks = append(marks, mark{d.origin(m.span), m.rule})
			}
		}
		return true
	}
	if runs(text, within, look) {
		escapes(text, within, look)
	}
	return marks, err
}

// inner returns the marks for the secrets in what was decoded.
func (j *job) inner(d *decoded, depth int) ([]mark, error) {
	hits, err := j.secrets(d.text)
	marks := appendMarks(nil, d.text, hits)
	if err != nil || depth == maxDepth {
		return marks, err
	}
	deeper, err := j.decode(d.text, d.fresh, depth+1)
	return append(marks, deeper...), err
}
