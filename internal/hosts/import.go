package hosts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/hosts/spelling"
)

// Importer turns the servers of hosts into upstreams of one foldgate configuration.
type Importer struct {
	// Config is the text of the configuration. Import adds upstreams to it.
	Config []byte
	// File is the path of the configuration, for errors; "" if it has none.
	File string
	// Values are the variables of the environment file, by name. Import adds secrets to them.
	Values map[string]string
	// Secret reports whether a text holds a secret, beside those that have a telling name.
	Secret func(text string) bool
	// Usable, if it is not nil, says why foldgate could not start with a configuration and these variables. A
	// server that is the reason stays in its host.
	Usable func(config []byte, values map[string]string) error
	// Projects chooses the projects whose servers are imported, too, from a file of the user.
	Projects Projects
	// Dir is where hosts start the servers of a project's file; "" for a file of the user.
	Dir string

	known map[string]string // the upstreams' keys by identity
}

// Imported tells what became of one server of a host.
type Imported struct {
	Name    string
	Project string   // the directory of its project, "" if it is the user's
	Entry   []string // where it stands, for [Host.Connect]
	Key     string   // the upstream that it is now; "" if the host keeps it
	// Note is the reason why the host keeps it, "" for an imported server.
	Note string
	Twin bool     // the upstream was there already
	Lost []string // settings that foldgate has no place for
}

// server is a server of a host. Its texts are values: variables are still names.
type server struct {
	command []string
	url     string
	cwd     string
	env     map[string]string
	headers map[string]string
	allow   []string
	deny    []string
	lost    []string
}

// identity is the same for two servers with the same program, arguments and environment, or with
// the same address and headers.
func (s server) identity() string {
	text, _ := json.Marshal([]any{s.command, strings.TrimSuffix(s.url, "/"), s.cwd, s.env, s.headers}) // texts only
	return string(text)
}

// Import adds the servers in the host's file to the configuration. The caller takes those with a
// Key out of the host by [Host.Connect].
func (im *Importer) Import(h Host, file string) ([]Imported, error) {
	c, _, err := h.open(file)
	if err != nil {
		return nil, err
	}
	all, err := h.servers(c.Before, im.Projects)
	if err != nil {
		return nil, c.fault(err)
	}
	if err := im.learn(); err != nil {
		return nil, err
	}
	var done []Imported
	for _, l := range all {
		if l.name() == Entry {
			continue
		}
		in := Imported{Name: l.name(), Entry: l.entry, Lost: l.server.lost, Project: h.projectOf(l)}
		s, err := im.placed(h, l), l.err
		if err == nil {
			err = im.runnable(s)
		}
		if err != nil {
			in.Note = err.Error()
			done = append(done, in)
			continue
		}
		id := im.resolved(s).identity()
		if in.Key, in.Twin = im.known[id]; !in.Twin {
			config, values := im.Config, maps.Clone(im.Values)
			if in.Key, err = im.key(in.Name); err != nil {
				return nil, err
			}
			if im.Config, err = (yamlSyntax{}).set(im.Config, entry{"upstreams", in.Key}, im.upstream(in.Key, s)); err != nil {
				return nil, fmt.Errorf("%s: %w", cmp.Or(im.File, "the configuration"), err)
			}
			if im.Usable != nil {
				err = im.Usable(im.Config, im.Values)
			}
			if err != nil {
				im.Config, im.Values = config, values
				in.Key, in.Note = "", err.Error()
			} else {
				im.known[id] = in.Key
			}
		}
		done = append(done, in)
	}
	return done, nil
}

// placed returns a server with the directory in which it has to be started.
func (im *Importer) placed(h Host, l listed) server {
	s, dir := l.server, cmp.Or(h.projectOf(l), im.Dir)
	if dir != "" && s.cwd == "" && slices.ContainsFunc(s.command, func(arg string) bool { return beside(dir, arg) }) {
		s.cwd = dir
	}
	return s
}

// projectOf returns the directory of the project that a server in a user's file is of, "" for none.
func (h Host) projectOf(l listed) string {
	if len(l.table()) > len(h.table()) {
		return l.entry[1]
	}
	return ""
}

// beside reports whether an argument names a file from a project's directory.
func beside(dir, arg string) bool {
	_, err := os.Stat(filepath.Join(dir, arg))
	return err == nil && arg != "" && !filepath.IsAbs(arg)
}

