package files

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"unicode/utf8"
)

const (
	// maxText is the largest result of read_file in bytes: some 60,000 tokens.
	maxText = 256 << 10
	// maxEntries is the largest number of lines of list_directory and search_files.
	maxEntries = 1000
	// maxReport is the largest listing or search result in bytes.
	maxReport = 64 << 10
	// sniffLen is the part of a file that decides whether it is text, as in git.
	sniffLen = 8000
	// maxLine is the part of a line that is read at once. For grep, the rest of a longer line is
	// a further line with the same number.
	maxLine = 1 << 20
)

func (s *Server) readFile(ctx context.Context, in input) (string, error) {
	start, end := int(in.StartLine), int(in.EndLine)
	if end < start {
		return "", fmt.Errorf("end_line %d is before start_line %d", end, start)
	}
	p, err := s.resolve(in.Path)
	if err != nil {
		return "", err
	}
	f, err := s.openFile(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if isBinary(f) {
		return "", fmt.Errorf("%s is a binary file: only text can be read", s.show(p))
	}
	return s.readLines(ctx, p, f, start, end)
}

func (s *Server) readLines(ctx context.Context, p place, r io.Reader, start, end int) (string, error) {
	var out strings.Builder
	line, fit, ended := 1, 0, true // the current line; the complete lines in out; whether a line end was last
	for sc := lineScanner(r, nil); line <= end; {
		if err := stopped(ctx); err != nil {
			return "", err
		}
		if !sc.Scan() {
			if sc.Err() != nil {
				return "", s.explain(p, sc.Err())
			}
			if ended && line > 1 {
				line--
			}
			if start > line {
				return "", fmt.Errorf("%s: start_line is past the end: it has %d %s", s.show(p), line, plural(line, "line", "lines"))
			}
			break
		}
		if line >= start {
			switch {
			case out.Len()+len(sc.Bytes()) <= maxText:
				out.Write(sc.Bytes())
			case fit == 0:
				return "", fmt.Errorf("%s: line %d alone is over %d bytes: grep shows the matching part of a line", s.show(p), start, maxText)
			default:
				return "", fmt.Errorf("%s: over the limit of %d bytes: lines %d to %d fit, so read it in parts with start_line and end_line, or use grep",
					s.show(p), maxText, start, start+fit-1)
			}
		}
		if ended = bytes.HasSuffix(sc.Bytes(), []byte("\n")); ended {
			if line >= start {
				fit++
			}
			line++
		}
	}
	return out.String(), nil
}

// lineScanner returns a scanner of lines with their ends. A line that is longer than maxLine
// comes in parts. buf is a buffer for reuse, or nil.
func lineScanner(r io.Reader, buf []byte) *bufio.Scanner {
	sc := bufio.NewScanner(r)
	sc.Buffer(buf, maxLine)
	sc.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i+1], nil
		}
		if len(data) >= maxLine || atEOF && len(data) > 0 {
			return len(data), data, nil
		}
		return 0, nil, nil
	})
	return sc
}

// isBinary reports whether the start of a file is not text: it has a NUL byte (git's rule, which
// also finds UTF-16), or more than a tenth of it is not UTF-8. JSON shows a few stray bytes as
// U+FFFD.
func isBinary(f io.ReaderAt) bool {
	head := make([]byte, sniffLen)
	n, _ := f.ReadAt(head, 0)
	head = head[:n]
	bad := 0
	for i := 0; i < len(head); {
		r, n := utf8.DecodeRune(head[i:])
		if r == utf8.RuneError && n == 1 {
			bad++
		}
		i += n
	}
	return bytes.IndexByte(head, 0) >= 0 || bad*10 > len(head)
}

func (s *Server) listDirectory(ctx context.Context, in input) (string, error) {
	p, err := s.resolve(in.Path)
	if err != nil {
		return "", err
	}
	if p.r == nil {
		return s.listRoots("\n"), nil
	}
	entries, err := s.readDir(ctx, p)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "(empty)", nil
	}
	var out report
	for i, e := range entries {
		if i == maxEntries || !out.add(describe(e)) {
			out.note("%d of %d entries left out: search_files finds files by name", len(entries)-i, len(entries))
			break
		}
	}
	return out.String(), nil
}

// describe returns one line of a listing.
func describe(e fs.DirEntry) string {
	name := display(e.Name())
	switch {
	case e.IsDir():
		return name + "/"
	case e.Type()&fs.ModeSymlink != 0:
		return name + "@"
	}
	if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
		return fmt.Sprintf("%s %d", name, info.Size())
	}
	return name
}

// report collects lines up to a limit in bytes, and remarks on the missing ones.
type report struct{ strings.Builder }

// add appends line and reports whether there was room for it.
func (r *report) add(line string) bool {
	if r.Len()+len(line)+1 > maxReport {
		return false
	}
	if r.Len() > 0 {
		r.WriteByte('\n')
	}
	r.WriteString(line)
	return true
}

// note appends a remark in parentheses. It ignores the limit.
func (r *report) note(format string, args ...any) {
	if r.Len() > 0 {
		r.WriteByte('\n')
	}
	fmt.Fprintf(r, "("+format+")", args...)
}

// noteUnread remarks on n files or directories that could not be read.
func (r *report) noteUnread(n int, one, many string) {
	if n > 0 {
		r.note("%d %s could not be read", n, plural(n, one, many))
	}
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
