package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/test/issuer"
)

const public = "https://gate.example.com"

// authenticator returns one that takes tokens of issuers.
func authenticator(t *testing.T, issuers map[string]*Issuer) *Authenticator {
	t.Helper()
	c := Config{Issuers: issuers}
	if faults := c.Check(); len(faults) > 0 {
		t.Fatal(faults)
	}
	return New(Options{Config: c, PublicURL: public, Log: slog.New(slog.DiscardHandler)})
}

func ask(t *testing.T, a *Authenticator, token string) (Caller, *Failure) {
	return a.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + token}}, "/mcp")
}

func TestTokenOfAnIssuer(t *testing.T) {
	is := issuer.New(t)
	a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL, Team: "$.department", Roles: "$.realm.groups[*]"}})
	more := issuer.Claims{"scope": "db:read db:write", "scp": []string{"files:read"}, "department": "data", "realm": map[string]any{"groups": []string{"/analysts", "on call"}}}
	want := interceptor.Identity{Principal: "corp:alice", Issuer: is.URL, Subject: "alice", Team: "data",
		Roles: []string{"/analysts", "on call"}, Scopes: []string{"db:read", "db:write", "files:read"}}
	for _, header := range []issuer.Claims{nil, {"alg": "PS256"}, {"alg": "ES256"}, {"typ": nil}, {"typ": "JWT"}} {
		for _, aud := range []any{public + "/mcp", public, []any{"other", public + "/mcp"}} {
			claims := is.Claims("alice", "", more)
			claims["aud"] = aud
			c, f := ask(t, a, is.Sign(claims, header))
			if f != nil {
				t.Fatalf("header %v, aud %v: %+v", header, aud, f)
			}
			if diff := cmp.Diff(want, c.Identity); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
			if left := time.Until(c.Expires); left < time.Hour || left > time.Hour+clockSkew {
				t.Errorf("ends in %s, want an hour and the clock skew", left)
			}
		}
	}
	if n := is.Fetches(); n != 1 {
		t.Errorf("%d fetches of the keys, want 1", n)
	}
	branch := is.Sign(is.Claims("alice", public+"/b/br_1/mcp", nil), nil)
	if _, f := a.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + branch}}, "/b/br_1/mcp"); f != nil {
		t.Errorf("a token for a branch, at its URL: %+v", f)
	}
	if _, f := ask(t, a, branch); f == nil || f.Rule != "token_audience" {
		t.Errorf("a token for a branch, elsewhere: %+v", f)
	}
	for _, aud := range []string{public, public + "/", public + "/mcp"} { // one resource server
		if _, f := a.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + is.Sign(is.Claims("alice", aud, nil), nil)}}, "/b/br_1/mcp"); f != nil {
			t.Errorf("a token for %s, at the URL of a branch: %+v", aud, f)
		}
	}
	if _, f := a.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + branch}}, "/b/br_2/mcp"); f == nil || f.Rule != "token_audience" {
		t.Errorf("a token for a branch, at another's URL: %+v", f)
	}
}

