package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Names returns a short name for each of several journals: the last part of its path that they do not
// all have, such as gate-1 for /backup/gate-1/state/trace, or the path if two have the same.
func Names(dirs []string) (names []string) {
	paths := slices.Clone(dirs)
	for same := true; same; {
		names = nil
		for i, path := range paths {
			names = append(names, filepath.Base(path))
			paths[i] = filepath.Dir(path)
			same = same && names[i] == names[0] && paths[i] != path
		}
	}
	if sorted := slices.Sorted(slices.Values(names)); len(slices.Compact(sorted)) < len(names) {
		return dirs
	}
	return names
}

// instanceOf returns the Instance of records of one of several journals, "" of the only one.
func instanceOf(dirs []string, journal int) string {
	if len(dirs) == 1 {
		return ""
	}
	return Names(dirs)[journal]
}

// SelectAll is [Select] over several journals. It merges their records by time, and sets their Instance.
func SelectAll(ctx context.Context, dirs []string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		var sources []iter.Seq2[*trace.Record, error]
		for _, dir := range dirs {
			sources = append(sources, Select(ctx, dir, f))
		}
		return merge(ctx, dirs, sources, yield)
	})
}

// SelectNewest is [SelectAll] from the newest record to the oldest. It needs the indexes, and refuses NoIndex.
// It refuses Chain and Orphans, too, which look at all records.
func SelectNewest(ctx context.Context, dirs []string, f Filter) iter.Seq2[*trace.Record, error] {
	return sequence(ctx, f, func(ctx context.Context, yield func(*trace.Record) bool) error {
		if f.Chain != "" || f.Orphans || f.NoIndex {
			return Usagef("newest", "can't be combined with --chain, --orphans or --no-index")
		}
		set, err := OpenCurrent(ctx, dirs)
		if err != nil {
			return err
		}
		defer set.Close()
		q := PageQuery{Filter: f, Order: Newest, Size: 100, Wait: time.Hour}
		for {
			p, err := set.Page(ctx, q)
			if err != nil {
				return err
			}
			for _, r := range p.Records {
				if !yield(r) {
					return nil
				}
			}
			if q.After = p.Next; q.After == "" {
				return nil
			}
		}
	})
}

// followInterval is how often [Follow] looks for new records.
const followInterval = 200 * time.Millisecond

// merge yields the records of several sources, the journals in dirs, by time. A source that yields nil
// has none now; merge asks it again after followInterval.
func merge(ctx context.Context, dirs []string, sources []iter.Seq2[*trace.Record, error], yield func(*trace.Record) bool) error {
	type source struct {
		instance string
		next     func() (*trace.Record, error, bool)
		head     *trace.Record // nil if it has none, until due
		due      time.Time
		over     bool
	}
	var open []*source
	for i, s := range sources {
		next, stop := iter.Pull2(s)
		defer stop()
		open = append(open, &source{instance: instanceOf(dirs, i), next: next})
	}
	for len(open) > 0 {
		var first *source
		for _, s := range open {
			if s.head == nil && !time.Now().Before(s.due) {
				r, err, more := s.next()
				if err != nil {
					return err
				}
				s.head, s.over, s.due = r, !more, time.Now().Add(followInterval)
			}
			if s.head != nil && (first == nil || s.head.TS < first.head.TS) {
				first = s
			}
		}
		open = slices.DeleteFunc(open, func(s *source) bool { return s.over })
		switch {
		case first != nil:
			first.head.Instance = first.instance
			if !yield(first.head) {
				return nil
			}
			first.head, first.due = nil, time.Time{}
		case len(open) > 0:
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(followInterval):
			}
		}
	}
	return nil
}

// ErrUnknown is in the errors of [Filter.Resolve] for names that no record has.
var ErrUnknown = errors.New("no record has the name")

// Resolve checks the names in f against the journals in dirs, and completes a context that is given
// in short, by the beginnings of its last segments. It returns a [*UsageError] for a short context
// that fits several, and one with [ErrUnknown] for a name that no record has. With NoIndex it does
// nothing: the index has the names.
func (f *Filter) Resolve(ctx context.Context, dirs []string) error {
	if f.NoIndex || len(f.named()) == 0 {
		return nil
	}
	s, err := OpenCurrent(ctx, dirs)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Resolve(ctx, f)
}

// named is a condition of a filter that names something.
type named struct {
	flag    string
	field   int
	globs   []string
	matches func(glob, name string) bool
}

// named returns the conditions that are set.
func (f *Filter) named() []named {
	return slices.DeleteFunc([]named{
		{"session", fieldSession, oneGlob(f.Session), glob}, {"principal", fieldPrincipal, oneGlob(f.Principal), glob},
		{"server", fieldServer, f.Servers, glob}, {"tool", fieldTool, f.Tools, glob},
		{"team", fieldTeam, oneGlob(f.Team), glob}, {"kind", fieldKind, f.Kinds, isKind},
		{"context", fieldContext, oneGlob(f.Context), isShort}, {"rule", fieldRules, oneGlob(f.Rule), glob},
	}, func(n named) bool { return len(n.globs) == 0 })
}

// Resolve is [Filter.Resolve] for the journals of s.
func (s Set) Resolve(ctx context.Context, f *Filter) error {
	for _, n := range f.named() {
		known, err := s.names(ctx, n.field)
		if err != nil {
			return err
		}
		if n.field == fieldKind {
			known = append(slices.Clone(kinds), known...)
		}
		for _, g := range n.globs {
			found := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return !n.matches(g, name) })
			switch {
			case len(found) == 0:
				hint := ""
				if server, tool, joined := strings.Cut(g, "__"); joined && n.field == fieldTool {
					hint = fmt.Sprintf("; the trace has the server's own names: --server %.80s --tool %.80s", server, tool)
				}
				return Usagef(n.flag, "%w %.80q%s; there are %s", ErrUnknown, g, hint, some(known))
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

// kinds are those that a trace can have, without methods.
var kinds = []string{
	"mcp/request", "mcp/response", "mcp/notification", "mcp/reject", trace.KindPush, trace.KindPop, "budget/near", "budget/refused",
	trace.KindWarning, trace.KindAccess, trace.KindConfig, trace.KindJournal, trace.KindStatus, trace.KindMemories,
	trace.KindReflection, trace.KindConclusion, trace.KindFlowStart, trace.KindFlowProceed, trace.KindFlowComplete,
	"budget/over", "budget/reset", "definition/new", "definition/changed", "definition/approved",
}

// isKind reports whether a pattern fits a kind, its method aside.
func isKind(pattern, kind string) bool {
	head, _, _ := strings.Cut(trace.CanonicalKind(pattern), ":")
	kind, _, _ = strings.Cut(kind, ":")
	return glob(head, kind)
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

// names returns the values of a field, sorted, and the parents of contexts.
func (s Set) names(ctx context.Context, field int) ([]string, error) {
	all := map[string]bool{}
	for _, x := range s {
		if err := x.words(ctx, field, -1, func(value string) {
			switch field {
			case fieldContext:
				for ; value != "" && !all[value]; value = string(contextpath.Path(value).Parent()) {
					all[value] = true
				}
			case fieldRules:
				for rule := range strings.SplitSeq(value, "\n") {
					all[rule] = true
				}
			default:
				all[value] = true
			}
		}); err != nil {
			return nil, err
		}
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all)), nil
}
