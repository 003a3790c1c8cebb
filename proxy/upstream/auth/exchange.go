package auth

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jwk"
	"github.com/lestrrat-go/jwx/v3/jws"
	sdk "github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/foldgate/foldgate/proxy/config"
)

// Types that go-sdk has no names for.
const (
	grantJWTBearer  = "urn:ietf:params:oauth:grant-type:jwt-bearer"   // RFC 7523
	typeAccessToken = "urn:ietf:params:oauth:token-type:access_token" // RFC 8693
)

// grant adds the grant type and its credentials to a token request. It returns the client that asks, and the
// id of the person's login, if one vouches for the person.
func (l *Login) grant(ctx context.Context, form url.Values) (as *config.OAuthClient, by string, err error) {
	switch {
	case l.cfg.ClientCredentials != nil:
		form.Set("grant_type", "client_credentials")
		return l.cfg.ClientCredentials, "", nil
	case l.cfg.TokenExchange != nil: // RFC 8693
		subject := l.ofCaller()
		if subject == "" {
			return nil, "", &Error{Code: codeRequired, text: fmt.Sprintf("foldgate exchanges the caller's own token of %s, and has none that is valid from %q: the host has to log in there, and call again", l.cfg.Issuer, l.principal)}
		}
		form.Set("grant_type", oauthex.GrantTypeTokenExchange)
		form.Set("subject_token", subject)
		form.Set("subject_token_type", typeAccessToken)
		form.Set("requested_token_type", typeAccessToken)
		return l.cfg.TokenExchange, "", nil
	}
	assertion, by, err := l.person.vouched(ctx, l.server, form.Get("scope"))
	form.Set("grant_type", grantJWTBearer)
	form.Set("assertion", assertion)
	form.Del("resource") // the assertion names it
	return &l.cfg.Enterprise.Client, by, err
}

// behind identifies who stands behind l: the id of the person's login, or the caller's token.
func (l *Login) behind() string {
	if l.person != nil {
		if g, _ := l.person.load(); g != nil {
			return g.ID
		}
	}
	if l.cfg.TokenExchange != nil {
		return l.ofCaller()
	}
	return ""
}

// ofCaller returns the token of the caller that is to be exchanged, "" if there is none.
func (l *Login) ofCaller() string {
	if l.of.TokenOf == nil {
		return ""
	}
	return l.of.TokenOf(l.cfg.Issuer, l.principal)
}

// atProvider returns the login of the person at the company's identity provider. All upstreams with the
// same client at the same provider share it, on disk.
func (l *Login) atProvider() *Login {
	p := l.cfg.Enterprise.Provider
	return &Login{
		of: l.of, upstream: l.upstream, principal: l.principal, provider: true, url: p.Issuer, client: newClient(p.Issuer),
		file: fileOf("@"+fileOf("", p.Issuer+" "+p.ClientID), l.principal),
		cfg: &config.Auth{Issuer: p.Issuer, Scopes: []string{"openid"}, AuthorizationCode: &config.AuthorizationCode{
			ClientID: p.ClientID, ClientSecret: p.ClientSecret, RedirectPort: p.RedirectPort, Per: l.cfg.Enterprise.Per,
		}},
	}
}

// vouched returns the assertion of the identity provider for the authorization server s of an upstream
// (ID-JAG), and the id of the login behind it.
func (l *Login) vouched(ctx context.Context, s *server, scope string) (assertion, by string, err error) {
	g, err := l.load() // first: with the id of a later login, the token of this one would be kept
	if err != nil || g == nil {
		return "", "", l.unusable(err)
	}
	subject, err := l.current(ctx)
	if err != nil {
		return "", "", err
	}
	exchange := func() (t *token, refused bool, err error) {
		form := url.Values{
			"grant_type": {oauthex.GrantTypeTokenExchange}, "requested_token_type": {oauthex.TokenTypeIDJAG}, "audience": {s.Issuer}, "resource": {s.resource},
			"subject_token": {subject}, "subject_token_type": {oauthex.TokenTypeIDToken},
		}
		if scope != "" {
			form.Set("scope", scope)
		}
		t, err = requestToken(ctx, l.client, g.Endpoint, client{ID: g.ClientID, Secret: g.Secret, methods: g.Methods}, form)
		f, ok := errors.AsType[*fault](err)
		return t, ok && f.code == "invalid_grant", err
	}
	t, refused, err := exchange()
	if refused { // the ID token may be too old
		if subject, err = l.renew(ctx, subject, challenge{}); err != nil {
			return "", "", err
		}
		t, refused, err = exchange()
	}
	switch {
	case refused:
		return "", "", l.required(fmt.Sprintf("the identity provider %s no longer takes the login (%v)", l.url, err))
	case err != nil:
		return "", "", fmt.Errorf("the identity provider %s does not vouch for the person: %w", l.url, err)
	case t.kind != oauthex.TokenTypeIDJAG:
		return "", "", fmt.Errorf("the identity provider %s gives a token of the type %q for the authorization server of the upstream, not an ID-JAG", l.url, tidy(t.kind, 100, nil))
	}
	return t.Access, g.ID, nil
}

