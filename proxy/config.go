package proxy

import (
	"maps"
	"path/filepath"
	"slices"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
)

// Config is the whole configuration, as read by [Load] or made by
// [DefaultConfig]. config.example.yaml shows every key.
type Config struct {
	// Listen is the address of the HTTP edge, host:port; "" means stdio.
	// Without principals only loopback addresses are accepted.
	Listen string `yaml:"listen"`
	// TLS makes the HTTP edge speak HTTPS.
	TLS TLSConfig `yaml:"tls"`
	// Principals says who may use the HTTP edge, by name. Empty: everybody
	// who reaches it, as "local", which is also who a host on stdio is.
	Principals map[string]*PrincipalConfig `yaml:"principals"`
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
	Upstreams   map[string]*UpstreamConfig `yaml:"upstreams"`
	Attribution AttributionConfig          `yaml:"attribution"`
	// Folding holds the limits of branches; see docs/folding.md.
	Folding folding.Config `yaml:"folding"`
	Results ResultsConfig  `yaml:"results"`
	Run     RunConfig      `yaml:"run"`
	Budget  BudgetConfig   `yaml:"budget"`
	Scrub   ScrubConfig    `yaml:"scrub"`
	Trace   TraceConfig    `yaml:"trace"`
	// Workflows tie calls of several tools together; see docs/workflows.md.
	Workflows []WorkflowConfig `yaml:"workflows"`

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
// one active leaf branch of its session or thread; "off" leaves it in main.
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

// DefaultConfig returns the built-in configuration: stdio, and the files
// server on the working directory.
func DefaultConfig() Config {
	return Config{
		StateDir:    ".foldgate",
		Upstreams:   map[string]*UpstreamConfig{"files": {Builtin: "files", Roots: []string{"."}}},
		Attribution: AttributionConfig{Implicit: "legacy"},
		Folding:     folding.DefaultConfig(),
		Results:     defaultResults(),
		Run:         RunConfig{Allow: []string{}, MaxCalls: 50},
		Budget:      BudgetConfig{Encoding: "o200k_base", Scale: 1, ImageTokens: 1600},
		Scrub:       ScrubConfig{Results: "redact", Arguments: "report", TimeoutMS: 5000},
		Trace:       TraceConfig{Payload: "scrubbed", OnError: "refuse", Correlation: "transition", Sync: "interval", SyncIntervalMS: 100, RotateMB: 256},
		order:       []string{"files"},
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

// letsThrough reports whether secrets of some upstream reach the host.
func (c Config) letsThrough() bool {
	for key := range c.Upstreams {
		if c.scrubPolicy(key).Results == interceptor.Off {
			return true
		}
	}
	return false
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

// shows reports whether the upstream's own tool name is to be shown.
func (t ToolsConfig) shows(name string) bool {
	return (len(t.Allow) == 0 || fitsAny(t.Allow, name)) && !fitsAny(t.Deny, name)
}
