// Package auth says who a host is: by a static token of the configuration, or by an access token
// that an issuer has signed (OAuth 2.1). It is the resource server's part of MCP authorization; it
// issues no tokens. It keeps callers' tokens, in memory, only if they are to be exchanged.
//
// A principal of an issuer is called <issuer>:<value of a claim>. No other issuer and no principal
// of the configuration can have such a name.
package auth

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor"
)

// Caller is an authenticated client.
type Caller struct {
	// Identity is complete for the caller of an issuer. For others it has only the principal: the
	// team, roles and scopes are in the configuration.
	interceptor.Identity
	// Expires is when the token ends; zero for never.
	Expires time.Time
}

// Token maps the digest of a static token to its principal.
type Token struct {
	Principal string
	Digest    [sha256.Size]byte
	Expires   time.Time // zero for never
}

// Failure is why a request has no caller.
type Failure struct {
	// Status is 401, or 503 if the keys of the issuer can't be had.
	Status int
	// Rule names the check that failed, for the trace: principals for static tokens, else token_….
	Rule string
	// Message says what happened and what to do. It holds no part of a token.
	Message string
	// Given means that the request has an Authorization header.
	Given bool
}

// Options configure an Authenticator.
type Options struct {
	Tokens []Token
	Config Config
	// PublicURL is the origin under which hosts reach foldgate. It is needed with issuers.
	PublicURL string
	Log       *slog.Logger
	// Before is the authenticator that the new one replaces, or nil. Its keys and tokens are kept.
	Before *Authenticator
	// Keep means that TokenOf is used.
	Keep bool
}

// Authenticator says who sent a request. A nil Authenticator lets in everyone as [interceptor.LocalPrincipal]. Its
// configuration never changes. It is safe for concurrent use.
type Authenticator struct {
	tokens     []Token
	issuers    []*verifier
	config     Config
	publicURL  string
	lastTokens *lastTokens // nil: none are kept
}

// New returns an authenticator, nil if there are neither tokens nor issuers. The configuration must
// have passed [Config.Check].
func New(o Options) *Authenticator {
	if len(o.Tokens)+len(o.Config.Issuers) == 0 {
		return nil
	}
	a := &Authenticator{tokens: o.Tokens, config: o.Config, publicURL: strings.TrimSuffix(o.PublicURL, "/")}
	if o.Keep {
		if a.lastTokens = (&lastTokens{of: map[string]lastToken{}}); o.Before != nil && o.Before.lastTokens != nil {
			a.lastTokens = o.Before.lastTokens
		}
	}
	for name, c := range o.Config.Issuers {
		is := newVerifier(name, *c, a.publicURL)
		if before := o.Before.issuer(c.URL); before != nil && before.JWKSURL == c.JWKSURL {
			is.keys = before.keys
		} else {
			is.keys = newKeys(c.URL, c.JWKSURL, o.Log)
		}
		a.issuers = append(a.issuers, is)
	}
	return a
}

// issuer returns the issuer with a URL, or nil.
func (a *Authenticator) issuer(url string) *verifier {
	if a != nil {
		for _, is := range a.issuers {
			if is.URL == url {
				return is
			}
		}
	}
	return nil
}

// Authenticate returns the caller of a request for a path by its bearer token. It may wait up to 10
// seconds for the keys of an issuer.
func (a *Authenticator) Authenticate(ctx context.Context, h http.Header, path string) (Caller, *Failure) {
	if a == nil {
		return Caller{Identity: interceptor.Identity{Principal: interceptor.LocalPrincipal}}, nil
	}
	values := h["Authorization"]
	scheme, token := "", ""
	if len(values) == 1 { // of two, intermediaries and servers may read different ones
		scheme, token, _ = strings.Cut(values[0], " ")
		token = strings.Trim(token, " ")
	}
	if !strings.EqualFold(scheme, "Bearer") {
		return Caller{}, a.unknown(len(values) > 0)
	}
	now := time.Now()
	var c Caller
	switch t := a.find(token); {
	case t != nil && !t.Expires.IsZero() && !now.Before(t.Expires):
		return Caller{}, failed("principals", "the token of %s ended at %s: ask the operator for a new one", t.Principal, t.Expires.UTC().Format(time.RFC3339))
	case t != nil:
		c.Principal, c.Expires = t.Principal, t.Expires
	case len(a.issuers) == 0 || strings.Count(token, ".") != 2:
		return Caller{}, a.unknown(true)
	default:
		var f *Failure
		if c, f = a.verify(ctx, token, path, now); f != nil {
			return Caller{}, f
		}
	}
	if a.revoked(c.Principal) {
		return Caller{}, failed("token_revoked", "the operator has revoked the access of this principal")
	}
	if c.Issuer != "" {
		a.lastTokens.put(c, token)
	}
	return c, nil
}

