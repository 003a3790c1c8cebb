// Package issuer is an authorization server for tests: it publishes metadata and keys, and signs what
// it is told to, also wrongly.
package issuer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Issuer is one that listens on a loopback address until its test ends. It is safe for concurrent use.
type Issuer struct {
	URL string

	mu      sync.Mutex
	kid     string
	rsa     *rsa.PrivateKey
	ec      *ecdsa.PrivateKey
	fetches int
	answer  func(w http.ResponseWriter, r *http.Request) bool
}

// Claims are those of a token.
type Claims = map[string]any

// New starts an issuer.
func New(t testing.TB) *Issuer {
	t.Helper()
	is := &Issuer{}
	is.Rotate(t, "first")
	srv := httptest.NewServer(is)
	t.Cleanup(srv.Close)
	is.URL = srv.URL
	return is
}

// Rotate replaces the keys. Both have the id kid, with -ec after that of the second.
func (is *Issuer) Rotate(t testing.TB, kid string) {
	t.Helper()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is.mu.Lock()
	defer is.mu.Unlock()
	is.kid, is.rsa, is.ec = kid, rsaKey, ecKey
}

// Answer lets f answer requests; it reports whether it did. nil restores the issuer's own answers.
func (is *Issuer) Answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	is.mu.Lock()
	defer is.mu.Unlock()
	is.answer = f
}

// Fetches returns how often the keys were asked for.
func (is *Issuer) Fetches() int {
	is.mu.Lock()
	defer is.mu.Unlock()
	return is.fetches
}

// ServeHTTP implements [http.Handler].
func (is *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	is.mu.Lock()
	answer, kid, rsaKey, ecKey := is.answer, is.kid, is.rsa.PublicKey, is.ec.PublicKey
	if r.URL.Path == "/jwks" {
		is.fetches++
	}
	is.mu.Unlock()
	if answer != nil && answer(w, r) {
		return
	}
	point, _ := ecKey.Bytes() // its curve is P-256
	var body any
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		body = Claims{"issuer": is.URL, "jwks_uri": is.URL + "/jwks"}
	case "/jwks":
		body = Claims{"keys": []Claims{
			{"kty": "RSA", "kid": kid, "use": "sig", "n": b64(rsaKey.N.Bytes()), "e": "AQAB"},
			{"kty": "EC", "kid": kid + "-ec", "crv": "P-256", "x": b64(point[1:33]), "y": b64(point[33:])},
			{"kty": "RSA", "kid": "encrypts", "use": "enc", "n": b64(rsaKey.N.Bytes()), "e": "AQAB"},
			// Keys that a program may not know, or that are wrong, say nothing of the others (RFC 7517, section 5).
			{"kty": "AKP", "alg": "ML-DSA-44", "kid": "later", "pub": "AAAA"},
			{"kty": "EC", "kid": "other-curve", "crv": "secp256k1", "x": b64(point[1:33]), "y": b64(point[33:])},
			{"kty": "RSA", "kid": "incomplete", "e": "AQAB"},
		}}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(body) // after an error the client is gone
}

// Claims returns the claims of a token that is valid for an hour.
func (is *Issuer) Claims(sub, aud string, more Claims) Claims {
	c := Claims{"iss": is.URL, "sub": sub, "aud": aud, "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	maps.Copy(c, more)
	for k, v := range c {
		if v == nil {
			delete(c, k)
		}
	}
	return c
}

// Sign returns a token. header replaces members of {"alg":"RS256","kid":…,"typ":"at+jwt"}; its alg is
// RS256, PS256, ES256, HS256 (with the public key as the secret), or none, which has no signature.
func (is *Issuer) Sign(claims Claims, header Claims) string {
	is.mu.Lock()
	kid, rsaKey, ecKey := is.kid, is.rsa, is.ec
	is.mu.Unlock()
	h := Claims{"alg": "RS256", "kid": kid, "typ": "at+jwt"}
	if header["alg"] == "ES256" {
		h["kid"] = kid + "-ec"
	}
	maps.Copy(h, header)
	head, _ := json.Marshal(h)
	body, _ := json.Marshal(claims)
	text := b64(head) + "." + b64(body)
	sum := sha256.Sum256([]byte(text))
	var sig []byte
	switch h["alg"] {
	case "RS256", "RS512":
		sig, _ = rsa.SignPKCS1v15(rand.Reader, rsaKey, crypto.SHA256, sum[:])
	case "PS256":
		sig, _ = rsa.SignPSS(rand.Reader, rsaKey, crypto.SHA256, sum[:], &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash})
	case "ES256":
		r, s, _ := ecdsa.Sign(rand.Reader, ecKey, sum[:])
		sig = append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...)
	case "HS256":
		mac := hmac.New(sha256.New, rsaKey.N.Bytes())
		mac.Write([]byte(text))
		sig = mac.Sum(nil)
	}
	return text + "." + b64(sig)
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }
