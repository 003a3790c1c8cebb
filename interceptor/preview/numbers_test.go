package preview_test

import (
	"fmt"
	"strings"
	"testing"
)

// The extremes of a column are right whatever the units and the size of its numbers, and it has none if some of
// its values can't be compared.
func TestNumbersOfColumns(t *testing.T) {
	for _, k := range []struct {
		values string // what differs from the rest
		rest   string // with the number of the row
		says   string
	}{
		{"20s", "%d00ms", "min 100ms max 20s"},
		{"1,234", "%d", "min 1 max 1,234"},
		{"700B", "%dM", "min 700B max 49M"},
		{"1 kB", "%d kB", "min 1 kB max 49 kB"},
		{"0.04", "0.01", ""},
		{"1m3s", "%dms", ""},
		{"5µs", "%dms", ""},
		{"3h", "%ds", ""},
		{"1.2.3", "%d", ""},
		{"99%", "%ds", ""},
		{"9007199254740993", "90071992547409%02d", "min 9007199254740901 max 9007199254740993"},
		{"9007199254740992123", "9007199254740992%03d", "min 9007199254740992001 max 9007199254740992123"},
		{"12345678901234567890123", "%d", "max 12345678901234567890123"},
		{"1e400", "%d", ""},
		{"1e-9", "%d", "min 1e-9 max 49\n"},
		{"-0.25", "%d", "min -0.25 max 49 sum 1199.50"},
	} {
		text := "name\tsize\tstate\n"
		for i := range 50 {
			v := k.rest
			if strings.Contains(v, "%") {
				v = fmt.Sprintf(v, i)
			}
			if i == 25 || i == 0 {
				v = k.values
			}
			text += fmt.Sprintf("n%d\t%s\t%s\n", i, v, []string{"a", "b"}[i%2])
		}
		got := said(text, 600)
		_, size, _ := strings.Cut(got, "\nsize: ")
		size, _, _ = strings.Cut(size, "\n1: ")
		size, _, _ = strings.Cut(size, "\nstate: ")
		size = strings.Split(strings.NewReplacer(" (n0)", "", " (n25)", "", " (n49)", "").Replace(size), "\n")[0] + "\n"
		if k.says == "" && strings.Contains(size, "max") || !strings.Contains(size, k.says) {
			t.Errorf("%s and %s: %q, want %q", k.values, k.rest, size, k.says)
		}
	}
}

// Long values that begin alike are several.
func TestLongValuesThatBeginAlike(t *testing.T) {
	var b strings.Builder
	for i := range 40 {
		fmt.Fprintf(&b, "{\"id\": %d, \"text\": \"%s%d\"}\n", i, strings.Repeat("long ", 60), i%20)
	}
	if got := said(b.String(), 400); strings.Contains(got, "all 40 have text") || strings.Contains(got, "(+140)") {
		t.Error(got)
	}
}
