package budget

import (
	"fmt"
	"math"
	"strconv"
	"unsafe"

	"github.com/foldgate/foldgate/budget/bpe"
)

// A Counter counts the tokens of texts in one encoding. Its counts are equal to tiktoken's, times
// the scale if one is set. The names of special tokens are ordinary text. A Counter is immutable
// and safe for concurrent use.
type Counter struct {
	encoding  string
	scale     float64
	tokenizer *bpe.Tokenizer
}

// NewCounter returns a counter for an encoding ("o200k_base") or a model ("gpt-4o-mini"). The
// error lists the encodings. The first count loads the vocabulary.
func NewCounter(name string) (*Counter, error) {
	encoding, err := resolve(name)
	if err != nil {
		return nil, err
	}
	return &Counter{encoding: encoding, scale: 1, tokenizer: tokenizers[encoding]}, nil
}

// Bounds of the scale of a [Counter].
const (
	MinScale = 0.01
	MaxScale = 100.
)

// WithScale returns a counter of c's encoding that multiplies each count by scale, from [MinScale] to
// [MaxScale], and rounds up. It is for models without a public tokenizer.
func (c *Counter) WithScale(scale float64) (*Counter, error) {
	if !(scale >= MinScale && scale <= MaxScale) {
		return nil, fmt.Errorf("token scale %v: use a number from %v to %v", scale, MinScale, MaxScale)
	}
	scaled := *c
	scaled.scale = scale
	return &scaled, nil
}

// Name returns the name of c in records: the encoding, followed by "*" and the scale if that is
// not 1, as in "o200k_base*1.15".
func (c *Counter) Name() string {
	if c.scale == 1 {
		return c.encoding
	}
	return c.encoding + "*" + strconv.FormatFloat(c.scale, 'g', -1, 64)
}

// Count returns the number of tokens in text.
func (c *Counter) Count(text string) int { return c.CountBytes(bytesOf(text)) }

// CountBytes returns the number of tokens in b. It does not keep b.
func (c *Counter) CountBytes(b []byte) int { return c.scaled(c.tokenizer.Count(b)) }

// Exceeds reports whether text has more than n tokens. It stops counting as soon as it knows,
// unless text is not valid UTF-8.
func (c *Counter) Exceeds(text string, n int) bool {
	return c.tokenizer.Exceeds(bytesOf(text), c.unscaled(n))
}

// Truncate returns the start of text that has at most n tokens, and its count: tokens ==
// Count(kept) <= n. It cuts at the start of a character, as late as it can find. It returns a
// text that fits whole, and treats n below 0 as 0. It allocates, in proportion to n, only if it
// cuts text that is not valid UTF-8.
func (c *Counter) Truncate(text string, n int) (kept string, tokens int) {
	length, tokens := c.tokenizer.Truncate(bytesOf(text), max(c.unscaled(n), 0))
	return text[:length], c.scaled(tokens)
}

// A Stream counts text that arrives in parts, cut anywhere, as Count does for the whole. Its
// memory grows with the longest word, but not with the text. It is an io.WriteCloser, for use by
// one goroutine at a time.
type Stream struct {
	*bpe.Stream // Write and Close
	counter     *Counter
}

// Stream returns an empty stream.
func (c *Counter) Stream() *Stream { return &Stream{c.tokenizer.Stream(), c} }

// Tokens returns the count of the text. It is exact after Close, and at most the count before.
func (s *Stream) Tokens() int { return s.counter.scaled(s.Stream.Tokens()) }

// scaled returns the count to report for a number of tokens of the encoding.
func (c *Counter) scaled(tokens int) int {
	if c.scale == 1 {
		return tokens
	}
	return int(math.Ceil(float64(tokens) * c.scale))
}

// unscaled returns the most tokens with a scaled count of at most n, or -1 if n is negative.
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

// bytesOf returns the bytes of text, which must not be changed.
func bytesOf(text string) []byte {
	return unsafe.Slice(unsafe.StringData(text), len(text))
}
