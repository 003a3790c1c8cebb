package budget

// windowSize is the length in bytes of the windows in which a run merges, and
// overlap how far a window reaches into the one before at first.
const (
	windowSize = 512
	overlap    = 64
)

// A run merges one piece of any length that arrives in parts, in constant memory
// and linear time.
//
// A sequence of tokens is what byte pair encoding makes of their text exactly if
// each two neighbours are what it makes of the text of these two. So windows of
// the text may be merged one by one, each beginning where a token of the one
// before begins, and strung together at a place where both have the same token:
// then each two neighbours stand together in one window.
type run struct {
	v       *vocabulary
	size    int    // of a window
	count   int    // tokens before text
	text    []byte // not counted yet, less than two windows
	current *window
	tokens  int // of current
	merged  int // bytes of text that current holds
	ahead   *window
}

func newRun(v *vocabulary, size int) *run {
	return &run{
		v: v, size: size, text: make([]byte, 0, 2*size),
		current: newWindow(size), ahead: newWindow(size),
	}
}

// reset makes r an empty run.
func (r *run) reset() { r.count, r.text, r.tokens, r.merged = 0, r.text[:0], 0, 0 }

// write appends p to the piece.
func (r *run) write(p []byte) {
	for len(p) > 0 {
		n := min(len(p), cap(r.text)-len(r.text))
		r.text = append(r.text, p[:n]...)
		p = p[n:]
		if len(r.text) == cap(r.text) {
			r.advance()
		}
	}
}

// finish returns the number of tokens of the piece; r must be reset then.
func (r *run) finish() int {
	for r.merged < len(r.text) {
		if r.merged == 0 && len(r.text) <= r.size {
			return r.count + r.current.merge(r.v, r.text)
		}
		r.advance()
	}
	return r.count + r.tokens
}

// advance counts the tokens of about a window. The text must be longer than one.
func (r *run) advance() {
	if r.merged == 0 {
		r.merged = r.size
		r.tokens = r.current.merge(r.v, r.text[:r.merged])
	}
	for back := min(overlap, r.size/2); ; back *= 2 {
		begin := r.boundary(r.merged - back)
		if begin == 0 || begin+r.size <= r.merged {
			r.grow()
			return
		}
		end := min(begin+r.size, len(r.text))
		n := r.ahead.merge(r.v, r.text[begin:end])
		if i, j, ok := r.meet(begin, n); ok {
			r.shift(i, j, begin, n, end)
			return
		}
	}
}

// boundary returns the last position up to limit where a token of the current
// window begins, or 0.
func (r *run) boundary(limit int) int {
	i := r.tokens - 1
	for i > 0 && int(r.current.starts[i]) > limit {
		i--
	}
	return int(r.current.starts[i])
}

// meet finds a token of the current window that is also one of the n of the
// window ahead, which begins at begin, and returns the indexes of the token in both.
func (r *run) meet(begin, n int) (i, j int, ok bool) {
	for i < r.tokens && int(r.current.starts[i]) < begin {
		i++
	}
	for i < r.tokens && j < n {
		a, b := int(r.current.starts[i]), begin+int(r.ahead.starts[j])
		switch {
		case a < b:
			i++
		case a > b:
			j++
		case r.current.tokens[i] == r.ahead.tokens[j]:
			return i, j, true
		default:
			i++
			j++
		}
	}
	return 0, 0, false
}

// shift counts the first i tokens of the current window and goes on with the
// window ahead from its token j.
func (r *run) shift(i, j, begin, n, end int) {
	from := int(r.ahead.starts[j])
	r.count += i
	r.tokens = copy(r.ahead.tokens, r.ahead.tokens[j:n])
	copy(r.ahead.starts, r.ahead.starts[j:n])
	for k := range r.tokens {
		r.ahead.starts[k] -= int32(from)
	}
	r.current, r.ahead = r.ahead, r.current
	r.merged = end - begin - from
	r.text = r.text[:copy(r.text, r.text[begin+from:])]
}

// copyFrom makes r a copy of o.
func (r *run) copyFrom(o *run) {
	if r.size != o.size {
		*r = *newRun(o.v, o.size)
	}
	r.count, r.tokens, r.merged = o.count, o.tokens, o.merged
	r.text = append(r.text[:0], o.text...)
	copy(r.current.tokens, o.current.tokens[:o.tokens])
	copy(r.current.starts, o.current.starts[:o.tokens])
}

// grow doubles the windows, for text in which a token depends on what stands
// more than a window away.
func (r *run) grow() {
	bigger := newRun(r.v, 2*r.size)
	bigger.count = r.count
	bigger.text = append(bigger.text, r.text...)
	*r = *bigger
}
