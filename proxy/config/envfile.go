package config

import (
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// maxEnvFile bounds env_file, in bytes.
const maxEnvFile = 1 << 20

// readEnvFile reads the file that env_file names. Its variables count before those of the environment.
func (d *document) readEnvFile(body ast.Node, dir string) Fault {
	top, ok := body.(*ast.MappingNode)
	if !ok {
		return Fault{}
	}
	for _, entry := range top.Values {
		name, ok := entry.Value.(*ast.StringNode)
		if !ok || entry.Key.String() != "env_file" || name.Value == "" {
			continue
		}
		file := Config{Dir: dir}.Path(name.Value)
		fault := func(msg string) Fault {
			return Fault{Key: "env_file", Line: line(entry.Key), Msg: fmt.Sprintf("%q", file) + msg}
		}
		info, err := os.Stat(file)
		switch {
		case err != nil:
			return fault(": " + readError(err) + "; correct the path, or remove the key")
		case info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows":
			return fault(" is open to other users: run chmod 600 on it")
		case info.Size() > maxEnvFile:
			return fault(" has over 1 MB")
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return fault(": " + readError(err))
		}
		values, err := ParseEnv(string(text))
		if err != nil {
			return fault(": " + err.Error())
		}
		env := d.env
		d.env = func(name string) (string, bool) {
			if v, ok := values[name]; ok {
				return v, true
			}
			return env(name)
		}
	}
	return Fault{}
}

// EnvName matches the name of an environment variable.
var EnvName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// ParseEnv reads NAME=value lines. A value in double quotes has the escapes of a string in Go; any other is
// the rest of its line, without white space around it. Empty lines and lines that start with # are
// skipped. Errors name the line, never the value.
func ParseEnv(text string) (map[string]string, error) {
	values, n := map[string]string{}, 0
	for l := range strings.Lines(strings.TrimPrefix(text, "\ufeff")) {
		n++
		l = strings.TrimSpace(l)
		if l == "" || l[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(l, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || !EnvName.MatchString(name) {
			return nil, fmt.Errorf("line %d: write NAME=value, with letters, digits and _ in the name", n)
		}
		if strings.HasPrefix(value, `"`) {
			plain, err := strconv.Unquote(value)
			if err != nil {
				return nil, fmt.Errorf("line %d: the value of %s has no valid double quotes around it", n, name)
			}
			value = plain
		}
		values[name] = value
	}
	return values, nil
}

// FormatEnv returns one line for [ParseEnv].
func FormatEnv(name, value string) string {
	if value != strings.TrimSpace(value) || strings.HasPrefix(value, `"`) || strings.ContainsAny(value, "\n\r") {
		value = strconv.Quote(value)
	}
	return name + "=" + value + "\n"
}
