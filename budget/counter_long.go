package budget

import "unicode/utf8"

// A grammar says how an encoding cuts text into pieces.
type grammar struct {
	// next returns the end of the piece of b that starts at i.
	next func(b []byte, i int) int
	// long says how the piece goes on that starts with b and is much longer
	// than a token.
	long func(b []byte) shape
	// reach are the classes of characters that decide, from any distance, where
	// a piece before them ends; white space is always of that kind.
	reach uint
	// split is next for a block of ASCII at once.
	split splitter
}

func grammarO200k() grammar  { return grammar{nextO200k, longO200k, capitals, splitO200k} }
func grammarCL100k() grammar { return grammar{nextCL100k, longCL100k, 0, splitCL100k} }
func grammarGPT2() grammar   { return grammar{nextGPT2, longGPT2, 0, splitGPT2} }

// A shape describes pieces that may have any length: a start of some bytes, then
// characters of the classes in set, then a tail.
type shape struct {
	start int
	set   uint
	// ends are the classes of set after which the piece ends, at the last of
	// them, unless the run of set is followed by one of the classes in goesOn.
	// The rest of the run is then a piece of its own.
	ends   uint
	goesOn uint
	blank  bool // white space, which leaves its last character to what follows
	tail   func(b []byte, i int) int
}

func longO200k(b []byte) shape {
	set, w := classAt(b, 0)
	word := shape{set: capitals, ends: caseless, goesOn: 1 << classLower, tail: contraction}
	if set&letters != 0 || set == 1<<classMark {
		return word
	}
	next, _ := classAt(b, w)
	switch {
	case set&prefixes != 0 && next&(letters|1<<classMark) != 0:
		word.start = w
		return word
	case set&symbols != 0 || b[0] == ' ' && next&symbols != 0:
		return shape{start: w, set: symbols, tail: lineEndsSlash}
	}
	return shape{set: spaces, ends: 1 << classNewline, blank: true}
}

func longCL100k(b []byte) shape {
	set, w := classAt(b, 0)
	next, _ := classAt(b, w)
	switch {
	case set&letters != 0 || set&prefixes != 0 && next&letters != 0:
		return shape{start: w, set: letters}
	case set&symbols != 0 || b[0] == ' ' && next&symbols != 0:
		return shape{start: w, set: symbols, tail: lineEnds}
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

// certain returns a bound: a piece of b that ends there or before does so
// whatever follows b.
func (g *grammar) certain(b []byte) int {
	const contractionBytes = 3
	last, _ := utf8.DecodeLastRune(b)
	set := uint(spaces)
	if 1<<classes[last]&g.reach != 0 {
		set = g.reach
	}
	return min(lastOutside(b, set), len(b)-contractionBytes)
}

// lastOutside returns the end of the last character of b outside set, or 0.
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

// A long counts one piece of any length that arrives in parts, and with it the
// rest of the run where that becomes a piece of its own. As long as it is open
// whether the piece goes on, both are counted.
type long struct {
	shape  shape
	inTail bool
	tokens int // when done

	joined  *run // all text so far
	ended   *run // if mayEnd: the text up to the last place where the piece may end
	rest    *run // if mayEnd: the text after that place
	restLen int
	mayEnd  bool
}

// newLong returns a long for the piece that starts with b. It takes the place of
// the one that w made before.
func (w *worker) newLong(b []byte) *long {
	if w.long == nil {
		size := w.run.size
		w.long = &long{joined: newRun(w.v, size), ended: newRun(w.v, size), rest: newRun(w.v, size)}
	}
	l := w.long
	l.shape, l.inTail, l.tokens, l.restLen, l.mayEnd = w.v.grammar.long(b), false, 0, 0, false
	l.joined.reset()
	return l
}

// atLeast returns a number of tokens that the text so far will not go below.
func (l *long) atLeast() int {
	if l.mayEnd {
		return min(l.joined.count, l.ended.count+l.rest.count)
	}
	return l.joined.count
}

// step takes bytes from the start of b, which goes on where the last step ended,
// and returns how many. When it is done, l.tokens is the count of all it took.
func (l *long) step(b []byte, final bool) (n int, done bool) {
	if !l.inTail {
		if n, done = l.run(b, final); !l.inTail {
			return n, done
		}
	}
	end := n
	if l.shape.tail != nil {
		if len(b)-n < 4 && !final {
			return n, false // too few to know the tail
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

// run takes what belongs to the run, and decides what it was when it is over.
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
	if l.mayEnd && l.restLen > 0 {
		l.tokens = l.ended.finish()
		l.joined, l.rest = l.rest, l.joined
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
		l.tokens = l.ended.finish()
		if l.restLen > 0 {
			l.tokens += l.rest.finish()
		}
	} else {
		l.tokens = l.joined.finish()
	}
	return end, true
}

// take counts b, all of it in the run.
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
		l.mayEnd, l.restLen = true, 0
	}
	l.joined.write(b[at:])
	if l.mayEnd {
		l.rest.write(b[at:])
		l.restLen += len(b) - at
	}
}