// find returns the entry of a static token, or nil. It compares every entry in constant time, so that
// its duration tells nothing of the token.
func (a *Authenticator) find(token string) (found *Token) {
	sum := sha256.Sum256([]byte(token))
	for i := range a.tokens {
		if subtle.ConstantTimeCompare(sum[:], a.tokens[i].Digest[:]) == 1 {
			found = &a.tokens[i]
		}
	}
	return found
}

// Several reports whether there can be more than one principal.
func (a *Authenticator) Several() bool {
	return a != nil && (len(a.issuers) > 0 || slices.ContainsFunc(a.tokens, func(t Token) bool { return t.Principal != a.tokens[0].Principal }))
}

// Knows reports whether an earlier caller may still be let in, with a token that is valid.
func (a *Authenticator) Knows(id interceptor.Identity) bool {
	switch {
	case a == nil:
		return id.Principal == interceptor.LocalPrincipal
	case a.revoked(id.Principal):
		return false
	case id.Issuer != "":
		is := a.issuer(id.Issuer)
		return is != nil && strings.HasPrefix(id.Principal, is.name+":")
	}
	return slices.ContainsFunc(a.tokens, func(t Token) bool { return t.Principal == id.Principal })
}

// TokenOf returns the token of an issuer with which a principal called last. It is "" without a valid one,
// or if the principal is not let in any more.
func (a *Authenticator) TokenOf(issuer, principal string) string {
	if a == nil || a.lastTokens == nil || a.revoked(principal) {
		return ""
	}
	a.lastTokens.mu.Lock()
	defer a.lastTokens.mu.Unlock()
	if t := a.lastTokens.of[principal]; t.issuer == issuer && time.Now().Before(t.expires) {
		return t.text
	}
	return ""
}

// lastTokens are the last tokens of callers, by principal.
type lastTokens struct {
	mu   sync.Mutex
	of   map[string]lastToken
	most int // the number of tokens at which expired ones are forgotten
}

type lastToken struct {
	issuer, text string
	expires      time.Time
}

// maxLastTokens bounds the tokens that are kept. A principal beyond them has none until others expire. From
// minLastTokens on, expired ones are forgotten whenever there are twice as many tokens as after the last time.
const minLastTokens, maxLastTokens = 64, 10_000

func (h *lastTokens) put(c Caller, token string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.of[c.Principal]; !known && len(h.of) >= max(h.most, minLastTokens) {
		now := time.Now()
		maps.DeleteFunc(h.of, func(_ string, t lastToken) bool { return !now.Before(t.expires) })
		if h.most = min(2*len(h.of), maxLastTokens); len(h.of) >= maxLastTokens {
			return
		}
	}
	h.of[c.Principal] = lastToken{c.Issuer, token, c.Expires.Add(-clockSkew)}
}

// unknown is the failure of a request without a token, or with one that is not known.
func (a *Authenticator) unknown(given bool) *Failure {
	f := &Failure{Status: http.StatusUnauthorized, Rule: "principals", Given: given,
		Message: "no token: send the header Authorization: Bearer <token>, with a token from the principals of foldgate's configuration"}
	if given {
		f.Message = "the Authorization header holds no token of a principal of foldgate's configuration; check the host's headers setting, or ask the operator for a new token"
	}
	if len(a.issuers) > 0 {
		f.Message += ", or log in at " + strings.Join(a.servers(), " or ")
	}
	return f
}

// failed returns the failure of a token that was given.
func failed(rule, format string, args ...any) *Failure {
	return &Failure{Status: http.StatusUnauthorized, Rule: rule, Message: fmt.Sprintf(format, args...), Given: true}
}
