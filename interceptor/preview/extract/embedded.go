package extract

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Embedded is an object or an array in a text. It is written in JSON, or as Python, JavaScript, Ruby or Java print
// their values.
type Embedded struct {
	Line, From, To int // the start of its line, its own start and its end in the text
	JSON           []byte
}

// Embeds returns the values that end with a line, if they are most of the text. Other text may stand before a value in
// its line, such as "data: ". It returns nil for a text that may be YAML. The time is linear.
func Embeds(text string) (values []Embedded) {
	if strings.HasPrefix(text, "<") {
		return nil
	}
	size, maps := 0, true // maps: what stands before each value is the key or the dash of YAML
	keys := map[string]bool{}
	work := 8 * len(text)
	for at := 0; at < len(text); {
		end := lineEnd(text, at)
		v, read := embedded(text, at, end)
		if work -= read; work < 0 || at > enoughText && size*4 < at {
			return nil
		}
		if v.JSON == nil {
			at = end + 1
			continue
		}
		before := strings.TrimSpace(text[at:v.From])
		if maps = maps && (before == "-" || strings.HasSuffix(before, ":") && !strings.Contains(before, " ") && !keys[before]); maps {
			keys[before] = true
		}
		values, size = append(values, v), size+v.To-v.From
		at = lineEnd(text, v.To) + 1
	}
	if size*2 <= len(strings.TrimSpace(text)) || maps {
		return nil
	}
	return values
}

func lineEnd(text string, at int) int {
	if n := strings.IndexByte(text[at:], '\n'); n >= 0 {
		return at + n
	}
	return len(text)
}

// starts matches the start of an array, and of an object by its constructor. An array of other words is mere
// text in brackets.
var (
	startsArray  = regexp.MustCompile(`^[\[(]\s*(?:["'\d({\[-]|[bur]["']|\w+\()`)
	startsObject = regexp.MustCompile(`^[A-Za-z_][\w.]*\(\w+=`)
)

// embedded returns the value that begins in the line of a text from at to end, and ends with a line. read is how many
// bytes were looked at.
func embedded(text string, at, end int) (v Embedded, read int) {
	blank := len(text[at:end]) - len(strings.TrimLeft(text[at:end], " \t"))
	for from, tries := at+blank, 0; from < min(end, at+maxBefore) && tries < 4; from++ {
		first := from == at+blank
		switch c := text[from]; {
		case c == '{', (c == '[' || c == '(' && first) && startsArray.MatchString(text[from:min(len(text), from+200)]), first && startsObject.MatchString(text[from:end]):
		default:
			continue
		}
		if strings.HasSuffix(strings.TrimRight(text[at:from], " "), "=") { // a statement
			return v, read
		}
		tries++
		p := literal{text: text, at: from}
		ok := p.value(maxLiteral)
		read += p.at - from
		if to := p.at; ok && strings.TrimSpace(text[to:lineEnd(text, to)]) == "" && json.Valid(p.out) {
			return Embedded{at, from, to, p.out}, read
		}
	}
	return v, read
}

const (
	enoughText = 8 << 10 // bytes of which a quarter are values, or the text has none
	maxBefore  = 1000    // bytes of a line before its value
	maxLiteral = 200     // levels of a literal
)

// literal converts a value to JSON as it reads it.
type literal struct {
	text string
	at   int
	out  []byte
}

// value converts the value at the current place. It returns false if there is none.
func (p *literal) value(depth int) bool {
	p.space()
	if p.at >= len(p.text) || depth == 0 {
		return false
	}
	switch c := p.text[p.at]; c {
	case '{':
		return p.list('{', '}', depth, p.member)
	case '[':
		if n := len(opaque.FindString(p.text[p.at:min(len(p.text), p.at+80)])); n > 0 {
			p.out = strconv.AppendQuote(p.out, p.text[p.at:p.at+n])
			p.at += n
			return true
		}
		return p.list('[', ']', depth, p.value)
	case '(':
		return p.list('[', ')', depth, p.value)
	case '"', '\'':
		return p.string()
	}
	if n := len(classed.FindString(p.text[p.at:min(len(p.text), p.at+80)])); n > 0 {
		p.at += n - 1
		return p.value(depth)
	}
	if name := startsObject.FindString(p.text[p.at:min(len(p.text), p.at+80)]); name != "" {
		p.at += strings.IndexByte(name, '(')
		return p.list('{', ')', depth, p.member)
	}
	return p.word()
}

// opaque matches what JavaScript prints for what it does not show, such as "[Function: f]"; classed the name of a class
// before an object.
var (
	opaque  = regexp.MustCompile(`^\[[A-Z][\w ]*(?:: [\w. $]*)?\]`)
	classed = regexp.MustCompile(`^[A-Z]\w*(?:\(\d+\))? [{\[]`)
)

