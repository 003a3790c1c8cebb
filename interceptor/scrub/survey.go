package scrub

import "strings"

// A survey of a document says which of its strings have anything in them that
// an examination could stop at. Most strings of most documents have not, and
// examining each by itself costs more than all of them at once.
type survey struct {
	raw    string
	all    bool     // nothing can be ruled out
	ascii  bool     // the document is
	blocks []uint64 // a bit for every 16 bytes
}

const blockBits = 4

// survey looks through raw.
func (j *job) survey(raw string) (*survey, error) {
	s := &survey{raw: raw, all: len(j.engine.always) > 0 || len(raw) < 256, ascii: ascii(raw)}
	if s.all {
		return s, nil
	}
	s.blocks = make([]uint64, len(raw)>>(blockBits+6)+1)
	for at := 0; at < len(raw); {
		if err := j.limit.check(); err != nil {
			return nil, err
		}
		at, j.scratch.found = j.engine.matcher.look(raw, at, j.scratch.found[:0])
		for _, f := range j.scratch.found {
			s.add(int(f.at), int(f.at)+len(j.engine.matcher.texts[f.literal]))
		}
	}
	for at := 0; ; {
		run, ok := nextRun(raw, span{at, len(raw)})
		if !ok {
			break
		}
		s.add(run.start, run.end)
		at = run.end
	}
	for at := 0; ; at++ {
		i := strings.IndexByte(raw[at:], '%')
		if i < 0 {
			return s, nil
		}
		at += i
		s.add(at, at+1)
	}
}

func (s *survey) add(start, end int) {
	for b := start >> blockBits; b <= (end-1)>>blockBits; b++ {
		s.blocks[b>>6] |= 1 << (b & 63)
	}
}

// hot reports whether a string has to be examined.
func (s *survey) hot(t quoted) bool {
	if s.all {
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
