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
