package scrub

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"
)

// Options says how a [Scrubber] works. The zero value has the default rules
// and no time limit.
type Options struct {
	// Rules is the path of a gitleaks configuration in TOML whose rules and
	// allow-lists are added to the default ones; "" for none.
	Rules string
	// Known are secrets that are known as they are, such as the tokens of hosts:
	// two bytes of ASCII or more each. They are redacted as foldgate-token.
	Known []string
	// Timeout bounds the time for one text or message; 0 for no bound.
	Timeout time.Duration
	// Exact redacts all that the rules find. Otherwise the checksums of lock
	// files, which generic rules take for keys, are left alone: h1:… of Go and
	// sha512-… of package managers.
	Exact bool
}

// A Scrubber finds and removes secrets. It is safe for concurrent use.
type Scrubber struct {
	engine  *engine
	timeout time.Duration
	exact   bool
}

// A Finding says where a secret was. It never holds the secret.
type Finding struct {
	// Rule is the id of the rule that found it.
	Rule string `json:"rule"`
	// Line is the line, from 1, in which the rule's match starts; in JSON the
	// line within the string.
	Line int `json:"line"`
	// Where is the path of the JSON string, such as $.content[0].text; "" for
	// plain text.
	Where string `json:"where,omitempty"`
}

// New returns a Scrubber with the rules of opts. It fails if they do not load.
func New(opts Options) (*Scrubber, error) {
	set, err := loadRules(opts.Rules, opts.Known)
	if err != nil {
		return nil, fmt.Errorf("scrub: %w", err)
	}
	e, err := newEngine(set)
	if err != nil {
		return nil, fmt.Errorf("scrub: %w", err)
	}
	return &Scrubber{engine: e, timeout: opts.Timeout, exact: opts.Exact}, nil
}

// Rules returns how many rules look at a text.
func (s *Scrubber) Rules() int { return len(s.engine.set.rules) }

// Text returns text with every secret replaced by [REDACTED:rule], and what
// was found. Text without a secret is returned as it is. On an error (a fault
// of the engine, [ErrTimeLimit], the end of ctx) nothing is known about the
// text, and it must be withheld; clean is then "".
func (s *Scrubber) Text(ctx context.Context, text string) (clean string, found []Finding, err error) {
	defer func() {
		if e := recover(); e != nil {
			clean, found, err = "", nil, fault(e)
		}
	}()
	j := s.begin(ctx)
	if err := j.limit.check(); err != nil {
		return "", nil, err
	}
	marks, found, err := j.examine(text)
	if err != nil {
		return "", nil, err
	}
	j.end()
	return redact(text, marks), found, nil
}

// fault is the error for a panic. Its value may quote the text, so only its
// type is told.
func fault(e any) error { return fmt.Errorf("scrub: fault of the engine: %T", e) }

// A mark is a range of a text to be replaced, and the rule that asks for it.
type mark struct {
	span
	rule string
}

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
	if err := j.limit.spend(len(text)); err != nil {
		return nil, nil, err
	}
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
		if marks, found, err = j.encoded(text, marks, found); err != nil {
			return nil, nil, err
		}
	}
	sortFindings(found)
	return marks, found, nil
}

// encoded adds what text holds in other encodings to marks and found.
func (j *job) encoded(text string, marks []mark, found []Finding) ([]mark, []Finding, error) {
	hidden, err := j.decode(text, span{0, len(text)}, 1)
	if err != nil || len(hidden) == 0 {
		return marks, found, err
	}
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
	return marks, found, nil
}

// mayDecode reports whether text may hold something in another encoding.
func mayDecode(text string) bool {
	if strings.IndexByte(text, '%') >= 0 || strings.IndexByte(text, '\\') >= 0 || !ascii(text) {
		return true
	}
	_, ok := nextRun(text, span{0, len(text)})
	return ok
}

// secrets returns the hits in text that are neither foldgate's ids nor excepted.
func (j *job) secrets(text string) ([]hit, error) {
	hits, err := j.engine.find(text, j.scratch, &j.limit)
	if err != nil || len(hits) == 0 {
		return nil, err
	}
	return slices.DeleteFunc(hits, func(h hit) bool {
		return len(h.parts(text)) == 0 || !j.exact && isChecksum(text, &h)
	}), nil
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

// appendMarks appends the marks for hits in text.
func appendMarks(marks []mark, text string, hits []hit) []mark {
	for i := range hits {
		for _, part := range hits[i].parts(text) {
			marks = append(marks, mark{part, hits[i].rule.id})
		}
	}
	return marks
}

// redacted returns the range of the text that must not be shown.
func (h *hit) redacted() span {
	if h.secret.start < h.secret.end {
		return h.secret
	}
	return h.match
}

// parts returns the ranges of the text that must not be shown.
func (h *hit) parts(text string) []span {
	if h.rule.certain {
		return []span{h.match}
	}
	return carve(text, h.redacted())
}

func sortFindings(f []Finding) {
	slices.SortStableFunc(f, func(a, b Finding) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return strings.Compare(a.Rule, b.Rule)
	})
}

// merge sorts marks and joins those that overlap under the rule of the longest.
func merge(marks []mark) []mark {
	slices.SortStableFunc(marks, func(a, b mark) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	var out []mark
	longest := 0
	for _, m := range marks {
		n := m.end - m.start
		if last := len(out) - 1; last >= 0 && m.start < out[last].end {
			out[last].end = max(out[last].end, m.end)
			if n > longest {
				longest, out[last].rule = n, m.rule
			}
			continue
		}
		longest = n
		out = append(out, m)
	}
	return out
}

// covered reports whether s lies within one of the marks, which are merged.
func covered(marks []mark, s span) bool {
	n := sort.Search(len(marks), func(n int) bool { return marks[n].end >= s.end })
	return n < len(marks) && marks[n].start <= s.start
}

// redact returns text with the marked ranges replaced.
func redact(text string, marks []mark) string {
	if len(marks) == 0 {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 64)
	at := 0
	for _, m := range merge(marks) {
		b.WriteString(text[at:m.start])
		b.WriteString(replacement(m.rule))
		at = m.end
	}
	b.WriteString(text[at:])
	return b.String()
}

func replacement(rule string) string { return "[REDACTED:" + rule + "]" }
