// Package bpe counts the tokens of text by byte pair encoding, as tiktoken does, at a cost linear
// in the text:
//
//	fmt.Println(bpe.O200kBase.Count([]byte("hello world")))
//	length, tokens := bpe.O200kBase.Truncate([]byte("hello world"), 1)
//	fmt.Println(length, tokens)
//
// A pattern cuts the text into pieces: one by one (pattern.go), or in ASCII 64 bytes at a time
// (block.go). Each piece merges on its own by the pairs of the vocabulary (vocabulary.go,
// merge.go). A worker caches the counts of short pieces (cache.go). A long piece merges in
// windows (incremental.go), a piece of CJK characters in parts that no token joins (cjk.go). A
// Stream counts text that arrives in parts (stream.go); a piece may be longer than its buffer
// (longpiece.go).
package bpe
