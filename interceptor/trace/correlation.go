package trace

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// IDs is the set of ids that a message correlates to, in the order of their first occurrence.
type IDs []string

// Limits of a correlation list.
const (
	MaxIDs     = 64
	MaxIDBytes = 255
)

// Mode is the treatment of string correlations in foreign messages.
type Mode string

// The modes: a string counts as one id and a deprecation, or is refused.
const (
	Transition Mode = "transition"
	Strict     Mode = "strict"
)

// Deprecations reported for foreign correlations.
const (
	DeprecatedString    = "correlation_string"
	DeprecatedSnakeCase = "correlation_snake_case"
)

// The codes of [CorrelationError].
const (
	CodeCorrelationType     = "correlation_type"
	CodeCorrelationEmpty    = "correlation_empty_element"
	CodeCorrelationRejected = "correlation_string_rejected"
	CodeCorrelationTooMany  = "correlation_too_many"
	CodeCorrelationTooLong  = "correlation_too_long"
)

// CorrelationError is the error for a value that is not a correlation list.
type CorrelationError struct {
	Code   string
	Remedy string
}

var errTooMany = &CorrelationError{CodeCorrelationTooMany, fmt.Sprintf("more than %d ids", MaxIDs)}

// Error gives the remedy. It does not repeat the foreign value.
func (e *CorrelationError) Error() string { return "correlation id: " + e.Remedy }

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

// UnmarshalJSON reads a correlation list as [DecodeIDs] does in transition mode.
func (a *IDs) UnmarshalJSON(data []byte) error {
	ids, _, err := DecodeIDs(data, Transition)
	*a = ids
	return err
}

// DecodeIDs reads the JSON value of a correlation field. Absent (nil) and null
// give nil; an array gives its ids without repetitions; a string gives itself
// and a deprecation, or an error in mode [Strict]. At most [MaxIDs] ids of
// [MaxIDBytes] bytes are accepted. Errors are [*CorrelationError].
func DecodeIDs(value json.RawMessage, mode Mode) (ids IDs, deprecated []string, err error) {
	value = rawjson.Trim(value)
	if len(value) == 0 {
		return nil, nil, nil
	}
	switch rawjson.KindOf(value) {
	case rawjson.Null:
		return nil, nil, nil
	case rawjson.String:
		if mode == Strict {
			return nil, nil, &CorrelationError{CodeCorrelationRejected, "send an array of strings instead of a string"}
		}
		ids, deprecated = IDs{}, []string{DeprecatedString}
		if s := rawjson.Unquote(value); s != "" {
			ids, err = ids.add(s)
		}
		return ids, deprecated, err
	case rawjson.Array:
		ids = IDs{}
		whole := rawjson.Elements(value, func(e []byte) bool {
			if rawjson.KindOf(e) != rawjson.String {
				err = &CorrelationError{CodeCorrelationType, "send an array of strings, nothing else in it"}
				return false
			}
			ids, err = ids.add(rawjson.Unquote(e))
			return err == nil
		})
		if err != nil {
			return nil, nil, err
		}
		if whole {
			return ids, nil, nil
		}
	}
	return nil, nil, &CorrelationError{CodeCorrelationType, "send an array of strings"}
}

func (a IDs) add(id string) (IDs, error) {
	switch {
	case id == "":
		return nil, &CorrelationError{CodeCorrelationEmpty, "an id in the array is empty; leave it out"}
	case len(id) > MaxIDBytes:
		return nil, &CorrelationError{CodeCorrelationTooLong, fmt.Sprintf("an id has %d bytes; at most %d are allowed", len(id), MaxIDBytes)}
	case slices.Contains(a, id):
		return a, nil
	case len(a) == MaxIDs:
		return nil, errTooMany
	}
	return append(a, id), nil
}

// DecodeCorrelation reads the correlation of a whole foreign envelope: the
// field correlationId, its later name correlation_id, or the union of both.
func DecodeCorrelation(envelope json.RawMessage, mode Mode) (ids IDs, deprecated []string, err error) {
	camel, _ := rawjson.Get(envelope, "correlationId")
	if ids, deprecated, err = DecodeIDs(camel, mode); err != nil {
		return nil, nil, err
	}
	if snake, ok := rawjson.Get(envelope, "correlation_id"); ok {
		more, dep, err := DecodeIDs(snake, mode)
		if err != nil {
			return nil, nil, err
		}
		if ids != nil {
			more = ids.Union(more)
		}
		if len(more) > MaxIDs {
			return nil, nil, errTooMany
		}
		ids, deprecated = more, append(append(deprecated, DeprecatedSnakeCase), dep...)
	}
	slices.Sort(deprecated)
	return ids, slices.Compact(deprecated), nil
}
