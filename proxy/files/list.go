package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
)

const (
	// maxEntries is the most lines of list_directory and search_files.
	maxEntries = 1000
	// maxReport is the most bytes of a listing or search result.
	maxReport = 64 << 10
	// readDirBatch is how many entries are read between two looks at ctx.
	readDirBatch = 1024
)

func (s *Server) listDirectory(ctx context.Context, a *arguments) (string, error) {
	name := a.text("path", ".")
	if err := a.err(); err != nil {
		return "", err
	}
	p, err := s.resolve(name)
	if err != nil {
		return "", err
	}
	if p.r == nil {
		var names []string
		for _, r := range s.roots {
			names = append(names, display(r.name)+"/")
		}
		return strings.Join(names, "\n"), nil
	}
	entries, err := s.readDir(ctx, p)
	if err != nil {
		return "", err
	}
	if len(entries) == 0 {
		return "(empty)", nil
	}
	out := report{limit: maxReport}
	for i, e := range entries {
		if i == maxEntries || !out.add(describe(e)) {
			out.note(fmt.Sprintf("%d of %d entries left out: search_files finds files by name", len(entries)-i, len(entries)))
			break
		}
	}
	return out.String(), nil
}

// describe is one line of a listing.
func describe(e fs.DirEntry) string {
	name := display(e.Name())
	switch {
	case e.IsDir():
		return name + "/"
	case e.Type()&fs.ModeSymlink != 0:
		return name + "@"
	}
	if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
		return fmt.Sprintf("%s %d", name, info.Size())
	}
	return name
}

// readDir returns the entries of a directory that are shown, sorted by name.
func (s *Server) readDir(ctx context.Context, p place) ([]fs.DirEntry, error) {
	f, err := s.openDir(p)
	if err != nil {
		return nil, err
	}
	defer f.Close()
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
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !p.r.lists(path.Join(p.rel, e.Name())) })
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}
