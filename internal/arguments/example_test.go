package arguments_test

import (
	"fmt"

	"github.com/foldgate/foldgate/internal/arguments"
)

func Example() {
	properties := []byte(`{"path":{"type":"string"},"lines":{"type":"integer","minimum":1}}`)
	var in struct {
		Path  string
		Lines float64
	}
	err := arguments.Decode("read", properties, []byte(`{"path":"a.txt","lines":0,"limit":5}`), &in)
	fmt.Println(err)
	// Output: lines must be at least 1; read takes no "limit"; its arguments are path, lines
}
