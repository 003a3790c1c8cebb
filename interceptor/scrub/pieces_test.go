package scrub

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// TestPrivateKeyInPieces: a private key in several strings is found in each layout that servers
// give text files, and only its lines change.
func TestPrivateKeyInPieces(t *testing.T) {
	s := newScrubber(t, Options{})
	type object = map[string]any
	lines := func(text string) (out []string) { return strings.Split(text, "\n") }
	list := func(text string, member func(n int, line string) any) (out []any) {
		for n, l := range lines(text) {
			out = append(out, member(n, l))
		}
		return out
	}
	containers := map[string]func(text string) any{
		"lines":     func(text string) any { return object{"structuredContent": object{"lines": lines(text)}} },
		"top array": func(text string) any { return lines(text) },
		"numbered": func(text string) any {
			return list(text, func(n int, l string) any { return object{"n": n, "text": l} })
		},
		"with labels": func(text string) any {
			return list(text, func(n int, l string) any { return object{"n": fmt.Sprint(n), "line": l} })
		},
		"nested": func(text string) any {
			return object{"page": list(text, func(n int, l string) any { return object{"kind": "x", "line": object{"text": l}} })}
		},
		"rows":       func(text string) any { return list(text, func(n int, l string) any { return []any{n, l} }) },
		"row arrays": func(text string) any { return list(text, func(n int, l string) any { return []string{l} }) },
		"text blocks": func(text string) any {
			return object{"content": list(text, func(n int, l string) any { return object{"type": "text", "text": l} })}
		},
		"resources": func(text string) any {
			return object{"content": list(text, func(n int, l string) any {
				return object{"type": "resource", "resource": object{"uri": "file:///keep", "text": l}}
			})}
		},
		"contents": func(text string) any {
			return object{"contents": list(text, func(n int, l string) any { return object{"uri": "file:///keep", "text": l} })}
		},
		"two fields": func(text string) any {
			half := len(text) / 2
			return object{"a": "keep", "head": text[:half], "tail": text[half:]}
		},
		"two strings": func(text string) any { return []string{"keep", text[:len(text)/2], text[len(text)/2:]} },
		"between long": func(text string) any {
			return []string{strings.Repeat("keep ", 20000), text[:90], text[90:], strings.Repeat("keep ", 20000)}
		},
		"end of a long": func(text string) any {
			return []string{strings.Repeat("keep ", 20000) + text[:90], text[90:] + strings.Repeat(" keep", 20000)}
		},
		"pieces of lines": func(text string) any { return []string{text[:20], text[20:100], text[100:]} },
	}
	docs, left := 0, 0
	defer func() { t.Logf("%d of %d documents have no line of their private key left", docs-left, docs) }()
	for i, kind := range []string{"RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "OPENSSH PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "PGP PRIVATE KEY BLOCK"} {
		for name, contain := range containers {
			var key []string
			for n := range 3 + 4*i {
				key = append(key, token(uint64(100*i+n), "", 64))
			}
			text := "-----BEGIN " + kind + "-----\n" + strings.Join(key, "\n") + "\n-----END " + kind + "-----"
			in, err := json.Marshal(contain(text))
			if err != nil {
				t.Fatal(err)
			}
			docs++
			got, found, err := s.JSON(context.Background(), in)
			if err != nil || len(found) == 0 || !json.Valid(got) {
				left++
				t.Errorf("%s in %s: JSON = %.300s, %v, %v", kind, name, got, found, err)
				continue
			}
			for _, l := range key {
				if strings.Contains(string(got), l[:16]) || strings.Contains(string(got), l[48:]) {
					left++
					t.Errorf("%s in %s: JSON(%.100s) = %.600s: a line is left", kind, name, in, got)
					break
				}
			}
			for _, kept := range []string{"keep", `"type":"text"`, `"type":"resource"`, "file:///keep", `"kind":"x"`} {
				if strings.Count(string(in), kept) != strings.Count(string(got), kept) {
					t.Errorf("%s in %s: JSON(%.100s) = %.600s: %q is gone", kind, name, in, got, kept)
				}
			}
		}
	}
}

