package hosts

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// generator makes files as people write them.
type generator struct{ *rand.Rand }

func (g generator) pick(of ...string) string { return of[g.IntN(len(of))] }

// servers returns up to four names of servers.
func (g generator) servers() []string {
	all := []string{"github", "files", "a b", "x.y", "é", "9", "server-1"}
	g.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	return all[:g.IntN(5)]
}

// jsonc returns a file with servers below key, or without the key if there are none.
func (g generator) jsonc(key string, servers []string) string {
	unit := g.pick("  ", "    ", "\t", " ", "   ")
	inline := g.IntN(6) == 0
	comments := g.IntN(2) == 0
	space := func(depth int) string {
		if inline {
			return g.pick("", " ")
		}
		s := ""
		if comments {
			s = g.pick("", "", " // a, \"{\" b", " /* c */", " /* two\n lines */", "\n\n"+strings.Repeat(unit, depth)+"// above")
		}
		return s + "\n" + strings.Repeat(unit, depth)
	}
	object := func(depth int, members []string) string {
		if len(members) == 0 {
			return g.pick("{}", "{ }", "{"+space(depth-1)+"}")
		}
		b := "{"
		for i, m := range members {
			b += space(depth) + m
			if i < len(members)-1 || !inline && g.IntN(3) == 0 {
				b += ","
			}
		}
		return b + space(depth-1) + "}"
	}
	colon := g.pick(":", ": ", " : ")
	var entries []string
	for _, s := range servers {
		value := g.pick(`{"command": "npx", "args": ["-y", "x"]}`, object(3, []string{`"command"` + colon + `"x\"\\ // no"`, `"env"` + colon + `{"A": "1"}`}), `{"url":"https://x/*y*/"}`)
		entries = append(entries, quote(s)+colon+value)
	}
	top := []string{quote("theme") + colon + `"d\u00e9"`, quote("n") + colon + g.pick("1.0", "1e3", "null", "[1, 2 ]", "12345678901234567890")}
	if len(servers) > 0 || g.IntN(3) == 0 {
		at := g.IntN(len(top) + 1)
		top = slices.Insert(top, at, quote(key)+colon+object(2, entries))
	}
	return g.pick("", "", "\ufeff", "\n") + object(1, top) + g.pick("\n", "", "\n\n")
}

func (g generator) toml(key string, servers []string) string {
	b := g.pick("", "# top\n", "\n") + "model = " + g.pick(`"m"`, "'m'", `"""two
[mcp_servers.no]
"""`) + g.pick("", " # c") + "\n" + g.pick("", "list = [\n  1, # [mcp_servers.x]\n  2,\n]\n")
	for _, s := range servers {
		indent := g.pick("", "", "  ")
		name := tomlKey(s)
		if s != "a b" && s != "x.y" && s != "é" && g.IntN(3) == 0 {
			name = `"` + s + `"`
		}
		b += g.pick("\n", "", "\n# about it\n", "\n\n") + indent + "[" + g.pick("", " ") + key + "." + name + "]" + g.pick("", " # c") + "\n" +
			indent + "command = \"x\"\n" + g.pick("", indent+"args = [\"-y\",\n\"z\"]\n", "\n")
		if g.IntN(2) == 0 {
			b += g.pick("\n", "") + indent + "[" + key + "." + name + ".env]\n" + indent + "A = '#'\n"
		}
	}
	return b + g.pick("", "\n[tui]\nx = 1\n", "\n# end\n", "\n\n", "[[profiles]]\nname=\"a\"")
}

func (g generator) yaml(key string, servers []string) string {
	unit := strings.Repeat(" ", 1+g.IntN(4))
	b := g.pick("", "# top\n", "---\n") + g.pick("A: 1\n", "A: text # c\n\n", "A: |\n  extensions:\n    x: 1\n")
	if len(servers) > 0 {
		b += key + ":" + g.pick("", " # servers") + "\n"
	}
	for _, s := range servers {
		b += g.pick("", "", "\n", unit+"# about\n") + unit + yamlKey(s) + ":\n" + unit + unit + "cmd: " + g.pick("x", `"x # y"`, "'x: y'") + g.pick("", " # c") + "\n" +
			g.pick("", unit+unit+"args:\n"+unit+unit+"- a\n"+unit+unit+"- b\n", unit+unit+"text: |\n"+unit+unit+"  one\n\n"+unit+unit+"  # two\n", unit+unit+"envs: {A: b}\n")
	}
	return b + g.pick("", "B: [1, 2]\n", "\n# end\nB: {c: d}\n", "\n\n")
}

