package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"
)

// place is a resolved path. r is nil for the directory above several roots.
type place struct {
	r   *root
	rel string // slash-separated, clean, local; "." for the root itself
}

// hides reports whether f, opened as rel, is hidden or lies below a hidden directory, under any name or
// link. A link may have changed before the open, so on Linux the kernel says where f is. f is nil if
// it can't be opened.
func (r *root) hides(f *os.File, rel string) bool {
	if len(r.hidden) == 0 {
		return false
	}
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		at = r.real(rel)
	}
	dir := filepath.Dir(at)
	for ; slices.ContainsFunc(r.dirs, func(top string) bool { return below(top, at) != "" }); at = filepath.Dir(at) {
		if last := r.visible.Load(); last != nil && at == *last {
			break
		}
		info, err := os.Stat(at)
		for _, h := range r.hidden {
			if at == h {
				return true
			}
			if other, fault := os.Stat(h); err == nil && fault == nil && os.SameFile(info, other) {
				return true
			}
		}
	}
	r.visible.Store(&dir)
	return false
}

// real returns the absolute path of rel, with links resolved if it exists.
func (r *root) real(rel string) string {
	full := filepath.Join(r.dirs[0], filepath.FromSlash(rel))
	if real, err := filepath.EvalSymlinks(full); err == nil {
		return real
	}
	return full
}

// resolve returns the place of p. It looks at the text of p only: whether the file exists, is hidden,
// or a link leads out, shows when it is opened.
func (s *Server) resolve(p string) (place, error) {
	if strings.ContainsRune(p, 0) {
		return place{}, fmt.Errorf("path %s contains a NUL byte", display(p))
	}
	if filepath.IsAbs(p) {
		for _, r := range s.roots {
			for _, dir := range r.dirs {
				if rel, err := filepath.Rel(dir, p); err == nil && filepath.IsLocal(rel) {
					return place{r, filepath.ToSlash(rel)}, nil
				}
			}
		}
		return place{}, fmt.Errorf("path %s is outside of what may be read: use a path relative to %s", display(p), s.rootNames())
	}
	rel := path.Clean(filepath.ToSlash(p))
	if !filepath.IsLocal(rel) {
		return place{}, fmt.Errorf("path %s leads out of what may be read: use a path relative to %s", display(p), s.rootNames())
	}
	if len(s.roots) == 1 {
		return place{s.roots[0], rel}, nil
	}
	if rel == "." {
		return place{nil, "."}, nil
	}
	first, rest, _ := strings.Cut(rel, "/")
	for _, r := range s.roots {
		if r.name == first {
			return place{r, path.Clean(rest)}, nil
		}
	}
	return place{}, fmt.Errorf("path %s is in no root: start it with one of %s", display(p), s.rootNames())
}

func (s *Server) rootNames() string {
	if len(s.roots) == 1 {
		return `the root, which is "."`
	}
	return "the roots " + s.listRoots(", ")
}

func (s *Server) listRoots(separator string) string {
	names := make([]string, len(s.roots))
	for i, r := range s.roots {
		names[i] = display(r.name) + "/"
	}
	return strings.Join(names, separator)
}

// show returns the path of p in results. It is the inverse of resolve.
func (s *Server) show(p place) string {
	switch {
	case p.r == nil:
		return "."
	case len(s.roots) == 1:
		return display(p.rel)
	}
	return display(path.Join(p.r.name, p.rel))
}

// openFile opens a regular file. The caller closes it.
func (s *Server) openFile(p place) (*os.File, error) {
	if p.r == nil {
		return nil, errors.New(". is a directory: use list_directory")
	}
	f, info, err := s.open(p)
	if err == nil && info.IsDir() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is a directory: use list_directory", s.show(p))
	}
	return f, err
}

// readDir returns the entries of a directory that are shown, sorted by name.
func (s *Server) readDir(ctx context.Context, p place) ([]fs.DirEntry, error) {
	f, info, err := s.open(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is a file, not a directory: use read_file", s.show(p))
	}
	var entries []fs.DirEntry
	for {
		if err := stopped(ctx); err != nil {
			return nil, err
		}
		batch, err := f.ReadDir(readDirBatch)
		entries = append(entries, batch...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, s.explain(p, err)
		}
	}
	if len(p.r.hidden) > 0 { // p may pass a link, so the comparison is of real paths
		dir := p.r.real(p.rel)
		entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool {
			return slices.Contains(p.r.hidden, filepath.Join(dir, e.Name()))
		})
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// readDirBatch is the number of entries read between two checks of ctx.
const readDirBatch = 1024

var errTimedOut = errors.New("stopped before the end: timed out; narrow the call, for example with path or glob")

// stopped returns nil while ctx lasts, then the tool error for its end.
func stopped(ctx context.Context) error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return errTimedOut
	}
	return errors.New("stopped before the end: cancelled")
}

// open opens a directory or a regular file for reading. The caller closes it.
func (s *Server) open(p place) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK, opening a pipe blocks until it has a writer.
	f, err := p.r.fs.OpenFile(p.rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if p.r.hides(f, p.rel) {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s is foldgate's own and may not be read: its state, or a file with secrets; branch_read reads stored results", s.show(p))
	}
	if err != nil {
		return nil, nil, s.explain(p, err)
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() && !info.Mode().IsRegular() {
		err = syscall.ENXIO
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, s.explain(p, err)
	}
	return f, info, nil
}

// explain returns an error of the file system with its remedy.
func (s *Server) explain(p place, err error) error {
	name := s.show(p)
	_, numbered := errors.AsType[syscall.Errno](err) // an error of os.Root itself has no error number
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%s does not exist: list_directory shows what does, search_files finds files by name", name)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s may not be read: permission denied", name)
	case errors.Is(err, syscall.ENXIO): // also the error for a socket
		return fmt.Errorf("%s is neither a regular file nor a directory: only these can be read", name)
	case errors.Is(err, fs.ErrClosed):
		return errors.New("the file server is shutting down")
	case !numbered:
		return fmt.Errorf("%s is or passes a symbolic link that leads out of the root, and may not be read", name)
	}
	return fmt.Errorf("%s: %w", name, cause(err))
}

// cause returns err without the operation and the absolute path.
func cause(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// display returns the name, quoted if it would break the line or is not UTF-8.
func display(name string) string {
	const longest = 500
	if len(name) > longest {
		name = strings.ToValidUTF8(name[:longest], "") + "…"
	}
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		return strconv.Quote(name)
	}
	return name
}

// below returns the path from dir to p with slashes, "" if p does not lie below dir.
func below(dir, p string) string {
	rel, err := filepath.Rel(dir, p)
	if err != nil || rel == "." || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.ToSlash(rel)
}
