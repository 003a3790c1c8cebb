package preview

import (
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// readForms reads a text of one of the forms.
func readForms(f *findings) bool {
	for _, c := range forms() {
		if !c.fits(f.sample) {
			continue
		}
		f.kind = c.kind
		c.read(f)
		f.ends(map[bool]float64{true: 0.4, false: 0.6}[c.brief != nil])
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

// The words that a line has which sums up tests or tells a failure. The expressions take
// much longer than a look for them, and most lines have none.
var (
	summaryStarts = []string{"FAIL", "OK", "ok", "PASS"}
	summaryWords  = []string{"pass", "fail", "pending", "skipped", "ignored", "error", "problem", "warning", "example", "test", "assertion", "suites", "cancelled", "todo", "duration_ms", "coverage", "Test", "Snapshots", "Ran", "Result", "Failures"}
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

// verdict returns the result of a test in a line, "pass", "fail" or "skip", and the test's name.
func verdict(l string) (result, name string) {
	if len(l) > 400 || l == "" || isSummary(l) {
		return "", ""
	}
	if m := verdictFirst.FindStringSubmatch(l); m != nil {
		if m[1] > "z" && strings.HasSuffix(m[2], ":") || strings.HasPrefix(l, "ok:") {
			return "", "" // a heading, or a step that is done
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
	summaries, fails, messages, last, lastMessage := []int{}, 0, 0, -1, -1
	for i, l := range f.lines {
		result, name := verdict(l)
		if result == "" && strings.Contains(l, ") ") { // mocha's
			if m := verdictFirst.FindStringSubmatch(l); m != nil && number["pass"] > 0 {
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
			for j := i + 1; j < min(i+4, len(f.lines)) && fails < 40; j++ { // what is said of it
				if r, _ := verdict(f.lines[j]); r != "" {
					break
				}
				f.line(j, "", wide, 6/(1+float64(fails)/6))
			}
		case len(l) < 300 && isSummary(l):
			summaries = append(summaries, i)
		case len(l) < 2000 && isMessage(l):
			f.line(i, "", wide, 8/(1+float64(messages)/4))
			messages++
			lastMessage = i
		}
	}
	for n, i := range slices.Backward(summaries) {
		f.line(i, "", wide, 22/(1+float64(len(summaries)-n)/4))
	}
	f.line(lastMessage, "", wide, 8)
	f.line(last, "", wide, 8)
	for j := last + 1; last >= 0 && j < last+8; j++ {
		f.line(j, "", wide, 4)
	}
	for _, t := range []struct {
		name   string
		number map[string]int
	}{{"results in lines: ", number}, {"files with tests: ", suites}} {
		var totals []string
		for _, r := range []string{"fail", "pass", "skip"} {
			if t.number[r] > 0 {
				totals = append(totals, fmt.Sprintf("%s %s", group(t.number[r]), r))
			}
		}
		if len(totals) > 0 {
			f.totals = append(f.totals, t.name+strings.Join(totals, " "))
		}
	}
	f.ends(0.3)
	return true
}

var (
	took      = regexp.MustCompile(` \(\d[\d.]* ?[mµn]?s\)$`)
	tapStarts = []string{"ok ", "not ok "}
	suiteOf   = regexp.MustCompile(`^ *(PASS|FAIL) +\S+\.[cm]?[jt]sx?(?: \([\d.]+ ?m?s\))?$`)
)

// readLog reads lines with a time or a level.
func readLog(f *findings) bool {
	if share(f.sample, func(l string) bool { _, _, ok := stamped(l); return ok }) <= 0.3 {
		return false
	}
	f.kind = Log
	if common, first := commonTime(f.lines); common != "" {
		f.line(first, "", wide, 1000)
		f.common, f.dated = common, f.at[first]
	}
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
		} else if m := programIn.FindStringSubmatch(rest[:min(len(rest), 120)]); m != nil {
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

// commonTime returns what the first and the last line with a time begin with up to the time, such as the date and the
// hour, "" if it is short, and the first of these lines.
func commonTime(lines []string) (common string, first int) {
	var until [2]string
	for side, all := range []iter.Seq2[int, string]{slices.Backward(lines), slices.All(lines)} {
		for i, l := range all {
			if time, _, _ := stamped(l); time != "" {
				until[side], first = l[:strings.Index(l, time)+len(time)], i
				break
			}
		}
	}
	same := 0
	for same < min(len(until[0]), len(until[1])) && until[0][same] == until[1][same] {
		same++
	}
	for same > 0 && isDigit(until[0][same-1]) {
		same--
	}
	if same < 6 {
		return "", first
	}
	return until[0][:same], first
}

var (
	firstWord = regexp.MustCompile(`^(?:[\[(]?(?:[A-Z]+|debug|info|warn|error)[\])]?:? +)?([A-Za-z][\w./-]{0,40}\b:?)`)
	programIn = regexp.MustCompile(`^\S+ ([\w./-]+)(?:\[\d+\])?: `)
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
			w = strings.ToUpper(w)
			if _, known := severityOf[w]; known && (end == len(l) || l[end] != '-' && l[end] != '/') {
				return w
			}
		}
		start = end + 1
	}
	return ""
}

// severityOf has the levels of logs, from 0 (good) to 3 (fatal).
var severityOf = map[string]int{
	"TRACE": 0, "DEBUG": 0, "INFO": 0, "NOTICE": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "ERR": 2, "FATAL": 3, "CRITICAL": 3, "CRIT": 3, "PANIC": 3,
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
	if digits >= 6 && separators >= 2 && strings.ContainsAny(t[:i], ":/T") || digits >= 3 && strings.HasPrefix(l, "[") && strings.HasPrefix(t[i:], "] ") && strings.IndexByte(t[:i], ':') > 0 {
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

// severity returns how bad a line is, from 0 (good) to 3 (fatal). If it names its level, that counts.
func severity(line, level string) int {
	if s, ok := severityOf[level]; ok {
		return s
	}
	low := strings.ToLower(line[:min(len(line), 1<<10)])
	for s := len(faultWords) - 1; s > 0; s-- {
		for _, w := range faultWords[s] {
			if i := strings.Index(low, w); i >= 0 && (i == 0 || !isLetter(low[i-1])) && (i+len(w) == len(low) || !isLetter(low[i+len(w)])) && !containsAny(low, faultNegations) {
				return s
			}
		}
	}
	return 0
}

// isLetter reports whether a byte beside a fault word makes it part of another word, or of a rule.
func isLetter(c byte) bool {
	return c >= 'a' && c <= 'z' || c == '_' || c == '/' || c == '-' || c == '*'
}

// faults adds the kinds of bad lines, which differ in numbers only: the most severe and most frequent
// first. The line after a single one often gives the reason.
func (f *findings) faults(levelOf []string) {
	var kinds [4]tally
	total := 0
	for i, l := range f.lines {
		if s := severity(l, levelOf[i]); s > 0 {
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