// Whatever is wrong with a token, its request is refused, and the rule names what is wrong.
func TestWrongTokens(t *testing.T) {
	is, other := issuer.New(t), issuer.New(t)
	a := authenticator(t, map[string]*Issuer{
		"corp":  {URL: is.URL, Algorithms: []string{"RS256", "PS256", "ES256"}, Principal: "$.email"},
		"other": {URL: other.URL, Audience: []string{"only-this"}, Roles: "$.roles"},
	})
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	claims := func(key string, v any) issuer.Claims {
		c := is.Claims("alice", public+"/mcp", issuer.Claims{"email": "a@example.com"})
		if c[key] = v; v == nil {
			delete(c, key)
		}
		return c
	}
	valid := is.Sign(claims("x", 1), nil)
	if _, f := ask(t, a, valid); f != nil {
		t.Fatal(f)
	}
	head, rest, _ := strings.Cut(valid, ".")
	body, sig, _ := strings.Cut(rest, ".")
	for name, tt := range map[string]struct{ token, rule string }{
		"none":                   {is.Sign(claims("x", 1), issuer.Claims{"alg": "none"}), "token_algorithm"},
		"none, kept signature":   {is.Sign(claims("x", 1), issuer.Claims{"alg": "none"}) + sig, "token_algorithm"},
		"NONE":                   {is.Sign(claims("x", 1), issuer.Claims{"alg": "NONE"}), "token_algorithm"},
		"no algorithm":           {is.Sign(claims("x", 1), issuer.Claims{"alg": nil}), "token_algorithm"},
		"HMAC with the key":      {is.Sign(claims("x", 1), issuer.Claims{"alg": "HS256"}), "token_algorithm"},
		"not pinned":             {is.Sign(claims("x", 1), issuer.Claims{"alg": "RS512"}), "token_algorithm"},
		"EC with the RSA key":    {is.Sign(claims("x", 1), issuer.Claims{"alg": "ES256", "kid": "first"}), "token_signature"},
		"unknown key":            {is.Sign(claims("x", 1), issuer.Claims{"kid": "nobody's"}), "token_key"},
		"no key id of three":     {is.Sign(claims("x", 1), issuer.Claims{"kid": nil}), "token_key"},
		"key for encryption":     {is.Sign(claims("x", 1), issuer.Claims{"kid": "encrypts"}), "token_key"},
		"critical extension":     {is.Sign(claims("x", 1), issuer.Claims{"crit": []string{"b64"}, "b64": false}), "token_signature"},
		"id token":               {is.Sign(claims("x", 1), issuer.Claims{"typ": "logout+jwt"}), "token_type"},
		"other body":             {head + "." + strings.Split(is.Sign(claims("sub", "bob"), nil), ".")[1] + "." + sig, "token_signature"},
		"no signature":           {head + "." + body + ".", "token_signature"},
		"expired":                {is.Sign(claims("exp", at(-31*time.Second)), nil), "token_expired"},
		"no end":                 {is.Sign(claims("exp", nil), nil), "token_expired"},
		"end is text":            {is.Sign(claims("exp", "tomorrow"), nil), "token_expired"},
		"end is huge":            {is.Sign(claims("exp", 1e300), nil), "token_expired"},
		"not yet":                {is.Sign(claims("nbf", at(time.Minute)), nil), "token_not_yet_valid"},
		"issued tomorrow":        {is.Sign(claims("iat", at(24*time.Hour)), nil), "token_not_yet_valid"},
		"other audience":         {is.Sign(claims("aud", "https://other.example.com/mcp"), nil), "token_audience"},
		"audience by prefix":     {is.Sign(claims("aud", public+"/mcp/x"), nil), "token_audience"},
		"no audience":            {is.Sign(claims("aud", nil), nil), "token_audience"},
		"other's audience":       {is.Sign(claims("aud", "only-this"), nil), "token_audience"},
		"no subject":             {is.Sign(claims("sub", nil), nil), "token_principal"},
		"no principal":           {is.Sign(claims("email", nil), nil), "token_principal"},
		"several principals":     {is.Sign(claims("email", []string{"a", "b"}), nil), "token_principal"},
		"spaces":                 {is.Sign(claims("email", "a b"), nil), "token_principal"},
		"line break":             {is.Sign(claims("email", "a\nb"), nil), "token_principal"},
		"long":                   {is.Sign(claims("email", strings.Repeat("a", 257)), nil), "token_principal"},
		"scope":                  {is.Sign(claims("scope", strings.Repeat("x ", 257)), nil), "token_principal"},
		"mix-up":                 {other.Sign(claims("x", 1), nil), "token_signature"},
		"mix-up, other's issuer": {is.Sign(claims("iss", other.URL), nil), "token_signature"},
		"unknown issuer":         {is.Sign(claims("iss", "https://evil.example.com"), nil), "token_issuer"},
		"issuer with a slash":    {is.Sign(claims("iss", is.URL+"/"), nil), "token_issuer"},
		"no issuer":              {is.Sign(claims("iss", nil), nil), "token_issuer"},
		"huge":                   {is.Sign(claims("x", strings.Repeat("x", maxToken)), nil), "token_malformed"},
		"no JSON":                {"a.b.c", "token_malformed"},
		"opaque":                 {"0123456789abcdef", "principals"},
		"empty":                  {"", "principals"},
		"encrypted":              {"a.b.c.d.e", "principals"},
	} {
		t.Run(name, func(t *testing.T) {
			c, f := ask(t, a, tt.token)
			if f == nil || f.Rule != tt.rule || f.Status != 401 || !f.Given {
				t.Fatalf("caller %+v, failure %+v, want %s", c, f, tt.rule)
			}
			if challenge := a.Challenge("/mcp", f); !strings.Contains(challenge, `error="invalid_token"`) || !strings.HasSuffix(challenge, `resource_metadata="https://gate.example.com/.well-known/oauth-protected-resource/mcp"`) {
				t.Errorf("challenge %s", challenge)
			}
			if tt.token != "" && strings.Contains(fmt.Sprint(f), tt.token) {
				t.Error("the failure holds the token")
			}
		})
	}
	// Within the clock skew both are valid.
	for _, token := range []string{is.Sign(claims("exp", at(-20*time.Second)), nil), is.Sign(claims("nbf", at(20*time.Second)), nil), is.Sign(claims("iat", at(20*time.Second)), nil)} {
		if _, f := ask(t, a, token); f != nil {
			t.Errorf("within the clock skew: %+v", f)
		}
	}
}

