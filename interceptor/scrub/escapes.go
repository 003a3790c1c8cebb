package scrub

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// spellings are the ways to write single characters, by the bytes that their escapes begin with.
// Those of one way are decoded together. Quoted-printable is a way of its own, as a = means
// something else in most texts. Invisible characters go with the first one, unless the text is ASCII.
var spellings = []string{"%\\&\x1b\x00", "="}

// quotedSigns are in each text that is quoted-printable.
var quotedSigns = []string{"=3d", "=\n", "=\r\n"}

// isQuotedPrintable reports whether text has a sign of quoted-printable: a sign = or a long line that
// goes on, which does not look like the padding of base64.
func isQuotedPrintable(text string) bool {
	const short = 60 // fewer columns than lines that go on have
	for at := 0; ; at++ {
		i := strings.IndexByte(text[at:], '=')
		if i < 0 {
			return false
		}
		at += i
		rest := text[at+1:]
		if rest != "" && rest[0] != '3' && rest[0] != '\r' && rest[0] != '\n' {
			continue
		}
		switch {
		case strings.HasPrefix(rest, "3D"):
			return true
		case strings.HasPrefix(rest, "\n"), strings.HasPrefix(rest, "\r\n"):
			line := text[strings.LastIndexByte(text[:at], '\n')+1 : at]
			digits := 0
			for digits < len(line) && inBase64(line[len(line)-1-digits]) {
				digits++
			}
			if len(line) >= short && line[len(line)-1] != '=' && (digits < 16 || digits%4 != 3) {
				return true
			}
		}
	}
}

// addEscapes adds the edits for the escapes of a spelling that begin within a range of the text that was
// scanned last. Those of ranges before it are known.
func (x *examination) addEscapes(l *edits, text string, within span, first string) error {
	known := len(l.all)
	if known > 0 {
		within.Start = max(within.Start, int(l.all[known-1].end))
	}
	for _, special := range []byte(first) {
		for at := within.Start; at < within.End; at++ {
			i := strings.IndexByte(text[at:within.End], special)
			if i < 0 {
				break
			}
			at += i
			if err := x.limit.Spend(perEscape); err != nil {
				return err
			}
			if end, with, ok := escapeAt(text, at); ok {
				l.grow(text[at:within.End])
				l.add(span{at, end}, with)
				at = end - 1
			} else if special == '\\' && at+1 < within.End && text[at+1] == '\\' {
				at++ // \\u0041 is no escape of A
			}
		}
	}
	if first == spellings[0] && !x.scratch.ASCII() {
		for at := within.Start; at < within.End; {
			if at += regexset.ASCIIPrefix(text[at:within.End]); at == within.End {
				break
			}
			r, size := utf8.DecodeRuneInString(text[at:within.End])
			if with, ok := plainOf(r); ok {
				l.grow(text[at:within.End])
				l.add(span{at, at + size}, with)
				if err := x.limit.Spend(perEscape); err != nil {
					return err
				}
			}
			at += size
		}
	}
	byStart := func(a, b edit) int { return cmp.Compare(a.start, b.start) }
	if !slices.IsSortedFunc(l.all[known:], byStart) {
		slices.SortFunc(l.all[known:], byStart)
	}
	return nil
}

// grow makes room for an edit at each of the bytes of rest that are like its first. To grow step by step copies many
// edits several times.
func (l *edits) grow(rest string) {
	const many = 256
	if n := len(l.all); n == cap(l.all) && n >= many {
		l.all = slices.Grow(l.all, strings.Count(rest, rest[:1]))
	}
}

