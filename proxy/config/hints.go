package config

import (
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/hosts/spelling"
)

// Closest returns the one of names that a mistyped word most likely means, "" if none is near: one that
// begins with it, or that differs in at most a third of the letters.
func Closest(word string, names []string) string {
	best, least := "", max(1, len(word)/3)+1
	for _, name := range names {
		d := distance(word, name)
		if len(word) > 2 && strings.HasPrefix(name, word) {
			d = 1
		}
		if d < least {
			best, least = name, d
		}
	}
	return best
}

// distance returns how many letters must be added, left out, replaced or swapped with the next one to get from a
// to b.
func distance(a, b string) int {
	d := make([][]int, len(a)+1) // of the first i letters of a and j of b
	for i := range d {
		d[i] = make([]int, len(b)+1)
		for j := range d[i] {
			switch {
			case i == 0 || j == 0:
				d[i][j] = i + j
			case a[i-1] == b[j-1]:
				d[i][j] = d[i-1][j-1]
			default:
				d[i][j] = 1 + min(d[i-1][j-1], d[i-1][j], d[i][j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d[i][j] = min(d[i][j], d[i-2][j-2]+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

// unknownKey returns the fault for the key at a place that its mapping does not have. keys are the
// ones that it has.
func unknownKey(key, keys string) Fault {
	path := strings.Split(key, ".")
	name := path[len(path)-1]
	table := path[0]
	if table == "upstreams" && len(path) > 1 && path[1] == "mcpServers" { // the others may be names of upstreams
		table = path[1]
	}
	names := strings.Split(keys, ", ")
	switch of := spelling.Hosts(table); {
	case len(of) > 0:
		host := of[0]
		if len(of) > 1 {
			host += " (or " + strings.Join(of[1:], ", ") + ")"
		}
		return Fault{Key: key[:strings.Index(key, table)+len(table)], Msg: fmt.Sprintf("is how an agent host lists its servers. Take it out of this file; then foldgate import %s turns the host's servers into upstreams. Or write them by hand, as upstreams: {name: {command: [npx, -y, server]}}", host)}
	case path[0] == "upstreams" && len(path) == 3 && spelling.Instead(name) != "":
		return Fault{Key: key, Msg: "there is no such key; " + spelling.Instead(name)}
	}
	guess := ""
	if near := Closest(name, names); near != "" {
		guess = "did you mean " + near + "? Otherwise "
	}
	return Fault{Key: key, Msg: "there is no such key; " + guess + "use one of " + keys}
}
