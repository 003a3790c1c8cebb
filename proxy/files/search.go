package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-git/go-git/v5/plumbing/format/gitignore"
)

func (s *Server) searchFiles(ctx context.Context, in input) (string, error) {
	var out report
	shown, total := 0, 0
	unread, err := s.walk(ctx, in.Path, in.Pattern, func(p place) error {
		if total == shown && shown < maxEntries && out.add(s.show(p)) {
			shown++
		}
		total++
		return nil
	})
	if err != nil {
		return "", err
	}
	if total == 0 {
		out.note("no file matches %s; ignored files are only found in a path that is itself ignored", display(in.Pattern))
	}
	if total > shown {
		out.note("%d of %d files left out: narrow pattern or path", total-shown, total)
	}
	out.noteUnread(unread, "directory", "directories")
	return out.String(), nil
}

const (
	// maxPattern is the longest regular expression in bytes, maxProgram its size with the repeats
	// written out.
	maxPattern = 2048
	maxProgram = 10_000
	// maxSteps is the work of a match that is not interrupted: some tenths of a second.
	maxSteps = 32 << 20
	// maxShown is the part of a line that is shown, beforeMatch the part of it before the match.
	maxShown    = 400
	beforeMatch = 100
)

func (s *Server) grep(ctx context.Context, in input) (string, error) {
	if in.IgnoreCase {
		in.Pattern = "(?i)" + in.Pattern
	}
	re, size, err := compile(in.Pattern)
	if err != nil {
		return "", err
	}
	g := &grepper{s: s, re: re, size: size, context: int(in.Context), max: int(in.MaxMatches), buf: make([]byte, 64<<10)}
	unread, err := s.walk(ctx, in.Path, in.Glob, func(p place) error { return g.file(ctx, p) })
	if errors.Is(err, errTimedOut) && g.searched > 0 {
		g.left, err = fmt.Sprintf("stopped after %s at line %d of %s: narrow pattern, path or glob, or search the rest by path", s.limit, g.number, g.name), nil
	}
	if err != nil {
		return "", err
	}
	switch {
	case g.left != "":
		g.out.note("%s", g.left)
	case g.matches == 0:
		g.out.note("no match in %d text %s", g.searched, plural(g.searched, "file", "files"))
	}
	g.out.noteUnread(g.unread, "file", "files")
	g.out.noteUnread(unread, "directory", "directories")
	return g.out.String(), nil
}

