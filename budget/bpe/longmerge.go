package bpe

// windowSize is the bytes of a window, overlap those that it first shares with the one before.
const (
	windowSize = 512
	overlap    = 64
)

// A longMerge merges a piece of any length, in constant memory and linear time.
//
// Tokens are the result of byte pair encoding exactly if each two neighbours are the result for
// their own text. So windows of the piece can merge one by one. Each begins at a token of the
// window before, and is joined to it at a place where both have the same token. Then each two
// neighbours are together in one window.
type longMerge struct {
	v              *vocabulary
	size           int // of a window
	current, ahead *window
}

func newLongMerge(v *vocabulary, size int) *longMerge {
	return &longMerge{v, size, newWindow(size), newWindow(size)}
}

// tokensOf counts a piece, until it has more than limit tokens.
func (m *longMerge) tokensOf(piece []byte, limit int) (tokens int) {
	begin, end := 0, min(m.size, len(piece)) // of the current window
	n := m.current.merge(m.v, piece[:end])   // its tokens
	for back := min(overlap, m.size/2); end < len(piece) && tokens <= limit; {
		from := m.current.lastStart(n, end-begin-back)
		next := min(begin+from+m.size, len(piece))
		if from == 0 || next <= end { // a token depends on text more than a window away
			*m = *newLongMerge(m.v, 2*m.size)
			return tokens + m.tokensOf(piece[begin:], limit-tokens)
		}
		ahead := m.ahead.merge(m.v, piece[begin+from:next])
		i, j, ok := meet(m.current, m.ahead, n, ahead, from)
		if !ok {
			back *= 2
			continue
		}
		tokens += i
		begin += from + int(m.ahead.starts[j])
		n, end, back = m.ahead.drop(j, ahead), next, min(overlap, m.size/2)
		m.current, m.ahead = m.ahead, m.current
	}
	return tokens + n
}

// lastStart returns the last start of one of the first n tokens up to limit, or 0.
func (w *window) lastStart(n, limit int) int {
	for n--; n > 0 && int(w.starts[n]) > limit; n-- {
	}
	return int(w.starts[n])
}

// drop drops the first j of n tokens, and returns the number of the others.
func (w *window) drop(j, n int) int {
	from := w.starts[j]
	left := copy(w.tokens, w.tokens[j:n])
	copy(w.starts, w.starts[j:n])
	for k := range left {
		w.starts[k] -= from
	}
	return left
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
