// Package pins remembers the definitions of tools and prompts, and the instructions, that servers give to
// models, so that a later change is seen. All processes on a state directory share one file of them.
//
// The first contact with a server approves what it gives. What differs later is new or changed, until
// somebody approves it. A definition is known by its server, its kind and its name. A name can have
// several approved definitions at a time, because a server may answer principals and hosts differently,
// and an old process of it may still run.
package pins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/atomicfile"
	"github.com/foldgate/foldgate/internal/filelock"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Kind is what a definition defines.
type Kind string

// The kinds of definitions. A server has one Instructions, without a name.
const (
	Tool         Kind = "tool"
	Prompt       Kind = "prompt"
	Instructions Kind = "instructions"
)

// State is what is known of a definition.
type State string

// The states. Only New and Changed keep a definition from hosts.
const (
	Approved State = "approved"
	New      State = "new"     // the name was not there at the first contact
	Changed  State = "changed" // another definition of the name is approved
	Unknown  State = "unknown" // the file can't be read or written
	Gone     State = "gone"    // the hosts that listed it first do not get it any more
)

// firstContact approved what a server gave when it was asked first.
const firstContact = "first contact"

// Bounds. A definition beyond maxNames, or with a name over maxName bytes, is not kept: it is new each time.
// Beyond maxVariants, the oldest definition of a name that is not approved is forgotten, else the oldest.
// Beyond maxText and maxTexts, in bytes, a definition is kept without its text, and its change can't be shown.
const (
	maxNames    = 2000 // of a server
	maxName     = 1 << 10
	maxVariants = 16 // definitions of a name
	maxText     = 128 << 10
	maxTexts    = 8 << 20 // of a server
	maxFile     = 1 << 30
	lockWait    = 5 * time.Second
)

// Source says who gives definitions to whom.
type Source struct {
	Server string
	// Reach is how the server is reached. Another one makes a first contact again: the operator has put
	// another server under the name.
	Reach string
	// Audience are the hosts that share a list.
	Audience string
}

// Event is something to tell of a definition.
type Event struct {
	Name     string   `json:"name,omitempty"`
	Kind     Kind     `json:"kind"`
	Server   string   `json:"server"`
	State    State    `json:"state"`
	SHA256   string   `json:"sha256"`
	By       string   `json:"by,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}

// Store is the file of pins. All methods are safe for concurrent use.
type Store struct {
	file string
	// clean takes the secrets out of a text before it is written. nil writes none.
	clean func([]byte) ([]byte, error)

	writing sync.Mutex // held by update, which waits for other processes

	mu      sync.Mutex  // never held while the file is read or written
	current *file       // without texts, never changed; nil before the file is read
	info    os.FileInfo // of the file that current is of; nil for none
	seen    *file       // what current was at the last Refresh
	reads   int         // counts the values of current
	told    map[string]bool
}

// Open returns the store of a state directory. It reads and makes no file before it is used.
func Open(state string, clean func([]byte) ([]byte, error)) *Store {
	return &Store{file: filepath.Join(state, "pins.json"), clean: clean, told: map[string]bool{}}
}

type file struct {
	Version int                `json:"version"`
	Servers map[string]*server `json:"servers"`
}

type server struct {
	// Contacts has when each kind was read first, by kind and Source.Reach.
	Contacts map[string]time.Time `json:"contacts"`
	Pins     map[string]*pin      `json:"pins"` // by kind and name
}

type pin struct {
	FirstSeen time.Time  `json:"first_seen"`
	Audience  string     `json:"audience"` // the first that got it
	Gone      bool       `json:"gone,omitempty"`
	Variants  []*variant `json:"variants"` // in the order in which they were seen
}

type variant struct {
	SHA256   string          `json:"sha256"`
	Seen     time.Time       `json:"seen"`
	Approved time.Time       `json:"approved,omitzero"`
	By       string          `json:"by,omitempty"`
	Text     json.RawMessage `json:"definition,omitempty"`
}

const version = 1

func at(k Kind, name string) string { return string(k) + " " + name }

func (p *pin) find(sum string) *variant {
	for _, v := range p.Variants {
		if v.SHA256 == sum {
			return v
		}
	}
	return nil
}

func (p *pin) approved() bool {
	return slices.ContainsFunc(p.Variants, func(v *variant) bool { return !v.Approved.IsZero() })
}

// state returns the state of one definition of p, which may be nil.
func (p *pin) state(sum string) State {
	if p == nil || !p.approved() {
		return New
	}
	if v := p.find(sum); v != nil && !v.Approved.IsZero() {
		return Approved
	}
	return Changed
}

// Look returns the names of definitions that are not approved, with their states. all are the definitions
// of a kind that a source gives. If live is set, they come from the server now, and Look records the new
// ones. Else they come from a cache, and nothing is wrong with them before the first contact. events are
// what this process has not told yet. After an error the names are those that the file, as it was read
// last, does not approve.
func (s *Store) Look(ctx context.Context, from Source, k Kind, all []Definition, live bool) (held map[string]State, events []Event, err error) {
	now, err := s.ensure()
	fresh := map[string]bool{}
	if live && err == nil && !now.knows(from, k, all) {
		err = s.update(ctx, func(f *file) bool {
			if f.knows(from, k, all) { // somebody else was faster
				return false
			}
			f.see(from, k, all, fresh, s.stored)
			return true
		})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var sv *server
	if s.current != nil {
		sv = s.current.Servers[from.Server]
	}
	if sv == nil || sv.Contacts[at(k, from.Reach)].IsZero() {
		if !live && err == nil {
			return nil, nil, nil
		}
		sv = &server{}
	}
	for _, d := range all {
		state := sv.Pins[at(k, d.Name)].state(d.SHA256)
		if state != Approved {
			if held == nil {
				held = map[string]State{}
			}
			held[d.Name] = state
		}
		key := strings.Join([]string{from.Server, at(k, d.Name), d.SHA256}, "\x00")
		if state == Approved && !fresh[d.SHA256] || s.told[key] {
			continue
		}
		e := Event{Server: from.Server, Kind: k, Name: d.Name, State: state, SHA256: d.SHA256, Warnings: Scan(d.Text, s.current.owner(from.Server))}
		if state != Approved || len(e.Warnings) > 0 {
			if len(s.told) >= maxNames*maxVariants {
				clear(s.told)
			}
			s.told[key] = true
			events = append(events, e)
		}
	}
	return held, events, err
}

// State returns what is known of a name, for a call of something that no list has.
func (s *Store) State(from Source, k Kind, name string) State {
	now, err := s.ensure()
	if err != nil {
		return Unknown
	}
	sv := now.Servers[from.Server]
	if sv == nil || sv.Contacts[at(k, from.Reach)].IsZero() {
		return Approved // there was no contact
	}
	p := sv.Pins[at(k, name)]
	if p == nil || len(p.Variants) == 0 {
		return New
	}
	return p.state(p.Variants[len(p.Variants)-1].SHA256)
}

// ensure returns current. It reads the file the first time.
func (s *Store) ensure() (*file, error) {
	s.mu.Lock()
	now := s.current
	s.mu.Unlock()
	if now == nil {
		return s.read()
	}
	return now, nil
}

// knows reports whether the file need not change for definitions.
func (f *file) knows(from Source, k Kind, all []Definition) bool {
	sv := f.Servers[from.Server]
	if sv == nil || sv.Contacts[at(k, from.Reach)].IsZero() {
		return false
	}
	listed := map[string]bool{}
	for _, d := range all {
		p := sv.Pins[at(k, d.Name)]
		if p == nil && !sv.keeps(d.Name) {
			continue
		}
		if p == nil || p.Gone || p.find(d.SHA256) == nil {
			return false
		}
		listed[at(k, d.Name)] = true
	}
	for key, p := range sv.Pins {
		if strings.HasPrefix(key, at(k, "")) && p.Audience == from.Audience && !p.Gone && !listed[key] {
			return false
		}
	}
	return true
}

// see puts definitions into the file, and the hashes of those that it did not have into fresh.
func (f *file) see(from Source, k Kind, all []Definition, fresh map[string]bool, stored func([]byte) json.RawMessage) {
	now := time.Now().UTC().Truncate(time.Second)
	sv := f.Servers[from.Server]
	if sv == nil {
		sv = &server{Contacts: map[string]time.Time{}, Pins: map[string]*pin{}}
		f.Servers[from.Server] = sv
	}
	first := sv.Contacts[at(k, from.Reach)].IsZero()
	if first {
		sv.Contacts[at(k, from.Reach)] = now
		for len(sv.Contacts) > maxVariants { // many ways to reach it: forget the oldest
			delete(sv.Contacts, slices.MinFunc(slices.Collect(maps.Keys(sv.Contacts)), func(a, b string) int { return sv.Contacts[a].Compare(sv.Contacts[b]) }))
		}
	}
	texts := 0
	for _, p := range sv.Pins {
		for _, v := range p.Variants {
			texts += len(v.Text)
		}
	}
	listed := map[string]bool{}
	for _, d := range all {
		key := at(k, d.Name)
		listed[key] = true
		p := sv.Pins[key]
		if p == nil && !sv.keeps(d.Name) {
			continue
		}
		if p == nil {
			p = &pin{FirstSeen: now, Audience: from.Audience}
			sv.Pins[key] = p
		}
		if p.Gone {
			p.Gone, p.Audience = false, from.Audience
		}
		v := p.find(d.SHA256)
		if v == nil {
			v = &variant{SHA256: d.SHA256, Seen: now}
			if text := stored(d.Text); len(text) <= maxText && texts+len(text) <= maxTexts {
				v.Text = text
				texts += len(text)
			}
			p.add(v)
			fresh[d.SHA256] = true
		}
		if first && v.Approved.IsZero() {
			v.Approved, v.By = now, firstContact
		}
	}
	for key, p := range sv.Pins {
		if strings.HasPrefix(key, at(k, "")) && p.Audience == from.Audience && !listed[key] {
			if p.Gone = true; !p.approved() {
				delete(sv.Pins, key)
			}
		}
	}
}

// keeps reports whether there is room for another name.
func (sv *server) keeps(name string) bool { return len(sv.Pins) < maxNames && len(name) <= maxName }

func (p *pin) add(v *variant) {
	if len(p.Variants) >= maxVariants {
		i := max(0, slices.IndexFunc(p.Variants, func(v *variant) bool { return v.Approved.IsZero() }))
		p.Variants = slices.Delete(p.Variants, i, i+1)
	}
	p.Variants = append(p.Variants, v)
}

// stored returns a definition as it is written.
func (s *Store) stored(text []byte) json.RawMessage {
	if s.clean == nil || len(text) > maxText {
		return nil
	}
	clean, err := s.clean(text)
	if err != nil {
		return nil
	}
	return clean
}

// owner returns the function that says which other server has a tool of a name.
func (f *file) owner(of string) func(tool string) string {
	return func(tool string) string {
		if f == nil || f.Servers[of] != nil && f.Servers[of].Pins[at(Tool, tool)] != nil {
			return ""
		}
		for _, key := range slices.Sorted(maps.Keys(f.Servers)) {
			if f.Servers[key].Pins[at(Tool, tool)] != nil {
				return key
			}
		}
		return ""
	}
}

// Refresh reads the file again if another process has changed it. events are the approvals since. If the file
// can't be read any more, what was read before holds; err says why.
func (s *Store) Refresh() (changed bool, events []Event, err error) {
	info, _ := os.Stat(s.file)
	s.mu.Lock()
	same := s.current != nil && atomicfile.Unchanged(info, s.info)
	s.mu.Unlock()
	if !same {
		_, err = s.read()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == nil { // it was never read
		err = nil
	}
	before := s.seen
	if s.current == before {
		return false, nil, err
	}
	if s.seen = s.current; before == nil {
		return true, nil, err
	}
	for name, sv := range s.current.Servers {
		for key, p := range sv.Pins {
			kind, own, _ := strings.Cut(key, " ")
			for _, v := range p.Variants {
				old := (*variant)(nil)
				if b := before.Servers[name]; b != nil && b.Pins[key] != nil {
					old = b.Pins[key].find(v.SHA256)
				}
				if !v.Approved.IsZero() && v.By != firstContact && (old == nil || old.Approved.IsZero()) {
					events = append(events, Event{Server: name, Kind: Kind(kind), Name: own, State: Approved, SHA256: v.SHA256, By: v.By})
				}
			}
		}
	}
	return true, events, err
}

// read reads the file. It returns the whole and keeps it without the texts, if nothing was kept meanwhile.
func (s *Store) read() (*file, error) {
	s.mu.Lock()
	reads := s.reads
	s.mu.Unlock()
	f, info, err := s.load()
	if err == nil {
		s.keep(f, info, func() bool { return reads == s.reads })
	}
	return f, err
}

// load reads the file. info is nil if there is none.
func (s *Store) load() (f *file, info os.FileInfo, err error) {
	f = &file{}
	info, err = os.Stat(s.file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &file{Version: version, Servers: map[string]*server{}}, nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, nil, fmt.Errorf("%w: run the command as the user who runs the gateway, such as with sudo -u", err)
	case err == nil && (!info.Mode().IsRegular() || info.Size() > maxFile):
		err = errors.New("it is no file of pins")
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(s.file)
	}
	if err == nil {
		err = json.Unmarshal(data, f)
	}
	if f.Version > version { // its approvals must not be removed
		return nil, nil, fmt.Errorf("%s was made by a newer foldgate (version %d, this one knows up to %d): use that version, or name another state_dir", s.file, f.Version, version)
	} else if err == nil && f.Version != version {
		err = fmt.Errorf("its version is %d, and this foldgate knows %d", f.Version, version)
	} else if err == nil && f.Servers == nil {
		err = errors.New("it has no servers")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s can't be read: %w; restore it, or remove it: then what servers give next is approved", s.file, err)
	}
	for _, sv := range f.Servers {
		if sv.Contacts == nil {
			sv.Contacts = map[string]time.Time{}
		}
		if sv.Pins == nil {
			sv.Pins = map[string]*pin{}
		}
	}
	return f, info, nil
}

// keep remembers f without its texts, if it is the latest.
func (s *Store) keep(f *file, info os.FileInfo, latest func() bool) {
	now := &file{Servers: map[string]*server{}}
	for name, sv := range f.Servers {
		kept := &server{Contacts: maps.Clone(sv.Contacts), Pins: map[string]*pin{}}
		now.Servers[name] = kept
		for key, p := range sv.Pins {
			copied := *p
			copied.Variants = nil
			for _, v := range p.Variants {
				bare := *v
				bare.Text = nil
				copied.Variants = append(copied.Variants, &bare)
			}
			kept.Pins[key] = &copied
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !latest() {
		return
	}
	s.current, s.info = now, info
	s.reads++
	if s.seen == nil {
		s.seen = now
	}
}

// update changes the file, alone of all processes. change reports whether it changed anything.
func (s *Store) update(ctx context.Context, change func(*file) bool) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	unlock, err := filelock.Wait(ctx, s.file+".lock")
	if err != nil {
		return s.cannotWrite(err)
	}
	defer unlock()
	f, info, err := s.load()
	if err != nil {
		return err
	}
	s.keep(f, info, always) // change changes f
	if !change(f) {
		return nil
	}
	if err := atomicfile.Write(s.file, rawjson.Marshal(f), 0o600); err != nil {
		return s.cannotWrite(err)
	}
	if info, err = os.Stat(s.file); err != nil {
		return err
	}
	s.keep(f, info, always)
	return nil
}

// cannotWrite adds the file and the remedy to an error of the file system.
func (s *Store) cannotWrite(err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		return err
	}
	return fmt.Errorf("%s can't be written: %w; make room on the disk, and see that foldgate can write it", s.file, err)
}

func always() bool { return true }

// Definition is what is pinned of a tool, a prompt or the instructions.
type Definition struct {
	Name   string
	Text   json.RawMessage // canonical
	SHA256 string          // of Text, in hexadecimal digits
}

// Define returns the definition in an item of a list, or in {"instructions":…}.
func Define(k Kind, raw []byte) Definition {
	d := Definition{Text: canonical(rawjson.DeleteFunc(raw, func(m rawjson.Member) bool { return !slices.Contains(members[k], m.Name()) }))}
	d.Name, _ = rawjson.GetString(raw, "name")
	sum := sha256.Sum256(d.Text)
	d.SHA256 = hex.EncodeToString(sum[:])
	return d
}

// members are the parts of a definition that a model reads.
var members = map[Kind][]string{
	Tool:         {"name", "title", "description", "inputSchema", "outputSchema", "annotations"},
	Prompt:       {"name", "title", "description", "arguments"},
	Instructions: {"instructions"},
}
