package proxy

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/wire"
)

// A tool's schema may ask that an argument also travels as an HTTP header
// (x-mcp-header, revision 2026-07-28), so that load balancers can route by it.
// As a server foldgate checks that header and argument agree; as a client it
// writes the headers.

// paramHeader binds an argument, by the path of its property names, to the
// header Mcp-Param-<name>.
type paramHeader struct {
	path []string
	name string
}

const paramPrefix = "Mcp-Param-"

// paramHeaders finds the bindings in a tool definition.
func paramHeaders(tool []byte) []paramHeader {
	schema, ok := rawjson.Get(tool, "inputSchema")
	if !ok {
		return nil
	}
	return collectHeaders(schema, nil, nil)
}

func collectHeaders(schema []byte, path []string, out []paramHeader) []paramHeader {
	if len(path) > wire.MaxDepth {
		return out
	}
	props, _ := rawjson.Get(schema, "properties")
	rawjson.Members(props, func(m rawjson.Member) bool {
		at := append(append([]string(nil), path...), m.Name())
		if name, ok := rawjson.GetString(m.Value, "x-mcp-header"); ok && name != "" {
			out = append(out, paramHeader{at, name})
		}
		if _, nested := rawjson.Get(m.Value, "properties"); nested {
			out = collectHeaders(m.Value, at, out)
		}
		return true
	})
	return out
}

// primitive returns a string, integer or boolean as a header carries it; only
// these three may be bound.
func primitive(raw []byte) (string, bool) {
	switch rawjson.KindOf(raw) {
	case rawjson.String:
		return rawjson.Unquote(raw), true
	case rawjson.True, rawjson.False:
		return string(raw), true
	case rawjson.Number:
		f, err := strconv.ParseFloat(string(raw), 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
			return "", false
		}
		return strconv.FormatInt(int64(f), 10), true
	}
	return "", false
}

// checkParams refuses a modern tools/call whose Mcp-Param headers do not say
// what its arguments say.
func (g *Gateway) checkParams(principal, method string, params json.RawMessage, h http.Header) *wire.Error {
	if method != "tools/call" {
		return nil
	}
	name, _ := rawjson.GetString(params, "name")
	m := g.menus.latest(principal, listTools)
	if m == nil {
		return nil // no list was ever asked for, so no host knows of a binding
	}
	mismatch := func(header, problem string) *wire.Error {
		return &wire.Error{Code: wire.CodeHeaderMismatch, Message: "header " + header + " " + problem}
	}
	for _, b := range m.entries[name].params {
		header := paramPrefix + b.name
		values := h.Values(header)
		raw, given := rawjson.Get(params, append([]string{"arguments"}, b.path...)...)
		given = given && rawjson.KindOf(raw) != rawjson.Null
		want, bindable := primitive(raw)
		switch {
		case given && !bindable:
			return mismatch(header, "can't carry the argument "+strings.Join(b.path, ".")+": it must be a string, an integer or a boolean")
		case given && len(values) == 0:
			return mismatch(header, "is missing, and the argument "+strings.Join(b.path, ".")+" is given")
		case !given && len(values) > 0:
			return mismatch(header, "is given, and the argument "+strings.Join(b.path, ".")+" is not")
		case !given:
			continue
		}
		got, ok := wire.DecodeHeader(values[0])
		if !ok || len(values) > 1 {
			return mismatch(header, "is not one well-formed value")
		}
		if got != want && !sameNumber(raw, got) {
			return mismatch(header, "does not say what the argument "+strings.Join(b.path, ".")+" says")
		}
	}
	return nil
}

// sameNumber compares an integer written in two ways.
func sameNumber(raw []byte, header string) bool {
	if rawjson.KindOf(raw) != rawjson.Number {
		return false
	}
	a, err1 := strconv.ParseFloat(string(raw), 64)
	b, err2 := strconv.ParseFloat(header, 64)
	return err1 == nil && err2 == nil && a == b
}

// forwardHeader returns the host's headers that travel on to the upstream, also
// where foldgate knows nothing of them. The link itself writes the ones that
// repeat method and name.
func forwardHeader(host http.Header) http.Header {
	var out http.Header
	for k, v := range host {
		if strings.HasPrefix(k, paramPrefix) {
			if out == nil {
				out = http.Header{}
			}
			out[k] = v
		}
	}
	return out
}

// bindHeaders adds to h the headers that bindings ask for.
func bindHeaders(h http.Header, bindings []paramHeader, arguments json.RawMessage) http.Header {
	for _, b := range bindings {
		raw, ok := rawjson.Get(arguments, b.path...)
		if !ok {
			continue
		}
		if v, ok := primitive(raw); ok {
			if h == nil {
				h = http.Header{}
			}
			h.Set(paramPrefix+b.name, wire.EncodeHeader(v))
		}
	}
	return h
}
