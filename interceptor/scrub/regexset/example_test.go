package regexset_test

import (
	"context"
	"fmt"
	"log"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// limit ends a scan when its context ends.
type limit struct{ lifetime context.Context }

func (l limit) Spend(int) error { return l.lifetime.Err() }

func Example() {
	expr, err := regexset.Parse(`(?i)\b(?:key|token)\s*=\s*(\w+)`)
	if err != nil {
		log.Fatal(err)
	}
	set, err := regexset.New([]regexset.Pattern{{Expr: expr}})
	if err != nil {
		log.Fatal(err)
	}
	text := "Key = a1, token=b2"
	scratch := set.NewScratch() // one for each goroutine
	if err := scratch.Scan(text, limit{context.Background()}); err != nil {
		log.Fatal(err)
	}
	for _, i := range scratch.Candidates() {
		matches, err := scratch.FindAll(i)
		if err != nil {
			log.Fatal(err)
		}
		for _, m := range matches {
			fmt.Println(text[m.Start:m.End])
		}
	}
	// Output:
	// Key = a1
	// token=b2
}