// Two issuers with the same subject, and a principal of the configuration with its name, are three.
func TestSameSubject(t *testing.T) {
	one, two := issuer.New(t), issuer.New(t)
	a := New(Options{
		Tokens: []Token{{Principal: "alice", Digest: sha256.Sum256([]byte("static"))}}, PublicURL: public, Log: slog.New(slog.DiscardHandler),
		Config: Config{Issuers: map[string]*Issuer{"one": {URL: one.URL}, "two": {URL: two.URL}}, Revoked: []string{"two:al*"}},
	})
	for token, want := range map[string]string{one.Sign(one.Claims("alice", public, nil), nil): "one:alice", two.Sign(two.Claims("bob", public, nil), nil): "two:bob", "static": "alice"} {
		if c, f := ask(t, a, token); f != nil || c.Principal != want {
			t.Errorf("%q, %+v, want %s", c.Principal, f, want)
		}
	}
	if _, f := ask(t, a, two.Sign(two.Claims("alice", public, nil), nil)); f == nil || f.Rule != "token_revoked" {
		t.Errorf("revoked: %+v", f)
	}
}

// Tokens that name unknown keys cause one fetch, however many there are.
func TestUnknownKeys(t *testing.T) {
	is := issuer.New(t)
	a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL}})
	var all sync.WaitGroup
	for i := range 1000 {
		token := is.Sign(is.Claims("alice", public, nil), issuer.Claims{"alg": "none", "kid": fmt.Sprint("unknown-", i)})
		token = strings.Replace(token, strings.Split(token, ".")[0], segment(issuer.Claims{"alg": "RS256", "kid": fmt.Sprint("unknown-", i)}), 1)
		all.Go(func() {
			if _, f := ask(t, a, token); f == nil || f.Rule != "token_key" {
				t.Errorf("%+v, want token_key", f)
			}
		})
	}
	all.Wait()
	if n := is.Fetches(); n != 1 {
		t.Errorf("%d fetches, want 1", n)
	}
	if _, f := ask(t, a, is.Sign(is.Claims("alice", public, nil), nil)); f != nil {
		t.Errorf("a valid token after them: %+v", f)
	}
}

// A reload keeps the keys of an issuer and the callers' tokens. It changes claims and revoked principals at
// once, reads keys from a new place, and ends an issuer that is gone.
func TestReload(t *testing.T) {
	is, other := issuer.New(t), issuer.New(t)
	token := is.Sign(is.Claims("alice", public, issuer.Claims{"department": "data"}), nil)
	var before *Authenticator
	reload := func(c Config) *Authenticator {
		t.Helper()
		if faults := c.Check(); len(faults) > 0 {
			t.Fatal(faults)
		}
		before = New(Options{Config: c, PublicURL: public, Log: slog.New(slog.DiscardHandler), Before: before, Keep: true})
		return before
	}
	if c, f := ask(t, reload(Config{Issuers: map[string]*Issuer{"corp": {URL: is.URL}}}), token); f != nil || c.Principal != "corp:alice" || c.Team != "" {
		t.Fatalf("%+v, %+v", c, f)
	}
	a := reload(Config{Issuers: map[string]*Issuer{"firm": {URL: is.URL, Team: "$.department"}}})
	if got := a.TokenOf(is.URL, "corp:alice"); got != token {
		t.Errorf("the token of before is not kept: %q", got)
	}
	if c, f := ask(t, a, token); f != nil || c.Principal != "firm:alice" || c.Team != "data" || is.Fetches() != 1 {
		t.Errorf("with another name: %+v, %+v, %d fetches of the keys, want 1", c, f, is.Fetches())
	}
	if _, f := ask(t, reload(Config{Issuers: map[string]*Issuer{"firm": {URL: is.URL}}, Revoked: []string{"firm:al*"}}), token); f == nil || f.Rule != "token_revoked" {
		t.Errorf("revoked: %+v", f)
	}
	a = reload(Config{Issuers: map[string]*Issuer{"firm": {URL: is.URL, JWKSURL: other.URL + "/jwks"}}})
	if _, f := ask(t, a, token); f == nil || f.Rule == "token_revoked" {
		t.Errorf("keys from another place: %+v", f)
	}
	if _, f := ask(t, reload(Config{Issuers: map[string]*Issuer{"corp": {URL: other.URL}}}), token); f == nil || f.Rule != "token_issuer" {
		t.Errorf("an issuer that is gone: %+v", f)
	}
}

