package preview

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// declaration finds the lines that name things, in most languages. It is tried
// on short lines only.
var declaration = regexp.MustCompile(`^\s*(?:(?:export|pub(?:\([a-z]+\))?|public|private|protected|internal|static|async|abstract|final|default|override|unsafe|extern|sealed|partial)\s+)*` +
	`(?:(?:func|function|def|class|interface|type|struct|enum|impl|trait|fn|mod|module|namespace|package|record|protocol|extension)\b[\s(*]` +
	`|(?:const|var|let)\s+[A-Za-z_$][\w$]*\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\(|function\b|class\b)` +
	`|(?:CREATE|ALTER)\s+(?:TABLE|VIEW|INDEX|FUNCTION)\b` +
	`|[A-Za-z_][\w:<>,*&\[\] ]+[ *&][\w:~]+\([^;=]*\)\s*(?:const\s*)?(?:throws\s[\w, ]+)?\{\s*$)`)

// notDeclaration are statements that look like functions of C and Java.
var notDeclaration = regexp.MustCompile(`^\s*(?:\}?\s*else\b|if\b|for\b|while\b|switch\b|catch\b|return\b|do\b|#|//|\*)`)

func isDeclaration(l string) bool {
	return len(l) < 300 && indent(l) <= 8 && declaration.MatchString(l) && !notDeclaration.MatchString(l)
}

// looksCode reports whether a line ends or begins as lines of programs do.
func looksCode(l string) bool {
	t := strings.TrimSpace(l)
	if t == "" {
		return false
	}
	switch t[len(t)-1] {
	case '{', '}', ';', ')', '(', ',':
		return true
	case ':':
		return !strings.Contains(t, ". ") && isDeclaration(l) || strings.HasPrefix(t, "if ") || strings.HasPrefix(t, "for ") || t == "else:" || t == "try:"
	}
	for _, p := range []string{"import ", "from ", "return", "self.", "this.", "//", "#include", "use ", "let ", "const ", "var ", "end"} {
		if strings.HasPrefix(t, p) {
			return true
		}
	}
	return strings.Contains(t, " = ") || strings.Contains(t, " := ")
}

func isHeading(l string) bool {
	t := strings.TrimLeft(l, "#")
	n := len(l) - len(t)
	return n >= 1 && n <= 6 && len(t) > 1 && t[0] == ' '
}

func isCommit(l string) bool {
	sha, ok := strings.CutPrefix(l, "commit ")
	if !ok || len(sha) < 7 {
		return false
	}
	for i := 0; i < len(sha) && i < 40; i++ {
		if !isHex(sha[i]) {
			return sha[i] == ' '
		}
	}
	return true
}

// indent is how far a line is moved in; a tab counts as four.
func indent(l string) (n int) {
	for i := range len(l) {
		switch l[i] {
		case ' ':
			n++
		case '\t':
			n += 4
		default:
			return n
		}
	}
	return n
}

// makeOutline shows headings, declarations or the subjects of commits: the
// outer ones first, then the inner, then how the text begins.
func makeOutline(d *doc, b *body) string {
	e := newExcerpt(d, b)
	e.width = narrow
	levels := d.outline()
	total := 0
	for _, at := range levels {
		total += len(at)
		for _, i := range spread(at, b.left/entryTokens) {
			if e.full() {
				break
			}
			e.take(i, "")
		}
	}
	outlined := len(e.shown)
	e.misses = 0
	e.head(60, b.left*2/3)
	e.misses = 0
	e.tail(30, b.left)
	return e.done() + fmt.Sprintf("; %d of %d outline entries", outlined, total)
}

// entryTokens is what an entry of an outline costs, about.
const entryTokens = 16

// spread returns at most n of the entries, evenly, first and last included: an outline with gaps is
// better than one that ends in the middle.
func spread(at []int, n int) []int {
	if n < 2 || len(at) <= n {
		return at
	}
	out := make([]int, 0, n)
	for i := range n {
		out = append(out, at[i*(len(at)-1)/(n-1)])
	}
	return out
}