// file returns a random file of the host, and the servers in it.
func (g generator) file(h Host) (text string, servers []string) {
	servers = g.servers()
	switch h.syntax.(type) {
	case tomlSyntax:
		text = g.toml(h.table()[0], servers)
	case yamlSyntax:
		text = g.yaml(h.table()[0], servers)
	default:
		text = g.jsonc(h.table()[0], servers)
	}
	if g.IntN(4) == 0 {
		text = strings.ReplaceAll(text, "\n", "\r\n")
	}
	return text, servers
}

// inserted reports whether after is before with one text inserted, beside a comma.
func inserted(before, after []byte) bool {
	for range 2 {
		p := 0
		for p < len(before) && p < len(after) && before[p] == after[p] {
			p++
		}
		if p == len(before) || bytes.HasSuffix(after[p:], before[p:]) {
			return true
		}
		if after[p] != ',' {
			// The text may begin as the rest does: look further back.
			for q := p; q >= 0; q-- {
				if bytes.HasSuffix(after[q:], before[q:]) {
					return true
				}
			}
			return false
		}
		after = replace(after, p, p+1, "")
	}
	return false
}

func dense(text []byte) []byte { return bytes.Join(bytes.Fields(text), nil) }

// For every generated file of every host: connect changes nothing but its entry, disconnect gives
// the same bytes, and after a change by the host it takes out the entry only.
func TestProperties(t *testing.T) {
	for i, h := range hosts {
		t.Run(h.Name, func(t *testing.T) {
			home(t)
			for seed := range uint64(40) {
				g := generator{rand.New(rand.NewPCG(seed, uint64(i)))}
				text, servers := g.file(h)
				before := []byte(text)
				file := filepath.Join(t.TempDir(), "f")
				write(t, file, before)
				names, err := h.syntax.names(before, h.table())
				if err != nil || !reflect.DeepEqual(names, servers) && len(names)+len(servers) > 0 {
					t.Fatalf("seed %d: names %q, %v, want %q\n%s", seed, names, err, servers, text)
				}
				connect(t, h, file, started)
				after := get(t, file)
				if !inserted(before, after) && !inserted(dense(before), dense(after)) { // { } opens
					t.Fatalf("seed %d: more than an entry was inserted:\n%s\n-----\n%s", seed, before, after)
				}
				connect(t, h, file, started) // again: nothing changes
				if !bytes.Equal(get(t, file), after) {
					t.Fatalf("seed %d: connecting again changed the file:\n%s\n----\n%s", seed, after, get(t, file))
				}
				if !disconnect(t, h, file) || !bytes.Equal(get(t, file), before) {
					t.Fatalf("seed %d: disconnect left\n%s\nof\n%s", seed, get(t, file), before)
				}

				// All servers are moved; then the host rewrites its file.
				connect(t, h, file, started, servers...)
				moved := get(t, file)
				if names, _ := h.syntax.names(moved, h.table()); !slices.Equal(names, []string{Entry}) {
					t.Fatalf("seed %d: %q is left\n%s", seed, names, moved)
				}
				changed := append(bytes.Clone(moved), newline(moved)...)
				write(t, file, changed)
				if disconnect(t, h, file) {
					t.Fatalf("seed %d: a changed file counts as unchanged", seed)
				}
				was, _ := h.syntax.decode(before)
				is, err := h.syntax.decode(get(t, file))
				if err != nil {
					t.Fatal(err)
				}
				if len(servers) == 0 { // an empty mapping may be gone, or left
					strip(was, h.own())
					strip(is, h.own())
				}
				if !reflect.DeepEqual(was, is) {
					t.Fatalf("seed %d: disconnect left\n%s\nof\n%s\nafter\n%s", seed, get(t, file), before, changed)
				}
				_ = os.Remove(file)
			}
		})
	}
}

