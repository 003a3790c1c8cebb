// Package files is foldgate's built-in upstream: four read-only MCP tools over
// one or more directories, so that the gateway is useful with nothing else
// installed.
//
//	srv, err := files.New([]string{"."})
//	defer srv.Close()
//	defs := srv.Tools()                       // for tools/list
//	result, err := srv.Call(ctx, "grep", args) // for tools/call
//
// Both speak raw JSON: a tool definition and a tools/call result as MCP has
// them, with no protocol library on the way.
//
// # Confinement
//
// Every file is opened through an [os.Root]: a path with "..", an absolute
// path and a symbolic link can't lead out of a root, also when a link changes
// between a check and its use. Nothing is ever written. Only directories and
// regular files are opened; devices, pipes and sockets are refused. What is
// hidden, such as the gateway's own state, is neither listed nor searched nor
// read, though it may lie below a root.
//
// # Paths
//
// With one root, paths are relative to it. With several, the first segment is
// the name of a root (its base name, made unique with -2, -3 ...), and "." is
// the directory that holds them all. Every path in a result is a valid argument.
// Absolute paths are accepted where they lie below a root.
//
// # Searches
//
// search_files and grep leave out .git, what .gitignore files and
// .git/info/exclude exclude, and what symbolic links point to. A directory
// that is named as path itself is searched even if it is ignored. The order is
// lexical within each directory.
package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// ErrUnknownTool is the only error of [Server.Call].
var ErrUnknownTool = errors.New("unknown tool")

// Server answers tool calls on a fixed set of roots. It holds no state but
// their open directories; its methods are safe for concurrent use.
type Server struct {
	roots []*root
}

// root is one directory that may be read, with everything below it.
type root struct {
	name   string   // first segment of paths where there are several roots
	dirs   []string // absolute paths of the root: as given and with links resolved
	hidden []string // absolute paths of directories below it that are not shown
	fs     *os.Root
}

// New opens the roots. It fails if there is none, or one is not a directory
// that can be opened; the error names it. Relative roots are relative to the
// working directory. Directories that are hidden are not shown where they lie
// below a root; a root in one of them is shown, since somebody asked for it.
func New(roots []string, hidden ...string) (*Server, error) {
	if len(roots) == 0 {
		return nil, errors.New("files: no roots: name at least one directory")
	}
	s := &Server{}
	taken := map[string]bool{}
	for _, dir := range roots {
		r, err := openRoot(dir)
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("files: root %q: %w", dir, err)
		}
		base := r.name
		for n := 2; taken[r.name]; n++ {
			r.name = base + "-" + strconv.Itoa(n)
		}
		taken[r.name] = true
		r.hide(hidden)
		s.roots = append(s.roots, r)
	}
	return s, nil
}

func openRoot(dir string) (*root, error) {
	if dir == "" {
		return nil, errors.New("is empty: name a directory, . for the working directory")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	opened, err := os.OpenRoot(abs)
	if err != nil {
		return nil, cause(err)
	}
	r := &root{name: filepath.Base(abs), dirs: []string{abs}, fs: opened}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		r.dirs = append(r.dirs, real)
	}
	if r.name == string(filepath.Separator) {
		r.name = "root"
	}
	return r, nil
}

// hide notes which of these directories lie below r.
func (r *root) hide(dirs []string) {
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err != nil {
			continue
		}
		paths := []string{abs}
		if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
			paths = append(paths, real)
		}
		for _, p := range paths {
			if slices.ContainsFunc(r.dirs, func(top string) bool { return below(top, p) != "" }) {
				r.hidden = append(r.hidden, p)
			}
		}
	}
}

// below returns the path from dir to p, slash-separated, "" where p is not below dir.
func below(dir, p string) string {
	rel, err := filepath.Rel(dir, p)
	if err != nil || rel == "." || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.ToSlash(rel)
}

// Close releases the roots. Calls that are under way, and later ones, answer
// with a tool error.
func (s *Server) Close() error {
	var errs []error
	for _, r := range s.roots {
		errs = append(errs, r.fs.Close())
	}
	return errors.Join(errs...)
}

// Call runs one tool and returns its result. Whatever goes wrong, ctx ending
// included, is a result with isError and a text that says what to do next. The
// error is ErrUnknownTool, wrapped, or nil.
func (s *Server) Call(ctx context.Context, name string, args json.RawMessage) (json.RawMessage, error) {
	for _, t := range tools {
		if t.name == name {
			text, err := t.run(s, ctx, newArguments(args))
			if err != nil {
				return errorResult(err), nil
			}
			return textResult(text), nil
		}
	}
	return nil, fmt.Errorf("%w: %q", ErrUnknownTool, name)
}
