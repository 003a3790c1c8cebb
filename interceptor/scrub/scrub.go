package scrub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Options says how a [Scrubber] works. The zero value has the default rules
// and no time limit.
type Options struct {
	// Rules is the path of a gitleaks configuration in TOML whose rules and
	// allow-lists are added to the default ones; "" for none.
	Rules string
	// Timeout bounds the time for one text or message; 0 for no bound.
	Timeout time.Duration
}

// A Scrubber finds and removes secrets. It is safe for concurrent use.
type Scrubber struct {
	engine  *engine
	timeout time.Duration
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
	set, err := loadRules(opts.Rules)
	if err != nil {
		return nil, fmt.Errorf("scrub: %w", err)
	}
	e, err := newEngine(set)
	if err != nil {
		return nil, fmt.Errorf("scrub: %w", err)
	}
	return &Scrubber{engine: e, timeout: opts.Timeout}, nil
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
	limit   *limit
}

func (s *Scrubber) begin(ctx context.Context) *job {
	return &job{s.engine, s.engine.acquire(), newLimit(ctx, s.timeout)}
}

// end gives the memory of a job back. After an error or a panic nobody knows
// what state it is in; it is left to the garbage collector.
func (j *job) end() { j.engine.release(j.scratch) }

// examine returns what is to be redacted in text and what is to be reported.
func (j *job) examine(text string) ([]mark, []Finding, error) {
	if err := j.limit.check(); err != nil {
		return nil, nil, err
	}
	hits, err := j.engine.find(text, j.scratch, j.limit)
	if err != nil || len(hits) == 0 {
		return nil, nil, err
	}
	hits = slices.DeleteFunc(hits, func(h hit) bool { return len(carve(text, h.redacted())) == 0 })
	var marks []mark
	for _, h := range hits {
		for _, part := range carve(text, h.redacted()) {
			marks = append(marks, mark{part, h.rule.id})
		}
	}
	var found []Finding
	for _, h := range exact(text, hits) {
		found = append(found, Finding{Rule: h.rule.id, Line: h.at.startLine + 1})
	}
	sortFindings(found)
	return marks, found, nil
}

// redacted returns the range of the text that must not be shown.
func (h *hit) redacted() span {
	if h.secret.start < h.secret.end {
		return h.secret
	}
	return h.match
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
