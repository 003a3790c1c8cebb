package auth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lestrrat-go/jwx/v3/jwa"
	"github.com/lestrrat-go/jwx/v3/jws"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/internal/jsonpath"
)

const (
	// maxToken is the longest token that is read, in bytes.
	maxToken = 16 << 10
	// clockSkew is how far the clocks of foldgate and an issuer may differ.
	clockSkew = 30 * time.Second
	// maxName is the longest principal, team, role or scope, in bytes, and maxLabels the most roles,
	// and scopes, of a token. A token that has more is refused: a deny rule could look for what is
	// left out.
	maxName   = 256
	maxLabels = 256
)

// verifier reads the tokens of one issuer.
type verifier struct {
	Issuer
	name       string
	keys       *keys
	algorithms map[string]jwa.SignatureAlgorithm
	// audience are the values of aud without those that depend on the path. All endpoints belong to one
	// resource server, so a token for /mcp holds at the URL of a branch, too. byPath: the URL of the
	// request is an audience, too; a token for a branch's URL holds only there.
	audience []string
	byPath   bool

	principal, team, roles jsonpath.Path
	scopes                 []jsonpath.Path
}

func newVerifier(name string, c Issuer, publicURL string) *verifier {
	is := &verifier{Issuer: c, name: name, algorithms: algorithmsOf(c.Algorithms), audience: c.Audience}
	if len(c.Audience) == 0 {
		is.audience, is.byPath = []string{publicURL, publicURL + "/", publicURL + "/mcp"}, true
	}
	path := func(s string) jsonpath.Path {
		x, _ := jsonpath.Parse(s) // Check has done it; "" is none
		return x
	}
	is.principal, is.team, is.roles = path(c.Principal), path(c.Team), path(c.Roles)
	if c.Principal == "" {
		is.principal = path("$.sub")
	}
	if is.scopes = []jsonpath.Path{path(c.Scopes)}; c.Scopes == "" {
		is.scopes = []jsonpath.Path{path("$.scope"), path("$.scp")}
	}
	return is
}

// verify returns the caller of a JSON Web Token. Nothing that the token says counts before its
// signature is checked, but the issuer that it names: only that issuer's keys are tried.
func (a *Authenticator) verify(ctx context.Context, token, path string, now time.Time) (c Caller, f *Failure) {
	header, claims := part(token, 0), part(token, 1)
	if len(token) > maxToken || header == nil || claims == nil {
		return c, failed("token_malformed", "the token is not a JSON Web Token of at most %d bytes", maxToken)
	}
	named, _ := claims["iss"].(string)
	is := a.issuer(named)
	if is == nil {
		return c, failed("token_issuer", "the token is not from an issuer of foldgate's configuration: log in at %s", strings.Join(a.servers(), " or "))
	}
	if f := is.signed(ctx, token, header); f != nil {
		return c, f
	}
	return is.caller(claims, a.publicURL+path, now)
}

// part returns the header or the claims of a token as JSON, nil if it is no object.
func part(token string, n int) (object map[string]any) {
	raw, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[n])
	if err != nil || !utf8.Valid(raw) || json.Unmarshal(raw, &object) != nil {
		return nil
	}
	return object
}

