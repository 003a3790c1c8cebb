package budget

import "unicode/utf8"

// Truncate returns the start of text that has at most n tokens, and its count:
// tokens == Count(kept) <= n. It cuts at a rune boundary, as late as it finds
// one; n below 0 is taken as 0. A text that fits is returned whole. Only where it
// cuts text that is not valid UTF-8 does it allocate, in proportion to n.
func (c *Counter) Truncate(text string, n int) (kept string, tokens int) {
	limit := max(c.unscaled(n), 0)
	// A longer text than head does not fit, even if all of it are longest tokens.
	head := text
	if limit < len(text)/longestToken {
		head = text[:wholeCharacters(bytesOf(text[:(limit+1)*longestToken]))]
	}
	if len(head) == len(text) {
		if tokens := c.tokens(bytesOf(text), limit); tokens <= limit {
			return text, c.scaled(tokens)
		}
	}
	// Where the cut makes other pieces of the last characters, these may count
	// more than before: then the cut moves back.
	for at := limit; at > 0; {
		kept := head[:c.cut(head, at)]
		tokens := c.tokens(bytesOf(kept), limit)
		if tokens <= limit {
			return kept, c.scaled(tokens)
		}
		at -= tokens - limit
	}
	return "", 0
}

// cut returns where the first n tokens of text end, or a little before.
func (c *Counter) cut(text string, n int) int {
	w := c.vocab.worker()
	defer c.vocab.release(w)
	if utf8.ValidString(text) {
		return w.cut(bytesOf(text), n)
	}
	valid := make([]byte, 0, mostTokens*len(text))
	for _, r := range text {
		valid = utf8.AppendRune(valid, r)
	}
	end := w.cut(valid, n)
	for i, r := range text {
		if end -= utf8.RuneLen(r); end < 0 {
			return i
		}
	}
	return len(text)
}

// cut returns the start of a character of b before which there are n tokens, or
// a little fewer.
func (w *worker) cut(b []byte, n int) int {
	end := 0
	for end < len(b) {
		next := w.v.grammar.next(b, end)
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

// cutPiece returns about where the first n tokens of a piece end that has more.
func (w *worker) cutPiece(piece []byte, n int) int {
	// Follow the run up to the last place at which no more than n are counted.
	r := w.run
	r.reset()
	counted, begin := 0, 0
	for end := 0; end < len(piece) && r.count <= n; {
		counted, begin = r.count, end-len(r.text)
		part := piece[end:min(end+r.size, len(piece))]
		r.write(part)
		end += len(part)
	}
	n -= counted
	// From there it is a few windows.
	for {
		part := piece[begin:min(begin+r.size, len(piece))]
		tokens := r.current.merge(w.v, part)
		switch {
		case n < tokens:
			return begin + int(r.current.starts[n])
		case begin+len(part) == len(piece):
			return len(piece)
		}
		half := tokens / 2
		n -= half
		begin += int(r.current.starts[half])
	}
}
