package config

import (
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// MatchTool reports whether the glob of a configuration fits the name of a tool. A
// name is one piece, and no path: * stands for a slash as well, or a server that
// names a tool "files/delete" would get it past deny: ["*delete"].
func MatchTool(glob, name string) bool {
	ok, _ := doublestar.Match(onePiece.Replace(glob), onePiece.Replace(name))
	return ok
}

// matchesAny reports whether one of the globs fits the name of a tool.
func matchesAny(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return MatchTool(glob, name) })
}

var onePiece = strings.NewReplacer("/", "\x00")
