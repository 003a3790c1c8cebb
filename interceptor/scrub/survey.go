package scrub

import (
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// A survey of a document says which of its strings have anything in them that
// an examination could stop at. Most strings of most documents have not, and
// examining each by itself costs more than all of them at once.
type survey struct {
	raw   string
	all   bool     // nothing can be ruled out
	ascii bool     // the document is
	hot   []uint64 // a bit for every byte
}

// long is the length from which on a string is examined in any case.
const long = 2048

// look looks through raw.
func (s *survey) look(j *job, raw []byte) error {
	*s = survey{raw: view(raw), all: len(j.engine.always) > 0, ascii: ascii(view(raw))}
	if s.all {
		return nil
	}
	size := len(raw)/64 + 1
	s.hot = slices.Grow(j.scratch.hot[:0], size)[:size]
	clear(s.hot)
	from := 0
	if len(raw) >= long {
		var err error
		// Where it is wrong is found by the walk that comes after.
		_ = rawjson.Walk(raw, func(t rawjson.Token) bool {
			if t.End-t.Start >= long {
				err = s.part(j, span{from, t.Start})
				from = t.End
			}
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	return s.part(j, span{from, len(raw)})
}

// part looks through a part of the document.
func (s *survey) part(j *job, part span) error {
	text := s.raw[part.start:part.end]
	if err := j.limit.spend(len(text)); err != nil {
		return err
	}
	for at := 0; at < len(text); {
		if at > 0 {
			if err := j.limit.check(); err != nil {
				return err
			}
		}
		at, j.scratch.found = j.engine.matcher.look(text, at, j.scratch.found[:0])
		for _, f := range j.scratch.found {
			at := part.start + int(f.at)
			s.add(at, at+len(j.engine.matcher.texts[f.literal]))
		}
	}
	for at := 0; ; {
		run, ok := nextRun(text, span{at, len(text)})
		if !ok {
			break
		}
		s.add(part.start+run.start, part.start+run.end)
		at = run.end
	}
	for at := 0; ; at++ {
		i := strings.IndexByte(text[at:], '%')
		if i < 0 {
			return nil
		}
		at += i
		s.add(part.start+at, part.start+at+1)
	}
}

// wordOf returns the word of s.hot that byte start is in, the bits of it for the
// bytes from start to end, and the first byte that is not in it.
func wordOf(start, end int) (word int, mask uint64, next int) {
	next = min(end, (start|63)+1)
	return start >> 6, ^uint64(0) >> (64 - (next - start)) << (start & 63), next
}

func (s *survey) add(start, end int) {
	for start < end {
		word, mask, next := wordOf(start, end)
		s.hot[word] |= mask
		start = next
	}
}

// isHot reports whether a string has to be examined.
func (s *survey) isHot(t quoted) bool {
	if s.all || t.end-t.start >= long {
		return true
	}
	for start := t.start; start < t.end; {
		word, mask, next := wordOf(start, t.end)
		if s.hot[word]&mask != 0 {
			return true
		}
		start = next
	}
	body := s.raw[t.start:t.end]
	return strings.IndexByte(body, '\\') >= 0 || !s.ascii && !ascii(body)
}
