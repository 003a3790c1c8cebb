package config

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/internal/publicip"
	"github.com/foldgate/foldgate/proxy/memory"
	"github.com/foldgate/foldgate/proxy/policy"
	"github.com/foldgate/foldgate/proxy/server/auth"
)

// Validate returns every fault of c. A gateway can run a configuration without faults.
func (c Config) Validate() []Fault {
	var k checker
	c.checkListen(&k)
	c.checkConsole(&k)
	c.checkPrincipals(&k)
	k.Under("auth.", c.Auth.Check())
	if u, err := url.Parse(c.PublicURL); c.PublicURL == "" {
		k.If(len(c.Auth.Issuers) > 0, "public_url", "is missing: auth.issuers needs it, such as https://gate.example.com")
	} else {
		k.If(err != nil || auth.CheckURL(c.PublicURL) != "" || u.Path != "",
			"public_url", "%q is not the origin under which hosts reach foldgate: write https://host[:port], which auth.issuers needs; http is for loopback addresses only", c.PublicURL)
	}
	k.If(c.StateDir == "", "state_dir", "is empty: name a directory")
	c.checkUpstreams(&k)
	k.oneOf("attribution.implicit", c.Attribution.Implicit, "legacy", "off")
	k.Under("", c.Folding.Validate())
	k.Under("folding.", memory.Check(c.Folding))
	c.Results.check(&k)
	k.globs("run.allow", c.Batch.Allow)
	k.If(c.Batch.MaxCalls < 1 || c.Batch.MaxCalls > 1000,
		"run.max_calls", "%d is not between 1 and 1000", c.Batch.MaxCalls)
	c.LLM.check(&k)
	k.oneOf("tools.mode", c.Tools.Mode, ModeList, ModeSearch, ModeAuto)
	k.globs("tools.always", c.Tools.Always)
	k.positive("tools.auto_tokens", c.Tools.AutoTokens, many)
	if _, err := budget.NewCounter(c.Budget.Encoding); err != nil {
		k.Add("budget.encoding", "%v", err)
	}
	k.If(!(c.Budget.Scale >= budget.MinScale && c.Budget.Scale <= budget.MaxScale), // NaN too
		"budget.scale", "%v is not between %v and %v", c.Budget.Scale, budget.MinScale, budget.MaxScale)
	k.within("budget.image_tokens", c.Budget.ImageTokens, many, "is negative")
	c.checkBudgets(&k)
	c.checkReplicas(&k)
	k.oneOf("scrub.results", c.Scrub.Results, "redact", "block", "off")
	k.oneOf("scrub.arguments", c.Scrub.Arguments, "report", "redact", "block", "off")
	k.positive("scrub.timeout_ms", c.Scrub.TimeoutMS, most(time.Millisecond))
	k.oneOf("pins", c.Pins, "off", "warn", "hold")
	k.oneOf("trace.payload", c.Trace.Payload, "scrubbed", "none")
	k.oneOf("trace.on_error", c.Trace.OnError, "refuse", "warn")
	k.oneOf("trace.correlation", c.Trace.Correlation, "transition", "strict")
	k.oneOf("trace.sync", c.Trace.Sync, "always", "interval", "never")
	k.positive("trace.sync_interval_ms", c.Trace.SyncIntervalMS, most(time.Millisecond))
	k.positive("trace.rotate_mb", c.Trace.RotateMB, int(trace.MaxRotateBytes>>20))
	k.within("trace.retain_files", c.Trace.RetainFiles, many, "is negative (0 keeps all)")
	k.within("trace.retain_days", c.Trace.RetainDays, most(24*time.Hour), "is negative (0 keeps all)")
	k.If(c.Logins.Key != "" && len(c.Logins.Key) < minKey, "logins.key", "has %d characters, fewer than %d; `openssl rand -hex 32` makes a good one", len(c.Logins.Key), minKey)
	_, wrong := policy.Compile(c.Policy)
	k.Under("policy.", wrong)
	_, wrong = c.WorkflowRules()
	return append(k.List, wrong...)
}

