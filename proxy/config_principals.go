package proxy

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/proxy/edge"
)

// PrincipalConfig is somebody who may use the HTTP edge: exactly one of Token
// and TokenSHA256 is set.
type PrincipalConfig struct {
	// Token is the bearer token that the hosts of this principal send.
	Token Secret `yaml:"token"`
	// TokenSHA256 is the SHA-256 of the token in hexadecimal digits.
	TokenSHA256 string `yaml:"token_sha256"`
}

// Secret is a text that is never printed, logged or encoded.
type Secret string

// String implements fmt.Stringer.
func (s Secret) String() string { return "[secret]" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return "[secret]" }

// LogValue implements slog.LogValuer.
func (s Secret) LogValue() slog.Value { return slog.StringValue("[secret]") }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// TLSConfig names the PEM files of the HTTP edge's certificate chain and key.
// Both or none are set.
type TLSConfig struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Bounds of a token, in characters.
const (
	minToken = 16
	maxToken = 4096
)

var (
	principalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$`)
	tokenForm     = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`) // RFC 6750, b64token
)

// principalNames returns the names of the configured principals, sorted.
func (c Config) principalNames() []string { return slices.Sorted(maps.Keys(c.Principals)) }

// digest is the SHA-256 of the principal's token; ok is false where the
// configuration has none that can be used.
func (p *PrincipalConfig) digest() (sum [sha256.Size]byte, ok bool) {
	if p.Token != "" {
		return sha256.Sum256([]byte(p.Token)), true
	}
	raw, err := hex.DecodeString(p.TokenSHA256)
	return sum, err == nil && copy(sum[:], raw) == sha256.Size && len(raw) == sha256.Size
}

// tokens returns the tokens that are known as they are.
func (c Config) tokens() (tokens []string) {
	for _, p := range c.Principals {
		if p.Token != "" {
			tokens = append(tokens, string(p.Token))
		}
	}
	slices.Sort(tokens)
	return tokens
}

// validatePrincipals never puts a token, or a part of one, into a fault.
func (c Config) validatePrincipals(bad func(string, string, ...any)) {
	owner := map[[sha256.Size]byte]string{}
	for _, name := range c.principalNames() {
		p, at := c.Principals[name], "principals."+name
		if !principalName.MatchString(name) {
			bad(at, "the name must be 1 to 64 letters, digits, '_', '-', '.' or '@'")
		}
		if p == nil || (p.Token == "" && p.TokenSHA256 == "") {
			bad(at, "has no token: give it token or token_sha256")
			continue
		}
		if p.Token != "" && p.TokenSHA256 != "" {
			bad(at, "has both token and token_sha256: give it one of them")
			continue
		}
		sum, ok := p.digest()
		switch n := len(p.Token); {
		case !ok:
			bad(at+".token_sha256", "is not 64 hexadecimal digits; `printf %%s \"$TOKEN\" | sha256sum` prints them")
			continue
		case p.Token != "" && n < minToken:
			bad(at+".token", "has %d characters, fewer than %d, and could be guessed; `openssl rand -hex 32` makes a good one", n, minToken)
		case n > maxToken:
			bad(at+".token", "has %d characters, more than %d", n, maxToken)
		case p.Token != "" && !tokenForm.MatchString(string(p.Token)):
			bad(at+".token", "has characters that a bearer token can't have; use letters, digits and -._~+/")
		}
		if other, taken := owner[sum]; taken {
			bad(at, "has the same token as %s: give each principal its own", other)
		}
		owner[sum] = name
	}
}

func (c Config) validateListen(bad func(string, string, ...any)) {
	if (c.TLS.Cert == "") != (c.TLS.Key == "") {
		bad("tls", "needs both cert and key, and has one of them")
	}
	for i, h := range c.AllowedHosts {
		if h == "" || strings.ContainsAny(h, "/ *") || edge.HostName(h) != strings.Trim(h, "[]") {
			bad(fmt.Sprintf("allowed_hosts[%d]", i), "%q is not a host name: give each in full, without scheme and port", h)
		}
	}
	for i, o := range c.AllowedOrigins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || !strings.EqualFold(u.Scheme+"://"+u.Host, strings.TrimSuffix(o, "/")) || strings.Contains(o, "*") {
			bad(fmt.Sprintf("allowed_origins[%d]", i), "%q is not an origin: name each as scheme://host[:port], such as https://app.example.com", o)
		}
	}
	if c.Listen == "" {
		return
	}
	_, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		bad("listen", "%q is not host:port, such as 127.0.0.1:8787", c.Listen)
		return
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		bad("listen", "%q has no valid port", c.Listen)
	}
	if c.exposed() && len(c.Principals) == 0 {
		bad("listen", "%q is not a loopback address, and without principals everybody who reaches it could use your servers; give hosts tokens under principals, or use 127.0.0.1:%s", c.Listen, port)
	}
}

// exposed reports whether other machines can reach the HTTP edge.
func (c Config) exposed() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if c.Listen == "" || err != nil || host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}

// Secure reports whether the HTTP edge speaks TLS.
func (c Config) Secure() bool { return c.TLS.Cert != "" }

// tokenList returns the principals of a valid configuration, as the edge knows
// them.
func (c Config) tokenList() edge.Tokens {
	var l edge.Tokens
	for _, name := range c.principalNames() {
		sum, _ := c.Principals[name].digest()
		l = append(l, edge.Token{Principal: name, Digest: sum})
	}
	return l
}

// certificate loads what the HTTP edge shows of itself.
func (c Config) certificate() (tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.path(c.TLS.Cert), c.path(c.TLS.Key))
	if err != nil {
		return cert, fmt.Errorf("certificate %s with key %s: %w", c.TLS.Cert, c.TLS.Key, err)
	}
	return cert, nil
}
