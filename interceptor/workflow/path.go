package workflow

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ohler55/ojg/jp"
)

// path is a compiled JSONPath (RFC 9535).
type path struct{ expr jp.Expr }

// Bounds of a path. The documents are foreign and up to 16 MB, and a path that
// is being evaluated can't be stopped, so a path that could take more than time
// in proportion to the document is refused when the configuration is read.
const (
	maxPath   = 1000    // bytes
	maxFactor = 64      // how often unions may select the same value
	maxIndex  = 1 << 30 // of indexes and slices; the library overflows on larger ones
)

// compilePath parses and checks a path. The error says what to write instead.
func compilePath(s string) (p path, err error) {
	defer func() { // the library's way to give up
		if f := recover(); f != nil {
			p, err = path{}, fmt.Errorf("%q is not a JSONPath: %v", s, f)
		}
	}()
	switch {
	case !strings.HasPrefix(s, "$"):
		return path{}, fmt.Errorf("%q is not a JSONPath: it begins with $", s)
	case len(s) > maxPath:
		return path{}, fmt.Errorf("the path has %d bytes, more than %d", len(s), maxPath)
	}
	x, err := jp.ParseString(s)
	if err != nil {
		return path{}, fmt.Errorf("%q is not a JSONPath: %w", s, err)
	}
	if err := checkPath(x); err != nil {
		return path{}, fmt.Errorf("%q %w", s, err)
	}
	return path{x}, nil
}

// checkPath refuses what takes too long on large documents.
func checkPath(x jp.Expr) error {
	descents, factor := 0, 1
	for _, part := range x {
		switch part := part.(type) {
		case jp.Descent:
			descents++
		case jp.Union:
			factor *= len(part)
			for _, v := range part {
				if n, ok := v.(int64); ok && (n > maxIndex || n < -maxIndex) {
					return errIndex
				}
			}
		case jp.Nth:
			if part > maxIndex || part < -maxIndex {
				return errIndex
			}
		case jp.Slice:
			for _, n := range part {
				if n != jp.SliceNotSet && (n > maxIndex || n < -maxIndex) {
					return errIndex
				}
			}
		case *jp.Filter:
			form, err := inspect(part)
			if err == nil {
				err = checkFilter(form)
			}
			if err != nil {
				return err
			}
		case *jp.Proc:
			return fmt.Errorf("has a script, which there is none for here; use a filter, [?(…)]")
		}
	}
	switch {
	case descents > 1:
		return fmt.Errorf(`has more than one "..", which takes too long on deep documents; name the members between`)
	case factor > maxFactor:
		return fmt.Errorf("has unions that multiply to %d, more than %d; name fewer members at once", factor, maxFactor)
	}
	return nil
}

var errIndex = fmt.Errorf("has an index of more than %d", maxIndex)

// inspect returns what a filter is made of: a form, or the path of one that asks
// only whether a member is there, which the library has no form for.
func inspect(f *jp.Filter) (form any, err error) {
	defer func() {
		if recover() != nil {
			text := strings.TrimSuffix(strings.TrimPrefix(f.String(), "[?"), "]")
			if form, err = jp.ParseString(strings.TrimSuffix(strings.TrimPrefix(text, "("), ")")); err != nil {
				err = fmt.Errorf("has a filter that is neither a comparison nor a path: %w", err)
			}
		}
	}()
	return f.Inspect(), nil
}

// checkFilter looks into one filter: for each element it may look at a few
// values of that element, and at nothing else.
func checkFilter(side any) error {
	switch side := side.(type) {
	case *jp.Form:
		if slices.Contains([]string{"=~", "~=", "match", "search"}, side.Op) {
			if _, ok := side.Right.(*regexp.Regexp); !ok {
				return fmt.Errorf("has a filter whose expression is compiled for each element, which takes too long on large documents; write =~ /expression/")
			}
		}
		for _, s := range []any{side.Left, side.Right} {
			if err := checkFilter(s); err != nil {
				return err
			}
		}
	case jp.Expr:
		for _, part := range side {
			switch part.(type) {
			case jp.At, jp.Child, jp.Nth, jp.Bracket:
			default:
				return fmt.Errorf("has a filter with %q, which takes too long on large documents; in a filter name members of the element, such as @.id", side.String())
			}
		}
	}
	return nil
}

// values returns the hashes of the scalars that p selects, sorted, each once.
// Null and the empty string name nothing and are left out.
func (p path) values(d document) (out []string) {
	if d == nil || p.expr == nil {
		return nil
	}
	defer func() {
		if recover() != nil { // a fault of the library: the call is made all the same
			out = nil
		}
	}()
	for i, v := range p.expr.Get(d) {
		if i == maxValues {
			break
		}
		if s, err := scalar(v); err == nil && s != "" && len(s) <= maxValue {
			out = append(out, hash(s))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
