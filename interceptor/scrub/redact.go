package scrub

import (
	"cmp"
	"regexp"
	"slices"
	"sort"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/foldgate/foldgate/interceptor/scrub/regexset"
)

// A mark is a range of a text to be replaced, and the rule that found it.
type mark struct {
	span
	rule *rule
}

// appendMarks appends the marks for hits in text. Marks of generic rules are the last: if two
// rules found one range, merge takes the first.
func appendMarks(marks []mark, text string, hits []hit) []mark {
	marks = slices.Grow(marks, len(hits))
	for _, generic := range []bool{false, true} {
		for i := range hits {
			if h := &hits[i]; h.rule.generic == generic {
				marks = h.mark(marks, text)
			}
		}
	}
	return marks
}

// mark appends the marks for the secret of h, or for all of its match if it has none.
// foldgate's ids are left out.
func (h *hit) mark(marks []mark, text string) []mark {
	switch {
	case h.rule.certain:
		return append(marks, mark{h.match, h.rule})
	case h.secret.Start < h.secret.End:
		return appendWithoutIDs(marks, text, mark{h.secret, h.rule})
	}
	return appendWithoutIDs(marks, text, mark{h.match, h.rule})
}

// valueIn returns s without what can't be in a secret: what stands before and behind its first run of runes that
// can. In quotation marks, or between tags, all of s is the value.
func valueIn(text string, s span) span {
	if regexset.ASCII(text[s.Start:s.End]) {
		return s
	}
	v := span{-1, s.End}
	for i, r := range text[s.Start:s.End] {
		if i += s.Start; plausible(r) && v.Start < 0 {
			v.Start = i
		} else if !plausible(r) && v.Start >= 0 {
			v.End = i
			break
		}
	}
	if v.Start < 0 || v == s || enclosed(text, s) {
		return s
	}
	return v
}

// enclosed reports whether s stands in quotation marks, or between tags.
func enclosed(text string, s span) bool {
	if s.Start == 0 || s.End == len(text) {
		return false
	}
	before, after := text[s.Start-1], text[s.End]
	return before == after && strings.IndexByte("\"'`", before) >= 0 || before == '>' && after == '<'
}

// plausible reports whether a secret may contain r: ASCII, the letters, marks and numbers of all scripts, invisible
// characters, which are no part of it, the signs on keyboards, and what stands for a byte that was lost.
func plausible(r rune) bool {
	if r < utf8.RuneSelf {
		return true
	}
	return !unicode.IsPunct(r) && !unicode.IsSymbol(r) && !unicode.IsSpace(r) || r == utf8.RuneError || strings.ContainsRune("\u00a3\u00a4\u00a5\u00a6\u00a7\u00a8\u00ac\u00b0\u00b4\u20ac", r)
}

// matches returns the matches of r in the scanned text. Those of foldgate's rules end at a sign that no secret has,
// if they are matches without it, too, and the next one may begin behind it.
func (x *examination) matches(r *rule) ([]regexset.Span, error) {
	if !r.own || r.certain || x.scratch.ASCII() {
		return x.scratch.FindAll(r.index)
	}
	var ends []int
	var failed error
	matches, err := x.scratch.FindFrom(r.index, func(text string, m regexset.Span) int {
		end, err := x.endOf(r, m)
		if err != nil {
			end, failed = m.End, err
		}
		ends = append(ends, end)
		return end
	})
	if err = cmp.Or(err, failed); err != nil {
		return nil, err
	}
	for i, end := range ends {
		matches[i].End = end
	}
	return matches, err
}

// endOf returns the end of the match of r at m, or the sign in it before which it may end.
func (x *examination) endOf(r *rule, m regexset.Span) (int, error) {
	const most = 4 // signs before a value
	tried := 0
	for i, c := range x.text[m.Start:m.End] {
		if plausible(c) {
			continue
		}
		if tried++; tried > most {
			break
		}
		short := regexset.Span{Start: m.Start, End: m.Start + i}
		secret, err := x.secretOf(r, span(short))
		if err != nil {
			return 0, err
		}
		if secret != span(short) && secret.Start < secret.End && !enclosed(x.text, span{secret.Start, m.End}) {
			return short.End, nil
		}
	}
	return m.End, nil
}