func (l *LLM) check(k *checker) {
	k.optional("llm.api", l.API, APIOpenAI, APIAnthropic)
	k.globs("llm.tools", l.Tools)
	k.If(l.MaxTurns < 1 || l.MaxTurns > 1000, "llm.max_turns", "%d is not between 1 and 1000", l.MaxTurns)
	k.If(l.MaxOutput < 16 || l.MaxOutput > 1<<20, "llm.max_output_tokens", "%d is not between 16 and %d", l.MaxOutput, 1<<20)
	if !l.Runs() {
		k.If(l.URL != "" || l.Model != "" || l.Key != "", "llm.api", "is missing: say which interface the endpoint has, %s or %s", APIOpenAI, APIAnthropic)
		return
	}
	k.If(l.Model == "", "llm.model", "is missing: name the model as the endpoint does")
	u, err := url.Parse(l.URL)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		k.Add("llm.url", "is not an http or https URL without a user: write the base URL of the endpoint, such as http://127.0.0.1:11434/v1")
		return
	}
	// The key would travel in the clear.
	k.If(l.Key != "" && !overTLS(l.URL), "llm.url", "has a key and no TLS: use https, or an endpoint on a loopback address")
	k.If(!headerValue.MatchString(string(l.Key)), "llm.key", "has a line break, or another character that a header can't have")
}

// checkBudgets names the limit in each fault. A limit that can match nothing is a fault: it is there
// to hold somebody.
func (c Config) checkBudgets(k *checker) {
	k.oneOf("budgets.on_error", c.Budgets.OnError, "refuse", "allow")
	k.positive("budgets.wait_ms", c.Budgets.WaitMS, most(time.Millisecond))
	k.Under("budgets.", limits.Check(c.Budgets.Limits))
	if c.Store.URL != "" {
		if store, err := limits.OpenRedis(string(c.Store.URL), c.Store.Prefix); err != nil {
			k.Add("store", "%v", err)
		} else {
			_ = store.Close() // it has not connected
		}
	}
	teams := map[string]bool{}
	for _, p := range c.Principals {
		if p != nil {
			teams[p.Team] = true
		}
	}
	for i, l := range c.Budgets.Limits {
		check := func(key, of, name string) {
			at := fmt.Sprintf("budgets.limits[%d].%s", i, key)
			switch {
			case of == limits.PerServer && c.Upstreams[name] == nil:
				k.Add(at, "limit %s: there is no upstream %q: %s", l.Name, name, c.meantUpstream(name))
			case of == limits.PerPrincipal && !c.Knows(name):
				k.Add(at, "limit %s: there is no principal %q: use a name of principals", l.Name, name)
			case of == limits.PerTeam && c.Authenticates() && !teams[name] && len(c.Auth.Issuers) == 0:
				k.Add(at, "limit %s: no principal has the team %q: give it to some, under principals", l.Name, name)
			}
		}
		for _, m := range [][2]string{{limits.PerServer, l.Match.Server}, {limits.PerPrincipal, l.Match.Principal}, {limits.PerTeam, l.Match.Team}} {
			if m[1] != "" {
				check("match."+m[0], m[0], m[1])
			}
		}
		for _, name := range slices.Sorted(maps.Keys(l.Subjects)) {
			check("subjects."+name, l.Per, name)
		}
	}
}

// meantUpstream says what to write instead of a name that no upstream has.
func (c Config) meantUpstream(name string) string {
	if near := Closest(name, slices.Sorted(maps.Keys(c.Upstreams))); near != "" {
		return "did you mean " + near + "? Otherwise use a key of upstreams"
	}
	return "use a key of upstreams"
}

func (c Config) checkReplicas(k *checker) {
	r := c.Replicas
	k.If(r.DrainSeconds < 0 || r.DrainSeconds > 3600, "replicas.drain_seconds", "%d is not between 0 and 3600", r.DrainSeconds)
	if r.Listen == "" {
		k.If(r.Address != "" || r.Key != "", "replicas.listen", "is missing: give host:port where the other replicas reach this one, such as 10.0.0.7:8788")
		return
	}
	k.address("replicas.listen", r.Listen, "10.0.0.7:8788")
	k.If(sharePort(r.Listen, c.Listen), "replicas.listen", "%q is also the address of listen: give replicas another port", r.Listen)
	host, _, err := net.SplitHostPort(r.Listen)
	ip, _ := netip.ParseAddr(host)
	if r.Address != "" {
		_, _, err = net.SplitHostPort(r.Address)
		k.If(err != nil, "replicas.address", "%q is not host:port, such as 10.0.0.7:8788", r.Address)
	} else {
		k.If(err == nil && (host == "" || ip.IsUnspecified()), "replicas.address", "is missing: %q is every address of this machine; give the one under which the other replicas reach it", r.Listen)
	}
	k.If(len(r.Key) < minKey, "replicas.key", "has %d characters, fewer than %d; `openssl rand -hex 32` makes a good one, and all replicas need the same", len(r.Key), minKey)
	k.If(c.Store.URL == "", "store.url", "is missing: replicas find each other, and count limits, in a Redis or Valkey server")
}

