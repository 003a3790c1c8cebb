package workflow

import (
	"crypto/rand"
	"regexp"
	"strconv"
	"time"
)

// The parts of an id: "ctx_", the unix seconds, "_", and random characters.
const (
	idPrefix    = "ctx_"
	randomChars = 26 // 36^26 is 134 bits
	alphabet    = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// NewID returns a new id, minted at now.
func NewID(now time.Time) string {
	out := strconv.AppendInt([]byte(idPrefix), now.Unix(), 10)
	out = append(out, '_')
	const limit = 256 - 256%len(alphabet) // larger bytes would favour the first letters
	var buf [2 * randomChars]byte
	for n := 0; n < randomChars; {
		_, _ = rand.Read(buf[:]) // never fails: the program ends instead
		for _, b := range buf {
			if int(b) < limit && n < randomChars {
				out = append(out, alphabet[int(b)%len(alphabet)])
				n++
			}
		}
	}
	return string(out)
}

// The form of an id; older programs wrote 6 or 8 random characters. And the form
// of an id of a host or a server.
var (
	idForm      = regexp.MustCompile(`^ctx_[0-9]{10,17}_[a-zA-Z0-9]{6,64}$`)
	foreignForm = regexp.MustCompile(`^[a-zA-Z0-9_.:-]{8,128}$`)
)

// ValidID reports whether s has the form of an id.
func ValidID(s string) bool { return idForm.MatchString(s) }

// validForeign reports whether s can be an id of a host or a server.
func validForeign(s string) bool { return foreignForm.MatchString(s) }

// StateAlias returns the alias for an opaque state that a host sends back
// unchanged, such as MCP's requestState.
func StateAlias(state string) string { return "state:" + hash(state) }