// learn reads the upstreams that the configuration has.
func (im *Importer) learn() error {
	im.known = map[string]string{}
	config, err := yamlSyntax{}.decode(im.Config)
	if err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(im.File, "the configuration"), err)
	}
	for key, v := range lookup(config, []string{"upstreams"}) {
		fields, _ := v.(map[string]any)
		f := settings{fields: fields} // the gateway tells what is wrong
		s := server{command: f.texts("command"), env: f.table("env"), headers: f.table("headers"), url: f.text("url"), cwd: f.text("cwd")}
		im.known[im.resolved(s).identity()] = key
	}
	return nil
}

// reference matches what the configuration replaces.
var reference = regexp.MustCompile(`\$\$|\$\{[^}]*\}`)

// resolved returns s with the values of its variables.
func (im *Importer) resolved(s server) server {
	return s.with(func(t string) string {
		return reference.ReplaceAllStringFunc(t, func(m string) string {
			if m == "$$" {
				return "$"
			}
			name := m[2 : len(m)-1]
			if v, ok := im.Values[name]; ok {
				return v
			}
			return os.Getenv(name)
		})
	})
}

// with returns s with its texts as change makes them.
func (s server) with(change func(text string) string) server {
	s.command = slices.Clone(s.command)
	for i := range s.command {
		s.command[i] = change(s.command[i])
	}
	s.url, s.cwd = change(s.url), change(s.cwd)
	for _, m := range []*map[string]string{&s.env, &s.headers} {
		all := map[string]string{}
		for k, v := range *m {
			all[k] = change(v)
		}
		*m = all
	}
	return s
}

// read understands a server in any host's spelling, with ${NAME} for variables as in foldgate's
// configuration. It fails for a server that foldgate can't be given.
func (h Host) read(fields map[string]any) (s server, err error) {
	f := settings{fields: fields}
	s = f.spelled()
	if fields["disabled"] == true || fields["enabled"] == false {
		return s, fmt.Errorf("it is turned off")
	}
	kind := cmp.Or(f.text("transport"), f.text("type"))
	switch kind {
	case "", "stdio", "local", "remote", "http", "streamable-http", "streamable_http", "streamableHttp", "sse":
	default:
		return s, fmt.Errorf("its type is %.40q; foldgate starts programs and calls streamable HTTP and HTTP+SSE", kind)
	}
	if len(f.texts("env_keys")) > 0 {
		return s, fmt.Errorf("its secrets are in the keyring of %s", h.Title)
	}
	bearer, headers, variables := f.text("bearer_token_env_var"), f.table("env_http_headers"), f.texts("env_vars")
	if f.err != nil {
		return s, f.err
	}
	s = s.with(func(text string) string {
		if err == nil {
			text, err = h.variables(text)
		}
		return text
	})
	named := func(name string) string {
		if err == nil && !variableName.MatchString(name) {
			err = fmt.Errorf("it has another text where %s expects the name of a variable", h.Title)
		}
		return "${" + name + "}"
	}
	if bearer != "" {
		s.headers["Authorization"] = "Bearer " + named(bearer)
	}
	for header, name := range headers {
		s.headers[header] = named(name)
	}
	for _, name := range variables {
		s.env[name] = named(name)
	}
	if err == nil && (len(s.command) == 0) == (s.url == "") {
		err = fmt.Errorf("it has no command and no address, or both")
	}
	return s, err
}

// settings are the settings of a server. Their values have any kind.
type settings struct {
	fields map[string]any
	err    error // names a setting of the wrong kind
}

// spelled returns the server with its texts as the host has them.
func (f *settings) spelled() server {
	s := server{env: map[string]string{}, headers: map[string]string{}}
	var args []string
	for _, key := range slices.Sorted(maps.Keys(f.fields)) {
		switch spelling.Keys[key] {
		case "command":
			if _, isList := f.fields[key].([]any); isList {
				s.command = f.texts(key)
			} else if text := f.text(key); text != "" {
				s.command = []string{text}
			}
		case "args":
			args = f.texts(key)
		case "url":
			s.url = cmp.Or(f.text(key), s.url)
		case "cwd":
			s.cwd = f.text(key)
		case "env":
			s.env = f.table(key)
		case "headers":
			s.headers = f.table(key)
		case "allow":
			s.allow = f.texts(key)
		case "deny":
			s.deny = f.texts(key)
		case "switch":
			if _, ok := f.fields[key].(bool); !ok {
				f.wrong(key, "true or false")
			}
		case "", "timeout":
			s.lost = append(s.lost, key)
		}
	}
	switch {
	case len(s.command) > 0:
		s.command = append(s.command, args...)
	case len(args) > 0: // they are no command
		s.lost = append(s.lost, "args")
	}
	return s
}

// wrong notes that a setting has not the kind that foldgate knows. null is an absent setting.
func (f *settings) wrong(key, kind string) {
	if f.err == nil && f.fields[key] != nil {
		f.err = fmt.Errorf("its %s is not %s: correct it there", key, kind) // the value may be a secret
	}
}

func (f *settings) text(key string) string {
	text, ok := f.fields[key].(string)
	if !ok {
		f.wrong(key, "a text")
	}
	return text
}

func (f *settings) texts(key string) (list []string) {
	items, ok := f.fields[key].([]any)
	for _, item := range items {
		text, is := scalar(item)
		list, ok = append(list, text), ok && is
	}
	if !ok {
		f.wrong(key, "a list of texts")
	}
	return list
}

func (f *settings) table(key string) map[string]string {
	fields, ok := f.fields[key].(map[string]any)
	m := map[string]string{}
	for k, v := range fields {
		text, is := scalar(v)
		m[k], ok = text, ok && is
	}
	if !ok {
		f.wrong(key, "a table of texts")
	}
	return m
}

// scalar returns the text of a value. Hosts also pass numbers, true and false on as texts; a fraction may be
// spelled in another way than in the file.
func scalar(v any) (text string, ok bool) {
	switch v.(type) {
	case string, bool, json.Number, int64, uint64:
		return fmt.Sprint(v), true
	}
	return "", false
}

