// Package contextpath implements context paths. A context path says where in the tree of branches
// a message belongs.
//
// A path has 1 to 5 segments of ASCII letters, digits, '-' and '_', joined by '/'. It is
// case-sensitive and has at most 255 bytes. The empty path is the main context. The path of a
// branch is the ids of its parents and its own id.
//
// [Decode] reads the context field of a foreign message, older forms included.
package contextpath

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Limits of a path. The root is level 1. MaxCallDepth is for the context of a call, in which a
// host's path can stand below that of a branch.
const (
	MaxDepth     = 5
	maxBytes     = 255
	MaxCallDepth = 2 * MaxDepth
)

// Path is a context path. The zero value is the main context. [Parse], [Decode] and [Path.Join]
// return valid paths. A conversion from a string checks nothing.
type Path string

// Main is the context of a message that belongs to no branch.
const Main Path = ""

// fault says why a value is not a context path: it names the value, cut to 64 bytes, and the remedy.
func fault(value, remedy string) error {
	if len(value) > 64 {
		value = value[:64] + "..."
	}
	return fmt.Errorf("context %q: %s", value, remedy)
}

// Parse returns s as a path. "" is [Main].
func Parse(s string) (Path, error) {
	if err := Validate(s); err != nil {
		return Main, err
	}
	return Path(s), nil
}

// Validate returns nil if s is a path.
func Validate(s string) error { return validate(s, MaxDepth, maxBytes) }

// ValidateCall is [Validate] for the context of a call: the path of a branch and, below it, one of
// the host's own.
func ValidateCall(s string) error { return validate(s, MaxCallDepth, 2*maxBytes+1) }

func validate(s string, maxDepth, maxBytes int) error {
	if s == "" {
		return nil
	}
	if len(s) > maxBytes {
		return fault(s, fmt.Sprintf("%d bytes; at most %d are allowed", len(s), maxBytes))
	}
	for i := range len(s) {
		if c := s[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || c == '-' || c == '_' || c == '/') {
			return fault(s, fmt.Sprintf("byte %d is not allowed; use ASCII letters, digits, '-' and '_', joined by '/'", i))
		}
	}
	depth := Path(s).Depth()
	switch {
	case s[0] == '/', strings.Contains(s, "//"):
		return fault(s, "empty segment; write segments joined by single slashes, none at the ends")
	case strings.HasSuffix(s, "/"):
		return fault(s, "trailing slash; write segments joined by single slashes, none at the ends")
	case depth > maxDepth:
		return fault(s, fmt.Sprintf("%d levels; at most %d are allowed", depth, maxDepth))
	}
	return nil
}

// Root returns the first segment. The root of main is main.
func (p Path) Root() Path {
	root, _, _ := strings.Cut(string(p), "/")
	return Path(root)
}

// Parent returns the path one level up: main for a first-level path and for main itself.
func (p Path) Parent() Path {
	return p[:max(strings.LastIndexByte(string(p), '/'), 0)]
}

// Leaf returns the last segment, "" for main. A branch's leaf is its id.
func (p Path) Leaf() string {
	return string(p[strings.LastIndexByte(string(p), '/')+1:])
}

// Depth returns the number of segments: 0 for main, 1 for a root.
func (p Path) Depth() int {
	if p == Main {
		return 0
	}
	return strings.Count(string(p), "/") + 1
}

// IsAncestor reports whether p is strictly above q. Main is not an ancestor: it is the absence of
// a context, not the root of all contexts.
func (p Path) IsAncestor(q Path) bool {
	return p != Main && len(q) > len(p) && q[len(p)] == '/' && q[:len(p)] == p
}

// InTree reports whether p is root or below it. Main has no tree.
func (p Path) InTree(root Path) bool {
	return root != Main && (p == root || root.IsAncestor(p))
}

// IsChild reports whether p is exactly one level below parent. The children of main are the
// first-level paths.
func (p Path) IsChild(parent Path) bool { return p != Main && p.Parent() == parent }

// Join returns the path of sub below p, or p if sub is "". It fails if sub is not a path or the
// result breaks a limit. The result is always in the tree of p.
func (p Path) Join(sub string) (Path, error) {
	if err := Validate(sub); err != nil {
		return Main, err
	}
	switch {
	case sub == "":
		return p, nil
	case p == Main:
		return Path(sub), nil
	}
	return Parse(string(p) + "/" + sub)
}

// DeprecatedObject is the deprecation that [Decode] reports for the object form of a context.
const DeprecatedObject = "context_object"

// Decode reads the JSON value of the context field of a foreign message. nil, null and "" are
// main; any other string is a path. The object form of an earlier draft, {"id", "parent"}, is
// parent/id and is reported in deprecated. It refuses objects with an operation and
// other types.
func Decode(value json.RawMessage) (p Path, deprecated []string, err error) {
	value = rawjson.Trim(value)
	switch kind := rawjson.KindOf(value); {
	case len(value) == 0, kind == rawjson.Null:
		return Main, nil, nil
	case kind == rawjson.String:
		p, err = Parse(rawjson.Unquote(value))
		return p, nil, err
	case kind == rawjson.Object:
		if p, err = decodeObject(value); err == nil {
			deprecated = []string{DeprecatedObject}
		}
		return p, deprecated, err
	}
	return Main, nil, fault(string(value), "send a string such as \"analysis/step-1\"")
}

func decodeObject(value json.RawMessage) (Path, error) {
	if _, ok := rawjson.Get(value, "operation"); ok {
		return Main, fault(string(value), "context operations are not supported; use branch_create and branch_return")
	}
	id, ok := rawjson.GetString(value, "id")
	if !ok || id == "" {
		return Main, fault(string(value), "a context object needs a string \"id\"; better send a path as a string")
	}
	parent, ok := rawjson.GetString(value, "parent")
	if raw, set := rawjson.Get(value, "parent"); set && !ok && rawjson.KindOf(raw) != rawjson.Null {
		return Main, fault(string(value), "a context object's \"parent\" must be a string")
	}
	up, err := Parse(parent)
	if err != nil {
		return Main, err
	}
	return up.Join(id)
}
