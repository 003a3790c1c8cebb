package scrub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestTables: the column of a secret is found whatever the other names of the header are, in each
// format and at each place of the column, also below a title with as many cells.
func TestTables(t *testing.T) {
	s := newScrubber(t, Options{})
	others := map[string][3]string{
		"names":      {"ssid", "owner", "age"},
		"paths":      {"ssid", "/v1/chat", "/usr/share/doc/x.md"},
		"URLs":       {"https://api.example.com/v1?a=1&b=2#c", "ssid", "http://localhost:8080/"},
		"URL of key": {"https://example.com/api/keys", "/v1/tokens", "ssid"},
		"numbers":    {"1", "2.50", "-7e3"},
		"versions":   {"v1.2.3-rc.1+x", "10.0.0.1", "2026-01-02T03:04:05Z"},
		"units":      {"size (kB)", "CPU [%]", "cost $"},
		"signs":      {"#", "a=b", "x:y {z} <b> ~ ^ !"},
		"blanks":     {"", "", "ssid"},
		"one blank":  {" ", "host name", "ssid"},
		"duplicates": {"ssid", "ssid", "ssid"},
		"same name":  {"NAME", "ssid", "NAME"},
		"near names": {"keyboard", "tokens used", "secretary"},
		"letters":    {"Größe", "名前", "naïve"},
		"long":       {strings.Repeat("a long name of a column ", 4), "key" + strings.Repeat("_long", 12), "x"},
		"quoted":     {`"a b"`, `"/v1/chat"`, `"x (y)"`},
		"inner":      {`"a,b"`, `"c;d"`, `"e` + "\t" + `f"`},
		"inner keys": {`"a,key;b"`, `"c|token"`, `"x ""y"" z"`},
	}
	line := func(separator string) func(rows [][]string) string {
		return func(rows [][]string) string {
			var b strings.Builder
			for _, r := range rows {
				b.WriteString(strings.Join(r, separator) + "\n")
			}
			return b.String()
		}
	}
	piped := func(rule string) func(rows [][]string) string {
		return func(rows [][]string) string {
			var b strings.Builder
			for i, r := range rows {
				b.WriteString("| " + strings.Join(r, " | ") + " |\n")
				if i == 0 {
					b.WriteString("|" + strings.Repeat(rule+"|", len(r)) + "\n")
				}
			}
			return b.String()
		}
	}
	titled := func(write func(rows [][]string) string) func(rows [][]string) string {
		return func(rows [][]string) string {
			title := append([]string{"API keys", "2026"}, make([]string, len(rows[0])-2)...)
			return write(slices.Insert(rows, 0, title))
		}
	}
	forms := map[string]func(rows [][]string) string{
		"CSV, title": titled(line(",")), "TSV, title": titled(line("\t")), "Markdown, title": titled(piped("---")),
		"CSV": line(","), "CSV, blank": line(", "), "semicolons": line(";"), "TSV": line("\t"),
		"Markdown": piped("---"), "pipes": line("|"), "psql": line(" | "),
		"CSV, open": func(rows [][]string) string { return strings.ReplaceAll(line(",")(rows), "\n", ",,\n") },
		"CSV, indented": func(rows [][]string) string {
			return " " + strings.TrimSuffix(strings.ReplaceAll(line(",")(rows), "\n", "\n "), " ")
		},
		"after a line": func(rows [][]string) string { return "The keys, tokens, and more:\n" + line(",")(rows) },
	}
	texts, left := 0, 0
	defer func() { t.Logf("%d of %d values are found", texts-left, texts) }()
	for n, name := range []string{"API_KEY", "DB_PASSWORD", "Secret access key", `"authToken"`} {
		value := token(uint64(900+n), "", 22) + "7x"
		for kind, other := range others {
			for form, write := range forms {
				if strings.HasPrefix(kind, "inner") && strings.Contains(write([][]string{{"", ""}}), "|") {
					continue // there quotation marks protect nothing
				}
				for place := range 4 {
					header := slices.Insert(slices.Clone(other[:]), place, name)
					for i := range header {
						if header[i] == "NAME" {
							header[i] = name
						}
					}
					rows := [][]string{header}
					for i := range 3 {
						row := slices.Insert([]string{fmt.Sprint(i), "db" + fmt.Sprint(i), "x"}, place, "none")
						if i == 1 {
							row[place] = value
						}
						rows = append(rows, row)
					}
					in := write(rows)
					got, found, err := s.Text(context.Background(), in)
					texts++
					if err != nil || len(found) == 0 || strings.Contains(got, value) {
						left++
						t.Errorf("%s, %s, %d: Text(%q) = %q, %v, %v", form, kind, place, in, got, found, err)
					}
				}
			}
		}
	}
}