func segment(v any) string {
	raw, _ := json.Marshal(v)
	return base64.RawURLEncoding.EncodeToString(raw)
}

// A request with a new key waits for the one fetch, and no request is lost.
func TestRotation(t *testing.T) {
	is := issuer.New(t)
	a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL}})
	if _, f := ask(t, a, is.Sign(is.Claims("alice", public, nil), nil)); f != nil {
		t.Fatal(f)
	}
	is.Rotate(t, "second")
	token := is.Sign(is.Claims("alice", public, nil), nil)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if _, f := ask(t, a, token); f != nil {
				t.Errorf("%+v", f)
			}
		})
	}
	all.Wait()
	if n := is.Fetches(); n != 2 {
		t.Errorf("%d fetches, want 2", n)
	}
}

// A reload keeps the keys. An issuer that does not answer leaves those of before in use, for a day.
func TestIssuerAway(t *testing.T) {
	is := issuer.New(t)
	a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL}})
	token := is.Sign(is.Claims("alice", public, nil), nil)
	is.Answer(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	if _, f := ask(t, a, token); f == nil || f.Status != 503 || f.Rule != "issuer_unavailable" {
		t.Fatalf("without keys: %+v", f)
	}
	is.Answer(nil)
	k := a.issuers[0].keys
	past := func(d time.Duration) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.barren, k.fetched = k.barren.Add(-d), k.fetched.Add(-d)
	}
	past(refetch)
	if _, f := ask(t, a, token); f != nil {
		t.Fatal(f)
	}
	is.Answer(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true })
	a = New(Options{Config: a.config, PublicURL: public, Log: slog.New(slog.DiscardHandler), Before: a})
	past(keysFresh + time.Minute)
	if _, f := ask(t, a, token); f != nil {
		t.Errorf("with keys of a while ago: %+v", f)
	}
	past(keysUsable)
	if _, f := ask(t, a, token); f == nil || f.Status != 503 {
		t.Errorf("with keys of yesterday: %+v", f)
	}
}

