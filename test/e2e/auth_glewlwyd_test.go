//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"database/sql"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/test/freeport"
)

// glewlwydFiles is Debian's package of glewlwyd, unpacked by .ci/deps.
const glewlwydFiles = "../debian/glewlwyd/usr"

// glewlwyd is Debian's authorization server glewlwyd, with a database of its own.
type glewlwyd struct {
	t      *testing.T
	at     string
	admin  *http.Client
	config map[string]any // of its plugin for OpenID Connect
	keys   int
}

// newGlewlwyd runs glewlwyd. resources are those for which it gives tokens.
func newGlewlwyd(t *testing.T, resources ...string) realServer {
	t.Helper()
	files, err := filepath.Abs(glewlwydFiles)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := os.ReadFile(filepath.Join(files, "share/dbconfig-common/data/glewlwyd/install/sqlite3"))
	if err != nil {
		t.Fatalf("there is no glewlwyd (%v): make deps unpacks it", err)
	}
	dir := t.TempDir()
	db, err := sql.Open("sqlite", filepath.Join(dir, "db"))
	if err == nil {
		_, err = db.Exec(string(schema))
		_ = db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	port := freeport.For(t)
	w := &glewlwyd{t: t, at: "http://127.0.0.1:" + port}
	jar, _ := cookiejar.New(nil)
	w.admin = &http.Client{Jar: jar}
	write(t, filepath.Join(dir, "conf"), fmt.Sprintf(`port=%[1]s
bind_address="127.0.0.1"
external_url=%[2]q
login_url="login.html"
api_prefix="api"
log_mode="console"
log_level="WARNING"
session_key="GLEWLWYD2_SESSION_ID"
session_expiration=86400
admin_scope="g_admin"
profile_scope="g_profile"
login_api_enabled=true
user_module_path="%[4]s/user"
client_module_path="%[4]s/client"
user_auth_scheme_module_path="%[4]s/scheme"
plugin_module_path="%[4]s/plugin"
hash_algorithm="SHA512"
database = { type = "sqlite3"; path = %[3]q; };
`, port, w.at, filepath.Join(dir, "db"), filepath.Join(files, "lib/glewlwyd")))
	out := &buffer{}
	cmd := exec.Command(filepath.Join(files, "bin/glewlwyd"), "--config-file="+filepath.Join(dir, "conf"))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("glewlwyd:\n%s", out.String())
		}
	})
	until(t, "glewlwyd answers", func() bool {
		resp, err := http.Get(w.at + "/api/")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	})
	w.must(w.admin, "POST", "/api/auth/", map[string]any{"username": "admin", "password": "password"})
	var users map[string]any // the backend of users gets the property department
	unmarshal(t, []byte(w.must(w.admin, "GET", "/api/mod/user/database", nil)), &users)
	users["parameters"].(map[string]any)["data-format"].(map[string]any)["department"] = map[string]any{"multiple": false, "read": true, "write": true}
	w.must(w.admin, "PUT", "/api/mod/user/database", users)
	w.must(w.admin, "PUT", "/api/mod/user/database/reset", nil)
	w.config = map[string]any{
		"iss": w.url(), "jwks-show": true, "jwt-type": "rsa", "jwt-key-size": "256", "allow-non-oidc": true, "subject-type": "public",
		"access-token-duration": 600, "refresh-token-duration": 86400, "code-duration": 600, "refresh-token-rolling": true, "refresh-token-one-use": "always",
		"auth-type-client-enabled": false, "auth-type-code-enabled": true, "auth-type-code-revoke-replayed": true, "auth-type-token-enabled": false, "auth-type-id-token-enabled": true,
		"auth-type-none-enabled": false, "auth-type-password-enabled": false, "auth-type-device-enabled": false, "auth-type-refresh-enabled": true,
		"scope": []any{}, "allowed-scope": []string{"openid", "db:read"}, "claims": []any{},
		"additional-parameters": []any{map[string]any{"user-parameter": "username", "token-parameter": "username"}, map[string]any{"user-parameter": "department", "token-parameter": "department"}},
		"pkce-allowed":          true, "pkce-method-plain-allowed": false, "pkce-required": true, "request-parameter-allow": false,
		"introspection-revocation-allowed": false, "session-management-allowed": false, "oauth-rar-allowed": false, "dpop-allowed": false, "encrypt-out-token-allow": false,
		"register-client-allowed": true, "register-client-auth-scope": []string{}, "register-client-credentials-scope": []string{}, "register-client-management-allowed": false, "register-default-properties": map[string]any{},
		"resource-allowed": true, "resource-scope": map[string]any{"db:read": resources}, "resource-client-property": "", "resource-scope-and-client-property": false, "resource-change-allowed": false,
		"name-claim": "no", "email-claim": "no", "scope-claim": "no", "address-claim": map[string]any{"type": "no"}, "oidc-iss-response-allowed": true,
		"jwks-private": w.key(),
	}
	w.must(w.admin, "POST", "/api/mod/plugin/", map[string]any{"module": "oidc", "name": "oidc", "display_name": "OIDC", "parameters": w.config})
	w.must(w.admin, "POST", "/api/scope/", map[string]any{"name": "db:read", "display_name": "read", "description": "read", "password_required": true, "password_max_age": 0, "scheme": map[string]any{}})
	for name, department := range map[string]string{"ann": "data", "ben": "sales"} {
		w.must(w.admin, "POST", "/api/user/", map[string]any{"username": name, "name": name, "email": name + "@example.com", "password": "password of " + name, "enabled": true, "scope": []string{"db:read"}, "department": department})
	}
	return w
}