func (c Config) checkListen(k *checker) {
	k.tls("tls", c.TLS)
	k.hosts("allowed_hosts", c.AllowedHosts)
	for i, o := range c.AllowedOrigins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || !strings.EqualFold(u.Scheme+"://"+u.Host, strings.TrimSuffix(o, "/")) || strings.Contains(o, "*") {
			k.Add(fmt.Sprintf("allowed_origins[%d]", i), "%q is not an origin: name each as scheme://host[:port], such as https://app.example.com", o)
		}
	}
	if c.Listen == "" {
		return
	}
	port := k.address("listen", c.Listen, "127.0.0.1:8787")
	if c.Exposed() && !c.Authenticates() {
		k.Add("listen", "%q is not a loopback address, and without principals everybody who reaches it could use your servers; give hosts tokens under principals, or use 127.0.0.1:%s", c.Listen, port)
	}
}

// checkConsole checks that only those can look who log in.
func (c Config) checkConsole(k *checker) {
	o := c.Console
	k.tls("console.tls", o.TLS)
	k.hosts("console.allowed_hosts", o.AllowedHosts)
	if o.Listen == "" {
		k.If(o.TLS.Cert != "" || len(o.AllowedHosts) > 0, "console.listen", "is empty: tls and allowed_hosts are for a console with an address of its own, such as 127.0.0.1:8788")
		return
	}
	k.address("console.listen", o.Listen, "127.0.0.1:8788")
	k.If(sharePort(o.Listen, c.Listen), "console.listen", "%q is also the address of listen: give the console another port", o.Listen)
	k.If(!c.Authenticates() || c.Auth.Auditor == "", "console.listen", "nobody could log in: name the role of those who may look in auth.auditor, and give it to principals, or take tokens of an issuer")
	k.If(exposed(o.Listen) && o.TLS.Cert == "", "console.listen", "%q is not a loopback address, and tokens would cross the network unencrypted: set console.tls, or listen on 127.0.0.1 behind a reverse proxy with TLS", o.Listen)
	k.If(exposed(o.Listen) && len(o.AllowedHosts) == 0, "console.allowed_hosts", "is empty: name the hosts under which browsers reach the console")
}

// Bounds of a token, and of the key of logins, in characters.
const (
	minToken = 16
	maxToken = 4096
	minKey   = 32
)

// maxTokens bounds the further tokens of a principal.
const maxTokens = 16

var (
	principalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$`)
	tokenForm     = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`) // RFC 6750, b64token
)

// checkPrincipals never puts a token, or a part of one, into a fault.
func (c Config) checkPrincipals(k *checker) {
	owner := map[[sha256.Size]byte]string{}
	for _, name := range c.PrincipalNames() {
		p, at := c.Principals[name], "principals."+name
		k.If(!principalName.MatchString(name),
			at, "the name must be 1 to 64 letters, digits, '_', '-', '.' or '@'")
		if p != nil {
			k.If(p.Team != "" && !principalName.MatchString(p.Team),
				at+".team", "%q must be 1 to 64 letters, digits, '_', '-', '.' or '@'", p.Team)
			k.labelsOf(at+".roles", p.Roles)
			k.labelsOf(at+".scopes", p.Scopes)
		}
		if p == nil || len(p.All()) == 0 {
			k.Add(at, "has no token: give it token or token_sha256")
			continue
		}
		k.If(len(p.Tokens) > maxTokens, at+".tokens", "has %d entries, more than %d", len(p.Tokens), maxTokens)
		first := len(p.All()) - len(p.Tokens)
		for i, t := range p.All() {
			in := at
			if i >= first {
				in = fmt.Sprintf("%s.tokens[%d]", at, i-first)
			}
			sum, ok := t.check(in, k)
			if other, taken := owner[sum]; ok && taken {
				k.Add(in, "has the same token as %s: give each its own", other)
			} else if ok {
				owner[sum] = name
			}
		}
	}
}

