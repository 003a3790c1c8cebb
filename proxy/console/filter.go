package console

import (
	"cmp"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// fields are the filters in the address of the page of calls.
var fields = slices.DeleteFunc(slices.Clone(query.Fields), func(f query.Field) bool { return f.Form == "" })

// fieldNames returns the names of the filters.
func fieldNames() (names []string) {
	for _, f := range fields {
		names = append(names, f.Name)
	}
	return names
}

// isFlag reports whether a filter is set or not, without a value.
func isFlag(f query.Field) bool {
	_, is := f.At(new(query.Filter)).(*bool)
	return is
}

// filterOf reads a filter from an address. The other values of the address are left alone.
func filterOf(q url.Values) (f query.Filter, err error) {
	for _, one := range fields {
		if value := strings.TrimSpace(strings.Join(q[one.Name], ",")); value != "" {
			err = cmp.Or(err, one.Set(&f, value, time.Now().UTC()))
		}
	}
	return f, cmp.Or(err, f.Validate())
}

// selected is a filter that is set, and the address without it.
type selected struct{ Name, Value, Without string }

// chosen returns the filters that are set in an address.
func chosen(path string, q url.Values) (out []selected) {
	for _, f := range fields {
		if value := strings.Join(q[f.Name], ","); value != "" {
			if isFlag(f) {
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
