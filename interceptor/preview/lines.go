package preview

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// readDiff reads a diff: each file with its added and removed lines. If other lines surround it, they
// are told too.
func readDiff(f *findings) bool {
	files, hunks, outside := changedFiles(f.lines)
	if hunks == 0 || len(files) == 0 || outside*2 > len(f.lines) {
		return false
	}
	f.kind = Diff
	worth := 9.0
	if c := forms()[0]; c.entryRE.MatchString(f.lines[0]) {
		f.kind, worth = GitLog, 5
		c.read(f)
	}
	e := &entries{}
	added, removed := 0, 0
	for _, c := range files {
		e.begin(c.line)
		e.set("path", c.name)
		added, removed = added+c.added, removed+c.removed
	}
	f.totals = append(f.totals, plural(len(files), "changed file"), fmt.Sprintf("+%s -%s", group(added), group(removed)), plural(hunks, "hunk"))
	show := func(c changedFile, worth float64) {
		f.own(c.line, fmt.Sprintf("%d: %s +%d -%d", c.line+1, clip(c.name, narrow), c.added, c.removed), worth)
	}
	order := slices.Clone(files)
	slices.SortStableFunc(order, func(a, b changedFile) int { return b.added + b.removed - a.added - a.removed })
	for rank, c := range order {
		show(c, worth/(1+float64(rank)/12))
	}
	show(files[0], 8)
	show(files[len(files)-1], 8)
	if paths := e.by["path"]; paths != nil && len(files) > 12 { // without names there is no column
		paths.paths(f)
	}
	n := 0
	for i, l := range f.lines {
		if strings.HasPrefix(l, "@@ ") || isChange(l) && n > 0 {
			if n++; n < 120 {
				f.line(i, "", narrow, 3/(1+float64(n)/10))
			}
		}
	}
	f.ends(0.3)
	return true
}

// changedFile is a file of a diff.
type changedFile struct {
	name                        string
	line, added, removed, hunks int
}

// changedFiles returns the files of a diff, and the number of its hunks and of the lines outside it.
func changedFiles(lines []string) (files []changedFile, hunks, outside int) {
	in := false
	before, after := 0, 0 // lines that the hunk still has
	for i, l := range lines {
		last := len(files) - 1
		if before+after > 0 && in && (l == "" || strings.IndexByte(" +-\\", l[0]) >= 0) { // whatever it looks like
			switch {
			case l == "" || l[0] == ' ':
				before, after = before-1, after-1
			case l[0] == '+':
				files[last].added++
				after--
			case l[0] == '-':
				files[last].removed++
				before--
			}
			continue
		}
		before, after = 0, 0
		switch {
		case strings.HasPrefix(l, "diff --git "):
			name := l[len("diff --git "):]
			if _, after, ok := strings.Cut(name, " b/"); ok {
				name = after
			}
			files, in = append(files, changedFile{name: name, line: i}), true
		case strings.HasPrefix(l, "+++ ") && i > 0 && strings.HasPrefix(lines[i-1], "--- ") && (!in || files[last].hunks > 0):
			name, _, _ := strings.Cut(strings.TrimPrefix(l[4:], "b/"), "\t")
			files, in = append(files, changedFile{name: name, line: i - 1}), true
		case strings.HasPrefix(l, "@@ "):
			hunks++
			if in {
				files[last].hunks++
			}
			before, after = hunkSize(l)
		case !in || l != "" && !startsWith(l, diffStarts):
			in = in && l != "" && l[0] != '['
			outside++
		case isChange(l) && l[0] == '+':
			files[last].added++
		case isChange(l):
			files[last].removed++
		}
	}
	return files, hunks, outside
}

// hunkSize returns how many lines a hunk has of the file before and after the change, as in "@@ -1,2 +3 @@".
func hunkSize(l string) (before, after int) {
	m := hunk.FindStringSubmatch(l)
	if m == nil {
		return 0, 0
	}
	size := func(s string) int {
		if s == "" {
			return 1
		}
		n, _ := strconv.Atoi(s)
		return n
	}
	return size(m[1]), size(m[2])
}

