// Package limits bounds what principals, teams, tools, servers and sessions spend in a window of
// time: tokens and calls. It knows nothing of MCP; see the package's example.
//
// A [Limit] counts for each of its subjects. What a call uses is taken from all limits that match
// it in one atomic operation of a [Store], before it is delivered. So a limit with the action
// "refuse" is never exceeded, not even by several processes that share a store.
//
// A process reserves more than one call needs, at most 1/16 of what is left: calls that follow use
// the reserve without an operation of the store. A reserve that is used up is followed by one of twice
// its size, up to 128 times the first. What is not used goes back after 100 ms. With a [ReserveFile] the next
// process gives back the reserve of a process that was killed. The counts may then be too high by tokens
// that did not arrive, and are never too low.
package limits

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/globs"
)

// What limits count for, in [Limit.Per].
const (
	PerSession   = "session"
	PerPrincipal = "principal"
	PerTeam      = "team"
	PerTool      = "tool"
	PerServer    = "server"
	PerAll       = "all"
)

// What happens above a limit, in [Limit.Action].
const (
	Refuse = "refuse" // the limit is never exceeded
	Fold   = "fold"   // results arrive as previews only
	Warn   = "warn"   // nothing but a notice
)

// What a limit matches by branch, in [Match.Context].
const (
	Main   = "main"   // calls outside branches
	Branch = "branch" // calls in branches
)

// maxLimits is the largest number of limits, maxSubjects that of the subjects of one with amounts of their own.
const maxLimits, maxSubjects = 256, 10_000

// Limit is a configured limit.
type Limit struct {
	Name   string `yaml:"name"`   // unique, of a-z, 0-9, - and _, at most 64
	Match  Match  `yaml:"match"`  // which uses count
	Per    string `yaml:"per"`    // the subject that has a count of its own, such as each principal
	Tokens Amount `yaml:"tokens"` // 0: any number
	Calls  Amount `yaml:"calls"`  // 0: any number
	// ModelTokens are the tokens of the models of branches that run by themselves, as their endpoints count
	// them. A limit has either these, or Tokens and Calls.
	ModelTokens Amount `yaml:"model_tokens"`
	// Subjects have amounts of their own, by the name of a principal, team, tool or server: what Per says.
	Subjects map[string]Amounts `yaml:"subjects"`
	Window   Window             `yaml:"window"`    // needed, but for per: session
	TimeZone string             `yaml:"time_zone"` // of days, weeks and months; an IANA name, "" means UTC
	WarnAt   float64            `yaml:"warn_at"`   // the share at which the limit is near; 0 means 0.8
	Action   string             `yaml:"action"`    // "" means refuse
}

// Amounts are what a subject may use in a window in place of the limit's amounts. 0: as the limit says.
type Amounts struct {
	Tokens      Amount `yaml:"tokens"`
	Calls       Amount `yaml:"calls"`
	ModelTokens Amount `yaml:"model_tokens"`
}

// Match selects uses. An empty field selects all.
type Match struct {
	Principal string `yaml:"principal"`
	Team      string `yaml:"team"`
	Server    string `yaml:"server"`
	Tool      string `yaml:"tool"` // a glob for the name that hosts see; * matches a slash too
	Context   string `yaml:"context"`
}

// Use says who uses what.
type Use struct {
	Principal, Team, Session string // Session is empty for a request that has none
	Server, Tool             string // empty for what is not a call of a tool
	Branch                   bool   // in a branch
	Model                    bool   // of a model: only limits of model tokens match
	Made                     string // by whom what is delivered was made, if it was stored meanwhile; see MadeBy
}

// MadeBy returns the use of something stored that a tool of a server has made: limits that match the tool
// count it too. Either may be empty. What several tools have made is by each of them.
func (u Use) MadeBy(server, tool string) Use {
	u.Made += server + "\x00" + tool + "\x00"
	return u
}

