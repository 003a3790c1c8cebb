package config_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/foldgate/foldgate/proxy/config"
)

// A file is read over the defaults.
func Example() {
	dir, err := os.MkdirTemp("", "config-")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "foldgate.yaml")
	if err := os.WriteFile(file, []byte("folding: {max_depth: 2}\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	c, err := config.Find(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(c.Folding.MaxDepth, c.Folding.DefaultBudget, c.UpstreamKeys())
	// Output: 2 8192 [files]
}

// Every fault is reported at once, with its key.
func ExampleConfig_Validate() {
	c := config.Default()
	c.Trace.Payload = "full"
	c.Budget.ImageTokens = -1
	for _, fault := range c.Validate() {
		fmt.Println(fault)
	}
	// Output:
	// budget.image_tokens: -1 is negative
	// trace.payload: "full" is not one of scrubbed, none
}
