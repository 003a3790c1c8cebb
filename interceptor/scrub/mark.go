package scrub

import (
	"slices"
	"sort"
	"strings"
)

// A mark is a range of a text to be replaced, and the rule that asks for it.
type mark struct {
	span
	rule string
}

// appendMarks appends the marks for hits in text, those of generic rules last:
// of two rules for one range merge takes the first.
func appendMarks(marks []mark, text string, hits []hit) []mark {
	for _, generic := range []bool{false, true} {
		for i := range hits {
			if hits[i].rule.generic != generic {
				continue
			}
			for _, part := range hits[i].parts(text) {
				marks = append(marks, mark{part, hits[i].rule.id})
			}
		}
	}
	return marks
}

// merge sorts marks and joins those that overlap under the rule of the longest,
// of equals the first.
func merge(marks []mark) []mark {
	slices.SortStableFunc(marks, func(a, b mark) int {
		if a.start != b.start {
			return a.start - b.start
		}
		return b.end - a.end
	})
	var out []mark
	longest := 0
	for _, m := range marks {
		n := m.end - m.start
		if last := len(out) - 1; last >= 0 && m.start < out[last].end {
			out[last].end = max(out[last].end, m.end)
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

// covered reports whether s lies within one of the marks, which are merged.
func covered(marks []mark, s span) bool {
	n := sort.Search(len(marks), func(n int) bool { return marks[n].end >= s.end })
	return n < len(marks) && marks[n].start <= s.start
}

// redact returns text with the marked ranges replaced.
func redact(text string, marks []mark) string {
	if len(marks) == 0 {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 64)
	at := 0
	for _, m := range merge(marks) {
		b.WriteString(text[at:m.start])
		b.WriteString(replacement(m.rule))
		at = m.end
	}
	b.WriteString(text[at:])
	return b.String()
}

func replacement(rule string) string { return "[REDACTED:" + rule + "]" }