// linesBefore returns the lines of base64 that end at byte end, or an empty span if they are few, or
// the body of a whole private key. It reads no more than these and, if they are not few, the line before them: a long
// line may have many ends.
func linesBefore(text string, end int) span {
	const least = 2 * minDecoded
	start := end
	for start > 0 {
		i := start
		back := func(set *byteSet) {
			for i > 0 && set[text[i-1]] {
				i--
			}
		}
		if text[i-1] == '\n' {
			i--
		}
		back(&blanks)
		last := i
		back(&padding)
		back(&keyDigits)
		empty := i == last
		if back(&blanks); i > 0 && text[i-1] != '\n' { // something else is in the line
			if end-start >= least && strings.Contains(text[strings.LastIndexByte(text[:i], '\n')+1:start], "-----BEGIN") {
				return span{}
			}
			break
		}
		if empty {
			break
		}
		start = i
	}
	if end-start < least {
		return span{}
	}
	return span{start, end}
}

var blanks, padding, keyDigits = setOf(" \t\r\v\f"), setOf("="), setOf(base64Digits)

// appendWithoutIDs appends the parts of m in text that are not ids of foldgate. An agent has to read those, so
// they are never redacted, although some look like keys.
func appendWithoutIDs(marks []mark, text string, m mark) []mark {
	if !strings.Contains(text[m.Start:m.End], "_") {
		return append(marks, m) // it is in no id, or only behind the _ of one
	}
	const reach = 64 // of an id over the ends of m
	for i := max(0, m.Start-reach); i < min(len(text), m.End+reach); i++ {
		n := strings.IndexByte(text[i:min(len(text), m.End+reach)], '_')
		if n < 0 {
			break
		}
		i += n
		id := ownID(text, i)
		if id.Start >= m.End || id.End <= m.Start {
			continue
		}
		if id.Start > m.Start {
			marks = append(marks, mark{span{m.Start, id.Start}, m.rule})
		}
		m.Start = id.End
	}
	if m.Start < m.End {
		marks = append(marks, m)
	}
	return marks
}

// ownID returns the range of the id whose first _ is at byte i of text, or an empty one: an id that foldgate gives
// to a branch, session or envelope, br_UUID, or to a context, ctx_SECONDS_RANDOM.
func ownID(text string, i int) span {
	start, end := i, i+1
	for start > 0 && kindOf(text[start-1]) == 'a' && i-start < len("ses") {
		start--
	}
	const digits, letters = "0123456789", "abcdefghijklmnopqrstuvwxyz"
	next := func(set string, least, most int) bool {
		n := 0
		for end < len(text) && n < most && strings.IndexByte(set, text[end]) >= 0 {
			n, end = n+1, end+1
		}
		return n >= least
	}
	ok := false
	switch text[start:i] {
	case "br", "ses", "env":
		ok = next(digits+"abcdef", 8, 8)
		for range 3 {
			ok = ok && next("-", 1, 1) && next(digits+"abcdef", 4, 4)
		}
		ok = ok && next("-", 1, 1) && next(digits+"abcdef", 12, 12)
	case "ctx":
		ok = next(digits, 10, 14) && next("_", 1, 1) && next(digits+letters, 6, 26)
	}
	if !ok || isWord(text, start-1) || isWord(text, end) {
		return span{}
	}
	return span{start, end}
}

// isWord reports whether byte i of text is one of a word.
func isWord(text string, i int) bool {
	return i >= 0 && i < len(text) && (kindOf(text[i]) != '_' || text[i] == '_')
}

// inBinary reports whether a token is a part of base64 that encodes binary data: with a sign of base64 beside it, and
// much that looks random and has both signs around it. A + at the start of a line is the sign of a diff.
func inBinary(text string, s span) bool {
	const reach, least = 256, 64
	digit := func(i int) bool {
		return i >= 0 && i < len(text) && (keyDigits[text[i]] || text[i] == '\n' || text[i] == '\r')
	}
	sign := func(i int) bool { return digit(i) && (text[i] == '/' || text[i] == '+' && i > 0 && text[i-1] != '\n') }
	if !sign(s.Start-1) && !sign(s.End) {
		return false
	}
	start, end := s.Start, s.End
	for start > s.Start-reach && digit(start-1) {
		start--
	}
	for end < s.End+reach && digit(end) {
		end++
	}
	around := strings.ReplaceAll("\n"+text[start:s.Start]+text[s.End:end], "\n+", "\n")
	return len(around) > least && strings.Contains(around, "+") && strings.Contains(around, "/") && strings.ContainsAny(around, "0123456789") && !isSpoken(around)
}

// checksums matches the sums in lock files. gitleaks excepts such files by their path; a text has
// none, so the shape decides.
var checksums = regexp.MustCompile(`^(?:h1:[A-Za-z0-9+/]{43}=|sha(?:1|256|384|512)-[A-Za-z0-9+/]{27,86}={0,2})$`)

