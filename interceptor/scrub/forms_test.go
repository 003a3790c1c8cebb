package scrub

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// forms are ways to write a name and its value.
var forms = map[string][]string{
	"plain":           {"NAME=VALUE\n", "NAME: VALUE\n", "NAME = \"VALUE\"\n", "\"NAME\": \"VALUE\"", "'NAME' => 'VALUE'", "x := \"NAME=VALUE\""},
	"sign behind":     {"NAME: VALUE, x", "a: b, NAME: VALUE, c: d", "[NAME:VALUE]", "[NAME: VALUE]", "(NAME=VALUE)", "(NAME: VALUE)", "{NAME: VALUE}", "{NAME=VALUE, a=b}", "a=b,NAME=VALUE,c=d", "NAME=VALUE&a=b", "NAME=VALUE|x", "NAME=VALUE)", "<NAME=VALUE>", "map[NAME:VALUE a:b]", "&{NAME:VALUE a:b}", "NAME=VALUE. Then", "x NAME:VALUE. Then", "NAME => VALUE, x", "NAME=<VALUE>", "NAME: [VALUE]", "NAME={VALUE}", "NAME=(VALUE)", "NAME==VALUE", "--NAME=VALUE,x"},
	"Markdown":        {"**NAME:** VALUE\n", "**NAME**: VALUE\n", "- **NAME:** `VALUE`\n", "`NAME`: `VALUE`\n", "`NAME` = `VALUE`", "* `NAME` - `VALUE`\n", "*NAME*: *VALUE*\n", "**NAME** `VALUE`\n", "__NAME:__ VALUE\n", "NAME: **VALUE**\n", "NAME: <VALUE>\n", "`NAME=VALUE`"},
	"brackets":        {`["NAME"] = "VALUE"`, `os.environ["NAME"] = "VALUE"`, `$_ENV['NAME'] = 'VALUE';`, `x[NAME] = VALUE`, `{{NAME}}: VALUE`, `config.set("NAME", "VALUE")`, `setenv("NAME", "VALUE", 1)`, `os.Setenv("NAME", "VALUE")`, `define('NAME', 'VALUE');`, `("NAME", "VALUE"),`, `(NAME) VALUE`, `%NAME%=VALUE`},
	"arrow":           {"NAME -> VALUE\n", "NAME->VALUE", "NAME => VALUE\n", "NAME <- \"VALUE\"", "NAME ==> VALUE\n", "NAME \u2192 VALUE\n", "NAME ?= VALUE\n", "NAME ::= VALUE\n", "NAME || 'VALUE'"},
	"blanks":          {"NAME:            VALUE\n", "NAME            = VALUE\n", "NAME:\t\tVALUE\n", "NAME :\tVALUE\n", "NAME:\u00a0VALUE\n", "NAME\u00a0=\u00a0VALUE\n", "NAME=\u00a0\"VALUE\"\n", "NAME ......... VALUE\n", "NAME: ........ VALUE\n"},
	"type":            {"NAME: string = 'VALUE'", "NAME: str = \"VALUE\"\n", "const NAME string = \"VALUE\"", "NAME string = \"VALUE\"", "let NAME: Option<&str> = Some(\"VALUE\");", "char NAME[] = \"VALUE\";", "static const char *NAME = \"VALUE\";", "NAME: Final[str] = \"VALUE\"", "NAME: &str = \"VALUE\";", "NAME (string): VALUE\n", "NAME: (string) VALUE\n", "NAME: !!str VALUE\n", "NAME = String(\"VALUE\")", "NAME = []byte(\"VALUE\")", "NAME = new Secret(\"VALUE\")", "NAME = b'VALUE'", "NAME = f\"VALUE\"", "NAME: SecretStr('VALUE')", "DECLARE NAME TEXT := 'VALUE';"},
	"one blank":       {"ENV NAME VALUE\n", "ARG NAME VALUE\n", "--NAME VALUE", "x --NAME VALUE -v\n", "-NAME VALUE", "--NAME 'VALUE'", "#define NAME \"VALUE\"\n", "#define NAME VALUE\n", "export NAME VALUE\n", "set NAME VALUE\n", "setx NAME VALUE\n", "setx NAME \"VALUE\"\n", "NAME \"VALUE\"\n", "  NAME \"VALUE\";\n", "set -gx NAME VALUE\n", "git config NAME VALUE\n", "proxy_set_header NAME VALUE;\n", "NAME 'VALUE'"},
	"SQL":             {"INSERT INTO settings (name, value) VALUES ('NAME', 'VALUE');", "INSERT INTO s VALUES (1, 'NAME', 'VALUE', 2);", "INSERT INTO users (id, NAME) VALUES (1, 'VALUE');", "INSERT INTO `users` (`id`, `NAME`, `x`) VALUES (1,'x1','a'),(2,'VALUE','b');", "CREATE USER x IDENTIFIED BY 'VALUE';", "ALTER USER x WITH PASSWORD 'VALUE';", "SET PASSWORD FOR 'x' = 'VALUE';", "SET PASSWORD FOR x = PASSWORD('VALUE');", "COPY users (id, NAME) FROM stdin;\n1\tVALUE\n\\.\n", "UPDATE t SET NAME = 'VALUE' WHERE id=1", "UPDATE s SET value = 'VALUE' WHERE name = 'NAME'", "CREATE ROLE x LOGIN PASSWORD 'VALUE';", "REPLACE INTO c VALUES ('NAME','VALUE');"},
	"shell default":   {"${NAME:-VALUE}", "${NAME:=VALUE}", ": \"${NAME:=VALUE}\"", "x: ${NAME:-VALUE}\n", "${NAME:VALUE}", "{{ NAME | default('VALUE') }}", "getenv('NAME', 'VALUE')", "os.environ.get(\"NAME\", \"VALUE\")", "process.env.NAME || \"VALUE\"", "process.env.NAME ?? 'VALUE'"},
	"box table":       {"┌────┬──────┐\n│ id │ NAME │\n├────┼──────┤\n│ 1  │ VALUE │\n└────┴──────┘\n", "│ NAME │ VALUE │\n", "┃ id ┃ NAME ┃\n┡━━━━╇━━━━━━┩\n│ 1  │ VALUE │\n", "╔════╦══════╗\n║ id ║ NAME ║\n╠════╬══════╣\n║ 1  ║ VALUE ║\n", "+----+------+\n| id | NAME |\n+----+------+\n|  1 | VALUE |\n+----+------+\n"},
	"HTML":            {"<table><tr><th>id</th><th>NAME</th></tr><tr><td>1</td><td>VALUE</td></tr></table>", "<thead>\n<tr>\n  <th>id</th>\n  <th>NAME</th>\n</tr>\n</thead>\n<tbody>\n<tr>\n  <td>1</td>\n  <td class=\"x\">VALUE</td>\n</tr>\n</tbody>", "<span>NAME</span><span>VALUE</span>", "<label>NAME:</label> <code>VALUE</code>", "<div>NAME</div>\n<div>VALUE</div>", "<b>NAME:</b> VALUE<br>", "<p>NAME: <b>VALUE</b></p>", "<li><strong>NAME</strong>: VALUE</li>", "<dt>NAME</dt><dd>VALUE</dd>", "<input name=\"NAME\" type=\"hidden\" value=\"VALUE\">", "<code>NAME</code> = <code>VALUE</code>", "<th><code>NAME</code></th><td><code>VALUE</code></td>", "<meta name=\"NAME\" content=\"VALUE\">", "<string name=\"NAME\">VALUE</string>"},
	"plist, DynamoDB": {"<key>NAME</key>\n\t<string>VALUE</string>", "<key>NAME</key><string>VALUE</string>", `{"NAME": {"S": "VALUE"}}`, `{"NAME":{"S":"VALUE"}}`, `{"NAME":{"stringValue":"VALUE"}}`, `{"NAME":{"type":"string","data":"VALUE"}}`, `{"NAME":{"value":{"S":"VALUE"}}}`, "<NAME><![CDATA[VALUE]]></NAME>", "<entry key=\"NAME\">VALUE</entry>", "<NAME type=\"string\">VALUE</NAME>"},
	"lines":           {"NAME:\n  VALUE\n", "- name: NAME\n  value: VALUE\n", "name: NAME\nvalue: VALUE\n", "NAME: |\n  VALUE\n", "NAME:\n- VALUE\n", "id,NAME\n1,VALUE\n", "NAME,id\nVALUE,1\n", "id\tNAME\n1\tVALUE\n", "| id | NAME |\n|---|---|\n| 1 | VALUE |\n", "| NAME | VALUE |\n", "NAME|VALUE\n", " id | NAME \n----+------\n  1 | VALUE\n", "NAME   VALUE\n", "NAME=VALUE\n", "NAME: VALUE\n", "{\n  \"name\": \"NAME\",\n  \"value\": \"VALUE\"\n}\n", "<name>NAME</name>\n<value>VALUE</value>\n", "NAME: >-\n  VALUE\nx: y\n"},
}