// Metadata and keys can't lead foldgate to other places than the issuer and public addresses.
func TestFetchIsBounded(t *testing.T) {
	victim := issuer.New(t)
	for name, answer := range map[string]func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool{
		"another issuer's": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, victim.URL, victim.URL+"/jwks")
			return true
		},
		"another port of this machine": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, is.URL, victim.URL+"/jwks")
			return true
		},
		"plain http": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"http://169.254.169.254/latest/meta-data"}`, is.URL)
			return true
		},
		"inside": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"https://10.0.0.1/jwks"}`, is.URL)
			return true
		},
		"a file": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"file:///etc/passwd"}`, is.URL)
			return true
		},
		"redirect": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, victim.URL+r.URL.Path, http.StatusFound)
			return true
		},
		"endless": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			for w.Header().Set("Content-Type", "application/json"); r.Context().Err() == nil; {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					break
				}
			}
			return true
		},
		"unknown keys": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/jwks" {
				return false
			}
			fmt.Fprint(w, `{"keys":[{"kty":"AKP","alg":"ML-DSA-65","kid":"1","pub":"AAAA"}]}`)
			return true
		},
		"many keys": func(is *issuer.Issuer, w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/jwks" {
				return false
			}
			key := `{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}`
			fmt.Fprintf(w, `{"keys":[%s%s]}`, key, strings.Repeat(","+key, maxKeys))
			return true
		},
	} {
		t.Run(name, func(t *testing.T) {
			is := issuer.New(t)
			is.Answer(func(w http.ResponseWriter, r *http.Request) bool { return answer(is, w, r) })
			a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL}})
			for _, by := range []*issuer.Issuer{is, victim} {
				claims := is.Claims("alice", public, nil)
				if _, f := ask(t, a, by.Sign(claims, nil)); f == nil || f.Status != 503 {
					t.Errorf("%+v, want no keys", f)
				}
			}
		})
	}
	if n := victim.Fetches(); n != 0 {
		t.Errorf("the keys of another were asked for %d times", n)
	}
}

// An issuer that never answers delays a request until its host leaves, and no longer than fetchTime.
func TestIssuerHangs(t *testing.T) {
	is := issuer.New(t)
	release := make(chan struct{})
	is.Answer(func(_ http.ResponseWriter, r *http.Request) bool { <-release; return false })
	defer close(release)
	a := authenticator(t, map[string]*Issuer{"corp": {URL: is.URL}})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, f := a.Authenticate(ctx, http.Header{"Authorization": {"Bearer " + is.Sign(is.Claims("alice", public, nil), nil)}}, "/mcp")
	if f == nil || f.Status != 503 {
		t.Errorf("%+v", f)
	}
}

func TestMetadata(t *testing.T) {
	is := issuer.New(t)
	a := New(Options{PublicURL: public + "/", Config: Config{Issuers: map[string]*Issuer{"corp": {URL: is.URL}}, Scopes: []string{"db:read"}}, Log: slog.New(slog.DiscardHandler)})
	for path, resource := range map[string]string{"": public, "/mcp": public + "/mcp", "/b/br_1/mcp": public + "/b/br_1/mcp"} {
		want := fmt.Sprintf(`{"resource":%q,"authorization_servers":[%q],"scopes_supported":["db:read"],"bearer_methods_supported":["header"],"resource_name":"foldgate"}`, resource, is.URL)
		if got := string(a.Metadata(path)); got != want {
			t.Errorf("metadata of %q = %s, want %s", path, got, want)
		}
	}
	for _, none := range []*Authenticator{nil, New(Options{Tokens: []Token{{Principal: "a"}}})} {
		if none.Metadata("/mcp") != nil {
			t.Error("metadata without an issuer")
		}
	}
	if got, want := a.Challenge("/mcp", &Failure{}), `Bearer realm="foldgate", scope="db:read", resource_metadata="https://gate.example.com/.well-known/oauth-protected-resource/mcp"`; got != want {
		t.Errorf("challenge %s, want %s", got, want)
	}
}

func TestFaults(t *testing.T) {
	for key, c := range map[string]Config{
		"issuers.a b":          {Issuers: map[string]*Issuer{"a b": {URL: "https://i.example.com"}}},
		"issuers.a":            {Issuers: map[string]*Issuer{"a": nil}},
		"issuers.a.url":        {Issuers: map[string]*Issuer{"a": {URL: "http://i.example.com"}}},
		"issuers.b.url":        {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com"}, "b": {URL: "https://i.example.com"}}},
		"issuers.a.jwks_url":   {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", JWKSURL: "file:///etc/passwd"}}},
		"issuers.a.audience":   {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", Audience: []string{""}}}},
		"issuers.a.algorithms": {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", Algorithms: []string{"HS256"}}}},
		"issuers.a.principal":  {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", Principal: "email"}}},
		"issuers.a.roles":      {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", Roles: "$..a..b"}}},
		"issuers.a.team":       {Issuers: map[string]*Issuer{"a": {URL: "https://i.example.com", Team: "$.a[?(@..b == 1)]"}}},
		"scopes[0]":            {Scopes: []string{`a"b`}},
		"revoked[0]":           {Revoked: []string{"["}},
	} {
		if faults := c.Check(); len(faults) != 1 || faults[0].Key != key {
			t.Errorf("%s: %v", key, faults)
		}
	}
}

// No bytes that someone sends as a token make it pass, or stop the process.
func FuzzToken(f *testing.F) {
	is := issuer.New(f)
	a := New(Options{PublicURL: public, Config: Config{Issuers: map[string]*Issuer{"corp": {URL: is.URL, Roles: "$..groups[*]", Team: "$.a[?(@.b == 1)].c"}}}, Log: slog.New(slog.DiscardHandler)})
	valid := is.Sign(is.Claims("alice", public, nil), nil)
	f.Add(valid)
	f.Add(is.Sign(is.Claims("alice", public, issuer.Claims{"groups": []any{1, nil, "x"}}), issuer.Claims{"alg": "none"}))
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		if c, f := a.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + token}}, "/mcp"); f == nil && strings.TrimSpace(token) != valid {
			t.Errorf("%q is %+v", token, c)
		}
	})
}

// Hosts have to ask Entra for scopes by their full names, and its tokens have the short ones.
func TestStepUpNamesScopesInFull(t *testing.T) {
	const full = public + "/mcp/db.read"
	is := issuer.New(t)
	a := New(Options{Config: Config{Issuers: map[string]*Issuer{"corp": {URL: is.URL}}, Scopes: []string{full, "x.read"}}, PublicURL: public})
	got := a.StepUp("/mcp", []string{"openid", "db.read", "read", "db.write"})
	if want := `scope="openid ` + full + ` read db.write"`; !strings.Contains(got, want) {
		t.Errorf("challenge %s, want %s", got, want)
	}
}
