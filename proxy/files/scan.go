package files

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// fileScan is the state of the search in one file.
type fileScan struct {
	g       *grepper
	name    string
	number  int      // of the line at hand
	before  []string // rendered lines that are context if a match follows
	after   int      // how many lines after the last match are still context
	last    int      // number of the line written last
	started bool     // the file's name was written
}

func (f *fileScan) line(line []byte) error {
	at := f.g.re.FindIndex(line)
	if at == nil {
		switch {
		case f.after > 0:
			f.after--
			return f.write(render(f.number, '-', line, 0))
		case f.g.context > 0:
			if len(f.before) == f.g.context {
				f.before = append(f.before[:0], f.before[1:]...)
			}
			f.before = append(f.before, render(f.number, '-', line, 0))
		}
		return nil
	}
	if f.g.matches == f.g.max {
		f.g.left = fmt.Sprintf("stopped at %d %s, more from line %d of %s on: narrow pattern, path or glob, or raise max_matches",
			f.g.max, plural(f.g.max, "match", "matches"), f.number, f.name)
		return errStop
	}
	if !f.started {
		head := f.name
		if f.g.matches > 0 {
			head = "\n" + head
		}
		if err := f.write(head); err != nil {
			return err
		}
		f.started = true
	} else if f.g.context > 0 && f.number-len(f.before) > f.last+1 {
		if err := f.write("--"); err != nil {
			return err
		}
	}
	for _, b := range f.before {
		if err := f.write(b); err != nil {
			return err
		}
	}
	f.before = f.before[:0]
	if err := f.write(render(f.number, ':', line, at[0])); err != nil {
		return err
	}
	f.g.matches++
	f.after = f.g.context
	return nil
}

func (f *fileScan) write(line string) error {
	if !f.g.out.add(line) {
		f.g.left = fmt.Sprintf("stopped at %d matches and %d bytes, more from line %d of %s on: narrow pattern, path or glob", f.g.matches, maxReport, f.number, f.name)
		return errStop
	}
	f.last = f.number
	return nil
}

// render is one line of the result. A long line is cut to what is around the
// byte at, and says so.
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