// readable is the share of values, in percent, that may stay readable in a form.
var readable = map[string]float64{"plain": 4, "sign behind": 5.5, "Markdown": 9.5, "brackets": 14, "arrow": 15, "blanks": 4, "shell default": 4, "type": 42, "box table": 1, "one blank": 25}

// prefixes stand before each line of the form "lines".
var prefixes = map[string]func(line int) string{
	"diff":           func(int) string { return "+" },
	"old side":       func(int) string { return "-" },
	"quote":          func(int) string { return "> " },
	"grep -n":        func(n int) string { return fmt.Sprintf("conf/app.env:%d:", n+9) },
	"grep -n1":       func(n int) string { return fmt.Sprintf("%d:", n+9) },
	"grep -C":        func(n int) string { return fmt.Sprintf("a-1.yml-%d-", n+9) },
	"cat -n":         func(n int) string { return fmt.Sprintf("%6d\t", n+9) },
	"numbers":        func(n int) string { return fmt.Sprintf("%3d | ", n+9) },
	"log":            func(n int) string { return fmt.Sprintf("2026-01-02T03:04:%02d.%03dZ ", n, 7*n) },
	"log with level": func(n int) string { return fmt.Sprintf("2026-01-02 03:04:%02d INFO  ", n) },
	"log in []":      func(n int) string { return fmt.Sprintf("[2026-01-02 03:04:%02d] ", n) },
	"compose":        func(int) string { return "web-1  | " },
}

