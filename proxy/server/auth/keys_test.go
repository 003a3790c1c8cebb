package auth

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"

	"github.com/foldgate/foldgate/interceptor"
)

// answering is an issuer that answers with texts, by the end of the path. It fails for URLs at which
// foldgate must not ask.
type answering struct {
	t       *testing.T
	answers map[string]string
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if fault := CheckURL(r.URL.String()); fault != "" {
		a.t.Errorf("foldgate asks at %s, which %s", r.URL, fault)
	}
	body, ok := a.answers[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]
	if !ok {
		body = a.answers[""]
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// Whatever an issuer answers, foldgate takes a bounded set of keys from a place that may be asked, and
// no key makes a signature out of nothing.
func FuzzKeys(f *testing.F) {
	const issuer, set = "https://issuer.example", `{"issuer":"https://issuer.example","jwks_uri":"https://keys.example/set"}`
	for _, keys := range []string{
		`{"keys":[]}`, `{"keys":[{}]}`, `{"keys":null}`, `[]`, ``,
		`{"keys":[{"kty":"oct","kid":"a","k":"AAAA"},{"kty":"oct","kid":"a","k":""}]}`,
		`{"keys":[{"kty":"RSA","use":"enc","n":"AQAB","e":"AQAB"},{"kty":"RSA","use":"sig","alg":"RS256","kid":"a","n":"AQAB","e":"AA"}]}`,
		`{"keys":[{"kty":"EC","crv":"P-256","kid":1,"x":"AA","y":"AA"},{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`,
		`{"keys":[` + strings.Repeat(`{"kty":"oct","k":"AAAA"},`, maxKeys) + `{"kty":"oct","k":"AAAA"}]}`,
	} {
		f.Add(set, keys)
	}
	f.Add(`{"issuer":"https://issuer.example","jwks_uri":"file:///etc/passwd"}`, `{"keys":[]}`)
	f.Add(`{"issuer":"https://issuer.example","jwks_uri":"http://169.254.169.254/x"}`, `{"keys":[]}`)
	f.Add(`{"issuer":"https://other.example","jwks_uri":"https://keys.example/set"}`, `{"keys":[]}`)
	f.Fuzz(func(t *testing.T, metadata, text string) {
		k := newKeys(issuer, "", slog.New(slog.DiscardHandler))
		k.client.Transport = answering{t, map[string]string{"openid-configuration": metadata, "oauth-authorization-server": metadata, "": text}}
		got, err := k.get(t.Context())
		if err != nil {
			return
		}
		if got.Len() > maxKeys {
			t.Errorf("%d keys", got.Len())
		}
		k.set, k.fetched, k.barren = got, time.Now(), time.Now()
		kids := []string{""}
		for i := range got.Len() {
			key, _ := got.Key(i)
			kid, _ := key.KeyID()
			kids = append(kids, kid)
		}
		for _, kid := range kids {
			key, err := k.find(t.Context(), kid)
			if err != nil {
				continue
			}
			for name := range algorithmsOf(nil) {
				alg, _ := jwa.LookupSignatureAlgorithm(name)
				if _, err := jws.VerifyCompactFast(key, []byte("eyJhbGciOiJub25lIn0.e30."), alg); err == nil {
					t.Errorf("the key %q takes a token without a signature for one of %s", kid, name)
				}
			}
		}
	})
}

// Tokens that have expired are forgotten, and there is a bound for the others.
func TestLastTokensAreBounded(t *testing.T) {
	h := &lastTokens{of: map[string]lastToken{}}
	put := func(n int, life time.Duration) {
		for i := range n {
			h.put(Caller{Identity: interceptor.Identity{Principal: fmt.Sprint(life, i)}, Expires: time.Now().Add(life + clockSkew)}, "token")
		}
	}
	put(50, time.Hour)
	put(5000, -time.Second)
	if n := len(h.of); n > 2*minLastTokens {
		t.Errorf("%d tokens are kept, of which 50 have not expired", n)
	}
	put(2*maxLastTokens, time.Hour)
	if n := len(h.of); n != maxLastTokens {
		t.Errorf("%d tokens are kept, want %d", n, maxLastTokens)
	}
}
