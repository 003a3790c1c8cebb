package catalog_test

import (
	"encoding/json"
	"fmt"

	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
)

func Example() {
	cfg := config.Default() // its only server is files
	rules := catalog.NewRules(cfg, []json.RawMessage{json.RawMessage(`{"name":"branch_create"}`)})

	var files catalog.List
	files.AddPage([]byte(`{"tools":[{"name":"read_file","inputSchema":{"type":"object"}}]}`), catalog.Tools)
	tools := rules.Merge(catalog.Tools, []*catalog.List{&files})
	fmt.Println(tools.Order)
	entry, ok := tools.Lookup("files__read_file")
	fmt.Println(entry.Server, entry.Name, entry.TakesBranchID, ok)
	// Output:
	// [branch_create files__read_file]
	// files read_file true true
}
