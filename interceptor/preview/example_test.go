package preview_test

import (
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/interceptor/preview"
)

func Example() {
	count := func(s string) int { return (len(s) + 3) / 4 } // or a real tokenizer
	text := strings.Repeat("12:00:00 INFO ready\n", 100) + "12:00:01 ERROR disk is full\n"
	p, ok := preview.Make(preview.Source{Text: text, Tokens: count(text), Handle: "res_1"}, 81, count)
	fmt.Println(p.Text, ok)
	// Output:
	// [Folded log: 507 tokens, 101 lines, 101 log lines, 12:00:00 to 12:00:01, 1 kind of 1 warning or error line. Read more: branch_read {"handle":"res_1"} (lines, grep, search)]
	// level: INFO ×100, ERROR ×1
	// first word: ready ×100, disk ×1
	// 1: (×100) 12:00:00 INFO ready
	// 101: …01 ERROR disk is full true
}
