package budget

import (
	"fmt"
	"math"
	"strconv"
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
	return &Counter{encoding: e.name, scale: 1, vocab: loadVocabulary(e.vocabulary)}, nil
}

// WithScale returns a counter whose every count is c's encoding's count times
// scale, rounded up, for models whose tokenizer is not public. The scale
// replaces one set before; it must be from 0.01 to 100.
func (c *Counter) WithScale(scale float64) (*Counter, error) {
	if !(scale >= 0.01 && scale <= 100) {
		return nil, fmt.Errorf("token scale %v: use a number from 0.01 to 100", scale)
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
func (c *Counter) Count(text string) int { return c.CountBytes(bytesOf(text)) }

// CountBytes returns the number of tokens in b, which it does not keep.
func (c *Counter) CountBytes(b []byte) int {
	return c.scaled(c.tokens(b, math.MaxInt))
}

// Exceeds reports whether text has more than n tokens. It reads no more of the
// text than it needs to know.
func (c *Counter) Exceeds(text string, n int) bool {
	limit := c.unscaled(n)
	if limit >= mostTokens*len(text) {
		return false
	}
	return c.tokens(bytesOf(text), limit) > limit
}

// mostTokens is the most tokens that a byte can have: one that is not part of a
// character counts as U+FFFD, of three bytes.
const mostTokens = 3

// tokens returns the number of tokens of the encoding in b, or some number above
// limit if it is above limit.
func (c *Counter) tokens(b []byte, limit int) int {
	w := c.vocab.worker()
	defer c.vocab.release(w)
	// Where a limit may be met early, a stream spares looking at all of b first.
	if unlimited := limit >= len(b); (unlimited || len(b) <= streamBuffer) && valid(b) {
		tokens, _ := w.count(b, len(b), limit)
		return tokens
	}
	s := &w.stream
	s.begin(c, w, limit)
	s.Write(b)
	s.end()
	return s.tokens
}

// scaled returns the count to report for a number of tokens of the encoding.
func (c *Counter) scaled(tokens int) int {
	if c.scale == 1 {
		return tokens
	}
	return int(math.Ceil(float64(tokens) * c.scale))
}

// unscaled returns the largest number of tokens of the encoding for which the
// count to report is at most n, or -1.
func (c *Counter) unscaled(n int) int {
	if n < 0 {
		return -1
	}
	const endless = 1 << 50 // no text has as many tokens
	if c.scale == 1 || n >= endless {
		return n
	}
	tokens := int(float64(n) / c.scale)
	for c.scaled(tokens) > n {
		tokens--
	}
	for c.scaled(tokens+1) <= n {
		tokens++
	}
	return tokens
}
