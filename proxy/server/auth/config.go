package auth

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/lestrrat-go/jwx/v3/jwa"

	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/internal/jsonpath"
	"github.com/foldgate/foldgate/internal/publicip"
)

// Config says which issuers' tokens are taken.
type Config struct {
	Issuers map[string]*Issuer `yaml:"issuers"` // by the name that begins their principals; at most 16
	Scopes  []string           `yaml:"scopes"`  // what hosts should ask an issuer for
	// Auditor and Operator are the roles of those who may read the trace, and of those who may end
	// branches and reset limits, over HTTP; "" for nobody.
	Auditor  string `yaml:"auditor"`
	Operator string `yaml:"operator"`
	// Revoked are globs on principals that are not let in, whatever their token says.
	Revoked []string `yaml:"revoked"`
}

// Issuer is an authorization server, and how its tokens are read.
type Issuer struct {
	URL string `yaml:"url"` // the claim iss of its tokens, letter by letter
	// Audience are values of the claim aud: a token must have one of them. If there are none, it must
	// have the URL of foldgate's endpoint or its origin, by public_url.
	Audience []string `yaml:"audience"`
	JWKSURL  string   `yaml:"jwks_url"` // the issuer's keys; "" is found by its metadata
	// Algorithms are the accepted signature algorithms; empty for all of RS, PS, ES and EdDSA.
	Algorithms []string `yaml:"algorithms"`
	// Principal, Team, Roles and Scopes are JSONPaths on the claims. "" is $.sub, none, none, and
	// the claims scope and scp.
	Principal string `yaml:"principal"`
	Team      string `yaml:"team"`
	Roles     string `yaml:"roles"`
	Scopes    string `yaml:"scopes"`
}

// algorithms are those that can be configured: signatures by a private key. An HMAC would make every
// verifier an issuer.
var algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

const maxIssuers = 16

var issuerName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$`)

// Check returns every fault. The keys are below auth.
func (c Config) Check() (wrong faults.List) {
	fault := wrong.If
	fault(len(c.Issuers) > maxIssuers, "issuers", "has %d entries, more than %d", len(c.Issuers), maxIssuers)
	owner := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Issuers)) {
		is, at := c.Issuers[name], "issuers."+name
		fault(!issuerName.MatchString(name), at, "the name must be 1 to 32 letters, digits, '_', '-' or '.'")
		if is == nil {
			fault(true, at, "is empty: give it url, the issuer's own")
			continue
		}
		fault(CheckURL(is.URL) != "", at+".url", "%q %s", is.URL, CheckURL(is.URL))
		fault(owner[is.URL] != "", at+".url", "%q is also the url of %s: give it once", is.URL, owner[is.URL])
		owner[is.URL] = name
		fault(is.JWKSURL != "" && CheckURL(is.JWKSURL) != "", at+".jwks_url", "%q %s", is.JWKSURL, CheckURL(is.JWKSURL))
		fault(slices.Contains(is.Audience, ""), at+".audience", "has an empty entry: every token without an audience would have it")
		for _, alg := range is.Algorithms {
			fault(!slices.Contains(algorithms, alg), at+".algorithms", "%q is not one of %s", alg, strings.Join(algorithms, ", "))
		}
		for _, claim := range [][2]string{{".principal", is.Principal}, {".team", is.Team}, {".roles", is.Roles}, {".scopes", is.Scopes}} {
			if key, path := claim[0], claim[1]; path != "" {
				_, err := jsonpath.Parse(path)
				fault(err != nil, at+key, "%v", err)
			}
		}
	}
	for i, s := range c.Scopes {
		fault(!scopeForm.MatchString(s), fmt.Sprintf("scopes[%d]", i), "%q must be 1 to 256 printable ASCII characters without spaces, quotes and backslashes", s)
	}
	for i, glob := range c.Revoked {
		fault(!globs.Valid(glob), fmt.Sprintf("revoked[%d]", i), globs.Invalid, glob)
	}
	return wrong
}

var scopeForm = regexp.MustCompile(`^[!#-\[\]-~]{1,256}$`) // RFC 6749, scope-token

func (a *Authenticator) revoked(principal string) bool {
	return globs.Any(a.config.Revoked, principal)
}

// CheckURL returns what is wrong with the URL of an issuer or of its keys, or "". It must be https;
// http is for loopback addresses only, since whoever can change the keys can be anyone.
func CheckURL(s string) string {
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Fragment != "" || u.User != nil || u.RawQuery != "":
		return "is not a URL: write https://host[/path], without user, query and fragment"
	case !publicip.Confidential(u):
		return "must be https: whoever could change its answers could be anyone"
	}
	return ""
}

// algorithmsOf returns the algorithms by name.
func algorithmsOf(names []string) map[string]jwa.SignatureAlgorithm {
	if len(names) == 0 {
		names = algorithms
	}
	all := map[string]jwa.SignatureAlgorithm{}
	for _, name := range names {
		all[name], _ = jwa.LookupSignatureAlgorithm(name)
	}
	return all
}
