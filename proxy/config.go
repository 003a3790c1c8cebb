package proxy

import (
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
)

// Config is the whole configuration, as read by [Load] or made by
// [DefaultConfig]. config.example.yaml shows every key.
type Config struct {
	// Listen is the address of the HTTP edge, host:port; "" means stdio.
	// Without authentication only loopback addresses are accepted.
	Listen string `yaml:"listen"`
	// AllowedOrigins are the browser origins (scheme://host[:port]) that may
	// call the HTTP edge, beside pages of the same loopback host.
	AllowedOrigins []string `yaml:"allowed_origins"`
	// StateDir holds branches, trace and caches. A relative path is relative
	// to the configuration file.
	StateDir string `yaml:"state_dir"`
	// Upstreams are the servers behind foldgate, by key.
	Upstreams   map[string]*UpstreamConfig `yaml:"upstreams"`
	Attribution AttributionConfig          `yaml:"attribution"`
	// Folding holds the limits of branches; see docs/folding.md.
	Folding folding.Config `yaml:"folding"`
	Budget  BudgetConfig   `yaml:"budget"`
	Scrub   ScrubConfig    `yaml:"scrub"`
	Trace   TraceConfig    `yaml:"trace"`

	// Dir is the directory that relative paths are relative to.
	Dir string `yaml:"-"`
	// order lists the upstreams' keys as the file does; the catalog keeps it.
	order []string
	// lines says where the file has each key.
	lines map[string]int
}

// UpstreamConfig says how to reach one upstream: exactly one of Builtin,
// Command and URL is set.
type UpstreamConfig struct {
	// Builtin names a server inside foldgate; the only one is "files".
	Builtin string `yaml:"builtin"`
	// Roots are the directories that the files server may read.
	Roots []string `yaml:"roots"`
	// Command is the program and its arguments of a stdio server.
	Command []string `yaml:"command"`
	// Env are environment variables of the child, besides PATH, HOME and the
	// like; foldgate's own environment is not inherited as a whole.
	Env map[string]string `yaml:"env"`
	// Cwd is the child's working directory.
	Cwd string `yaml:"cwd"`
	// URL is a streamable HTTP endpoint.
	URL string `yaml:"url"`
	// Headers are sent with every request to URL.
	Headers map[string]string `yaml:"headers"`
	// Prefix comes before the upstream's tool and prompt names, with "__"
	// between; unset means the upstream's key, "" means none.
	Prefix *string `yaml:"prefix"`
	// Tools says which tools are shown, by glob on the upstream's own names.
	Tools ToolsConfig `yaml:"tools"`
	// TimeoutSeconds bounds one call; 0 means no limit of foldgate's own.
	TimeoutSeconds int `yaml:"timeout_seconds"`
	// ConnectSeconds bounds starting and initializing the upstream.
	ConnectSeconds int `yaml:"connect_seconds"`
	// Scrub overrides the policy for this upstream; empty fields inherit.
	Scrub ScrubPolicyConfig `yaml:"scrub"`
}

