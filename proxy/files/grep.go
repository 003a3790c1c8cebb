package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
)

const (
	// maxPattern is the longest regular expression, in bytes.
	maxPattern = 2048
	// maxLine is how much of a line is searched at once; the rest of a longer
	// line is searched as if it were the next line, under the same number.
	maxLine = 1 << 20
	// maxShown is how much of a line is shown, beforeMatch how much of it may
	// lie before the match.
	maxShown    = 400
	beforeMatch = 100
)

func (s *Server) grep(ctx context.Context, a *arguments) (string, error) {
	pattern := a.required("pattern")
	name := a.text("path", ".")
	glob := a.text("glob", "")
	g := &grepper{
		s:       s,
		context: a.integer("context", 0, 0, 20),
		max:     a.integer("max_matches", 100, 1, 1000),
		out:     report{limit: maxReport},
		br:      bufio.NewReaderSize(nil, readBuf),
	}
	if a.boolean("ignore_case") {
		pattern = "(?i)" + pattern
	}
	err := a.err()
	if err == nil {
		g.re, err = compile(pattern)
	}
	if err != nil {
		return "", err
	}
	match := func(string) bool { return true }
	if glob != "" {
		if match, err = parseGlob(glob); err != nil {
			return "", err
		}
	}
	p, err := s.resolve(name)
	if err != nil {
		return "", err
	}
	w := walk{s: s, visit: func(ctx context.Context, p place, rel string) error {
		if !match(rel) {
			return nil
		}
		return g.file(ctx, p)
	}}
	if err := w.from(ctx, p); err != nil && !errors.Is(err, errStop) {
		return "", err
	}
	g.conclude()
	w.noteUnread(&g.out)
	return g.out.String(), nil
}

func compile(pattern string) (*regexp.Regexp, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("the pattern is %d bytes long, the limit is %d: search for a part of it", len(pattern), maxPattern)
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("not a valid RE2 pattern (%s): put \\ before a literal ( ) [ ] { } . * + ? | ^ $ \\; there are no backreferences or lookarounds",
			strings.TrimPrefix(err.Error(), "error parsing regexp: "))
	}
	return re, nil
}

// grepper searches one file after the other and writes what it finds: the
// path, then "12:line" for a match and "13-line" for context.
type grepper struct {
	s            *Server
	re           *regexp.Regexp
	context, max int
	out          report
	br           *bufio.Reader

	searched, matches int
	left              string // why the search ended early, "" if it did not
	unread            int    // files that could not be read
}

// file searches one file. It returns errStop when the result is full.
func (g *grepper) file(ctx context.Context, p place) error {
	f, err := g.s.openFile(p)
	if err != nil {
		g.unread++
		return nil
	}
	defer f.Close()
	g.br.Reset(f)
	if head, _ := g.br.Peek(sniffLen); isBinary(head) {
		return nil
	}
	g.searched++
	scan := fileScan{g: g, name: g.s.show(p), number: 1}
	for {
		if err := stopped(ctx); err != nil {
			return err
		}
		line, end, err := g.readLine()
		if len(line) > 0 || end {
			if err := scan.line(line); err != nil {
				return err
			}
		}
		switch {
		case end:
			scan.number++
		case err == nil: // the line goes on
		case errors.Is(err, io.EOF):
			return nil
		default:
			g.unread++
			return nil
		}
	}
}

// readLine returns the next line without its end, or the next maxLine bytes of
// a longer one. end reports whether the line is complete.
func (g *grepper) readLine() (line []byte, end bool, err error) {
	chunk, err := g.br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(chunk)
		for errors.Is(err, bufio.ErrBufferFull) && len(line) < maxLine {
			chunk, err = g.br.ReadSlice('\n')
			line = append(line, chunk...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			return line, false, nil
		}
	} else {
		line = chunk
	}
	if err == nil {
		return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), true, nil
	}
	return line, false, err
}

// conclude adds what the reader must know about the search itself.
func (g *grepper) conclude() {
	switch {
	case g.left != "":
		g.out.note(g.left)
	case g.matches == 0:
		g.out.note(fmt.Sprintf("no match in %d text %s", g.searched, plural(g.searched, "file", "files")))
	}
	if g.unread > 0 {
		g.out.note(fmt.Sprintf("%d %s could not be read", g.unread, plural(g.unread, "file", "files")))
	}
}
