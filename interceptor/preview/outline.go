package preview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// showOutline shows headings, declarations or the subjects of commits, the outer ones first. Then it
// shows the start and the end of the text.
func showOutline(d *doc, b *body) string {
	e := newExcerpt(d.lines, narrow, b)
	total := 0
	for _, entries := range d.outline() {
		total += len(entries)
		for _, i := range spread(entries, b.left/entryTokens) {
			if e.full() {
				break
			}
			e.take(i, "")
		}
	}
	outlined := len(e.shown)
	e.head(60, b.left*2/3)
	e.tail(30, b.left)
	return e.done() + fmt.Sprintf("; %d of %d outline entries", outlined, total)
}

const entryTokens = 16 // the usual size of an outline entry

// outline returns the line indexes of the entries by level, the outermost first.
func (d *doc) outline() [6][]int {
	var levels [6][]int
	put := func(level, i int) {
		level = min(level, len(levels)-1)
		levels[level] = append(levels[level], i)
	}
	sample := d.sample()
	commits := count(d.lines[:min(len(d.lines), sampled)], isCommit) >= 2
	markdown := !commits && count(sample, isHeading) > count(sample, isDeclaration)
	fenced, subject := false, false // in a code block; before the subject of a commit
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
	return levels
}

func isCommit(l string) bool {
	sha, ok := strings.CutPrefix(l, "commit ")
	end := strings.IndexFunc(sha, func(r rune) bool { return !strings.ContainsRune("0123456789abcdef", r) })
	return ok && len(sha) >= 7 && (end < 0 || end >= 40 || sha[end] == ' ')
}

func isHeading(l string) bool {
	t := strings.TrimLeft(l, "#")
	n := len(l) - len(t)
	return n >= 1 && n <= 6 && len(t) > 1 && t[0] == ' '
}

func isDeclaration(l string) bool {
	return len(l) < 300 && indent(l) <= 8 && declaration.MatchString(l) && !notDeclaration.MatchString(l)
}

// declaration matches lines that declare a name, in most languages.
var declaration = regexp.MustCompile(`^\s*(?:(?:export|pub(?:\([a-z]+\))?|public|private|protected|internal|static|async|abstract|final|default|override|unsafe|extern|sealed|partial)\s+)*` +
	`(?:(?:func|function|def|class|interface|type|struct|enum|impl|trait|fn|mod|module|namespace|package|record|protocol|extension)\b[\s(*]` +
	`|(?:const|var|let)\s+[A-Za-z_$][\w$]*\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\(|function\b|class\b)` +
	`|(?:CREATE|ALTER)\s+(?:TABLE|VIEW|INDEX|FUNCTION)\b` +
	`|[A-Za-z_][\w:<>,*&\[\] ]+[ *&][\w:~]+\([^;=]*\)\s*(?:const\s*)?(?:throws\s[\w, ]+)?\{\s*$)`)

// notDeclaration matches statements that look like functions of C and Java.
var notDeclaration = regexp.MustCompile(`^\s*(?:\}?\s*else\b|if\b|for\b|while\b|switch\b|catch\b|return\b|do\b|#|//|\*)`)

// indent returns the indentation of a line. A tab counts as four.
func indent(l string) int {
	space := l[:len(l)-len(strings.TrimLeft(l, " \t"))]
	return len(space) + 3*strings.Count(space, "\t")
}

// looksCode reports whether a line starts or ends like a line of a program.
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
	return startsWith(t, codeStarts) || strings.Contains(t, " = ") || strings.Contains(t, " := ")
}

var codeStarts = []string{"import ", "from ", "return", "self.", "this.", "//", "#include", "use ", "let ", "const ", "var ", "end"}

// showDiff shows each file with the numbers of its added and removed lines, then the first changes.
func showDiff(d *doc, b *body) string {
	type file struct {
		name                 string
		line, added, removed int
	}
	var files []file
	for i, l := range d.lines {
		last := len(files) - 1
		switch {
		case strings.HasPrefix(l, "diff --git "):
			name := l[len("diff --git "):]
			if _, after, ok := strings.Cut(name, " b/"); ok {
				name = after
			}
			files = append(files, file{name: name, line: i + 1})
		case strings.HasPrefix(l, "+++ ") && (last < 0 || files[last].added+files[last].removed > 0):
			files = append(files, file{name: strings.TrimPrefix(l[4:], "b/"), line: i + 1})
		case last < 0 || !isChange(l):
		case l[0] == '+':
			files[last].added++
		default:
			files[last].removed++
		}
	}
	e := newExcerpt(d.lines, wide, b)
	room := b.left
	for _, f := range files {
		if b.left < room/4 || !b.add(fmt.Sprintf("%d: %s +%d -%d", f.line, clip(f.name, narrow), f.added, f.removed)) {
			break
		}
	}
	shown := len(b.parts)
	for i, l := range d.lines {
		if e.full() {
			break
		}
		if isHunk(l) || isChange(l) {
			e.take(i, "")
		}
	}
	return fmt.Sprintf("%d of %s; ", shown, plural(len(files), "changed file")) + e.done()
}

func isHunk(l string) bool { return strings.HasPrefix(l, "@@ ") && strings.Count(l, "@@") >= 2 }

func isChange(l string) bool {
	return l != "" && (l[0] == '+' || l[0] == '-') && !strings.HasPrefix(l, "+++") && !strings.HasPrefix(l, "---")
}

// showMatches shows the first match of each file and the number of matches, then the first lines.
func showMatches(d *doc, b *body) string {
	first, times := map[string]int{}, map[string]int{}
	var files []string
	for i, l := range d.lines {
		file, ok := matchedFile(l)
		if !ok {
			continue
		}
		if times[file]++; times[file] == 1 {
			first[file] = i
			files = append(files, file)
		}
	}
	slices.SortStableFunc(files, func(a, b string) int { return times[b] - times[a] })
	e := newExcerpt(d.lines, narrow, b)
	for _, file := range files {
		if e.full() {
			break
		}
		e.take(first[file], fmt.Sprintf(" (%d in this file)", times[file]))
	}
	e.head(len(d.lines), b.left)
	return fmt.Sprintf("matches in %s; ", plural(len(files), "file")) + e.done()
}

func isMatch(l string) bool { _, ok := matchedFile(l); return ok }

// matchedFile returns the file of a line that grep printed.
func matchedFile(l string) (file string, ok bool) {
	file, rest, _ := strings.Cut(l, ":")
	if file == "" || len(file) > 200 || isDigit(file[0]) || strings.ContainsAny(file, " \t\"'{}()") || !strings.ContainsAny(file, `./\`) {
		return "", false
	}
	after := strings.TrimLeft(rest, "0123456789")
	return file, len(after) < len(rest) && (strings.HasPrefix(after, ":") || strings.HasPrefix(after, "-"))
}
