package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// SelectAll is [Select] over several journals. It merges their records by time.
func SelectAll(ctx context.Context, dirs []string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) (err error) {
		var heads []*trace.Record // the next of each journal; nil at its end
		var advance []func()
		for i, dir := range dirs {
			next, stop := iter.Pull2(Select(ctx, dir, f))
			defer stop()
			heads = append(heads, nil)
			advance = append(advance, func() {
				var failed error
				heads[i], failed, _ = next()
				err = cmp.Or(err, failed)
			})
			advance[i]()
		}
		for err == nil {
			first := -1
			for i, r := range heads {
				if r != nil && (first < 0 || r.TS < heads[first].TS) {
					first = i
				}
			}
			if first < 0 || !yield(heads[first]) {
				break
			}
			advance[first]()
		}
		return err
	})
}

// ShowAll is [Index.Show] for the first of several journals that has the message.
func ShowAll(ctx context.Context, dirs []string, id string) (g *Graph, err error) {
	for _, dir := range dirs {
		var x *Index
		if x, err = Open(ctx, dir); err != nil {
			return nil, err
		}
		g, err = x.Show(ctx, id)
		x.Close()
		if !errors.Is(err, ErrNotFound) {
			break
		}
	}
	return g, err
}

// ErrUnknown is in the errors of [Filter.Resolve] for names that no record has.
var ErrUnknown = errors.New("no record has the name")

// Resolve checks the names in f against the journals in dirs, and completes a context that is given
// in short, by the beginnings of its last segments. It returns a [*UsageError] for a short context
// that fits several, and one with [ErrUnknown] for a name that no record has. With NoIndex it does
// nothing: the index has the names.
func (f *Filter) Resolve(ctx context.Context, dirs []string) error {
	for _, n := range []struct {
		flag    string
		field   int
		globs   []string
		matches func(glob, name string) bool
	}{
		{"session", fieldSession, oneGlob(f.Session), glob}, {"principal", fieldPrincipal, oneGlob(f.Principal), glob},
		{"server", fieldServer, f.Servers, glob}, {"tool", fieldTool, f.Tools, glob},
		{"context", fieldContext, oneGlob(f.Context), isShort},
	} {
		if len(n.globs) == 0 || f.NoIndex {
			continue
		}
		known, err := names(ctx, dirs, n.field)
		if err != nil {
			return err
		}
		for _, g := range n.globs {
			found := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !n.matches(g, name) })
			switch {
			case len(found) == 0:
				return Usagef(n.flag, "%w %.80q; there are %s", ErrUnknown, g, some(known))
			case n.field != fieldContext || slices.Contains(found, g):
			case len(found) > 1:
				return Usagef(n.flag, "%q can be %d contexts: %s", g, len(found), some(found))
			default:
				f.Context = found[0]
			}
		}
	}
	return nil
}

// isShort reports whether the segments of short begin the last segments of path.
func isShort(short, path string) bool {
	want, have := strings.Split(short, "/"), strings.Split(path, "/")
	return len(want) <= len(have) && slices.EqualFunc(have[len(have)-len(want):], want, strings.HasPrefix)
}

// some lists at most ten names.
func some(names []string) string {
	if more := len(names) - 10; more > 0 {
		names = append(slices.Clone(names[:10]), fmt.Sprintf("and %d more", more))
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// names returns the values of a field in several journals, sorted, and the parents of contexts.
func names(ctx context.Context, dirs []string, field int) ([]string, error) {
	all := map[string]bool{}
	for _, dir := range dirs {
		x, err := Open(ctx, dir)
		if err == nil {
			err = cmp.Or(x.refresh(ctx, false), x.words(ctx, field, func(value string) {
				for ; value != "" && !all[value]; value = string(contextpath.Path(value).Parent()) {
					all[value] = true
					if field != fieldContext {
						break
					}
				}
			}), x.Close())
		}
		if err != nil {
			return nil, err
		}
	}
	return slices.Sorted(maps.Keys(all)), nil
}