var (
	hostVariable = regexp.MustCompile(`\$\{([^}]*)\}|\{(env|file):([^}]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// variables rewrites the variables of a host's text as ${NAME}, and $ as $$.
func (h Host) variables(text string) (out string, err error) {
	at := 0
	plain := func(t string) string { return strings.ReplaceAll(t, "$", "$$") }
	for _, m := range hostVariable.FindAllStringSubmatchIndex(text, -1) {
		whole := text[m[0]:m[1]]
		braces := strings.HasPrefix(whole, "{")
		if h.shape.bearer == "" || braces != (h.Name == "opencode") || m[8] >= 0 && h.Name != "gemini" {
			continue // the host has no such variables
		}
		out += plain(text[at:m[0]])
		at = m[1]
		name := strings.TrimLeft(strings.TrimSuffix(whole, "}"), "${")
		name = strings.TrimPrefix(name, "env:")
		if name == "userHome" && !braces {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", err
			}
			out += plain(home)
			continue
		}
		name, fallback, optional := strings.Cut(name, ":-")
		_, set := os.LookupEnv(name)
		switch {
		case !variableName.MatchString(name):
			bare, _, _ := strings.Cut(strings.TrimSuffix(whole, "}"), ":-") // without a text that may be secret
			return "", fmt.Errorf("it uses %s}, which only %s can fill in", bare, h.Title)
		case set:
			out += "${" + name + "}"
		case optional:
			out += plain(fallback)
		default:
			return "", fmt.Errorf("it uses the variable %s, which is not set here: set it and try again", name)
		}
	}
	return out + plain(text[at:]), nil
}

// runnable reports why a server can't be an upstream here: foldgate would not start with it.
func (im *Importer) runnable(s server) error {
	r := im.resolved(s)
	if r.cwd != "" {
		if info, err := os.Stat(r.cwd); err != nil || !info.IsDir() || !filepath.IsAbs(r.cwd) {
			return fmt.Errorf("its working directory %q is no absolute path of a directory", s.cwd)
		}
	}
	if len(r.command) == 0 {
		return nil
	}
	program := r.command[0]
	if r.cwd != "" && strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
		program = filepath.Join(r.cwd, program)
	}
	if _, err := exec.LookPath(program); err != nil {
		shown := (&redactor{secret: im.Secret}).value([]string{"command"}, "", s.command[0]) // it may be a whole command line
		return fmt.Errorf("its program %q can't be run here: install it and import again", shown)
	}
	return nil
}

var notInKey = regexp.MustCompile(`[^A-Za-z0-9_-]+`)

// key returns a new upstream's key for a server's name. It is also the prefix of its tools.
func (im *Importer) key(name string) (string, error) {
	keys, err := yamlSyntax{}.names(im.Config, []string{"upstreams"})
	if err != nil {
		return "", fmt.Errorf("%s: %w", cmp.Or(im.File, "the configuration"), err)
	}
	key := strings.Trim(notInKey.ReplaceAllString(name, "-"), "-_")
	key = cmp.Or(key[:min(len(key), 40)], "server")
	base := key
	for n := 2; slices.Contains(keys, key); n++ {
		key = fmt.Sprintf("%s-%d", base, n)
	}
	return key, nil
}

// upstream returns the configuration of s, with variables in the place of secrets.
func (im *Importer) upstream(key string, s server) object {
	hide := func(text, name string, always bool) string {
		if text == "" || strings.Contains(strings.ReplaceAll(text, "$$", ""), "${") || !always && !telling.MatchString(name) && !im.Secret(name+"="+text) && !im.Secret(text) {
			return text
		}
		return "${" + im.variable(key, name, text) + "}"
	}
	hidden := func(m map[string]string, always bool) (o object) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			o = append(o, field{name, hide(m[name], name, always)})
		}
		return o
	}
	var o object
	if len(s.command) > 0 {
		command := slices.Clone(s.command)
		for i, arg := range command[1:] {
			flag, value, joined := strings.Cut(arg, "=")
			before := strings.TrimLeft(command[i], "-")
			switch {
			case joined && strings.HasPrefix(arg, "-"):
				command[i+1] = flag + "=" + hide(value, strings.TrimLeft(flag, "-"), false)
			case strings.HasPrefix(command[i], "-") && !strings.HasPrefix(arg, "-") && !strings.Contains(command[i], "="):
				command[i+1] = hide(arg, before, false)
			default:
				command[i+1] = hide(arg, fmt.Sprintf("ARG_%d", i+1), false)
			}
		}
		o = append(o, field{"command", command})
	}
	o.add(len(s.url), "url", hide(s.url, "URL", strings.Contains(s.url, "@")))
	o.add(len(s.cwd), "cwd", s.cwd)
	o.add(len(s.env), "env", hidden(s.env, false))
	o.add(len(s.headers), "headers", hidden(s.headers, true))
	var tools object
	tools.add(len(s.allow), "allow", s.allow)
	tools.add(len(s.deny), "deny", s.deny)
	o.add(len(tools), "tools", tools)
	return o
}

// add adds a field if its value has a length.
func (o *object) add(length int, key string, value any) {
	if length > 0 {
		*o = append(*o, field{key, value})
	}
}

// variable returns the name of a variable of the environment file with that text. A text may hold
// $$ for $.
func (im *Importer) variable(key, name, text string) string {
	text = strings.ReplaceAll(text, "$$", "$")
	clean := func(t string) string {
		return strings.Trim(regexp.MustCompile(`[^A-Z0-9]+`).ReplaceAllString(strings.ToUpper(t), "_"), "_")
	}
	short, long := clean(name), clean(key+"_"+name)
	if !variableName.MatchString(short) || !strings.Contains(short, "_") {
		short = long // URL, TOKEN and the like say too little
	}
	if !variableName.MatchString(long) {
		long, short = "SECRET_"+long, "SECRET_"+long
	}
	for n, candidate := 2, short; ; n++ {
		if v, taken := im.Values[candidate]; !taken || v == text {
			im.Values[candidate] = text
			return candidate
		}
		candidate = long
		if n > 2 {
			candidate = fmt.Sprintf("%s_%d", long, n-1)
		}
	}
}

// Diff returns the unified diff of two texts of the configuration, without the secrets of upstreams.
func (im *Importer) Diff(file string, before, after []byte) (string, error) {
	return diffOf(file, before, after, func(text []byte) ([]byte, error) {
		names, err := yamlSyntax{}.names(text, []string{"upstreams"})
		if err != nil {
			return nil, err
		}
		var upstreams []entry
		for _, name := range names {
			upstreams = append(upstreams, entry{"upstreams", name})
		}
		return redactor{secret: im.Secret}.file(yamlSyntax{}, text, upstreams)
	})
}
