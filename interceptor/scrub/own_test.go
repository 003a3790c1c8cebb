package scrub

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestOwnRules shows what foldgate's rules find: SECRET stands for the secret.
func TestOwnRules(t *testing.T) {
	s := newScrubber(t, Options{})
	word, long := token(11, "", 12)+"7", token(12, "", 40)
	pem := "-----BEGIN EC PRIVATE" + " KEY-----"
	lines := token(13, "", 64) + `\n` + token(14, "", 64) + `\n` + token(15, "", 20)
	tests := []struct{ rule, in, secret string }{
		{"connection-string", "DATABASE_URL=postgres://app:SECRET@db.internal:5432/app", word},
		{"connection-string", "mongodb+srv://app:SECRET@cluster0.example.net/?w=1", word},
		{"connection-string", "redis://:SECRET@cache:6379/0", word},
		{"connection-string", "amqps://u:SECRET@mq/vhost", word},
		{"connection-string", `{"dsn":"mysql://root:SECRET@127.0.0.1/x"}`, word},
		{"connection-string", "postgres://app:SECRET@db.internal/app", "p@ss" + word + "@" + word},
		{"url-password", "https://bot:SECRET@git.example.com/x.git", word[:4] + "@" + word},
		{"jwt", "https://example.com/cb?id_token=SECRET&state=1", "ey" + token(24, "", 30) + ".ey" + token(25, "", 60) + "." + token(26, "", 43)},
		{"gcp-api-key", "https://example.com/maps/api/js?key=SECRET&callback=x", "AI" + "zaSy" + token(27, "", 33)},
		{"npm-access-token", "id,key,name\n1,SECRET,bob\n", "npm" + "_" + token(28, "", 36)},
		{"stripe-access-token", "<td>SECRET</td>", "sk" + "_live_" + token(29, "", 24)},
		{"anthropic-api-key", "the key (SECRET) is old", "sk-" + "ant-api03-" + token(30, "", 93) + "AA"},
		{"sendgrid-api-token", "Use SECRET.", "SG" + "." + token(31, "", 22) + "." + token(32, "", 43)},
		{"url-password", "git clone https://bot:SECRET@git.example.com/x.git", word},
		{"authorization-header", "Authorization: Basic SECRET", "dXNlcjpo" + token(16, "", 8)},
		{"authorization-header", `"Authorization": "Bearer SECRET"`, word},
		{"authorization-header", `-H 'authorization: token SECRET'`, word},
		{"bearer-token", "sent Bearer SECRET to the server", long},
		{"cookie", "Cookie: SECRET", "theme=dark; session=" + long},
		{"cookie", "Set-Cookie: SECRET; Path=/; HttpOnly", "sid=" + long},
		{"cloud-credentials", `"SecretAccessKey" : "SECRET"`, token(17, "aZ9/", 36)},
		{"cloud-credentials", "x ya29.", ""},
		{"cloud-credentials", "found SECRET", "ya" + "29." + long},
		{"private-key-cut", pem + `SECRET...`, `\n` + lines},
		{"private-jwk", `{"kty":"EC","crv":"P-256","d":"SECRET"}`, token(18, "", 43)},
		{"password-field", `{"user":"x","db_password":"SECRET"}`, "hunter2!x"},
		{"password-field", `{\"password\":\"SECRET\"}`, "hunter2!x"},
		{"generic-secret", `{"client_secret":"SECRET","n":1}`, "Xk9#mP2!vL7q"},
		{"generic-secret", `{"id":1,"API_KEY": "SECRET"}`, "aB3$kL9^pQ2&"},
		{"generic-secret", `{\"session_token\":\"SECRET\"}`, "q7@Lp-Zt!04nR"},
		{"php-constant", "define( 'DB_PASSWORD', 'SECRET' );", "Sommer2026"},
		{"php-constant", "define('AUTH_KEY',         'SECRET');", "t`DK%X:>xy|e-Z(BXb/f(Ur`8#~UzUQG-^_Cs_GHs5U-&Wb?pgn^p8(2@}IcnCa|"},
		{"password-in-code", "ALTER USER joe WITH PASSWORD 'SECRET';", "Sommer2026!"},
		{"password-in-code", `c.setPassword("SECRET")`, "Sommer2026!"},
		{"password-in-code", "**Password:** SECRET", "Sommer2026!"},
		{"password-in-code", "Password: `SECRET`", "Sommer2026!"},
		{"password-in-code", `const PASSWORD: &str = "SECRET";`, "Sommer2026!"},
		{"password-in-language", "Passwort: SECRET", "Sommer2026!"},
		{"password-in-language", "contrase\u00f1a: SECRET", "Sommer2026!"},
		{"password-in-language", "mot de passe: SECRET", "Sommer2026!"},
		{"password-in-words", "The password is: SECRET", "Sommer2026!"},
		{"password-in-words", "your smtpPassword is SECRET", "Sommer2026!"},
		{"password-in-words", "the password for joe was set to 'SECRET'.", "Xk9#mP2!vL7q"},
		{"password-in-language", "Das Passwort lautet SECRET", "Sommer2026!"},
		{"password-member", "dbPass: 'SECRET'", "Sommer2026!"},
		{"password-member", "auth: { user: 'joe', pass: 'SECRET' }", "Sommer2026!"},
		{"password-attribute", "Server=db;User Id=sa;Password=SECRET;", "hunter2!x"},
		{"password-variable", "PGPASSWORD=SECRET psql", "hunter2!x"},
		{"netrc", "machine example.com login bot password SECRET", "hunter2!x"},
	}
	for _, tt := range tests {
		in := strings.ReplaceAll(tt.in, "SECRET", tt.secret)
		got, found, err := s.Text(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		if tt.secret == "" {
			if got != in {
				t.Errorf("Text(%q) = %q, want it unchanged", in, got)
			}
			continue
		}
		if strings.Contains(got, tt.secret) || len(found) == 0 {
			t.Errorf("Text(%q) = %q, findings %v: the secret is still there", in, got, found)
		}
		own := false
		for _, h := range hitsOf(t, s, in) {
			own = own || h.rule.ID == tt.rule && in[h.secret.Start:h.secret.End] == tt.secret
		}
		if !own {
			t.Errorf("rule %s does not find %q in %q", tt.rule, tt.secret, in)
		}
	}
}

func hitsOf(t testing.TB, s *Scrubber, text string) []hit {
	t.Helper()
	x := s.begin(context.Background())
	defer x.end()
	hits, err := x.find(text)
	if err != nil {
		t.Fatal(err)
	}
	return hits
}

// TestOrdinaryText: what is no secret stays, however much it looks like one.
func TestOrdinaryText(t *testing.T) {
	s := newScrubber(t, Options{})
	sum := token(21, "", 43)
	for _, in := range []string{
		"postgres://user:password@localhost/db and postgres://user:${PASSWORD}@localhost/db",
		"https://example.com:8080/path@2x.png https://user:<token>@example.com https://x:$TOKEN@example.com",
		"Authorization: Bearer $TOKEN", "Authorization: Bearer <token>", "Authorization: Bearer {token}", "Authorization: Basic realm",
		"the bearer authentication-scheme-of-the-web is described in RFC 6750",
		"cookie: the cookie must be set before the session starts, see document.cookie = value",
		`"password": "The password of the user"`, `"password":"string"`, `{"password":"${DB_PASSWORD}","type":"password"}`,
		"password=; pwd=$PWD; cd /tmp", "-----BEGIN PUBLIC KEY-----\n" + token(22, "", 64),
		"golang.org/x/oauth2 v0.30.0 h1:" + sum + "=\ngolang.org/x/oauth2 v0.30.0/go.mod h1:" + sum + "=\n",
		`"integrity": "sha512-` + token(23, "", 86) + `=="`,
		"commit 0123456789abcdef0123456789abcdef01234567", "id 0b8d1f7e-52f3-4b1c-9f7a-3d2e1c0b9a8f",
		"mysql -h db1 --port=33071 --protocol=tcp2 -P 33071 app2", "mysqldump -uapp2 --no-tablespaces --parallel-schemas=12 db1",
		"docker run --name mongo -p 127.0.0.1:27017:27017 mongo:7.0.2", "unzip -p file1.zip dir2/a", "scp a1.zip -P 2222 host1:", "ssh-keygen -t ed25519 -N \"\" -f id_2024",
		"ldapsearch -x -W -b dc=x1", "echo 127.0.0.1 host1 | sudo tee -a /etc/hosts", "net user bob2", "vault login -method=oidc2", "openssl genrsa -out key2.pem 2048", "7z x -y archive1.7z",
		"the object is identified by 'obj_1234'", `{"op": "replace", "path": "/a", "value": "x7Kd9QmZ2bx7Kd9QmZ2b"}`, `auth = ("user", "pass")`, "snmpwalk -v2c -c public host1",
		`{"key": "Value%d#Of"}`, `{"token": "${SECRET_1}#Aa"}`, `{"nextPageToken": "US1%3A0637Aad5b2d5b%3B"}`, `{"key": "f(X1)#Abcdef"}`, `{"secret": "@Aa1/bbbbbb"}`, `{"key": "//Host1.example.com#a"}`,
		"docker run --name mysql -p33061:3306 mysql:8", "docker run --name mysql -p127.0.0.1:33061:3306/tcp mysql:8", "cargo test --bin mongo -p core2", "root:*:0:0:root:/root:/bin/bash1",
		`"generate-password": "1.7.1-beta.2"`, `{"fileKey":"k4Jm2Qx9ZbT7wLr0PsVn1A","name":"Design"}`,
		`fields = ["user", "password", "address1"]`, "'USERPWD', 'HTTP200ALIASES', 'FILE'", "https://example.com/Password_Storage_Cheat_Sheet.html#pbkdf2", `"md5", "password", "scram-sha-256",`,
		"the password is sha256-hashed", "the password is 8-16 characters long", "is the password abc123?", "pass: 12, fail: 3", "pass: test_a1.js", "define('DB_PASSWORD', 'your_password_here1');", "define('SECURE_AUTH_KEY', 'put your unique phrase here');",
		"setPassword(user.password1)", "<key>password</key>\n<true/>",
		"#define FS_KEY_NAME\tFSCRYPT_KEY_NAME\n#define FS_PAD_4\tFSCRYPT_POLICY_FLAGS_PAD_4\n", "EVP_PKEY_CTRL_DECRYPT, EVP_KEY,\nEVP_PKEY_CTRL_PKCS7_SIGN, EVP_x\n", "It is \\f5KEY_BASED\\fR, \\f5CONTINUOUSLY_AVAILABLE\\fR.",
		"ftp://[[user][:pass1]@]host[:port]/", "https://user:REDACTED@example.com", "a.username===b.username&&a.password===b.passwd9;",
		"the key is base64-encoded, the token was rotated on 2026-01-02T10:00:00Z", "set the secret to projects/p1/secrets/db-1", "the key to x86-64-v3",
		"grep -i token | sha256sum", "cat key | openssl12\n", "option(KEY_A | KEY_B1)\n", "RUN apk add key-tool7 \\\n  secret-tool12 \\\n  token9\n",
		"family \U0001f468\u200d\U0001f469\u200d\U0001f467 and क\u094d\u200dष", "50%25 of a%20b",
		"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
	} {
		got, found, err := s.Text(context.Background(), in)
		if err != nil || got != in || len(found) > 0 {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
		}
	}
}

// TestChecksumsAreExcepted: the rules find checksums, and only their shape excepts them.
func TestChecksumsAreExcepted(t *testing.T) {
	x := newScrubber(t, Options{}).begin(context.Background())
	in := "golang.org/x/oauth2 v0.30.0 h1:" + token(21, "", 43) + "=\n"
	if hits, err := x.find(in); err != nil || len(hits) == 0 {
		t.Errorf("find(%q) = %v, %v, want a hit", in, hits, err)
	}
	if hits, _, err := x.hitsAndPairs(in); err != nil || len(hits) > 0 {
		t.Errorf("secrets(%q) = %v, %v, want none", in, hits, err)
	}
}

// TestSourceStays: in the source of the standard library our rules, exceptions
// and decoding add nothing to what gitleaks finds. FOLDGATE_SCRUB_DIRS names
// directories with other files.
func TestSourceStays(t *testing.T) {
	root := standardLibrary(t)
	s := newScrubber(t, Options{})
	var dirs []string
	for _, dir := range []string{"net/http", "net/url", "crypto/tls", "database/sql", "cmd/go/internal/auth", "encoding/json", "mime"} {
		dirs = append(dirs, filepath.Join(root, dir))
	}
	if list := os.Getenv("FOLDGATE_SCRUB_DIRS"); list != "" {
		dirs = filepath.SplitList(list)
	}
	files, changed, findings := 0, 0, map[string]int{}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") || strings.Contains(path, "testcert") {
				return err // a test certificate has a private key
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text := string(b)
			_, found, err := s.Text(context.Background(), text)
			if files++; len(found) > 0 {
				changed++
			}
			for _, f := range found {
				findings[f.Rule]++
				known := false
				for _, r := range ours(t, s, text) {
					known = known || r.rule == f.Rule
				}
				if !known {
					t.Errorf("%s:%d: %s finds something", path, f.Line, f.Rule)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d files, %d with findings: %v", files, changed, findings)
}

// standardLibrary returns where the source of the standard library is, and
// skips the test if it is not here.
func standardLibrary(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "env", "GOROOT").Output()
	root := filepath.Join(strings.TrimSpace(string(out)), "src")
	if err == nil {
		_, err = os.Stat(root)
	}
	if err != nil {
		t.Skipf("the source of the standard library is not here: %v", err)
	}
	return root
}

// TestNamesStay: names in code are no keys, though the generic rule takes them for some. Values that
// differ from a name in their place or their letters are redacted.
func TestNamesStay(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, name := range []string{
		"NewEncapsulationKey768", "testEd25519PrivateKey", "win32api.RegEnumKey", "CertAlgoMLDSA65v01Go", "testRSAPSS2048PrivateKey",
		"jwtTestEC256PrivateKey", "obj1Keys.length", "AES128_GCM_KEY", "sign3-doc.xml", "server2-cert.pem", "internal/x509v3/parser2",
		"0123456789.987e-10", "k8s_auth/oidc2/token_verifier", "OAuth2TokenSource",
	} {
		for _, place := range []string{"x.PrivateKey = NAME\n", "the key is not valid, NAME returns an error", "var k1Keys = NAME;", "api_token, NAME\n"} {
			in := strings.Replace(place, "NAME", name, 1)
			if got, found, err := s.Text(context.Background(), in); err != nil || got != in {
				t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
			}
		}
	}
	for _, in := range []string{"api_key: prodSigningKey2048\n", "API_KEY=prodSigningKey2048\n", "api_key = \"prodSigningKey2048\"\n"} {
		if got, _, err := s.Text(context.Background(), in); err != nil || strings.Contains(got, "2048") {
			t.Errorf("Text(%q) = %q, %v, want it redacted", in, got, err)
		}
	}
	passed, total := 0, 0
	for n := range uint64(200) {
		for length := 12; length <= 40; length += 4 {
			text := "secret_key = " + token(9000+n, "", length) + "\n"
			for _, h := range hitsOf(t, s, text) {
				if total++; h.rule.generic && isName(text, &h) {
					passed++
				}
			}
		}
	}
	if passed > 0 || total < 1000 {
		t.Errorf("%d of %d random keys pass as names", passed, total)
	}
}

// TestPublicNamesStay: what its name says is no secret stays, though the generic rule takes it for a key. An agent that
// does not see the token of the next page can't ask for it.
func TestPublicNamesStay(t *testing.T) {
	s := newScrubber(t, Options{})
	key, hash, id := token(40, "", 24)+"7x", "7f3a9c1d2e4b5a6c8d9e0f1a2b3c4d5e6f708192", "9f86d081-884c-7d65-9a2f-eaa0c55ad015"
	in := strings.NewReplacer("KEY", key, "=SUM", "="+hash, " SUM", " "+hash, "UUID", id)
	for _, text := range []string{
		`{"NextToken": "KEY"}`, `{"nextPageToken":"KEY","items":[]}`, `{"continuationToken": "KEY="}`, "next_page_token: KEY\n", `nextSyncToken = "KEY"`,
		"<NextContinuationToken>KEY</NextContinuationToken>", "--starting-token KEY\n", "aws logs get-log-events --next-token KEY\n", `{"nextForwardToken": "KEY"}`,
		"Idempotency-Key: UUID\n", "sec-websocket-key: KEY==\n", "cache_key=KEY\n", `access_logs = "alb-logs-7x-KEY"` + "\n", "token_id=KEY\n",
		"GOOGLEAPIS_COMMIT=SUM\n", "openapi_spec_hash: SUM\n", "api_commit_sha: SUM\n", "Public key ping-sha256: SIXvRyDmBJSgatgTQRGbInBaAK+hZOQ18UmrSwnDlK8=\n",
		"Issuer Key Hash: SUM\n", "Key fingerprint = SUM\n",
	} {
		text = in.Replace(text)
		if got, found, err := s.Text(context.Background(), text); err != nil || got != text {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", text, got, found, err)
		}
	}
	for _, text := range []string{
		"next_token_secret: KEY\n", "NEXTAUTH_TOKEN=KEY\n", "SYNC_TOKEN=KEY\n", "TELEGRAM_API_HASH=SUM\n", "password_hash_key: KEY\n", "token_sha: SUM\n",
		"api_digest_key = KEY\n", "api_commit: KEY\n", `{"nextPageToken": "x", "api_token": "KEY"}`,
	} {
		if got, _, err := s.Text(context.Background(), in.Replace(text)); err != nil || strings.Contains(got, key) || strings.Contains(got, hash) {
			t.Errorf("Text(%q) = %q, %v, want it redacted", text, got, err)
		}
	}
}

// TestPasswordsOfPeople: a word and a number after the name of a password is one, in all forms of a configuration.
func TestPasswordsOfPeople(t *testing.T) {
	s := newScrubber(t, Options{})
	for _, value := range []string{"Sommer2026", "hunter22", "Tr0ub4dor3", "Xk9#mP2!vL7q"} {
		for _, form := range []string{
			"db:\n  password: VALUE\n", "password: \"VALUE\"\n", "password: 'VALUE'\n", "spring.datasource.password=VALUE\n", "password = VALUE\n", "password = \"VALUE\"\n",
			"wget --user=a --password=VALUE https://x\n", "Login(name=a, password=VALUE, tries=1)", "{Host:db Password: VALUE}", "{'user': 'a', 'password': 'VALUE'}",
			"curl -d 'username=a&password=VALUE' https://x\n", "config.pwd = \"VALUE\";", `{"text": "password: VALUE\n"}`, "log-in with passwd=VALUE",
		} {
			in := strings.Replace(form, "VALUE", value, 1)
			if got, found, err := s.Text(context.Background(), in); err != nil || len(found) == 0 || redacted.ReplaceAllString(got, "VALUE") != form {
				t.Errorf("Text(%q) = %q, %v, %v", in, got, found, err)
			}
		}
	}
	for _, in := range []string{
		"PWD=/home/alice2/src\n", "PWD=~/src2024\n", "pwd: C:/Users/alice2\n", "/etc/passwd:12:alice7:x:1000:1000::/home/alice7:/bin/bash\n", "image: acme/reset-password:7f3a9c1d\n",
		"passwd=1:4.13+dfsg1-1+b1\n", "base-passwd=3.6.1+deb12u1\n", "password = random_id.db1.hex\n", "password = os.getenv(pw2)\n", "password: *db_pw2024\n", "password: vault:db/main2024\n",
		"password := config.Lookup(name, 12345)\n", "password: varchar255\n", "password: password123\n", "passwd: files ldap1\n", "password: $DB_PW2024\n", "password: {{ pw2024 }}\n",
	} {
		if got, found, err := s.Text(context.Background(), in); err != nil || got != in {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
		}
	}
}

// TestRulesHaveLiterals: one rule without literals that its matches must have, such as one with more than 64
// alternatives, lets each string of a document be examined by itself, which takes several times as long.
func TestRulesHaveLiterals(t *testing.T) {
	if !newScrubber(t, Options{}).set.Filtered() {
		t.Error("a rule has no literals, or too many: divide it, or give it keywords")
	}
}

// TestDiscordBotToken: the first part is the digits of an id in base64, which alone is no secret.
func TestDiscordBotToken(t *testing.T) {
	s := newScrubber(t, Options{})
	for n := range uint64(40) {
		id := fmt.Sprint(80351110224678912*(n+1) + n)
		first := base64.RawStdEncoding.EncodeToString([]byte(id))
		secret := first + "." + token(n, "", 6) + "." + token(n+100, "-_", 25+int(n)%12)
		for _, in := range []string{"SECRET", "x = SECRET\n", `{"v":"SECRET"}`, "Authorization: Bot SECRET", "see (SECRET).", "a,SECRET,b", first + ".SECRET"} {
			in = strings.ReplaceAll(in, "SECRET", secret)
			got, found, err := s.Text(context.Background(), in)
			if err != nil || len(found) == 0 || strings.Contains(got, secret[len(first)+7:]) {
				t.Errorf("Text(%q) = %q, %v, %v", in, got, found, err)
			}
		}
		for _, in := range []string{first, first + ".short.x", "1.2." + first} {
			if got, found, err := s.Text(context.Background(), in); err != nil || got != in {
				t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
			}
		}
	}
}

// TestKeyBodies: private keys as Go encodes them are found without the lines around them, and
// public keys and certificates are not.
func TestKeyBodies(t *testing.T) {
	s := newScrubber(t, Options{})
	rsaKey, _ := rsa.GenerateKey(rand.Reader, 1024)
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	keys := []any{rsaKey, edKey}
	for _, curve := range []elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()} {
		k, _ := ecdsa.GenerateKey(curve, rand.Reader)
		keys = append(keys, k)
	}
	lines := func(der []byte) string {
		return strings.Join(slices.Collect(chunks(base64.StdEncoding.EncodeToString(der), 64)), "\n") + "\n"
	}
	for _, key := range keys {
		var secret [][]byte
		der, _ := x509.MarshalPKCS8PrivateKey(key)
		secret = append(secret, der)
		if k, ok := key.(*rsa.PrivateKey); ok {
			secret = append(secret, x509.MarshalPKCS1PrivateKey(k))
		}
		if k, ok := key.(*ecdsa.PrivateKey); ok {
			der, _ := x509.MarshalECPrivateKey(k)
			secret = append(secret, der)
		}
		for _, der := range secret {
			for _, in := range []string{lines(der), "key: |\n" + lines(der), strings.ReplaceAll(lines(der), "\n", ""), strings.ReplaceAll(lines(der), "\n", `\n`)} {
				got, found, err := s.Text(context.Background(), in)
				if err != nil || len(found) == 0 || strings.Contains(got, strings.TrimSpace(in)[len(in)/2:]) {
					t.Errorf("Text(%q) = %q, %v, %v", in, got, found, err)
				}
			}
		}
		pub, _ := x509.MarshalPKIXPublicKey(key.(crypto.Signer).Public())
		cert, _ := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(7)}, &x509.Certificate{}, key.(crypto.Signer).Public(), key)
		for _, der := range [][]byte{pub, cert} {
			if got, found, err := s.Text(context.Background(), lines(der)); err != nil || got != lines(der) {
				t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", lines(der), got, found, err)
			}
		}
	}
}

