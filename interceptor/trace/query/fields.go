package query

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Field is a condition of [Filter] under the name that users have for it: a flag of foldgate trace, and
// a field of the console's form.
type Field struct {
	Name  string
	Flag  string // what the flag means
	Form  string // what the field means; "" for a flag that the form does not have
	Often bool   // the form shows it before the others
	// At returns the condition in a filter: a *string, *[]string, *bool, *int, *time.Time or *trace.Range.
	At func(*Filter) any
}

// Set sets the condition in f to what a text says, which is not empty. Several values are separated by commas. See
// [ParseTime] for times. The error is a [*UsageError].
func (one Field) Set(f *Filter, text string, now time.Time) (err error) {
	switch at := one.At(f).(type) {
	case *string:
		*at = text
	case *bool:
		if *at, err = strconv.ParseBool(text); err != nil {
			err = fmt.Errorf("%.40q is neither true nor false", text)
		}
	case *[]string:
		for part := range strings.SplitSeq(text, ",") {
			if part = strings.TrimSpace(part); part != "" {
				*at = append(*at, part)
			}
		}
	case *int:
		if *at, err = strconv.Atoi(text); err != nil {
			is := "not a number"
			if errors.Is(err, strconv.ErrRange) {
				is = "out of range"
			}
			err = fmt.Errorf("%.40q is %s", text, is)
		}
	case *time.Time:
		*at, err = ParseTime(text, now)
	case *trace.Range:
		*at, err = parseRange(text)
	}
	if err != nil {
		return &UsageError{one.Name, err}
	}
	return nil
}

// IsFlag reports whether the condition is on or off.
func (one Field) IsFlag() bool {
	_, is := one.At(new(Filter)).(*bool)
	return is
}

// InAddress are the Fields that an address of the console, or of the gateway, may have.
var InAddress = slices.DeleteFunc(slices.Clone(Fields), func(f Field) bool { return f.Form == "" })

// AddressNames returns the names of [InAddress].
func AddressNames() (names []string) {
	for _, f := range InAddress {
		names = append(names, f.Name)
	}
	return names
}

// FromAddress returns the filter of the values in an address, by the names of the fields. An empty value is
// none; several of a list are together. Other values are left alone. The error is a [*UsageError].
func FromAddress(values map[string][]string) (f Filter, err error) {
	for _, one := range InAddress {
		all := values[one.Name]
		if _, isList := one.At(&f).(*[]string); len(all) > 1 && !isList {
			err = cmp.Or(err, Usagef(one.Name, "is there %d times: give it once", len(all)))
		} else if text := strings.TrimSpace(strings.Join(all, ",")); text != "" {
			err = cmp.Or(err, one.Set(&f, text, time.Now().UTC()))
		}
	}
	return f, cmp.Or(err, f.Validate())
}

