package scrub

import (
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// A survey of a document says which of its strings have anything in them that
// an examination could stop at. Most strings of most documents have not, and
// examining each by itself costs more than all of them at once.
type survey struct {
	raw    string
	all    bool     // nothing can be ruled out
	ascii  bool     // the document is
	blocks []uint64 // a bit for every 16 bytes
}

const (
	blockBits = 4
	// long is the length from which on a string is examined in any case.
	long = 2048
)

// survey looks through raw.
func (j *job) survey(raw []byte) (*survey, error) {
	s := &survey{raw: view(raw), all: len(j.engine.always) > 0 || len(raw) < 256, ascii: ascii(view(raw))}
	if s.all {
		return s, nil
	}
	s.blocks = make([]uint64, len(raw)>>(blockBits+6)+1)
	from := 0
	var err error
	// Where it is wrong is found by the walk that comes after.
	_ = rawjson.Walk(raw, func(t rawjson.Token) bool {
		if t.End-t.Start >= long {
			err = j.surveyPart(s, span{from, t.Start})
			from = t.End
		}
		return err == nil
	})
	if err != nil {
		return nil, err
	}
	return s, j.surveyPart(s, span{from, len(raw)})
}

// surveyPart looks through a part of the document.
func (j *job) surveyPart(s *survey, part span) error {
	text := s.raw[part.start:part.end]
	for at := 0; at < len(text); {
		if err := j.limit.check(); err != nil {
			return err
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

func (s *survey) add(start, end int) {
	for b := start >> blockBits; b <= (end-1)>>blockBits; b++ {
		s.blocks[b>>6] |= 1 << (b & 63)
	}
}

// hot reports whether a string has to be examined.
func (s *survey) hot(t quoted) bool {
	if s.all || t.end-t.start >= long {
		return true
	}
	for b := t.start >> blockBits; b <= (t.end-1)>>blockBits; b++ {
		if s.blocks[b>>6]>>(b&63)&1 != 0 {
			return true
		}
	}
	body := s.raw[t.start:t.end]
	return strings.IndexByte(body, '\\') >= 0 || !s.ascii && !ascii(body)
}