// TestForms: a value is found in whatever form it stands with its name, in whatever contains that.
func TestForms(t *testing.T) {
	s := newScrubber(t, Options{})
	ctx := context.Background()
	plain := func(in string) string { got, _, _ := s.Text(ctx, in); return got }
	containers := map[string]func(in string) string{
		"text":               plain,
		"text between lines": func(in string) string { return plain("one\n\n" + in + "\n\nThe end.\n") },
		"result":             func(in string) string { got, _, _ := s.JSON(ctx, []byte(result(in))); return string(got) },
		"string in text":     func(in string) string { return plain(`{"log":` + string(rawjson.Quote(in)) + `}`) },
		"JSON": func(in string) string {
			if in[0] != '{' || !json.Valid([]byte(in)) {
				return ""
			}
			got, _, _ := s.JSON(ctx, []byte(in))
			return string(got)
		},
	}
	names := []string{"DB_PASSWORD", "api_key", "authToken", "client-secret", "AWS_SECRET_ACCESS_KEY", "X-Api-Key", "token", "password", "db.password", "SMTP_PWD", "KEY_PASSPHRASE"}
	values := func(seed uint64) []string {
		return []string{token(seed, "", 22) + "7x", token(seed, "q7", 14), fmt.Sprintf("%x", sha256.Sum256([]byte(fmt.Sprint(seed))))[:40], token(seed, "9k", 10) + "_-" + token(seed+1, "", 28), token(seed, "Z9", 18) + "/+" + token(seed+1, "", 21) + "="}
	}
	type score struct{ texts, left int }
	scores := map[string]*score{}
	try := func(kind, form string, seed *uint64) {
		sc := scores[kind]
		if sc == nil {
			sc = &score{}
			scores[kind] = sc
		}
		shown := false
		for _, name := range names {
			*seed++
			for _, value := range values(*seed) {
				if strings.Contains(plain(fmt.Sprintf("\"%s\": \"%s\"", name, value)), value) {
					continue // no form reveals it
				}
				in := strings.NewReplacer("NAME", name, "VALUE", value).Replace(form)
				for _, c := range slices.Sorted(maps.Keys(containers)) {
					got := containers[c](in)
					if got == "" {
						continue
					}
					sc.texts++
					if strings.Contains(got, value[:8]) || strings.Contains(got, value[len(value)-8:]) {
						if sc.left++; !shown {
							t.Logf("%s, %s: %q", kind, c, got)
						}
						shown = true
					}
				}
			}
		}
	}
	seed := uint64(4000)
	for _, kind := range slices.Sorted(maps.Keys(forms)) {
		for _, form := range forms[kind] {
			try(kind, form, &seed)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(prefixes)) {
		for _, form := range forms["lines"] {
			var b strings.Builder
			for n, line := range strings.SplitAfter(strings.TrimSuffix(form, "\n"), "\n") {
				b.WriteString(prefixes[kind](n) + line)
			}
			try("lines after "+kind, b.String()+"\n", &seed)
		}
	}
	var b strings.Builder
	all := &score{}
	for _, kind := range slices.Sorted(maps.Keys(scores)) {
		sc := scores[kind]
		all.texts, all.left = all.texts+sc.texts, all.left+sc.left
		share := 100 * float64(sc.left) / float64(sc.texts)
		fmt.Fprintf(&b, "| %s | %d | %.1f %% |\n", kind, sc.texts, share)
		most, ok := readable[kind]
		if strings.HasPrefix(kind, "lines after") {
			most, ok = 38, true
		}
		if ok && share > most {
			t.Errorf("%s: %.1f %% of the values stay readable, want at most %.1f %%", kind, share, most)
		}
	}
	fmt.Fprintf(&b, "| all | %d | %.1f %% |\n", all.texts, 100*float64(all.left)/float64(all.texts))
	t.Logf("\n| form | texts | readable |\n|---|---:|---:|\n%s", &b)
}

// TestNamesBesideNamesStay: beside the name of a secret, the name of a type, a path or a package is no secret,
// whatever the form of the pair.
func TestNamesBesideNamesStay(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, name := range []string{"access_token", "accessToken", "client_secret", "refreshToken", "Token"} {
		for _, value := range []string{"google.protobuf.StringValue", "Microsoft.CodeAnalysis.SyntaxToken", "github.com/example/project/token", "projects/demo/secrets/client/versions/latest"} {
			for _, form := range []string{
				"| `NAME` | `VALUE` |\n", "<NAME>VALUE</NAME>\n", "NAME:\n  - VALUE\n", "- name: NAME\n  value: VALUE\n",
				"<tr><td>NAME</td><td>VALUE</td></tr>\n", "<dt>NAME</dt><dd>VALUE</dd>\n", `{Name: "NAME", Value: VALUE}` + "\n",
			} {
				text := strings.NewReplacer("NAME", name, "VALUE", value).Replace(form)
				for range 2 { // alone, and behind itself
					if clean, _, err := s.Text(context.Background(), text); err != nil || clean != text {
						t.Errorf("%q becomes %q, %v", text, clean, err)
					}
					text += text
				}
			}
		}
	}
}
