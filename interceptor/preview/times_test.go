package preview_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// The times that a preview tells are the least and the greatest one, whatever the order of the rows and the form
// of the times, in every kind of text with columns.
func TestTimesAreLeastAndGreatest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	base := time.Date(2025, 11, 3, 10, 0, 0, 0, time.UTC)
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02", "2006-01-02T15:04:05.000Z", "2006-01-02 15:04:05 -0700", "Mon Jan _2 15:04:05 2006 -0700", "02/Jan/2006:15:04:05 -0700"} {
		for _, order := range []string{"rising", "falling", "mixed"} {
			for name, form := range map[string][3]string{
				"CSV":   {"id,created_at,state\n", "%d,%s,%s\n", ""},
				"TSV":   {"id\tcreated_at\tstate\n", "%d\t%s\t%s\n", ""},
				"lines": {"", "{\"id\": %d, \"created_at\": \"%s\", \"state\": \"%s\"}\n", ""},
				"JSON":  {"{\"rows\":[", "{\"id\":%d,\"created_at\":\"%s\",\"state\":\"%s\"},\n", "{\"id\":-1}]}"},
				"XML":   {"<rows>\n", "<row id=\"%d\" created_at=\"%s\" state=\"%s\"/>\n", "</rows>\n"},
				"YAML":  {"rows:\n", "- id: %d\n  created_at: %s\n  state: %s\n", ""},
			} {
				var b strings.Builder
				var least, greatest time.Time
				const n = 60
				for i := range n {
					at := base.AddDate(0, 0, 3*i)
					switch order {
					case "falling":
						at = base.AddDate(0, 0, 3*(n-i))
					case "mixed":
						at = base.AddDate(0, 0, r.IntN(500))
					}
					if i == 0 || at.Before(least) {
						least = at
					}
					if i == 0 || at.After(greatest) {
						greatest = at
					}
					fmt.Fprintf(&b, form[1], i, at.Format(layout), []string{"open", "closed"}[i%2])
				}
				text := form[0] + b.String() + form[2]
				p, _ := preview.Make(preview.Source{Text: text, Tokens: 9000, Handle: handle}, 400, quarter)
				if want := least.Format(layout) + " to " + greatest.Format(layout); !strings.Contains(p.Text, want) {
					t.Errorf("%s with %s times as %q lacks %s:\n%s", name, order, layout, want, p.Text)
				}
			}
		}
	}
}

// Times without a date begin again each day, so of a log that goes on over midnight the first and the last line are told.
func TestTimesWithoutADate(t *testing.T) {
	log := func(from time.Time) string {
		var b strings.Builder
		for i := range 200 {
			fmt.Fprintf(&b, "%s INFO request %d of user%d\n", from.Add(time.Duration(i)*time.Minute).Format("15:04:05"), i, i%3)
		}
		return b.String()
	}
	day := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for says, text := range map[string]string{
		"10:00:00 to 13:19:00":             log(day.Add(10 * time.Hour)),
		"first 22:30:00, last 01:49:00":    log(day.Add(22*time.Hour + 30*time.Minute)),
		"all at 2026-11-20T09:00:00Z":      strings.Repeat("2026-11-20T09:00:00Z INFO request of user\n", 40),
		"started 00:00:00 to 00:02:31":     "",
		"created 2026-01-02 to 2026-03-02": "id,created,who\n1,2026-02-02,a\n2,never,b\n" + strings.Repeat("3,2026-01-02,c\n4,2026-03-02,d\n", 30),
	} {
		if text == "" {
			text = "id,started,who\n1,00:00:00,a\n" + strings.Repeat("2,00:01:02,b\n", 30) + "3,00:02:31,c\n"
		}
		p, _ := preview.Make(preview.Source{Text: text, Tokens: 9000, Handle: handle}, 400, quarter)
		if !strings.Contains(p.Text, says) {
			t.Errorf("without %q:\n%s", says, p.Text)
		}
	}
}
