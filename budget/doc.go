// Package budget counts tokens and keeps the ledger of a budget.
//
// A Counter counts the tokens of a text, exactly as tiktoken does, at a cost linear in the text:
//
//	c, err := budget.NewCounter("gpt-4o") // or an encoding: "o200k_base"
//	if err != nil {
//		return err
//	}
//	fmt.Println(c.Count("hello world"), c.Exceeds("hello world", 1))
//	kept, tokens := c.Truncate("hello world", 1)
//	fmt.Println(kept, tokens)
//
// A Stream counts text that arrives in parts, in constant memory:
//
//	s := c.Stream()
//	if _, err := io.Copy(s, r); err != nil {
//		return err
//	}
//	if err := s.Close(); err != nil {
//		return err
//	}
//	fmt.Println(s.Tokens())
//
// Package bpe does the counting. A Ledger holds the tokens that a budget allows, and those spent.
package budget
