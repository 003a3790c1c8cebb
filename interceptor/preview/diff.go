package preview

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// readDiff reads a diff: each file with its added and removed lines. If other lines surround it, they
// are told too.
func readDiff(f *findings) bool {
	files, hunks, outside := changedFiles(f.lines)
	if hunks == 0 || len(files) == 0 || outside*2 > len(f.lines) {
		return false
	}
	f.kind = Diff
	worth := 9.0
	if c := forms()[0]; c.entryRE.MatchString(f.lines[0]) {
		f.kind, worth = GitLog, 5
		c.read(f)
	}
	paths := &column{}
	added, removed := 0, 0
	for i, c := range files {
		if added, removed = added+c.added, removed+c.removed; c.name != "" {
			paths.add(i, c.name)
		}
	}
	f.totals = append(f.totals, plural(len(files), "changed file"), fmt.Sprintf("+%s -%s", group(added), group(removed)), plural(hunks, "hunk"))
	show := func(c changedFile, worth float64) {
		f.own(c.line, fmt.Sprintf("%d: %s +%d -%d", c.line+1, clip(c.name, narrow), c.added, c.removed), worth)
	}
	order := slices.Clone(files)
	slices.SortStableFunc(order, func(a, b changedFile) int { return b.added + b.removed - a.added - a.removed })
	for rank, c := range order {
		show(c, worth/(1+float64(rank)/12))
	}
	show(files[0], 8)
	show(files[len(files)-1], 8)
	if len(files) > 12 {
		paths.paths(f)
	}
	n := 0
	for i, l := range f.lines {
		if strings.HasPrefix(l, "@@ ") || isChange(l) && n > 0 {
			if n++; n < 120 {
				f.line(i, "", narrow, 3/(1+float64(n)/10))
			}
		}
	}
	f.ends(0.3)
	return true
}

// changedFile is a file of a diff.
type changedFile struct {
	name                        string
	line, added, removed, hunks int
}

// changedFiles returns the files of a diff, and the number of its hunks and of the lines outside it.
func changedFiles(lines []string) (files []changedFile, hunks, outside int) {
	in, binary := false, false
	before, after := 0, 0 // lines that the hunk still has
	for i, l := range lines {
		last := len(files) - 1
		if binary = binary && !strings.HasPrefix(l, "diff --git "); binary {
			continue
		}
		if before+after > 0 && in && (l == "" || strings.IndexByte(" +-\\", l[0]) >= 0) { // whatever it looks like
			switch {
			case l == "" || l[0] == ' ':
				before, after = before-1, after-1
			case l[0] == '+':
				files[last].added++
				after--
			case l[0] == '-':
				files[last].removed++
				before--
			}
			continue
		}
		before, after = 0, 0
		switch {
		case strings.HasPrefix(l, "diff --git "):
			name := l[len("diff --git "):]
			if _, after, ok := strings.Cut(name, " b/"); ok {
				name = after
			}
			files, in = append(files, changedFile{name: name, line: i}), true
		case strings.HasPrefix(l, "+++ ") && i > 0 && strings.HasPrefix(lines[i-1], "--- ") && (!in || files[last].hunks > 0):
			name, _, _ := strings.Cut(strings.TrimPrefix(l[4:], "b/"), "\t")
			files, in = append(files, changedFile{name: name, line: i - 1}), true
		case l == "GIT binary patch":
			hunks++
			binary = true
		case strings.HasPrefix(l, "@@ "):
			hunks++
			if in {
				files[last].hunks++
			}
			before, after = hunkSize(l)
		case !in || l != "" && !startsWith(l, diffStarts):
			in = in && l != "" && l[0] != '['
			outside++
		case isChange(l) && l[0] == '+':
			files[last].added++
		case isChange(l):
			files[last].removed++
		}
	}
	return files, hunks, outside
}

// hunkSize returns how many lines a hunk has of the file before and after the change, as in "@@ -1,2 +3 @@".
func hunkSize(l string) (before, after int) {
	m := hunk.FindStringSubmatch(l)
	if m == nil {
		return 0, 0
	}
	size := func(s string) int {
		if s == "" {
			return 1
		}
		n, _ := strconv.Atoi(s)
		return n
	}
	return size(m[1]), size(m[2])
}

var hunk = regexp.MustCompile(`^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

var diffStarts = []string{" ", "+", "-", "@@", `\`, "index ", "new file", "deleted file", "old mode", "new mode", "similarity ", "rename ", "copy ", "Binary files", "diff ", "GIT binary"}

func isChange(l string) bool {
	return l != "" && (l[0] == '+' || l[0] == '-') && !strings.HasPrefix(l, "+++") && !strings.HasPrefix(l, "---")
}
