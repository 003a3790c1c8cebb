package scrub

import (
	"context"
	"regexp"
	"strings"
	"testing"
)

var redacted = regexp.MustCompile(`\[REDACTED:([\w-]+)\]`)

// TestValuesEndAtSigns: a value ends at the first sign or blank of any script. What follows stays, or is redacted
// as what it is.
func TestValuesEndAtSigns(t *testing.T) {
	s := newScrubber(t, Options{})
	value, other := token(700, "", 22)+"7x", github(701)
	for _, form := range []string{
		"DB_PASSWORD=VALUE", "DB_PASSWORD: VALUE", "password: VALUE", "PGPASSWORD=VALUE", "api_key -> VALUE", "\u300cDB_PASSWORD=VALUE", "a `token` = VALUE",
		"--client-secret VALUE", "ENV DB_PASSWORD VALUE", "machine example.com login bot password VALUE", "sshpass -p VALUE", "jdbc:mysql://db/app?user=x&password=VALUE",
		"https://api.example.com/v1?access_token=VALUE", "DB_PASSWORD:\n- VALUE", "name: DB_PASSWORD\nvalue: VALUE", "DB_PASSWORD:\u00a0VALUE", "DB_PASSWORD: \u201cVALUE", "token=\u300cVALUE",
	} {
		for _, sign := range []string{"\uff0c", "\uff0c ", "\u2502", "\u00a0", "\u3002", "\u300d", "\u201d", "\u201d ", "\u2026", " \u2014 ", "\u2014", "\u3000", "\u2192", "\u2705", "\u00bb", "\uff09", "\uff1b", "\u00b7", "\u2028"} {
			for _, next := range []string{"next9word and more\n", other + " and more\n", "next9word\u3001 B_PASSWORD=" + token(702, "", 20) + "8\n"} {
				in := strings.Replace(form, "VALUE", value+sign+next, 1)
				got, _, err := s.Text(context.Background(), in)
				want := in
				for _, secret := range []string{value, other, token(702, "", 20) + "8"} {
					want = strings.ReplaceAll(want, secret, "*")
				}
				if shown := redacted.ReplaceAllString(got, "*"); err != nil || shown != want {
					t.Errorf("Text(%q) = %q, %v", in, got, err)
				}
				if strings.Contains(next, other) && !strings.Contains(got, "[REDACTED:github-pat]") {
					t.Errorf("Text(%q) = %q, want the rule of the token", in, got)
				}
			}
		}
	}
	for _, form := range []string{"id,password\n1,VALUE\n", "| id | password |\n|---|---|\n| 1 | VALUE |\n", "ID  PASSWORD\n1   VALUE  \n", " id | password \n----+------\n  1 | VALUE\n", "password|id\nVALUE|1\n", "B_KEY\tVALUE\n"} {
		for _, sign := range []string{"\uff0c", "\u00a0", "\u201d", "\u2014", "\u3000", "\u2705", "\uff08"} {
			in := strings.Replace(form, "VALUE", value+sign+"next9word", 1)
			got, _, err := s.Text(context.Background(), in)
			if want := strings.Replace(in, value, "*", 1); err != nil || redacted.ReplaceAllString(got, "*") != want {
				t.Errorf("Text(%q) = %q, %v", in, got, err)
			}
		}
	}
	for _, in := range []string{
		`{"password": "abc—d3fgh、xyz"}`, `DB_PASSWORD="abc—d3fgh、xyz9"`, "postgres://app:abc—d3fgh@db/app", "DB_PASSWORD=Grüße€2026§x ", "password: äöü7Kf3xTv9éLmP \n", "<password>abc—d3fgh9x</password>",
	} {
		got, _, err := s.Text(context.Background(), in)
		if err != nil || strings.Contains(got, "xyz") || strings.Contains(got, "d3fgh") || strings.Contains(got, "2026") || strings.Contains(got, "LmP") {
			t.Errorf("Text(%q) = %q, %v, want all of the value redacted", in, got, err)
		}
	}
}

