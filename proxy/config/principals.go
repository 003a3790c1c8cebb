package config

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
)

// Principal is somebody who may use the HTTP edge: exactly one of Token
// and TokenSHA256 is set.
type Principal struct {
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

// TLS names the PEM files of the HTTP edge's certificate chain and key.
// Both or none are set.
type TLS struct {
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

// PrincipalNames returns the names of the configured principals, sorted.
func (c Config) PrincipalNames() []string { return slices.Sorted(maps.Keys(c.Principals)) }

// Digest is the SHA-256 of the principal's token; ok is false where the
// configuration has none that can be used.
func (p *Principal) Digest() (sum [sha256.Size]byte, ok bool) {
	if p.Token != "" {
		return sha256.Sum256([]byte(p.Token)), true
	}
	raw, err := hex.DecodeString(p.TokenSHA256)
	return sum, err == nil && copy(sum[:], raw) == sha256.Size && len(raw) == sha256.Size
}

// Tokens returns the tokens that are known as they are.
func (c Config) Tokens() (tokens []string) {
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
	for _, name := range c.PrincipalNames() {
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
		sum, ok := p.Digest()
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
		if h == "" || strings.ContainsAny(h, "/ *") || hasPort(h) {
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
	if c.Exposed() && len(c.Principals) == 0 {
		bad("listen", "%q is not a loopback address, and without principals everybody who reaches it could use your servers; give hosts tokens under principals, or use 127.0.0.1:%s", c.Listen, port)
	}
}

// hasPort reports whether a host name is followed by a port. An IPv6 address has colons of
// its own.
func hasPort(host string) bool {
	_, _, err := net.SplitHostPort(host)
	return err == nil
}

// Exposed reports whether other machines can reach the HTTP edge.
func (c Config) Exposed() bool {
	host, _, err := net.SplitHostPort(c.Listen)
	if c.Listen == "" || err != nil || host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.Unmap().IsLoopback()
}

// Secure reports whether the HTTP edge speaks TLS.
func (c Config) Secure() bool { return c.TLS.Cert != "" }

// Certificate loads what the HTTP edge shows of itself.
func (c Config) Certificate() (tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.Path(c.TLS.Cert), c.Path(c.TLS.Key))
	if err != nil {
		return cert, fmt.Errorf("certificate %s with key %s: %w", c.TLS.Cert, c.TLS.Key, err)
	}
	return cert, nil
}
