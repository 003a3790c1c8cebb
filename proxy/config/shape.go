package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// misshaped returns a fault for every key below n that t does not have, and for
// every mapping, list and single value that stands where t has another of them.
// The decoder would find the first of these alone, and name it in its own terms.
func misshaped(n ast.Node, t reflect.Type, key string) (faults []Fault) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n = plain(n)
	bad := func(format string, args ...any) []Fault {
		return []Fault{{Key: key, Line: line(n), Msg: fmt.Sprintf(format, args...)}}
	}
	pairs, isMapping := mapping(n)
	list, isList := n.(*ast.SequenceNode)
	switch {
	case n == nil, n.Type() == ast.NullType, n.Type() == ast.AliasType: // the decoder's affair
	case t.Kind() == reflect.Struct && isMapping:
		return misshapedFields(pairs, t, key)
	case t.Kind() == reflect.Map && isMapping:
		for _, v := range pairs {
			faults = append(faults, misshaped(v.Value, t.Elem(), join(key, keyName(v.Key)))...)
		}
	case t.Kind() == reflect.Slice && isList:
		for i, v := range list.Values {
			faults = append(faults, misshaped(v, t.Elem(), fmt.Sprintf("%s[%d]", key, i))...)
		}
	case t.Kind() == reflect.Struct:
		return bad("must hold keys: %s", strings.Join(fieldNames(t), ", "))
	case t.Kind() == reflect.Map:
		return bad("must hold keys, each with a value")
	case t.Kind() == reflect.Slice && isMapping:
		return bad("must be a list, and is a mapping")
	case t.Kind() == reflect.Slice:
		return bad("must be a list, such as [first, second]")
	case isMapping, isList:
		return bad("must be %s", single(t))
	case t == reflect.TypeFor[time.Duration]():
		if s, ok := n.(*ast.StringNode); ok {
			if _, err := time.ParseDuration(s.Value); err != nil {
				return bad("must be %s; there is no unit for days", single(t))
			}
		}
	}
	return faults
}

// misshapedFields is misshaped for a mapping that a struct is made of.
func misshapedFields(pairs []*ast.MappingValueNode, t reflect.Type, key string) (faults []Fault) {
	names := fieldNames(t)
	for _, v := range pairs {
		name := keyName(v.Key)
		if v.Key.Type() == ast.MergeKeyType {
			continue
		}
		i := slices.Index(names, name)
		if i < 0 {
			faults = append(faults, Fault{Key: join(key, name), Line: line(v.Key), Msg: "there is no such key; use one of " + strings.Join(names, ", ")})
			continue
		}
		faults = append(faults, misshaped(v.Value, fields(t)[i].Type, join(key, name))...)
	}
	return faults
}

// fields returns the fields of a struct that a configuration file sets.
func fields(t reflect.Type) (out []reflect.StructField) {
	for i := range t.NumField() {
		if tag := t.Field(i).Tag.Get("yaml"); tag != "" && tag != "-" {
			out = append(out, t.Field(i))
		}
	}
	return out
}

func fieldNames(t reflect.Type) (names []string) {
	for _, f := range fields(t) {
		names = append(names, f.Tag.Get("yaml"))
	}
	return names
}

// single says what a value of type t looks like in a file.
func single(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a time with its unit, such as 90m or 24h"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "one text"
}

// mistyped says what a value must be that has the wrong type; "" for other
// errors. The value itself may be a secret.
func mistyped(err error) string {
	var wrong *yaml.TypeError
	var large *yaml.OverflowError
	switch {
	case errors.As(err, &wrong):
		return "must be " + single(wrong.DstType)
	case errors.As(err, &large):
		return "is too large"
	}
	return ""
}