// key returns a new key, as a set.
func (w *glewlwyd) key() string {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		w.t.Fatal(err)
	}
	w.keys++
	b64 := base64.RawURLEncoding.EncodeToString
	return jsonText(map[string]any{"keys": []any{map[string]any{
		"kty": "RSA", "kid": fmt.Sprintf("key-%d", w.keys), "alg": "RS256", "n": b64(k.N.Bytes()), "e": "AQAB", "d": b64(k.D.Bytes()),
		"p": b64(k.Primes[0].Bytes()), "q": b64(k.Primes[1].Bytes()), "dp": b64(k.Precomputed.Dp.Bytes()), "dq": b64(k.Precomputed.Dq.Bytes()), "qi": b64(k.Precomputed.Qinv.Bytes()),
	}}})
}

// must sends a request to glewlwyd's interface for administrators or persons, and returns the answer.
func (w *glewlwyd) must(c *http.Client, method, path string, body any) string {
	w.t.Helper()
	var text []byte
	if body != nil {
		text = []byte(jsonText(body))
	}
	req, _ := http.NewRequest(method, w.at+path, bytes.NewReader(text))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	answer, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		w.t.Fatalf("glewlwyd: %s %s: %d %s", method, path, resp.StatusCode, answer)
	}
	return string(answer)
}

// change changes the configuration of the plugin.
func (w *glewlwyd) change(key string, value any) {
	w.t.Helper()
	w.config[key] = value
	w.must(w.admin, "PUT", "/api/mod/plugin/oidc", map[string]any{"display_name": "OIDC", "parameters": w.config})
	w.must(w.admin, "PUT", "/api/mod/plugin/oidc/reset", nil)
}

func (w *glewlwyd) url() string       { return w.at + "/api/oidc" }
func (w *glewlwyd) life(seconds int)  { w.change("access-token-duration", seconds) }
func (w *glewlwyd) rotate()           { w.change("jwks-private", w.key()) }
func (w *glewlwyd) endpoint() string  { return w.url() }
func (w *glewlwyd) keysURL() string   { return w.url() + "/jwks" }
func (w *glewlwyd) register() string  { return w.url() + "/register" }
func (w *glewlwyd) method() string    { return "client_secret_post" }
func (w *glewlwyd) principal() string { return ", principal: $.username" }

// logIn is what glewlwyd's pages do in the browser: they are programs that call its interface.
func (w *glewlwyd) logIn(p *person, at string) (url.Values, error) {
	resp, err := p.browser.Get(at) // follows to the page to log in, which need not be there
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	page := resp.Request.URL.Query()
	to := page.Get("callback_url")
	if to == "" {
		return nil, fmt.Errorf("the browser shows %d %s", resp.StatusCode, resp.Request.URL)
	}
	w.must(p.browser, "POST", "/api/auth/", map[string]any{"username": p.name, "password": "password of " + p.name})
	w.must(p.browser, "PUT", "/api/auth/grant/"+page.Get("client_id"), map[string]any{"scope": page.Get("scope")})
	if resp, err = p.browser.Get(to + "&g_continue"); err != nil {
		return nil, err
	}
	resp.Body.Close()
	back := resp.Header.Get("Location")
	if !strings.HasPrefix(back, nobodyListens) {
		return nil, fmt.Errorf("the browser is sent to %q (%d)", back, resp.StatusCode)
	}
	u, err := url.Parse(back)
	return u.Query(), err
}
