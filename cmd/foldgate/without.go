package main

import (
	"log/slog"
	"strings"

	"github.com/foldgate/foldgate/proxy"
)

// withoutLayers names layers of the chain, with commas between them, that this
// binary is built without. Only the linker sets it, for benchmarks:
//
//	go build -ldflags "-X main.withoutLayers=meter" ./cmd/foldgate
//
// No flag, variable of the environment or configuration does; see
// test/bench/README.md.
var withoutLayers string

// leftOut returns what makes a gateway without these layers, and warns of it:
// none of foldgate's promises holds then.
func leftOut(log *slog.Logger) []proxy.Option {
	if withoutLayers == "" {
		return nil
	}
	log.Warn("this binary is built for benchmarks only: what foldgate promises does not hold", "without", withoutLayers)
	return []proxy.Option{proxy.Without(strings.Split(withoutLayers, ",")...)}
}
