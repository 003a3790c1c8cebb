package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// tool is one entry of tools/list with the code behind it.
type tool struct {
	name        string
	description string
	properties  string // JSON members of inputSchema.properties
	required    string // JSON elements of inputSchema.required
	run         func(*Server, context.Context, *arguments) (string, error)
}

// Definitions are paid for by every session, in tokens: a property whose name
// says it all has no description.
var tools = []tool{
	{
		name:        "read_file",
		description: "Read a text file, whole or from start_line to end_line (1-based, inclusive).",
		properties:  `"path":{"type":"string"},"start_line":{"type":"integer","minimum":1},"end_line":{"type":"integer","minimum":1}`,
		required:    `"path"`,
		run:         (*Server).readFile,
	},
	{
		name:        "list_directory",
		description: "List a directory: subdirectories end in /, links in @, files show their size in bytes.",
		properties:  `"path":{"type":"string","default":"."}`,
		run:         (*Server).listDirectory,
	},
	{
		name:        "search_files",
		description: "Find files by glob, e.g. *.go (at any depth) or src/**/*.{ts,tsx}. Skips what .gitignore excludes.",
		properties:  `"pattern":{"type":"string"},"path":{"type":"string","default":"."}`,
		required:    `"pattern"`,
		run:         (*Server).searchFiles,
	},
	{
		name:        "grep",
		description: "Find lines by RE2 regular expression in a file or directory. Skips binary files and what .gitignore excludes.",
		properties: `"pattern":{"type":"string"},"path":{"type":"string","default":"."},` +
			`"glob":{"type":"string","description":"Only files that match, e.g. *.go"},` +
			`"context":{"type":"integer","minimum":0,"maximum":20,"default":0,"description":"Lines around a match"},` +
			`"max_matches":{"type":"integer","minimum":1,"maximum":1000,"default":100},"ignore_case":{"type":"boolean","default":false}`,
		required: `"pattern"`,
		run:      (*Server).grep,
	},
}

// Tools returns the tool definitions: the array that tools/list carries. It is
// the same on every call.
func (s *Server) Tools() json.RawMessage {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, t := range tools {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%s,"description":%s,"inputSchema":{"type":"object","properties":{%s},"required":[%s],"additionalProperties":false},`+
			`"annotations":{"readOnlyHint":true,"openWorldHint":false}}`,
			rawjson.Quote(t.name), rawjson.Quote(t.description), t.properties, t.required)
	}
	b.WriteByte(']')
	return b.Bytes()
}

// maxArguments bounds what a call may bring, so that a pattern can't cost much.
const maxArguments = 64 << 10

// arguments reads the arguments of one call. Its getters collect faults
// instead of failing one by one, and note which names the tool knows; err,
// called after the last getter, reports everything at once.
type arguments struct {
	values map[string]json.RawMessage
	order  []string // names as they came, for the error
	known  []string
	faults []string
}

func newArguments(raw json.RawMessage) *arguments {
	a := &arguments{values: map[string]json.RawMessage{}}
	raw = rawjson.Trim(raw)
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return a
	case len(raw) > maxArguments:
		a.faults = append(a.faults, fmt.Sprintf("arguments are %d bytes, the limit is %d", len(raw), maxArguments))
		return a
	case !rawjson.Valid(raw, 64) || rawjson.KindOf(raw) != rawjson.Object:
		a.faults = append(a.faults, "arguments must be a JSON object")
		return a
	}
	rawjson.Members(raw, func(m rawjson.Member) bool {
		name := m.Name()
		if _, again := a.values[name]; !again {
			a.order = append(a.order, name)
		}
		a.values[name] = m.Value
		return true
	})
	return a
}

// get returns the value of name; null counts as absent.
func (a *arguments) get(name string) (json.RawMessage, bool) {
	a.known = append(a.known, name)
	v, ok := a.values[name]
	return v, ok && rawjson.KindOf(v) != rawjson.Null
}

// required returns a string that must be there and not be empty.
func (a *arguments) required(name string) string {
	before := len(a.faults)
	s := a.text(name, "")
	if s == "" && len(a.faults) == before {
		a.faults = append(a.faults, fmt.Sprintf("%q is required", name))
	}
	return s
}

// text returns an optional string.
func (a *arguments) text(name, absent string) string {
	v, ok := a.get(name)
	if !ok {
		return absent
	}
	if rawjson.KindOf(v) != rawjson.String {
		a.faults = append(a.faults, fmt.Sprintf("%q must be a string", name))
		return absent
	}
	return rawjson.Unquote(v)
}

// integer returns an optional integer between low and high.
func (a *arguments) integer(name string, absent, low, high int) int {
	v, ok := a.get(name)
	if !ok {
		return absent
	}
	var f float64
	switch {
	case rawjson.KindOf(v) != rawjson.Number || json.Unmarshal(v, &f) != nil || f != float64(int(f)):
		a.faults = append(a.faults, fmt.Sprintf("%q must be an integer", name))
	case f < float64(low) || f > float64(high):
		a.faults = append(a.faults, fmt.Sprintf("%q must be between %d and %d", name, low, high))
	default:
		return int(f)
	}
	return absent
}

// boolean returns an optional boolean, false if absent.
func (a *arguments) boolean(name string) bool {
	v, ok := a.get(name)
	if ok && rawjson.KindOf(v) != rawjson.True && rawjson.KindOf(v) != rawjson.False {
		a.faults = append(a.faults, fmt.Sprintf("%q must be true or false", name))
	}
	return ok && rawjson.KindOf(v) == rawjson.True
}

// err returns everything that is wrong with the arguments, in one error.
func (a *arguments) err() error {
	faults := a.faults
	var unknown []string
	for _, name := range a.order {
		if !slices.Contains(a.known, name) {
			unknown = append(unknown, display(name))
		}
	}
	if len(unknown) > 0 {
		faults = append(faults, fmt.Sprintf("unknown %s %s (known: %s)",
			plural(len(unknown), "argument", "arguments"), strings.Join(unknown, ", "), strings.Join(a.known, ", ")))
	}
	if len(faults) == 0 {
		return nil
	}
	return errors.New("invalid arguments: " + strings.Join(faults, "; "))
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