// providerAt reads the metadata of an identity provider.
func providerAt(ctx context.Context, c *http.Client, issuer string) (*server, error) {
	meta, err := sdk.GetAuthServerMetadata(ctx, issuer, c)
	switch {
	case err != nil:
		return nil, fmt.Errorf("metadata of the identity provider: %w", err)
	case meta == nil || meta.TokenEndpoint == "":
		return nil, fmt.Errorf("the identity provider %q has no metadata that names a token_endpoint", issuer)
	}
	return &server{AuthServerMeta: meta}, nil
}

var errNoIdentity = errors.New("the identity provider gives no ID token: does the client have the scope openid there?")

// identity returns the ID token beside t, as the token of a login at an identity provider. foldgate does
// not check it: it goes back to the provider, which does, and to nobody else.
func (t *token) identity() (*token, error) {
	if t.id == "" || len(t.id) > maxToken {
		return nil, errNoIdentity
	}
	id := &token{Access: t.id, Refresh: t.Refresh, Expiry: t.Expiry, Renew: t.Renew, Scopes: t.Scopes}
	var claims struct{ Exp int64 }
	if parts := strings.Split(t.id, "."); len(parts) == 3 {
		payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
		if json.Unmarshal(payload, &claims) == nil && claims.Exp > 0 {
			id.lives(time.Until(time.Unix(claims.Exp, 0)))
		}
	}
	return id, nil
}

// proofLife is how long a client assertion is valid.
const proofLife = time.Minute

// proven returns a client of the configuration with what proves it to the authorization server issuer.
func (l *Login) proven(c *config.OAuthClient, issuer string, methods []string) (client, error) {
	p := client{ID: c.ClientID, Secret: string(c.ClientSecret), methods: methods}
	if c.PrivateKeyFile == "" {
		return p, nil
	}
	text, err := os.ReadFile(l.of.path(c.PrivateKeyFile))
	if err != nil {
		return p, fmt.Errorf("private_key_file: %w", err)
	}
	key, err := jwk.ParseKey(text, jwk.WithPEM(true)) // no error of it holds the text
	if err != nil {
		return p, fmt.Errorf("private_key_file %s is not a private key as PEM; `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256` makes one", c.PrivateKeyFile)
	}
	var raw any
	var alg jwa.SignatureAlgorithm
	err = jwk.Export(key, &raw)
	switch k := raw.(type) {
	case *rsa.PrivateKey:
		alg = jwa.RS256()
	case *ecdsa.PrivateKey:
		alg = map[int]jwa.SignatureAlgorithm{256: jwa.ES256(), 384: jwa.ES384(), 521: jwa.ES512()}[k.Params().BitSize]
	case ed25519.PrivateKey:
		alg = jwa.EdDSA()
	}
	if err != nil || alg.String() == "" {
		return p, fmt.Errorf("private_key_file %s has no private key of the kinds RSA, EC (P-256, P-384, P-521) and Ed25519", c.PrivateKeyFile)
	}
	now := time.Now()
	claims, _ := json.Marshal(map[string]any{"iss": c.ClientID, "sub": c.ClientID, "aud": issuer, "iat": now.Unix(), "exp": now.Add(proofLife).Unix(), "jti": rand.Text()})
	signed, err := jws.Sign(claims, jws.WithKey(alg, raw))
	if err != nil {
		return p, fmt.Errorf("private_key_file %s: %w", c.PrivateKeyFile, err)
	}
	p.proof = string(signed)
	return p, nil
}
