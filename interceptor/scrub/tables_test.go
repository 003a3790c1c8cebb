package scrub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
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
	for n, name := range []string{"API_KEY", "DB_PASSWORD", "Secret access key", `"authToken"`, "pwd"} {
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
					if shown := redacted.ReplaceAllString(got, value); err != nil || len(found) == 0 || strings.Contains(got, value) || shown != in {
						left++
						t.Errorf("%s, %s, %d: Text(%q) = %q, %v, %v", form, kind, place, in, got, found, err)
					}
				}
			}
		}
	}
}

// TestLineNumbersStay: what stands before each line of a table is no part of its first cell.
func TestLineNumbersStay(t *testing.T) {
	s := newScrubber(t, Options{})
	before := map[string]func(line int) string{
		"read":      func(n int) string { return fmt.Sprintf("%6d\u2192", n+9) },
		"read far":  func(n int) string { return fmt.Sprintf("%6d\u2192", n+99999) },
		"bat":       func(n int) string { return fmt.Sprintf("%4d \u2502 ", n+9) },
		"long cat":  func(n int) string { return fmt.Sprintf("%6d\t", n+99999) },
		"grep -C":   prefixes["grep -C"],
		"old side":  prefixes["old side"],
		"cat -n":    prefixes["cat -n"],
		"docker":    prefixes["compose"],
		"grep -n":   prefixes["grep -n"],
		"numbers |": prefixes["numbers"],
	}
	for kind, prefix := range before {
		for _, form := range []string{
			"NAME,id\nVALUE,1\nOTHER,2\n", "NAME\tid\nVALUE\t1\nOTHER\t2\n", "NAME|id\nVALUE|1\nOTHER|2\n", "NAME;id\nVALUE;1\nOTHER;2\n",
			"\u2502 NAME \u2502 id \u2502\n\u2502 VALUE \u2502 1 \u2502\n\u2502 OTHER \u2502 2 \u2502\n", "NAME \u2502 id\nVALUE \u2502 1\nOTHER \u2502 2\n",
			"\u2502 id \u2502 NAME \u2502\n\u251c\u2500\u2500\u253c\u2500\u2500\u2524\n\u2502 1 \u2502 VALUE \u2502\n\u2502 2 \u2502 OTHER \u2502\n", "x\u2502y\nNAME,id\nVALUE,1\nOTHER,2\n",
		} {
			for n, name := range []string{"DB_PASSWORD", "api_key", "pwd", "token"} {
				value, other := token(uint64(800+n), "", 22)+"7x", token(uint64(820+n), "q7", 20)
				var b strings.Builder
				for n, line := range strings.SplitAfter(strings.TrimSuffix(form, "\n"), "\n") {
					b.WriteString(prefix(n) + line)
				}
				in := strings.NewReplacer("NAME", name, "VALUE", value, "OTHER", other).Replace(b.String())
				got, _, err := s.Text(context.Background(), in)
				want := strings.NewReplacer(value, "*", other, "*").Replace(in)
				if shown := redacted.ReplaceAllString(got, "*"); err != nil || shown != want {
					t.Errorf("%s: Text(%q) = %q, %v", kind, in, got, err)
				}
			}
		}
	}
}

// TestValuesAreNoNames: a random value with the word of a secret in it names no column, which would hide the header
// below it and its values, and redact what is below it.
func TestValuesAreNoNames(t *testing.T) {
	s := newScrubber(t, Options{})
	hidden, over, texts := 0, 0, 0
	for n := range uint64(2000) {
		v, value := []byte(token(n, "", 20)+"7x4Q"), token(n+9000, "", 22)+"7x"
		for i, word := range []string{"pwd", "PWD", "pWd", "Pwd", "key", "KEY", "Key", "kEy"} {
			copy(v[(int(n)+i)%20:], word)
			for _, form := range []string{"a,CELL\nx,host1x-abc\nid,DB_PASSWORD\n1,VALUE\n", "CELL|a\nhost1x-abc|y\nDB_PASSWORD|id\nVALUE|2\n", "CELL\ta\nhost1x-abc\tb\nDB_PASSWORD\tid\nVALUE\t2\n"} {
				in := strings.NewReplacer("CELL", string(v), "VALUE", value).Replace(form)
				got, _, err := s.Text(context.Background(), in)
				if err != nil {
					t.Fatal(err)
				}
				if texts++; strings.Contains(got, value) {
					hidden++
				}
				if !strings.Contains(got, "host1x-abc") {
					over++
				}
			}
		}
	}
	if t.Logf("of %d, %d values are hidden, %d words redacted", texts, hidden, over); hidden > texts/30 || over > texts/30 {
		t.Errorf("of %d, %d values are hidden, %d words redacted", texts, hidden, over)
	}
	for _, name := range []string{"AWS_S3_SECRET_KEY_2", "k8s_api_key_v2", "AwsS3SecretKeyV2", "s3_secret_access_key", "oauth2_client_secret", "OAuth2ClientSecret", "tls12_private_key", "db1_root_passwd", "API key 2026", "x509_key_password", "MYSQL57_ROOT_PWD", "md5_ssh_key", "tls12_ssh_key", "X-Api-Key-2026-v2", "base64_token_1"} {
		if !isSecretName(name, span{0, len(name)}) {
			t.Errorf("%q names no column", name)
		}
	}
}

