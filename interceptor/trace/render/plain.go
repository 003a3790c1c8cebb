package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Plain returns a writer that makes text safe for a terminal. It escapes each character that is not
// printable as \u and four hexadecimal digits, but for line breaks and tabs. JSON keeps its meaning.
func Plain(w io.Writer) io.Writer { return &plain{w: w} }

type plain struct {
	w    io.Writer
	mu   sync.Mutex
	rest []byte // the beginning of a character that the next write completes
}

func (p *plain) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := slices.Concat(p.rest, b)
	end := len(text)
	for i := max(0, end-utf8.UTFMax); i < len(text); i++ {
		if utf8.RuneStart(text[i]) && !utf8.FullRune(text[i:]) {
			end = i
			break
		}
	}
	p.rest = text[end:]
	if _, err := io.WriteString(p.w, escape(string(text[:end]), "\n\t")); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Printf is fmt.Fprintf with each string and error on one line: a foreign name adds no lines.
func Printf(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		switch arg := arg.(type) {
		case string:
			args[i] = clean(arg)
		case error:
			args[i] = clean(arg.Error())
		}
	}
	fmt.Fprintf(w, format, args...)
}

// clean makes foreign text safe for one line on a terminal.
func clean(s string) string { return escape(s, "") }

// Text makes foreign text safe and readable: it escapes what is not printable, but for line breaks and
// tabs.
func Text(s string) string { return escape(s, "\n\t") }

// escape escapes the characters of s that are neither printable nor in keep.
func escape(s, keep string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	bad := func(c rune) bool { return !unicode.IsPrint(c) && !strings.ContainsRune(keep, c) }
	if !strings.ContainsFunc(s, bad) {
		return s
	}
	var b strings.Builder
	for _, c := range s {
		if !bad(c) {
			b.WriteRune(c)
			continue
		}
		for _, unit := range utf16.Encode([]rune{c}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}
