// Package globs matches names, such as those of tools and principals, with doublestar globs.
package globs

import (
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Match reports whether a glob matches a name. A name is not a path: * matches a slash too. Otherwise a
// server that names a tool "files/delete" could evade deny: ["*delete"].
func Match(glob, name string) bool {
	if strings.Count(glob, "*") > 2 { // at the end of a name, doublestar's three stars want a character
		glob, name = glob+"\x01", name+"\x01"
	}
	ok, _ := doublestar.Match(slashless.Replace(glob), slashless.Replace(name))
	return ok
}

// Any reports whether one of the globs matches a name.
func Any(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool { return Match(glob, name) })
}

// Invalid is what to say of a glob that is not [Valid], to be formatted with it.
const Invalid = "%q is not a valid glob: use *, ?, [a-z] and {a,b}, and \\ before one of these signs that a name has"

// Valid reports whether Match understands a glob.
func Valid(glob string) bool { return doublestar.ValidatePattern(slashless.Replace(glob)) }

var slashless = strings.NewReplacer("/", "\x00")