// escapeAt returns the end of the escape at byte i and what it stands for. ok says that a secret may contain that.
func escapeAt(text string, i int) (end int, with string, ok bool) {
	switch text[i] {
	case '%':
		return hexEscape(text, i, 1, 2)
	case '=':
		if i > 0 && text[i-1] == '=' {
			return i, "", false // padding
		}
		if end := i + len("=\r\n"); end <= len(text) && text[i+1:end] == "\r\n" {
			return end, "", true
		}
		if i+1 < len(text) && text[i+1] == '\n' {
			return i + 2, "", true
		}
		return hexEscape(text, i, 1, 2)
	case '&':
		return entity(text, i)
	case esc:
		return colorAt(text, i+1)
	case 0:
		zero := func(i int) bool { return i >= 0 && i < len(text) && text[i] == 0 }
		if zero(i-2) || zero(i+2) { // of UTF-16 that was read as bytes: every second one is 0
			return i + 1, "", !zero(i-1) && !zero(i+1)
		}
		return i + 1, " ", i > 0 && text[i-1] != '\n' // between arguments or variables of Linux, not between pairs
	}
	if i+1 >= len(text) {
		return i, "", false
	}
	end = i + 2
	switch text[i+1] {
	case '"', '/', '\'', '_', '-', '=', '+', '.', ':', '!', '#', '~': // in JSON, Markdown, shells and Java's properties
		return end, text[i+1 : i+2], true
	case 'n': // the letter is no part of the word that follows
		return end, "\n", true
	case 'r':
		return end, "\r", true
	case 't':
		return end, "\t", true
	case 'e':
		return colorAt(text, end)
	case '0', '1', '2', '3', '4', '5', '6', '7':
		return octalEscape(text, i)
	case '\r', '\n': // in a shell and in YAML a word goes on in the next line
		next := strings.TrimLeft(text[i+1:], "\r\n \t")
		end = len(text) - len(next)
		return end, "", i > 0 && next != "" && inBase64(text[i-1]) && inBase64(next[0]) && strings.Count(text[i:end], "\n") == 1
	case 'u', 'U':
		if text[end:min(end+1, len(text))] == "{" { // of JavaScript, Rust and Swift
			digits, _, ok := strings.Cut(text[end+1:min(end+8, len(text))], "}")
			if !ok || digits == "" {
				return end, "", false
			}
			end, with, ok = hexEscape(text, i, 3, len(digits))
			return end + 1, with, ok
		}
		if strings.HasPrefix(text[end:], "0000") && text[i+1] == 'U' {
			return hexEscape(text, i, 2, 8)
		}
		return hexEscape(text, i, 2, 4)
	case 'x', 'X':
		return hexEscape(text, i, 2, 2)
	case '\\':
		// Two of them are an escape only before another: JSON in JSON in JSON.
		return end, `\`, i+2 < len(text) && strings.IndexByte(`"/unrtfb\`, text[i+2]) >= 0
	}
	return end, "", false
}