// signed checks the signature. The algorithm is one of the configured ones, and fits the key.
func (is *verifier) signed(ctx context.Context, token string, header map[string]any) *Failure {
	name, _ := header["alg"].(string)
	alg, ok := is.algorithms[name]
	if !ok {
		return failed("token_algorithm", "the token is not signed with an algorithm that the issuer %s may use", is.name)
	}
	if typ, given := header["typ"].(string); given && !slices.Contains([]string{"jwt", "at+jwt", "application/at+jwt"}, strings.ToLower(typ)) {
		return failed("token_type", "the token is not an access token: its header says another typ")
	}
	kid, _ := header["kid"].(string)
	key, err := is.keys.find(ctx, kid)
	switch {
	case errors.Is(err, errUnknownKey):
		return failed("token_key", "the token is signed with a key that the issuer %s does not have: log in again", is.name)
	case err != nil:
		return &Failure{Status: http.StatusServiceUnavailable, Rule: "issuer_unavailable", Given: true,
			Message: "the keys of the issuer " + is.name + " can't be had; try again in a minute"}
	}
	if own, has := key.Algorithm(); has && own.String() != name {
		return failed("token_algorithm", "the token is not signed with the algorithm of its key")
	}
	if _, err := jws.VerifyCompactFast(key, []byte(token), alg); err != nil {
		return failed("token_signature", "the signature of the token is wrong: log in again")
	}
	return nil
}

// caller checks the claims, and reads the identity from them. url is that of the request.
func (is *verifier) caller(claims map[string]any, url string, now time.Time) (c Caller, f *Failure) {
	expires, ok := moment(claims["exp"])
	switch {
	case !ok:
		return c, failed("token_expired", "the token has no time at which it ends (exp)")
	case !now.Before(expires.Add(clockSkew)):
		return c, failed("token_expired", "the token has expired: log in again")
	}
	for _, claim := range []string{"nbf", "iat"} {
		if at, ok := moment(claims[claim]); claims[claim] != nil && (!ok || now.Add(clockSkew).Before(at)) {
			return c, failed("token_not_yet_valid", "the token is not valid yet (%s): check the clocks", claim)
		}
	}
	if !slices.ContainsFunc(texts(claims["aud"]), func(aud string) bool {
		return slices.Contains(is.audience, aud) || is.byPath && aud == url
	}) {
		return c, failed("token_audience", "the token is for another resource: log in for %s", url)
	}
	subject, _ := claims["sub"].(string)
	who := find(is.principal, claims)
	if subject == "" || len(who) != 1 || !named(who[0]) || strings.ContainsFunc(who[0], unicode.IsSpace) {
		return c, failed("token_principal", "the token does not name its principal: it needs sub, and the claim that auth.issuers.%s.principal names", is.name)
	}
	c.Identity = interceptor.Identity{Principal: is.name + ":" + who[0], Issuer: is.URL, Subject: subject}
	c.Roles = find(is.roles, claims)
	if teams := find(is.team, claims); len(teams) > 0 {
		c.Team = teams[0]
	}
	for _, path := range is.scopes {
		for _, s := range find(path, claims) {
			c.Scopes = append(c.Scopes, strings.Fields(s)...)
		}
	}
	all := append(append(slices.Clone(c.Roles), c.Scopes...), c.Team)
	if len(c.Roles) > maxLabels || len(c.Scopes) > maxLabels || slices.ContainsFunc(all, func(s string) bool { return s != "" && !named(s) }) {
		return c, failed("token_principal", "the token has more than %d roles or scopes, or one that is not printable or longer than %d bytes", maxLabels, maxName)
	}
	c.Expires = expires.Add(clockSkew)
	return c, nil
}

// moment returns a NumericDate.
func moment(v any) (time.Time, bool) {
	n, ok := v.(float64)
	if !ok || n < 0 || n > 1<<40 {
		return time.Time{}, false
	}
	whole, fraction := math.Modf(n)
	return time.Unix(int64(whole), int64(fraction*1e9)), true
}

// texts returns the strings of a claim that is one or a list of them.
func texts(v any) (all []string) {
	switch v := v.(type) {
	case string:
		return []string{v}
	case []any:
		for _, e := range v {
			all = append(all, texts(e)...)
		}
	}
	return all
}

// find returns the strings that a path selects, also those in a list that it selects.
func find(path jsonpath.Path, claims map[string]any) []string {
	return texts(path.Select(claims, math.MaxInt))
}

// named reports whether a text can be a name in the policy and the trace.
func named(s string) bool {
	return s != "" && len(s) <= maxName && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