// check returns the digest of a token that is well-formed.
func (t Token) check(at string, k *checker) (sum [sha256.Size]byte, ok bool) {
	switch {
	case t.Token == "" && t.TokenSHA256 == "":
		k.Add(at, "has no token: give it token or token_sha256")
		return sum, false
	case t.Token != "" && t.TokenSHA256 != "":
		k.Add(at, "has both token and token_sha256: give it one of them")
		return sum, false
	}
	sum, ok = t.Digest()
	switch n := len(t.Token); {
	case !ok:
		k.Add(at+".token_sha256", "is not 64 hexadecimal digits; `printf %%s \"$TOKEN\" | sha256sum` prints them")
	case t.Token != "" && n < minToken:
		k.Add(at+".token", "has %d characters, fewer than %d, and could be guessed; `openssl rand -hex 32` makes a good one", n, minToken)
	case n > maxToken:
		k.Add(at+".token", "has %d characters, more than %d", n, maxToken)
	case t.Token != "" && !tokenForm.MatchString(string(t.Token)):
		k.Add(at+".token", "has characters that a bearer token can't have; use letters, digits and -._~+/")
	}
	return sum, ok
}

// maxLabels bounds the roles, and the scopes, of a principal.
const maxLabels = 64

var labelForm = regexp.MustCompile(`^[!#-\[\]-~]{1,64}$`) // RFC 6749, scope-token

func (k *checker) labelsOf(at string, labels []string) {
	k.If(len(labels) > maxLabels, at, "has %d entries, more than %d", len(labels), maxLabels)
	k.labels(at, labels)
}

