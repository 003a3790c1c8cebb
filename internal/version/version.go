// Package version knows which version of foldgate this is. Hosts and upstreams
// are told the same.
package version

import "runtime/debug"

// linked is set by -ldflags "-X github.com/foldgate/foldgate/internal/version.linked=v1.2.3".
var linked string

// String returns the version that the linker set, else the module's if it was
// installed with the go command, else "devel".
func String() string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
