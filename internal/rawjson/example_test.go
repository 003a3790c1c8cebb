package rawjson_test

import (
	"fmt"

	"github.com/foldgate/foldgate/internal/rawjson"
)

func Example() {
	message := []byte(`{"id": 1, "params": {"name": "echo"}}`)
	name, ok := rawjson.GetString(message, "params", "name")
	fmt.Println(name, ok)
	message = rawjson.Set(message, rawjson.Quote("files__echo"), "params", "name")
	fmt.Printf("%s\n", rawjson.Delete(message, "id"))
	// Output:
	// echo true
	// {"params": {"name": "files__echo"}}
}
