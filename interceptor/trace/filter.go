package trace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// Filter selects records; all conditions must hold. The zero value selects
// every message. Filters are views: nothing is dropped from the journal. The
// strings of Session, Principal, From, To, Servers, Tools and Kinds are globs
// in which * stands for any run of bytes and ? for one byte.
type Filter struct {
	// Context is a context path. Alone it selects exactly that context; Tree
	// adds all contexts below it, Children selects those one level below it
	// instead, Ancestors those above it.
	Context                   string
	Tree, Children, Ancestors bool
	// Main selects records without a context, Roots those whose context has one level.
	Main, Roots bool
	// Depth selects contexts with that many levels; 0 is any.
	Depth int
	// Type selects by the kind of context: the last segment up to its first
	// '_' or '-', such as br or reason.
	Type string
	// Conclusions selects the conclusions of contexts.
	Conclusions bool

	// ID selects the record with that envelope id.
	ID string
	// Correlates selects records that correlate to this envelope id or context;
	// "rpc:42" selects those that carry the JSON-RPC id 42 on either side.
	Correlates string
	// Chain selects what leads to and follows from this envelope id, over any
	// number of correlations, the record itself included.
	Chain string
	// Orphans selects records that correlate to something the journal does not have.
	Orphans bool

	// Workflow is a workflow's context id or path; Tree, Children and Roots
	// apply to it if Context is not set. Evidence is how the link was found.
	Workflow string
	Evidence []string
	// A2AContext and A2ATask are the ids by which the A2A protocol knows a
	// workflow and a step of it.
	A2AContext, A2ATask string

	Session, Principal, From, To string
	Servers, Tools               []string
	// Kinds are globs of kinds, any of which may match. "mcp/request" also
	// matches "mcp/request:tools/call"; the dotted form and the later names
	// reasoning/thought and reasoning/conclusion are understood.
	Kinds []string
	// Since is inclusive, Until exclusive; zero is no bound. See [ParseTime].
	Since, Until time.Time

	Blocked    bool   // refused before the upstream
	Reason     string // of the decision
	Scrubbed   bool   // something was found by the scrubber
	OverBudget bool   // a budget refused, cut or ended something
	Ambiguous  bool   // the branch was not certain
	Deprecated bool   // came in a deprecated form
	Late       bool   // came after its branch was closed
	Errors     bool   // an error result

	// Journal includes the journal's records about itself, which are left out
	// unless Kinds or ID name them.
	Journal bool
	// Limit ends the query after so many records; 0 is no limit.
	Limit int
	// NoIndex reads the files themselves. The index is not part of what the
	// chain protects; Verify compares the two.
	NoIndex bool
}

// UsageError says that a question is malformed, as opposed to one that could
// not be answered. Commands exit with status 2 on it.
type UsageError struct {
	Field string // of Filter, lower case, as its flag
	Err   error
}

// Error names the flag and the fault.
func (e *UsageError) Error() string { return "--" + e.Field + ": " + e.Err.Error() }

// Unwrap returns the fault.
func (e *UsageError) Unwrap() error { return e.Err }

func usage(field, format string, args ...any) error {
	return &UsageError{field, fmt.Errorf(format, args...)}
}

// Validate returns a [*UsageError] for the first condition that is malformed
// or contradicts another. An unknown context or id is no error: it selects nothing.
func (f Filter) Validate() error {
	for field, path := range map[string]string{"context": f.Context, "workflow": f.Workflow} {
		if err := contextpath.Validate(path); err != nil {
			return &UsageError{field, err}
		}
	}
	shapes := 0
	for _, s := range []bool{f.Tree, f.Children, f.Ancestors} {
		if s {
			shapes++
		}
	}
	based := f.Context != "" || f.Workflow != ""
	switch {
	case shapes > 1:
		return usage("tree", "use only one of tree, children and ancestors")
	case shapes > 0 && !based:
		return usage("tree", "tree, children and ancestors need --context or --workflow")
	case f.Main && f.Roots:
		return usage("main", "cannot be combined with --roots")
	case f.Main && (f.Context != "" || f.Depth > 0 || f.Type != ""):
		return usage("main", "main has no context; leave out --context, --depth and --type")
	case f.Roots && shapes > 0:
		return usage("roots", "cannot be combined with --tree, --children or --ancestors")
	case f.Roots && f.Context != "":
		return usage("roots", "roots are first-level contexts; leave out --context")
	case f.Depth < 0 || f.Depth > contextpath.MaxDepth:
		return usage("depth", "%d is not a depth; use 1 to %d", f.Depth, contextpath.MaxDepth)
	case !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until):
		return usage("since", "%s is not before --until %s", f.Since.Format(time.RFC3339), f.Until.Format(time.RFC3339))
	case slices.ContainsFunc(f.Evidence, func(e string) bool { return !slices.Contains(evidences, e) }):
		return usage("evidence", "use any of %s", strings.Join(evidences, ", "))
	case f.Limit < 0:
		return usage("limit", "%d is negative", f.Limit)
	}
	return nil
}

// evidences is how a call can be linked to its workflow. They are few and fixed:
// of an unknown one an empty answer would say that there was none of it.
var evidences = []string{"explicit", "native", "join", "session", "none"}

// ParseTime reads a moment for [Filter]: RFC 3339, a date, a date and time
// (both local to now), or an age such as "90m" or "3d" before now.
func ParseTime(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t, nil
		}
	}
	age := s
	if days, ok := strings.CutSuffix(s, "d"); ok {
		age = days + "h"
	}
	if d, err := time.ParseDuration(age); err == nil && d >= 0 {
		if age != s {
			d *= 24
		}
		return now.Add(-d), nil
	}
	return time.Time{}, errors.New("time " + fmt.Sprintf("%.40q", s) + `: use 2006-01-02, 2006-01-02T15:04:05Z, or an age such as 90m or 3d`)
}
