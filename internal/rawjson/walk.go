package rawjson

import "fmt"

// Event is the type of a [Token].
type Event byte

// The events of a walk. KeyToken reports a key, and the next token begins its value.
const (
	ObjectStart Event = iota
	ObjectEnd
	ArrayStart
	ArrayEnd
	KeyToken
	StringToken
	ScalarToken // number, true, false or null
)

// Token is one step of [Walk]: an event and its byte range in the input. For a string the range
// includes the quotes; for a bracket it is the bracket.
type Token struct {
	Event      Event
	Start, End int
}

// Walk calls visit for every token of the JSON value b in order, in one pass and without recursion.
// It stops without an error when visit returns false. It fails if brackets, separators or the ends
// of strings are wrong. It does not check the inside of strings and scalars; see [Valid].
func Walk(b []byte, visit func(Token) bool) error {
	end, err := WalkFirst(b, 0, visit)
	if err == nil && end >= 0 && end < len(b) {
		return unexpected(b, end)
	}
	return err
}

// WalkFirst is [Walk] for the value that begins at byte i of b, whatever follows it. It returns the place behind
// the value and the white space after it, or the place of the fault. If visit returns false, end is -1.
func WalkFirst(b []byte, i int, visit func(Token) bool) (end int, err error) {
	open := make([]byte, 0, 64) // '{' and '[' around i; real messages need no more
	wantKey := false
	for i = space(b, i); ; {
		// A value begins at i, or the key of one.
		if i >= len(b) {
			return i, unexpected(b, i)
		}
		t := Token{ScalarToken, i, i + 1}
		switch c := b[i]; {
		case c == '"':
			if t.Event, t.End = StringToken, stringEnd(b, i); t.End < 0 {
				return i, fmt.Errorf("json: string at byte %d has no end", i)
			}
			if wantKey {
				t.Event = KeyToken
			}
		case wantKey:
			return i, unexpected(b, i)
		case c == '{':
			t.Event = ObjectStart
		case c == '[':
			t.Event = ArrayStart
		default:
			if t.End = skip(b, i); t.End <= i {
				return i, unexpected(b, i)
			}
		}
		if !visit(t) {
			return -1, nil
		}
		i = space(b, t.End)
		switch t.Event {
		case KeyToken:
			if i >= len(b) || b[i] != ':' {
				return i, unexpected(b, i)
			}
			i, wantKey = space(b, i+1), false
			continue
		case ObjectStart, ArrayStart:
			c := b[t.Start]
			open, wantKey = append(open, c), c == '{'
			if i >= len(b) || b[i] != c+2 { // it is not empty: ']' is '['+2, '}' is '{'+2
				continue
			}
		}
		// A value ended before i, or its container ends at i.
		n := len(open)
		for ; n > 0 && i < len(b) && b[i] == open[n-1]+2; n-- {
			t := Token{ObjectEnd, i, i + 1}
			if b[i] == ']' {
				t.Event = ArrayEnd
			}
			if !visit(t) {
				return -1, nil
			}
			i = space(b, i+1)
		}
		switch {
		case n == 0:
			return i, nil
		case i >= len(b) || b[i] != ',':
			return i, unexpected(b, i)
		}
		open, wantKey = open[:n], open[n-1] == '{'
		i = space(b, i+1)
	}
}

// unexpected returns the error for byte i, which is not allowed there.
func unexpected(b []byte, i int) error {
	if i < len(b) {
		return fmt.Errorf("json: unexpected %q at byte %d", b[i], i)
	}
	return fmt.Errorf("json: ends at byte %d inside a value", i)
}