// TestPaddingEndsAValue: the sign = at the end of one string gives no name to the first word of the next one.
func TestPaddingEndsAValue(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, pad := range []string{"=", "=="} {
		for n, name := range []string{"DB_PASSWORD ", "api_key  ", "token: ", "client-secret=", "X-Api-Key\t", "some text that is longer than sixty columns and the key: "} {
			for length := 14; length < 24; length++ {
				value := token(uint64(900+n), "q7", length) + pad
				for _, next := range []string{"x9k2m4q8r1t5 is up", "i-0abc12de34f5", "server-eu-west-12 is up", "node12 is up"} {
					for _, doc := range []string{`["NAMEVALUE","NEXT","b"]`, `{"content":[{"type":"text","text":"NAMEVALUE"},{"type":"text","text":"NEXT"}]}`, `{"lines":[{"n":1,"s":"NAMEVALUE"},{"n":2,"s":"NEXT"}]}`} {
						in := strings.NewReplacer("NAME", strings.ReplaceAll(name, "\t", `\t`), "VALUE", value, "NEXT", next).Replace(doc)
						got, _, err := s.JSON(context.Background(), []byte(in))
						if err != nil || !strings.Contains(string(got), next) {
							t.Errorf("JSON(%s) = %s, %v, want %q", in, got, err, next)
						}
					}
				}
			}
		}
	}
	for _, in := range []string{`["DB_PASSWORD=","x9k2m4q8r1t5v7w3 y"]`, `{"content":[{"type":"text","text":"API_KEY2="},{"type":"text","text":"x9k2m4q8r1t5v7w3 y"}]}`} {
		if got, _, err := s.JSON(context.Background(), []byte(in)); err != nil || strings.Contains(string(got), "x9k2") {
			t.Errorf("JSON(%s) = %s, %v, want the value redacted", in, got, err)
		}
	}
}

// TestSignsInValues: a random value goes on behind a =, : or ? in it, and ends there if something else follows.
func TestSignsInValues(t *testing.T) {
	s := newScrubber(t, Options{})
	found, texts := 0, 0
	for n := range uint64(40) {
		for _, sign := range []string{"=", ":", "?", "==", "?:"} {
			for _, form := range []string{"[API_KEY: VALUE]", "(api_key: VALUE)", "{token: VALUE, x: y}", "a: b, client-secret: VALUE, c: d", "X-Api-Key -> VALUE\n", "map[token:VALUE a:b]", "`api_key=VALUE`", "NAME_KEY=VALUE|x"} {
				value := "q7" + token(n, "", 14+int(n)%6) + sign + token(n+500, "", 10+int(n)%7)
				in := strings.Replace(form, "VALUE", value, 1)
				got, _, err := s.Text(context.Background(), in)
				if err != nil {
					t.Fatal(err)
				}
				if texts++; !strings.Contains(got, value[len(value)-8:]) {
					found++
				}
			}
		}
	}
	if t.Logf("%d of %d values are found to their ends", found, texts); found < texts*85/100 {
		t.Errorf("%d of %d values are found to their ends", found, texts)
	}
	for _, in := range []string{
		"[api_key:VALUE:8080]", "[token: VALUE?page=12]", "{token: VALUE:host9, x: y}", "(api_key=VALUE:12:30:45)", "[token:VALUE:b_token:" + token(5, "", 20) + "9]", "(token: VALUE:10.0.0.1)",
	} {
		in = strings.Replace(in, "VALUE", token(3, "", 20)+"7x", 1)
		got, _, err := s.Text(context.Background(), in)
		want := strings.NewReplacer(token(3, "", 20)+"7x", "*", token(5, "", 20)+"9", "*").Replace(in)
		if shown := redacted.ReplaceAllString(got, "*"); err != nil || shown != want {
			t.Errorf("Text(%q) = %q, %v", in, got, err)
		}
	}
}
