package budget

import (
	"errors"
	"math"
	"unicode/utf8"
	"unsafe"
)

// errLimit is what writing to a stream returns once the text is known to have
// more tokens than its limit.
var errLimit = errors.New("text exceeds the token limit")

// errClosed is what writing to a closed Stream returns.
var errClosed = errors.New("write to a closed token stream")

// streamBuffer is how much text a stream holds to find where pieces end. A piece
// of at least half of it is counted by a long.
const streamBuffer = 64 << 10

// A Stream counts text that arrives in parts, cut anywhere, as Count does for
// the whole, in memory that does not grow with the text. It is an
// io.WriteCloser, and serves one goroutine at a time.
type Stream struct {
	counter *Counter
	worker  *worker // nil when closed
	limit   int     // in tokens of the encoding; Counter.Exceeds sets it
	tokens  int     // of the pieces that are counted
	text    []byte  // valid UTF-8, not counted yet
	long    *long   // the piece that text goes on, if it is a long one
	cut     []byte  // a character that has not arrived entirely
	cutRoom [utf8.UTFMax]byte
}

// Stream returns an empty stream.
func (c *Counter) Stream() *Stream {
	s := new(Stream)
	s.begin(c, c.vocab.worker(), math.MaxInt)
	return s
}

// begin makes s an empty stream that uses w.
func (s *Stream) begin(c *Counter, w *worker, limit int) {
	if w.text == nil {
		w.text = make([]byte, 0, w.v.buffer)
	}
	*s = Stream{counter: c, worker: w, limit: limit, text: w.text[:0]}
}

// Tokens returns the count of the text: exact after Close, and until then a
// number that the count is not below.
func (s *Stream) Tokens() int {
	tokens := s.tokens
	if s.long != nil {
		tokens += s.long.atLeast()
	}
	return s.counter.scaled(tokens)
}

// Write counts p, which it does not keep. It fails after Close.
func (s *Stream) Write(p []byte) (int, error) {
	if s.worker == nil {
		return 0, errClosed
	}
	for rest := p; ; {
		if s.exceeded() {
			return len(p) - len(rest), errLimit
		}
		if len(rest) == 0 {
			return len(p), nil
		}
		rest = rest[s.take(rest):]
		if cap(s.text)-len(s.text) < 2*utf8.UTFMax {
			s.drain(false)
		}
	}
}

// Close ends the text and makes Tokens its count. Closing again does nothing.
func (s *Stream) Close() error {
	if s.worker == nil {
		return nil
	}
	w := s.worker
	s.end()
	s.counter.vocab.release(w)
	if s.exceeded() {
		return errLimit
	}
	return nil
}

// end counts what is left and leaves the worker to the caller.
func (s *Stream) end() {
	if !s.exceeded() {
		for range s.cut {
			s.text = utf8.AppendRune(s.text, utf8.RuneError)
		}
		s.drain(true)
	}
	if s.long != nil {
		s.tokens += s.long.atLeast()
	}
	s.worker, s.text, s.long = nil, nil, nil
}

func (s *Stream) exceeded() bool {
	return s.tokens > s.limit || s.long != nil && s.tokens+s.long.atLeast() > s.limit
}

// take moves the start of p to the text and returns how much. Each byte that is
// not part of a character becomes U+FFFD, as when Go converts a string to runes.
// The text must have room for two characters.
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

// wholeCharacters returns the length of b without a last character of which
// bytes are missing.
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

// drain counts the pieces whose end is certain; all of them if the text is final.
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
			bound = s.counter.vocab.grammar.certain(s.text)
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

// bytesOf returns the bytes of text, which must not be changed.
func bytesOf(text string) []byte {
	return unsafe.Slice(unsafe.StringData(text), len(text))
}