// list converts what stands between brackets. The comma behind the last part is optional.
func (p *literal) list(open, end byte, depth int, part func(int) bool) bool {
	p.at++
	p.out = append(p.out, open)
	for n := 0; ; n++ {
		if p.space(); p.at >= len(p.text) {
			return false
		}
		if p.text[p.at] == end {
			p.at++
			p.out = append(p.out, open+2)
			return true
		}
		if n > 0 {
			p.out = append(p.out, ',')
		}
		if !part(depth - 1) {
			return false
		}
		if p.space(); p.at < len(p.text) && p.text[p.at] == ',' {
			p.at++
		} else if p.at >= len(p.text) || p.text[p.at] != end {
			return false
		}
	}
}

// keyed matches an unquoted key with what stands behind it, separated what stands behind a quoted one.
var (
	keyed     = regexp.MustCompile(`^([\w$][\w$.-]*)(\s*(?:=>|[:=]))(?:[^:=]|$)`)
	separated = regexp.MustCompile(`^\s*(?:=>|[:=])`)
)

// member converts a key, what separates it, and its value.
func (p *literal) member(depth int) bool {
	rest := p.text[p.at:min(len(p.text), p.at+200)]
	if c := rest[0]; c == '"' || c == '\'' {
		if !p.string() {
			return false
		}
		n := len(separated.FindString(p.text[p.at:min(len(p.text), p.at+80)]))
		if p.at += n; n == 0 {
			return false
		}
	} else if m := keyed.FindStringSubmatch(rest); m != nil {
		p.out = strconv.AppendQuote(p.out, m[1])
		p.at += len(m[1]) + len(m[2])
	} else {
		return false
	}
	p.out = append(p.out, ':')
	return p.value(depth)
}

// string converts a string in single or double quotes, or several without a comma between, as pprint breaks a long one.
func (p *literal) string() bool {
	for from := len(p.out); ; {
		at := len(p.out)
		if !p.quoted() {
			return false
		}
		if at > from { // one string goes on
			p.out = append(p.out[:at-1], p.out[at+1:]...)
		}
		end := p.at
		if p.space(); p.at >= len(p.text) || p.text[p.at] != '"' && p.text[p.at] != '\'' {
			p.at = end
			return true
		}
	}
}

func (p *literal) quoted() bool {
	quote, from := p.text[p.at], p.at
	for p.at++; p.at < len(p.text) && p.text[p.at] != quote; p.at++ {
		switch p.text[p.at] {
		case '\\':
			p.at++
		case '\n':
			return false
		}
	}
	if p.at >= len(p.text) {
		return false
	}
	p.at++
	lit := p.text[from:p.at]
	if quote == '"' && json.Valid([]byte(lit)) { // surrogates stay as they are
		p.out = append(p.out, lit...)
		return true
	}
	var said []byte
	for body := lit[1 : len(lit)-1]; body != ""; {
		r, _, rest, err := strconv.UnquoteChar(body, quote)
		if err != nil { // a character that needs no backslash
			body = body[1:]
			continue
		}
		said, body = utf8.AppendRune(said, r), rest // \xe4 of Python is a character
	}
	quoted, err := json.Marshal(string(said))
	p.out = append(p.out, quoted...)
	return err == nil
}

// constants are the words for true, false and null in the languages.
var constants = map[string]string{"true": "true", "True": "true", "false": "false", "False": "false", "null": "null", "None": "null", "nil": "null", "undefined": "null"}

// word converts a number or a constant. Everything else without quotes becomes a string, such as a time, a call or "<Foo object>".
func (p *literal) word() bool {
	from, open := p.at, 0
	if c := p.text[from]; strings.IndexByte("bur", c) >= 0 && from+1 < len(p.text) && (p.text[from+1] == '\'' || p.text[from+1] == '"') { // b'bytes'
		p.at++
		return p.string()
	}
	for ; p.at < len(p.text); p.at++ {
		c := p.text[p.at]
		if open == 0 && strings.IndexByte(",]}) \t\r\n;{[=\"'`", c) >= 0 || c == '\n' {
			break
		}
		switch c {
		case '(', '<':
			open++
		case ')', '>':
			open--
		}
	}
	w := p.text[from:p.at]
	if w == "" || open != 0 {
		return false
	}
	if c, ok := constants[w]; ok {
		p.out = append(p.out, c...)
		return true
	}
	if (w[0] == '-' || w[0] >= '0' && w[0] <= '9') && json.Valid([]byte(w)) {
		p.out = append(p.out, w...)
		return true
	}
	quoted, err := json.Marshal(w)
	p.out = append(p.out, quoted...)
	return err == nil
}

// space passes blanks, line ends and comments.
func (p *literal) space() {
	for p.at < len(p.text) {
		switch rest := p.text[p.at:]; {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			p.at++
		case strings.HasPrefix(rest, "//"):
			p.at = lineEnd(p.text, p.at)
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest, "*/")
			if n < 0 {
				p.at = len(p.text)
				return
			}
			p.at += n + 2
		default:
			return
		}
	}
}
