package bpe

import (
	"errors"
	"math"
	"slices"
	"unicode/utf8"
)

// streamBuffer is how much text a stream holds at first, in bytes, to find the ends of pieces.
const streamBuffer = 64 << 10

// A Stream counts text that arrives in parts, cut anywhere, as Count does for the whole. Its
// memory grows with the longest piece, such as a word, but not with the text. It is an
// io.WriteCloser, for use by one goroutine at a time.
type Stream struct {
	tokenizer *Tokenizer
	worker    *worker // nil when closed
	tokens    int     // of the pieces that are counted
	text      []byte  // valid UTF-8, not counted yet
	cut       []byte  // a character without its last bytes
	cutRoom   [utf8.UTFMax]byte
}

// Stream returns an empty stream.
func (t *Tokenizer) Stream() *Stream {
	s := new(Stream)
	s.begin(t, t.worker())
	return s
}

// begin makes s an empty stream that uses w.
func (s *Stream) begin(t *Tokenizer, w *worker) {
	if w.text == nil {
		w.text = make([]byte, 0, t.buffer)
	}
	*s = Stream{tokenizer: t, worker: w, text: w.text[:0]}
}

// Tokens returns the count of the text. It is exact after Close, and at most the count before.
func (s *Stream) Tokens() int { return s.tokens }

// Write counts p. It does not keep p, and it fails after Close.
func (s *Stream) Write(p []byte) (int, error) {
	if s.worker == nil {
		return 0, errors.New("write to a closed token stream")
	}
	for rest := p; len(rest) > 0; {
		rest = rest[s.take(rest):]
		s.makeRoom()
	}
	return len(p), nil
}

// Close ends the text, so that Tokens is its count. Closing again does nothing.
func (s *Stream) Close() error {
	if w := s.worker; w != nil {
		s.end()
		s.tokenizer.release(w)
	}
	return nil
}

// end counts the rest of the text. The caller keeps the worker.
func (s *Stream) end() {
	for range s.cut {
		s.text = utf8.AppendRune(s.text, utf8.RuneError)
	}
	s.count(len(s.text))
	s.worker, s.text = nil, nil
}

// take moves the start of p to the text, which has room for two characters, and returns its
// length. Each byte that is not part of a character becomes U+FFFD.
func (s *Stream) take(p []byte) int {
	if len(s.cut) > 0 {
		s.cut = append(s.cut, p[0])
		for len(s.cut) > 0 && utf8.FullRune(s.cut) {
			r, w := utf8.DecodeRune(s.cut)
			s.text = utf8.AppendRune(s.text, r)
			s.cut = append(s.cut[:0], s.cut[w:]...)
			s.makeRoom()
		}
		return 1
	}
	p = p[:min(len(p), cap(s.text)-len(s.text))]
	whole := p[:wholeCharacters(p)]
	if len(whole) == 0 {
		s.cut = append(s.cutRoom[:0], p...)
		return len(p)
	}
	if valid(whole) {
		s.text = append(s.text, whole...)
		return len(whole)
	}
	taken := 0
	for taken < len(whole) && cap(s.text)-len(s.text) >= utf8.UTFMax {
		r, w := utf8.DecodeRune(whole[taken:])
		s.text = utf8.AppendRune(s.text, r)
		taken += w
	}
	return taken
}

// makeRoom makes room for two characters: it counts the pieces with a certain end, and doubles the
// buffer if a piece is longer than half of it.
func (s *Stream) makeRoom() {
	if cap(s.text)-len(s.text) >= 2*utf8.UTFMax {
		return
	}
	s.count(s.tokenizer.pattern.certain(s.text))
	if size := cap(s.text); len(s.text) >= size/2 {
		s.text = slices.Grow(s.text, 2*size-len(s.text))
	}
}

// count counts the pieces that end at bound or before, and removes them from the text.
func (s *Stream) count(bound int) {
	tokens, end := s.worker.count(s.text, bound, math.MaxInt)
	s.tokens += tokens
	s.text = s.text[:copy(s.text, s.text[end:])]
}

// certain returns a bound: pieces that end there or before end there with any text after b.
func (p *pattern) certain(b []byte) int {
	const contractionBytes = 3
	last, _ := utf8.DecodeLastRune(b)
	set := uint(spaces)
	if 1<<classes[last]&p.reach != 0 {
		set = p.reach
	}
	return min(lastOutside(b, set), len(b)-contractionBytes)
}

// lastOutside returns the end of the last character of b with a class outside set, or 0.
func lastOutside(b []byte, set uint) int {
	i := len(b)
	for i > 0 {
		r, w := utf8.DecodeLastRune(b[:i])
		if 1<<classes[r]&set == 0 {
			break
		}
		i -= w
	}
	return i
}

// wholeCharacters returns the length of b without a last character that lacks bytes.
func wholeCharacters(b []byte) int {
	for i := len(b) - 1; i >= 0 && i > len(b)-utf8.UTFMax; i-- {
		if utf8.RuneStart(b[i]) {
			if !utf8.FullRune(b[i:]) {
				return i
			}
			break
		}
	}
	return len(b)
}
