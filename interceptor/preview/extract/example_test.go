package extract_test

import (
	"context"
	"fmt"
	"log"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

func Example() {
	ctx := context.Background()
	text := `{"items": [{"title": "one"}, {"title": "two"}]}`
	titles, err := extract.NewPrograms(1).JQ(ctx, "me", text, ".items[].title")
	if err != nil {
		log.Fatal(err)
	}
	lines, err := extract.Lines(titles, "2-")
	if err != nil {
		log.Fatal(err)
	}
	matches, err := extract.Grep(ctx, titles, extract.Pattern{Expr: "^o"})
	if err != nil {
		log.Fatal(err)
	}
	truncate := func(s string, n int) (string, int) { n = min(n, len(s)); return s[:n], n } // or a real tokenizer
	page, restLines, err := extract.Page(ctx, titles, 1, 4, truncate)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q %q %q %q %d\n", titles, lines, matches, page, restLines)
	// Output: "one\ntwo" "two" "[1 line matches]\n1:one" "one\n" 1
}
