package files

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

// maxIgnoreFile bounds how much of one .gitignore is read.
const maxIgnoreFile = 1 << 20

// errStop ends a walk early, without a fault.
var errStop = errors.New("stop")

// walk visits the regular files below one place.
type walk struct {
	s *Server
	// visit takes a file and its path relative to the start. Its error ends
	// the walk; errStop ends it without a fault.
	visit func(ctx context.Context, p place, rel string) error
	// unread counts directories that could not be read.
	unread int
}

// from walks everything below start in order. Where start is a file it alone
// is visited, under its base name.
func (w *walk) from(ctx context.Context, start place) error {
	if start.r == nil {
		for _, r := range w.s.roots {
			err := w.dir(ctx, place{r, "."}, r.name, w.s.ignoresAbove(place{r, "."}))
			if err != nil {
				return err
			}
		}
		return nil
	}
	f, info, err := w.s.open(start)
	if err != nil {
		return err
	}
	_ = f.Close()
	if !info.IsDir() {
		return w.visit(ctx, start, path.Base(start.rel))
	}
	return w.dir(ctx, start, "", w.s.ignoresAbove(start))
}

func (w *walk) dir(ctx context.Context, p place, rel string, ignores []gitignore.Pattern) error {
	entries, err := w.s.readDir(ctx, p)
	if err != nil {
		if errors.Is(err, errStopped) {
			return err
		}
		w.unread++
		return nil
	}
	ignores = append(ignores[:len(ignores):len(ignores)], w.s.ignoreFile(p, ".gitignore")...)
	matcher := gitignore.NewMatcher(ignores)
	for _, e := range entries {
		name := e.Name()
		child := place{p.r, path.Join(p.rel, name)}
		if name == ".git" || !e.IsDir() && !e.Type().IsRegular() ||
			len(ignores) > 0 && matcher.Match(strings.Split(child.rel, "/"), e.IsDir()) {
			continue
		}
		if e.IsDir() {
			err = w.dir(ctx, child, path.Join(rel, name), ignores)
		} else {
			err = w.visit(ctx, child, path.Join(rel, name))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoresAbove returns the patterns that hold in p because of the directories
// above it. Where they exclude p itself they are dropped: whoever names an
// ignored directory wants to see it.
func (s *Server) ignoresAbove(p place) []gitignore.Pattern {
	top := place{p.r, "."}
	ignores := s.ignoreFile(top, ".git/info/exclude")
	if p.rel == "." {
		return ignores
	}
	at := top
	segments := strings.Split(p.rel, "/")
	for i, segment := range segments {
		ignores = append(ignores, s.ignoreFile(at, ".gitignore")...)
		if gitignore.NewMatcher(ignores).Match(segments[:i+1], true) {
			ignores = nil
		}
		at.rel = path.Join(at.rel, segment)
	}
	return ignores
}

// ignoreFile reads the patterns of one ignore file, none if it can't be read.
// They hold for what is below dir.
func (s *Server) ignoreFile(dir place, name string) []gitignore.Pattern {
	f, err := s.openFile(place{dir.r, path.Join(dir.rel, name)})
	if err != nil {
		return nil
	}
	defer f.Close()
	var domain []string
	if dir.rel != "." {
		domain = strings.Split(dir.rel, "/")
	}
	var patterns []gitignore.Pattern
	sc := bufio.NewScanner(io.LimitReader(f, maxIgnoreFile))
	for sc.Scan() {
		line := strings.TrimSuffix(sc.Text(), "\r")
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			continue
		}
		patterns = append(patterns, gitignore.ParsePattern(line, domain))
	}
	return patterns
}

// Limits of a glob: alternatives in braces multiply the work of a match.
const (
	maxGlob   = 512
	maxBraces = 4
)

// parseGlob checks a glob and returns its matcher on slash-separated paths. A
// glob without a slash matches the last segment, at any depth.
func parseGlob(glob string) (func(rel string) bool, error) {
	switch {
	case len(glob) > maxGlob:
		return nil, fmt.Errorf("the glob is %d bytes long, the limit is %d: search for a part of it", len(glob), maxGlob)
	case strings.Count(glob, "{") > maxBraces:
		return nil, fmt.Errorf("the glob has more than %d {alternatives}: search for them one by one", maxBraces)
	case !doublestar.ValidatePattern(glob):
		return nil, fmt.Errorf("%s is not a valid glob: use *, **, ?, [a-z] and {a,b}, with \\ before a literal one", display(glob))
	}
	glob = strings.TrimPrefix(glob, "./")
	if !strings.Contains(glob, "/") {
		return func(rel string) bool { return doublestar.MatchUnvalidated(glob, path.Base(rel)) }, nil
	}
	glob = strings.TrimPrefix(glob, "/")
	return func(rel string) bool { return doublestar.MatchUnvalidated(glob, rel) }, nil
}
