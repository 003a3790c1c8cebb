package config

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
)

// Config is the whole configuration, as read by [Load] or made by
// [Default]. config.example.yaml shows every key.
type Config struct {
	// Listen is the address of the HTTP edge, host:port; "" means stdio.
	// Without principals only loopback addresses are accepted.
	Listen string `yaml:"listen"`
	// TLS makes the HTTP edge speak HTTPS.
	TLS TLS `yaml:"tls"`
	// Principals says who may use the HTTP edge, by name. Empty: everybody
	// who reaches it, as "local", which is also who a host on stdio is.
	Principals map[string]*Principal `yaml:"principals"`
	// AllowedHosts are names, beside the loopback ones, under which the HTTP edge
	// answers, for a reverse proxy in front. If there are any, they are also the
	// only ones on an address that other machines can reach.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// AllowedOrigins are the browser origins (scheme://host[:port]) that may
	// call the HTTP edge, beside pages of the same loopback host.
	AllowedOrigins []string `yaml:"allowed_origins"`
	// StateDir holds branches, trace and caches. A relative path is relative
	// to the configuration file.
	StateDir string `yaml:"state_dir"`
	// Upstreams are the servers behind foldgate, by key.
	Upstreams   map[string]*Upstream `yaml:"upstreams"`
	Attribution Attribution          `yaml:"attribution"`
	// Folding holds the limits of branches; see docs/folding.md.
	Folding folding.Config `yaml:"folding"`
	Results Results        `yaml:"results"`
	Run     Run            `yaml:"run"`
	Budget  Budget         `yaml:"budget"`
	Scrub   Scrub          `yaml:"scrub"`
	Trace   Trace          `yaml:"trace"`
	// Workflows tie calls of several tools together; see docs/workflows.md.
	Workflows []Workflow `yaml:"workflows"`

	// Dir is the directory that relative paths are relative to.
	Dir string `yaml:"-"`
	// order lists the upstreams' keys as the file does; the catalog keeps it.
	order []string
	// lines says where the file has each key.
	lines map[string]int
}

// Upstream says how to reach one upstream: exactly one of Builtin,
// Command and URL is set.
type Upstream struct {
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
	Tools Tools `yaml:"tools"`
	// TimeoutSeconds bounds one call; 0 means no limit of foldgate's own.
	TimeoutSeconds int `yaml:"timeout_seconds"`
	// ConnectSeconds bounds starting and initializing the upstream.
	ConnectSeconds int `yaml:"connect_seconds"`
	// Scrub overrides the policy for this upstream; empty fields inherit.
	Scrub ScrubPolicy `yaml:"scrub"`
}

// Tools filters tools by doublestar globs. Deny wins over Allow; an
// empty Allow allows all.
type Tools struct {
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`
}

// Attribution: Implicit "legacy" puts a call without a handle into the
// one active leaf branch of its session or thread; "off" leaves it in main.
type Attribution struct {
	Implicit string `yaml:"implicit"`
}

// Budget names the token counter.
type Budget struct {
	// Encoding is an encoding or a model name.
	Encoding string `yaml:"encoding"`
	// Scale corrects counts for models whose tokenizer is not public.
	Scale float64 `yaml:"scale"`
	// ImageTokens is the estimate for one image or audio block.
	ImageTokens int `yaml:"image_tokens"`
}

// ScrubPolicy: Results is redact, block or off; Arguments is report,
// redact, block or off.
type ScrubPolicy struct {
	Results   string `yaml:"results"`
	Arguments string `yaml:"arguments"`
}

// Scrub is the policy for all upstreams, and the engine's settings.
type Scrub struct {
	Results   string `yaml:"results"`
	Arguments string `yaml:"arguments"`
	// Rules is a gitleaks TOML file with more rules.
	Rules string `yaml:"rules"`
	// TimeoutMS bounds the scan of one message; over it the message is withheld.
	TimeoutMS int `yaml:"timeout_ms"`
}

// Trace is about the journal; see docs/trace.md.
type Trace struct {
	// Payload is scrubbed or none.
	Payload string `yaml:"payload"`
	// OnError is refuse or warn.
	OnError string `yaml:"on_error"`
	// Correlation says what becomes of a correlationId that is a string, the
	// form before arrays: transition takes it and counts it as deprecated,
	// strict refuses the call.
	Correlation string `yaml:"correlation"`
	// Sync is always, interval or never.
	Sync string `yaml:"sync"`
	// SyncIntervalMS is the interval of sync: interval.
	SyncIntervalMS int `yaml:"sync_interval_ms"`
	// RotateMB starts a new file when the current one is larger.
	RotateMB int `yaml:"rotate_mb"`
	// RetainFiles keeps that many files, with the one being written; 0 keeps all.
	RetainFiles int `yaml:"retain_files"`
}

// Default returns the built-in configuration: stdio, and the files
// server on the working directory.
func Default() Config {
	return Config{
		StateDir:    ".foldgate",
		Upstreams:   map[string]*Upstream{"files": {Builtin: "files", Roots: []string{"."}}},
		Attribution: Attribution{Implicit: "legacy"},
		Folding:     folding.DefaultConfig(),
		Results:     defaultResults(),
		Run:         Run{Allow: []string{}, MaxCalls: 50},
		Budget:      Budget{Encoding: "o200k_base", Scale: 1, ImageTokens: 1600},
		Scrub:       Scrub{Results: "redact", Arguments: "report", TimeoutMS: 5000},
		Trace:       Trace{Payload: "scrubbed", OnError: "refuse", Correlation: "transition", Sync: "interval", SyncIntervalMS: 100, RotateMB: 256},
		order:       []string{"files"},
	}
}

// UpstreamKeys returns the upstreams' keys in the file's order, and after them, sorted, the
// keys that the file does not have.
func (c Config) UpstreamKeys() []string {
	keys := slices.DeleteFunc(slices.Clone(c.order), func(key string) bool { _, ok := c.Upstreams[key]; return !ok })
	for _, key := range slices.Sorted(maps.Keys(c.Upstreams)) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// NamePrefix returns what comes before the names of the upstream called key.
func (u *Upstream) NamePrefix(key string) string {
	if u.Prefix != nil {
		return *u.Prefix
	}
	return key
}

// Path makes a configured path absolute, relative to the configuration.
func (c Config) Path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.Dir, p)
}

// LetsSecretsThrough reports whether secrets of some upstream reach the host.
func (c Config) LetsSecretsThrough() bool {
	for key := range c.Upstreams {
		if c.ScrubPolicy(key).Results == interceptor.Off {
			return true
		}
	}
	return false
}

// ScrubPolicy returns what applies to an upstream ("" is foldgate itself).
func (c Config) ScrubPolicy(server string) interceptor.ScrubPolicy {
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

// Shows reports whether the upstream's own tool name is to be shown.
func (t Tools) Shows(name string) bool {
	return (len(t.Allow) == 0 || matchesAny(t.Allow, name)) && !matchesAny(t.Deny, name)
}
