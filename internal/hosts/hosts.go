// Package hosts knows where agent hosts keep their MCP servers and how each writes them. It adds
// foldgate to such a file, takes it out again, and reads the servers that are there.
//
// An edit changes the bytes of its own entry and no others: comments, order and indentation stay.
// Each edit is parsed again and compared with the text before it. If anything else differs, the
// edit is refused.
package hosts

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	subagents "github.com/foldgate/foldgate/docs/hosts"
	"github.com/foldgate/foldgate/internal/hosts/spelling"
)

// Entry is the name of foldgate's entry in every host's file.
const Entry = "foldgate"

// Host describes one agent host: the places of its files, their syntax, and its spelling of a server.
type Host struct {
	Name  string // as in the command line, such as "claude-code"
	Title string // as people call it
	// files are the candidates for the host's file, the first that exists counts: of the user, or of the
	// project in {project}. {home}, {config}, {xdg} and {VARIABLE} are replaced, too.
	files   []string
	windows string // the user's file there, "" for one of files
	syntax  syntax
	// projects is the mapping of the user's file that has such a table for each project, by its
	// directory; "" if there is none.
	projects string
	shape    shape
	agents   []string // the candidates for the directory of subagents, if foldgate has one for the host
	// Restart tells how the host reads the changed file.
	Restart string
}

// shape is a host's spelling of a server.
type shape struct {
	local, remote object // the fields before a program or an address
	command       string // the key of the program, "" for "command"
	list          bool   // the program and its arguments are one list
	url           string // the key of an address, "" if the host can't use one
	bearer        string // the Authorization header's form with a variable's name, "" if there is none
	bearerKey     string // instead of a header: the key that takes the variable's name
	token         object // the fields beside a token
	after         object // the fields at the end
	few           object // the fields of a server with few tools
}

// Server is what a host starts or calls: a program with its arguments, or an address.
type Server struct {
	Command []string
	URL     string
	// TokenVariable is the environment variable that holds the bearer token for URL; "" for none.
	TokenVariable string
	// Few says that the server lists few tools, so that a host with a search for tools can load them all.
	Few bool
}

var plain = shape{url: "url", bearer: "Bearer ${env:%s}"}

// hosts are the known hosts, in the order of the documentation.
var hosts = []Host{
	{
		Name: "claude-code", Title: "Claude Code", syntax: jsonc{}, projects: "projects",
		files:   []string{"{CLAUDE_CONFIG_DIR}/.claude.json", "{home}/.claude.json", "{project}/.mcp.json"},
		shape:   shape{local: object{{"type", "stdio"}}, remote: object{{"type", "http"}}, url: "url", bearer: "Bearer ${%s}", few: object{{"alwaysLoad", true}}},
		agents:  []string{"{CLAUDE_CONFIG_DIR}/agents", "{home}/.claude/agents", "{project}/.claude/agents"},
		Restart: "Start a new session of Claude Code; claude mcp list shows the server.",
	}, {
		Name: "claude-desktop", Title: "Claude Desktop", syntax: jsonc{},
		files:   []string{"{config}/Claude/claude_desktop_config.json"},
		Restart: "Quit Claude Desktop and start it again.",
	}, {
		Name: "vscode", Title: "VS Code", syntax: jsonc{},
		files:   []string{"{config}/Code/User/mcp.json", "{project}/.vscode/mcp.json"},
		shape:   shape{local: object{{"type", "stdio"}}, remote: object{{"type", "http"}}, url: "url", bearer: "Bearer ${env:%s}"},
		Restart: "VS Code asks whether it may start the server; MCP: List Servers shows it.",
	}, {
		Name: "cursor", Title: "Cursor", syntax: jsonc{},
		files: []string{"{home}/.cursor/mcp.json", "{project}/.cursor/mcp.json"},
		shape: plain, Restart: "Turn the server on in Cursor's settings, under Tools & MCP.",
	}, {
		Name: "windsurf", Title: "Windsurf", syntax: jsonc{},
		files: []string{"{home}/.codeium/windsurf/mcp_config.json"},
		shape: shape{url: "serverUrl", bearer: "Bearer ${env:%s}"}, Restart: "Refresh the MCP servers in Windsurf's Cascade panel.",
	}, {
		Name: "codex", Title: "Codex", syntax: tomlSyntax{},
		files: []string{"{CODEX_HOME}/config.toml", "{home}/.codex/config.toml", "{project}/.codex/config.toml"},
		shape: shape{url: "url", bearerKey: "bearer_token_env_var"}, Restart: "Start a new session of Codex; codex mcp list shows the server.",
	}, {
		Name: "opencode", Title: "opencode", syntax: jsonc{},
		files:   []string{"{xdg}/opencode/opencode.json", "{xdg}/opencode/opencode.jsonc", "{project}/opencode.json", "{project}/opencode.jsonc"},
		shape:   shape{local: object{{"type", "local"}}, list: true, remote: object{{"type", "remote"}}, url: "url", bearer: "Bearer {env:%s}", token: object{{"oauth", false}}, after: object{{"enabled", true}}},
		agents:  []string{"{xdg}/opencode/agents", "{project}/.opencode/agents"},
		Restart: "Start opencode again; opencode mcp list shows the server.",
	}, {
		Name: "gemini", Title: "Gemini CLI", syntax: jsonc{},
		files: []string{"{home}/.gemini/settings.json", "{project}/.gemini/settings.json"},
		shape: shape{url: "httpUrl", bearer: "Bearer ${%s}"}, Restart: "Start Gemini CLI again; gemini mcp list shows the server.",
	}, {
		Name: "zed", Title: "Zed", syntax: jsonc{},
		files: []string{"{xdg}/zed/settings.json", "{project}/.zed/settings.json"}, windows: "{config}/Zed/settings.json",
		shape: shape{url: "url"}, Restart: "Zed reads the file at once; the agent panel's settings show the server.",
	}, {
		Name: "goose", Title: "Goose", syntax: yamlSyntax{},
		files: []string{"{xdg}/goose/config.yaml"}, windows: "{config}/Block/goose/config/config.yaml",
		shape: shape{
			local: object{{"name", Entry}, {"type", "stdio"}}, command: "cmd", remote: object{{"name", Entry}, {"type", "streamable_http"}}, url: "uri",
			after: object{{"enabled", true}, {"timeout", 300}},
		},
		Restart: "Start a new session of Goose.",
	},
}

