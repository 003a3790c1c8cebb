//go:build e2e

package previews

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/itchyny/gojq"
)

var (
	//go:embed questions.txt
	questionText string
	//go:embed heldout/questions.txt
	heldOutQuestions string
)

// A sort of outputs has the kinds that its preview may call itself, and questions.
type sort struct {
	kind      *regexp.Regexp
	questions []*question
}

// A question holds for every output of a sort in which its rule finds an answer.
type question struct {
	line                  int
	ask, rule, near, read string
}

// A fact is what a text must show to answer.
type fact struct {
	value   string
	near    *regexp.Regexp // shown close to the value; nil if the value is distinctive
	count   bool           // the value is a number of things, and near are their names
	extreme bool           // the text must say that it is the most or the least
	tallied bool           // an extreme that one has to count for
}

func (f fact) String() string {
	s := fmt.Sprintf("%q", f.value)
	if f.near != nil {
		s += " near " + f.near.String()
	}
	return s
}

// An asked question is a question about one output.
type asked struct {
	ask   string
	facts []fact
	read  string
}

// parseQuestions reads a text such as questions.txt. A line "# SORT ;; KINDS" starts a sort. Every other line is
// "QUESTION ;; RULE ;; NEAR ;; READ".
func parseQuestions(t *testing.T, text string) map[string]*sort {
	t.Helper()
	sorts := map[string]*sort{}
	var s *sort
	for i, line := range strings.Split(text, "\n") {
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		part := strings.Split(strings.TrimPrefix(line, "# "), " ;; ")
		switch {
		case line[0] == '#' && len(part) == 2:
			s = &sort{kind: regexp.MustCompile(`^(?i:` + part[1] + `)`)}
			for _, name := range strings.Fields(part[0]) {
				if sorts[name] != nil {
					t.Fatalf("questions.txt:%d: a second %s", i+1, name)
				}
				sorts[name] = s
			}
		case line[0] != '#' && len(part) == 4 && s != nil:
			s.questions = append(s.questions, &question{i + 1, part[0], part[1], part[2], part[3]})
		default:
			t.Fatalf("questions.txt:%d: want \"QUESTION ;; RULE ;; NEAR ;; READ\": %q", i+1, line)
		}
	}
	return sorts
}