// Fields are all conditions that users can name, but for Limit.
var Fields = []Field{
	{"principal", "records of this principal", "who", true, func(f *Filter) any { return &f.Principal }},
	{"team", "records of this team's principals", "whose team", true, func(f *Filter) any { return &f.Team }},
	{"server", "records of these upstreams", "an upstream; several with commas", true, func(f *Filter) any { return &f.Servers }},
	{"tool", "records of these tools", "such as read_*", true, func(f *Filter) any { return &f.Tools }},
	{"kind", "records of these kinds, globs: mcp/request, context/*, conclusion", "such as mcp/response", true, func(f *Filter) any { return &f.Kinds }},
	{"since", "from this time on: RFC 3339, or an age such as 90m or 2d", "UTC, or 90m, 3d", true, func(f *Filter) any { return &f.Since }},
	{"until", "before this time", "UTC, or an age", true, func(f *Filter) any { return &f.Until }},
	{"blocked", "refused by foldgate", "refused", true, func(f *Filter) any { return &f.Blocked }},
	{"errors", "with an error result", "error results", true, func(f *Filter) any { return &f.Errors }},
	{"scrubbed", "with scrub findings", "secrets found", true, func(f *Filter) any { return &f.Scrubbed }},
	{"over-budget", "where a budget refused, cut or ended something", "a budget refused, cut or ended", true, func(f *Filter) any { return &f.OverBudget }},
	{"reason", "refused for this reason: resource_limit, timeout, policy, unsafe, invalid, upstream, workflow, trace", "of a refusal: policy, unsafe, …", false, func(f *Filter) any { return &f.Reason }},
	{"rule", "refused by this limit, rule of the policy or code, or with a secret that this rule found", "a limit, a rule of the policy, …", false, func(f *Filter) any { return &f.Rule }},
	{"context", "records in this context path", "a branch, by its path", false, func(f *Filter) any { return &f.Context }},
	{"tree", "with --context or --workflow: and in all below it", "and all below it", false, func(f *Filter) any { return &f.Tree }},
	{"children", "with --context or --workflow: one level below it instead", "one level below it", false, func(f *Filter) any { return &f.Children }},
	{"ancestors", "with --context: above it instead", "above it", false, func(f *Filter) any { return &f.Ancestors }},
	{"main", "records in no context", "in no branch", false, func(f *Filter) any { return &f.Main }},
	{"roots", "records in contexts of one level", "in branches of one level", false, func(f *Filter) any { return &f.Roots }},
	{"depth", "records in contexts of so many levels, from 1", "levels of the branch", false, func(f *Filter) any { return &f.Depth }},
	{"type", "records in contexts of this type: br, ctx, reason, ...", "of the context: br, ctx", false, func(f *Filter) any { return &f.Type }},
	{"conclusions", "the conclusions of contexts", "of branches", false, func(f *Filter) any { return &f.Conclusions }},
	{"session", "records of this session", "a host's session", false, func(f *Filter) any { return &f.Session }},
	{"from", "records from this end (host:..., upstream:..., foldgate)", "such as upstream:*", false, func(f *Filter) any { return &f.From }},
	{"to", "records to this end", "such as host:*", false, func(f *Filter) any { return &f.To }},
	{"id", "the record with this envelope id", "env_…", false, func(f *Filter) any { return &f.ID }},
	{"seq", "the records with these numbers: 24, or 24-31", "24, or 24-31", false, func(f *Filter) any { return &f.Seq }},
	{"correlates", "records that correlate to this envelope id or context; rpc:42 for a JSON-RPC id", "with env_…, or rpc:42", false, func(f *Filter) any { return &f.Correlates }},
	{"chain", "what leads to and follows from this envelope id", "causes and effects of env_…", false, func(f *Filter) any { return &f.Chain }},
	{"orphans", "records that correlate to something that is not there", "causes outside the trace", false, func(f *Filter) any { return &f.Orphans }},
	{"workflow", "records of this workflow", "by id or path", false, func(f *Filter) any { return &f.Workflow }},
	{"evidence", "where a call was linked to its workflow like this: explicit, native, join, session, none", "of its workflow: explicit, join, …", false, func(f *Filter) any { return &f.Evidence }},
	{"a2a-context", "records of the workflow with this A2A contextId", "a workflow's id in A2A", false, func(f *Filter) any { return &f.A2AContext }},
	{"a2a-task", "records of the step with this A2A taskId", "a step's id in A2A", false, func(f *Filter) any { return &f.A2ATask }},
	{"ambiguous", "where the branch was not certain", "the branch was not certain", false, func(f *Filter) any { return &f.Ambiguous }},
	{"deprecated", "that came in a deprecated form", "deprecated forms", false, func(f *Filter) any { return &f.Deprecated }},
	{"late", "that came after their branch had ended", "after the end of the branch", false, func(f *Filter) any { return &f.Late }},
	{"journal", "include the records about the journal itself and about configurations", "the journal's own records, too", false, func(f *Filter) any { return &f.Journal }},
	{"no-index", "read the files, not the index beside them", "", false, func(f *Filter) any { return &f.NoIndex }},
}