// outline returns the line indexes of the entries by level, outermost first.
func (d *doc) outline() [][]int {
	var levels [6][]int
	put := func(level, i int) { levels[min(level, 5)] = append(levels[min(level, 5)], i) }
	fenced, subject := false, false
	commits := count(d.lines[:min(len(d.lines), sampled)], isCommit) >= 2
	markdown := !commits && count(d.sample(), isHeading) > count(d.sample(), isDeclaration)
	for i, l := range d.lines {
		switch {
		case commits:
			if isCommit(l) {
				subject = true
			} else if subject && strings.HasPrefix(l, "    ") {
				put(0, i)
				subject = false
			}
		case strings.HasPrefix(strings.TrimSpace(l), "```"):
			fenced = !fenced
		case markdown && !fenced && isHeading(l):
			put(strings.IndexByte(l, ' ')-1, i)
		case !markdown && isDeclaration(l):
			put(indent(l)/2, i)
		}
	}
	var out [][]int
	for _, at := range levels {
		if len(at) > 0 {
			out = append(out, at)
		}
	}
	return out
}

func isDiffLine(l string) bool { return strings.HasPrefix(l, "@@ ") && strings.Count(l, "@@") >= 2 }

// makeDiff shows each file with what was added and removed, then the changed
// lines from the start.
func makeDiff(d *doc, b *body) string {
	type file struct {
		name                 string
		line, added, removed int
	}
	var files []*file
	for i, l := range d.lines {
		switch {
		case strings.HasPrefix(l, "diff --git "):
			name := l[len("diff --git "):]
			if at := strings.Index(name, " b/"); at >= 0 {
				name = name[at+3:]
			}
			files = append(files, &file{name: name, line: i + 1})
		case strings.HasPrefix(l, "+++ ") && (len(files) == 0 || files[len(files)-1].added+files[len(files)-1].removed > 0):
			files = append(files, &file{name: strings.TrimPrefix(l[4:], "b/"), line: i + 1})
		case len(files) == 0 || strings.HasPrefix(l, "+++") || strings.HasPrefix(l, "---"):
		case strings.HasPrefix(l, "+"):
			files[len(files)-1].added++
		case strings.HasPrefix(l, "-"):
			files[len(files)-1].removed++
		}
	}
	e := newExcerpt(d, b)
	shown := 0
	room := b.left
	for _, f := range files {
		if b.left < room/4 || !b.add(fmt.Sprintf("%d: %s +%d -%d", f.line, clip(f.name, narrow), f.added, f.removed)) {
			break
		}
		shown++
	}
	for i, l := range d.lines {
		if e.full() {
			break
		}
		if isDiffLine(l) || ((strings.HasPrefix(l, "+") || strings.HasPrefix(l, "-")) && !strings.HasPrefix(l, "+++") && !strings.HasPrefix(l, "---")) {
			e.take(i, "")
		}
	}
	return fmt.Sprintf("%d of %s; ", shown, plural(len(files), "changed file")) + e.done()
}

// matchParts splits a line of grep's output.
func matchParts(l string) (file string, ok bool) {
	file, rest, ok := strings.Cut(l, ":")
	if !ok || file == "" || len(file) > 200 || strings.ContainsAny(file, " \t\"'{}()") {
		return "", false
	}
	i := 0
	for i < len(rest) && isDigit(rest[i]) {
		i++
	}
	return file, i > 0 && i < len(rest) && (rest[i] == ':' || rest[i] == '-') && !isDigit(file[0]) && (strings.ContainsAny(file, "./\\") || path.Ext(file) != "")
}

func isMatchLine(l string) bool { _, ok := matchParts(l); return ok }

// makeMatches shows how many matches each file has, and the first match of each.
func makeMatches(d *doc, b *body) string {
	first, n := map[string]int{}, map[string]int{}
	var order []string
	for i, l := range d.lines {
		file, ok := matchParts(l)
		if !ok {
			continue
		}
		if n[file]++; n[file] == 1 {
			first[file] = i
			order = append(order, file)
		}
	}
	slices.SortStableFunc(order, func(a, b string) int { return n[b] - n[a] })
	e := newExcerpt(d, b)
	e.width = narrow
	for _, file := range order {
		if e.full() {
			break
		}
		e.take(first[file], fmt.Sprintf(" (%d in this file)", n[file]))
	}
	e.misses = 0
	e.head(len(d.lines), b.left)
	return fmt.Sprintf("matches in %s; ", plural(len(order), "file")) + e.done()
}
