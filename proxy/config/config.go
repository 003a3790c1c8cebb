// Package config is foldgate's configuration file: its keys, their defaults,
// loading and validation. It knows no gateway and opens no connection.
//
// # Adding a key
//
//  1. Add a field with a yaml tag and a comment to its struct (config.go).
//  2. If the zero value is not the default, set the default in [Default].
//  3. Check the value in [Config.Validate] (validate.go). The fault names the key and the
//     remedy, never a value that may be secret.
//  4. Show the key with its default in config.example.yaml. A test compares the sections of the
//     file with the types, and its values with [Default].
//  5. Give a wrong value and its fault in a test of this package.
//  6. Describe the key in the table of its page in docs/, and in CHANGELOG.md.
//  7. Use the field. Package proxy copies it into the options of interceptor, folding or server,
//     which do not import this package (RunHTTP in gateway.go; engine.go and chain.go in package
//     engine); the others read it from the Config. Delete the constant that it replaces.
//
// There is nothing to register: loading finds the field by its tag, expands ${NAME} in it, and
// refuses keys that no field has. The keys of folding are in package folding.
package config

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/budget/limits"
	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/workflow"
	"github.com/foldgate/foldgate/internal/globs"
	"github.com/foldgate/foldgate/internal/hosts/spelling"
	"github.com/foldgate/foldgate/internal/publicip"
	"github.com/foldgate/foldgate/proxy/policy"
	"github.com/foldgate/foldgate/proxy/server/auth"
)

// Config is the whole configuration, as read by [Load] or made by [Default].
// config.example.yaml shows every key.
type Config struct {
	// Listen is the address of the HTTP server, host:port; "" means stdio. Without principals
	// only loopback addresses are accepted.
	Listen string `yaml:"listen"`
	TLS    TLS    `yaml:"tls"` // makes the HTTP server speak HTTPS
	// Principals are the clients of the HTTP server, by name. If it is empty, every client is
	// the principal "local", as is a host on stdio.
	Principals map[string]*Principal `yaml:"principals"`
	Auth       auth.Config           `yaml:"auth"` // issuers of the tokens of further principals
	// PublicURL is where hosts reach the HTTP server, scheme://host[:port]; see docs/security.md.
	PublicURL string `yaml:"public_url"`
	// AllowedHosts are the names, beside the loopback ones, that the HTTP server answers to, such
	// as the name of a reverse proxy. On an address that other machines can reach, a list that
	// is not empty allows only its own names.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// AllowedOrigins are the browser origins (scheme://host[:port]) that may call the HTTP server,
	// beside pages of the same loopback host.
	AllowedOrigins []string             `yaml:"allowed_origins"`
	EnvFile        string               `yaml:"env_file"`  // variables for ${NAME}; see [ParseEnv]
	StateDir       string               `yaml:"state_dir"` // holds branches, trace and caches
	Upstreams      map[string]*Upstream `yaml:"upstreams"` // the servers behind foldgate, by key
	Attribution    Attribution          `yaml:"attribution"`
	Folding        folding.Config       `yaml:"folding"` // the limits of branches; see docs/folding.md
	Results        Results              `yaml:"results"`
	Batch          Batch                `yaml:"run"`
	LLM            LLM                  `yaml:"llm"`
	Tools          Tools                `yaml:"tools"`
	Budget         Budget               `yaml:"budget"`
	Budgets        Budgets              `yaml:"budgets"`
	Store          Store                `yaml:"store"`
	Replicas       Replicas             `yaml:"replicas"`
	Scrub          Scrub                `yaml:"scrub"`
	Trace          Trace                `yaml:"trace"`
	Workflows      []Workflow           `yaml:"workflows"`
	Policy         policy.Config        `yaml:"policy"` // who may see and use what; see docs/policy.md
	// Pins decides about definitions of servers that are not as they were approved: off, warn or hold;
	// see docs/pins.md.
	Pins    string  `yaml:"pins"`
	Logins  Logins  `yaml:"logins"`
	Console Console `yaml:"console"` // web pages for auditors and operators; the gateway does not use it

	// File is the absolute path of the file, and Sum the SHA-256 of its text in hexadecimal digits.
	// Both are "" for the built-in defaults.
	File, Sum string         `yaml:"-"`
	Dir       string         `yaml:"-"` // where relative paths start: the directory of the file
	LoginsDir string         `yaml:"-"` // of stored logins; "" means <state_dir>/logins
	order     []string       // the upstreams' keys, as the file lists them
	lines     map[string]int // the line of each key of the file
}

