package proxy

import (
	"github.com/foldgate/foldgate/proxy/catalog"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/tools"
)

// TestPolicy decides the calls that a file lists as a gateway does, and compares the decisions with
// those that the file expects. The error is a [*config.Error].
func TestPolicy(cfg config.Config, file string) ([]config.PolicyResult, error) {
	own := func(name string) bool { return tools.Has(name) || cfg.Tools.Searchable() && config.ForSearch(name) }
	return cfg.TestPolicy(file, own, func(full string) string { return catalog.ShownName("", full) })
}
