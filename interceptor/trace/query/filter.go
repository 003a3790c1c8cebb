package query

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Filter selects records; all conditions must hold. The zero value selects
// every message. The strings of Session, Principal, Team, From, To, Servers, Tools and
// Kinds are globs in which * stands for any run of bytes and ? for one byte.
type Filter struct {
	// Context is a context path. Alone it selects exactly that context; Tree adds all contexts
	// below it, Children selects those one level below it instead, Ancestors those above it.
	Context                   string
	Tree, Children, Ancestors bool
	// Main selects records without a context, Roots records in a context of one level.
	Main, Roots bool
	Depth       int // of contexts, in levels; 0 is any
	// Type selects by the kind of context: the last segment up to its first
	// '_' or '-', such as br or reason.
	Type        string
	Conclusions bool // of contexts

	ID  string      // an envelope id
	Seq trace.Range // numbers of records, from the first to the last; zero is any
	// Correlates selects records that correlate to this envelope id or context;
	// "rpc:42" selects those with the JSON-RPC id 42.
	Correlates string
	// Chain selects the record with this envelope id and all its causes and
	// effects, over any number of correlations.
	Chain string
	// Orphans selects records that correlate to an id that is neither a record
	// nor a context of the journal.
	Orphans bool

	// Workflow is the id of a workflow, the host's own id for it, the id of a step, or a path; Tree,
	// Children and Roots apply to it if Context is not set. Evidence is how the call was linked to it.
	Workflow string
	Evidence []string
	// A2AContext and A2ATask are the ids of a workflow and of a step in the A2A protocol.
	A2AContext, A2ATask string

	Session, Principal, Team, From, To string
	Servers, Tools                     []string
	// Kinds are globs of kinds. One must match. "mcp/request" also matches
	// "mcp/request:tools/call". See [trace.CanonicalKind] for other names of kinds.
	Kinds []string
	// Since is inclusive, Until exclusive; zero is no bound. See [ParseTime].
	Since, Until time.Time

	Blocked    bool   // refused before the upstream
	Reason     string // of the decision
	Rule       string // a glob; the rule of the decision, or one that found a secret
	Scrubbed   bool   // something was found by the scrubber
	OverBudget bool   // a budget refused, cut or ended something
	Ambiguous  bool   // the branch was not certain
	Deprecated bool   // came in a deprecated form
	Late       bool   // came after its branch was closed
	Errors     bool   // an error result

	// Journal includes the journal's records about itself, which are left out
	// unless Kinds or ID name them.
	Journal bool
	Limit   int // of records; 0 is none
	// NoIndex reads the files without the index; Chain and Orphans always need
	// it. The chain does not protect the index; Verify compares the two.
	NoIndex bool
}

// UsageError is the error for a malformed filter or format. Commands exit with status 2 on it.
type UsageError struct {
	Field string // the flag of the command line
	Err   error
}

// Error names the flag and the fault.
func (e *UsageError) Error() string { return "--" + e.Field + ": " + e.Err.Error() }

// Unwrap returns the fault.
func (e *UsageError) Unwrap() error { return e.Err }

// Usagef returns a [*UsageError].
func Usagef(field, format string, args ...any) error {
	return &UsageError{field, fmt.Errorf(format, args...)}
}

