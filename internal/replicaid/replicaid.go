// Package replicaid puts the name of a replica into the ids that it makes, so that any replica finds
// the one that a request belongs to. An id is a kind such as "br_", the name of a replica with "_"
// behind it, and a random rest without "_". The ids of a gateway without replicas have no name.
package replicaid

import (
	"crypto/rand"
	"strings"
)

// length is the length of a name. With it no id is longer than 50 bytes, so the paths of branches,
// which have five levels at most, are shorter than their limit of 255 bytes.
const length = 5

const letters = "0123456789abcdefghjkmnpqrstvwxyz"

// NewName returns a random name.
func NewName() string {
	b := make([]byte, length)
	rand.Read(b) // never fails: the runtime ends the process instead
	for i := range b {
		b[i] = letters[b[i]%byte(len(letters))]
	}
	return string(b)
}

// Valid reports whether a name has the form of those that NewName returns.
func Valid(name string) bool { return len(name) == length && strings.Trim(name, letters) == "" }

// New returns an id. With replica "" it has no name.
func New(kind, replica, random string) string {
	if replica == "" {
		return kind + random
	}
	return kind + replica + "_" + random
}

// Cut takes an id apart. replica is "" for an id without a name; ok is false if the id is of another
// kind.
func Cut(kind, id string) (replica, random string, ok bool) {
	rest, ok := strings.CutPrefix(id, kind)
	if !ok {
		return "", "", false
	}
	if name, random, named := strings.Cut(rest, "_"); named && Valid(name) {
		return name, random, true
	}
	return "", rest, true
}
