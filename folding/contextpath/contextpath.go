// Package contextpath holds the language of context paths: where in the tree
// of branches a message belongs.
//
// A path is 1 to 5 segments of ASCII letters, digits, '-' and '_', joined by
// '/', at most 255 bytes together, case-sensitive. The empty path is the main
// context. A branch's path is its parents' ids and its own:
//
//	p, err := contextpath.Parse("br_1f0c/br_77aa")  // foreign text is parsed once
//	p.Parent()                                      // br_1f0c
//	p.InTree("br_1f0c")                             // true
//	sub, err := p.Join("analysis")                  // a host's own sub-context, below p
//
// [Decode] reads the value of a foreign message's context field, older forms
// included. Nothing here keeps state; all functions are safe for concurrent use.
package contextpath

import (
	"fmt"
	"strings"
)

// Limits of a path. The root is level 1.
const (
	MaxDepth = 5
	MaxBytes = 255
)

// Path is a context path. The zero value is the main context. A Path that came
// from [Parse], [Decode] or [Path.Join] is valid; one converted from a string
// is what the caller says it is.
type Path string

// Main is the context of a message that belongs to no branch.
const Main Path = ""

// The codes of [Error].
const (
	CodeSyntax               = "context_syntax"
	CodeTooDeep              = "context_too_deep"
	CodeTooLong              = "context_too_long"
	CodeType                 = "context_type"
	CodeOperationUnsupported = "context_operation_unsupported"
)

// Error says why a value is not a context path.
type Error struct {
	Code   string // one of the Code constants, stable
	Value  string // the offending value, cut to 64 bytes
	Remedy string
}

// Error names the value and the remedy; the code is kept out of the text.
func (e *Error) Error() string {
	return fmt.Sprintf("context %q: %s", e.Value, e.Remedy)
}

func fault(code, value, remedy string) error {
	if len(value) > 64 {
		value = value[:64] + "..."
	}
	return &Error{Code: code, Value: value, Remedy: remedy}
}

// Parse returns s as a path, or an [*Error]. "" is [Main].
func Parse(s string) (Path, error) {
	if err := Validate(s); err != nil {
		return Main, err
	}
	return Path(s), nil
}

// Validate returns nil if s is a path, and an [*Error] otherwise.
func Validate(s string) error {
	if s == "" {
		return nil
	}
	if len(s) > MaxBytes {
		return fault(CodeTooLong, s, fmt.Sprintf("%d bytes; at most %d are allowed", len(s), MaxBytes))
	}
	depth, start := 1, 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '/':
			if i == start {
				return fault(CodeSyntax, s, "empty segment; write segments joined by single slashes, none at the ends")
			}
			depth++
			start = i + 1
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return fault(CodeSyntax, s, fmt.Sprintf("byte %d is not allowed; use ASCII letters, digits, '-' and '_', joined by '/'", i))
		}
	}
	if start == len(s) {
		return fault(CodeSyntax, s, "trailing slash; write segments joined by single slashes, none at the ends")
	}
	if depth > MaxDepth {
		return fault(CodeTooDeep, s, fmt.Sprintf("%d levels; at most %d are allowed", depth, MaxDepth))
	}
	return nil
}

// Root returns the first segment. The root of main is main.
func (p Path) Root() Path {
	if i := strings.IndexByte(string(p), '/'); i >= 0 {
		return p[:i]
	}
	return p
}

// Parent returns the path one level up: main for a first-level path and for main itself.
func (p Path) Parent() Path {
	if i := strings.LastIndexByte(string(p), '/'); i >= 0 {
		return p[:i]
	}
	return Main
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

// IsAncestor reports whether p is strictly above q. Main is no path's
// ancestor: it is the absence of a context, not the root of all of them.
func (p Path) IsAncestor(q Path) bool {
	return p != Main && len(q) > len(p) && q[len(p)] == '/' && q[:len(p)] == p
}

// InTree reports whether p is root or below it. No path is in main's tree, main included.
func (p Path) InTree(root Path) bool {
	return root != Main && (p == root || root.IsAncestor(p))
}

// IsChild reports whether p is exactly one level below parent. The children of
// main are the first-level paths.
func (p Path) IsChild(parent Path) bool { return p != Main && p.Parent() == parent }

// Ancestors returns the paths above p, the root first; nil for main and roots.
func (p Path) Ancestors() []Path {
	var up []Path
	for i := 0; i < len(p); i++ {
		if p[i] == '/' {
			up = append(up, p[:i])
		}
	}
	return up
}

// Join returns the path of sub below p, or an [*Error] if sub is not a path or
// the whole breaks a limit. Joining "" gives p. The result is p or in its
// tree: a foreign sub cannot climb out of p.
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