// uses returns what a limit counts of a use: one for each subject.
func (l *limit) uses(u Use) (all []Use) {
	for rest, more := u.Made, true; more; {
		u.Made = ""
		if l.matches(u) && !slices.ContainsFunc(all, func(o Use) bool {
			return (l.Per != PerTool || o.Tool == u.Tool) && (l.Per != PerServer || o.Server == u.Server)
		}) {
			all = append(all, u)
		}
		u.Server, rest, more = strings.Cut(rest, "\x00")
		u.Tool, rest, _ = strings.Cut(rest, "\x00")
	}
	return all
}

// Amount is a number of tokens or calls. Its text is a number such as 200000, 200k or 20M.
type Amount int64

// UnmarshalText reads an amount.
func (a *Amount) UnmarshalText(text []byte) error {
	digits, unit := string(text), int64(1)
	for suffix, n := range map[string]int64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if cut, ok := strings.CutSuffix(digits, suffix); ok {
			digits, unit = cut, n
			break
		}
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(digits, "_", ""), 10, 64)
	if err != nil || n < 0 || n > maxAmount/unit {
		return fmt.Errorf("%q is not an amount: write a number such as 200000, 200k or 20M, at most 1000G", text)
	}
	*a = Amount(n * unit)
	return nil
}

// maxAmount is exact in the numbers of Redis scripts, and sums of it don't overflow.
const maxAmount = 1e12

var limitName = regexp.MustCompile(`^[a-z0-9_-]{1,64}$`)

// Check returns what is wrong with the limits. The keys have the number of the limit.
func Check(all []Limit) (wrong faults.List) {
	wrong.If(len(all) > maxLimits, "limits", "there are %d: use at most %d", len(all), maxLimits)
	seen := map[string]bool{}
	for i, l := range all {
		fault := func(bad bool, key, format string, args ...any) {
			if l.Name != "" {
				format, args = "limit %s: "+format, append([]any{l.Name}, args...)
			}
			wrong.If(bad, fmt.Sprintf("limits[%d].%s", i, key), format, args...)
		}
		named := limitName.MatchString(l.Name)
		fault(!named, "name", "%q is not a name: use 1 to 64 of a-z, 0-9, - and _", l.Name)
		fault(named && seen[l.Name], "name", "%q is the name of another limit", l.Name)
		seen[l.Name] = true
		fault(!slices.Contains([]string{PerSession, PerPrincipal, PerTeam, PerTool, PerServer, PerAll}, l.Per),
			"per", "%q is unknown: use session, principal, team, tool, server or all", l.Per)
		fault(!slices.Contains([]string{"", Main, Branch}, l.Match.Context), "match.context", "%q is unknown: use main or branch", l.Match.Context)
		fault(!slices.Contains([]string{"", Refuse, Fold, Warn}, l.Action), "action", "%q is unknown: use refuse, fold or warn", l.Action)
		fault(!globs.Valid(l.Match.Tool), "match.tool", globs.Invalid, l.Match.Tool)
		if l.ModelTokens != 0 {
			fault(l.Tokens != 0 || l.Calls != 0 || l.Match.Server != "" || l.Match.Tool != "" || l.Per == PerTool || l.Per == PerServer || l.Action == Fold,
				"model_tokens", "goes without tokens and calls, tools and servers, and the action fold: give these a limit of their own")
			l.Tokens = l.ModelTokens
		}
		fault(l.Tokens < 0 || l.Calls < 0 || max(l.Tokens, l.Calls) > maxAmount || l.Tokens == 0 && l.Calls == 0,
			"tokens", "set tokens, calls or model_tokens to a number from 1 to 1000G")
		fault(len(l.Subjects) > maxSubjects, "subjects", "has %d entries, more than %d", len(l.Subjects), maxSubjects)
		fault(len(l.Subjects) > 0 && !slices.Contains([]string{PerPrincipal, PerTeam, PerTool, PerServer}, l.Per),
			"subjects", "goes with per: principal, team, tool or server")
		for _, name := range slices.Sorted(maps.Keys(l.Subjects)) {
			a := l.Subjects[name]
			fault(a == Amounts{}, "subjects."+name, "names no amount: set tokens, calls or model_tokens")
			fault(min(a.Tokens, a.Calls, a.ModelTokens) < 0 || max(a.Tokens, a.Calls, a.ModelTokens) > maxAmount, "subjects."+name, "has an amount that is not from 1 to 1000G")
			fault(l.ModelTokens != 0 && (a.Tokens != 0 || a.Calls != 0) || l.ModelTokens == 0 && a.ModelTokens != 0,
				"subjects."+name, "has other units than the limit: model_tokens go with model_tokens, tokens and calls with these")
		}
		fault(l.Window == (Window{}) && l.Per != PerSession, "window", "is missing: use for example 1h, 1d, 1w, 1mo or rolling 24h")
		_, err := time.LoadLocation(l.TimeZone)
		fault(err != nil, "time_zone", "%q is not a time zone: use an IANA name such as Europe/Berlin", l.TimeZone)
		fault(!(l.WarnAt >= 0 && l.WarnAt <= 1), "warn_at", "%v is not a share: use a number from 0 to 1", l.WarnAt)
	}
	return wrong
}

