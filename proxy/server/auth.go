package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/proxy/wire"
)

// Tokens knows who may use the HTTP edge by the digests of their tokens. It
// never changes. An empty one lets everybody in.
type Tokens []Token

// Token says whose token it is that has a digest.
type Token struct {
	Principal string
	Digest    [sha256.Size]byte
}

// several reports whether there is more than one principal.
func (l Tokens) several() bool {
	return slices.ContainsFunc(l, func(t Token) bool { return t.Principal != l[0].Principal })
}

// Owner returns whose token it is. Every entry is compared, and all of it, so
// that the time it takes tells nothing of a token.
func (l Tokens) Owner(token string) (principal string, ok bool) {
	sum := sha256.Sum256([]byte(token))
	for i := range l {
		if subtle.ConstantTimeCompare(sum[:], l[i].Digest[:]) == 1 {
			principal, ok = l[i].Principal, true
		}
	}
	return principal, ok
}

// authenticate returns the principal of a request by its bearer token; given
// says that it has one, or what is meant to be one.
func (l Tokens) authenticate(h http.Header) (principal string, given, ok bool) {
	if len(l) == 0 {
		return LocalPrincipal, false, true
	}
	values := h["Authorization"]
	if len(values) != 1 { // of two, intermediaries and servers may read different ones
		return "", len(values) > 0, false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", true, false
	}
	principal, ok = l.Owner(strings.Trim(token, " "))
	return principal, true, ok
}

// unauthorized answers a request that nobody is known for. The body is JSON-RPC,
// for hosts that show it, and says what a person has to do.
func unauthorized(w http.ResponseWriter, given bool) {
	challenge, text := `Bearer realm="foldgate"`, "no token: send the header Authorization: Bearer <token>, with a token from the principals of foldgate's configuration"
	if given {
		challenge += `, error="invalid_token", error_description="the token is not one of foldgate's principals"`
		text = "the Authorization header holds no token of a principal of foldgate's configuration; check the host's headers setting, or ask the operator for a new token"
	}
	w.Header().Set("WWW-Authenticate", challenge)
	refuse(w, http.StatusUnauthorized, nil, &wire.Error{Code: wire.CodeInvalidRequest, Message: "401 Unauthorized: " + text})
}
