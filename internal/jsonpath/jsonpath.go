// Package jsonpath selects values of foreign documents.
package jsonpath

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/ohler55/ojg/jp"
)

// Bounds of a path. The documents are foreign and up to 16 MB, and evaluation can't be stopped.
// So a path is refused at start unless its time is linear in the document.
const (
	maxPath   = 1000    // bytes
	maxFactor = 64      // product of the sizes of its unions
	maxIndex  = 1 << 30 // of indexes and slices: the library overflows on larger ones
)

// Path is a compiled JSONPath (RFC 9535). The zero value selects nothing.
type Path struct{ expr jp.Expr }

// Select returns what p selects of a document, as encoding/json decodes it, and at most limit values.
func (p Path) Select(doc any, limit int) (found []any) {
	defer func() {
		if recover() != nil { // a fault of the library must not stop the call
			found = nil
		}
	}()
	if doc == nil || p.expr == nil {
		return nil
	}
	found = p.expr.Get(doc)
	return found[:min(len(found), limit)]
}

// Parse compiles a JSONPath that takes no long on large documents. The error says how to write it.
func Parse(s string) (p Path, err error) {
	defer func() { // the library panics on some faults
		if f := recover(); f != nil {
			p, err = Path{}, fmt.Errorf("%q is not a JSONPath: %v", s, f)
		}
	}()
	switch {
	case !strings.HasPrefix(s, "$"):
		return p, fmt.Errorf("%q is not a JSONPath: it begins with $", s)
	case len(s) > maxPath:
		return p, fmt.Errorf("the path has %d bytes, more than %d", len(s), maxPath)
	}
	x, err := jp.ParseString(s)
	if err != nil {
		return p, fmt.Errorf("%q is not a JSONPath: %w", s, err)
	}
	if err := check(x); err != nil {
		return p, fmt.Errorf("%q %w", s, err)
	}
	return Path{x}, nil
}

// check refuses paths that take too long on large documents.
func check(x jp.Expr) error {
	descents, factor, far := 0, 1, false
	index := func(n int64) { far = far || n > maxIndex || n < -maxIndex }
	for _, part := range x {
		switch part := part.(type) {
		case jp.Descent:
			descents++
		case jp.Union:
			factor *= len(part)
			for _, v := range part {
				if n, ok := v.(int64); ok {
					index(n)
				}
			}
		case jp.Nth:
			index(int64(part))
		case jp.Slice:
			for _, n := range part {
				if n != jp.SliceNotSet {
					index(int64(n))
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
			return errors.New("has a script, which there is none for here; use a filter, [?(…)]")
		}
	}
	switch {
	case far:
		return fmt.Errorf("has an index of more than %d", maxIndex)
	case descents > 1:
		return errors.New(`has more than one "..", which takes too long on deep documents; name the members between`)
	case factor > maxFactor:
		return fmt.Errorf("has unions that multiply to %d, more than %d; name fewer members at once", factor, maxFactor)
	}
	return nil
}

// inspect returns the form of a filter. The library has none for a filter that only tests for a
// member: for that it returns the path.
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

// checkFilter refuses a filter that looks at more than a few values of each element.
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