// limit is a limit in use.
type limit struct {
	Limit
	zone *time.Location
}

func (l Limit) prepare() (*limit, error) {
	zone, err := time.LoadLocation(l.TimeZone)
	l.Action = cmp.Or(l.Action, Refuse)
	l.WarnAt = cmp.Or(l.WarnAt, 0.8)
	l.Tokens = cmp.Or(l.Tokens, l.ModelTokens)
	return &limit{l, zone}, err
}

// total returns what a subject may use in a window. 0: any number.
func (l *limit) total(subject string) Used {
	a := l.Subjects[subject]
	return Used{int64(cmp.Or(a.Tokens, a.ModelTokens, l.Tokens)), int64(cmp.Or(a.Calls, l.Calls))}
}

func (l *limit) matches(u Use) bool {
	same := func(want, is string) bool { return want == "" || want == is }
	m := l.Match
	switch {
	case u.Model != (l.ModelTokens != 0), !same(m.Principal, u.Principal), !same(m.Team, u.Team), !same(m.Server, u.Server),
		m.Context == Main && u.Branch, m.Context == Branch && !u.Branch,
		l.Per == PerTool && u.Tool == "", l.Per == PerServer && u.Server == "":
		return false
	}
	return m.Tool == "" || u.Tool != "" && globs.Match(m.Tool, u.Tool)
}

// match is a limit with a subject and the window of a time.
type match struct {
	*limit
	subject string
	span    span
}

// counter returns the counter of a use at a time, and what it counts for.
func (l *limit) counter(u Use, now time.Time) (Counter, match) {
	subject, window := "", l.Window
	switch l.Per {
	case PerSession:
		subject = u.Session
		if subject == "" { // a request without a session: connecting anew must not lift the limit
			subject = "principal " + u.Principal
			window = cmp.Or(window, Window{n: 1, unit: day})
		}
	case PerPrincipal:
		subject = u.Principal
	case PerTeam:
		subject = u.Team
	case PerTool:
		subject = u.Tool
	case PerServer:
		subject = u.Server
	}
	w, total := window.at(now, l.zone), l.total(subject)
	return Counter{
		Key:  key(l.Name, w.key, subject),
		From: w.from, Until: w.until, Bucket: w.bucket, Oldest: w.oldest, Expires: w.expires,
		Tokens: total.Tokens, Calls: total.Calls, Hard: l.Action == Refuse,
	}, match{l, subject, w}
}

// key returns the key of a counter. The subject is last: it may hold any character.
func key(limit string, window int64, subject string) string {
	return limit + ":" + strconv.FormatInt(window, 10) + ":" + subject
}

// cutKey is the opposite of key.
func cutKey(key string) (limit string, window int64, subject string, ok bool) {
	limit, rest, _ := strings.Cut(key, ":")
	start, subject, ok := strings.Cut(rest, ":")
	window, err := strconv.ParseInt(start, 10, 64)
	return limit, window, subject, ok && err == nil
}

