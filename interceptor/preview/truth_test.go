package preview_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/preview"
)

// generated is a table of which everything is known.
type generated struct {
	names []string
	rows  [][]string // "" for a field that a row does not have
}

// generate returns a table with columns of several sorts.
func generate(r *rand.Rand) generated {
	base := time.Date(2025, 12, 30, 22, 0, 0, 0, time.UTC)
	sorts := []func(i int) string{
		func(i int) string { return fmt.Sprint(r.IntN(1000)) },
		func(i int) string { return fmt.Sprint(i*3 - 40) },
		func(i int) string { return fmt.Sprintf("%.1f", r.Float64()*900-300) },
		func(i int) string { return []string{"red", "green", "blue"}[r.IntN(3)] },
		func(i int) string { return []string{"common", "rare"}[max(0, r.IntN(40)-38)] },
		func(i int) string { return fmt.Sprintf("name-%c%d", 'a'+i%26, i) },
		func(i int) string { return base.Add(time.Duration(r.IntN(1e7)) * time.Second).Format(time.RFC3339) },
		func(i int) string {
			return base.Add(time.Duration(r.IntN(1e7)) * time.Second).Format("2006-01-02 15:04:05")
		},
		func(i int) string { return "same" },
		func(i int) string { return fmt.Sprint(r.IntN(3)) },
		func(i int) string { return strconv.FormatBool(r.IntN(5) == 0) },
		func(i int) string { return fmt.Sprintf("%dM", 1+r.IntN(50)) },
		func(i int) string {
			if r.IntN(4) == 0 {
				return fmt.Sprint(r.IntN(77))
			}
			return ""
		},
		func(i int) string { return []string{"", "x y", "z"}[r.IntN(3)] },
	}
	all := []string{"alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	g := generated{names: all[:2+r.IntN(6)]}
	var of []func(int) string
	for range g.names {
		of = append(of, sorts[r.IntN(len(sorts))])
	}
	of[0] = sorts[[]int{1, 5, 6}[r.IntN(3)]] // no row is empty
	for i := range 30 + r.IntN(300) {
		var row []string
		for _, value := range of {
			row = append(row, value(i))
		}
		g.rows = append(g.rows, row)
	}
	return g
}

// forms returns the table as texts of several kinds.
func (g generated) forms(r *rand.Rand) map[string]string {
	quoted := func(v string) string {
		if _, err := strconv.ParseFloat(v, 64); err == nil || v == "true" || v == "false" {
			return v
		}
		return strconv.Quote(v)
	}
	// each joins what form makes of each field that a row has.
	each := func(row []string, sep string, form func(name, value string) string) string {
		var parts []string
		for i, v := range row {
			if v != "" {
				parts = append(parts, form(g.names[i], v))
			}
		}
		return strings.Join(parts, sep)
	}
	attribute := func(n, v string) string { return fmt.Sprintf("%s=%q", n, v) }
	child := func(n, v string) string { return fmt.Sprintf("<%s>%s</%s>", n, v, n) }
	member := func(n, v string) string { return strconv.Quote(n) + ":" + quoted(v) }
	line := func(n, v string) string { return n + ": " + v }
	texts := map[string]*strings.Builder{}
	put := func(name, text string) {
		if texts[name] == nil {
			texts[name] = &strings.Builder{}
		}
		texts[name].WriteString(text)
	}
	for name, comma := range map[string]string{"CSV": ",", "TSV": "\t", "semicolons": ";"} {
		put(name, strings.Join(g.names, comma)+"\n")
		for _, row := range g.rows {
			put(name, strings.Join(row, comma)+"\n")
		}
	}
	put("quoted CSV", `"`+strings.Join(g.names, `","`)+"\"\n")
	put("psql", " "+strings.Join(g.names, " | ")+"\n"+strings.Repeat("-----+", len(g.names)-1)+"-----\n")
	put("Markdown", "| "+strings.Join(g.names, " | ")+" |\n"+strings.Repeat("|---", len(g.names))+"|\n")
	put("XML attributes", "<rows size=\"9999\">\n<head alpha=\"99999\"/>\n")
	put("XML children", "<rows>\n")
	put("XML line", "<rows>")
	put("YAML items", "alpha: 99999\nrows:\n")
	put("YAML indented", "rows:\n")
	put("YAML deep", "a:\n  rows:\n")
	var objects []string
	for i, row := range g.rows {
		put("quoted CSV", `"`+strings.Join(row, `","`)+"\"\n")
		put("psql", " "+strings.Join(row, " | ")+"\n")
		put("Markdown", "| "+strings.Join(row, " | ")+" |\n")
		put("XML attributes", "<row "+each(row, " ", attribute)+"/>\n")
		put("XML children", "<row>\n"+each(row, "\n", child)+"\n</row>\n")
		put("XML line", "<row>"+each(row, "", child)+"</row>")
		put("YAML items", "- "+each(row, "\n  ", line)+"\n")
		put("YAML list", "- "+each(row, "\n  ", line)+"\n")
		put("YAML indented", "  - "+each(row, "\n    ", line)+"\n")
		put("YAML deep", "  - "+each(row, "\n    ", line)+"\n    tags:\n    - alpha: 99999\n    - bravo: 99999\n")
		put("YAML map", fmt.Sprintf("key-%d:\n  %s\n", i, each(row, "\n  ", line)))
		object := "{" + each(row, ",", member) + "}"
		objects = append(objects, object)
		put("NDJSON", object+"\n")
	}
	put("Markdown", "\n")
	put("psql", fmt.Sprintf("(%d rows)\n", len(g.rows)))
	put("XML attributes", "<tail alpha=\"99999\"/>\n</rows>\n")
	put("XML children", "</rows>\n")
	put("XML line", "</rows>\n")
	put("YAML items", "size: 8\nmore:\n  alpha: 99999\n")
	put("JSON", "["+strings.Join(objects, ",\n")+"]\n")
	put("JSON member", `{"total": 7, "rows": [`+strings.Join(objects, ",")+"]}\n")
	if !json.Valid([]byte(texts["JSON"].String())) {
		panic(texts["JSON"].String())
	}
	out := map[string]string{}
	for name, b := range texts {
		out[name] = b.String()
	}
	return out
}

var (
	ofColumn  = regexp.MustCompile(`^(\w+)(?: \(in ([\d,]+)\))?(?: \(([\d,]+) values\))?: (.*)$`)
	ofNumbers = regexp.MustCompile(`^min (\S+) max (\S+)(?: \([^)]*\))?(?: then (\S+) \([^)]*\))?(?: sum (-?[\d.]+))?(?:, |$)(.*)$`)
	timesOf   = regexp.MustCompile(`^(\S+(?: [\d:]{8})?) to (\S+(?: [\d:]{8})?)$`)
	ofValue   = regexp.MustCompile(`^(.*?)(?: ×([\d,]+))?(?: \(.*\))?$`)
)

// measure reads what a preview may take for a number.
func measure(v string) (float64, bool) {
	bare, factor := strings.TrimSuffix(v, "M"), 1.0
	if bare != v {
		factor = 1 << 20
	}
	n, err := strconv.ParseFloat(bare, 64)
	return n * factor, err == nil
}

func ungrouped(s string) int {
	n, _ := strconv.Atoi(strings.ReplaceAll(s, ",", ""))
	return n
}

// faults returns what a preview says about the table that is not so, and how many statements were compared.
func (g generated) faults(text string) (wrong []string, said int) {
	fault := func(form string, args ...any) { wrong = append(wrong, fmt.Sprintf(form, args...)) }
	head, rest, _ := strings.Cut(text, "\n")
	head, _, _ = strings.Cut(head, ". Read more")
	said++
	if !regexp.MustCompile(fmt.Sprintf(`, %d (rows|items|entries)\b`, len(g.rows))).MatchString(head) {
		fault("there are %d entries", len(g.rows))
	}
	lines := strings.Split(rest, "\n")
	for _, part := range strings.Split(head, ", ")[1:] { // times
		if name, times, ok := strings.Cut(part, " "); ok && slices.Contains(g.names, name) {
			lines = append(lines, name+": "+times)
		}
	}
	for _, l := range lines {
		if all, ok := strings.CutPrefix(l, fmt.Sprintf("all %d have ", len(g.rows))); ok {
			for part := range strings.SplitSeq(strings.TrimSuffix(all, ", …"), ", ") {
				name, value, _ := strings.Cut(part, " ")
				lines = append(lines, name+": "+value+fmt.Sprintf(" ×%d", len(g.rows)))
			}
		}
	}
	for at := 0; at < len(lines); at++ {
		m := ofColumn.FindStringSubmatch(lines[at])
		if m == nil {
			continue
		}
		c := slices.Index(g.names, m[1])
		if c < 0 {
			continue
		}
		said++
		counts, rows := map[string]int{}, 0
		var least, greatest, sum float64
		var early, late string
		numbers := 0
		for _, row := range g.rows {
			v := row[c]
			if v == "" {
				continue
			}
			rows++
			counts[v]++
			if n, ok := measure(v); ok {
				if numbers++; numbers == 1 || n < least {
					least = n
				}
				if numbers == 1 || n > greatest {
					greatest = n
				}
				sum += n
			}
			if early == "" || v < early {
				early = v
			}
			late = max(late, v)
		}
		switch {
		case m[2] != "" && ungrouped(m[2]) != rows || m[2] == "" && rows != len(g.rows):
			fault("%s is in %d: %s", m[1], rows, lines[at])
		case m[3] != "" && ungrouped(m[3]) != len(counts):
			fault("%s has %d values: %s", m[1], len(counts), lines[at])
		}
		facts := m[4]
		if n := ofNumbers.FindStringSubmatch(facts); n != nil {
			low, _ := measure(n[1])
			high, _ := measure(n[2])
			total, _ := strconv.ParseFloat(n[4], 64)
			if low != least || high != greatest || n[4] != "" && (total-sum > 0.06 || sum-total > 0.06) {
				fault("%s has min %v max %v sum %.1f: %s", m[1], least, greatest, sum, lines[at])
			}
			facts = n[5]
		} else if times := timesOf.FindStringSubmatch(facts); times != nil {
			if times[1] != early || times[2] != late {
				fault("%s is %s to %s: %s", m[1], early, late, lines[at])
			}
			continue
		}
		for part := range strings.SplitSeq(facts, ", ") {
			v := ofValue.FindStringSubmatch(part)
			if part == "…" || part == "" {
				continue
			}
			if n := counts[strings.Trim(v[1], `"`)]; n == 0 || v[2] != "" && ungrouped(v[2]) != n || v[2] == "" && n != 1 {
				fault("%s has %d of %q: %s", m[1], n, v[1], lines[at])
			}
		}
	}
	return wrong, said
}

// What a preview says about entries is so, whatever their form.
func TestWhatPreviewsSayIsSo(t *testing.T) {
	told := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		g := generate(r)
		for name, text := range g.forms(r) {
			p, _ := preview.Make(preview.Source{Text: text, Tokens: 1e6, Handle: handle}, 2000, quarter)
			wrong, said := g.faults(p.Text)
			told[name] += said
			for _, w := range wrong {
				t.Errorf("%d, %s: %s\n%s", seed, name, w, p.Text[:min(len(p.Text), 900)])
			}
		}
	}
	for name, said := range told {
		if said < 120 {
			t.Errorf("%s: %d statements were compared", name, said)
		}
	}
}