// Names returns the names of the known hosts.
func Names() []string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name
	}
	return names
}

// Find returns the host of that name.
func Find(name string) (Host, error) {
	if i := slices.IndexFunc(hosts, func(h Host) bool { return h.Name == name }); i >= 0 {
		return hosts[i], nil
	}
	return Host{}, fmt.Errorf("the host %.80q is not known; there are %s", name, strings.Join(Names(), ", "))
}

// Other returns a host that foldgate does not know. Only Print works with it: it has no file.
func Other(name string) Host {
	return Host{Name: name, Title: name, syntax: jsonc{}, shape: plain}
}

// File returns the path of the host's file: that of the project in dir, or, if dir is "", that of
// the user. The file need not exist. Symbolic links are resolved.
func (h Host) File(dir string) (string, error) {
	files := h.files
	if runtime.GOOS == "windows" && dir == "" && h.windows != "" {
		files = []string{h.windows}
	}
	candidates := places(files, dir)
	if len(candidates) == 0 {
		return "", fmt.Errorf("%s has no file of a project; leave --project out", h.Title)
	}
	first := slices.IndexFunc(candidates, func(c string) bool {
		_, err := os.Stat(c)
		return err == nil
	})
	file := candidates[max(first, 0)]
	if target, err := filepath.EvalSymlinks(file); err == nil {
		return target, nil
	}
	if _, err := os.Lstat(file); err == nil {
		return "", fmt.Errorf("%s is a symbolic link to a file that does not exist; create that file, or remove the link", file)
	}
	return file, nil
}

// Subagent returns the change that installs the definition of foldgate's subagent, for the project in
// dir or, if dir is "", for the user; with remove, the one that removes it. A file with another text
// is left alone.
func (h Host) Subagent(dir string, remove bool) (*Change, error) {
	text, err := subagents.Files.ReadFile(h.Name + "/fold-explorer.md")
	at := places(h.agents, dir)
	if err != nil || len(at) == 0 {
		return nil, fmt.Errorf("foldgate has no subagent for %s; leave --subagent out", h.Title)
	}
	h.syntax = nil // a text without servers
	c := &Change{File: filepath.Join(at[0], "fold-explorer.md"), host: h}
	if c.Before, err = read(c.File); err != nil {
		return nil, err
	}
	c.After = c.Before
	switch same := bytes.Equal(c.Before, text); {
	case remove && same:
		c.After = nil
	case !remove && c.Before == nil:
		c.After = text
	case !remove && !same:
		return nil, fmt.Errorf("%s has another text, and was left as it is: remove it, and try again", c.File)
	}
	return c, nil
}

// Projects chooses projects by their directory.
type Projects func(dir string) bool

// Current chooses the project that the current directory is in: that directory, or the nearest
// above it that has a .git.
func Current() (Projects, error) {
	here, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(here); err == nil {
		here = real // as the hosts see it
	}
	root := here
	for dir := here; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
			root = dir
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return func(dir string) bool { return dir == here || dir == root }, nil
}

// listed is a server in a host's file.
type listed struct {
	entry
	fields map[string]any
	server server
	err    error // why foldgate can't be given it
}

// entry leads to a server in a file: keys, the last one is its name.
type entry []string

func (e entry) name() string    { return e[len(e)-1] }
func (e entry) table() []string { return e[:len(e)-1] }

