package preview_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// The first row of a table has the names of its columns if it can't be a row, whatever splits it and however few columns
// there are. Else it is a row.
func TestHeadersAndRows(t *testing.T) {
	const n = 60
	kinds := map[string]func(i int) string{
		"numbers": func(i int) string { return fmt.Sprint(100 + i*7%n) },
		"prices":  func(i int) string { return fmt.Sprintf("-%d.5", i) },
		"times":   func(i int) string { return fmt.Sprintf("2026-01-05 10:%02d:00", i) },
		"words":   func(i int) string { return []string{"red", "green", "blue"}[i%3] },
	}
	for _, comma := range []string{",", "\t", ";", "|"} {
		for name, kind := range kinds {
			for columns := 2; columns < 6; columns++ {
				for _, header := range []string{"x", "name", "price (EUR)", ""} {
					var b strings.Builder
					for i := -1; i < n; i++ {
						var row []string
						for c := range columns {
							switch {
							case i < 0 && header != "":
								row = append(row, fmt.Sprint(header, c+1))
							case i >= 0:
								row = append(row, kind(i+c))
							}
						}
						if row != nil {
							b.WriteString(strings.Join(row, comma) + "\n")
						}
					}
					if strings.Contains(header, "(") && name == "words" || header == "" && (name == "times" || comma == ";" || comma == "|") {
						continue // nothing tells what the first row is; it is a log; it is a mere text
					}
					p, _ := preview.Make(preview.Source{Text: b.String(), Tokens: 9000, Handle: handle}, 600, quarter)
					want := header + "1: "
					if header == "" {
						want = "column 1: "
					}
					if name == "times" {
						want = "2026-01-05 10:00:00 to 2026-01-05 10:59:00"
					}
					if p.Kind != preview.Table || !strings.Contains(p.Text, "60 rows") || !strings.Contains(p.Text, want) {
						t.Errorf("%d columns of %s split by %q under %q: %s without 60 rows or %q:\n%s", columns, name, comma, header, p.Kind, want, p.Text)
					}
				}
			}
		}
	}
}

// A row may have line ends in quotes, and a quote may be a mere character.
func TestQuotesInTables(t *testing.T) {
	rows := func(form, other string, every int) string {
		text := "id,text,size\n"
		for i := range 200 {
			if i%every == 7 {
				text += fmt.Sprintf(other, i, i%9)
			} else {
				text += fmt.Sprintf(form, i, i%9)
			}
		}
		return text
	}
	for name, text := range map[string]string{
		"line ends":      rows("%d,plain,%d\n", "%d,\"a, \"\"b\"\"\nc, d\n\ne\",%d\n", 10),
		"always":         rows("%d,\"a, b\nc\",%d\n", "%d,\"\",%d\n", 50),
		"open quotes":    rows("%d,plain,%d\n", "%d,\"open,%d\n", 30),
		"all open":       rows("%d,\"open,%d\n", "%d,\"open,%d\n", 30),
		"a cut end":      rows("%d,\"a, b\",%d\n", "%d,c,%d\n", 30) + "200,\"a,",
		"a single quote": rows("%d,plain,%d\n", "%d,\"open,%d\n", 190),
		"inches":         rows("%d,5\",%d\n", "%d,3\",%d\n", 3),
	} {
		p, _ := preview.Make(preview.Source{Text: text, Tokens: 9000, Handle: handle}, 400, quarter)
		if !strings.Contains(p.Text, "3 columns, 200 rows") || !strings.Contains(p.Text, "id: min 0 max 199") || !strings.Contains(p.Text, "size: min 0 max 8") {
			t.Errorf("%s:\n%s", name, p.Text)
		}
	}
	for text, rows := range map[string]string{
		"a,b,c\n" + strings.Repeat("-,-,-\n-,1,-\n", 20):                             "40 rows",
		"| a | b |\n|---|---|\n" + strings.Repeat("| - | - |\n| x | - |\n", 20):      "2 columns, 40 rows",
		strings.Repeat("id,n,s\n"+strings.Repeat("1,2,q\n", 20), 3):                  "60 rows",
		"id,size,size\n" + strings.Repeat("a,,5\nb,7,9\n", 20):                       "40 rows",
		",a,b\n" + strings.Repeat("1,x,2\n2,y,3\n", 20):                              "3 columns, 40 rows",
		"id;text\n" + strings.Repeat("1;a\n2;b\n", 20) + "\n\n" + "3;c\n# the end\n": "41 rows",
	} {
		p, _ := preview.Make(preview.Source{Text: text, Tokens: 9000, Handle: handle}, 400, quarter)
		if !strings.Contains(p.Text, rows) || strings.Contains(p.Text, "size: min 5") {
			t.Errorf("%.40q has not %s:\n%s", text, rows, p.Text)
		}
	}
}

// Prose with a comma in each line is no table.
func TestProseIsNoTable(t *testing.T) {
	for _, comma := range []string{", and ", ", "} {
		text := ""
		for i := range 60 {
			text += "It was a day like " + strings.Repeat("many ", i%4) + "others" + comma + "so we " + strings.Repeat("soon ", i%3) + "went home.\n"
		}
		if got := said(text, 300); !strings.HasPrefix(got, "[Folded text: ") {
			t.Error(got)
		}
	}
}
