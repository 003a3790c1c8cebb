package files

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

const (
	// maxText is the most that read_file returns, in bytes: some 60,000 tokens.
	maxText = 256 << 10
	// sniffLen is how much of a file decides whether it is text; git looks as far.
	sniffLen = 8000
	readBuf  = 64 << 10
)

func (s *Server) readFile(ctx context.Context, a *arguments) (string, error) {
	name := a.required("path")
	start := a.integer("start_line", 1, 1, math.MaxInt32)
	end := a.integer("end_line", math.MaxInt32, 1, math.MaxInt32)
	if err := a.err(); err != nil {
		return "", err
	}
	if end < start {
		return "", fmt.Errorf("end_line %d is before start_line %d", end, start)
	}
	p, err := s.resolve(name)
	if err != nil {
		return "", err
	}
	f, err := s.openFile(p)
	if err != nil {
		return "", err
	}
	defer f.Close()
	br := bufio.NewReaderSize(f, readBuf)
	if head, _ := br.Peek(sniffLen); isBinary(head) {
		return "", fmt.Errorf("%s is a binary file: only text can be read", s.show(p))
	}
	text, err := readLines(ctx, br, start, end)
	if err != nil {
		return "", s.readError(p, err)
	}
	return text, nil
}

// tooLarge says that lines from start on don't fit in maxText; fit is how many do.
type tooLarge struct{ start, fit int }

func (e *tooLarge) Error() string {
	if e.fit == 0 {
		return fmt.Sprintf("line %d alone is over %d bytes: grep shows the matching part of a line", e.start, maxText)
	}
	return fmt.Sprintf("over the limit of %d bytes: lines %d to %d fit, so read it in parts with start_line and end_line, or use grep",
		maxText, e.start, e.start+e.fit-1)
}

func (s *Server) readError(p place, err error) error {
	var large *tooLarge
	switch {
	case errors.As(err, &large), errors.Is(err, errPastEnd):
		return fmt.Errorf("%s: %w", s.show(p), err)
	case errors.Is(err, errStopped):
		return err
	}
	return s.explain(p, err)
}

var errStopped = errors.New("stopped before the end")

// stopped returns nil while ctx lasts, then the tool error for its end.
func stopped(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: timed out; narrow the call, for example with path or glob", errStopped)
	}
	return fmt.Errorf("%w: cancelled", errStopped)
}

var errPastEnd = errors.New("start_line is past the end")

// readLines returns lines start to end of br, with their line ends.
func readLines(ctx context.Context, br *bufio.Reader, start, end int) (string, error) {
	var out strings.Builder
	line, fit := 1, 0 // the line being read; complete lines in out
	for line <= end {
		if err := stopped(ctx); err != nil {
			return "", err
		}
		chunk, err := br.ReadSlice('\n')
		if line >= start {
			if out.Len()+len(chunk) > maxText {
				return "", &tooLarge{start, fit}
			}
			out.Write(chunk)
		}
		switch {
		case err == nil:
			if line >= start {
				fit++
			}
			line++
		case errors.Is(err, bufio.ErrBufferFull): // the line goes on
		case errors.Is(err, io.EOF):
			if len(chunk) == 0 && line > 1 {
				line-- // the last line ended with a line end
			}
			if start > max(line, 1) {
				return "", fmt.Errorf("%w: it has %d %s", errPastEnd, line, plural(line, "line", "lines"))
			}
			return out.String(), nil
		default:
			return "", err
		}
	}
	return out.String(), nil
}

// isBinary reports whether head, the start of a file, is not text: it has a
// NUL byte (git's rule, which also catches UTF-16), or more than a tenth of it
// is not UTF-8. A few stray bytes are let through; JSON shows them as U+FFFD.
func isBinary(head []byte) bool {
	if len(head) > sniffLen {
		head = head[:sniffLen]
	}
	if bytes.IndexByte(head, 0) >= 0 {
		return true
	}
	bad := 0
	for i := 0; i < len(head); {
		r, n := utf8.DecodeRune(head[i:])
		if r == utf8.RuneError && n == 1 {
			bad++
		}
		i += n
	}
	return bad*10 > len(head)
}
