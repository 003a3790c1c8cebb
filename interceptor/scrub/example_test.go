package scrub_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/foldgate/foldgate/interceptor/scrub"
)

func Example() {
	s, err := scrub.New(scrub.Options{Timeout: 2 * time.Second}) // once, at start-up
	if err != nil {
		log.Fatal(err)
	}
	result := []byte(`{"content":[{"type":"text","text":"postgres://app:` + "kT7vQz2Lw9" + `@db/app"}]}`)
	clean, found, err := s.JSON(context.Background(), result)
	if err != nil {
		log.Fatal(err) // withhold the result
	}
	fmt.Println(string(clean))
	fmt.Println(found[0].Rule, found[0].Field, found[0].Line)
	// Output:
	// {"content":[{"type":"text","text":"postgres://app:[REDACTED:connection-string]@db/app"}]}
	// connection-string $.content[0].text 1
}
