package rawjson

import "fmt"

// Event says what a [Token] is.
type Event byte

// The events of a walk. A key is reported by KeyToken, its value after it.
const (
	ObjectStart Event = iota
	ObjectEnd
	ArrayStart
	ArrayEnd
	KeyToken
	StringToken
	ScalarToken // number, true, false or null
)

// Token is one step of [Walk]: an event and its byte range in the input. For a
// string the range includes the quotes; for a bracket it is the bracket.
type Token struct {
	Event      Event
	Start, End int
}

// Walk calls visit for every token of the JSON value b in order, in one pass
// and without recursion. It stops without an error when visit returns false,
// and fails where brackets, separators or the ends of strings are wrong. What
// is inside strings and scalars is not checked; see [Valid].
func Walk(b []byte, visit func(Token) bool) error {
	var open []byte  // '{' and '[' around the position
	wantKey := false // in an object: is the next string a key?
	i := space(b, 0)
	for {
		if i >= len(b) {
			return fmt.Errorf("json: ends at byte %d inside a value", i)
		}
		t := Token{Start: i, End: i + 1}
		switch c := b[i]; {
		case c == '{' || c == '[':
			t.Event = ObjectStart
			if c == '[' {
				t.Event = ArrayStart
			}
			if wantKey {
				return wrong(b, i)
			}
			if !visit(t) {
				return nil
			}
			i = space(b, i+1)
			open = append(open, c)
			wantKey = c == '{'
			if i < len(b) && b[i] == c+2 { // an empty one: ']' is '['+2, '}' is '{'+2
				break
			}
			continue
		case c == '"':
			t.Event = StringToken
			if t.End = stringEnd(b, i); t.End < 0 {
				return fmt.Errorf("json: string at byte %d has no end", i)
			}
			if wantKey {
				t.Event = KeyToken
			}
			if !visit(t) {
				return nil
			}
			i = space(b, t.End)
			if wantKey {
				if i >= len(b) || b[i] != ':' {
					return wrong(b, i)
				}
				i, wantKey = space(b, i+1), false
				continue
			}
		case wantKey:
			return wrong(b, i)
		default:
			t.Event = ScalarToken
			if t.End = skip(b, i); t.End <= i {
				return wrong(b, i)
			}
			if !visit(t) {
				return nil
			}
			i = space(b, t.End)
		}
		for len(open) > 0 && i < len(b) && b[i] == open[len(open)-1]+2 {
			t := Token{Event: ObjectEnd, Start: i, End: i + 1}
			if b[i] == ']' {
				t.Event = ArrayEnd
			}
			if !visit(t) {
				return nil
			}
			open = open[:len(open)-1]
			i = space(b, i+1)
		}
		if len(open) == 0 {
			if i < len(b) {
				return wrong(b, i)
			}
			return nil
		}
		if i >= len(b) || b[i] != ',' {
			return wrong(b, i)
		}
		i = space(b, i+1)
		wantKey = open[len(open)-1] == '{'
	}
}

// wrong is the error for a byte that cannot stand where it does.
func wrong(b []byte, i int) error {
	if i >= len(b) {
		return fmt.Errorf("json: ends at byte %d inside a value", i)
	}
	return fmt.Errorf("json: unexpected %q at byte %d", b[i], i)
}
