package extract

import (
	"context"
	"io"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync/atomic"
	"unicode/utf8"
)

// matcher looks for an expression in lines, until its context ends.
type matcher struct {
	re    *regexp.Regexp
	steps int // that the expression has
	ended atomic.Bool
	stop  func() bool
}

// maxStride bounds what is done to a line without a look at the time: its bytes
// times the steps of the expression, each a few nanoseconds.
const maxStride = 1 << 27

// newMatcher compiles an expression; stop releases it. The error is the caller's.
func newMatcher(ctx context.Context, expr string) (*matcher, error) {
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, wrong("grep", "%v; the syntax is RE2: no look-around, no back-references", err)
	}
	m := &matcher{re: re}
	if tree, err := syntax.Parse(expr, syntax.Perl); err == nil { // as Compile did
		if prog, err := syntax.Compile(tree.Simplify()); err == nil {
			m.steps = len(prog.Inst)
		}
	}
	m.ended.Store(ctx.Err() != nil)
	m.stop = context.AfterFunc(ctx, func() { m.ended.Store(true) })
	return m, nil
}

// over reports that the time is over; what was not found then says nothing.
func (m *matcher) over() bool { return m.ended.Load() }

// find returns where a line matches, nil for nowhere. What ends in CR LF ends
// before both, for those who ask for the end of a line.
func (m *matcher) find(line string) []int {
	at := m.within(line)
	if bare, ok := strings.CutSuffix(line, "\r"); ok && at == nil {
		return m.within(bare)
	}
	return at
}

// within is find in a line as it is. One that could take long is read rune by
// rune, slower, so that the end of the time ends it.
func (m *matcher) within(line string) []int {
	if len(line) <= maxStride/max(m.steps, 1) {
		return m.re.FindStringIndex(line)
	}
	return m.re.FindReaderIndex(&runes{line, &m.ended})
}

// runes reads a line for as long as there is time.
type runes struct {
	rest  string
	ended *atomic.Bool
}

func (r *runes) ReadRune() (rune, int, error) {
	if r.rest == "" || r.ended.Load() {
		return 0, 0, io.EOF
	}
	c, n := utf8.DecodeRuneInString(r.rest)
	r.rest = r.rest[n:]
	return c, n, nil
}