// entities are HTML's names of the characters of secrets and of what stands around them.
var entities = map[string]string{
	"quot": `"`, "apos": "'", "amp": "&", "lt": "<", "gt": ">", "equals": "=", "lowbar": "_", "UnderBar": "_", "period": ".",
	"colon": ":", "sol": "/", "bsol": `\`, "plus": "+", "dollar": "$", "commat": "@", "percnt": "%", "num": "#", "NewLine": "\n",
	"Tab": "\t", "nbsp": " ", "shy": "", "ZeroWidthSpace": "", "zwj": "", "zwnj": "", "NoBreak": "",
}

// entity is escapeAt for a character reference of HTML.
func entity(text string, i int) (end int, with string, ok bool) {
	name, _, ok := strings.Cut(text[i+1:min(len(text), i+len("&ZeroWidthSpace;"))], ";")
	end = i + len("&;") + len(name)
	if number, numeric := strings.CutPrefix(name, "#"); ok && numeric {
		base := 10
		if strings.HasPrefix(number, "x") || strings.HasPrefix(number, "X") {
			number, base = number[1:], 16
		}
		v, err := strconv.ParseUint(number, base, 21)
		if v < utf8.RuneSelf {
			return end, string([]byte{byte(v)}), err == nil && printable(byte(v)) // a string of one byte allocates nothing
		}
		return end, "", err == nil && invisible(rune(v))
	}
	if ok {
		with, ok = entities[name]
	}
	return end, with, ok
}

// hexEscape is escapeAt for n hexadecimal digits skip bytes after i.
func hexEscape(text string, i, skip, n int) (end int, with string, ok bool) {
	if end = i + skip + n; end > len(text) {
		return i, "", false
	}
	v := 0
	for _, c := range []byte(text[i+skip : end]) {
		if hexDigit[c] == noDigit {
			return i, "", false
		}
		v = v<<4 | int(hexDigit[c])
	}
	switch {
	case v == esc:
		return colorAt(text, end)
	case (n > 2 || skip > 2) && v >= utf8.RuneSelf:
		return end, "", invisible(rune(v))
	}
	// From 0x80 on it is a byte of a longer character, which may be an invisible one.
	return end, string([]byte{byte(v)}), v >= utf8.RuneSelf || printable(byte(v)) // a string of one byte allocates nothing
}

// octalEscape is escapeAt for three octal digits, also behind a 0.
func octalEscape(text string, i int) (end int, with string, ok bool) {
	end = i + len(`\000`)
	if strings.HasPrefix(text[i:], `\0`) && end < len(text) && text[end]&^7 == '0' {
		end++
	}
	if end > len(text) {
		return i, "", false
	}
	v, err := strconv.ParseUint(text[i+1:end], 8, 8)
	if v == esc && err == nil {
		return colorAt(text, end)
	}
	return end, string([]byte{byte(v)}), err == nil && (v >= utf8.RuneSelf || printable(byte(v)))
}

// esc begins the sequences by which terminals color text.
const esc = 0x1b

// colorAt is escapeAt for a color sequence, of which byte i is the second character.
func colorAt(text string, i int) (end int, with string, ok bool) {
	rest, ok := strings.CutPrefix(text[i:], "[")
	rest = strings.TrimLeft(rest, "0123456789;:")
	if !ok || rest == "" || rest[0] != 'm' && rest[0] != 'K' {
		return i, "", false
	}
	return len(text) - len(rest) + 1, "", true
}

// invisible reports whether r shows nothing: a token still reads like one with it inside.
func invisible(r rune) bool {
	switch r {
	case 0x00ad, 0x034f, 0x061c, 0x115f, 0x1160, 0x17b4, 0x17b5, 0x2800, 0x3164, 0xfeff, 0xffa0:
		return true
	}
	return r >= 0x180b && r <= 0x180f || r >= 0x200b && r <= 0x200f || r >= 0x202a && r <= 0x202e || r >= 0x2060 && r <= 0x206f ||
		r >= 0xfe00 && r <= 0xfe0f || r >= 0xfff0 && r <= 0xfffb || r >= 0x1d173 && r <= 0x1d17a || r >= 0xe0000 && r <= 0xe0fff
}

// plainOf returns what stands for a character that shows nothing or a blank, that draws a table, or for an arrow.
func plainOf(r rune) (string, bool) {
	switch {
	case invisible(r):
		return "", true
	case r == 0xa0, r == 0x202f, r == 0x3000:
		return " ", true
	case r == '\u2192':
		return "->", true
	case r == '\u21d2':
		return "=>", true
	case r < 0x2500 || r > 0x257f:
		return "", false
	case strings.ContainsRune("\u2500\u2501\u2504\u2505\u2508\u2509\u254c\u254d\u2550", r):
		return "-", true
	case strings.ContainsRune("\u2502\u2503\u2506\u2507\u250a\u250b\u254e\u254f\u2551", r):
		return "|", true
	}
	return "+", true
}

// printable reports whether c is printable ASCII or white space.
func printable(c byte) bool { return c >= ' ' && c < 0x7f || c >= '\t' && c <= '\r' }
