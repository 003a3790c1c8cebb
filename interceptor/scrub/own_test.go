package scrub

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
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
		{"jwt-in-text", "https://example.com/cb?id_token=SECRET&state=1", "ey" + token(24, "", 30) + ".ey" + token(25, "", 60) + "." + token(26, "", 43)},
		{"token-in-text", "https://example.com/maps/api/js?key=SECRET&callback=x", "AI" + "zaSy" + token(27, "", 33)},
		{"token-in-text", "id,key,name\n1,SECRET,bob\n", "npm" + "_" + token(28, "", 36)},
		{"token-in-text", "<td>SECRET</td>", "sk" + "_live_" + token(29, "", 24)},
		{"token-in-text", "the key (SECRET) is old", "sk-" + "ant-api03-" + token(30, "", 93) + "AA"},
		{"token-in-text", "Use SECRET.", "SG" + "." + token(31, "", 22) + "." + token(32, "", 43)},
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
		{"password-attribute", "Server=db;User Id=sa;Password=SECRET;", "hunter2!x"},
		{"password-attribute", "PGPASSWORD=SECRET psql", "hunter2!x"},
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
	if hits, _, err := x.secrets(in); err != nil || len(hits) > 0 {
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
	files, findings := 0, 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, "_test.go") || strings.Contains(path, "testdata") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text := string(b)
			_, found, err := s.Text(context.Background(), text)
			files, findings = files+1, findings+len(found)
			for _, f := range found {
				known := false
				for _, h := range reported(text, hitsOf(t, s, text)) {
					known = known || !h.rule.own && h.rule.ID == f.Rule
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
	t.Logf("%d files, %d findings", files, findings)
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