// TestNamesAndValues: a value is found whose name stands elsewhere.
func TestNamesAndValues(t *testing.T) {
	s := newScrubber(t, Options{})
	forms := map[string]string{
		"members":           `{"name":"NAME","value":"VALUE"}`,
		"spaced":            `{ "name" : "NAME", "value" : "VALUE" }`,
		"lines":             "{\n  \"name\": \"NAME\",\n  \"value\": \"VALUE\"\n}",
		"with a type":       `{"name":"NAME","type":"PLAINTEXT","value":"VALUE"}`,
		"key":               `[{"key":"NAME","value":"VALUE"}]`,
		"parameters":        `{"ParameterKey":"NAME","ParameterValue":"VALUE"}`,
		"capitals":          `{"Name":"NAME","Value":"VALUE"}`,
		"escaped":           `{\"name\":\"NAME\",\"value\":\"VALUE\"}`,
		"nested":            `{"NAME":{"value":"VALUE"}}`,
		"nested lines":      "{\n  \"NAME\": {\n    \"value\": \"VALUE\"\n  }\n}",
		"list":              `{"NAME":["VALUE"]}`,
		"YAML":              "env:\n- name: NAME\n  value: VALUE\n- name: X\n  value: y\n",
		"YAML quoted":       "env:\n  - name: \"NAME\"\n    value: 'VALUE'\n",
		"YAML nested":       "NAME:\n  value: VALUE\n",
		"YAML list":         "NAME:\n  - VALUE\n",
		"HCL":               "{ name = \"NAME\", value = \"VALUE\" }",
		"XML":               "<property>\n  <name>NAME</name>\n  <value>VALUE</value>\n</property>",
		"XML element":       "<NAME>VALUE</NAME>",
		"YAML block":        "NAME: |\n  VALUE\n",
		"YAML folded":       "NAME: >-\n    VALUE\nx: y\n",
		"XML attributes":    `<add key="NAME" value="VALUE"/>`,
		"CSV":               "id,NAME,owner\n1,x,ann\n2,VALUE,bob\n3,y,eve\n",
		"CSV quoted":        "\"id\",\"NAME\"\r\n\"a, b\",\"VALUE\"\r\n",
		"TSV":               "id\tNAME\n1\tVALUE\n",
		"semicolons":        "id;NAME\n1;VALUE\n",
		"a name of digits":  "name,NAME,24h_requests,2025\nci-bot,VALUE,120,3\n",
		"a name of GHz":     "ssid;NAME;2.4GHz\nhome;VALUE;yes\n",
		"names that recur":  "user,NAME,active\nu0,a1,active\nu1,b2,active\nuser,VALUE,active\nuser,d4,active\nuser,e5,active\n",
		"files together":    strings.Repeat("user,NAME\nu1,VALUE\n", 6),
		"Markdown":          "| id | NAME |\n|---|:--|\n| 1 | x |\n| 2 | `VALUE` |\n",
		"Markdown row":      "| variable | value |\n|---|---|\n| NAME | VALUE |\n",
		"columns and rows":  `{"columns":["id","NAME"],"rows":[["1","x"],["2","VALUE"]]}`,
		"rows and columns":  `{"data":{"a":[["x",1],["VALUE",2]],"header":["NAME","n"]}}`,
		"columns' objects":  `{"fields":[{"name":"id","type":"int"},{"name":"NAME","type":"text"}],"rows":[[1,"VALUE"],[2,null]]}`,
		"header row":        `{"values":[["id","NAME"],[1,"x"],[2,"VALUE"]]}`,
		"header row on top": "[\n  [\"NAME\", \"id\"],\n  [\"VALUE\", \"1\"]\n]",
		"rows of fields":    `{"schema":["id","NAME"],"rows":[{"f":[{"v":"1"},{"v":"VALUE"}]}]}`,
		"several tables":    `[{"columns":["id","n"],"rows":[["1","x"]]},{"columns":["NAME"],"rows":[["VALUE"],["y"]]}]`,
		"psql password":     " id | NAME \n----+------\n  1 | VALUE\n(1 row)\n",
		"psql row":          "   name    |     value      \n-----------+----------------\n NAME | VALUE\n(1 row)\n",
		"label":             `{"label":"NAME","text":"VALUE"}`,
		"property":          `{"property":"NAME","val":"VALUE"}`,
		"value first":       `{"value":"VALUE","name":"NAME"}`,
		"value, type, name": `{"value":"VALUE","type":"PLAINTEXT","key":"NAME"}`,
		"OpenTelemetry":     `{"attributes":[{"key":"NAME","value":{"stringValue":"VALUE"}}]}`,
		"OTel, value first": `{"value":{"stringValue":"VALUE"},"key":"NAME"}`,
		"environ":           "HOME=/root\x00NAME=VALUE\x00LANG=C\x00",
		"command line":      "app\x00--NAME\x00VALUE\x00",
		"sentence":          "The new NAME is VALUE, as of today.\n",
		"sentence, past":    "`NAME` was set to `VALUE`.\n",
		"escaped, value":    `{\"Value\":\"VALUE\",\"Key\":\"NAME\"}`,
		"value lines":       "{\n  \"value\": \"VALUE\",\n  \"name\": \"NAME\"\n}",
		"YAML value first":  "env:\n- value: VALUE\n  name: NAME\n",
		"XML value first":   `<add value="VALUE" key="NAME"/>`,
		"HTML":              "<tr><th>NAME:</th>\n  <td class=\"v\">VALUE</td></tr>",
		"sqlite":            "1|DB|x\nNAME|VALUE\n",
		"sqlite, id":        "7|NAME|VALUE|2026-01-02\n",
		"sqlite, last":      "NAME|VALUE",
		"TSV row":           "NAME\tVALUE\n",
		"TSV row of three":  "3\tNAME\tVALUE\tprod\n",
		"aligned row":       "HOST         db1\nNAME  VALUE\n",
		"aligned of three":  "  3  NAME   VALUE   prod\n",
		"columns":           "id   NAME\n---  -----------------\nx1   abc\nx2   VALUE\n",
		"columns, ruled":    "id  NAME            \n--  -----------------\n1   VALUE\r\n",
		"columns, first":    "NAME                          TTL    USAGES\n----  ---  ---\nVALUE   23h    signing\n",
		"kubectl":           "UID   UPPER   AGE\nx1    VALUE   3d\n",
		"YAML in two lines": "NAME: >-\n  VALUE1\n  VALUE2\nx: y\n",
		"psql":              " id | NAME\n----+------\n 1  | VALUE\n",
		"after a member":    `{"kind":"Secret","env":[{"name":"NAME","value":"VALUE"}]}` + "\n" + `{"kind":"Pod","env":[]}` + "\n",
		"after a word":      "rotated key, then (new): {\"name\": \"NAME\", \"value\": \"VALUE\"}\nINFO done, bye\n",
		"below a word":      "The key, (see below):\npassword: [\"VALUE\", \"x\"]\n",
		"element, word":     "set key; <NAME>VALUE</NAME>\nok, done\n",
		"cells after a key": "| key | what (see docs) | NAME | VALUE |\n| a |\n",
		"titles above":      strings.Repeat("API keys,2026,\n", 3) + ",id,NAME\n,1,VALUE\n",
		"open cells":        "Price ($),NAME,,\n3,VALUE,,\n",
		"indented cells":    " size (kB),NAME\n 1,VALUE\n",
		"cells recur":       "#,NAME,active\n" + strings.Repeat("1,x1,no\n", 40) + strings.Repeat("2,y2,active\n", 5) + "3,VALUE,active\n",
		"row below a word":  "It takes an api_key\nNAME  VALUE\n",
		"two names, pipes":  "1|my_api_key|NAME|VALUE\n",
		"two names, tabs":   "my_api_key\tNAME\tVALUE\n",
		"two names, blanks": "my_api_key   NAME   VALUE\n",
		"two names, cells":  "| `api_key` | `NAME` | `VALUE` |\n",
		"two names, plain":  "| api_key | NAME | VALUE |\n",
		"two names, HTML":   "<tr><td>api_key</td><td>NAME</td><td>VALUE</td></tr>",
		"three names":       "token9|my_api_key|NAME|VALUE\n",
		"header in a row":   "key,6,\n1,,\n\"token\",,;NAME;\n;VALUE;\n",
		"row below columns": "NAME   secret_key\nNAME   VALUE\n",
	}
	texts, left := 0, 0
	defer func() { t.Logf("%d of %d values are found", texts-left, texts) }()
	for n, name := range []string{"DB_PASSWORD", "STRIPE_SECRET", "API_KEY", "authToken", "db.password", "Secret_access_key"} {
		value := token(uint64(700+n), "", 22) + "7x"
		for form, text := range forms {
			in := strings.NewReplacer("NAME", name, "UPPER", strings.ToUpper(name), "VALUE", value).Replace(text)
			got, found, err := s.Text(context.Background(), in)
			texts++
			if err != nil || len(found) == 0 || strings.Contains(got, value) {
				left++
				t.Errorf("%s: Text(%q) = %q, %v, %v", form, in, got, found, err)
			}
			quoted, _ := json.Marshal(map[string]any{"content": []any{map[string]string{"type": "text", "text": in}}})
			clean, _, err := s.JSON(context.Background(), quoted)
			if err != nil || strings.Contains(string(clean), value) {
				t.Errorf("%s: JSON(%s) = %s, %v", form, quoted, clean, err)
			}
			if !json.Valid([]byte(in)) {
				continue
			}
			clean, _, err = s.JSON(context.Background(), []byte(in))
			if want := strings.ReplaceAll(in, value, "[REDACTED:"); err != nil || strings.Contains(string(clean), value) || !strings.Contains(string(clean), name) {
				t.Errorf("%s: JSON(%s) = %s, %v, want %s", form, in, clean, err, want)
			}
		}
	}
	// AWS's file of credentials.
	secret := token(720, "aZ9/", 36)
	in := "User name,Password,Access key ID,Secret access key,Console login link\r\nbob,,AK" + "IAQYLPMN5HHHFPZAM2," + secret + ",https://x.signin.aws.amazon.com/console\r\n"
	if got, _, err := s.Text(context.Background(), in); err != nil || strings.Contains(got, secret) || !strings.Contains(got, "bob,,[REDACTED:") {
		t.Errorf("Text(%q) = %q, %v", in, got, err)
	}
	// What is no secret stays beside the name of one.
	for _, in := range []string{
		"| name | type | description |\n|---|---|---|\n| api_key | string | The key |\n| token | string | The token of the user |\n",
		"- name: DB_PASSWORD\n  valueFrom:\n    secretKeyRef:\n      name: db-credentials\n      key: password\n",
		`{"name":"token","value":"<token>"}`, `{"name":"password","value":"${DB_PASSWORD}"}`,
		"if token, ok := m[key]; ok {\n\treturn f(token, x509v3, true)\n}\n",
		"a(password|secret12345x|token9)\n", "grep -E password|secret4567k9x|q file\n", "api_key    string\ntoken      sha256\nsecret     projects/p1/secrets/db-1\n",
		"apt\tpasswd\t1:4.13+dfsg1-1+deb12u1\n", "passwd  1:4.13+dfsg1-1+deb12u1\nlibauth-x9  2.13.4~rc7\n  --no-role-passwords   x\n  --rows-per-insert=N4k9z7   y\n",
		"passwd,1:4.13+dfsg1-1,amd64\nlibauth-x9h7Gk29s,2.13.4,amd64\n", "passwd,x,/usr/bin/passwd\nlibauth-x9h7Gk29s,x,/usr/bin/y\n", "base-passwd\t3.6.1\nlibauth-x9h7Gk29s\t2.13.4\n",
		"base-passwd;amd64\n" + strings.Repeat("libauth-x9h7Gk29s;amd64\ng++-12h7Gk29s-x;all\n", 9),
		"passwd|root|4755\nlibauth-x9h7Gk29s|root|755\n", strings.Repeat("libauth-x9h7Gk29s,root\n", 2) + "passwd,root\n" + strings.Repeat("libauth-x9h7Gk29s,root\n", 4),
		"dell101_key   Dell 101-key\nkb9_key  KB-21e-Scroll x\n  --user_password  use4this9z7 one\n",
		"Option   Key         Default\n-k       ssh_key12   none\n", "It takes a token  and more.\nAnd  a key12345678x9 as well.\n",
		"NAME              TYPE            DATA\nregistry-secret   Opaque          2\ndb-token-x7k2p9   kubernetes.io   3\n",
		"emacs-keys\ttips.txt\t/*emacs-keys*\n" + strings.Repeat("euphoria3k9z7.vim\tsyntax.txt\t/*euphoria3*\n", 5),
		"x86_aeskey = 2312,  // llvm.x86.a\nx86_h7Gk29sLmQ4v = 2313,  // llvm.x86.b\n", "\t\treturn a, formatPassword\n\tcase x.UUID3, h7Gk29s.UUID3:\n",
		"token, err := exchange(\nh7Gk29sLmQ4vRt, 1\nctx, 2\n", "static int a(K *key, int n,\n    H *h7Gk29sLmQ4vRt, int b,\n",
		"key, value\nname, description\n", "The password, the secret and the key\nare long, random and rotated\n",
		"| Type | Key Type |\n|---|---|\n| []byte | Symmetric Key |\n| ecdsa.PrivateKey | ECDSA Private Key |\n| x25519.PrivateKey | OKP Private Key |\n",
		"| crate | version |\n|---|---|\n| dbus-secret-service | 4.1.0 |\n| enumflags2_derive | 0.7.12 |\n",
		`{"examples":[[{"type":"vault_credential","vault_id":"vlt_011CZkZDLs7fYzm1hXNPeRjv"}],[{"type":"x","ref":"h7Gk29sLmQ4vRt8w"}]]}`,
		`{"keywords":["password","secret_name"],"tokens":["identifier","openBracket"]}`,
		`{"columns":["id","password"],"rows":[["h7Gk29sLmQ4vRt","none"],["1",null]],"key":[["a"],["h7Gk29sLmQ4vRt"]]}`,
	} {
		if got, found, err := s.Text(context.Background(), in); err != nil || got != in {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
		}
	}
}

