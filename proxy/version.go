package proxy

import (
	"runtime/debug"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Version is foldgate's version: that of the module where it was installed
// with the go command, else set by the linker, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

// version is set by -ldflags "-X github.com/foldgate/foldgate/proxy.version=v1.2.3".
var version string

// serverInfo is how foldgate introduces itself to hosts.
func serverInfo() []byte {
	return rawjson.Marshal(map[string]string{"name": "foldgate", "title": "foldgate", "version": Version()})
}