// instance applies the rule of q to an output. It is not asked where the rule finds nothing.
func (q *question) instance(t *testing.T, o *output) (*asked, bool) {
	t.Helper()
	op, arg, _ := strings.Cut(q.rule, " ")
	a := &asked{ask: q.ask, read: q.read}
	fail := func(err error) {
		t.Fatalf("questions.txt:%d: %v", q.line, err)
	}
	near := func(key string) *regexp.Regexp {
		if q.near == "-" {
			return nil
		}
		re, err := regexp.Compile("(?i)" + strings.ReplaceAll(q.near, "{k}", regexp.QuoteMeta(key)))
		if err != nil {
			fail(err)
		}
		return re
	}
	number := func(n int) (*asked, bool) {
		a.facts = []fact{{value: strconv.Itoa(n), near: near(""), count: true}}
		return a, n > 0
	}
	if op == "jq" {
		values, err := runJQ(o.text, arg)
		if err != nil || len(values) == 0 || values[0] == "" || values[0] == "null" {
			return nil, false
		}
		_, err = strconv.Atoi(values[0])
		f := fact{value: values[0], near: near(""), count: err == nil}
		if len(values) > 1 {
			a.ask, a.read, f.near = strings.ReplaceAll(q.ask, "{k}", values[1]), strings.ReplaceAll(q.read, "{k}", values[1]), near(values[1])
			f.count = false
		}
		a.facts = []fact{f}
		return a, true
	}
	if op == "lines" {
		return number(strings.Count(strings.TrimSuffix(o.text, "\n"), "\n") + 1)
	}
	nth := 0
	if op == "nth" {
		var n string
		n, arg, _ = strings.Cut(arg, " ")
		if nth, _ = strconv.Atoi(n); nth < 1 {
			fail(fmt.Errorf("nth %q", n))
		}
	}
	re, err := regexp.Compile("(?m)" + arg)
	if err != nil {
		fail(err)
	}
	found := re.FindAllStringSubmatch(o.text, -1)
	if len(found) == 0 {
		return nil, false
	}
	group := func(m []string, name string) string {
		switch i := re.SubexpIndex(name); {
		case i > 0:
			return m[i]
		case name == "v" && len(m) > 1 && re.SubexpIndex("k") < 0 && re.SubexpIndex("n") < 0:
			return m[1]
		case name == "v":
			return m[0]
		}
		return ""
	}
	n := len(found)
	pick := map[string]int{"first": 0, "last": n - 1, "mid": n / 2, "q1": n / 4, "q3": n * 3 / 4, "nth": nth - 1}
	switch op {
	case "count":
		return number(n)
	case "distinct":
		seen := map[string]bool{}
		for _, m := range found {
			seen[group(m, "v")] = true
		}
		return number(len(seen))
	case "sum":
		sum := 0
		for _, m := range found {
			v, _ := strconv.Atoi(group(m, "v"))
			sum += v
		}
		return number(sum)
	case "number": // the one number that the first match names
		v, err := strconv.Atoi(group(found[0], "v"))
		if err != nil {
			fail(err)
		}
		return number(v)
	case "most": // the value that matches most often
		times := map[string]int{}
		for _, m := range found {
			times[group(m, "v")]++
		}
		best, second := "", 0
		for v, n := range times {
			switch {
			case n > times[best]:
				best, second = v, times[best]
			case v != best && n >= second:
				second = n
			}
		}
		if second == times[best] || times[best] < 3 {
			return nil, false // no single one
		}
		a.facts = []fact{{value: best, near: regexp.MustCompile(number3(times[best])), extreme: true, tallied: true}}
		return a, true
	case "max", "min":
		at, best, ties := -1, 0.0, 0
		for i, m := range found {
			v, err := strconv.ParseFloat(strings.ReplaceAll(group(m, "n"), ",", ""), 64)
			if err != nil {
				continue
			}
			if op == "min" {
				v = -v
			}
			switch {
			case at < 0 || v > best:
				at, best, ties = i, v, 0
			case v == best && group(m, "v") != group(found[at], "v"):
				ties++
			}
		}
		if at < 0 || ties > 0 {
			return nil, false
		}
		shown := group(found[at], "n")
		pattern := regexp.QuoteMeta(shown)
		if n, err := strconv.Atoi(shown); err == nil {
			pattern = number3(n)
		}
		a.facts = []fact{{value: clip(group(found[at], "v")), near: regexp.MustCompile(pattern), extreme: true}}
		return a, true
	case "all":
		if n > 6 {
			return nil, false
		}
		for _, m := range found {
			f := fact{value: clip(group(m, "v")), near: near(group(m, "k"))}
			if !slices.ContainsFunc(a.facts, func(g fact) bool { return g.value == f.value }) {
				a.facts = append(a.facts, f)
			}
		}
		return a, true
	case "only":
		if n != 1 {
			return nil, false
		}
	default:
		if i, ok := pick[op]; !ok || i >= n {
			if !ok {
				fail(fmt.Errorf("unknown rule %q", op))
			}
			return nil, false
		}
	}
	m := found[pick[op]]
	key := group(m, "k")
	v := clip(group(m, "v"))
	if v == "" {
		return nil, false
	}
	a.ask = strings.ReplaceAll(q.ask, "{k}", key)
	quoted := key
	if !strings.HasPrefix(q.read, "jq") {
		quoted = regexp.QuoteMeta(key)
	}
	a.read = strings.ReplaceAll(q.read, "{k}", quoted)
	a.facts = []fact{{value: v, near: near(key)}}
	return a, true
}

