package bpe

import "unicode/utf8"

// A long counts one piece of any length that arrives in parts, and the rest of its run if that
// becomes a piece of its own. Until it knows whether the piece ends within the run, it counts
// both: the run as one piece, and as two.
type long struct {
	shape  shape
	inTail bool
	tokens int // when done

	joined *incremental // all text so far
	ended  *incremental // if mayEnd: the text up to the last place where the piece may end
	rest   *incremental // if mayEnd: the text after that place
	mayEnd bool
	// same means that rest has the tokens that joined ends with, so only joined goes on. joined has
	// surplus tokens more.
	same    bool
	surplus int
}

// A shape describes a piece that may have any length: a start of some bytes, then characters of
// the classes in set, then a tail.
type shape struct {
	start int
	set   uint
	// ends are the classes in set after which the piece ends, at the last such character, unless
	// a character with a class in goesOn follows the run of set. The rest of the run is then a
	// piece of its own.
	ends   uint
	goesOn uint
	blank  bool // white space; its last character belongs to the next piece
	tail   func(b []byte, i int) int
}

// newLong returns a long for the piece that starts with b. It reuses the last long of w.
func (w *worker) newLong(b []byte) *long {
	if w.long == nil {
		size := w.incremental.size
		w.long = &long{joined: newIncremental(w.v, size), ended: newIncremental(w.v, size), rest: newIncremental(w.v, size)}
	}
	l := w.long
	l.joined.reset()
	*l = long{shape: w.pattern.long(b), joined: l.joined, ended: l.ended, rest: l.rest}
	return l
}

func longO200k(b []byte) shape {
	set, w := classAt(b, 0)
	word := shape{set: capitals, ends: caseless, goesOn: 1 << classLower, tail: contraction}
	if set&letters != 0 || set == 1<<classMark {
		return word
	}
	next, _ := classAt(b, w)
	if set&prefixes != 0 && next&(letters|1<<classMark) != 0 {
		word.start = w
		return word
	}
	return longNotWord(b, set, w, next, func(b []byte, i int) int { return lineEnds(b, i, '/') })
}

func longCL100k(b []byte) shape {
	set, w := classAt(b, 0)
	next, _ := classAt(b, w)
	if set&letters != 0 || set&prefixes != 0 && next&letters != 0 {
		return shape{start: w, set: letters}
	}
	return longNotWord(b, set, w, next, func(b []byte, i int) int { return lineEnds(b, i, '\n') })
}

// longNotWord is notWord for a long piece, which tail ends after symbols.
func longNotWord(b []byte, set uint, w int, next uint, tail func([]byte, int) int) shape {
	if set&symbols != 0 || b[0] == ' ' && next&symbols != 0 {
		return shape{start: w, set: symbols, tail: tail}
	}
	return shape{set: spaces, ends: 1 << classNewline, blank: true}
}

func longGPT2(b []byte) shape {
	start := 0
	if b[0] == ' ' {
		start = 1
	}
	set, _ := classAt(b, start)
	for _, run := range [...]uint{letters, numbers, symbols} {
		if set&run != 0 {
			return shape{start: start, set: run}
		}
	}
	return shape{set: spaces, blank: true}
}

// atLeast returns a lower bound for the tokens of the text so far.
func (l *long) atLeast() int {
	rest := l.rest.count
	if l.same {
		rest = l.joined.count - l.surplus
	}
	if l.mayEnd {
		return min(l.joined.count, l.ended.count+rest)
	}
	return l.joined.count
}

// step takes n bytes from the start of b, which continues where the last step ended. If done is
// true, l.tokens is the number of tokens of all it took.
func (l *long) step(b []byte, final bool) (n int, done bool) {
	if !l.inTail {
		if n, done = l.run(b, final); !l.inTail {
			return n, done
		}
	}
	end := n
	if l.shape.tail != nil {
		if len(b)-n < 4 && !final {
			return n, false // too few bytes to know the tail
		}
		end = l.shape.tail(b, n)
		l.joined.write(b[n:end])
		if end == len(b) && !final {
			return end, false
		}
	}
	l.tokens += l.joined.finish()
	return end, true
}

// run takes the part of b in the run, and after the run decides where the piece ends.
func (l *long) run(b []byte, final bool) (n int, done bool) {
	end := skip(b, l.shape.start, l.shape.set)
	over := final || end < len(b)
	if l.shape.blank {
		return l.blanks(b, end, over)
	}
	l.take(b[:end])
	l.shape.start = 0
	if !over {
		return end, false
	}
	if set, _ := classAt(b, end); set&l.shape.goesOn != 0 {
		l.mayEnd = false
		l.shape.set, l.shape.ends, l.shape.goesOn = smalls, 0, 0
		n, done = l.run(b[end:], final)
		return end + n, done
	}
	l.inTail = true
	if l.mayEnd && len(l.rest.text) > 0 {
		l.end()
	}
	l.mayEnd = false
	return end, false
}

// blanks takes the white space b[:end].
func (l *long) blanks(b []byte, end int, over bool) (n int, done bool) {
	last, w := utf8.DecodeLastRune(b[:end])
	if end < len(b) && over && 1<<classes[last]&l.shape.ends == 0 || !over {
		end -= w
	}
	l.take(b[:end])
	if !over {
		return end, false
	}
	if l.mayEnd {
		l.end()
	}
	l.tokens += l.joined.finish()
	return end, true
}

// end ends the piece at the last place where it may end. The rest becomes joined.
func (l *long) end() {
	if l.tokens = l.ended.finish(); l.same {
		l.tokens -= l.surplus
	} else {
		l.joined, l.rest = l.rest, l.joined
	}
}

// take counts b, which is part of the run.
func (l *long) take(b []byte) {
	at := 0
	if l.shape.ends != 0 {
		at = lastOutside(b, l.shape.set&^l.shape.ends)
		if at > 0 && at <= l.shape.start {
			at = 0
		}
	}
	l.joined.write(b[:at])
	if at > 0 {
		l.ended.copyFrom(l.joined)
		l.rest.reset()
		l.rest.begin = l.joined.begin + len(l.joined.text)
		l.mayEnd, l.same = true, false
	}
	for b = b[at:]; l.mayEnd && !l.same && len(b) > 0; { // in small parts, to see soon that both are the same
		part := b[:min(len(b), l.joined.size)]
		l.joined.write(part)
		l.rest.write(part)
		l.surplus, l.same = l.joined.surplus(l.rest)
		b = b[len(part):]
	}
	l.joined.write(b)
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