// compile returns the expression and its size: the steps of a match for each character.
func compile(pattern string) (re *regexp.Regexp, size int, err error) {
	if len(pattern) > maxPattern {
		return nil, 0, fmt.Errorf("the pattern is %d bytes long, the limit is %d: search for a part of it", len(pattern), maxPattern)
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, 0, fmt.Errorf("not a valid RE2 pattern (%s): put \\ before a literal ( ) [ ] { } . * + ? | ^ $ \\; there are no backreferences or lookarounds",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err == nil && len(prog.Inst) > maxProgram {
		return nil, 0, fmt.Errorf("the pattern has %d parts with its repeats written out, the limit is %d: use smaller counts in {}", len(prog.Inst), maxProgram)
	}
	if err == nil {
		re, err = regexp.Compile(pattern)
	}
	return re, len(prog.Inst), err
}

// grepper searches one file after the other. It writes the path of each file with a match, then
// "12:line" for a match and "13-line" for context.
type grepper struct {
	s            *Server
	re           *regexp.Regexp
	size         int // of re
	context, max int
	out          report
	buf          []byte // of the scanners

	searched, matches int
	left              string // why the search ended early, "" if it did not
	unread            int    // files that could not be read

	// The current file.
	name   string
	number int      // of the current line
	before []string // rendered lines that are context if a match follows
	after  int      // number of lines that are still context of the last match
	last   int      // number of the line written last, 0 if the name is not written
}

// file searches one file. It returns errStop when the result is full.
func (g *grepper) file(ctx context.Context, p place) error {
	f, err := g.s.openFile(p)
	if err != nil {
		g.unread++
		return nil
	}
	defer f.Close()
	if isBinary(f) {
		return nil
	}
	g.searched++
	g.name, g.number, g.before, g.after, g.last = g.s.show(p), 1, nil, 0, 0
	sc := lineScanner(f, g.buf)
	for sc.Scan() {
		line, ended := bytes.CutSuffix(sc.Bytes(), []byte("\n"))
		if ended {
			line = bytes.TrimSuffix(line, []byte("\r"))
		}
		at := g.find(ctx, line)
		if err := stopped(ctx); err != nil {
			return err
		}
		if err := g.line(line, at); err != nil {
			return err
		}
		if ended {
			g.number++
		}
	}
	if sc.Err() != nil {
		g.unread++
	}
	return nil
}

// find returns the place of the first match. A long match ends with ctx; its result is not valid then.
func (g *grepper) find(ctx context.Context, line []byte) []int {
	if len(line)*g.size <= maxSteps {
		return g.re.FindIndex(line)
	}
	return g.re.FindReaderIndex(interruptible{bytes.NewReader(line), ctx})
}

// interruptible ends with ctx.
type interruptible struct {
	io.RuneReader
	ctx context.Context
}

func (r interruptible) ReadRune() (rune, int, error) {
	if r.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	return r.RuneReader.ReadRune()
}

// line takes a line with its match, which is nil for none.
func (g *grepper) line(line []byte, at []int) error {
	if at == nil {
		switch {
		case g.after > 0:
			g.after--
			return g.write(render(g.number, '-', line, 0))
		case g.context > 0:
			if len(g.before) == g.context {
				g.before = slices.Delete(g.before, 0, 1)
			}
			g.before = append(g.before, render(g.number, '-', line, 0))
		}
		return nil
	}
	if g.matches == g.max {
		g.left = fmt.Sprintf("stopped at %d %s, more from line %d of %s on: narrow pattern, path or glob, or raise max_matches",
			g.max, plural(g.max, "match", "matches"), g.number, g.name)
		return errStop
	}
	var lines []string
	switch {
	case g.last == 0 && g.matches > 0:
		lines = append(lines, "\n"+g.name)
	case g.last == 0:
		lines = append(lines, g.name)
	case g.context > 0 && g.number-len(g.before) > g.last+1:
		lines = append(lines, "--")
	}
	lines = append(append(lines, g.before...), render(g.number, ':', line, at[0]))
	for _, l := range lines {
		if err := g.write(l); err != nil {
			return err
		}
	}
	g.before = g.before[:0]
	g.matches++
	g.after = g.context
	return nil
}

func (g *grepper) write(line string) error {
	if !g.out.add(line) {
		g.left = fmt.Sprintf("stopped at %d matches and %d bytes, more from line %d of %s on: narrow pattern, path or glob", g.matches, maxReport, g.number, g.name)
		return errStop
	}
	g.last = g.number
	return nil
}

// render returns one line of the result. A long line is cut to the part around the byte at.
func render(number int, mark byte, line []byte, at int) string {
	out := strconv.Itoa(number) + string(mark)
	if len(line) <= maxShown {
		return out + string(line)
	}
	from := max(0, min(at-beforeMatch, len(line)-maxShown))
	to := from + maxShown
	for from > 0 && !utf8.RuneStart(line[from]) {
		from--
	}
	for to < len(line) && !utf8.RuneStart(line[to]) {
		to++
	}
	if from > 0 {
		out += fmt.Sprintf("[%d bytes cut] ", from)
	}
	out += string(line[from:to])
	if to < len(line) {
		out += fmt.Sprintf(" [%d bytes cut]", len(line)-to)
	}
	return out
}

// errStop ends a walk early without a fault.
var errStop = errors.New("stop")

// walk visits the regular files below the path name that match glob ("" matches all), in order.
// It returns the number of directories that could not be read. An error of visit ends it.
func (s *Server) walk(ctx context.Context, name, glob string, visit func(place) error) (unread int, err error) {
	match, err := parseGlob(glob)
	if err != nil {
		return 0, err
	}
	start, err := s.resolve(name)
	if err != nil {
		return 0, err
	}
	w := walker{s: s, match: match, visit: visit}
	if err = w.start(ctx, start); errors.Is(err, errStop) {
		err = nil
	}
	return w.unread, err
}

type walker struct {
	s      *Server
	match  func(rel string) bool // of the path relative to the start
	visit  func(place) error
	unread int
}

func (w *walker) start(ctx context.Context, p place) error {
	if p.r == nil {
		for _, r := range w.s.roots {
			top := place{r, "."}
			if err := w.dir(ctx, top, r.name, w.s.ignoresAbove(top)); err != nil {
				return err
			}
		}
		return nil
	}
	f, info, err := w.s.open(p)
	if err != nil {
		return err
	}
	_ = f.Close()
	switch {
	case info.IsDir():
		return w.dir(ctx, p, "", w.s.ignoresAbove(p))
	case w.match(path.Base(p.rel)):
		return w.visit(p)
	}
	return nil
}

func (w *walker) dir(ctx context.Context, p place, rel string, ignores []gitignore.Pattern) error {
	entries, err := w.s.readDir(ctx, p)
	if err != nil {
		if ctx.Err() != nil {
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
		name = path.Join(rel, name)
		if e.IsDir() {
			err = w.dir(ctx, child, name, ignores)
		} else if w.match(name) {
			err = w.visit(child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoresAbove returns the patterns of the directories above p. Patterns that exclude p itself
// are dropped: a call that names an ignored directory wants to see it.
func (s *Server) ignoresAbove(p place) []gitignore.Pattern {
	ignores := s.ignoreFile(place{p.r, "."}, ".git/info/exclude")
	if p.rel == "." {
		return ignores
	}
	segments := strings.Split(p.rel, "/")
	for i := range segments {
		ignores = append(ignores, s.ignoreFile(place{p.r, path.Clean(strings.Join(segments[:i], "/"))}, ".gitignore")...)
		if gitignore.NewMatcher(ignores).Match(segments[:i+1], true) {
			ignores = nil
		}
	}
	return ignores
}

// maxIgnoreFile is the part of a .gitignore that is read, in bytes.
const maxIgnoreFile = 1 << 20

// ignoreFile returns the patterns of one ignore file, none if it can't be read. They apply below
// dir.
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

// parseGlob checks a glob and returns its matcher on slash-separated paths. A glob without a slash
// matches the last segment, at any depth; "" matches all.
func parseGlob(glob string) (func(rel string) bool, error) {
	switch {
	case glob == "":
		return func(string) bool { return true }, nil
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
