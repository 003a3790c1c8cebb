// Package budget counts tokens and keeps the balance of a budget. The examples show its use.
//
// A Counter counts the tokens of a text, exactly as tiktoken does, at a cost linear in the text. A
// Stream counts text that arrives in parts, in constant memory. Package bpe does the counting. A
// Balance holds the tokens that a budget allows, and those spent.
package budget