// isChecksum reports whether a generic rule took the checksum of a lock file for a key.
func isChecksum(text string, h *hit) bool {
	start := h.secret.Start
	for _, prefix := range []string{"h1:", "sha1-", "sha256-", "sha384-", "sha512-"} {
		if strings.HasSuffix(text[:start], prefix) {
			start -= len(prefix)
			break
		}
	}
	end := h.secret.End
	for end < len(text) && text[end] == '=' && end < h.secret.End+2 {
		end++
	}
	return end-start < 128 && checksums.MatchString(text[start:end])
}

var (
	// nameParts are words in names for keys, fileEnds the endings of names of files.
	nameParts = []string{"key", "Key", "KEY", "token", "Token", "TOKEN", "secret", "Secret", "SECRET", "cert", "Cert", "auth", "Auth", "pass", "Pass", "cred", "Cred"}
	fileEnds  = strings.Fields(".bin .c .conf .crt .go .h .html .ini .js .json .key .md .pem .pub .py .sh .toml .ts .txt .xml .yaml .yml")
	constant  = regexp.MustCompile(`^[A-Z]+[0-9]{0,3}(?:_(?:[A-Z]+[0-9]{0,3}|[0-9]{1,3})){2,}$`) // of C
	number    = regexp.MustCompile(`^-?[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?$`)
)

// anyNamePart finds nameParts in any case. It tells most names apart in one pass.
var anyNamePart = regexset.NewLiterals(func() (words []string) {
	for _, part := range nameParts {
		words = append(words, strings.ToLower(part))
	}
	slices.Sort(words)
	return slices.Compact(words)
}())

// isAnchored reports whether a name has what the name of a key, a path or a file contains.
func isAnchored(name string) bool {
	return anyNamePart.Contains(name) && slices.ContainsFunc(nameParts, func(part string) bool { return strings.Contains(name, part) }) ||
		isFile(name)
}

// isFile reports whether a name has the ending of a file, or is a path of three or more words.
func isFile(name string) bool {
	if dot := strings.LastIndexByte(name, '.'); dot >= 0 {
		return dot > 0 && kindOf(name[dot-1]) == 'a' && slices.Contains(fileEnds, name[dot:])
	}
	return strings.Count(name, "/") >= 2 && !strings.Contains(name, "//") && name[0] != '/' && name[len(name)-1] != '/' &&
		strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_/") == ""
}

// isName reports whether a generic rule took a name or a number in code for a key, such as
// NewEncapsulationKey768, win32api.RegEnumKey, rsakey2.pem or internal/x509v3/parser. A value in
// quotation marks, after a colon or right after the sign before it is no name. The words of a name
// are long and can be pronounced, and it has few digits.
func isName(text string, h *hit) bool {
	name := text[h.secret.Start:h.secret.End]
	if name[0] <= '9' && strings.Contains(name, ".") && number.MatchString(name) {
		return true
	}
	before := strings.TrimRight(text[h.match.Start:h.secret.Start], " \t\n")
	if !hasWords(name) || len(before) == h.secret.Start-h.match.Start || strings.HasSuffix(before, ":") || !isAnchored(name) {
		return false
	}
	for w := ""; name != ""; {
		w, name = cutWord(name)
		switch last := kindOf(w[len(w)-1]); {
		case last == '0' && len(w) > 5, last == 'A' && len(w) > 8, last == 'a' && (len(w) > 14 || len(w) > 3 && !strings.ContainsAny(w, "aeiouyAEIOUY")):
			return false
		}
	}
	return true
}

// publicNames and hashNames are ends of the names of values that are no secrets, in lower case and without signs.
// A value with one of hashNames must also look like a hash.
var (
	publicNames = []string{"nexttoken", "pagetoken", "continuationtoken", "startingtoken", "skiptoken", "deltatoken", "markertoken", "nextsynctoken",
		"nextforwardtoken", "nextbackwardtoken", "tokenid", "idempotencykey", "secwebsocketkey", "cachekey", "surrogatekey", "partitionkey", "sortkey", "filekey", "accesslog", "accesslogs"}
	hashNames = []string{"fingerprint", "commit", "checksum", "digest", "keyhash", "spechash", "sha", "sha1", "sha256", "sha384", "sha512"}
	hash      = regexp.MustCompile(`^(?:[0-9a-fA-F]{32,128}|[\w+/-]{27}=|[\w+/-]{43}=)$`)
)