// State is the state of a limit for one subject.
type State struct {
	Limit      string `json:"limit"`
	Subject    string `json:"subject"`
	Per        string `json:"per"`
	Action     string `json:"action"`
	Window     string `json:"window,omitempty"`
	Model      bool   `json:"model,omitempty"`  // the tokens are those of models that run branches
	Tokens     int64  `json:"tokens,omitempty"` // 0: any number
	TokensUsed int64  `json:"tokens_used"`      // also what is reserved
	Calls      int64  `json:"calls,omitempty"`  // 0: any number
	CallsUsed  int64  `json:"calls_used"`
	// Reset is the end of the window, zero for never. A rolling window ends when all that counts now has come
	// free; Reset is zero if nothing counts.
	Reset time.Time `json:"reset,omitzero"`
}

// Quantity is what a limit counts in one unit.
type Quantity struct {
	Unit        string // tokens, model tokens or calls
	Used, Total int64
}

// Left returns how much is not used.
func (q Quantity) Left() int64 { return max(q.Total-q.Used, 0) }

// Quantities returns what the limit counts.
func (s State) Quantities() (all []Quantity) {
	for _, q := range []Quantity{s.tokens(), s.calls()} {
		if q.Total > 0 {
			all = append(all, q)
		}
	}
	return all
}

func (s State) tokens() Quantity {
	if s.Model {
		return Quantity{"model tokens", s.TokensUsed, s.Tokens}
	}
	return Quantity{"tokens", s.TokensUsed, s.Tokens}
}

func (s State) calls() Quantity { return Quantity{"calls", s.CallsUsed, s.Calls} }

// left returns what is left of a total.
func left(total, used int64) int64 {
	if total == 0 {
		return math.MaxInt64
	}
	return max(total-used, 0)
}

// state returns the state of a limit of which u is used. latest is the last part of a rolling window with a
// use that counts, 0 if none has one.
func (m match) state(u Used, latest int64) State {
	reset := m.time(m.span.until)
	if m.span.bucket != 0 {
		if reset = (time.Time{}); latest != 0 {
			reset = m.time(latest + m.span.until - m.span.oldest)
		}
	}
	total := m.total(m.subject)
	return State{
		Limit: m.Name, Subject: m.subject, Per: m.Per, Action: m.Action, Window: m.Window.String(), Reset: reset,
		Tokens: total.Tokens, TokensUsed: u.Tokens, Calls: total.Calls, CallsUsed: u.Calls, Model: m.ModelTokens > 0,
	}
}

// time returns a time in the zone of the limit; it is zero for the largest number of seconds.
func (l *limit) time(seconds int64) time.Time {
	if seconds == math.MaxInt64 {
		return time.Time{}
	}
	return time.Unix(seconds, 0).In(l.zone)
}

// ExceededError says which limit refuses a use.
type ExceededError struct {
	Limit, Subject string
	Unit           string // as in Quantity
	Left, Total    int64
	Main           bool      // the limit counts in main only
	Reset          time.Time // when the use that was refused can succeed, else as in State; zero: never
}

func (e *ExceededError) Error() string {
	of := ""
	if e.Subject != "" {
		of = " of " + strconv.Quote(e.Subject)
	}
	s := fmt.Sprintf("limit %s%s: %d of %d %s are left", e.Limit, of, e.Left, e.Total, e.Unit)
	if e.Reset.IsZero() {
		return s + ": it does not reset, ask the operator of the gateway for more"
	}
	return s + " until " + e.Reset.Format(time.RFC3339) + ": wait until then, or ask the operator of the gateway for more"
}

// RetryAfter returns how long it takes until there is more: at least a second, or 0 for never.
func (e *ExceededError) RetryAfter(now time.Time) time.Duration {
	if e.Reset.IsZero() {
		return 0
	}
	return max(e.Reset.Sub(now), time.Second)
}

// UnavailableError says that the store did not answer in time.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string {
	return "the store of the limits can't be reached: " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }
