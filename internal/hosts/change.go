package hosts

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/foldgate/foldgate/internal/atomicfile"
	"github.com/foldgate/foldgate/internal/hosts/spelling"
)

// Change is an edit of a host's file that is not written yet.
type Change struct {
	File string
	// Before and After are the file's text. A file that does not exist is nil.
	Before, After []byte
	// Exact reports, of a disconnect, that After is the file as it was before connect.
	Exact bool

	host   Host
	record *record // the record after Write; nil for none
	backup []byte  // the text that Disconnect restores
}

// record is what foldgate keeps about a file that it has changed, beside the backup.
type record struct {
	File    string  `json:"file"`
	Existed bool    `json:"existed"`         // there was a file before
	Sum     string  `json:"sum"`             // SHA-256 of what foldgate wrote
	Moved   []entry `json:"moved,omitempty"` // the servers that import took out
}

// Connect returns the change that adds foldgate's entry to the file, and takes the entries out of
// it that import has moved.
func (h Host) Connect(file string, s Server, imported []Imported) (*Change, error) {
	e, err := h.entry(s)
	if err != nil {
		return nil, err
	}
	c, rec, err := h.open(file)
	if err != nil {
		return nil, err
	}
	c.backup = c.Before
	var moved []entry
	if rec != nil { // what stood there before the first connect stays the backup
		if c.backup, _, err = h.undo(c, rec); err != nil {
			return nil, c.fault(err)
		}
		moved = rec.Moved
	}
	for _, in := range imported {
		if in.Key != "" {
			moved = append(moved, in.Entry)
		}
	}
	text := c.backup
	for _, m := range moved {
		if text, err = h.syntax.remove(text, m, false); err != nil {
			return nil, c.fault(err)
		}
	}
	if text, err = h.syntax.set(text, h.own(), e); err != nil {
		return nil, c.fault(err)
	}
	if err := h.verify(c.backup, text, append(slices.Clone(moved), h.own()), e); err != nil {
		return nil, c.fault(err)
	}
	c.After = text
	c.record = &record{File: file, Existed: c.backup != nil, Sum: sum(text), Moved: moved}
	return c, nil
}

// Disconnect returns the change that brings back the file as it was before Connect. If the file has
// changed since, it takes foldgate's entry out and brings the moved entries back.
func (h Host) Disconnect(file string) (*Change, error) {
	c, rec, err := h.open(file)
	if err != nil {
		return nil, err
	}
	if c.After, c.Exact, err = h.undo(c, rec); err != nil {
		return nil, c.fault(err)
	}
	return c, nil
}

// own returns the place of foldgate's entry.
func (h Host) own() entry { return append(slices.Clone(h.table()), Entry) }

// open reads the file and its record; rec is nil if there is none.
func (h Host) open(file string) (c *Change, rec *record, err error) {
	c = &Change{File: file, host: h}
	if c.Before, err = read(file); err != nil {
		return nil, nil, err
	}
	text, err := read(c.state(".json"))
	if err != nil || text == nil {
		return c, nil, err
	}
	rec = &record{}
	if err := json.Unmarshal(text, rec); err != nil {
		return nil, nil, fmt.Errorf("%s can't be read (%w); remove it, and restore %s from %s by hand", c.state(".json"), err, file, c.state(".bak"))
	}
	if slices.ContainsFunc(rec.Moved, func(m entry) bool { return len(m) < 2 }) {
		return nil, nil, fmt.Errorf("%s names a server without a table or a name; remove it, and restore %s from %s by hand", c.state(".json"), file, c.state(".bak"))
	}
	return c, rec, nil
}

// fault adds the file and the remedy to an error of its text.
func (c *Change) fault(err error) error {
	return fmt.Errorf("%s: %w. Nothing was changed. Correct the file and try again, or edit it by hand: foldgate connect %s --print shows the entry", c.File, err, c.host.Name)
}

// undo returns the text from before Connect, nil for no file. exact reports that the file is
// unchanged since.
func (h Host) undo(c *Change, rec *record) (text []byte, exact bool, err error) {
	if c.Before == nil {
		return nil, false, nil
	}
	if rec == nil {
		rec = &record{Existed: true}
	}
	var old []byte
	if rec.Existed && rec.Sum != "" {
		if old, err = read(c.state(".bak")); err != nil {
			return nil, false, err
		}
	}
	if sum(c.Before) == rec.Sum && (old != nil || !rec.Existed) {
		return old, true, nil
	}
	s := h.syntax
	was, err := s.decode(old)
	if err != nil {
		return nil, false, err
	}
	if text, err = h.restore(c.Before, old, rec); text != nil || err != nil {
		return text, false, cmp.Or(err, h.verify(c.Before, text, append(slices.Clone(rec.Moved), h.own()), nil))
	}
	touched := []entry{h.own()}
	empty := rec.Sum != "" && lookup(was, h.table()) == nil
	if text, err = s.remove(c.Before, h.own(), empty); err != nil {
		return nil, false, err
	}
	for _, m := range rec.Moved {
		table, name := m.table(), m.name()
		source, err := s.text(old, m)
		if err != nil {
			return nil, false, err
		}
		now, err := s.names(text, table)
		if err != nil {
			return nil, false, err
		}
		if source == nil || slices.Contains(now, name) {
			continue
		}
		touched = append(touched, m)
		if text, err = s.paste(text, m, source); err != nil {
			return nil, false, err
		}
		is, err := s.decode(text)
		if err != nil || !reflect.DeepEqual(lookup(is, table)[name], lookup(was, table)[name]) {
			return nil, false, errors.Join(err, fmt.Errorf("the server %q can't be put back; copy it from %s", name, c.state(".bak")))
		}
	}
	return text, false, h.verify(c.Before, text, touched, nil)
}

// restore returns now with the tables from before Connect, comments included. It returns nil if a table has
// changed since Connect, or if the file is not JSON.
func (h Host) restore(now, old []byte, rec *record) (text []byte, err error) {
	s, ok := h.syntax.(jsonc)
	if !ok || !rec.Existed {
		return nil, nil
	}
	source, err := s.text(now, h.own())
	if err != nil || source == nil {
		return nil, err
	}
	left := old
	tables := []entry{entry(h.table())}
	for _, m := range rec.Moved {
		if left, err = s.remove(left, m, false); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(tables, func(t entry) bool { return slices.Equal(t, m.table()) }) {
			tables = append(tables, m.table())
		}
	}
	if left, err = s.paste(left, h.own(), source); err != nil {
		return nil, err
	}
	text = now
	for _, t := range tables {
		was, errWas := s.text(old, t)
		wrote, errWrote := s.text(left, t)
		is, errIs := s.text(now, t)
		if err := cmp.Or(errWas, errWrote, errIs); err != nil {
			return nil, err
		}
		if was == nil || !bytes.Equal(is, wrote) {
			return nil, nil
		}
		if text, err = s.paste(text, t, was); err != nil {
			return nil, err
		}
	}
	return text, nil
}

// Empty reports that the file is already as it should be.
func (c *Change) Empty() bool {
	return bytes.Equal(c.Before, c.After) && (c.Before == nil) == (c.After == nil)
}

// Diff returns the change as a unified diff without the secrets of servers. secret reports whether a text
// holds one.
func (c *Change) Diff(secret func(text string) bool) (string, error) {
	text, err := diffOf(c.File, c.Before, c.After, func(text []byte) ([]byte, error) {
		if c.host.syntax == nil {
			return text, nil
		}
		all, err := c.host.servers(text, func(string) bool { return true })
		if err != nil {
			return nil, err
		}
		var servers []entry
		for _, l := range all {
			servers = append(servers, l.entry)
		}
		return redactor{secret: secret, host: true}.file(c.host.syntax, text, servers)
	})
	if err != nil {
		return "", c.fault(err)
	}
	return text, nil
}

// diffOf returns the unified diff of what show returns for two texts of a file.
func diffOf(file string, before, after []byte, show func(text []byte) ([]byte, error)) (string, error) {
	before, err := show(before)
	if err != nil {
		return "", err
	}
	if after, err = show(after); err != nil {
		return "", err
	}
	text := diff.Diff(file+" (now)", before, file+" (changed)", after)
	_, text, _ = bytes.Cut(text, []byte("\n")) // a headline that repeats the names
	return string(text), nil
}

// state returns a path beside the other files about c.File, in the user's configuration directory.
// They are not in the host's directory: a backup may hold secrets, and a project is shared.
func (c *Change) state(suffix string) string {
	return filepath.Join(spelling.BackupDir(), c.host.Name+"-"+sum([]byte(c.File))[:8]+suffix)
}

// Write makes the change. Each file is replaced at once, or not at all. It fails if the host's
// file is no longer Before.
func (c *Change) Write() error {
	if now, err := read(c.File); err != nil || !bytes.Equal(now, c.Before) {
		return errors.Join(err, fmt.Errorf("%s has changed meanwhile, perhaps by the host itself. Nothing was written; try again", c.File))
	}
	if c.record == nil {
		if err := c.put(); err != nil {
			return err
		}
		if c.Exact { // else the backup is the only copy of what could not be restored
			_ = os.Remove(c.state(".bak"))
		}
		if err := os.Remove(c.state(".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	// The record first: if the file is not written, Disconnect finds it without an entry.
	if err := c.keep(); err != nil {
		return fmt.Errorf("%s was not changed, as what disconnect needs can't be written: %w", c.File, err)
	}
	return c.put()
}

// keep writes the backup and the record of the change.
func (c *Change) keep() error {
	text, err := json.MarshalIndent(c.record, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.state("")), 0o700); err != nil {
		return err
	}
	if c.record.Existed {
		if err := Replace(c.state(".bak"), c.backup); err != nil {
			return err
		}
	}
	return Replace(c.state(".json"), append(text, '\n'))
}

// put writes After.
func (c *Change) put() error {
	switch {
	case c.Empty():
		return nil
	case c.After == nil:
		return os.Remove(c.File)
	}
	if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
		return err
	}
	return Replace(c.File, c.After)
}

// Replace writes a file at once or not at all. An existing file keeps its mode and its owner, a new
// one is for its owner only.
func Replace(file string, text []byte) error {
	mode := fs.FileMode(0o600)
	info, err := os.Stat(file)
	if err == nil {
		mode = info.Mode().Perm()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return atomicfile.WriteAs(file, text, mode, func(f *os.File) error {
		if info == nil {
			return nil
		}
		return keepOwner(f, info)
	})
}

// maxFile bounds the files that are read, in bytes. Claude Code keeps more than servers in its file.
const maxFile = 64 << 20

// read returns a file's text, nil if there is no file.
func read(file string) ([]byte, error) {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() { // reading a pipe could wait for ever
		return nil, fmt.Errorf("%s is not a regular file: remove it, or move it away", file)
	}
	if err == nil && info.Size() > maxFile {
		return nil, fmt.Errorf("%s has over %d MB: that is no configuration", file, maxFile>>20)
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if text == nil && err == nil {
		text = []byte{}
	}
	return text, err
}

func sum(text []byte) string { return fmt.Sprintf("%x", sha256.Sum256(text)) }