var (
	upstreamKey = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
	headerName  = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, token
	headerValue = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
	prefixForm  = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,48}$`)
)

func (c Config) checkUpstreams(k *checker) {
	prefixes := map[string]string{}
	for _, key := range c.UpstreamKeys() {
		u, at := c.Upstreams[key], "upstreams."+key
		k.If(!upstreamKey.MatchString(key),
			at, "the key must be 1 to 64 letters, digits, '_', '-' or '.'")
		if u == nil {
			k.Add(at, "is empty: give it builtin, command or url")
			continue
		}
		kinds := count(u.Builtin != "", len(u.Command) > 0, u.URL != "")
		k.If(kinds != 1,
			at, "needs exactly one of builtin, command and url, and has %d", kinds)
		u.checkKind(at, k)
		prefix := u.NamePrefix(key)
		k.If(!prefixForm.MatchString(prefix),
			at+".prefix", "%q must be at most 48 letters, digits, '_', '-' or '.'", prefix)
		if other, taken := prefixes[prefix]; taken && prefix != "" {
			k.Add(at+".prefix", "%q is also the prefix of upstream %q: give one of them another", prefix, other)
		}
		prefixes[prefix] = key
		k.within(at+".timeout_seconds", u.TimeoutSeconds, most(time.Second), "is negative (0 sets no limit)")
		k.within(at+".connect_seconds", u.ConnectSeconds, most(time.Second), "is negative (0 is the default)")
		k.within(at+".max_connections", u.MaxConnections, many, "is negative (0 is the default)")
		if u.IdleSeconds != nil {
			k.within(at+".idle_seconds", *u.IdleSeconds, most(time.Second), "is negative (0 is never)")
		}
		u.checkAuth(at+".auth", c.Auth.Issuers, k)
		k.optional(at+".scrub.results", u.Scrub.Results, "redact", "block", "off")
		k.optional(at+".pins", u.Pins, "off", "warn", "hold")
		k.optional(at+".scrub.arguments", u.Scrub.Arguments, "report", "redact", "block", "off")
		k.globs(at+".tools.allow", u.Tools.Allow)
		k.globs(at+".tools.deny", u.Tools.Deny)
	}
}

// checkKind checks the keys that belong to one of builtin, command and url.
func (u *Upstream) checkKind(at string, k *checker) {
	switch {
	case u.Builtin != "" && u.Builtin != "files":
		k.Add(at+".builtin", "%q is not a built-in server; the only one is \"files\"", u.Builtin)
	case u.Builtin == "files" && len(u.Roots) == 0:
		k.Add(at+".roots", "is empty: name the directories that may be read")
	case u.Builtin == "" && len(u.Roots) > 0:
		k.Add(at+".roots", "belongs to builtin: files only")
	case len(u.Command) > 0 && u.Command[0] == "":
		k.Add(at+".command", "the program's name is empty")
	case u.URL != "":
		if p, err := url.Parse(u.URL); err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
			k.Add(at+".url", "%q is not an http or https URL: write it with https://", u.URL)
		}
	}
	k.If(len(u.Command) == 0 && (len(u.Env) > 0 || u.Cwd != ""),
		at, "env and cwd belong to command only")
	k.optional(at+".share", u.Share, "session", "principal", "everyone")
	k.If(u.Builtin != "" && (u.MaxConnections != 0 || u.IdleSeconds != nil || u.Share != ""),
		at, "max_connections, idle_seconds and share belong to command and url: the built-in server is no process")
	k.If(u.URL == "" && len(u.Headers) > 0, at+".headers", "belong to url only")
	for _, name := range slices.Sorted(maps.Keys(u.Headers)) { // the values may be secrets
		switch {
		case !headerName.MatchString(name):
			k.Add(at+".headers."+name, "is not the name of a header")
		case !headerValue.MatchString(u.Headers[name]):
			k.Add(at+".headers."+name, "its value has a line break, or another character that a header can't have; is it a file's text, with the line break at its end?")
		}
	}
}

// checkAuth checks how foldgate logs in at u. issuers are those of the callers' tokens.
func (u *Upstream) checkAuth(at string, issuers map[string]*auth.Issuer, k *checker) {
	a := u.Auth
	if a == nil {
		return
	}
	clients, person, company := a.clients(), a.AuthorizationCode, a.Enterprise
	switch {
	case !overTLS(u.URL):
		k.Add(at, "needs a url with https, or on a loopback address: tokens must not be readable on the network")
	case count(a.ClientCredentials != nil, person != nil, a.TokenExchange != nil, company != nil) != 1:
		k.Add(at, "needs one of client_credentials, authorization_code, token_exchange and enterprise")
	case a.Issuer == "" && (person == nil || person.ClientSecret != ""): // else the upstream could have it sent anywhere
		k.Add(at+".issuer", "is missing: name the authorization server that knows the client and its secret")
	case a.TokenExchange != nil && !slices.ContainsFunc(slices.Collect(maps.Values(issuers)), func(is *auth.Issuer) bool { return is != nil && is.URL == a.Issuer }):
		k.Add(at+".issuer", "%q is not the url of one of auth.issuers: with token_exchange only the server that gave a caller its token gets that token", a.Issuer)
	}
	for _, key := range slices.Sorted(maps.Keys(clients)) {
		c := clients[key]
		k.If(c.ClientID == "" || c.ClientSecret == "" && c.PrivateKeyFile == "", at+"."+key, "needs client_id, and client_secret or private_key_file")
		k.If(c.ClientSecret != "" && c.PrivateKeyFile != "", at+"."+key, "has a client_secret and a private_key_file: remove one of them")
	}
	if company != nil {
		at, p := at+".enterprise", company.Provider
		k.optional(at+".per", company.Per, "shared", "principal")
		k.If(!overTLS(p.Issuer), at+".provider.issuer", "%q is not an https URL, such as https://login.example.com", p.Issuer)
		k.If(p.ClientID == "", at+".provider", "needs the client_id that foldgate has at the identity provider")
		k.If(p.RedirectPort < 0 || p.RedirectPort > 65535, at+".provider.redirect_port", "%d is not a port", p.RedirectPort)
	}
	k.If(a.PerPrincipal() && u.Share == "everyone", at, "a login for each principal and share: everyone contradict each other: a connection has one login")
	if person != nil {
		at := at + ".authorization_code"
		k.optional(at+".per", person.Per, "shared", "principal")
		k.If(person.ClientSecret != "" && person.ClientID == "", at, "has a client_secret without its client_id")
		k.If(person.RedirectPort < 0 || person.RedirectPort > 65535, at+".redirect_port", "%d is not a port", person.RedirectPort)
		doc, err := url.Parse(person.ClientMetadataURL)
		k.If(person.ClientMetadataURL != "" && (err != nil || doc.Scheme != "https" || doc.Host == "" || strings.Trim(doc.Path, "/") == ""),
			at+".client_metadata_url", "%q is not an https URL with a path, such as https://example.com/foldgate.json", person.ClientMetadataURL)
	}
	k.If(a.Issuer != "" && !overTLS(a.Issuer),
		at+".issuer", "%q is not an https URL, such as https://login.example.com", a.Issuer)
	k.labels(at+".scopes", a.Scopes)
	for name := range u.Headers {
		k.If(strings.EqualFold(name, "Authorization"), at, "and headers.%s are two logins: remove one of them", name)
	}
}

// overTLS reports whether others can't read the requests to a URL: it is https, or on a loopback
// address.
func overTLS(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && publicip.Confidential(u)
}

func (r Results) check(k *checker) {
	const least = 100 // tokens of a preview
	wrong := r.MainThreshold < least || r.MainThreshold > many
	k.If(wrong, "results.main_threshold", "%d is not between %d and %d; to fold nothing use tools: {\"**\": {fold: off}}", r.MainThreshold, least, many)
	k.If(!(r.BranchFraction > 0 && r.BranchFraction <= 1), "results.branch_fraction", "%v is not in (0, 1]", r.BranchFraction) // NaN too
	switch {
	case r.PreviewTokens < least || r.PreviewTokens > many:
		k.Add("results.preview_tokens", "%d is not between %d and results.main_threshold, %d", r.PreviewTokens, least, r.MainThreshold)
	case wrong || r.PreviewTokens <= r.MainThreshold:
	case r.PreviewTokens == Default().Results.PreviewTokens: // the file sets main_threshold only
		k.Add("results.main_threshold", "%d is less than results.preview_tokens, %d: raise it, or lower preview_tokens", r.MainThreshold, r.PreviewTokens)
	default:
		k.Add("results.preview_tokens", "%d is more than results.main_threshold, %d", r.PreviewTokens, r.MainThreshold)
	}
	k.oneOf("results.on_injection", r.OnInjection, "off", "log", "flag", "block")
	k.positive("results.quota_mb", r.QuotaMB, many)
	k.positive("results.ttl_hours", r.TTLHours, most(time.Hour))
	for _, glob := range slices.Sorted(maps.Keys(r.Tools)) {
		at := "results.tools." + glob
		k.If(!globs.Valid(glob), at, globs.Invalid, glob)
		k.optional(at+".fold", r.Tools[glob].Fold, "on", "off")
		k.optional(at+".on_injection", r.Tools[glob].OnInjection, "off", "log", "flag", "block")
		k.within(at+".threshold", r.Tools[glob].Threshold, many, "is negative (0 leaves the defaults)")
	}
}

// WorkflowRules compiles the configured workflows.
func (c Config) WorkflowRules() (*workflow.Rules, []Fault) {
	var k checker
	specs := make([]workflow.Spec, len(c.Workflows))
	for i, w := range c.Workflows {
		specs[i] = c.workflowSpec(w, fmt.Sprintf("workflows[%d].", i), &k)
	}
	rules, wrong := workflow.Compile(specs)
	k.Under("workflows", wrong)
	return rules, k.List
}

// Defaults of a workflow.
const (
	defaultWorkflowTTL      = 7 * 24 * time.Hour // activations of audiences take up to three days
	defaultWorkflowArgument = "context_id"
)

// branchArgument is the parameter that foldgate adds to every tool.
const branchArgument = "branch_id"

var (
	workflowChannels = []string{"structuredContent", "content", "_meta"}
	workflowEvidence = []string{"explicit", "native", "join", "session"}
)

// Handle returns Inject with its defaults.
func (w Workflow) Handle() WorkflowInject {
	inject := w.Inject
	inject.Argument = cmp.Or(inject.Argument, defaultWorkflowArgument)
	if inject.Result == nil {
		inject.Result = workflowChannels
	}
	return inject
}

// workflowSpec checks what [workflow.Compile] does not check, and sets the defaults.
func (c Config) workflowSpec(w Workflow, at string, k *checker) workflow.Spec {
	k.optional(at+"on_unknown", w.OnUnknown, "reject", "remint")
	k.optional(at+"foreign_ids", w.ForeignIDs, "reject", "preserve")
	k.optional(at+"session_open", w.SessionOpen, "last", "none")
	for i, channel := range w.Inject.Result {
		k.optional(fmt.Sprintf("%sinject.result[%d]", at, i), channel, workflowChannels...)
	}
	if a := w.Handle().Argument; !upstreamKey.MatchString(a) || a == branchArgument {
		k.Add(at+"inject.argument", "%q can't be the name of the parameter", a)
	}
	spec := workflow.Spec{Name: w.Name, TTL: cmp.Or(w.TTL, defaultWorkflowTTL), Remint: w.OnUnknown == "remint", Preserve: w.ForeignIDs == "preserve", Require: w.Require}
	fallback := w.Fallback
	if fallback == nil {
		fallback = workflowEvidence
	}
	for _, e := range fallback {
		if e != string(workflow.Session) || w.SessionOpen != "none" {
			spec.Evidence = append(spec.Evidence, workflow.Evidence(e))
		}
	}
	for _, list := range []struct {
		role  workflow.Role
		tools []workflow.ToolSpec
	}{{workflow.RoleOpen, w.Open}, {workflow.RoleLink, w.Link}, {workflow.RoleStatus, w.Status}, {workflow.RoleClose, w.Close}} {
		for i, t := range list.tools {
			var ok bool
			if t.Server, t.Tool, ok = c.splitTool(t.Tool); !ok {
				k.Add(fmt.Sprintf("%s%s[%d].tool", at, list.role, i), "%q names no upstream: write <upstream>.<tool>, the upstream's key under upstreams", t.Tool)
			}
			t.Role = list.role
			spec.Tools = append(spec.Tools, t)
		}
	}
	return spec
}

// splitTool splits <upstream>.<tool>. Both may contain dots: the longest matching key wins.
func (c Config) splitTool(name string) (server, tool string, ok bool) {
	tool = name
	for key := range c.Upstreams {
		if rest, is := strings.CutPrefix(name, key+"."); is && rest != "" && len(key) > len(server) {
			server, tool, ok = key, rest, true
		}
	}
	return server, tool, ok
}

// checker collects the faults of a configuration.
type checker struct{ faults.List }

func (k *checker) oneOf(key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		k.Add(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
	}
}

// optional is oneOf for a key that may be empty.
func (k *checker) optional(key, value string, allowed ...string) {
	if value != "" {
		k.oneOf(key, value, allowed...)
	}
}

// many bounds numbers of tokens, connections, files and megabytes, well inside the range of int64 in bytes.
const many = 1 << 30

// most returns the largest number of a unit of time: a hundred years, well inside the range of time.Duration.
func most(unit time.Duration) int { return int(36500 * 24 * time.Hour / unit) }

func (k *checker) positive(key string, n, high int) {
	k.If(n < 1, key, "%d is not positive", n)
	k.If(n > high, key, "%d is more than %d", n, high)
}

// within checks a number that may be 0.
func (k *checker) within(key string, n, high int, negative string) {
	k.If(n < 0, key, "%d %s", n, negative)
	k.If(n > high, key, "%d is more than %d", n, high)
}

func (k *checker) tls(key string, t TLS) {
	k.If((t.Cert == "") != (t.Key == ""), key, "needs both cert and key, and has one of them")
}

func (k *checker) hosts(key string, all []string) {
	for i, h := range all {
		_, _, err := net.SplitHostPort(h)
		k.If(err == nil || h == "" || strings.ContainsAny(h, "/ *"), fmt.Sprintf("%s[%d]", key, i), "%q is not a host name: give each in full, without scheme and port", h)
	}
}

// address checks an address to listen on, and returns its port.
func (k *checker) address(key, address, example string) (port string) {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		k.Add(key, "%q is not host:port, such as %s", address, example)
	} else if _, err := net.LookupPort("tcp", port); err != nil {
		k.Add(key, "%q has no valid port: use 1 to 65535, or 0 for any that is free", address)
	}
	return port
}

// sharePort reports whether only one process can listen on two addresses.
func sharePort(a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	every := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || err == nil && ip.IsUnspecified()
	}
	return errA == nil && errB == nil && portA == portB && portA != "0" && (hostA == hostB || every(hostA) || every(hostB))
}

func (k *checker) labels(key string, all []string) {
	for i, label := range all {
		k.If(!labelForm.MatchString(label),
			fmt.Sprintf("%s[%d]", key, i), "%q must be 1 to 64 printable ASCII characters without spaces, quotes and backslashes", label)
	}
}

// count returns how many are true.
func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

func (k *checker) globs(key string, all []string) {
	for _, glob := range all {
		k.If(!globs.Valid(glob), key, globs.Invalid, glob)
	}
}
