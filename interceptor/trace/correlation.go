package trace

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// IDs is the set of ids that a message correlates to, in the order of their first occurrence.
type IDs []string

// Limits of a correlation that a host sends.
const (
	MaxIDs     = 64
	MaxIDBytes = 255
)

var errTooMany = fmt.Errorf("correlation id: more than %d ids", MaxIDs)

// Union returns a followed by the ids of b that a lacks. It changes neither.
func (a IDs) Union(b IDs) IDs {
	out := slices.Clone(a)
	for _, id := range b {
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	return out
}

// DecodeCorrelation reads the correlation that a host sends: the JSON value of correlationId, of
// its later name correlation_id, or the union of both. nil is an absent field. Null gives nil, and
// an array gives its ids without repetitions. A string gives itself and a deprecation, but is
// refused, and still a deprecation, if strict is set. Errors do not repeat the foreign value.
func DecodeCorrelation(camel, snake json.RawMessage, strict bool) (ids IDs, deprecated []string, err error) {
	if ids, deprecated, err = decodeIDs(camel, strict); err != nil {
		return nil, deprecated, err
	}
	if snake != nil {
		more, dep, err := decodeIDs(snake, strict)
		if err != nil {
			return nil, append(deprecated, dep...), err
		}
		if ids != nil {
			more = ids.Union(more)
		}
		if len(more) > MaxIDs {
			return nil, nil, errTooMany
		}
		ids, deprecated = more, append(append(deprecated, "correlation_snake_case"), dep...)
	}
	slices.Sort(deprecated)
	return ids, slices.Compact(deprecated), nil
}

// decodeIDs reads one field of a correlation.
func decodeIDs(value json.RawMessage, strict bool) (ids IDs, deprecated []string, err error) {
	if len(value) == 0 {
		return nil, nil, nil
	}
	var decoded any
	if json.Unmarshal(value, &decoded) != nil {
		decoded = false // not a list: refused below
	}
	list, isList := decoded.([]any)
	text, isText := decoded.(string)
	switch {
	case decoded == nil:
		return nil, nil, nil
	case isText && strict:
		return nil, []string{"correlation_string"}, errors.New("correlation id: send an array of strings instead of a string")
	case isText:
		deprecated = []string{"correlation_string"}
		if text != "" {
			list = []any{text}
		}
	case !isList:
		return nil, nil, errors.New("correlation id: send an array of strings")
	}
	ids = IDs{}
	for _, e := range list {
		switch id, ok := e.(string); {
		case !ok:
			return nil, nil, errors.New("correlation id: send an array of strings, nothing else in it")
		case id == "":
			return nil, nil, errors.New("correlation id: an id in the array is empty; leave it out")
		case len(id) > MaxIDBytes:
			return nil, nil, fmt.Errorf("correlation id: an id has %d bytes; at most %d are allowed", len(id), MaxIDBytes)
		case slices.Contains(ids, id):
		case len(ids) == MaxIDs:
			return nil, nil, errTooMany
		default:
			ids = append(ids, id)
		}
	}
	return ids, deprecated, nil
}
