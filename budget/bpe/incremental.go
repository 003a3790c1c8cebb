package bpe

import "slices"

// windowSize is the bytes of a window, overlap those that it first shares with the one before.
const (
	windowSize = 512
	overlap    = 64
)

// An incremental merges one piece of any length that arrives in parts, in constant memory and
// linear time.
//
// Tokens are the result of byte pair encoding exactly if each two neighbours are the result for
// their own text. So windows of the text can merge one by one. Each begins at a token of the
// window before, and is joined to it at a place where both have the same token. Then each two
// neighbours are together in one window.
type incremental struct {
	v       *vocabulary
	size    int    // of a window
	begin   int    // bytes before text
	count   int    // tokens before text
	text    []byte // not counted yet, less than two windows
	current *window
	tokens  int // of current
	merged  int // bytes of text in current
	ahead   *window
}

func newIncremental(v *vocabulary, size int) *incremental {
	return &incremental{
		v: v, size: size, text: make([]byte, 0, 2*size),
		current: newWindow(size), ahead: newWindow(size),
	}
}

// tokensOf counts a piece of any length, until it has more than limit tokens.
func (m *incremental) tokensOf(piece []byte, limit int) int {
	m.reset()
	for part := range slices.Chunk(piece, 4<<10) {
		if m.write(part); m.count > limit {
			return m.count
		}
	}
	return m.finish()
}

func (m *incremental) reset() { m.begin, m.count, m.text, m.tokens, m.merged = 0, 0, m.text[:0], 0, 0 }

func (m *incremental) write(b []byte) {
	for len(b) > 0 {
		n := min(len(b), cap(m.text)-len(m.text))
		m.text = append(m.text, b[:n]...)
		b = b[n:]
		if len(m.text) == cap(m.text) {
			m.advance()
		}
	}
}

// finish returns the number of tokens of the piece. Reset m before the next piece.
func (m *incremental) finish() int {
	for m.merged < len(m.text) {
		if m.merged == 0 && len(m.text) <= m.size {
			return m.count + m.current.merge(m.v, m.text)
		}
		m.advance()
	}
	return m.count + m.tokens
}

// advance counts the tokens of about a window. The text must be longer than one.
func (m *incremental) advance() {
	if m.merged == 0 {
		m.merged = m.size
		m.tokens = m.current.merge(m.v, m.text[:m.merged])
	}
	for back := min(overlap, m.size/2); ; back *= 2 {
		begin := m.boundary(m.merged - back)
		if begin == 0 || begin+m.size <= m.merged {
			bigger := newIncremental(m.v, 2*m.size) // a token depends on text more than a window away
			bigger.begin, bigger.count = m.begin, m.count
			bigger.text = append(bigger.text, m.text...)
			*m = *bigger
			return
		}
		end := min(begin+m.size, len(m.text))
		n := m.ahead.merge(m.v, m.text[begin:end])
		if i, j, ok := meet(m.current, m.ahead, m.tokens, n, begin); ok {
			m.shift(i, j, begin, n, end)
			return
		}
	}
}

// boundary returns the last start of a token of the current window up to limit, or 0.
func (m *incremental) boundary(limit int) int {
	i := m.tokens - 1
	for i > 0 && int(m.current.starts[i]) > limit {
		i--
	}
	return int(m.current.starts[i])
}

// meet finds a token that is one of the first m tokens of a, and one of the first n tokens of b,
// whose text begins at place at of a's. It returns the indexes of the token in both.
func meet(a, b *window, m, n, at int) (i, j int, ok bool) {
	for i < m && j < n {
		x, y := int(a.starts[i]), at+int(b.starts[j])
		switch {
		case x < y:
			i++
		case x > y:
			j++
		case a.tokens[i] == b.tokens[j]:
			return i, j, true
		default:
			i++
			j++
		}
	}
	return 0, 0, false
}

// surplus returns how many tokens more m has than o, which counts a part of the same text up to its
// end. ok is false as long as that may change: until both have one token in common that is sure.
// The first token of a window is. A token is sure with the one before it, so what follows is too.
func (m *incremental) surplus(o *incremental) (n int, ok bool) {
	i, j, ok := meet(m.current, o.current, m.tokens, o.tokens, o.begin-m.begin)
	return m.count + i - o.count - j, ok && m.merged > 0 && o.merged > 0 && (i == 0 || j == 0)
}

// shift counts the first i tokens of the current window, and continues with token j of ahead.
func (m *incremental) shift(i, j, begin, n, end int) {
	from := int(m.ahead.starts[j])
	m.count += i
	m.tokens = copy(m.ahead.tokens, m.ahead.tokens[j:n])
	copy(m.ahead.starts, m.ahead.starts[j:n])
	for k := range m.tokens {
		m.ahead.starts[k] -= int32(from)
	}
	m.current, m.ahead = m.ahead, m.current
	m.merged = end - begin - from
	m.begin += begin + from
	m.text = m.text[:copy(m.text, m.text[begin+from:])]
}

func (m *incremental) copyFrom(o *incremental) {
	if m.size != o.size {
		*m = *newIncremental(o.v, o.size)
	}
	m.begin, m.count, m.tokens, m.merged = o.begin, o.count, o.tokens, o.merged
	m.text = append(m.text[:0], o.text...)
	copy(m.current.tokens, o.current.tokens[:o.tokens])
	copy(m.current.starts, o.current.starts[:o.tokens])
}