// TLS names the PEM files of the HTTP server's certificate chain and key. Both or none are set.
type TLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Principal is a client of the HTTP server. It has at least one token.
type Principal struct {
	Token       Secret   `yaml:"token"`        // the bearer token that this principal's hosts send
	TokenSHA256 string   `yaml:"token_sha256"` // the SHA-256 of the token in hexadecimal digits
	Tokens      []Token  `yaml:"tokens"`       // more tokens, such as the next one, or instead of token; at most 16
	Team        string   `yaml:"team"`         // the team it belongs to, "" for none
	Roles       []string `yaml:"roles"`        // what it is; at most 64
	Scopes      []string `yaml:"scopes"`       // what it may do; at most 64
}

// Token is one of a principal's tokens. Exactly one of Token and TokenSHA256 is set.
type Token struct {
	Token       Secret    `yaml:"token"`
	TokenSHA256 string    `yaml:"token_sha256"`
	Expires     time.Time `yaml:"expires"` // zero for never
}

// Secret is a text that is never printed, logged or encoded.
type Secret string

// String implements fmt.Stringer.
func (s Secret) String() string { return "[secret]" }

// GoString implements fmt.GoStringer.
func (s Secret) GoString() string { return "[secret]" }

// MarshalText implements encoding.TextMarshaler.
func (s Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// Upstream is one server behind foldgate. Exactly one of Builtin, Command and URL is set.
type Upstream struct {
	Builtin string   `yaml:"builtin"` // a server inside foldgate; the only one is "files"
	Roots   []string `yaml:"roots"`   // the directories that the files server may read
	Command []string `yaml:"command"` // a stdio server's program and its arguments
	// Env are environment variables of the child, beside PATH, HOME and the like. The child does
	// not inherit foldgate's whole environment.
	Env     map[string]string `yaml:"env"`
	Cwd     string            `yaml:"cwd"`     // the child's working directory
	URL     string            `yaml:"url"`     // a streamable HTTP endpoint
	Headers map[string]string `yaml:"headers"` // sent with every request to URL
	// Prefix comes before the upstream's tool and prompt names, with "__" between. Unset means
	// the upstream's key, "" means no prefix.
	Prefix *string `yaml:"prefix"`
	// Tools selects the tools that are shown, by the upstream's own names.
	Tools          policy.Globs `yaml:"tools"`
	TimeoutSeconds int          `yaml:"timeout_seconds"`        // bounds one call; 0 sets no limit
	ConnectSeconds int          `yaml:"connect_seconds"`        // bounds starting and initializing
	MaxConnections int          `yaml:"max_connections"`        // bounds the connections to the server; 0 means the default
	IdleSeconds    *int         `yaml:"idle_seconds"`           // closes an unused connection; 0 means never, nil the default
	Share          string       `yaml:"share"`                  // who shares a connection: session, principal or everyone; empty means session
	Auth           *Auth        `yaml:"auth" json:",omitempty"` // how foldgate logs in at URL; nil without a login
	Scrub          ScrubPolicy  `yaml:"scrub"`                  // overrides the policy; empty fields inherit
	Pins           string       `yaml:"pins" json:",omitempty"` // overrides pins; empty inherits
}

// Auth is how foldgate logs in at an upstream: as an OAuth client. See docs/logins.md.
type Auth struct {
	// Exactly one of the four is set. ClientCredentials are an account of foldgate's own, for all
	// principals. With AuthorizationCode a person logs in, by foldgate login. TokenExchange is the
	// client as which foldgate exchanges a caller's own token. With Enterprise a person logs in at the
	// company's identity provider, once for all upstreams that trust it.
	ClientCredentials *OAuthClient       `yaml:"client_credentials"`
	AuthorizationCode *AuthorizationCode `yaml:"authorization_code"`
	TokenExchange     *OAuthClient       `yaml:"token_exchange"`
	Enterprise        *Enterprise        `yaml:"enterprise"`
	// Issuer is the only authorization server that gets the credentials. If it is "", the upstream
	// names one.
	Issuer string   `yaml:"issuer"`
	Scopes []string `yaml:"scopes"` // what to ask for; empty means what the upstream asks for
}

// OAuthClient is a client that is registered with an authorization server.
type OAuthClient struct {
	ClientID     string `yaml:"client_id"`
	ClientSecret Secret `yaml:"client_secret"`
	// PrivateKeyFile has the key, as PEM, with which the client signs a proof of who it is, instead of a
	// secret (private_key_jwt, RFC 7523). It is read for each token.
	PrivateKeyFile string `yaml:"private_key_file"`
}

// Enterprise is a login at the company's identity provider, which vouches for the person at the
// authorization server of the upstream (MCP's enterprise-managed authorization).
type Enterprise struct {
	Client   OAuthClient      `yaml:"client"` // foldgate at the authorization server of the upstream
	Provider IdentityProvider `yaml:"provider"`
	Per      string           `yaml:"per"` // as in AuthorizationCode
}

// IdentityProvider is an OpenID Connect provider, and foldgate's client there.
type IdentityProvider struct {
	Issuer       string `yaml:"issuer"`
	ClientID     string `yaml:"client_id"`
	ClientSecret Secret `yaml:"client_secret"`
	RedirectPort int    `yaml:"redirect_port"` // as in AuthorizationCode
}

// AuthorizationCode is how a person logs in at an upstream. Without a ClientID foldgate registers
// itself with the authorization server.
type AuthorizationCode struct {
	ClientID     string `yaml:"client_id"`
	ClientSecret Secret `yaml:"client_secret"`
	// ClientMetadataURL is where foldgate's client ID metadata document is, for authorization servers
	// that read such documents.
	ClientMetadataURL string `yaml:"client_metadata_url"`
	RedirectPort      int    `yaml:"redirect_port"` // of http://127.0.0.1:PORT/callback; 0 means any
	Per               string `yaml:"per"`           // whose login it is: shared, or principal for one each; empty means shared
}

// PerPrincipal reports whether each principal has a login of its own.
func (a *Auth) PerPrincipal() bool {
	return a != nil && (a.TokenExchange != nil || a.AuthorizationCode != nil && a.AuthorizationCode.Per == "principal" || a.Enterprise != nil && a.Enterprise.Per == "principal")
}

// ExchangesTokens reports whether an upstream gets a token in exchange for that of the caller.
func (c *Config) ExchangesTokens() bool {
	for _, u := range c.Upstreams {
		if u.Auth != nil && u.Auth.TokenExchange != nil {
			return true
		}
	}
	return false
}

// ByPerson reports whether a person logs in, by foldgate login.
func (a *Auth) ByPerson() bool {
	return a != nil && (a.AuthorizationCode != nil || a.Enterprise != nil)
}

// clients returns the clients that may have a key, by their keys below auth.
func (a *Auth) clients() map[string]*OAuthClient {
	if a == nil {
		return nil
	}
	all := map[string]*OAuthClient{"client_credentials": a.ClientCredentials, "token_exchange": a.TokenExchange}
	if a.Enterprise != nil {
		all["enterprise.client"] = &a.Enterprise.Client
	}
	maps.DeleteFunc(all, func(_ string, c *OAuthClient) bool { return c == nil })
	return all
}

// Logins says how the logins of persons at upstreams are stored: encrypted with a key, which is in
// Key, else in KeyFile, which is made if need be.
type Logins struct {
	Key     Secret `yaml:"key"`
	KeyFile string `yaml:"key_file"` // "" means <state_dir>/logins/key
}

// Attribution decides the branch of a call without a branch_id: with Implicit "legacy", the one
// active leaf branch of its session or thread; with "off", main.
type Attribution struct {
	Implicit string `yaml:"implicit"`
}

// Results limits results that are too large to deliver whole; see docs/results.md.
type Results struct {
	MainThreshold  int     `yaml:"main_threshold"`  // the largest result delivered whole in main, in tokens
	BranchFraction float64 `yaml:"branch_fraction"` // the largest part of a branch's budget that one result may take
	PreviewTokens  int     `yaml:"preview_tokens"`  // the largest size of a preview
	QuotaMB        int     `yaml:"quota_mb"`        // bounds the stored results; over it the oldest are evicted
	TTLHours       int     `yaml:"ttl_hours"`       // how long a stored result is kept
	// OnInjection is what becomes of a result that looks like an instruction to the model: off, log, flag or block.
	OnInjection string `yaml:"on_injection"`
	// Tools are rules for single tools, by glob on the names that hosts see. The longest
	// matching glob applies.
	Tools map[string]FoldRule `yaml:"tools"`
}

// FoldRule is the policy for the results of some tools.
type FoldRule struct {
	Fold      string `yaml:"fold"`      // on or off; empty means on
	Threshold int    `yaml:"threshold"` // replaces main_threshold and branch_fraction, in tokens; 0 keeps them
	// OnInjection replaces that of all results; "" keeps it.
	OnInjection string `yaml:"on_injection"`
}

// Batch limits the batches of branch_run.
type Batch struct {
	// Allow are globs on the names that hosts see. They name tools that a batch may call although
	// the tools do not declare themselves read-only.
	Allow    []string `yaml:"allow"`
	MaxCalls int      `yaml:"max_calls"` // the largest number of calls in one batch
}

// LLM is the endpoint of the language model with which branches run by themselves; see docs/folding.md.
// Without an API there is none, and no branch runs by itself.
type LLM struct {
	API   string `yaml:"api"`   // APIOpenAI or APIAnthropic; "" means no model
	URL   string `yaml:"url"`   // the base URL, with the version: https://api.openai.com/v1
	Model string `yaml:"model"` // as the endpoint names it
	Key   Secret `yaml:"key"`   // sent to the endpoint and never shown; "" for none
	// Tools are globs on the names that hosts see: of the tools that a batch may call, those that the
	// model gets.
	Tools     []string `yaml:"tools"`
	MaxTurns  int      `yaml:"max_turns"`         // of one branch
	MaxOutput int      `yaml:"max_output_tokens"` // of one turn
}

// The values of [LLM.API].
const (
	APIOpenAI    = "openai"    // chat completions
	APIAnthropic = "anthropic" // Messages
)

// Runs reports whether branches can run by themselves.
func (l *LLM) Runs() bool { return l.API != "" }

// Tools says which tools are listed; see docs/tools.md.
type Tools struct {
	Mode       string   `yaml:"mode"`        // list, search or auto
	Always     []string `yaml:"always"`      // globs on the names that hosts see: tools that search lists, too
	AutoTokens int      `yaml:"auto_tokens"` // the largest cost of all definitions with which auto lists them
}

// The values of [Tools.Mode].
const (
	ModeList   = "list"   // all tools are listed
	ModeSearch = "search" // find_tools finds the tools of upstreams, call_tool calls them
	ModeAuto   = "auto"   // search for a host without a search of its own, if the definitions cost too much
)

// The tools of foldgate's own that are there unless the mode is list.
const (
	FindTools = "find_tools"
	CallTool  = "call_tool"
)

// ForSearch reports whether name is find_tools or call_tool.
func ForSearch(name string) bool { return name == FindTools || name == CallTool }

// Searchable reports whether find_tools and call_tool can be called.
func (t *Tools) Searchable() bool { return t.Mode != ModeList }

// Budget names the token counter.
type Budget struct {
	Encoding    string  `yaml:"encoding"`     // an encoding or a model name
	Scale       float64 `yaml:"scale"`        // corrects counts for models whose tokenizer is not public
	ImageTokens int     `yaml:"image_tokens"` // the estimate for one image or audio block
}

// Counter returns the counter that gateways and commands count with.
func (b Budget) Counter() (*budget.Counter, error) {
	c, err := budget.NewCounter(b.Encoding)
	if err != nil {
		return nil, fmt.Errorf("budget.encoding: %w", err)
	}
	if c, err = c.WithScale(b.Scale); err != nil {
		return nil, fmt.Errorf("budget.scale: %w", err)
	}
	return c, nil
}

// Budgets are the limits above all branches; see docs/budgets.md. Without limits nothing is opened
// and counted for them.
type Budgets struct {
	OnError string         `yaml:"on_error"` // refuse or allow: what becomes of calls while the store can't be reached
	WaitMS  int            `yaml:"wait_ms"`  // the longest that one call waits for the store
	Limits  []limits.Limit `yaml:"limits"`
	// MetricsByPrincipal adds the principal to the labels of the metrics that count by team.
	MetricsByPrincipal bool `yaml:"metrics_by_principal"`
}

// Store says where limits are counted, and replicas registered.
type Store struct {
	URL    Secret `yaml:"url"`    // of a Redis or Valkey server that several gateways share; "" means a file in state_dir
	Prefix string `yaml:"prefix"` // of the keys there: gateways with one prefix share the counts
}

// Replicas makes the gateway one of several that serve hosts together; see docs/operations.md. A gateway
// on stdio ignores it.
type Replicas struct {
	Listen  string `yaml:"listen"`  // takes the requests that other replicas pass on, host:port; "" means that there are none
	Address string `yaml:"address"` // under which they reach Listen, if that is another one
	Key     Secret `yaml:"key"`     // all replicas have the same: they prove to each other that they know it
	// DrainSeconds is how long a replica that is stopped still serves what is its own.
	DrainSeconds int `yaml:"drain_seconds"`
}

// Replicated reports whether the gateway is one of several replicas.
func (c *Config) Replicated() bool { return c.Listen != "" && c.Replicas.Listen != "" }

// Scrub is the policy for secrets of all upstreams, and the settings of the scrubber.
type Scrub struct {
	Results   string `yaml:"results"`    // redact, block or off
	Arguments string `yaml:"arguments"`  // report, redact, block or off
	Rules     string `yaml:"rules"`      // a gitleaks TOML file with more rules
	TimeoutMS int    `yaml:"timeout_ms"` // bounds the work of the scan of one message; over it the message is withheld
}

// ScrubPolicy is one upstream's own policy, with the values of [Scrub].
type ScrubPolicy struct {
	Results   string `yaml:"results"`
	Arguments string `yaml:"arguments"`
}

// Trace configures the journal; see docs/trace.md.
type Trace struct {
	Payload string `yaml:"payload"`  // scrubbed or none
	OnError string `yaml:"on_error"` // refuse or warn
	// Correlation decides about a correlationId that is a string, the form before arrays:
	// transition accepts it and counts it as deprecated, strict refuses the call.
	Correlation    string `yaml:"correlation"`
	Sync           string `yaml:"sync"`             // always, interval or never
	SyncIntervalMS int    `yaml:"sync_interval_ms"` // the interval of sync: interval
	RotateMB       int    `yaml:"rotate_mb"`        // starts a new file if the current one is larger
	RetainFiles    int    `yaml:"retain_files"`     // the number of files kept, with the one being written; 0 keeps all
	RetainDays     int    `yaml:"retain_days"`      // the age at which records go, in whole files; 0 keeps all
}

// Workflow connects tools that are independent of each other: one tool opens a workflow, the
// others continue it with its handle. See docs/workflows.md.
type Workflow struct {
	Name   string         `yaml:"name"`
	TTL    time.Duration  `yaml:"ttl"` // how long a workflow lives without use; 0 means a week
	Inject WorkflowInject `yaml:"inject"`
	// Open, Link, Status and Close list the tools by their role.
	Open        []workflow.ToolSpec `yaml:"open"`
	Link        []workflow.ToolSpec `yaml:"link"`
	Status      []workflow.ToolSpec `yaml:"status"`
	Close       []workflow.ToolSpec `yaml:"close"`
	OnUnknown   string              `yaml:"on_unknown"`   // reject, or remint: an unknown handle is ignored
	ForeignIDs  string              `yaml:"foreign_ids"`  // reject, or preserve: an open tool accepts foreign handles and returns them
	Require     bool                `yaml:"require"`      // refuses link, status and close calls outside a workflow
	Fallback    []string            `yaml:"fallback"`     // the evidence to look at, in order: explicit, native, join, session
	SessionOpen string              `yaml:"session_open"` // last, or none: the session is no evidence
}

// WorkflowInject is how a workflow's handle travels.
type WorkflowInject struct {
	Argument string `yaml:"argument"` // the parameter added to the tools; "" means context_id
	// Result lists where results carry the handle: structuredContent, content, _meta. If it is
	// absent, they carry it in all three.
	Result []string `yaml:"result"`
}

// Default returns the built-in configuration: stdio, and the files server on the working
// directory.
func Default() Config {
	return Config{
		StateDir:    ".foldgate",
		Upstreams:   map[string]*Upstream{"files": {Builtin: "files", Roots: []string{"."}}},
		Attribution: Attribution{Implicit: "legacy"},
		Folding:     folding.DefaultConfig(),
		Results: Results{
			OnInjection:   "off",
			MainThreshold: 8000, BranchFraction: 0.125, PreviewTokens: 400, QuotaMB: 256, TTLHours: 24,
			Tools: map[string]FoldRule{},
		},
		Batch:    Batch{Allow: []string{}, MaxCalls: 50},
		LLM:      LLM{Tools: []string{"*"}, MaxTurns: 30, MaxOutput: 4096},
		Tools:    Tools{Mode: ModeList, Always: []string{}, AutoTokens: 10_000},
		Budget:   Budget{Encoding: "o200k_base", Scale: 1, ImageTokens: 1600},
		Budgets:  Budgets{OnError: "refuse", WaitMS: 2000, Limits: []limits.Limit{}},
		Store:    Store{Prefix: "foldgate"},
		Replicas: Replicas{DrainSeconds: 10},
		Scrub:    Scrub{Results: "redact", Arguments: "report", TimeoutMS: 5000},
		Trace: Trace{
			Payload: "scrubbed", OnError: "refuse", Correlation: "transition",
			Sync: "interval", SyncIntervalMS: 100, RotateMB: 256,
		},
		Auth:   auth.Config{Issuers: map[string]*auth.Issuer{}, Scopes: []string{}, Revoked: []string{}},
		Pins:   "warn",
		Policy: policy.Config{Default: "allow", Unlisted: "forbidden", Action: "refuse", Rules: []policy.Rule{}},
	}
}

// Path makes a configured path absolute.
func (c Config) Path(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.Dir, p)
}

// StatePath returns the state directory as an absolute path.
func (c Config) StatePath() string { return c.Path(c.StateDir) }

// LoginsPath returns the directory of stored logins as an absolute path.
func (c Config) LoginsPath() string {
	return cmp.Or(c.LoginsDir, filepath.Join(c.StatePath(), "logins"))
}

// KeyPath returns the file of the key of stored logins, as an absolute path.
func (c Config) KeyPath() string {
	return cmp.Or(c.Path(c.Logins.KeyFile), filepath.Join(c.LoginsPath(), "key"))
}

// Private returns the absolute paths of what no model may read: the state directory, the files with
// secrets that the configuration names, and the backups of the files of hosts.
func (c Config) Private() []string {
	paths := []string{c.StatePath(), c.LoginsPath(), c.KeyPath(), spelling.BackupDir()}
	named := []string{c.EnvFile, c.TLS.Key, c.Console.TLS.Key}
	for _, u := range c.Upstreams {
		for _, client := range u.Auth.clients() {
			named = append(named, client.PrivateKeyFile)
		}
	}
	for _, file := range named {
		if file != "" {
			paths = append(paths, c.Path(file))
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// RulesFile returns the path of the user's own scrubbing rules, "" for none.
func (c Config) RulesFile() string { return c.Path(c.Scrub.Rules) }

// InstanceDir returns the state directory of the n-th process, from 1, that runs on the same
// configuration at the same time.
func InstanceDir(stateDir string, n int) string {
	if n == 1 {
		return stateDir
	}
	return filepath.Join(stateDir, fmt.Sprintf("instance-%d", n))
}

// UpstreamKeys returns the upstreams' keys in the file's order, then the others sorted.
func (c Config) UpstreamKeys() (keys []string) {
	for _, key := range slices.Concat(c.order, slices.Sorted(maps.Keys(c.Upstreams))) {
		if _, ok := c.Upstreams[key]; ok && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// Timeout returns the time that a call of an upstream may take, 0 for any.
func (c *Config) Timeout(upstream string) time.Duration {
	if u := c.Upstreams[upstream]; u != nil {
		return time.Duration(u.TimeoutSeconds) * time.Second
	}
	return 0
}

// Defaults of the connections to an upstream.
const (
	defaultProcesses   = 100              // child processes of one command
	defaultConnections = 10_000           // connections to one URL: as many as HTTP has legacy sessions
	defaultIdle        = 30 * time.Minute // on HTTP: the idle time of a legacy session
)

// MaxConnections returns the most connections to an upstream, for all and for one principal, which
// has half of them at most if there are several.
func (c Config) MaxConnections(u *Upstream) (all, each int) {
	all = cmp.Or(u.MaxConnections, defaultConnections)
	if len(u.Command) > 0 {
		all = cmp.Or(u.MaxConnections, defaultProcesses)
	}
	if c.PrincipalCount() > 1 {
		return all, max(all/2, 1)
	}
	return all, all
}

// IdleTime returns the time after which an unused connection to an upstream is closed, 0 for never.
func (c Config) IdleTime(u *Upstream) time.Duration {
	switch {
	case u.IdleSeconds != nil:
		return time.Duration(*u.IdleSeconds) * time.Second
	case c.Listen != "":
		return defaultIdle
	}
	return 0
}

// NamePrefix returns the prefix of the names of the upstream called key.
func (u *Upstream) NamePrefix(key string) string {
	if u.Prefix != nil {
		return *u.Prefix
	}
	return key
}

// maxName is the longest tool name that every known host accepts.
const maxName = 64

// ShownName returns the name under which hosts see a tool or prompt of an upstream.
func (c *Config) ShownName(upstream, own string) string { return ShortName(c.FullName(upstream, own)) }

// FullName returns the shown name before it is shortened.
func (c *Config) FullName(upstream, own string) string {
	if u := c.Upstreams[upstream]; u != nil && u.NamePrefix(upstream) != "" {
		return u.NamePrefix(upstream) + "__" + own
	}
	return own
}

// ShortName shortens a name over 64 bytes to its beginning and a hash of the whole, so that it is the same
// every time.
func ShortName(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName-9], "") + "_" + Sum([]byte(name))[:8]
}

// ByPrefix finds the upstream that a shown name belongs to by the longest prefix that fits, and the
// upstream's own name. An upstream without a prefix is never found.
func (c *Config) ByPrefix(shown string) (key, own string, ok bool) {
	for k, u := range c.Upstreams {
		rest, fits := strings.CutPrefix(shown, u.NamePrefix(k)+"__")
		if fits && u.NamePrefix(k) != "" && (!ok || len(rest) < len(own)) {
			key, own, ok = k, rest, true
		}
	}
	return key, own, ok
}

// PinMode returns what becomes of definitions of an upstream that are not approved: off, warn or hold.
func (c *Config) PinMode(upstream string) string {
	if u := c.Upstreams[upstream]; u != nil && u.Pins != "" {
		return u.Pins
	}
	return c.Pins
}

// Reach returns the part of u that says how the upstream is reached.
func (u *Upstream) Reach() Upstream {
	r := *u
	r.Prefix, r.Tools, r.TimeoutSeconds, r.Scrub, r.Pins = nil, policy.Globs{}, 0, ScrubPolicy{}, ""
	return r
}

// Console is where foldgate console serves those who log in.
type Console struct {
	// Listen is its address, host:port; "" means a loopback address and a one-time link.
	Listen string `yaml:"listen"`
	TLS    TLS    `yaml:"tls"`
	// AllowedHosts are the names, beside the loopback ones, under which browsers may reach it.
	AllowedHosts []string `yaml:"allowed_hosts"`
}

// Exposed reports whether other machines can reach the HTTP server.
func (c Config) Exposed() bool { return exposed(c.Listen) }

func exposed(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && !publicip.Loopback(host)
}

// Secure reports whether the HTTP server speaks TLS.
func (c Config) Secure() bool { return c.TLS.Cert != "" }

// Certificate loads a certificate chain and its key, which may be new files of the names in t.
func (c Config) Certificate(t TLS) (tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(c.Path(t.Cert), c.Path(t.Key))
	if err != nil {
		return cert, fmt.Errorf("certificate %s with key %s: %w", t.Cert, t.Key, err)
	}
	return cert, nil
}

// PrincipalNames returns the names of the configured principals, sorted.
func (c Config) PrincipalNames() []string { return slices.Sorted(maps.Keys(c.Principals)) }

// Identity returns what the configuration says of a principal. It shares its lists with c.
func (c *Config) Identity(principal string) interceptor.Identity {
	id := interceptor.Identity{Principal: principal}
	if p := c.Principals[principal]; p != nil {
		id.Team, id.Roles, id.Scopes = p.Team, p.Roles, p.Scopes
	}
	return id
}

// IdentityAs is [Config.Identity], with what is given of a team, roles and scopes instead of the configuration's.
func (c *Config) IdentityAs(principal, team string, roles, scopes []string) interceptor.Identity {
	id := c.Identity(principal)
	id.Team = cmp.Or(team, id.Team)
	if roles != nil {
		id.Roles = roles
	}
	if scopes != nil {
		id.Scopes = scopes
	}
	return id
}

// WithoutEffect returns a fault for each key about principals that has no effect on stdio, if foldgate serves
// that: its only principal is "local".
func (c Config) WithoutEffect() (faults []Fault) {
	if c.Listen != "" {
		return nil
	}
	const why = `%s: on stdio every host is the principal "local"; set listen, or start foldgate run with --listen`
	others := slices.DeleteFunc(c.PrincipalNames(), func(name string) bool { return name == interceptor.LocalPrincipal })
	if len(others) > 0 {
		faults = append(faults, Fault{Key: "principals", Msg: fmt.Sprintf(why, strings.Join(others, ", ")+" can't call")})
	}
	for i, l := range c.Budgets.Limits {
		if m := l.Match; m.Principal != "" && m.Principal != interceptor.LocalPrincipal || m.Team != "" && m.Team != c.Identity(interceptor.LocalPrincipal).Team {
			faults = append(faults, Fault{Key: fmt.Sprintf("budgets.limits[%d].match", i), Msg: fmt.Sprintf(why, "limit "+l.Name+" never applies")})
		}
	}
	return c.Locate(faults)
}

// Ended returns a fault for each principal who can't call at a time, since all its tokens have ended.
func (c Config) Ended(now time.Time) (faults []Fault) {
	for _, name := range c.PrincipalNames() {
		if !slices.ContainsFunc(c.Principals[name].All(), func(t Token) bool { return t.Expires.IsZero() || t.Expires.After(now) }) {
			faults = append(faults, Fault{Key: "principals." + name, Msg: "can't call: all its tokens have ended"})
		}
	}
	return c.Locate(faults)
}

// UnmatchedPrincipals returns a fault for each rule of the policy, role of auth and glob of auth.revoked that
// fits no principal, such as a mistyped one. With issuers there is no fault, because their principals are
// not known.
func (c Config) UnmatchedPrincipals() (faults []Fault) {
	if len(c.Auth.Issuers) > 0 {
		return nil
	}
	names := c.PrincipalNames()
	if len(names) == 0 {
		names = []string{interceptor.LocalPrincipal}
	}
	check := func(key, why string, fits func(interceptor.Identity) bool) {
		if !slices.ContainsFunc(names, func(name string) bool { return fits(c.Identity(name)) }) {
			faults = append(faults, Fault{Key: key, Msg: why})
		}
	}
	for i, rule := range c.Policy.Rules {
		check(fmt.Sprintf("policy.rules[%d].who", i), "rule "+rule.Name+" fits no principal: correct it, or the team, roles and scopes under principals", rule.Who.Matches)
	}
	for _, one := range [][2]string{{"auditor", c.Auth.Auditor}, {"operator", c.Auth.Operator}} {
		if one[1] != "" {
			check("auth."+one[0], fmt.Sprintf("no principal has the role %q: correct it, or the roles under principals", one[1]), func(id interceptor.Identity) bool { return slices.Contains(id.Roles, one[1]) })
		}
	}
	for _, glob := range c.Auth.Revoked {
		check("auth.revoked", fmt.Sprintf("%q fits no principal", glob), func(id interceptor.Identity) bool { return globs.Match(glob, id.Principal) })
	}
	return c.Locate(faults)
}

// OnlyRecords returns what to tell the operator about a policy that refuses nothing. ok is false without one.
func (c Config) OnlyRecords() (f Fault, ok bool) {
	if c.Policy.Action != "warn" {
		return f, false
	}
	return c.Locate([]Fault{{Key: "policy.action", Msg: "is warn: the policy hides and refuses nothing, and the trace has what it would refuse"}})[0], true
}

// Complete returns who a caller is: as its token says if an issuer signed that, else as the
// configuration says.
func (c *Config) Complete(id interceptor.Identity) interceptor.Identity {
	if id.Issuer != "" {
		return id
	}
	return c.Identity(id.Principal)
}

// Authenticates reports whether hosts need a token.
func (c *Config) Authenticates() bool { return len(c.Principals)+len(c.Auth.Issuers) > 0 }

// PrincipalCount returns the number of principals that are configured. An issuer counts as two, since
// it has more than one.
func (c *Config) PrincipalCount() int { return len(c.Principals) + 2*len(c.Auth.Issuers) }

// Knows reports whether hosts can be a principal: one that is configured or an issuer's, or any if
// hosts need no token.
func (c *Config) Knows(principal string) bool {
	issuer, _, ok := strings.Cut(principal, ":")
	return !c.Authenticates() || c.Principals[principal] != nil || ok && c.Auth.Issuers[issuer] != nil
}

// All returns the principal's tokens: that of token and token_sha256, and those of tokens.
func (p *Principal) All() []Token {
	if p.Token == "" && p.TokenSHA256 == "" {
		return p.Tokens
	}
	return append([]Token{{Token: p.Token, TokenSHA256: p.TokenSHA256}}, p.Tokens...)
}

// Digest returns the SHA-256 of the token. ok is false if the configuration has no valid one.
func (t Token) Digest() (sum [sha256.Size]byte, ok bool) {
	if t.Token != "" {
		return sha256.Sum256([]byte(t.Token)), true
	}
	raw, err := hex.DecodeString(t.TokenSHA256)
	return sum, err == nil && copy(sum[:], raw) == sha256.Size && len(raw) == sha256.Size
}

// ScrubPolicy returns the policy for an upstream; "" is foldgate itself.
func (c *Config) ScrubPolicy(server string) interceptor.ScrubPolicy {
	var own ScrubPolicy
	if u := c.Upstreams[server]; u != nil {
		own = u.Scrub
	}
	return interceptor.ScrubPolicy{
		ToHost:   interceptor.Action(cmp.Or(own.Results, c.Scrub.Results)),
		ToServer: interceptor.Action(cmp.Or(own.Arguments, c.Scrub.Arguments)),
	}
}

// LetsSecretsThrough reports whether secrets of some upstream reach the host.
func (c *Config) LetsSecretsThrough() bool {
	for key := range c.Upstreams {
		if c.ScrubPolicy(key).ToHost == interceptor.Off {
			return true
		}
	}
	return false
}

// Rule returns the policy for the tool that hosts see as name.
func (r Results) Rule(name string) interceptor.FoldRule {
	best := "" // the empty glob matches no name
	for glob := range r.Tools {
		if globs.Match(glob, name) && (len(glob) > len(best) || len(glob) == len(best) && glob < best) {
			best = glob
		}
	}
	own := r.Tools[best]
	rule := interceptor.FoldRule{Off: own.Fold == "off", Threshold: own.Threshold, OnInjection: cmp.Or(own.OnInjection, r.OnInjection)}
	if rule.OnInjection == "off" {
		rule.OnInjection = ""
	}
	return rule
}

// Selects reports whether the model gets a tool, by the name that hosts see.
func (l *LLM) Selects(shown string) bool { return globs.Any(l.Tools, shown) }

// Allows reports whether the configuration names a tool for batches.
func (b Batch) Allows(shown string) bool { return globs.Any(b.Allow, shown) }
