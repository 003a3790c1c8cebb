package preview_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// Where lines of a log have … for the date, another line shows it, whatever the form of the times, the lines around
// the log and the budget.
func TestADateThatIsLeftOutIsShown(t *testing.T) {
	base := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05.000", "[2006-01-02 15:04:05]", "Jan _2 15:04:05", "I0102 15:04:05.000000", "15:04:05"} {
		for _, step := range []time.Duration{0, time.Second} {
			for _, around := range []string{"", "started\n", "a heading of the log\n\nwith more\n"} {
				for name, form := range map[string]string{
					"alike": "INFO request id=%d path=/cart took=%dms", "long": "INFO request id=%d path=/cart/" + strings.Repeat("a long path/", 30) + " took=%dms",
				} {
					var b strings.Builder
					b.WriteString(around)
					for i := range 120 {
						fmt.Fprintf(&b, "%s "+form+"\n", base.Add(time.Duration(i)*step).Format(layout), i, i%90)
						if i%50 == 20 {
							b.WriteString("  more of it\n")
						}
					}
					b.WriteString(around)
					for _, budget := range []int{80, 400} {
						p, _ := preview.Make(preview.Source{Text: b.String(), Tokens: 1e6, Handle: handle}, budget, quarter)
						short, dated, lines := false, false, 0
						for l := range strings.SplitSeq(p.Text, "\n") {
							if number, rest, ok := strings.Cut(l, ":"); ok && strings.Trim(number, "0123456789") == "" {
								lines++
								short = short || strings.Contains(strings.Split(rest, "INFO")[0], "…")
								dated = dated || strings.Contains(rest, strings.SplitAfter(base.Format(layout), "09:")[0])
							}
						}
						if short && !dated || budget == 400 && (lines == 0 || !dated) {
							t.Errorf("%s of %v, %s after %q, %d tokens:\n%s", layout, step, name, around, budget, p.Text)
						}
					}
				}
			}
		}
	}
}

// A preview shows something of the text, also if its lines are long.
func TestPreviewsShowSomeText(t *testing.T) {
	long := strings.Repeat("some words, an_identifier and 12345 numbers ", 900)
	for name, text := range map[string]string{
		"XML":           "<a><b>" + long + "</b><c/></a>",
		"XML items":     "<a>" + strings.Repeat("<b>"+long[:2000]+"</b>", 9) + "</a>",
		"XML lines":     "<a>\n" + strings.Repeat("<b>"+long[:2000]+"</b>\n", 9) + "</a>",
		"HTML":          "<html><body><p>" + long + "</p></body></html>",
		"JSON":          `{"a":"` + long + `"}`,
		"JSON items":    "[" + strings.Repeat(`{"a":"`+long[:2000]+`"},`, 9) + "1]",
		"NDJSON":        strings.Repeat(`{"a":"`+long[:2000]+"\"}\n", 9),
		"YAML":          "a:\n  b: \"" + long + "\"\n  c:\n    d: 1\n",
		"configuration": "[a]\nb = 1\nc = 2\nd = 3\ne = \"" + long + "\"\n",
		"CSV":           "an_identifier,b,c\n" + strings.Repeat("1,2,"+strings.ReplaceAll(long[:2000], ",", "")+"\n", 9),
		"log":           strings.Repeat("2026-11-20T09:00:00Z INFO "+long[:2000]+"\n", 9),
		"prose":         long,
		"source":        "package a\n\nfunc f() { g(\"" + long + "\") }\n\nfunc g(an_identifier string) {\n}\n",
		"Markdown":      "# an_identifier\n\n" + long + "\n\n# B\n\n" + long,
	} {
		p, _ := preview.Make(preview.Source{Text: text, Tokens: quarter(text), Handle: handle}, 400, quarter)
		if _, body, _ := strings.Cut(p.Text, "\n"); !strings.Contains(body, "some words") && !strings.Contains(body, "an_identifier") {
			t.Errorf("%s shows nothing of the text:\n%s", name, p.Text)
		}
	}
}
