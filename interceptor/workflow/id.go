package workflow

import (
	"crypto/rand"
	"strconv"
	"strings"
	"time"
)

// The parts of a handle: "ctx_", the unix seconds, "_", and random characters.
const (
	idPrefix    = "ctx_"
	randomChars = 26 // 36^26 is 134 bits
	minRandom   = 6  // accepted on input: older programs wrote 6 or 8
	maxRandom   = 64
	alphabet    = "abcdefghijklmnopqrstuvwxyz0123456789"
)

// NewID returns a new handle minted at now. It is safe for concurrent use.
func NewID(now time.Time) string {
	out := strconv.AppendInt([]byte(idPrefix), now.Unix(), 10)
	out = append(out, '_')
	const limit = 256 - 256%len(alphabet) // bytes from here on would favour the first letters
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

// ValidID reports whether s has the form of a handle: 10 to 17 digits, and 6 to
// 64 letters and digits.
func ValidID(s string) bool {
	rest, ok := strings.CutPrefix(s, idPrefix)
	if !ok {
		return false
	}
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	if digits < 10 || digits > 17 || digits == len(rest) || rest[digits] != '_' {
		return false
	}
	rest = rest[digits+1:]
	for i := 0; i < len(rest); i++ {
		if c := rest[i] | 0x20; (c < 'a' || c > 'z') && (rest[i] < '0' || rest[i] > '9') {
			return false
		}
	}
	return len(rest) >= minRandom && len(rest) <= maxRandom
}

// maxForeign bounds the ids of others that can be kept as aliases.
const maxForeign = 128

// validForeign reports whether s can be an id of somebody else's: 8 to 128
// letters, digits and "-_.:".
func validForeign(s string) bool {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.', c == ':':
		default:
			return false
		}
	}
	return len(s) >= 8 && len(s) <= maxForeign
}

// StateAlias returns the alias of an opaque state that a host gives back word
// for word, such as MCP's requestState.
func StateAlias(state string) string { return "state:" + hash(state) }