// TestTableInString: a table is found in a string of JSON that is text, also if the header is its begin.
func TestTableInString(t *testing.T) {
	s := newScrubber(t, Options{})
	value := token(990, "", 22) + "7x"
	for _, format := range []string{`{"text": %s}`, `{"ok": true, "text": %s, "n": 1}`, "[%s]", "%s", "{\n  \"a\": 1,\n  \"text\": %s\n}"} {
		for _, table := range []string{"user,password\nbob," + value + "\n", "api_key,user\n" + value + ",bob\n", "user\tpassword\tage\nbob\t" + value + "\t7", "name;db_token\na;" + value + "\nb;x\n"} {
			quoted, err := json.Marshal(table)
			if err != nil {
				t.Fatal(err)
			}
			in := fmt.Sprintf(format, quoted)
			got, found, err := s.Text(context.Background(), in)
			before, after, _ := strings.Cut(in, value)
			if err != nil || len(found) != 1 || !strings.HasPrefix(got, before+"[REDACTED:") || !strings.HasSuffix(got, "]"+after) {
				t.Errorf("Text(%q) = %q, %v, %v", in, got, found, err)
			}
		}
	}
}

// TestPairsOfJSONInText: a text with JSON in it gives the pairs of names and values that JSON itself gives.
func TestPairsOfJSONInText(t *testing.T) {
	s := newScrubber(t, Options{})
	const value = "Sommer2026!"
	for _, doc := range []string{
		`{"password": ["a", "VALUE"]}`, `{"password": {"n": 1, "value": "VALUE"}}`, `{"password": {"S": "VALUE"}}`,
		`{"name": "DB_PASSWORD", "description": "of the database", "value": "VALUE"}`,
		`{"label": "password", "content": "VALUE"}`, `{"args": ["-v", "--password", "VALUE"]}`,
		`{"columns": ["user", "password"], "rows": [["joe", "VALUE"]]}`, `[["user", "password"], ["joe", "VALUE"]]`,
	} {
		doc := strings.ReplaceAll(doc, "VALUE", value)
		var indented bytes.Buffer
		if err := json.Indent(&indented, []byte(doc), "", "  "); err != nil {
			t.Fatal(err)
		}
		clean, _, err := s.JSON(context.Background(), []byte(doc))
		if err != nil || bytes.Contains(clean, []byte(value)) {
			t.Errorf("%s: %s, %v", doc, clean, err)
		}
		for _, text := range []string{
			doc, indented.String(), "The account:\n" + indented.String() + "\nThat is all.", `{"n": 1}` + "\n" + doc + "\n" + `{"n": 2}` + "\n",
			"level=info payload=" + doc + " took=3", `if f["x"] { g({"a", [` + "\n" + doc,
			doc[:strings.LastIndex(doc, value)+len(value)+1] + ` ... cut`,
		} {
			if clean, _, err := s.Text(context.Background(), text); err != nil || strings.Contains(clean, value) {
				t.Errorf("%q becomes %q, %v", text, clean, err)
			}
		}
	}
}

// TestKeysAndValues: in a table with the columns Key and Value a row is a name and its value.
func TestKeysAndValues(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, end := range []string{"\n", "\r\n"} {
		in := strings.ReplaceAll("===== Data =====\nKey         Value\n---         -----\nuser        joe\npassword    Sommer2026!\nkind        a b\napi_key     Xk9#mP2!vL7q\n", "\n", end)
		want := strings.NewReplacer("Sommer2026!", "[REDACTED:password-field]", "Xk9#mP2!vL7q", "[REDACTED:generic-secret]").Replace(in)
		if got, _, err := s.Text(context.Background(), in); err != nil || got != want {
			t.Errorf("%q becomes %q, %v, want %q", in, got, err, want)
		}
	}
}

// TestDeepJSONInText: a text of brackets takes little memory.
func TestDeepJSONInText(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, open := range []string{"[", `["a",`, `{"password":`, `{"a":[`} {
		text := strings.Repeat(open, 1<<20/len(open)) + " password: hunter22"
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := s.Text(context.Background(), text); err != nil {
			t.Errorf("%s: %v", open, err)
		}
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
			t.Errorf("a text of 1 MB of %s takes %d MB", open, n>>20)
		}
	}
}