var hunk = regexp.MustCompile(`^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

var diffStarts = []string{" ", "+", "-", "@@", `\`, "index ", "new file", "deleted file", "old mode", "new mode", "similarity ", "rename ", "copy ", "Binary files", "diff ", "GIT binary"}

func isChange(l string) bool {
	return l != "" && (l[0] == '+' || l[0] == '-') && !strings.HasPrefix(l, "+++") && !strings.HasPrefix(l, "---")
}

// readForms reads a text of one of the forms.
func readForms(f *findings) bool {
	for _, c := range forms() {
		if !c.fits(f.sample) {
			continue
		}
		f.kind = c.kind
		c.read(f)
		f.ends(map[bool]float64{true: 0.4, false: 0.6}[c.brief != nil])
		if c.kind == Log || c.kind == Compiler {
			f.faults(nil)
		}
		return true
	}
	return false
}

// Verdicts of test runners, at the start or at the end of a line.
var (
	verdictFirst = regexp.MustCompile(`^[\s│]*(?:--- |\[ *)?(PASS(?:ED)?|FAIL(?:ED)?|SKIP(?:PED)?|OK|ok|not ok|ERROR|[✓✔√✕✗✖×✘○↓]|\d+\))(?: *\])?:? +(?:\d+ +)?(?:- )?(\S.*)$`)
	verdictTail  = regexp.MustCompile(`\s*(?:\[ *\d+%\]|\(?[\d.]+ ?(?:ms|s|sec)\)?)\s*$`)
	summary      = regexp.MustCompile(`^(?:[=\s#*ℹ✖│⎯.>\[\]-]*(?:\w+: |[\w ]+ )?\b\d+ (?:\w+ )?(?:passed|failed|passing|failing|pending|skipped|ignored|failures?|errors?|problems?|warnings?|examples?|tests?|assertions)\b.*|(?:[#ℹ] |\s*)(?:tests|pass|fail|suites|skipped|cancelled|todo|duration_ms|coverage|Tests|Test Suites|Test Files|Snapshots|Ran|Result|Tests run|Failures|test result|\d+% tests)\b:? .*\d.*|(?:FAILED|OK)(?: \(.*\))?|(?:FAIL|ok|PASS)(?: *\t\S+.*)?|Result: \w+)$`)
	message      = regexp.MustCompile(`^\s*(?:E  +\S|[\w./-]+\.\w+:\d+: |(?:[\w.]*(?:Error|Exception|Failure)|thread '.*' .*panicked at|panic|fatal error)\b.*|(?:expected|want|got|actual|received|left|right|reason|assertion)\b.*)|: (?:want|got|expected) |, want `)
)

// The words that a line has which sums up tests, begins with a verdict or tells a failure. The expressions take
// much longer than a look for them, and most lines have none.
var (
	summaryStarts = []string{"FAIL", "OK", "ok", "PASS"}
	summaryWords  = []string{"pass", "fail", "pending", "skipped", "ignored", "error", "problem", "warning", "example", "test", "assertion", "suites", "cancelled", "todo", "duration_ms", "coverage", "Test", "Snapshots", "Ran", "Result", "Failures"}
	verdictStarts = []string{"PASS", "FAIL", "SKIP", "OK", "ok", "not ok", "ERROR", "✓", "✔", "√", "✕", "✗", "✖", "×", "✘", "○", "↓", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
	messageWords  = []string{"Error", "Exception", "Failure", "panic", "fatal error", "expected", "want", "got", "actual", "received", "left", "right", "reason", "assertion"}
)

// isSummary reports whether a line sums up tests.
func isSummary(l string) bool {
	return strings.HasPrefix(l, "Result: ") && summary.MatchString(l) || startsWith(l, summaryStarts) && (len(l) < 10 || strings.ContainsAny(l, "\t(")) && summary.MatchString(l) ||
		strings.ContainsAny(l, "0123456789") && !startsWith(l, eventStarts) && containsAny(l, summaryWords) && summary.MatchString(l)
}

// eventStarts begin the lines of go test about one test.
var eventStarts = []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME ", "--- PASS: ", "--- FAIL: ", "--- SKIP: "}

// isMessage reports whether a line tells why a test failed.
func isMessage(l string) bool {
	return (strings.Contains(l, "E  ") || strings.Contains(l, ": ") && strings.Contains(l, ".") || containsAny(l, messageWords)) && message.MatchString(l)
}

// verdictFirstOf matches verdictFirst.
func verdictFirstOf(l string) []string {
	t := strings.TrimLeft(l, " \t\r\f\v│")
	if rest, ok := strings.CutPrefix(t, "--- "); ok {
		t = rest
	} else if rest, ok := strings.CutPrefix(t, "["); ok {
		t = strings.TrimLeft(rest, " ")
	}
	if !startsWith(t, verdictStarts) {
		return nil
	}
	return verdictFirst.FindStringSubmatch(l)
}

// verdict returns the result of a test in a line, "pass", "fail" or "skip", and the test's name.
func verdict(l string) (result, name string) {
	if len(l) > 400 || l == "" || isSummary(l) {
		return "", ""
	}
	if m := verdictFirstOf(l); m != nil {
		if m[1] > "z" && strings.HasSuffix(m[2], ":") {
			return "", "" // a heading
		}
		name, _, _ = strings.Cut(m[2], " - ")
		return results[m[1]], name
	}
	if !containsAny(l, lastWords) {
		return "", ""
	}
	t := l
	if c := l[len(l)-1]; c == ']' || c == 's' || c == ')' || c == 'c' {
		end := l[max(len(l)-40, 0):]
		if at := verdictTail.FindStringIndex(end); at != nil {
			t = strings.TrimRight(l[:len(l)-len(end)+at[0]], " \t")
		}
	}
	for _, word := range lastWords {
		if rest, ok := strings.CutSuffix(t, word); ok && len(rest) > 2 && (rest[len(rest)-1] == ' ' || rest[len(rest)-1] == '*') {
			name = strings.TrimRight(rest, " .*")
			if name == "" || word == "ok" && !strings.HasSuffix(strings.TrimSpace(rest), "..") {
				return "", ""
			}
			return results[strings.ToUpper(word)], strings.TrimPrefix(name, "test ")
		}
	}
	return "", ""
}

var (
	lastWords = []string{"PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "ok", "FAIL", "ignored", "Passed", "Failed"}
	results   = map[string]string{
		"PASS": "pass", "PASSED": "pass", "OK": "pass", "ok": "pass", "✓": "pass", "✔": "pass", "√": "pass",
		"FAIL": "fail", "FAILED": "fail", "ERROR": "fail", "not ok": "fail", "✕": "fail", "✗": "fail", "✖": "fail", "×": "fail", "✘": "fail",
		"SKIP": "skip", "SKIPPED": "skip", "XFAIL": "skip", "IGNORED": "skip", "○": "skip", "↓": "skip",
	}
)

// readTests reads the output of a test runner: the results, the summary, and the failures with what is
// said about each.
func readTests(f *findings) bool {
	hits := count(f.sample, func(l string) bool { r, _ := verdict(l); return r != "" })
	tail := f.lines[max(0, len(f.lines)-40):]
	if strings.Count(f.text, "\ngoroutine ") > 3 {
		return false // a dump of stacks says more
	}
	said := count(tail, isSummary) + count(f.sample, isSummary)
	if hits += count(tail, func(l string) bool { r, _ := verdict(l); return r != "" }); !strings.HasPrefix(f.text, "TAP version ") && !strings.Contains(f.text, "\n--- FAIL: ") &&
		(hits < 2 || hits*5 < len(f.sample) && said == 0 || hits*100 < len(f.sample)) {
		return false
	}
	f.kind = Tests
	named := map[string]string{}
	number, suites := map[string]int{}, map[string]int{} // of tests, and of files with tests
	var messages tally
	summaries, fails, last, lastMessage := []int{}, 0, -1, -1
	for i, l := range f.lines {
		result, name := verdict(l)
		if result == "" && strings.Contains(l, ") ") { // mocha's
			if m := verdictFirstOf(l); m != nil && number["pass"] > 0 {
				result, name = "fail", m[1] // what follows is the test here, and its suite where the failure is told
			}
		}
		if strings.HasPrefix(l, "ok  \t") || strings.HasPrefix(l, "FAIL\t") {
			clear(named) // the end of a Go package: the next one may have tests of the same names
		}
		if m := suiteOf.FindStringSubmatch(l); m != nil {
			suites[results[m[1]]]++
		} else if result != "" {
			name = took.ReplaceAllString(name, "")
			// Failures and results in words are often told again. The names of others are those in a suite.
			if t := strings.TrimSpace(l); named[name] != result || startsWith(t, tapStarts) || result != "fail" && strings.ContainsAny(t, "✓✔√○↓") {
				named[name] = result
				number[result]++
			}
		}
		switch {
		case result == "fail":
			fails++
			last = i
			f.line(i, "", wide, 12/(1+float64(fails)/6))
			for j, n := i+1, 0; fails < 40 && j < len(f.lines) && j < i+10 && n < 3; j++ {
				if t := strings.TrimSpace(f.lines[j]); t != "" && !frame.MatchString(t) {
					if r, _ := verdict(f.lines[j]); r != "" {
						break
					}
					f.line(j, "", wide, 6/(1+float64(fails)/6))
					n++
				}
			}
		case len(l) < 300 && isSummary(l):
			summaries = append(summaries, i)
		case len(l) < 2000 && isMessage(l):
			messages.add(pattern(strings.TrimSpace(l)), i)
			lastMessage = i
		}
	}
	for n, i := range slices.Backward(summaries) {
		f.line(i, "", wide, 22/(1+float64(len(summaries)-n)/4))
	}
	f.line(lastMessage, "", wide, 8)
	if last >= 0 { // with what is said of it
		f.line(last, "", wide, 8)
		for j := last + 1; j < min(last+8, len(f.lines)); j++ {
			f.line(j, "", wide, 4)
		}
	}
	for rank, s := range messages.top()[:min(len(messages.n), 30)] {
		f.line(s.first, s.note(), wide, 8/(1+float64(rank)/4))
	}
	if len(number) == 0 {
		number = suites
	}
	var totals []string
	for _, r := range []string{"fail", "pass", "skip"} {
		if number[r] > 0 {
			totals = append(totals, fmt.Sprintf("%s %s", group(number[r]), r))
		}
	}
	f.totals = append(f.totals, "results in lines: "+strings.Join(totals, " "))
	f.ends(0.3)
	return true
}

var (
	took      = regexp.MustCompile(` \(\d[\d.]* ?[mµn]?s\)$`)
	tapStarts = []string{"ok ", "not ok "}
	suiteOf   = regexp.MustCompile(`^ *(PASS|FAIL) +\S+\.[cm]?[jt]sx?(?: \([\d.]+ ?m?s\))?$`)
)

var frame = regexp.MustCompile(`^(?:at |\.\.\. |#\d+ |goroutine |File ".*(?:site-packages|lib/python))|node_modules|node:internal|^[-=_ ]+$`)

// readLog reads lines with a time or a level.
func readLog(f *findings) bool {
	if share(f.sample, func(l string) bool { _, _, ok := stamped(l); return ok }) <= 0.3 {
		return false
	}
	f.kind = Log
	f.common, f.dated = commonTime(f.lines)
	e := &entries{noun: "log line", lead: "message"}
	levelOf := make([]string, len(f.lines))
	for i, l := range f.lines {
		at, rest, ok := stamped(l)
		if !ok {
			continue
		}
		e.begin(i)
		e.set("time", at)
		if levelOf[i] = levelIn(l[:min(len(l), 120)], len(l)-len(rest)); levelOf[i] != "" {
			e.set("level", levelOf[i])
		} else if m := program.FindStringSubmatch(rest[:min(len(rest), 120)]); m != nil {
			e.set("program", m[1])
		}
		if m := firstWord.FindStringSubmatch(rest[:min(len(rest), 160)]); m != nil {
			e.set("first word", m[1])
		}
		e.set("message", pattern(rest[:min(len(rest), 160)]))
	}
	e.tell(f)
	f.faults(levelOf)
	f.ends(0.7)
	return true
}

// commonTime returns what the times of the first and the last line of a log begin with, such as the date
// and the hour, "" if it is short, and which lines these are. The date may stand before what stamp takes for the time.
func commonTime(lines []string) (common string, at [2]int) {
	var ends [2]string
	for side, all := range []iter.Seq2[int, string]{slices.All(lines), slices.Backward(lines)} {
		for i, l := range all {
			if time, _, _ := stamped(l); time != "" {
				end := strings.Index(l, time) + len(time)
				start := strings.IndexByte(l[:end], ' ') + 1 // behind a process
				if digit := strings.IndexFunc(l[:end], unicode.IsDigit); start > end-len(time) || digit == 0 && !strings.Contains(l[:start], ":") {
					start = min(end-len(time), max(digit, 0))
				}
				ends[side], at[side] = l[start:end], i
				break
			}
		}
	}
	same := 0
	for same < min(len(ends[0]), len(ends[1])) && ends[0][same] == ends[1][same] {
		same++
	}
	for same > 0 && isDigit(ends[0][same-1]) {
		same--
	}
	if same < 6 {
		return "", at
	}
	return ends[0][:same], at
}

var (
	firstWord = regexp.MustCompile(`^(?:[\[(]?(?:[A-Z]+|debug|info|warn|error)[\])]?:? +)?([A-Za-z][\w./-]{0,40}\b:?)`)
	program   = regexp.MustCompile(`^\S+ ([\w./-]+)(?:\[\d+\])?: `)
	levels    = []string{"TRACE", "DEBUG", "INFO", "NOTICE", "WARN", "ERROR", "FATAL", "CRITICAL", "debug:", "info:", "warn:", "error:", "time=", "ts=", "level="}
	months    = []string{"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"}
)

// levelIn returns the first word that is a level of a log, in upper case. In lower case it is one at the start of
// what follows the time, which begins at rest, and behind a sign such as in level=error or [error]. Else it is a
// word of the message.
func levelIn(l string, rest int) string {
	for start := 0; start < len(l); {
		end := start
		for end < len(l) && (l[end] >= 'A' && l[end] <= 'Z' || l[end] >= 'a' && l[end] <= 'z') {
			end++
		}
		if w := l[start:end]; len(w) >= 3 && len(w) <= 8 && (w == strings.ToUpper(w) || w == strings.ToLower(w)) {
			if low := w != strings.ToUpper(w); low && start > rest && strings.IndexByte(`=["'<(`, l[start-1]) < 0 {
				start = end + 1
				continue
			}
			if w = strings.ToUpper(w); levelWords[w] && (end == len(l) || l[end] != '-' && l[end] != '/') {
				return w
			}
		}
		start = end + 1
	}
	return ""
}

var levelWords = map[string]bool{
	"TRACE": true, "DEBUG": true, "INFO": true, "NOTICE": true, "WARN": true, "WARNING": true, "ERROR": true, "ERR": true,
	"FATAL": true, "CRITICAL": true, "CRIT": true, "PANIC": true,
}

// stamped returns the time and the rest of a line that looks like a line of a log: it starts with a date,
// a time or a level.
func stamped(l string) (at, rest string, ok bool) {
	if len(l) < 8 {
		return "", l, false
	}
	at, rest = stamp(l)
	return at, rest, at != "" && strings.ContainsFunc(rest, unicode.IsLetter) || startsWith(strings.TrimLeft(l, "[(<"), levels)
}

// stamp returns the time that a line starts with, and what follows.
func stamp(l string) (at, rest string) {
	t := strings.TrimLeft(l, " [(<")
	t = strings.TrimPrefix(strings.TrimPrefix(t, "time="), `"`)
	digits, separators, i := 0, 0, 0
	for ; i < len(t) && i < 36; i++ {
		if isDigit(t[i]) {
			digits++
		} else if strings.IndexByte(":-/T.,+Z", t[i]) >= 0 || t[i] == ' ' && digits >= 4 && i+1 < len(t) && isDigit(t[i+1]) && separators < 4 {
			separators++
		} else {
			break
		}
	}
	if digits >= 6 && separators >= 2 && strings.ContainsAny(t[:i], ":/T") {
		return strings.TrimRight(t[:i], ". -+"), strings.TrimLeft(t[i:], " ]>)\"")
	}
	if len(t) > 15 && t[3] == ' ' && strings.IndexByte(t[:15], ':') > 0 && startsWith(t, months) {
		return t[:15], strings.TrimSpace(t[15:]) // Oct 11 22:14:15, as syslog writes
	}
	if len(t) > 21 && strings.IndexByte("IWEF", t[0]) >= 0 && isDigit(t[1]) && isDigit(t[4]) && t[5] == ' ' && t[8] == ':' {
		return t[1:14], t[21:] // I1121 03:00:00.586, as klog writes
	}
	for i := 0; i+8 < min(len(t), 48); i++ {
		if t[i+2] == ':' && t[i+5] == ':' && t[i+8] != ':' && (i == 0 || t[i-1] != ':') && isDigit(t[i]) && isDigit(t[i+1]) && isDigit(t[i+3]) && isDigit(t[i+4]) && isDigit(t[i+6]) && isDigit(t[i+7]) {
			end := i + 8 + len(t[i+8:]) - len(strings.TrimLeft(t[i+8:], ".,0123456789Z"))
			return t[i:end], strings.TrimLeft(t[end:], " ]>)\"")
		}
	}
	return "", l
}

// faultWords are the words of bad lines by severity, in lower case.
var faultWords = [...][]string{
	1: {"warn", "warning", "deprecated", "timeout", "timed out"},
	2: {"error", "err", "failed", "failure", "exception", "refused", "denied", "traceback", "undefined", "unable to", "cannot", "could not", "***"},
	3: {"fatal", "panic", "critical", "crit", "segfault", "out of memory", "emerg"},
}

// faultNegations turn a line with a fault word into a good one.
var faultNegations = []string{"0 error", "no error", "0 fail", "0 warning", "without error", "error=nil", "errors: 0", "failed: 0", "failures: 0", "errors=0", "failed=0"}

// severity returns how bad a line is, from 0 (good) to 3 (fatal). If it names its level, that counts;
// in an access log the status.
func severity(line, level string) int {
	switch {
	case level == "":
	case strings.HasPrefix(level, "WARN"):
		return 1
	case strings.HasPrefix(level, "ERR"):
		return 2
	case level == "FATAL" || level == "PANIC" || strings.HasPrefix(level, "CRIT"):
		return 3
	default:
		return 0
	}
	line = line[:min(len(line), 1<<10)]
	if i := strings.Index(line, `" `); i > 0 && len(line) > i+5 && line[i+2] >= '1' && line[i+2] <= '5' && isDigit(line[i+3]) && isDigit(line[i+4]) && !isDigit(line[i+5]) {
		return max(0, int(line[i+2])-'3')
	}
	low := strings.ToLower(line)
	for s := len(faultWords) - 1; s > 0; s-- {
		for _, w := range faultWords[s] {
			if i := strings.Index(low, w); i >= 0 && (i == 0 || !isLetter(low[i-1])) && (i+len(w) == len(low) || !isLetter(low[i+len(w)])) && !containsAny(low, faultNegations) {
				return s
			}
		}
	}
	return 0
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c == '_' || c == '/' || c == '-' }

// faults adds the kinds of bad lines, which differ in numbers only: the most severe and most frequent
// first. The line after a single one often gives the reason.
func (f *findings) faults(levelOf []string) {
	var kinds [4]tally
	total := 0
	for i, l := range f.lines {
		level := ""
		if levelOf != nil {
			level = levelOf[i]
		}
		if s := severity(l, level); s > 0 {
			total++
			kinds[s].add(pattern(l), i)
		}
	}
	rank := 0.0
	for _, s := range []int{3, 2, 1} {
		for _, k := range kinds[s].top()[:min(len(kinds[s].n), 24)] {
			worth := (5 + 4*float64(s)) / (1 + rank/5)
			f.line(k.first, k.note(), wide, worth)
			if k.n == 1 && s > 1 {
				f.line(k.first+1, "", wide, worth/3)
			}
			rank++
		}
	}
	if total > 0 {
		f.totals = append(f.totals, fmt.Sprintf("%s of %s", plural(len(kinds[1].n)+len(kinds[2].n)+len(kinds[3].n), "kind"), plural(total, "warning or error line")))
	}
}

// readTable reads values with a delimiter under a header.
func readTable(f *findings) bool {
	t := delimited(f.lines)
	if t == nil {
		return false
	}
	e := &entries{noun: "row"}
	first := cells(t.rows[0], t.comma)
	header := names(first)
	for i, l := range t.rows[1:] {
		row := cells(l, t.comma)
		if len(row) < 2 || t.comma >= '|' && isRuler(strings.Join(row, "")) || slices.Equal(row, first) { // the header again, as in files that were joined
			continue
		}
		e.begin(t.at[i+1])
		for j, v := range row[:min(len(row), len(header))] {
			e.set(header[j], v)
		}
	}
	columns := t.rows[0]
	if t.comma >= '|' { // a border
		columns = strings.Trim(columns, string(t.comma)+" ")
	}
	f.jq = f.jqReadsCSV(t.at[0], t.to, t.comma)
	f.table(e, len(cells(columns, t.comma)))
	f.around(t.at[0], t.to)
	return true
}

// names returns the names of columns. Those that are empty or there before get their number.
func names(header []string) []string {
	out := make([]string, len(header))
	for i, name := range header {
		out[i] = strings.TrimSpace(name)
		if out[i] == "" || slices.Contains(out[:i], out[i]) {
			out[i] = strings.TrimSpace(fmt.Sprint(out[i], " column ", i+1))
		}
	}
	return out
}

// readAligned reads columns that are aligned under a header.
func readAligned(f *findings) bool {
	at, split := aligned(f.lines)
	if len(f.sample) < 4 || split == nil {
		return false
	}
	e := &entries{noun: "row"}
	header := names(split(f.lines[at]))
	for i, l := range f.lines[at+1:] {
		if v := split(l); len(v) >= min(len(header), 2) && !rule(l) {
			e.begin(at + 1 + i)
			for j, v := range v[:min(len(v), len(header))] {
				e.set(header[j], v)
			}
		}
	}
	f.line(at, "", wide, 10)
	for i := range at {
		f.line(i, "", wide, 1.5*lineWorth)
	}
	f.table(e, len(header))
	return true
}

func (f *findings) table(rows *entries, columns int) {
	f.kind = Table
	f.totals = append(f.totals, plural(columns, "column"))
	rows.tell(f)
	f.ends(0.5)
}

// rule reports whether a line only separates.
func rule(l string) bool {
	return strings.Trim(l, "-+=| \t:─│┌┬┐├┼┤└┴┘") == "" && strings.TrimSpace(l) != ""
}

// isRuler reports whether a row separates, and does not merely have dashes for values.
func isRuler(l string) bool { return rule(l) && containsAny(l, []string{"--", "──", "==", "+"}) }

// A delimitedTable is a header and rows with the same number of fields.
type delimitedTable struct {
	comma rune
	rows  []string // the header is the first one; a row with a line end in quotes has several lines
	at    []int    // the line that each begins with
	to    int      // the line behind the last one
}

// delimited finds a header, the character that splits it and the lines below into the same number of fields,
// and their end. It returns nil if there is none.
func delimited(lines []string) *delimitedTable {
	for from, skipped := 0, 0; from < len(lines) && skipped <= maxAround; from++ {
		if strings.TrimSpace(lines[from]) == "" || rule(lines[from]) {
			continue
		}
		for _, comma := range []rune{'\t', ',', ';', '|', '│'} {
			n, _ := fields(lines[from], comma, false)
			if n < 2 {
				continue
			}
			if comma < '|' && !strings.ContainsRune(strings.Trim(lines[from], string(comma)), comma) {
				continue // a statement
			}
			row := func(l string) bool { got, open := fields(l, comma, false); return got == n && !open }
			fits := func(l string) bool { return row(l) || comma >= '|' && rule(l) }
			t := delimitedTable{comma: comma}
			t.rows, t.at = rowsOf(lines[from:], comma, n)
			to := untilLast(t.rows, fits)
			if to <= 0 || count(lines[:from], row) > 0 {
				continue
			}
			s := sample(t.rows[:to])
			if len(s) < 4 || count(s, fits)*20 < len(s)*19 {
				continue
			}
			short := isHeader(lines[from], comma)
			var below [][]string
			again := -1
			for _, l := range s {
				if l == lines[from] {
					again++
				} else if row(l) {
					below = append(below, cells(l, comma))
				}
			}
			if sure, recurs := heads(cells(lines[from], comma), below); !sure && (!short || again*20 > len(s) || recurs || n == 2 && comma == ',' && strings.Contains(lines[from], " ")) {
				continue
			}
			if t.to = len(lines); to < len(t.rows) {
				t.to = from + t.at[to]
			}
			t.rows, t.at = t.rows[:to], t.at[:to]
			for i := range t.at {
				t.at[i] += from
			}
			return &t
		}
		skipped++
	}
	return nil
}

// maxQuoted is how many lines a field in quotes may have.
const maxQuoted = 200

// rowsOf joins the lines of each row with line ends in quotes, and returns where each row begins. If the quotes are
// mere characters, each line is a row: one is not closed, or most lines in quotes have n fields themselves.
func rowsOf(lines []string, comma rune, n int) (rows []string, at []int) {
	for i := 0; i < len(lines); {
		_, open := fields(lines[i], comma, false)
		to, like := i+1, 0
		for ; open && to < min(i+maxQuoted, len(lines)); to++ {
			if got, quoted := fields(lines[to], comma, false); got == n && !quoted {
				like++
			}
			_, open = fields(lines[to], comma, true)
		}
		if open || like*2 > to-i-1 {
			rows, at = slices.Clone(lines), make([]int, len(lines))
			for i := range at {
				at[i] = i
			}
			return rows, at
		}
		row := lines[i]
		if to > i+1 {
			row = strings.Join(lines[i:to], "\n")
		}
		rows, at = append(rows, row), append(at, i)
		i = to
	}
	return rows, at
}

// heads reports whether the first row of a table has the names of its columns. It is sure if more columns that have
// numbers or times below have none in this row than have one, and it is no header if a value of it recurs in
// its column. Years may be names.
func heads(first []string, below [][]string) (sure, recurs bool) {
	with, without := 0, 0
	for i, name := range first {
		name = strings.TrimSpace(name)
		values, measured := 0, 0
		for _, row := range below {
			if i >= len(row) || strings.TrimSpace(row[i]) == "" {
				continue
			}
			values++
			if isMeasure(strings.TrimSpace(row[i])) {
				measured++
			} else if strings.TrimSpace(row[i]) == name {
				recurs = true
			}
		}
		switch {
		case values < 3 || measured*20 < values*19 || len(name) == 4 && isYear.MatchString(name):
		case name == "" || isMeasure(name):
			with++
		case strings.ContainsFunc(name, unicode.IsLetter) && !noValue.MatchString(name):
			without++
		}
	}
	return without > with, recurs
}

// isMeasure reports whether a value is a number or a time.
func isMeasure(v string) bool {
	_, _, ok := number(v)
	return ok || isTime(v)
}

var (
	isYear  = regexp.MustCompile(`^(?:19|20)\d\d$`)
	noValue = regexp.MustCompile(`(?i)^(?:n/?a|nan|nil|null|none|inf|infinity|unknown|missing|true|false)$`)
)

// cells returns the fields of a row. A delimiter in quotes splits nothing.
func cells(row string, comma rune) (out []string) {
	for {
		value, rest := row, ""
		more := false
		if end := quotedEnd(row, comma); end > 0 {
			value = strings.ReplaceAll(row[1:end], `""`, `"`)
			rest = row[end+1:]
			if more = rest != ""; more {
				rest = rest[utf8.RuneLen(comma):]
			}
		} else if i := strings.IndexRune(row, comma); i >= 0 {
			value, rest, more = row[:i], row[i+utf8.RuneLen(comma):], true
		}
		if out = append(out, value); !more {
			return out
		}
		row = rest
	}
}

// quotedEnd returns the index of the quote that ends the quoted field which a row begins with; 0 if it begins with
// none, and -1 if the quotes are open.
func quotedEnd(row string, comma rune) int {
	if row == "" || row[0] != '"' {
		return 0
	}
	for i := 1; i < len(row); i++ {
		if row[i] != '"' {
			continue
		}
		if rest := row[i+1:]; rest == "" || strings.HasPrefix(rest, string(comma)) {
			return i
		}
		if row[i+1] == '"' {
			i++
		}
	}
	return -1
}

// fields returns the number of fields of a line, and whether it ends within quotes. quoted tells whether it begins
// within them.
func fields(l string, comma rune, quoted bool) (n int, open bool) {
	if !strings.Contains(l, `"`) {
		return 1 + strings.Count(l, string(comma)), quoted
	}
	if quoted {
		l = `"` + l
	}
	for n = 1; ; n++ {
		end := quotedEnd(l, comma)
		if end < 0 {
			return n, true
		}
		if end > 0 {
			l = l[end+1:]
		}
		i := strings.IndexRune(l, comma)
		if i < 0 {
			return n, false
		}
		l = l[i+utf8.RuneLen(comma):]
	}
}

// isHeader reports whether all fields are short words.
func isHeader(l string, comma rune) bool {
	for f := range strings.SplitSeq(strings.Trim(l, string(comma)), string(comma)) {
		f = strings.Trim(strings.TrimSpace(f), `"`)
		if f == "" || isMeasure(f) || len(f) > 40 || strings.Count(f, " ") > 3 || isDigit(f[0]) || strings.ContainsAny(f, "{}()=<>") {
			return false
		}
	}
	return true
}

var (
	gap      = regexp.MustCompile(`\s{2,}|\t`)
	titles   = regexp.MustCompile(`^(?:\s*[\pL%#_/().+:-]{1,39}(?:\s|$))+$`) // words that may stand in a header
	lowTitle = regexp.MustCompile(`(?:^|\s)[^A-Z%#\s]`)                      // one of them does not begin as names do
)

// readColumns reads lines that have the same number of fields, without a header.
func readColumns(f *findings) bool {
	if word, n := firstWords(f.sample).most(); len(f.sample) < 6 || n*10 > 6*len(f.sample) && strings.ContainsAny(word, "abcdefghijklmnopqrstuvwxyz") {
		return false
	}
	for by, split := range []func(string) []string{ // the first and the third are CSV
		func(l string) []string { return strings.Split(l, "\t") }, func(l string) []string { return strings.Split(l, ":") },
		func(l string) []string { return strings.Split(l, ",") }, strings.Fields,
	} {
		n := len(split(f.sample[len(f.sample)/2]))
		if n < 2 || n > 20 || share(f.sample, func(l string) bool { return indent(l) < 4 }) < 0.9 || share(f.sample, func(l string) bool { return len(l) < maxForm && len(split(l)) == n }) < 0.9 {
			continue
		}
		if by == 3 && (share(f.sample, func(l string) bool { return len(split(l)) == n }) < 0.99 || !strings.ContainsAny(f.sample[len(f.sample)/2], "0123456789")) {
			continue // words of prose
		}
		f.kind = Table
		f.jq = by%2 == 0 && f.jqReadsCSV(0, len(f.lines), rune("\t:,"[by]))
		e := &entries{noun: "row"}
		var below [][]string
		for _, l := range f.sample[1:] {
			below = append(below, split(l))
		}
		header := make([]string, n)
		sure := false
		if first := split(f.sample[0]); len(first) == n {
			if sure, _ = heads(first, below); sure {
				header = first
			}
		}
		header = names(header)
		for i, l := range f.lines {
			if sure && l == f.sample[0] {
				continue
			}
			if v := split(l); len(v) == n {
				e.begin(i)
				for j, v := range v {
					e.set(header[j], v)
				}
			}
		}
		e.tell(f)
		f.ends(1)
		return true
	}
	return false
}

// aligned finds a header of columns among the first lines. split returns the fields of a line.
func aligned(lines []string) (header int, split func(string) []string) {
	for at := range lines[:min(len(lines), 12)] {
		least := 3
		if at+1 < len(lines) && rule(lines[at+1]) { // a line under the header says where columns are, if it has gaps
			least = 2
			split := columnsUnder(lines[at+1])
			if split != nil && len(split(lines[at])) > 1 && share(sample(lines[at+1:]), func(l string) bool { return len(split(l)) > 1 || rule(l) }) > 0.8 {
				return at, split
			}
		}
		names := strings.Fields(lines[at])
		below := sample(lines[at+1:])
		if len(names) < least || !titles.MatchString(lines[at]) || lowTitle.MatchString(lines[at]) && !numeric(below, len(names)) {
			continue
		}
		// By gaps, if names or values have spaces; else by words, the last column has the rest.
		parts := gap.Split(strings.TrimSpace(lines[at]), -1)
		if len(parts) == 1 {
			continue
		}
		whole := share(below, func(l string) bool { return len(gap.Split(strings.TrimSpace(l), -1)) == len(parts) })
		if whole > 0.6 || whole > 0.2 && share(below, func(l string) bool { _, ok := placed(lines[at], l, part); return ok }) > 0.9 {
			return at, func(l string) []string {
				if v := gap.Split(strings.TrimSpace(l), -1); len(v) == len(parts) {
					return v
				}
				v, _ := placed(lines[at], l, part)
				return v
			}
		}
		if share(below, func(l string) bool { return len(strings.Fields(l)) >= len(names)-1 }) > 0.8 && len(below) >= 3 {
			return at, func(l string) []string {
				v := strings.Fields(l)
				if len(v) < len(names) {
					v, _ = placed(lines[at], l, word)
					return v
				}
				if len(v) > len(names) {
					v = append(v[:len(names)-1:len(names)-1], strings.Join(v[len(names)-1:], " "))
				}
				return v
			}
		}
	}
	return 0, nil
}

// part and word match the fields of aligned lines.
var part, word = regexp.MustCompile(`[^\s]+(?: [^\s]+)*`), regexp.MustCompile(`\S+`)

// placed returns the fields of a line that lacks some. Each has the name that begins or ends where it does; what
// stands behind the last name belongs to it. If a field has no name, ok is false, and only the first one is returned.
// A line with one field is no row.
func placed(header, l string, field *regexp.Regexp) (v []string, ok bool) {
	column := func(l string, i int) int { return utf8.RuneCountInString(l[:i]) }
	names, fields := field.FindAllStringIndex(header, -1), field.FindAllStringIndex(l, -1)
	if len(fields) < 2 {
		return nil, false
	}
	v = make([]string, len(names))
	for _, f := range fields {
		at := slices.IndexFunc(names, func(n []int) bool {
			return column(header, n[0]) == column(l, f[0]) || column(header, n[1]) == column(l, f[1])
		})
		if last := len(names) - 1; at < 0 && column(l, f[0]) >= column(header, names[last][0]) {
			at = last
		}
		if at < 0 {
			clear(v)
			v[0] = l[fields[0][0]:fields[0][1]]
			return v, false
		}
		v[at] = strings.TrimSpace(v[at] + " " + l[f[0]:f[1]])
	}
	return v, true
}

// columnsUnder returns what splits a line into the columns that a ruler such as "---- ------" has. It returns
// nil for lines that have text where the ruler has a gap.
func columnsUnder(ruler string) func(l string) []string {
	var starts []int
	for i := range len(ruler) {
		if strings.IndexByte("-=", ruler[i]) >= 0 && (i == 0 || strings.IndexByte("-=", ruler[i-1]) < 0) {
			starts = append(starts, i)
		}
	}
	if len(starts) < 2 {
		return nil
	}
	return func(l string) (v []string) {
		for i, from := range starts {
			if from >= len(l) {
				break
			}
			if from > 0 && strings.IndexByte(" |+\t", l[from-1]) < 0 {
				return nil
			}
			to := len(l)
			if i+1 < len(starts) && starts[i+1] < len(l) {
				to = starts[i+1] - 1
			}
			v = append(v, strings.Trim(l[from:to], " |"))
		}
		return v
	}
}

// numeric reports whether lines have numbers where a header with n names has columns: in most of the fields.
func numeric(lines []string, n int) bool {
	return len(lines) >= 4 && share(lines, func(l string) bool {
		v := strings.Fields(l)
		return len(v) >= n-1 && 2*count(v[:min(len(v), n)], func(w string) bool { _, _, ok := number(w); return ok }) >= n
	}) > 0.7
}
