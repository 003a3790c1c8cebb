package bpe

import (
	"errors"
	"math"
	"unicode/utf8"
)

// streamBuffer is how much text a stream holds, in bytes, to find the ends of pieces. A long
// counts a piece of at least half of it.
const streamBuffer = 64 << 10

// A Stream counts text that arrives in parts, cut anywhere, as Count does for the whole. Its
// memory does not grow with the text. It is an io.WriteCloser, for use by one goroutine at a
// time.
type Stream struct {
	tokenizer *Tokenizer
	worker    *worker // nil when closed
	limit     int     // in tokens; text after it is not counted
	tokens    int     // of the pieces that are counted
	text      []byte  // valid UTF-8, not counted yet
	long      *long   // the piece that text continues, if it is a long one
	cut       []byte  // a character without its last bytes
	cutRoom   [utf8.UTFMax]byte
}

// Stream returns an empty stream.
func (t *Tokenizer) Stream() *Stream {
	s := new(Stream)
	s.begin(t, t.worker(), math.MaxInt)
	return s
}

// begin makes s an empty stream that uses w.
func (s *Stream) begin(t *Tokenizer, w *worker, limit int) {
	if w.text == nil {
		w.text = make([]byte, 0, t.buffer)
	}
	*s = Stream{tokenizer: t, worker: w, limit: limit, text: w.text[:0]}
}

// Tokens returns the count of the text. It is exact after Close, and at most the count before.
func (s *Stream) Tokens() int {
	if s.long != nil {
		return s.tokens + s.long.atLeast()
	}
	return s.tokens
}

// Write counts p. It does not keep p, and it fails after Close.
func (s *Stream) Write(p []byte) (int, error) {
	if s.worker == nil {
		return 0, errors.New("write to a closed token stream")
	}
	for rest := p; len(rest) > 0 && !s.exceeded(); {
		rest = rest[s.take(rest):]
		if cap(s.text)-len(s.text) < 2*utf8.UTFMax {
			s.drain(false)
		}
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
	if !s.exceeded() {
		for range s.cut {
			s.text = utf8.AppendRune(s.text, utf8.RuneError)
		}
		s.drain(true)
	}
	s.tokens = s.Tokens()
	s.worker, s.text, s.long = nil, nil, nil
}

func (s *Stream) exceeded() bool { return s.Tokens() > s.limit }

// take moves the start of p to the text, which has room for two characters, and returns its
// length. Each byte that is not part of a character becomes U+FFFD.
func (s *Stream) take(p []byte) int {
	if len(s.cut) > 0 {
		s.cut = append(s.cut, p[0])
		for len(s.cut) > 0 && utf8.FullRune(s.cut) {
			r, w := utf8.DecodeRune(s.cut)
			s.text = utf8.AppendRune(s.text, r)
			s.cut = append(s.cut[:0], s.cut[w:]...)
			if cap(s.text)-len(s.text) < 2*utf8.UTFMax {
				s.drain(false)
			}
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

// drain counts the pieces with a certain end, or all of them if the text is final.
func (s *Stream) drain(final bool) {
	for {
		if s.long != nil {
			n, done := s.long.step(s.text, final)
			s.drop(n)
			if !done {
				return
			}
			s.tokens += s.long.tokens
			s.long = nil
		}
		bound := len(s.text)
		if !final {
			bound = s.tokenizer.pattern.certain(s.text)
		}
		tokens, end := s.worker.count(s.text, bound, s.limit-s.tokens)
		s.tokens += tokens
		s.drop(end)
		if final || len(s.text) < cap(s.text)/2 || s.tokens > s.limit {
			return
		}
		s.long = s.worker.newLong(s.text)
	}
}

// drop removes the first n bytes of the text.
func (s *Stream) drop(n int) {
	s.text = s.text[:copy(s.text, s.text[n:])]
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
