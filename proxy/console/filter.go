package console

import (
	"net/url"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/trace/query"
)

// selected is a filter that is set, and the address without it.
type selected struct{ Name, Value, Without string }

// chosen returns the filters that are set in an address.
func chosen(path string, q url.Values) (out []selected) {
	for _, f := range query.InAddress {
		if value := strings.Join(q[f.Name], ","); value != "" {
			if f.IsFlag() {
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
