package pins

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Pin is a definition as somebody who approves sees it.
type Pin struct {
	Server    string    `json:"server"`
	Kind      Kind      `json:"kind"`
	Name      string    `json:"name,omitempty"` // as the server writes it; "" for the instructions
	State     State     `json:"state"`
	FirstSeen time.Time `json:"first_seen"`        // the name
	Seen      time.Time `json:"seen"`              // this definition
	Approved  time.Time `json:"approved,omitzero"` // the previous definition, if this one is not
	By        string    `json:"by,omitempty"`      // who approved that: firstContact, or a user of the machine
	SHA256    string    `json:"sha256"`
	Warnings  []string  `json:"warnings,omitempty"` // of the scanner
	// Was is the definition that was approved last, Is this one; nil if the text is not kept.
	Was json.RawMessage `json:"-"`
	Is  json.RawMessage `json:"-"`
}

// List returns the pins of all servers, sorted by server, kind and name: those that wait for an approval,
// and of the other names the definition that was approved last.
func (s *Store) List() (all []Pin, err error) {
	f, err := s.read()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(f.Servers)) {
		sv, owner := f.Servers[name], f.owner(name)
		for _, key := range slices.Sorted(maps.Keys(sv.Pins)) {
			p := sv.Pins[key]
			kind, own, _ := strings.Cut(key, " ")
			one := Pin{Server: name, Kind: Kind(kind), Name: own, FirstSeen: p.FirstSeen}
			last := (*variant)(nil)
			for _, v := range p.Variants {
				if !v.Approved.IsZero() && (last == nil || !v.Approved.Before(last.Approved)) {
					last = v
				}
			}
			if last != nil {
				one.Approved, one.By, one.Was = last.Approved, last.By, last.Text
			}
			show := func(v *variant, state State) {
				shown := one
				shown.State, shown.Seen, shown.SHA256, shown.Is, shown.Warnings = state, v.Seen, v.SHA256, v.Text, Scan(v.Text, owner)
				all = append(all, shown)
			}
			waiting := slices.DeleteFunc(slices.Clone(p.Variants), func(v *variant) bool { return p.Gone || !v.Approved.IsZero() })
			for _, v := range waiting {
				show(v, p.state(v.SHA256))
			}
			switch {
			case len(waiting) > 0 || last == nil:
			case p.Gone:
				show(last, Gone)
			default:
				show(last, Approved)
			}
		}
	}
	return all, nil
}

// Approve approves the definitions of pins as List returned them, and forgets those that are gone. by is
// who does it. It returns those that made a difference. It holds for all processes on the state directory
// when it returns, and survives them; the others notice it within 4 seconds.
func (s *Store) Approve(ctx context.Context, by string, pins []Pin) (done []Pin, err error) {
	err = s.update(ctx, func(f *file) bool {
		for _, one := range pins {
			sv := f.Servers[one.Server]
			if sv == nil || sv.Pins[at(one.Kind, one.Name)] == nil {
				continue
			}
			p := sv.Pins[at(one.Kind, one.Name)]
			if v := p.find(one.SHA256); one.State == Gone && p.Gone {
				delete(sv.Pins, at(one.Kind, one.Name))
				done = append(done, one)
			} else if v != nil && v.Approved.IsZero() {
				v.Approved, v.By = time.Now().UTC().Truncate(time.Second), by
				done = append(done, one)
			}
		}
		return len(done) > 0
	})
	return done, err
}

// Title returns the name of p for people: that of a tool or prompt, or "instructions".
func (p Pin) Title() string { return cmp.Or(p.Name, string(p.Kind)) }

// Diff returns how p differs from the definition that was approved last, line by line. A line begins with
// "+ " if it is new, with "- " if it is gone, else with two spaces. Lines may hold any characters but line
// breaks: a terminal needs them escaped.
func (p Pin) Diff() (lines []string) {
	if p.Is == nil {
		return []string{"  (the definition is too large to be kept)"}
	}
	text := func(v []byte) (all []byte) {
		for _, line := range flatten(nil, "", v) {
			all = append(append(all, strings.ReplaceAll(line, "\n", `\n`)...), '\n') // a name can have any character
		}
		return all
	}
	for line := range strings.Lines(string(diff.Diff("was", text(p.Was), "is", text(p.Is)))) {
		lines = append(lines, line[:1]+" "+strings.TrimSuffix(line[1:], "\n"))
	}
	lines = lines[min(3, len(lines)):] // the heads
	return slices.DeleteFunc(lines, func(line string) bool { return line[0] == '@' })
}

// flatten returns a line for each value in v, with its path, and for each line of a text.
func flatten(lines []string, path string, v []byte) []string {
	before := len(lines)
	switch rawjson.KindOf(v) {
	case rawjson.Object:
		for m := range rawjson.Members(v) {
			lines = flatten(lines, strings.TrimPrefix(path+"."+m.Name(), "."), m.Value)
		}
	case rawjson.Array:
		i := 0
		for e := range rawjson.Elements(v) {
			lines = flatten(lines, fmt.Sprintf("%s[%d]", path, i), e)
			i++
		}
	case rawjson.String:
		for line := range strings.Lines(rawjson.Unquote(v) + "\n") {
			lines = append(lines, path+": "+strings.TrimSuffix(line, "\n"))
		}
	}
	if len(lines) == before && len(v) > 0 { // a scalar, or an empty object or array
		lines = append(lines, path+": "+string(v))
	}
	return lines
}
