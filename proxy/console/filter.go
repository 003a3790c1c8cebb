package console

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// field is a filter of foldgate trace, by the name of its flag. One of the functions is set.
type field struct {
	Name, Help string
	Often      bool // it is shown before the others
	text       func(*query.Filter) *string
	list       func(*query.Filter) *[]string
	flag       func(*query.Filter) *bool
	set        func(f *query.Filter, value string) error
}

// Kind returns the kind of the input of a form.
func (f field) Kind() string {
	if f.flag != nil {
		return "checkbox"
	}
	return "text"
}

// fields are the filters in the address of the page of calls.
var fields = []field{
	{Name: "principal", Often: true, Help: "who", text: func(f *query.Filter) *string { return &f.Principal }},
	{Name: "team", Often: true, Help: "whose team", text: func(f *query.Filter) *string { return &f.Team }},
	{Name: "server", Often: true, Help: "an upstream; several with commas", list: func(f *query.Filter) *[]string { return &f.Servers }},
	{Name: "tool", Often: true, Help: "such as read_*", list: func(f *query.Filter) *[]string { return &f.Tools }},
	{Name: "kind", Often: true, Help: "such as mcp/response", list: func(f *query.Filter) *[]string { return &f.Kinds }},
	{Name: "since", Often: true, Help: "UTC, or 90m, 3d", set: func(f *query.Filter, v string) (err error) {
		f.Since, err = query.ParseTime(v, time.Now().UTC())
		return err
	}},
	{Name: "until", Often: true, Help: "UTC, or an age", set: func(f *query.Filter, v string) (err error) {
		f.Until, err = query.ParseTime(v, time.Now().UTC())
		return err
	}},
	{Name: "blocked", Often: true, Help: "refused", flag: func(f *query.Filter) *bool { return &f.Blocked }},
	{Name: "errors", Often: true, Help: "error results", flag: func(f *query.Filter) *bool { return &f.Errors }},
	{Name: "scrubbed", Often: true, Help: "secrets found", flag: func(f *query.Filter) *bool { return &f.Scrubbed }},
	{Name: "over-budget", Often: true, Help: "a budget refused, cut or ended", flag: func(f *query.Filter) *bool { return &f.OverBudget }},
	{Name: "reason", Help: "of a refusal: policy, unsafe, …", text: func(f *query.Filter) *string { return &f.Reason }},
	{Name: "context", Help: "a branch, by its path", text: func(f *query.Filter) *string { return &f.Context }},
	{Name: "tree", Help: "and all below it", flag: func(f *query.Filter) *bool { return &f.Tree }},
	{Name: "children", Help: "one level below it", flag: func(f *query.Filter) *bool { return &f.Children }},
	{Name: "ancestors", Help: "above it", flag: func(f *query.Filter) *bool { return &f.Ancestors }},
	{Name: "main", Help: "in no branch", flag: func(f *query.Filter) *bool { return &f.Main }},
	{Name: "roots", Help: "in branches of one level", flag: func(f *query.Filter) *bool { return &f.Roots }},
	{Name: "depth", Help: "levels of the branch", set: func(f *query.Filter, v string) (err error) {
		if f.Depth, err = strconv.Atoi(v); err != nil {
			return query.Usagef("depth", "%.40q is not a number", v)
		}
		return nil
	}},
	{Name: "type", Help: "of the context: br, ctx", text: func(f *query.Filter) *string { return &f.Type }},
	{Name: "conclusions", Help: "of branches", flag: func(f *query.Filter) *bool { return &f.Conclusions }},
	{Name: "session", Help: "a host's session", text: func(f *query.Filter) *string { return &f.Session }},
	{Name: "from", Help: "such as upstream:*", text: func(f *query.Filter) *string { return &f.From }},
	{Name: "to", Help: "such as host:*", text: func(f *query.Filter) *string { return &f.To }},
	{Name: "id", Help: "env_…", text: func(f *query.Filter) *string { return &f.ID }},
	{Name: "seq", Help: "24, or 24-31", set: func(f *query.Filter, v string) error { return f.ParseSeq(v) }},
	{Name: "correlates", Help: "with env_…, or rpc:42", text: func(f *query.Filter) *string { return &f.Correlates }},
	{Name: "chain", Help: "causes and effects of env_…", text: func(f *query.Filter) *string { return &f.Chain }},
	{Name: "orphans", Help: "causes outside the trace", flag: func(f *query.Filter) *bool { return &f.Orphans }},
	{Name: "workflow", Help: "by id or path", text: func(f *query.Filter) *string { return &f.Workflow }},
	{Name: "evidence", Help: "of its workflow: explicit, join, …", list: func(f *query.Filter) *[]string { return &f.Evidence }},
	{Name: "a2a-context", Help: "a workflow's id in A2A", text: func(f *query.Filter) *string { return &f.A2AContext }},
	{Name: "a2a-task", Help: "a step's id in A2A", text: func(f *query.Filter) *string { return &f.A2ATask }},
	{Name: "ambiguous", Help: "the branch was not certain", flag: func(f *query.Filter) *bool { return &f.Ambiguous }},
	{Name: "deprecated", Help: "deprecated forms", flag: func(f *query.Filter) *bool { return &f.Deprecated }},
	{Name: "late", Help: "after the end of the branch", flag: func(f *query.Filter) *bool { return &f.Late }},
	{Name: "journal", Help: "the journal's own records, too", flag: func(f *query.Filter) *bool { return &f.Journal }},
}

// filterOf reads a filter from an address. The other values of the address are left alone.
func filterOf(q url.Values) (f query.Filter, err error) {
	for _, one := range fields {
		value := strings.TrimSpace(q.Get(one.Name))
		switch {
		case value == "":
		case one.text != nil:
			*one.text(&f) = value
		case one.flag != nil:
			*one.flag(&f) = value != "false"
		case one.list != nil:
			for part := range strings.SplitSeq(strings.Join(q[one.Name], ","), ",") {
				if part = strings.TrimSpace(part); part != "" {
					*one.list(&f) = append(*one.list(&f), part)
				}
			}
		default:
			if err = one.set(&f, value); err != nil {
				return f, problemf(400, "%s: %v", one.Name, err)
			}
		}
	}
	return f, f.Validate()
}

// selected is a filter that is set, and the address without it.
type selected struct{ Name, Value, Without string }

// chosen returns the filters that are set in an address.
func chosen(path string, q url.Values) (out []selected) {
	for _, f := range fields {
		if value := strings.Join(q[f.Name], ","); value != "" {
			if f.flag != nil {
				value = "yes"
			}
			out = append(out, selected{f.Name, value, address(path, q, f.Name, "", "after", "")})
		}
	}
	return out
}

// address returns the address of a page with some of its values changed: pairs of a name and a value,
// "" for none.
func address(path string, q url.Values, pairs ...string) string {
	next := url.Values{}
	for name, values := range q {
		if values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return v == "" }); len(values) > 0 {
			next[name] = values
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if next.Del(pairs[i]); pairs[i+1] != "" {
			next.Set(pairs[i], pairs[i+1])
		}
	}
	if len(next) == 0 {
		return path
	}
	return path + "?" + next.Encode()
}

// to returns the address of the page of calls with some filters: pairs of a name and a value.
func to(pairs ...string) string { return address("/calls", nil, pairs...) }