// isNamedPublic reports whether the name of a value that a generic rule found says that it is no secret: the token of
// the next page, the key of a request, a cache or a row, the name of a log, or a hash that is not one of a secret.
func isNamedPublic(text string, h *hit) bool {
	before := text[h.match.Start:h.secret.Start]
	var buf [len("nextbackwardtoken")]byte
	at := len(buf)
	for i := len(before); i > 0 && at > 0; i-- {
		if c := before[i-1]; kindOf(c) != '_' {
			at--
			buf[at] = c | 0x20 // also a digit
		}
	}
	name := string(buf[at:])
	endsWith := func(end string) bool { return strings.HasSuffix(name, end) }
	if slices.ContainsFunc(publicNames, endsWith) {
		return true
	}
	return slices.ContainsFunc(hashNames, endsWith) && hash.MatchString(text[h.secret.Start:h.secret.End]) &&
		!slices.ContainsFunc([]string{"pass", "pwd", "secret", "cred", "token"}, func(word string) bool { return strings.Contains(strings.ToLower(before), word) })
}

// cutWord returns the first word of a name and the rest: capitals, digits, small letters after at most one capital, or
// another byte.
func cutWord(name string) (word, rest string) {
	kind, n := kindOf(name[0]), 1
	if kind == 'A' && len(name) > 1 && kindOf(name[1]) == 'a' {
		kind = 'a'
	}
	for n < len(name) && kind != '_' && kindOf(name[n]) == kind {
		n++
	}
	return name[:n], name[n:]
}

// vowels returns the number of vowels in a word, and how many other letters stand in a row.
func vowels(word string) (vowels, others int) {
	row := 0
	for i := range len(word) {
		if row++; strings.IndexByte("aeiouyAEIOUY", word[i]) >= 0 {
			vowels++
			row = 0
		}
		others = max(others, row)
	}
	return vowels, others
}

// hasWords reports whether a name consists of long words and few numbers. Most keys do not.
func hasWords(name string) bool {
	letters, words, numbers, last := 0, 0, 0, byte('_')
	for _, c := range []byte(name) {
		switch kind := kindOf(c); {
		case kind == '0' && last != '0':
			numbers++
		case kind == 'A' && last != 'A', kind == 'a' && last != 'a' && last != 'A':
			words++
		}
		if last = kindOf(c); last >= 'A' && last != '_' {
			letters++
		}
	}
	return numbers <= 3 && letters >= 3*words
}

// kindOf returns 0, A or a for a digit, a capital or a small letter, or else _.
func kindOf(c byte) byte { return kinds[c] }

var kinds = func() (kinds [256]byte) {
	for c := range kinds {
		switch {
		case '0' <= c && c <= '9':
			kinds[c] = '0'
		case 'A' <= c && c <= 'Z':
			kinds[c] = 'A'
		case 'a' <= c && c <= 'z':
			kinds[c] = 'a'
		default:
			kinds[c] = '_'
		}
	}
	return kinds
}()

// merge sorts marks, stably, and returns them with those joined that overlap. The longest one, or else the
// first, gives the rule. The result takes the place of marks.
func merge(marks []mark) []mark {
	order := func(a, b mark) int {
		if a.Start != b.Start {
			return a.Start - b.Start
		}
		return b.End - a.End
	}
	if !slices.IsSortedFunc(marks, order) {
		slices.SortStableFunc(marks, order)
	}
	out := marks[:0]
	longest := 0
	for _, m := range marks {
		n := m.End - m.Start
		if last := len(out) - 1; last >= 0 && m.Start < out[last].End {
			out[last].End = max(out[last].End, m.End)
			if n > longest {
				longest, out[last].rule = n, m.rule
			}
			continue
		}
		longest = n
		out = append(out, m)
	}
	return out
}

// covered reports whether s lies within one of the merged marks.
func covered(marks []mark, s span) bool {
	n := sort.Search(len(marks), func(n int) bool { return marks[n].End >= s.End })
	return n < len(marks) && marks[n].Start <= s.Start
}

func redact(text string, marks []mark) string {
	if len(marks) == 0 {
		return text
	}
	marks = merge(marks)
	size := len(text)
	for _, m := range marks {
		size += len(replacement("")) + len(m.rule.ID) - (m.End - m.Start)
	}
	var b strings.Builder
	b.Grow(size)
	at, rule, with := 0, (*rule)(nil), ""
	for _, m := range marks {
		if b.WriteString(text[at:m.Start]); m.rule != rule {
			rule, with = m.rule, replacement(m.rule.ID)
		}
		b.WriteString(with)
		at = m.End
	}
	b.WriteString(text[at:])
	return b.String()
}

func replacement(rule string) string { return "[REDACTED:" + rule + "]" }
