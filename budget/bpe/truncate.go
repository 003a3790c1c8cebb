package bpe

import (
	"bytes"
	"unicode/utf8"
)

// Truncate returns the length of the start of b that has at most n tokens, n >= 0, and its number
// of tokens. It cuts at the start of a character, as late as it can find. It keeps a text that
// fits whole. It allocates, in proportion to n, only if it cuts text that is not valid UTF-8.
func (t *Tokenizer) Truncate(b []byte, n int) (length, tokens int) {
	// A longer text than head does not fit, even if all its tokens are longest.
	head := b
	if n < len(b)/longestToken {
		head = b[:wholeCharacters(b[:(n+1)*longestToken])]
	}
	if len(head) == len(b) {
		if tokens := t.count(b, n); tokens <= n {
			return len(b), tokens
		}
	}
	// The cut can make other pieces of the last characters, with more tokens. Then it moves back.
	for at := n; at > 0; {
		length := t.cut(head, at)
		tokens := t.count(head[:length], n)
		if tokens <= n {
			return length, tokens
		}
		at -= tokens - n
	}
	return 0, 0
}

// cut returns the end of the first n tokens of b, or a little less.
func (t *Tokenizer) cut(b []byte, n int) int {
	w := t.worker()
	defer t.release(w)
	if valid(b) {
		return w.cut(b, n)
	}
	whole := bytes.Map(func(r rune) rune { return r }, b) // U+FFFD for each invalid byte
	characters := utf8.RuneCount(whole[:w.cut(whole, n)])
	for i := range string(b) {
		if characters--; characters < 0 {
			return i
		}
	}
	return len(b)
}

// cut returns the start of a character of b, valid UTF-8, after n tokens or a few less.
func (w *worker) cut(b []byte, n int) int {
	end := 0
	for end < len(b) {
		next := w.pattern.next(b, end)
		tokens := w.pieceTokens(b, end, next, n)
		if tokens > n {
			end += w.cutPiece(b[end:next], n)
			break
		}
		n -= tokens
		end = next
	}
	for end < len(b) && !utf8.RuneStart(b[end]) {
		end--
	}
	return end
}

// cutPiece returns about the end of the first n tokens of a piece that has more. It merges windows
// that begin at a token of the one before.
func (w *worker) cutPiece(piece []byte, n int) int {
	m := w.merger
	for begin := 0; ; {
		part := piece[begin:min(begin+m.size, len(piece))]
		tokens := m.current.merge(w.v, part)
		switch {
		case n < tokens:
			return begin + int(m.current.starts[n])
		case begin+len(part) == len(piece):
			return len(piece)
		}
		most := tokens - tokens/4 // of at least four; the last ones depend on the text after the window
		n -= most
		begin += int(m.current.starts[most])
	}
}
