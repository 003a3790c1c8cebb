package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

var variable = regexp.MustCompile(`\$\$|\$\{[^}]*\}?`)

// expand replaces ${NAME} in every string value below n ($$ stands for $) and
// notes the line of every key.
func expand(n ast.Node, key string, env func(string) (string, bool), lines map[string]int) (faults []Fault) {
	if n == nil {
		return nil
	}
	if _, seen := lines[key]; !seen && key != "" {
		lines[key] = line(n)
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			faults = append(faults, expand(v, key, env, lines)...)
		}
	case *ast.MappingValueNode:
		at := join(key, keyName(n.Key))
		lines[at] = line(n.Key)
		faults = append(faults, expand(n.Value, at, env, lines)...)
	case *ast.SequenceNode:
		for i, v := range n.Values {
			faults = append(faults, expand(v, fmt.Sprintf("%s[%d]", key, i), env, lines)...)
		}
	case *ast.TagNode:
		return expand(n.Value, key, env, lines)
	case *ast.AnchorNode:
		return expand(n.Value, key, env, lines)
	case *ast.LiteralNode: // a block, after | or >
		return expand(n.Value, key, env, lines)
	case *ast.StringNode:
		n.Value = variable.ReplaceAllStringFunc(n.Value, func(m string) string {
			v, fault := substitute(m, env)
			if fault != "" {
				faults = append(faults, Fault{Key: key, Line: line(n), Msg: fault})
			}
			return v
		})
	}
	return faults
}

// substitute returns what stands for one match of variable, or what is wrong with it.
func substitute(m string, env func(string) (string, bool)) (value, fault string) {
	if m == "$$" {
		return "$", ""
	}
	name, closed := strings.CutSuffix(m[2:], "}")
	if !closed { // what follows may be a secret
		return "", "has ${ without the } that ends it (write $${ for the text itself)"
	}
	if v, ok := env(name); ok {
		return v, ""
	}
	if name, _, extra := strings.Cut(name, ":"); extra {
		return "", fmt.Sprintf("${%s:...} is more than the name of a variable: there are no defaults here; set the variable and write ${%[1]s}", name)
	}
	return "", fmt.Sprintf("the environment variable %s is not set (write $${%[1]s} for the text itself)", name)
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}

// parentKey cuts the last step off a key: "a.b[0]" → "a.b" → "a" → "".
func parentKey(key string) string {
	return key[:max(strings.LastIndexAny(key, ".["), 0)]
}

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

// mappingKeys returns the keys of the mapping called name, in order.
func mappingKeys(body ast.Node, name string) (keys []string) {
	pairs, _ := mapping(body)
	for _, v := range pairs {
		if v.Key.String() != name {
			continue
		}
		inner, _ := mapping(v.Value)
		for _, e := range inner {
			keys = append(keys, keyName(e.Key))
		}
	}
	return keys
}

// keyName returns a key without the quotes that it may be written in.
func keyName(k ast.MapKeyNode) string { return strings.Trim(k.String(), `"'`) }

// plain takes tags and anchors off a node.
func plain(n ast.Node) ast.Node {
	for {
		switch v := n.(type) {
		case *ast.TagNode:
			n = v.Value
		case *ast.AnchorNode:
			n = v.Value
		default:
			return n
		}
	}
}

// mapping returns the pairs of a mapping; ok is false for other nodes.
func mapping(n ast.Node) (pairs []*ast.MappingValueNode, ok bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// yamlFault turns an error of the YAML library into a fault with its line. Where
// the library points at a value, the fault names the key: a value may be a secret.
func yamlFault(err error, lines map[string]int) Fault {
	var ye yaml.Error
	if errors.As(err, &ye) {
		f := Fault{Key: "syntax", Msg: cmp.Or(mistyped(err), ye.GetMessage())}
		if t := ye.GetToken(); t != nil {
			f.Line = t.Position.Line
			if strings.Contains(f.Msg, "already defined") {
				f.Key = t.Value
			}
			for key, at := range lines {
				switch {
				case at != f.Line:
				case key[len(parentKey(key)):] == t.Value, strings.HasSuffix(key, "."+t.Value):
					f.Key = t.Value
					return f
				case f.Key == "syntax" || len(key) > len(f.Key) || len(key) == len(f.Key) && key > f.Key:
					f.Key = key
				}
			}
		}
		return f
	}
	return Fault{Key: "syntax", Msg: err.Error()}
}
