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
	w := walker{b: b}
	for i := 0; ; {
		var ended bool
		if i, ended = w.token(space(b, i), visit); ended && i >= 0 {
			i = w.next(space(b, i), visit)
		}
		if i < 0 {
			return w.err
		}
	}
}

// A walker holds the nesting at a place of a walk. It does not hold visit, since the variables that
// visit captures would then be allocated.
type walker struct {
	b       []byte
	open    []byte // '{' and '[' around the position
	wantKey bool   // in an object: is the next string a key?
	err     error
}

// token visits the token at byte i and returns the index after it, or -1 if the walk is over. ended
// reports whether a value may have ended there.
func (w *walker) token(i int, visit func(Token) bool) (after int, ended bool) {
	if i >= len(w.b) {
		return w.fail(i), false
	}
	t := Token{ScalarToken, i, i + 1}
	switch c := w.b[i]; {
	case c == '"':
		return w.str(i, visit)
	case w.wantKey:
		return w.fail(i), false
	case c == '{' || c == '[':
		t.Event = ObjectStart
		if c == '[' {
			t.Event = ArrayStart
		}
		if !visit(t) {
			return -1, false
		}
		w.open = append(w.open, c)
		w.wantKey = c == '{'
		i = space(w.b, i+1)
		return i, i < len(w.b) && w.b[i] == c+2 // an empty one: ']' is '['+2, '}' is '{'+2
	}
	if t.End = skip(w.b, i); t.End <= i {
		return w.fail(i), false
	}
	if !visit(t) {
		return -1, false
	}
	return t.End, true
}

// str is token for a string, or for a key with the colon after it.
func (w *walker) str(i int, visit func(Token) bool) (after int, ended bool) {
	t := Token{StringToken, i, stringEnd(w.b, i)}
	if t.End < 0 {
		w.err = fmt.Errorf("json: string at byte %d has no end", i)
		return -1, false
	}
	if w.wantKey {
		t.Event = KeyToken
	}
	if !visit(t) {
		return -1, false
	}
	if !w.wantKey {
		return t.End, true
	}
	w.wantKey = false
	if i = space(w.b, t.End); i >= len(w.b) || w.b[i] != ':' {
		return w.fail(i), false
	}
	return i + 1, false
}

// next visits the brackets that close at byte i, after the end of a value. It returns the index
// after the next comma, or -1 if the walk is over.
func (w *walker) next(i int, visit func(Token) bool) int {
	for n := len(w.open); n > 0 && i < len(w.b) && w.b[i] == w.open[n-1]+2; n-- {
		t := Token{ObjectEnd, i, i + 1}
		if w.b[i] == ']' {
			t.Event = ArrayEnd
		}
		if !visit(t) {
			return -1
		}
		w.open = w.open[:n-1]
		i = space(w.b, i+1)
	}
	switch n := len(w.open); {
	case n == 0 && i == len(w.b):
		return -1
	case n == 0 || i >= len(w.b) || w.b[i] != ',':
		return w.fail(i)
	default:
		w.wantKey = w.open[n-1] == '{'
		return i + 1
	}
}

// fail sets the error for byte i, which is not allowed there, and returns -1.
func (w *walker) fail(i int) int {
	w.err = fmt.Errorf("json: ends at byte %d inside a value", i)
	if i < len(w.b) {
		w.err = fmt.Errorf("json: unexpected %q at byte %d", w.b[i], i)
	}
	return -1
}