// The arguments of a command, headers and cookies are found in arrays and objects, and what looks like them stays.
func TestArgumentsAndHeaders(t *testing.T) {
	s := newScrubber(t, Options{})
	secret := token(77, "", 24)
	for _, in := range []string{
		`{"Cmd":["sshpass","-p","SECRET","ssh","h1"]}`, `["x","--db-password","SECRET","--verbose"]`, `{"a":[{"args":["curl","-u","bob:SECRET"]},{"args":["true"]}]}`,
		`["mysql","-u","root","-pSECRET"]`, `[["Host","h1"],["Cookie","sid=SECRET"]]`, `["Authorization","Basic SECRET","Host","h1"]`,
		`[{"name":"sid","value":"SECRET","domain":"x.com","path":"/","sameSite":"Lax"}]`, `{"httpOnly":true,"name":"sid","path":"/","value":"SECRET"}`,
	} {
		got, found, err := s.JSON(context.Background(), []byte(strings.Replace(in, "SECRET", secret, 1)))
		if err != nil || len(found) != 1 || strings.Contains(string(got), secret[4:]) || strings.Count(string(got), "REDACTED") != 1 {
			t.Errorf("JSON(%s) = %s, %v, %v", in, got, found, err)
		}
	}
	for _, in := range []string{
		`["sshpass","-p","$PASSWORD","ssh"]`, `["x","--password","--verbose","7"]`, `["docker","run","-p","8080:80","mongo:7.0.2"]`, `["curl","-s","x-utils:v2.14.3"]`, `["-a token","- b","x7Kd9QmZ2bx7Kd9QmZ2b"]`,
		`["Cookie","Accept-Encoding","Authorization","Basic realm"]`, `{"name":"a","value":"dark-mode-of-the-page","domain":"x.com"}`, `{"type":"CNAME","value":"d111111abcdef8.cloudfront.net","domain":"x.com"}`, `{"name":"a","value":"` + secret + `","path":"/"}`,
	} {
		if got, found, err := s.JSON(context.Background(), []byte(in)); err != nil || string(got) != in {
			t.Errorf("JSON(%s) = %s, %v, %v, want it unchanged", in, got, found, err)
		}
	}
}
