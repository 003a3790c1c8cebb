package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Header binds an argument of a tool to the HTTP header Mcp-Param-<Name>. A tool asks for it in its
// schema (x-mcp-header, revision 2026-07-28), so that load balancers can route by the argument.
type Header struct {
	Path []string // the property names that lead to the argument
	Name string   // the part of the header's name after Mcp-Param-
}

// bindable are the JSON types of arguments that a header can carry.
var bindable = []string{"string", "integer", "boolean"}

// headersOf returns the bindings in the schema of a tool. fault says what the protocol forbids in one
// of them, "" if all are right.
func headersOf(schema []byte) (all []Header, fault string) {
	var walk func(schema []byte, path []string)
	walk = func(schema []byte, path []string) {
		if len(path) > wire.MaxDepth {
			return
		}
		props, _ := rawjson.Get(schema, "properties")
		for m := range rawjson.Members(props) {
			at := append(slices.Clone(path), m.Name())
			if raw, ok := rawjson.Get(m.Value, "x-mcp-header"); ok {
				name, _ := rawjson.GetString(m.Value, "x-mcp-header")
				kind, one := rawjson.GetString(m.Value, "type")
				switch {
				case !httpguts.ValidHeaderFieldName(name):
					fault = cmp.Or(fault, fmt.Sprintf("x-mcp-header %.80s is no name of a header", raw))
				case one && !slices.Contains(bindable, kind):
					fault = cmp.Or(fault, fmt.Sprintf("x-mcp-header %q is at an argument of the type %.80q: it must be a string, an integer or a boolean", name, kind))
				case slices.ContainsFunc(all, func(h Header) bool { return strings.EqualFold(h.Name, name) }):
					fault = cmp.Or(fault, fmt.Sprintf("x-mcp-header %q is there twice", name))
				default:
					all = append(all, Header{at, name})
				}
			}
			walk(m.Value, at)
		}
	}
	walk(schema, nil)
	return all, fault
}

// SetHeaders adds the headers that a tool's bindings ask for to h, which may be nil, and returns h.
// arguments are the ones that are sent.
func SetHeaders(h http.Header, bindings []Header, arguments json.RawMessage) http.Header {
	for _, b := range bindings {
		raw, _ := rawjson.Get(arguments, b.Path...)
		if v, ok := headerValue(raw); ok {
			if h == nil {
				h = http.Header{}
			}
			h.Set(wire.HeaderParam+b.Name, wire.EncodeHeader(v))
		}
	}
	return h
}

// CheckHeaders refuses a tools/call with headers that do not repeat its arguments.
func CheckHeaders(bindings []Header, params json.RawMessage, h http.Header) *wire.Error {
	for _, b := range bindings {
		header, argument := wire.HeaderParam+b.Name, strings.Join(b.Path, ".")
		mismatch := func(problem string) *wire.Error {
			return &wire.Error{Code: wire.CodeHeaderMismatch, Message: "header " + header + " " + problem}
		}
		values := h.Values(header)
		raw, given := rawjson.Get(params, append([]string{"arguments"}, b.Path...)...)
		given = given && rawjson.KindOf(raw) != rawjson.Null
		want, bindable := headerValue(raw)
		switch {
		case given && !bindable:
			return mismatch("can't carry the argument " + argument + ": it must be a string, an integer or a boolean")
		case given && len(values) == 0:
			return mismatch("is missing, and the argument " + argument + " is given")
		case !given && len(values) > 0:
			return mismatch("is given, and the argument " + argument + " is not")
		case !given:
			continue
		}
		got, ok := wire.DecodeHeader(values[0])
		if !ok || len(values) > 1 {
			return mismatch("is not one well-formed value")
		}
		if got != want && !sameNumber(raw, got) {
			return mismatch("does not say what the argument " + argument + " says")
		}
	}
	return nil
}

// headerValue returns a string, integer or boolean as a header carries it. Other values can't be
// bound.
func headerValue(raw []byte) (string, bool) {
	switch rawjson.KindOf(raw) {
	case rawjson.String:
		return rawjson.Unquote(raw), true
	case rawjson.True, rawjson.False:
		return string(raw), true
	case rawjson.Number:
		f, err := strconv.ParseFloat(string(raw), 64)
		return strconv.FormatInt(int64(f), 10), err == nil && f == math.Trunc(f) && math.Abs(f) < 1<<53
	}
	return "", false
}

// sameNumber compares an integer written in two ways.
func sameNumber(raw []byte, header string) bool {
	a, err1 := strconv.ParseFloat(string(raw), 64)
	b, err2 := strconv.ParseFloat(header, 64)
	return rawjson.KindOf(raw) == rawjson.Number && err1 == nil && err2 == nil && a == b
}
