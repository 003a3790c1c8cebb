package folding

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of texts, in characters (runes), after cleaning.
const (
	maxDescription = 500
	maxPrompt      = 10_000
	maxMessage     = 50_000
	maxToolName    = 64
	maxLastError   = 200
	maxSessionID   = 255 // bytes
)

// cleanText cleans s and refuses more than max characters.
func cleanText(field, s string, max int) (string, error) {
	s = clean(s)
	if n := utf8.RuneCountInString(s); n > max {
		return "", Errorf(ErrInvalidInput, "%s has %d characters, the limit is %d: shorten it", field, n, max)
	}
	return s, nil
}

// checkSessionID accepts the session ids that the protocol allows: visible ASCII.
func checkSessionID(id string) error {
	if len(id) > maxSessionID {
		return Errorf(ErrInvalidInput, "session_id has %d bytes, the limit is %d", len(id), maxSessionID)
	}
	if strings.ContainsFunc(id, func(r rune) bool { return r <= 0x20 || r >= 0x7f }) {
		return Errorf(ErrInvalidInput, "session_id may hold visible ASCII characters only; leave it out to use the connection's session")
	}
	return nil
}

// scrub calls Options.Scrub. If that fails or panics, the text is withheld.
func (m *Manager) scrub(ctx context.Context, text string) (out string, err error) {
	if text == "" {
		return "", nil
	}
	const withheld = "the text could not be checked for secrets and was withheld: nothing was changed, try again"
	defer func() {
		if r := recover(); r != nil {
			m.log.Error("scrubber panicked", "panic", fmt.Sprint(r))
			out, err = "", Errorf(ErrScrubbingFailed, withheld)
		}
	}()
	if out, err = m.opts.Scrub(ctx, text); err != nil {
		return "", hiding(err, ErrScrubbingFailed, withheld)
	}
	return out, nil
}

// Shorten returns foreign text for use in a message: without invisible characters, and cut to max
// characters.
func Shorten(s string, max int) string { return cut(clean(s), max) }

// clean removes characters that are invisible to people but not to a model or a terminal, and
// invalid UTF-8.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if invisible(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}

// invisible reports whether r is a control character other than newline and tab, a bidirectional
// override, a zero-width character, a line or paragraph separator, a tag or a supplementary
// variation selector. Joiners do not count: emoji and several scripts need them.
func invisible(r rune) bool {
	const joiners = "\u200c\u200d"
	return !strings.ContainsRune("\n\t"+joiners, r) &&
		(unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) ||
			r >= 0xE0000 && r <= 0xE0FFF || r >= 0xF0000 && unicode.Is(unicode.Co, r))
}

// cut shortens s to at most max characters, the last one an ellipsis.
func cut(s string, max int) string {
	if utf8.RuneCountInString(s) <= max {
		return s
	}
	return string([]rune(s)[:max-1]) + "…"
}
