//go:build linux

package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
)

// textLine is the length of one line of a text as JSON writes it, the line
// break (two bytes there) included.
const textLine = 64

// texts makes results that differ from call to call and are dense with the
// words that make a secret scanner look closer: the case that costs most among
// ordinary tool output.
type texts struct{ escaped []byte }

var subjects = []string{"token", "secret", "password", "api_key", "client_key", "auth", "credential", "access"}

// newTexts makes a text of n lines, the same for the same n.
func newTexts(n int) *texts {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	t := &texts{escaped: make([]byte, 0, n*textLine)}
	for range n {
		word := subjects[r.IntN(len(subjects))]
		var line string
		switch r.IntN(4) {
		case 0:
			line = fmt.Sprintf("if %s == nil { return errors.New(no %s for %d) }", word, word, r.IntN(1e6))
		case 1:
			line = fmt.Sprintf("%s := config.Lookup(%s, %d) // see the %s file", word, subjects[r.IntN(len(subjects))], r.IntN(1e6), word)
		case 2:
			line = fmt.Sprintf("level=info msg=checked %s count=%d of=%d ok", word, r.IntN(1e4), r.IntN(1e6))
		default:
			line = fmt.Sprintf("the %s of user %d was rotated %d days ago", word, r.IntN(1e6), r.IntN(900))
		}
		t.escaped = fmt.Appendf(t.escaped, "%-*.*s\\n", textLine-2, textLine-2, line)
	}
	return t
}

// append adds the text of the call'th call, size bytes of it, to dst.
func (t *texts) append(dst []byte, call uint64, size int) []byte {
	start := len(dst)
	dst = append(dst, "call "...)
	dst = strconv.AppendUint(dst, call, 10)
	for len(dst)-start < 20 {
		dst = append(dst, ' ')
	}
	left := size - (len(dst) - start)
	lines := len(t.escaped) / textLine
	for at := int(call*7919) % lines; left > 0; at = 0 { // 7919: another place each time
		from := t.escaped[at*textLine:]
		n := min(left, len(from))
		if n%textLine == textLine-1 { // never half an escape
			dst = append(append(dst, from[:n-1]...), ' ')
		} else {
			dst = append(dst, from[:n]...)
		}
		left -= n
	}
	return dst
}
