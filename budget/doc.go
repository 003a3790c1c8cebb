// Package budget counts tokens and holds the ledger of who may spend how many.
//
// A Counter gives the number of tokens of a text, equal to tiktoken's, at a
// cost linear in the text:
//
//	c, err := budget.NewCounter("o200k_base") // or a model: "gpt-4o"
//	n := c.Count(text)
//	if c.Exceeds(text, 8192) { ... }          // stops at the limit
//	kept, n := c.Truncate(text, 8192)         // n == c.Count(kept) <= 8192
//
// Text that arrives in parts is counted by a Stream, in constant memory:
//
//	s := c.Stream()
//	_, err = io.Copy(s, r)
//	err = s.Close()
//	n := s.Tokens()
package budget
