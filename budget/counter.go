package budget

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"
)

// A Counter counts the tokens of texts in one encoding. Its counts are those of
// tiktoken for the same text, times the scale if one is set; the names of
// special tokens are ordinary text. A Counter is immutable and safe for
// concurrent use.
type Counter struct {
	encoding string
	scale    float64
	vocab    *vocabulary
}

// NewCounter returns a counter for an encoding ("o200k_base") or for a model
// ("gpt-4o-mini"). The error for an unknown name lists the known ones.
func NewCounter(name string) (*Counter, error) {
	e, err := resolve(name)
	if err != nil {
		return nil, err
	}
	v, err := loadVocabulary(e.vocabulary)
	if err != nil {
		return nil, err
	}
	return &Counter{encoding: e.name, scale: 1, vocab: v}, nil
}

// WithScale returns a counter whose every count is c's encoding's count times
// scale, rounded up, for models whose tokenizer is not public. The scale
// replaces one set before; it must be a finite number above 0 and at most 100.
func (c *Counter) WithScale(scale float64) (*Counter, error) {
	if !(scale > 0 && scale <= 100) {
		return nil, fmt.Errorf("token scale %v: use a number above 0 and at most 100", scale)
	}
	scaled := *c
	scaled.scale = scale
	return &scaled, nil
}

// Name returns the name under which records state counts of c: the encoding,
// followed by "*" and the scale when that is not 1, as in "o200k_base*1.15".
func (c *Counter) Name() string {
	if c.scale == 1 {
		return c.encoding
	}
	return c.encoding + "*" + strconv.FormatFloat(c.scale, 'g', -1, 64)
}

// Count returns the number of tokens in text.
func (c *Counter) Count(text string) int {
	return c.scaled(c.vocab.count(text))
}

// CountBytes returns the number of tokens in b, which it does not keep.
func (c *Counter) CountBytes(b []byte) int {
	return c.Count(string(b))
}

// Exceeds reports whether text has more than n tokens. It reads no more of the
// text than it needs to know.
func (c *Counter) Exceeds(text string, n int) bool {
	return c.Count(text) > n
}

// Truncate returns the start of text, cut at a rune boundary, that has at most
// n tokens, and its count: tokens == Count(kept) <= n.
func (c *Counter) Truncate(text string, n int) (kept string, tokens int) {
	if total := c.Count(text); total <= n {
		return text, total
	}
	lo, hi := 0, len(text)
	for lo < hi {
		mid := (lo + hi + 1) / 2
		for mid < len(text) && !utf8.RuneStart(text[mid]) {
			mid++
		}
		if mid > hi {
			break
		}
		if t := c.Count(text[:mid]); t <= n {
			lo, tokens = mid, t
		} else {
			hi = mid - 1
		}
	}
	return text[:lo], tokens
}

// scaled returns the count to report for a number of tokens of the encoding.
func (c *Counter) scaled(tokens int) int {
	if c.scale == 1 {
		return tokens
	}
	return int(math.Ceil(float64(tokens) * c.scale))
}
