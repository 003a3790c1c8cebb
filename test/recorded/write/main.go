// Command write writes a journal: go run ./test/recorded/write -records 10000000 -days 100 -small DIR
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/foldgate/foldgate/test/recorded"
)

func main() {
	var o recorded.Options
	flag.IntVar(&o.Records, "records", 100_000, "records")
	flag.IntVar(&o.Days, "days", 1, "days over which they are spread")
	flag.IntVar(&o.People, "people", 200, "people")
	flag.BoolVar(&o.Small, "small", false, "small payloads")
	flag.Parse()
	o.Begin = time.Now().Add(-time.Duration(o.Days) * 24 * time.Hour)
	if err := recorded.Write(flag.Arg(0), o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
