package budget_test

import (
	"fmt"
	"io"
	"strings"

	"github.com/foldgate/foldgate/budget"
)

func Example() {
	r := strings.NewReader("hello world")
	err := func() error {
		c, err := budget.NewCounter("gpt-4o") // or an encoding: "o200k_base"
		if err != nil {
			return err
		}
		fmt.Println(c.Count("hello world"), c.Exceeds("hello world", 1))
		kept, tokens := c.Truncate("hello world", 1)
		fmt.Println(kept, tokens)

		s := c.Stream()
		if _, err := io.Copy(s, r); err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
		fmt.Println(s.Tokens())
		return nil
	}()
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// 2 true
	// hello 1
	// 2
}