// ToolsConfig filters tools by doublestar globs. Deny wins over Allow; an
// empty Allow allows all.
type ToolsConfig struct {
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`
}

// AttributionConfig: Implicit "legacy" puts a call without a handle into the
// one active leaf branch of its session; "off" leaves it in main.
type AttributionConfig struct {
	Implicit string `yaml:"implicit"`
}

// BudgetConfig names the token counter.
type BudgetConfig struct {
	// Encoding is an encoding or a model name.
	Encoding string `yaml:"encoding"`
	// Scale corrects counts for models whose tokenizer is not public.
	Scale float64 `yaml:"scale"`
	// ImageTokens is the estimate for one image or audio block.
	ImageTokens int `yaml:"image_tokens"`
}

// ScrubPolicyConfig: Results is redact, block or off; Arguments is report,
// redact, block or off.
type ScrubPolicyConfig struct {
	Results   string `yaml:"results"`
	Arguments string `yaml:"arguments"`
}

// ScrubConfig is the policy for all upstreams, and the engine's settings.
type ScrubConfig struct {
	Results   string `yaml:"results"`
	Arguments string `yaml:"arguments"`
	// Rules is a gitleaks TOML file with more rules.
	Rules string `yaml:"rules"`
	// TimeoutMS bounds the scan of one message; over it the message is withheld.
	TimeoutMS int `yaml:"timeout_ms"`
}

// TraceConfig is about the journal; see docs/trace.md.
type TraceConfig struct {
	// Payload is scrubbed or none.
	Payload string `yaml:"payload"`
	// OnError is refuse or warn.
	OnError string `yaml:"on_error"`
	// Sync is always, interval or never.
	Sync string `yaml:"sync"`
	// SyncIntervalMS is the interval of sync: interval.
	SyncIntervalMS int `yaml:"sync_interval_ms"`
	// RotateMB starts a new file when the current one is larger.
	RotateMB int `yaml:"rotate_mb"`
	// RetainFiles keeps that many rotated files; 0 keeps all.
	RetainFiles int `yaml:"retain_files"`
}

// DefaultConfig returns the built-in configuration: stdio, and the files
// server on the working directory.
func DefaultConfig() Config {
	return Config{
		StateDir:    ".foldgate",
		Upstreams:   map[string]*UpstreamConfig{"files": {Builtin: "files", Roots: []string{"."}}},
		Attribution: AttributionConfig{Implicit: "legacy"},
		Folding:     folding.DefaultConfig(),
		Budget:      BudgetConfig{Encoding: "o200k_base", Scale: 1, ImageTokens: 1600},
		Scrub:       ScrubConfig{Results: "redact", Arguments: "report", TimeoutMS: 5000},
		Trace:       TraceConfig{Payload: "scrubbed", OnError: "refuse", Sync: "interval", SyncIntervalMS: 100, RotateMB: 256},
		order:       []string{"files"},
	}
}

// Fault is one thing wrong with a configuration.
type Fault struct {
	// Key is the path of the value, e.g. "folding.max_depth".
	Key string
	// Line is where the file says it; 0 if the file does not.
	Line int
	Msg  string
}

func (f Fault) Error() string {
	if f.Line > 0 {
		return fmt.Sprintf("line %d: %s: %s", f.Line, f.Key, f.Msg)
	}
	return f.Key + ": " + f.Msg
}

var upstreamKey = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)
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
	if c.StateDir == "" {
		bad("state_dir", "is empty: name a directory")
	}
	c.validateUpstreams(bad, oneOf)
	oneOf("attribution.implicit", c.Attribution.Implicit, "legacy", "off")
	if err := c.Folding.Validate(); err != nil {
		bad("folding", "%v", err)
	}
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
	return faults
}

func (c Config) validateListen(bad func(string, string, ...any)) {
	if c.Listen == "" {
		return
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		bad("listen", "%q is not host:port", c.Listen)
		return
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		bad("listen", "%q has no valid port", c.Listen)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		bad("listen", "%q is not a loopback address, and foldgate has no authentication yet that would make another one safe; use 127.0.0.1:%s and put an authenticating reverse proxy in front", c.Listen, port)
	}
}

func (c Config) validateUpstreams(bad func(string, string, ...any), oneOf func(string, string, ...string)) {
	prefixes := map[string]string{}
	for _, key := range c.keys() {
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
		prefix := u.prefix(key)
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

func (u *UpstreamConfig) validateKind(at string, bad func(string, string, ...any)) {
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
}

// keys returns the upstreams' keys in the file's order.
func (c Config) keys() []string {
	if len(c.order) == len(c.Upstreams) {
		return c.order
	}
	return slices.Sorted(maps.Keys(c.Upstreams))
}

// prefix returns what comes before the names of the upstream called key.
func (u *UpstreamConfig) prefix(key string) string {
	if u.Prefix != nil {
		return *u.Prefix
	}
	return key
}

// path makes a configured path absolute, relative to the configuration.
func (c Config) path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.Dir, p)
}

// scrubPolicy returns what applies to an upstream ("" is foldgate itself).
func (c Config) scrubPolicy(server string) interceptor.ScrubPolicy {
	p := interceptor.ScrubPolicy{Results: interceptor.Action(c.Scrub.Results), Arguments: interceptor.Action(c.Scrub.Arguments)}
	if u := c.Upstreams[server]; u != nil {
		if u.Scrub.Results != "" {
			p.Results = interceptor.Action(u.Scrub.Results)
		}
		if u.Scrub.Arguments != "" {
			p.Arguments = interceptor.Action(u.Scrub.Arguments)
		}
	}
	return p
}