// TestTokensInBinary: what looks like a token in base64 of binary data is none, and a token between the signs of a URL or
// a form is one.
func TestTokensInBinary(t *testing.T) {
	s := newScrubber(t, Options{})
	square, facebook := "EA"+"AA"+token(61, "Q0", 40), "EA"+"A"+token(62, "Z1", 100)
	blob := func(seed uint64) string { return token(seed, "k7+", 72) + "\n" + token(seed+1, "p/", 40) }
	for _, secret := range []string{square, facebook} {
		in := `{"wasm": "` + blob(63) + "+" + secret + "/" + blob(65) + `"}`
		if got, found, err := s.Text(t.Context(), in); err != nil || got != in {
			t.Errorf("Text(%q) = %q, %v, %v, want it unchanged", in, got, found, err)
		}
		for _, form := range []string{"https://example.com/a/b7/SECRET/x", "q=here+is+the+TOKEN7+that+you+asked+for+SECRET+please+keep+it+to+yourself+and+delete+it", "a+SECRET+b", "@@ -0,0 +1,3 @@\n+h7Gk29sLmQ4vRt\n+SECRET\n+" + facebook, "+" + facebook + "\n+SECRET", "a=" + token(67, "k7+", 40) + "+SECRET+" + token(68, "p8+", 40)} {
			in := strings.Replace(form, "SECRET", secret, 1)
			if got, _, err := s.Text(t.Context(), in); err != nil || strings.Contains(got, secret) {
				t.Errorf("Text(%q) = %q, %v, want it redacted", in, got, err)
			}
		}
	}
}