// Validate returns a [*UsageError] for the first condition that is malformed
// or contradicts another. It accepts names that no record has; see [Filter.Resolve].
func (f Filter) Validate() error {
	flow := strings.NewReplacer(".", "_", ":", "_").Replace(f.Workflow) // a host's own id may have these
	for field, path := range map[string]string{"context": f.Context, "workflow": flow} {
		if err := contextpath.ValidateCall(path); err != nil {
			return &UsageError{field, err}
		}
	}
	var shapes []string
	for name, set := range map[string]bool{"tree": f.Tree, "children": f.Children, "ancestors": f.Ancestors} {
		if set {
			shapes = append(shapes, name)
		}
	}
	slices.Sort(shapes)
	shaped := len(shapes) > 0
	switch {
	case len(shapes) > 1:
		return Usagef(shapes[0], "can't be combined with --%s", shapes[1])
	case shaped && f.Context == "" && f.Workflow == "":
		return Usagef(shapes[0], "needs --context or --workflow")
	case f.Main && f.Roots:
		return Usagef("main", "cannot be combined with --roots")
	case f.Main && (f.Context != "" || f.Depth > 0 || f.Type != ""):
		return Usagef("main", "main has no context; leave out --context, --depth and --type")
	case f.Roots && shaped:
		return Usagef("roots", "cannot be combined with --tree, --children or --ancestors")
	case f.Roots && f.Context != "":
		return Usagef("roots", "roots are first-level contexts; leave out --context")
	case f.Depth < 0 || f.Depth > contextpath.MaxCallDepth:
		return Usagef("depth", "%d is not a depth; use 1 to %d", f.Depth, contextpath.MaxCallDepth)
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return Usagef("since", "%s is not before --until %s", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	case slices.ContainsFunc(f.Evidence, func(e string) bool { return !slices.Contains(evidences, e) }):
		return Usagef("evidence", "use any of %s", strings.Join(evidences, ", "))
	case f.Reason != "" && !slices.Contains(reasons, f.Reason):
		return Usagef("reason", "%q is none; use one of %s", f.Reason, strings.Join(reasons, ", "))
	case f.Limit < 0:
		return Usagef("limit", "%d is negative", f.Limit)
	}
	return nil
}

// Unknown evidences and reasons are refused, since an empty answer would be misleading.
var (
	evidences = []string{"explicit", "native", "join", "session", "none"} // of a call's link to its workflow
	reasons   = []string{
		trace.ReasonLimit, trace.ReasonTimeout, trace.ReasonPolicy, trace.ReasonUnsafe, trace.ReasonInvalid, trace.ReasonUpstream,
		trace.ReasonWorkflow, trace.ReasonTrace,
	}
)

// Match reports whether f selects r. It leaves out Chain, Orphans and Limit,
// which need more than one record.
func (f *Filter) Match(r *trace.Record) bool {
	want := f.wantFlags()
	if flagsOf(r)&want != want || f.ID != "" && r.ID != f.ID || f.Seq[1] > 0 && (r.Seq < f.Seq[0] || r.Seq > f.Seq[1]) ||
		!f.Since.IsZero() && r.TS < f.Since.UTC().Format(trace.TimeFormat) || // the strings sort like times
		!f.Until.IsZero() && r.TS >= f.Until.UTC().Format(trace.TimeFormat) {
		return false
	}
	values := fieldsOf(r)
	for field, c := range f.conditions() {
		if c.match != nil && !c.match(values[field]) {
			return false
		}
	}
	a := r.AuditOrEmpty()
	return f.matchWorkflow(a) && f.matchCorrelates(r)
}

// flagsOf returns the flags of a record, as the index stores them. wantFlags has their order.
func flagsOf(r *trace.Record) int64 {
	a := r.AuditOrEmpty()
	return bits(r.Blocked(), len(a.Scrub) > 0, r.OverBudget(), a.Ambiguous, len(a.Deprecated) > 0, a.Late, a.IsError,
		len(a.Workflow) > 0, a.Decision != nil && a.Decision.Reason != "", len(r.CorrelationID) > 0)
}

// wantFlags returns the flags that a selected record must have.
func (f *Filter) wantFlags() int64 {
	return bits(f.Blocked, f.Scrubbed, f.OverBudget, f.Ambiguous, f.Deprecated, f.Late, f.Errors,
		f.Workflow != "" || len(f.Evidence) > 0 || f.A2AContext != "" || f.A2ATask != "", f.Reason != "", f.Orphans)
}

func bits(set ...bool) (flags int64) {
	for i, on := range set {
		if on {
			flags |= 1 << i
		}
	}
	return flags
}

// The fields of a record that have conditions, in the order of the index's columns.
const (
	fieldContext = iota
	fieldKind
	fieldSession
	fieldPrincipal
	fieldServer
	fieldTool
	fieldSender
	fieldReceivers // a JSON array
	fieldTeam
	fieldReason // of the decision
	fieldRules  // of the decision and of what the scrubber found, one a line
	numFields
)

func fieldsOf(r *trace.Record) [numFields]string {
	a, to, reason := r.AuditOrEmpty(), "", ""
	if len(r.To) > 0 {
		to = string(rawjson.Marshal(r.To))
	}
	if a.Decision != nil {
		reason = a.Decision.Reason
	}
	return [numFields]string{r.Context, r.Kind, a.Session, a.Principal, a.Server, a.Tool, r.From, to, a.Team, reason, strings.Join(rules(a), "\n")}
}

type condition struct {
	match  func(string) bool // nil for none
	prefix string            // of every value that matches
	exact  bool              // prefix is the only one
}

func (f *Filter) conditions() (out [numFields]condition) {
	if f.Main || f.Roots || f.Depth > 0 || f.Type != "" || f.Conclusions || f.Context != "" {
		out[fieldContext] = condition{f.matchContext, f.Context, f.Main || f.Context != "" && !f.Tree && !f.Children && !f.Ancestors}
		if f.Ancestors {
			out[fieldContext].prefix = string(contextpath.Path(f.Context).Root())
		}
	}
	out[fieldKind].match = f.matchKind
	for _, c := range []struct {
		field int
		globs []string
	}{
		{fieldSession, oneGlob(f.Session)}, {fieldPrincipal, oneGlob(f.Principal)}, {fieldSender, oneGlob(f.From)},
		{fieldServer, f.Servers}, {fieldTool, f.Tools}, {fieldTeam, oneGlob(f.Team)},
	} {
		if len(c.globs) > 0 {
			out[c.field].match = func(s string) bool {
				return slices.ContainsFunc(c.globs, func(g string) bool { return glob(g, s) })
			}
		}
		if len(c.globs) == 1 {
			prefix, _, isGlob := strings.Cut(strings.ReplaceAll(c.globs[0], "?", "*"), "*")
			out[c.field].prefix, out[c.field].exact = prefix, !isGlob
		}
	}
	if f.Reason != "" {
		out[fieldReason] = condition{func(s string) bool { return s == f.Reason }, f.Reason, true}
	}
	if f.Rule != "" {
		out[fieldRules].match = func(all string) bool {
			for rule := range strings.SplitSeq(all, "\n") {
				if rule != "" && glob(f.Rule, rule) {
					return true
				}
			}
			return false
		}
	}
	if f.To != "" {
		out[fieldReceivers].match = func(list string) bool {
			var to []string
			return json.Unmarshal([]byte(list), &to) == nil && slices.ContainsFunc(to, func(s string) bool { return glob(f.To, s) })
		}
	}
	return out
}

func oneGlob(pattern string) []string {
	if pattern == "" {
		return nil
	}
	return []string{pattern}
}

func (f *Filter) matchContext(ctx string) bool {
	p := contextpath.Path(ctx)
	kind, _, _ := strings.Cut(strings.ReplaceAll(p.Leaf(), "-", "_"), "_") // br for br_1f0c, reason for reason-789
	switch {
	case f.Main && ctx != "",
		f.Depth > 0 && p.Depth() != f.Depth,
		f.Type != "" && kind != f.Type,
		f.Conclusions && ctx == "":
		return false
	case f.Context == "":
		return !f.Roots || f.Workflow != "" || p.Depth() == 1
	}
	return f.shape(contextpath.Path(f.Context), p)
}

// shape applies Tree, Children and Ancestors to a context or workflow path.
func (f *Filter) shape(base, p contextpath.Path) bool {
	switch {
	case f.Tree:
		return p.InTree(base)
	case f.Children:
		return p.IsChild(base)
	case f.Ancestors:
		return p.IsAncestor(base)
	}
	return p == base
}

func (f *Filter) matchKind(kind string) bool {
	if f.Conclusions && kind != trace.KindConclusion {
		return false
	}
	if len(f.Kinds) == 0 {
		return kind != trace.KindJournal && kind != trace.KindConfig || f.Journal || f.ID != "" || f.Chain != ""
	}
	head, _, hasMethod := strings.Cut(kind, ":")
	return slices.ContainsFunc(f.Kinds, func(pattern string) bool {
		pattern = trace.CanonicalKind(pattern)
		return glob(pattern, kind) || hasMethod && !strings.Contains(pattern, ":") && glob(pattern, head)
	})
}

func (f *Filter) matchWorkflow(a *trace.Audit) bool {
	for key, want := range map[string]string{"contextId": f.A2AContext, "taskId": f.A2ATask} {
		if got, _ := rawjson.GetString(a.Workflow, "a2a", key); want != "" && got != want {
			return false
		}
	}
	if f.Workflow == "" && len(f.Evidence) == 0 {
		return true
	}
	path, _ := rawjson.GetString(a.Workflow, "path")
	id, _ := rawjson.GetString(a.Workflow, "context_id")
	evidence, _ := rawjson.GetString(a.Workflow, "evidence")
	p, base := contextpath.Path(cmp.Or(path, id)), contextpath.Path(f.Workflow)
	if host, _ := rawjson.GetString(a.Workflow, "a2a", "contextId"); host == f.Workflow {
		base = p.Root()
	}
	for q := p; q != contextpath.Main; q = q.Parent() {
		if q.Leaf() == f.Workflow { // the id of a step
			base = q
		}
	}
	switch {
	case len(f.Evidence) > 0 && !slices.Contains(f.Evidence, evidence), f.Roots && p.Depth() != 1:
		return false
	case f.Workflow == "":
		return true
	case f.Context != "": // Tree and the others belong to Context
		return p == base
	}
	return f.shape(base, p)
}

func (f *Filter) matchCorrelates(r *trace.Record) bool {
	if id, ok := strings.CutPrefix(f.Correlates, "rpc:"); ok { // as a JSON value, or as the content of a string
		v, ok := rawjson.Get(r.Payload, "id")
		return ok && (string(v) == id || text(v) == id)
	}
	return f.Correlates == "" || slices.Contains(r.CorrelationID, f.Correlates)
}

// glob matches s against a pattern of *, ? and literal bytes in time
// proportional to the product of their lengths.
func glob(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// parseRange reads "24" or "24-31".
func parseRange(s string) (r trace.Range, err error) {
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	if r[0], err = strconv.ParseUint(first, 10, 64); err == nil {
		r[1], err = strconv.ParseUint(last, 10, 64)
	}
	if err != nil || r[0] == 0 || r[0] > r[1] {
		err = fmt.Errorf("%.40q: use a record's number, or the first and the last, such as 24-31", s)
	}
	return r, err
}

// ParseTime reads a moment for [Filter]: RFC 3339, a date, a date and time
// (both local to now), or an age such as "90m" or "3d" before now.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil && !t.IsZero() { // a filter takes the zero time for none
			return t, nil
		}
	}
	age, unit := s, time.Duration(1)
	if days, ok := strings.CutSuffix(s, "d"); ok {
		age, unit = days+"h", 24
	}
	if d, err := time.ParseDuration(age); err == nil && d >= 0 && d <= math.MaxInt64/unit {
		return now.Add(-d * unit), nil
	}
	return time.Time{}, fmt.Errorf("time %.40q: use 2006-01-02, 2006-01-02T15:04:05Z, or an age such as 90m or 3d", s)
}
