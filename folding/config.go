package folding

import (
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/faults"
)

// Forms of Config.SessionValidation.
const (
	// ValidationPermissive lets each connection of a principal use all branches of the principal.
	// Subagents may have connections of their own.
	ValidationPermissive = "permissive"
	// ValidationStrict lets a connection use its own session only. A connection without a session
	// (the modern era on HTTP) can't use branches at all.
	ValidationStrict = "strict"
)

// Config limits branches. Budgets are in tokens.
type Config struct {
	// DefaultBudget is the budget of a branch that asks for none. MaxBudget is the budget of a
	// branch that asks for more.
	DefaultBudget int `yaml:"default_budget"`
	MaxBudget     int `yaml:"max_budget"`
	// MaxDepth is the depth of the deepest branch allowed. A first-level branch has depth 1.
	MaxDepth int `yaml:"max_depth"`
	// DefaultTimeoutSeconds and MaxTimeoutSeconds work like the budgets.
	DefaultTimeoutSeconds int `yaml:"default_timeout_seconds"`
	MaxTimeoutSeconds     int `yaml:"max_timeout_seconds"`
	// MaxConcurrentPerSession and MaxConcurrentPerInstance limit the branches that are open at
	// one time.
	MaxConcurrentPerSession  int `yaml:"max_concurrent_per_session"`
	MaxConcurrentPerInstance int `yaml:"max_concurrent_per_instance"`
	// MaxBranchesPerMinute limits the branches that one session creates in any minute.
	// MaxBranchesPerMinutePerPrincipal limits all sessions of a principal together, and callers
	// without a session. Less than MaxBranchesPerMinute counts as that.
	MaxBranchesPerMinute             int `yaml:"max_branches_per_minute"`
	MaxBranchesPerMinutePerPrincipal int `yaml:"max_branches_per_minute_per_principal"`
	// SessionCleanupSeconds bounds [Manager.EndSession] and [Manager.Close].
	SessionCleanupSeconds int `yaml:"session_cleanup_seconds"`
	// Retention is how long a finished branch can be looked up. Then it is deleted: the trace has
	// its figures.
	Retention time.Duration `yaml:"retention"`
	// RequireSessionID refuses a creation without a session_id argument.
	RequireSessionID bool `yaml:"require_session_id"`
	// SessionValidation is ValidationPermissive or ValidationStrict.
	SessionValidation string `yaml:"session_validation"`
	// InjectMemories gives new branches what Memory finds: at most MemoryMaxItems memories of at least
	// MemoryMinConfidence, within InjectionBudgetRatio of the budget.
	InjectMemories       bool    `yaml:"inject_memories"`
	InjectionBudgetRatio float64 `yaml:"injection_budget_ratio"`
	MemoryMaxItems       int     `yaml:"memory_max_items"`
	MemoryMinConfidence  float64 `yaml:"memory_min_confidence"`
	// Memory is the tool that finds memories, Remember the one that stores what branches brought.
	Memory   Memory   `yaml:"memory"`
	Remember Remember `yaml:"remember"`
}

// Memory says how a tool finds memories for a branch.
type Memory struct {
	Tool string `yaml:"tool"` // by the name that hosts see; "" for none
	// Arguments are the tool's. ${description} in their texts stands for that of the branch, ${prompt} for
	// its prompt.
	Arguments map[string]any `yaml:"arguments"`
	// Items is a JSONPath of the memories in the tool's result. Text, Confidence and Source are JSONPaths in
	// a memory. Confidence may be a number instead, for all memories.
	Items      string `yaml:"items"`
	Text       string `yaml:"text"`
	Confidence string `yaml:"confidence"`
	Source     string `yaml:"source"`
	// Trusted are globs on sources. Others are shown as untrusted.
	Trusted []string `yaml:"trusted"`
	// OnInjection is what becomes of a memory that looks like an instruction to the model: log, flag or block.
	OnInjection string `yaml:"on_injection"`
}

