package config

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Error is a configuration that can't be used, with every fault found.
type Error struct {
	// File is the path as given, or "the built-in configuration".
	File   string
	Faults []Fault
}

// Error lists the faults, a line each, behind the file's name.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = e.File + ": " + f.Error()
	}
	return strings.Join(lines, "\n")
}

// defaultFile is where [Find] looks when no file is named.
const defaultFile = "foldgate.yaml"

// Find returns the configuration that file names. With file "" it is
// ./foldgate.yaml if that exists, else the built-in defaults.
func Find(file string) (Config, error) {
	if file != "" {
		return Load(file)
	}
	if _, err := os.Stat(defaultFile); err == nil {
		return Load(defaultFile)
	} else if !errors.Is(err, os.ErrNotExist) {
		return Config{}, err
	}
	c := Default()
	dir, err := os.Getwd()
	c.Dir = dir
	return c, err
}

// Load reads a YAML file over the defaults. Unknown keys, duplicate keys,
// unset ${VARIABLES} and impossible values are faults of a [*Error],
// each with its key and line.
func Load(file string) (Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Config{}, &Error{File: file, Faults: []Fault{{Msg: unread(err)}}}
	}
	c, faults := parseConfig(data, os.LookupEnv)
	abs, err := filepath.Abs(file)
	if err != nil {
		return Config{}, err
	}
	c.Dir = filepath.Dir(abs)
	if len(faults) == 0 {
		faults = c.Locate(c.missing())
	}
	if len(faults) > 0 {
		return c, &Error{File: file, Faults: faults}
	}
	return c, nil
}

// unread says why a file could not be read, without its name.
func unread(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "there is no such file"
	}
	var p *os.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return err.Error()
}

// parseConfig decodes and checks one file's text.
func parseConfig(data []byte, env func(string) (string, bool)) (c Config, faults []Fault) {
	c = Default()
	defer func() { // the YAML library gives up on some malformed files this way
		if p := recover(); p != nil {
			faults = []Fault{{Key: "syntax", Msg: fmt.Sprintf("malformed YAML: %v", p)}}
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return c, []Fault{yamlFault(err, nil)}
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			return c, []Fault{{Key: "file", Line: line(doc.Body), Msg: "holds more than one YAML document"}}
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return c, nil // an empty file is the defaults
	}
	lines := map[string]int{}
	faults = expand(body, "", env, lines)
	if len(faults) == 0 {
		faults = misshaped(body, reflect.TypeFor[Config](), "")
	}
	if len(faults) > 0 {
		return c, faults
	}
	if _, given := lines["upstreams"]; given {
		c.Upstreams, c.order = nil, nil
	}
	if err := yaml.NodeToValue(body, &c, yaml.Strict()); err != nil {
		return c, []Fault{yamlFault(err, lines)}
	}
	if c.order == nil {
		c.order = mappingKeys(body, "upstreams")
	}
	c.lines = lines
	return c, c.Locate(c.Validate())
}

// Locate adds to each fault the line of its key, or of the nearest key above.
func (c Config) Locate(faults []Fault) []Fault {
	for i := range faults {
		for key := faults[i].Key; key != "" && faults[i].Line == 0; key = parentKey(key) {
			faults[i].Line = c.lines[key]
		}
	}
	return faults
}

// missing returns a fault for every program, file and directory that c names and
// that is not there. They are looked for when the file is read, so that a
// typing error is told at once and not when the agent needs the tool.
func (c Config) missing() (faults []Fault) {
	if c.Secure() {
		if _, err := c.Certificate(); err != nil {
			faults = append(faults, Fault{Key: "tls", Msg: err.Error()})
		}
	}
	if c.Scrub.Rules != "" {
		if _, err := os.Stat(c.RulesFile()); err != nil {
			faults = append(faults, Fault{Key: "scrub.rules", Msg: fmt.Sprintf("%q: %s", c.RulesFile(), unread(err))})
		}
	}
	for _, key := range c.UpstreamKeys() {
		u, at := c.Upstreams[key], "upstreams."+key
		for i, root := range u.Roots {
			if info, err := os.Stat(c.Path(root)); err != nil || !info.IsDir() {
				faults = append(faults, Fault{Key: fmt.Sprintf("%s.roots[%d]", at, i), Msg: fmt.Sprintf("%q is not a directory", c.Path(root))})
			}
		}
		if u.Cwd != "" {
			if info, err := os.Stat(c.Path(u.Cwd)); err != nil || !info.IsDir() {
				faults = append(faults, Fault{Key: at + ".cwd", Msg: fmt.Sprintf("%q is not a directory", c.Path(u.Cwd))})
			}
		}
		if len(u.Command) == 0 {
			continue
		}
		program := u.Command[0]
		if u.Cwd != "" && strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
			program = filepath.Join(c.Path(u.Cwd), program) // relative to where it will run
		}
		if _, err := exec.LookPath(program); err != nil {
			faults = append(faults, Fault{Key: at + ".command", Msg: fmt.Sprintf("%q can't be run: %v; install it, or name its path", u.Command[0], errors.Unwrap(err))})
		}
	}
	return faults
}

// StatePath returns the state directory as an absolute path.
func (c Config) StatePath() string { return c.Path(c.StateDir) }

// RulesFile returns the path of the user's own scrubbing rules, "" for none.
func (c Config) RulesFile() string { return c.Path(c.Scrub.Rules) }

// InstanceDir returns the state directory of the n-th process, from 1, that
// runs on the same configuration at the same time.
func InstanceDir(stateDir string, n int) string {
	if n == 1 {
		return stateDir
	}
	return filepath.Join(stateDir, fmt.Sprintf("instance-%d", n))
}