// servers returns the servers in a host's file, those of the user or of the file's project first.
func (h Host) servers(text []byte, of Projects) ([]listed, error) {
	all, err := h.syntax.decode(text)
	if err != nil {
		return nil, err
	}
	tables := [][]string{h.table()}
	if h.projects != "" {
		dirs, err := h.syntax.names(text, []string{h.projects})
		if err != nil {
			return nil, err
		}
		for _, dir := range dirs {
			if of(dir) {
				tables = append(tables, append([]string{h.projects, dir}, h.table()...))
			}
		}
	}
	var found []listed
	for _, table := range tables {
		names, err := h.syntax.names(text, table)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			l := listed{entry: append(slices.Clone(table), name)}
			l.fields, _ = lookup(all, table)[name].(map[string]any)
			l.server, l.err = h.read(l.fields)
			found = append(found, l)
		}
	}
	return found, nil
}

// Found is what a host's file has.
type Found struct {
	// Server is foldgate's entry, nil if there is none: the one that is called so, or starts such a program.
	Server *Server
	Off    string   // why the entry can't be used as it is, as far as can be told here; "" if it can
	Others []string // the other servers that are turned on, except Kept and Broken
	Kept   []string // those that import can't take, each with the reason
	Broken []string // those that foldgate can't start here, as well
}

// Inspect reads the servers in a host's file as im would, nil if there is no file.
func (h Host) Inspect(file string, im *Importer) (*Found, error) {
	text, err := read(file)
	if err != nil || text == nil {
		return nil, err
	}
	all, err := h.servers(text, im.Projects)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	found := &Found{}
	for _, l := range all {
		program := ""
		if len(l.server.command) > 0 {
			program = strings.TrimSuffix(filepath.Base(l.server.command[0]), ".exe")
		}
		switch {
		case l.name() == Entry || program == Entry:
			found.Server, found.Off = &Server{Command: l.server.command, URL: l.server.url}, ""
			if l.err != nil {
				found.Off = l.err.Error()
			}
		case l.fields["disabled"] == true || l.fields["enabled"] == false: // turned off
		case l.err != nil:
			found.Kept = append(found.Kept, l.name()+": "+l.err.Error())
		default:
			if err := im.runnable(im.placed(h, l)); err != nil {
				found.Broken = append(found.Broken, l.name()+": "+err.Error())
			} else {
				found.Others = append(found.Others, l.name())
			}
		}
	}
	return found, nil
}

// table returns the path of the mapping that holds the servers, by name.
func (h Host) table() []string { return []string{cmp.Or(spelling.Tables[h.Name], "mcpServers")} }

// places returns the paths of candidates for the project in dir or, if dir is "", for the user, without those whose
// name in {} has no value.
func places(candidates []string, dir string) (paths []string) {
	for _, c := range candidates {
		name, rest, _ := strings.Cut(strings.TrimPrefix(c, "{"), "}")
		if (name == "project") != (dir != "") {
			continue
		}
		start := dir
		switch name {
		case "project":
		case "home":
			start, _ = os.UserHomeDir()
		case "config":
			start, _ = os.UserConfigDir()
		case "xdg": // also on macOS
			if start = os.Getenv("XDG_CONFIG_HOME"); start == "" {
				if home, _ := os.UserHomeDir(); home != "" {
					start = filepath.Join(home, ".config")
				}
			}
		default:
			start = os.Getenv(name)
		}
		if start != "" {
			paths = append(paths, filepath.Join(start, filepath.FromSlash(rest)))
		}
	}
	return paths
}

// Why a host can't use a server.
var (
	ErrNoAddress = errors.New("starts programs only")
	ErrNoToken   = errors.New("reads no token from a variable")
)

// Takes returns why the host can't use s: an error that is [ErrNoAddress] or [ErrNoToken], and names the host.
func (h Host) Takes(s Server) error {
	_, err := h.entry(s)
	return err
}

// entry returns the host's spelling of s.
func (h Host) entry(s Server) (object, error) {
	var e object
	sh := h.shape
	switch {
	case s.URL == "" && sh.list:
		e = append(append(e, sh.local...), field{"command", s.Command})
	case s.URL == "":
		e = append(append(e, sh.local...), field{cmp.Or(sh.command, "command"), s.Command[0]}, field{"args", s.Command[1:]})
	case sh.url == "":
		return nil, fmt.Errorf("%s %w", h.Title, ErrNoAddress)
	default:
		e = append(append(e, sh.remote...), field{sh.url, s.URL})
		switch {
		case s.TokenVariable == "":
		case sh.bearerKey != "":
			e = append(e, field{sh.bearerKey, s.TokenVariable})
		case sh.bearer != "":
			e = append(append(e, sh.token...), field{"headers", object{{"Authorization", fmt.Sprintf(sh.bearer, s.TokenVariable)}}})
		default:
			return nil, fmt.Errorf("%s %w", h.Title, ErrNoToken)
		}
	}
	if s.Few {
		e = append(e, sh.few...)
	}
	return append(e, sh.after...), nil
}

// Print returns the text of a file that has the entry only, to be pasted by hand.
func (h Host) Print(s Server) (string, error) {
	e, err := h.entry(s)
	if err != nil {
		return "", err
	}
	text, err := h.syntax.set(nil, h.own(), e)
	return string(text), err
}