// Remember says how a tool stores what a branch brought.
type Remember struct {
	Tool string `yaml:"tool"` // by the name that hosts see; "" for none
	// Arguments are the tool's. Names in their texts stand for what is known of the branch.
	Arguments map[string]any `yaml:"arguments"`
}

// What becomes of a memory or a tool's result that looks like an instruction to the model.
const (
	InjectionLog   = "log"   // deliver it, and say so in the trace
	InjectionFlag  = "flag"  // and in the text
	InjectionBlock = "block" // do not deliver it
)

// DefaultConfig returns the default limits.
func DefaultConfig() Config {
	return Config{
		DefaultBudget:                    8192,
		MaxBudget:                        32768,
		MaxDepth:                         3,
		DefaultTimeoutSeconds:            300,
		MaxTimeoutSeconds:                600,
		MaxConcurrentPerSession:          10,
		MaxConcurrentPerInstance:         100,
		MaxBranchesPerMinute:             5,
		MaxBranchesPerMinutePerPrincipal: 30,
		SessionCleanupSeconds:            30,
		Retention:                        24 * time.Hour,
		SessionValidation:                ValidationPermissive,
		InjectMemories:                   true,
		InjectionBudgetRatio:             0.2,
		MemoryMaxItems:                   10,
		MemoryMinConfidence:              0.7,
		Memory:                           Memory{Arguments: map[string]any{}, Trusted: []string{}, OnInjection: InjectionFlag},
		Remember:                         Remember{Arguments: map[string]any{}},
	}
}

// maxSeconds keeps deadlines well inside the range of time.Duration.
const maxSeconds = 365 * 24 * 3600

// Validate returns a fault for each impossible value.
func (c Config) Validate() faults.List {
	var wrong faults.List
	within := func(key string, v, low, high int) {
		if v < low || v > high {
			wrong.Add("folding."+key, "%d is not between %d and %d", v, low, high)
		}
	}
	const many = 1 << 30
	within("default_budget", c.DefaultBudget, 1, many)
	within("max_budget", c.MaxBudget, 1, many)
	within("max_depth", c.MaxDepth, 1, contextpath.MaxDepth)
	within("default_timeout_seconds", c.DefaultTimeoutSeconds, 1, maxSeconds)
	within("max_timeout_seconds", c.MaxTimeoutSeconds, 1, maxSeconds)
	within("max_concurrent_per_session", c.MaxConcurrentPerSession, 1, many)
	within("max_concurrent_per_instance", c.MaxConcurrentPerInstance, 1, many)
	within("max_branches_per_minute", c.MaxBranchesPerMinute, 1, many)
	within("max_branches_per_minute_per_principal", c.MaxBranchesPerMinutePerPrincipal, 1, many)
	within("session_cleanup_seconds", c.SessionCleanupSeconds, 1, maxSeconds)
	if c.DefaultBudget > c.MaxBudget {
		wrong.Add("folding.default_budget", "%d is over folding.max_budget, %d", c.DefaultBudget, c.MaxBudget)
	}
	if c.DefaultTimeoutSeconds > c.MaxTimeoutSeconds {
		wrong.Add("folding.default_timeout_seconds", "%d is over folding.max_timeout_seconds, %d", c.DefaultTimeoutSeconds, c.MaxTimeoutSeconds)
	}
	if c.Retention < time.Minute {
		wrong.Add("folding.retention", "%v is under a minute", c.Retention)
	}
	within("memory_max_items", c.MemoryMaxItems, 0, 1000)
	for key, v := range map[string]float64{"injection_budget_ratio": c.InjectionBudgetRatio, "memory_min_confidence": c.MemoryMinConfidence} {
		if !(v >= 0 && v <= 1) {
			wrong.Add("folding."+key, "%v is not between 0 and 1", v)
		}
	}
	if c.SessionValidation != ValidationPermissive && c.SessionValidation != ValidationStrict {
		wrong.Add("folding.session_validation", "%q is neither %s nor %s", c.SessionValidation, ValidationPermissive, ValidationStrict)
	}
	return wrong
}