// Every generated file can be edited: the safety check refuses none of them.
func TestEdits(t *testing.T) {
	for i, h := range hosts {
		e, err := h.entry(started)
		if err != nil {
			t.Fatal(err)
		}
		for seed := range uint64(200) {
			text, servers := generator{rand.New(rand.NewPCG(seed, uint64(100+i)))}.file(h)
			before := []byte(text)
			after, err := h.syntax.set(before, h.own(), e)
			if err == nil {
				err = h.verify(before, after, []entry{h.own()}, e)
			}
			if names, _ := h.syntax.names(after, h.table()); err != nil || !slices.Equal(names, append(servers, Entry)) {
				t.Fatalf("%s, seed %d: %v, names %q of\n%s", h.Name, seed, err, names, after)
			}
			c := Change{File: "f", Before: before, After: after, host: h}
			if text, err := c.Diff(func(string) bool { return false }); err != nil || !strings.Contains(text, Entry) {
				t.Fatalf("%s, seed %d: %v, the difference\n%s\nof\n%s", h.Name, seed, err, text, after)
			}
		}
	}
}

// A file that can't be parsed is left alone. The error names the line and the remedy.
func TestUnreadable(t *testing.T) {
	for _, h := range hosts {
		home(t)
		for name, text := range map[string]string{
			"no end": "{\n  \"a\": {\n", "not an object": "\n[1, 2", "text": "a:\n\tb: [", "twice": "{\"" + h.table()[0] + "\": {},\n\"" + h.table()[0] + "\": {}}",
			"servers are a list": fmt.Sprintf("{\n%q: []}", h.table()[0]), "a = b = c": "a = 1\nb = = 2\n", "two documents": "a: [}\n",
		} {
			file := put(t, []byte(text))
			c, err := h.Connect(file, started, nil)
			if err == nil {
				t.Errorf("%s: %s: no error, but\n%s", h.Name, name, c.After)
				continue
			}
			for _, want := range []string{file, "line ", "Nothing was changed", "connect " + h.Name + " --print"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %s: %v; want %q in it", h.Name, name, err, want)
				}
			}
			if got := get(t, file); string(got) != text {
				t.Errorf("%s: %s: the file is changed: %s", h.Name, name, got)
			}
		}
	}
}

// Whatever a file holds: an edit is refused or exact, and undone byte for byte.
func FuzzConnect(f *testing.F) {
	for i, h := range hosts {
		for seed := range uint64(3) {
			text, _ := generator{rand.New(rand.NewPCG(seed, 2))}.file(h)
			f.Add(uint8(i), text)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, text string) {
		h := hosts[int(i)%len(hosts)]
		e, err := h.entry(started)
		if err != nil {
			t.Fatal(err)
		}
		after, err := h.syntax.set([]byte(text), h.own(), e)
		if err != nil || strings.Contains(text, "fold") || h.verify([]byte(text), after, []entry{h.own()}, e) != nil {
			return
		}
		r := redactor{secret: func(string) bool { return true }, host: true}
		if shown, err := r.file(h.syntax, after, []entry{h.own()}); err != nil || bytes.Contains(shown, []byte("fold gate")) {
			t.Fatalf("%v, an argument is shown:\n%s", err, shown)
		}
		names, err := h.syntax.names(after, h.table())
		if err != nil || !slices.Contains(names, Entry) {
			t.Fatalf("names %q, %v of\n%s", names, err, after)
		}
		gone, err := h.syntax.remove(after, h.own(), false)
		if err == nil && h.verify(after, gone, []entry{h.own()}, nil) == nil {
			if names, err := h.syntax.names(gone, h.table()); err != nil || slices.Contains(names, Entry) {
				t.Fatalf("names %q, %v of\n%s", names, err, gone)
			}
		}
	})
}
