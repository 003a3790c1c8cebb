package config

import (
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/foldgate/foldgate/budget"
)

// Fault is one thing wrong with a configuration.
type Fault struct {
	// Key is the path of the value, e.g. "folding.max_depth"; "" for the file.
	Key string
	// Line is where the file says it; 0 if the file does not.
	Line int
	// Msg says what is wrong and how to put it right, never a secret.
	Msg string
}

// Error names the line and the key where they are known.
func (f Fault) Error() string {
	s := f.Msg
	if f.Key != "" {
		s = f.Key + ": " + s
	}
	if f.Line > 0 {
		s = fmt.Sprintf("line %d: %s", f.Line, s)
	}
	return s
}

var upstreamKey = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
var headerName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$") // RFC 9110, token
var headerValue = regexp.MustCompile(`^[^\x00-\x08\x0a-\x1f\x7f]*$`)
var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,48}$`)

// Validate returns every fault of c, in the order of the keys. A configuration
// without faults can be run.
func (c Config) Validate() []Fault {
	var faults []Fault
	bad := func(key, format string, args ...any) {
		faults = append(faults, Fault{Key: key, Msg: fmt.Sprintf(format, args...)})
	}
	oneOf := func(key, value string, allowed ...string) {
		if !slices.Contains(allowed, value) {
			bad(key, "%q is not one of %s", value, strings.Join(allowed, ", "))
		}
	}
	c.validateListen(bad)
	c.validatePrincipals(bad)
	if c.StateDir == "" {
		bad("state_dir", "is empty: name a directory")
	}
	c.validateUpstreams(bad, oneOf)
	oneOf("attribution.implicit", c.Attribution.Implicit, "legacy", "off")
	if err := c.Folding.Validate(); err != nil {
		for fault := range strings.Lines(err.Error()) { // each begins with its key
			key, msg, _ := strings.Cut(strings.TrimSpace(fault), ": ")
			bad(key, "%s", msg)
		}
	}
	c.Results.validate(bad, oneOf)
	c.Run.validate(bad)
	if _, err := budget.NewCounter(c.Budget.Encoding); err != nil {
		bad("budget.encoding", "%v", err)
	}
	if c.Budget.Scale <= 0 || c.Budget.Scale > 10 {
		bad("budget.scale", "%v is not in (0, 10]", c.Budget.Scale)
	}
	if c.Budget.ImageTokens < 0 {
		bad("budget.image_tokens", "%d is negative", c.Budget.ImageTokens)
	}
	oneOf("scrub.results", c.Scrub.Results, "redact", "block", "off")
	oneOf("scrub.arguments", c.Scrub.Arguments, "report", "redact", "block", "off")
	if c.Scrub.TimeoutMS < 1 {
		bad("scrub.timeout_ms", "%d is not positive", c.Scrub.TimeoutMS)
	}
	oneOf("trace.payload", c.Trace.Payload, "scrubbed", "none")
	oneOf("trace.on_error", c.Trace.OnError, "refuse", "warn")
	oneOf("trace.correlation", c.Trace.Correlation, "transition", "strict")
	oneOf("trace.sync", c.Trace.Sync, "always", "interval", "never")
	if c.Trace.SyncIntervalMS < 1 {
		bad("trace.sync_interval_ms", "%d is not positive", c.Trace.SyncIntervalMS)
	}
	if c.Trace.RotateMB < 1 {
		bad("trace.rotate_mb", "%d is not positive", c.Trace.RotateMB)
	}
	if c.Trace.RetainFiles < 0 {
		bad("trace.retain_files", "%d is negative (0 keeps all)", c.Trace.RetainFiles)
	}
	_, bads := c.WorkflowRules()
	return append(faults, bads...)
}

func (c Config) validateUpstreams(bad func(string, string, ...any), oneOf func(string, string, ...string)) {
	prefixes := map[string]string{}
	for _, key := range c.UpstreamKeys() {
		u, at := c.Upstreams[key], "upstreams."+key
		if !upstreamKey.MatchString(key) {
			bad(at, "the key must be 1 to 64 letters, digits, '_', '-' or '.'")
		}
		if u == nil {
			bad(at, "is empty: give it builtin, command or url")
			continue
		}
		kinds := 0
		for _, set := range []bool{u.Builtin != "", len(u.Command) > 0, u.URL != ""} {
			if set {
				kinds++
			}
		}
		if kinds != 1 {
			bad(at, "needs exactly one of builtin, command and url, and has %d", kinds)
		}
		u.validateKind(at, bad)
		prefix := u.NamePrefix(key)
		if !prefixForm.MatchString(prefix) {
			bad(at+".prefix", "%q must be at most 48 letters, digits, '_', '-' or '.'", prefix)
		}
		if other, taken := prefixes[prefix]; taken && prefix != "" {
			bad(at+".prefix", "%q is also the prefix of upstream %q: give one of them another", prefix, other)
		}
		prefixes[prefix] = key
		if u.TimeoutSeconds < 0 || u.ConnectSeconds < 0 {
			bad(at, "timeout_seconds and connect_seconds must not be negative")
		}
		if u.Scrub.Results != "" {
			oneOf(at+".scrub.results", u.Scrub.Results, "redact", "block", "off")
		}
		if u.Scrub.Arguments != "" {
			oneOf(at+".scrub.arguments", u.Scrub.Arguments, "report", "redact", "block", "off")
		}
		u.Tools.validate(at+".tools", bad)
	}
}

func (u *Upstream) validateKind(at string, bad func(string, string, ...any)) {
	switch {
	case u.Builtin != "" && u.Builtin != "files":
		bad(at+".builtin", "%q is not a built-in server; the only one is \"files\"", u.Builtin)
	case u.Builtin == "files" && len(u.Roots) == 0:
		bad(at+".roots", "is empty: name the directories that may be read")
	case u.Builtin == "" && len(u.Roots) > 0:
		bad(at+".roots", "belongs to builtin: files only")
	case len(u.Command) > 0 && u.Command[0] == "":
		bad(at+".command", "the program's name is empty")
	case u.URL != "":
		if p, err := url.Parse(u.URL); err != nil || p.Host == "" || (p.Scheme != "http" && p.Scheme != "https") {
			bad(at+".url", "%q is not an http or https URL", u.URL)
		}
	}
	if len(u.Command) == 0 && (len(u.Env) > 0 || u.Cwd != "") {
		bad(at, "env and cwd belong to command only")
	}
	if u.URL == "" && len(u.Headers) > 0 {
		bad(at+".headers", "belong to url only")
	}
	for _, name := range slices.Sorted(maps.Keys(u.Headers)) { // the values may be secrets
		switch {
		case !headerName.MatchString(name):
			bad(at+".headers."+name, "is not the name of a header")
		case !headerValue.MatchString(u.Headers[name]):
			bad(at+".headers."+name, "its value has a line break, or another character that a header can't have; is it a file's text, with the line break at its end?")
		}
	}
}

func (t Tools) validate(at string, bad func(string, string, ...any)) {
	for name, globs := range map[string][]string{"allow": t.Allow, "deny": t.Deny} {
		for _, g := range globs {
			if !doublestar.ValidatePattern(g) {
				bad(at+"."+name, "%q is not a valid glob", g)
			}
		}
	}
}
