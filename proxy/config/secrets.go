package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// Secrets returns the secrets that the configuration holds in plain text, sorted: tokens, client secrets and keys; of
// upstreams the values of variables, headers and options whose names say so, what stands behind Bearer, and passwords in
// URLs. A short one that could be a word is left out, and so is the name of a file.
func (c Config) Secrets() (secrets []string) {
	add := func(s Secret) {
		if len(s) >= minToken {
			secrets = append(secrets, string(s))
		}
	}
	for _, p := range c.Principals {
		for _, t := range p.All() {
			add(t.Token)
		}
	}
	for _, u := range c.Upstreams {
		for _, client := range u.Auth.clients() {
			add(client.ClientSecret)
		}
		if a := u.Auth; a != nil && a.AuthorizationCode != nil {
			add(a.AuthorizationCode.ClientSecret)
		}
		if a := u.Auth; a != nil && a.Enterprise != nil {
			add(a.Enterprise.Provider.ClientSecret)
		}
		secrets = append(secrets, u.secrets()...)
	}
	add(c.Replicas.Key)
	add(c.LLM.Key)
	slices.Sort(secrets)
	return slices.Compact(secrets)
}

var (
	// secretName matches names of variables, headers and options with a secret.
	secretName = regexp.MustCompile(`(?i)(?:password|passwd|passphrase|pwd|secret|token|key|credentials?|authorization|(?:^|[_.-])(?:pass|pat|auth))$`)
	publicName = regexp.MustCompile(`(?i)(?:public|cache|sort|partition)[_.-]?key$`)
	bearer     = regexp.MustCompile(`(?i)(?:^|[:=])[ \t]*bearer[ \t]+(\S+)$`)
	// path matches paths, names of files, and names that AWS gives to keys and secrets.
	path = regexp.MustCompile(`^(?:[~.]{0,2}/|[a-zA-Z]:[/\\]|arn:)|\.(?:asc|cer|conf|crt|der|env|gpg|ini|jks|json|key|p12|pem|pfx|pub|toml|txt|ya?ml)$`)
)

// secrets returns what a server gets from its configuration, and could show.
func (u *Upstream) secrets() (secrets []string) {
	add := func(name, value string) {
		if m := bearer.FindStringSubmatch(value); m != nil { // whatever the name is
			name, value = "authorization", m[1]
		}
		if at, err := url.Parse(value); err == nil && at.Host != "" {
			if password, ok := at.User.Password(); ok && isSecret(password) {
				secrets = append(secrets, password)
			}
			for name, values := range at.Query() {
				if secretName.MatchString(name) && isSecret(values[0]) {
					secrets = append(secrets, values[0])
				}
			}
		} else if secretName.MatchString(name) && !publicName.MatchString(name) && isSecret(value) {
			secrets = append(secrets, value)
		}
	}
	for name, value := range u.Env {
		add(name, value)
	}
	for name, value := range u.Headers {
		add(name, value[strings.LastIndexByte(value, ' ')+1:]) // behind the scheme of an Authorization
	}
	add("", u.URL)
	option := ""
	for _, arg := range u.Command {
		if name, value, ok := strings.Cut(arg, ":"); ok && secretName.MatchString(name) && !strings.ContainsAny(name, "=/") { // as of a header
			add(name, value[strings.LastIndexByte(value, ' ')+1:])
		} else if name, value, ok := strings.Cut(arg, "="); ok && !strings.Contains(name, "/") && !bearer.MatchString(arg) {
			add(name, value)
		} else if add(option, arg); strings.HasPrefix(arg, "-") {
			option = arg
			continue
		}
		option = ""
	}
	return secrets
}

// isSecret reports whether the value of a secret name is one that can be redacted wherever it stands: no path, number or
// word, and no short one without letters of both cases, or signs, and digits.
func isSecret(value string) bool {
	const short = 8
	has := func(set string) bool { return strings.ContainsAny(value, set) }
	const small, large, digits = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
	kinds := 0
	for _, is := range []bool{has(small), has(large), has(digits), strings.Trim(value, small+large+digits) != ""} {
		if is {
			kinds++
		}
	}
	ascii := !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
	return ascii && !path.MatchString(value) && has(small+large) && kinds > 1 && (len(value) >= minToken || len(value) >= short && kinds > 2)
}
