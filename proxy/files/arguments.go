package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// maxArguments bounds the arguments of a call in bytes.
const maxArguments = 64 << 10

// arguments reads the arguments of one call. Its getters collect faults and the names that the
// tool knows. err, called after the last getter, reports all faults in one error.
type arguments struct {
	values map[string]json.RawMessage
	order  []string // names in the order of the call, for the error
	known  []string
	faults []string
}

func newArguments(raw json.RawMessage) *arguments {
	a := &arguments{values: map[string]json.RawMessage{}}
	raw = rawjson.Trim(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return a
	case len(raw) > maxArguments:
		a.faults = append(a.faults, fmt.Sprintf("arguments are %d bytes, the limit is %d", len(raw), maxArguments))
		return a
	case !rawjson.Valid(raw, 64) || rawjson.KindOf(raw) != rawjson.Object:
		a.faults = append(a.faults, "arguments must be a JSON object")
		return a
	}
	rawjson.Members(raw, func(m rawjson.Member) bool {
		name := m.Name()
		if _, again := a.values[name]; !again {
			a.order = append(a.order, name)
		}
		a.values[name] = m.Value
		return true
	})
	return a
}

// get returns the value of name; null counts as absent.
func (a *arguments) get(name string) (json.RawMessage, bool) {
	a.known = append(a.known, name)
	v, ok := a.values[name]
	return v, ok && rawjson.KindOf(v) != rawjson.Null
}

// required returns a required string that is not empty.
func (a *arguments) required(name string) string {
	before := len(a.faults)
	s := a.text(name, "")
	if s == "" && len(a.faults) == before {
		a.faults = append(a.faults, fmt.Sprintf("%q is required", name))
	}
	return s
}

// text returns an optional string.
func (a *arguments) text(name, absent string) string {
	v, ok := a.get(name)
	if !ok {
		return absent
	}
	if rawjson.KindOf(v) != rawjson.String {
		a.faults = append(a.faults, fmt.Sprintf("%q must be a string", name))
		return absent
	}
	return rawjson.Unquote(v)
}

// integer returns an optional integer between low and high.
func (a *arguments) integer(name string, absent, low, high int) int {
	v, ok := a.get(name)
	if !ok {
		return absent
	}
	var f float64
	switch {
	case rawjson.KindOf(v) != rawjson.Number || json.Unmarshal(v, &f) != nil || f != float64(int(f)):
		a.faults = append(a.faults, fmt.Sprintf("%q must be an integer", name))
	case f < float64(low) || f > float64(high):
		a.faults = append(a.faults, fmt.Sprintf("%q must be between %d and %d", name, low, high))
	default:
		return int(f)
	}
	return absent
}

// boolean returns an optional boolean, false if absent.
func (a *arguments) boolean(name string) bool {
	v, ok := a.get(name)
	if ok && rawjson.KindOf(v) != rawjson.True && rawjson.KindOf(v) != rawjson.False {
		a.faults = append(a.faults, fmt.Sprintf("%q must be true or false", name))
	}
	return ok && rawjson.KindOf(v) == rawjson.True
}

// err returns all faults of the arguments in one error.
func (a *arguments) err() error {
	faults := a.faults
	var unknown []string
	for _, name := range a.order {
		if !slices.Contains(a.known, name) {
			unknown = append(unknown, display(name))
		}
	}
	if len(unknown) > 0 {
		faults = append(faults, fmt.Sprintf("unknown %s %s (known: %s)",
			plural(len(unknown), "argument", "arguments"), strings.Join(unknown, ", "), strings.Join(a.known, ", ")))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New("invalid arguments: " + strings.Join(faults, "; "))
}
