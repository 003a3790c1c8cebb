package hosts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/tailscale/hujson"

	"github.com/foldgate/foldgate/internal/hosts/spelling"
)

// redactor writes servers for people to read: without their secrets, JSON as the file has it, other syntaxes
// as foldgate spells them. Comments in servers are not there.
type redactor struct {
	secret func(text string) bool
	host   bool // a host's file: every environment variable counts as a secret
	found  bool // a secret, in this server
}

// file returns the text of a file with its servers redacted. foldgate's entry and upstreams stay as
// they are if they have no secret.
func (r redactor) file(s syntax, text []byte, servers []entry) ([]byte, error) {
	if j, ok := s.(jsonc); ok {
		return r.inPlace(j, text, servers)
	}
	all, err := s.decode(text)
	if err != nil {
		return nil, err
	}
	for _, e := range servers {
		r.found = r.host && e.name() != Entry
		shown, _ := r.value(nil, "", lookup(all, e.table())[e.name()]).(object)
		if !r.found {
			continue
		}
		if text, err = s.set(text, e, shown); err != nil {
			return nil, err
		}
	}
	return hashComment.ReplaceAllFunc(text, func(c []byte) []byte { return r.comment(c, bytes.Index(c, []byte("#"))+1, "") }), nil
}

var (
	// hashComment matches a line of YAML or TOML that is a comment, slashComment a comment of JSON.
	hashComment  = regexp.MustCompile(`(?m)^[ \t]*#[^\r\n]*`)
	slashComment = regexp.MustCompile(`(?s)//[^\r\n]*|/\*.*?\*/`)
	// disabled matches what a comment has that may be a server's text: a text in quotation marks, or a value.
	disabled = regexp.MustCompile(`["=]|:[ \t]`)
)

// comment redacts the text of a comment that may be a disabled server or has a secret. The first sign bytes of c
// start the comment, and end ends it.
func (r *redactor) comment(c []byte, sign int, end string) []byte {
	if text := string(c[sign:]); r.host && disabled.MatchString(text) || r.hides(nil, "", text) {
		return append(c[:sign:sign], " [REDACTED]"+end...)
	}
	return c
}

// comments redacts the comments of a JSON file beside the servers of a table.
func (r *redactor) comments(in *hujson.Extra) {
	*in = slashComment.ReplaceAllFunc(*in, func(c []byte) []byte {
		if c[1] == '*' {
			return r.comment(c, 2, " */")
		}
		return r.comment(c, 2, "")
	})
}

// inPlace redacts the servers of a JSON file where they stand.
func (r redactor) inPlace(j jsonc, text []byte, servers []entry) ([]byte, error) {
	file, err := j.parse(bytes.TrimPrefix(text, bom)) // a copy, which is changed in place
	if err != nil || file.StartOffset < 0 {
		return text, err
	}
	var path []string
	for _, e := range servers { // those of a table follow one another, and are all that it has
		if slices.Equal(path, e.table()) {
			continue
		}
		path = e.table()
		table, _, err := descend(text, file, path)
		if err != nil {
			return nil, err
		}
		o := table.Value.(*hujson.Object)
		r.comments(&o.AfterExtra)
		members := o.Members
		for i := range members {
			for _, v := range []*hujson.Value{&members[i].Name, &members[i].Value} {
				r.comments(&v.BeforeExtra)
				r.comments(&v.AfterExtra)
			}
			name := members[i].Name.Value.(hujson.Literal).String()
			server := hujson.Value{Value: members[i].Value.Value} // without the comments around it
			r.found = name != Entry
			r.node(nil, "", &server)
			if server.Value.Kind() != '{' {
				server.Value = hujson.String("[REDACTED]")
			} else if r.found {
				server.Standardize() // takes its comments out
			}
			members[i].Value.Value = server.Value
		}
	}
	return bytes.TrimSuffix(file.Pack(), []byte("\n")), nil
}

// node redacts the value at path of a server, after another one of its list, and returns its text.
func (r *redactor) node(path []string, before string, v *hujson.Value) (text string) {
	switch n := v.Value.(type) {
	case *hujson.Object:
		for i := range n.Members {
			key := n.Members[i].Name.Value.(hujson.Literal).String()
			r.node(append(path[:len(path):len(path)], key), "", &n.Members[i].Value)
		}
	case *hujson.Array:
		for i := range n.Elements {
			before = r.node(path, before, &n.Elements[i])
		}
	case hujson.Literal:
		text = n.String()
		if k := n.Kind(); (k == '"' || k == '0') && r.hides(path, before, text) {
			r.found = true
			v.Value = hujson.String("[REDACTED]")
		}
	}
	return text
}

// value returns the value at path of a server, after another one of its list.
func (r *redactor) value(path []string, before string, v any) any {
	switch v := v.(type) {
	case map[string]any:
		var o object
		for _, key := range slices.Sorted(maps.Keys(v)) {
			o = append(o, field{key, r.value(append(path[:len(path):len(path)], key), "", v[key])})
		}
		return o
	case []any:
		list := []string{}
		for _, item := range v {
			list = append(list, fmt.Sprint(r.value(path, before, item)))
			before = fmt.Sprint(item)
		}
		return list
	case nil, bool:
		return v
	}
	text := fmt.Sprint(v)
	if r.hides(path, before, text) {
		r.found = true
		return "[REDACTED]"
	}
	switch v.(type) {
	case int64, uint64, json.Number:
		return v
	}
	return text
}

// words match the names of values that are secret.
const words = `token|key|secret|passw|passphrase|pwd|auth|credential|cookie|session|bearer|dsn|connection_?string|(?:\b|_)(?:pat|pass)\b`

var (
	telling = regexp.MustCompile(`(?i)` + words)
	// assigned matches a name with its value, and a password of an address.
	assigned = regexp.MustCompile(`(?i)(?:` + words + `)[\w-]*["']?\s*[=:]\s*[^\s/]|^--(?:headers?|env)=|://[^/\s]*@`)
	// flagged matches an option with the argument after it: a secret, a header, or a variable with its value.
	flagged = regexp.MustCompile(`(?i)(?:^| )-[\w-]*(?:` + words + `)[\w-]* +-?[^ -]|^(?:-[he]|--headers?|--env) .*[=:]`)
	// filled matches what a host fills in, and scheme what may stand before that.
	filled = regexp.MustCompile(`(?i)\$\{(?:(?:env:)?[a-z_]\w*|input:[\w-]+)\}|\{env:[a-z_]\w*\}`)
	scheme = regexp.MustCompile(`(?i)^(?:(?:bearer|basic|token) +)?$`)
)

// hides reports whether a text of a server is a secret.
func (r *redactor) hides(path []string, before, text string) bool {
	variable := variableName.MatchString(text)
	text = filled.ReplaceAllString(text, "")
	if scheme.MatchString(text) {
		return false
	}
	name := ""
	for i, key := range path {
		means := spelling.Keys[key]
		switch {
		case i > 0 || means == "":
			if telling.MatchString(key) {
				return true
			}
		case means == "headers", means == "env" && r.host:
			return true
		case means == "variable", means == "keyring":
			return !variable || r.secret(text)
		}
		name = key
	}
	return flagged.MatchString(before+" "+text) || assigned.MatchString(text) || r.secret(text) || r.secret(name+"="+text)
}
