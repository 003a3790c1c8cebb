package bpe_test

import (
	"fmt"

	"github.com/foldgate/foldgate/budget/bpe"
)

func Example() {
	fmt.Println(bpe.O200kBase.Count([]byte("hello world")))
	length, tokens := bpe.O200kBase.Truncate([]byte("hello world"), 1)
	fmt.Println(length, tokens)
	// Output:
	// 2
	// 5 1
}