// clip shortens what a preview may cut too.
func clip(v string) string {
	v = strings.TrimSpace(v)
	if r := []rune(v); len(r) > 70 {
		return string(r[:60])
	}
	return v
}

// number3 matches a number with and without separators of thousands.
func number3(n int) string {
	s := strconv.Itoa(n)
	var out strings.Builder
	for i, c := range s {
		if i > 0 && (len(s)-i)%3 == 0 {
			out.WriteString("[, ]?")
		}
		out.WriteRune(c)
	}
	return `(?:^|[^\w.,])` + out.String() + `(?:$|[^\w.,]|[.,](?:\D|$))`
}

var (
	spaces     = regexp.MustCompile(`[ \t]+`)
	lineNumber = regexp.MustCompile(`(?m)^ *\d+[:\-] ?`)
	matchLine  = regexp.MustCompile(`(?m)^ ?\d+:`)
	hash       = regexp.MustCompile(`^[0-9a-f]{7,12}$`)
	superlate  = regexp.MustCompile(`(?i)\b(max|min|most|least|large|small|long|short|high|low|top|big|slow|fast|extreme|sorted|order(ed)? by|by size|peak|heav|frequent|common)`)
)

// in reports whether text answers: it shows every fact.
//
// A read is judged by what its reader knows. By jq or of lines it asked for the value itself, so
// nothing needs to stand near it. If it shows all of at most listed matches, the reader sees which
// is the most; of at most tallied he counts them.
func (a *asked) in(text string, read bool, matches int) bool {
	const listed, tallied = 100, 12
	text = spaces.ReplaceAllString(text, " ")
	kind, _, _ := strings.Cut(a.read, " ")
	if matches > 0 && len(matchLine.FindAllString(text, -1)) < matches {
		matches = 0 // not all of them
	}
	for _, f := range a.facts {
		switch {
		case f.count && 0 < matches && matches <= tallied:
		case f.count && read && kind == "jq":
			if !regexp.MustCompile(`(?m)` + number3(atoi(f.value))).MatchString(text) {
				return false
			}
		case f.count:
			near := f.near.String()
			if read {
				near = `(?:` + near + `|(?i:match|line|hit|count|occurrence|found))`
			}
			plain := lineNumber.ReplaceAllString(text, "\n")
			n := number3(atoi(f.value))
			if !regexp.MustCompile(`(?m)`+n+`[^\n,;.]{0,30}`+near).MatchString(plain) &&
				!regexp.MustCompile(`(?m)`+near+`\w*[\s:=(×x"']{0,4}`+n).MatchString(plain) {
				return false
			}
		case f.extreme && f.tallied && 0 < matches && matches <= tallied:
			if !word(f.value).MatchString(text) {
				return false
			}
		case f.extreme:
			marked := read && (kind == "lines" || kind == "count") || !f.tallied && 0 < matches && matches <= listed
			if !extreme(text, f, marked) {
				return false
			}
		default:
			g, reach := f, near
			switch {
			case read && (kind == "jq" || kind == "lines"):
				g.near = nil
			case read && kind == "context": // below the line that it asked for
				reach *= 8
			}
			if !shows(text, g, reach) {
				return false
			}
		}
	}
	return true
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// word matches a value that is no part of a longer word or number.
func word(v string) *regexp.Regexp {
	v = spaces.ReplaceAllString(v, " ")
	p := regexp.QuoteMeta(v)
	if regexp.MustCompile(`^\w`).MatchString(v) {
		p = `(?:^|\W)` + p
	}
	if regexp.MustCompile(`\w$`).MatchString(v) && len(v) < 30 && !hash.MatchString(v) { // else it may be longer in the text
		p += `(?:$|\W)`
	}
	return regexp.MustCompile(`(?m)` + p)
}

const near = 200 // bytes

// shows reports whether the fact is in the text with what must be near, within so many bytes.
func shows(text string, f fact, reach int) bool {
	for _, at := range word(f.value).FindAllStringIndex(text, -1) {
		if f.near == nil || f.near.MatchString(text[max(0, at[0]-reach):at[0]]) || f.near.MatchString(text[at[1]-1:min(len(text), at[1]+reach)]) {
			return true
		}
	}
	return false
}

// extreme reports whether the value of a fact and its number are in one line, with a word there or
// in the eight lines above that calls it the most or the least, unless that is known already.
func extreme(text string, f fact, known bool) bool {
	lines := strings.Split(text, "\n")
	value := word(f.value)
	for i, line := range lines {
		if value.MatchString(line) && f.near.MatchString(line) &&
			(known || superlate.MatchString(strings.Join(lines[max(0, i-8):i+1], "\n"))) {
			return true
		}
	}
	return false
}

// weak says why a match would prove nothing.
func (a *asked) weak(text string) string {
	for _, f := range a.facts {
		switch {
		case f.count || f.near != nil:
		case len(f.value) < 3:
			return fmt.Sprintf("the answer %q is too short", f.value)
		case strings.Count(text, f.value) > 8:
			return fmt.Sprintf("the answer %q occurs %d times", f.value, strings.Count(text, f.value))
		}
		if !f.count && strings.Contains(strings.ToLower(a.ask), strings.ToLower(f.value)) {
			return fmt.Sprintf("the question has the answer %q", f.value)
		}
		if kind, arg, _ := strings.Cut(a.read, " "); kind == "grep" && len(f.value) > 3 && !f.count && strings.Contains(arg, regexp.QuoteMeta(f.value)) {
			return fmt.Sprintf("the read has the answer %q", f.value)
		}
	}
	return ""
}

// matches counts the lines of text that the read of a would show, 0 if it is no grep.
func (a *asked) matches(text string) (n int) {
	kind, re, _ := strings.Cut(a.read, " ")
	if kind != "grep" && kind != "count" {
		return 0
	}
	pattern := regexp.MustCompile(re)
	for line := range strings.Lines(text) {
		if pattern.MatchString(strings.TrimSuffix(line, "\n")) {
			n++
		}
	}
	return n
}

// readOnce reads with the one call that the question names.
func (a *asked) readOnce(r *reader, handle string) string {
	kind, arg, _ := strings.Cut(a.read, " ")
	args := map[string]any{"handle": handle}
	switch kind {
	case "grep":
		args["grep"] = arg
	case "context": // grep with the lines around
		n, re, _ := strings.Cut(arg, " ")
		args["grep"], args["context"] = re, atoi(n)
	case "count":
		args["grep"], args["count"] = arg, true
		if text, ok := r.call("branch_read", args); ok {
			return text
		}
		delete(args, "count")
	case "lines", "jq", "search":
		args[kind] = arg
	default:
		r.t.Fatalf("unknown read %q", a.read)
	}
	text, _ := r.call("branch_read", args)
	return text
}

// runJQ runs a program over the JSON in a text: what stands before the first line that starts a
// value is skipped, and several values become an array.
func runJQ(text, program string) ([]string, error) {
	at := regexp.MustCompile(`(?m)^[\[{]`).FindStringIndex(text)
	if at == nil {
		return nil, fmt.Errorf("no JSON")
	}
	var all []any
	for d := json.NewDecoder(strings.NewReader(text[at[0]:])); d.More(); {
		var v any
		if d.Decode(&v) != nil {
			break
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no JSON")
	}
	var input any = all
	if len(all) == 1 {
		input = all[0]
	}
	q, err := gojq.Parse(program)
	if err != nil {
		return nil, err
	}
	var out []string
	for it := q.Run(input); ; {
		v, ok := it.Next()
		if !ok {
			return out, nil
		}
		switch v := v.(type) {
		case error:
			return nil, v
		case string:
			out = append(out, v)
		default:
			b, err := gojq.Marshal(v)
			if err != nil {
				return nil, err
			}
			out = append(out, string(b))
		}
	}
}
