// Package files is foldgate's built-in server: four read-only MCP tools over one or more
// directories, so that the gateway is useful with nothing else installed. A [Server] is a
// connection of its own; no protocol library lies on the way.
//
// # Confinement
//
// Every file is opened through an [os.Root]. A path with "..", an absolute path and a symbolic
// link can't lead out of a root, not even if a link changes between a check and its use. Nothing
// is ever written. Only directories and regular files are opened; devices, pipes and sockets are
// refused. Hidden files and directories, such as the gateway's own state, are neither listed nor
// searched nor read, even below a root.
//
// # Paths
//
// With one root, paths are relative to it. With several, the first segment is the name of a root
// (its base name, made unique with -2, -3 ...), and "." is the directory above all roots. Every
// path in a result is a valid argument. Absolute paths are accepted if they lie below a root.
//
// # Searches
//
// search_files and grep skip .git, the targets of symbolic links, and everything that .gitignore
// files and .git/info/exclude exclude. A directory given as path is searched even if it is
// ignored. The order is lexical within each directory.
package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/internal/arguments"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Server is the file server and the connection to it. It has no sessions: one connection serves
// all of them. Its only state is the open directories.
type Server struct {
	roots []*root
	limit time.Duration // of one call
	// searches has room for the searches that may run at once.
	searches chan struct{}
	lifetime context.Context
	end      context.CancelFunc
}

var _ conn.Conn = (*Server)(nil)

// root is one directory that may be read, with everything below it.
type root struct {
	name   string   // first segment of paths if there are several roots
	dirs   []string // absolute paths of the root: as given and with links resolved
	hidden []string // absolute paths of what is hidden below it, with the links in its own path resolved
	fs     *os.Root
	// visible is a directory that is not hidden: a search opens many files of one directory.
	visible atomic.Pointer[string]
}

// New opens the roots. The error names a root that can't be opened. Relative roots start at the
// working directory. A hidden file or directory is hidden below a root, but a root inside it is
// served, because the configuration names it.
func New(roots []string, hidden ...string) (*Server, error) {
	if len(roots) == 0 {
		return nil, errors.New("files: no roots: name at least one directory")
	}
	s := &Server{limit: maxTime, searches: make(chan struct{}, maxSearches)}
	s.lifetime, s.end = context.WithCancel(context.Background())
	taken := map[string]bool{}
	for _, dir := range roots {
		r, err := openRoot(dir)
		if err != nil {
			_ = s.Close()
			return nil, fmt.Errorf("files: root %q: %w", dir, err)
		}
		base := r.name
		for n := 2; taken[r.name]; n++ {
			r.name = base + "-" + strconv.Itoa(n)
		}
		taken[r.name] = true
		for _, path := range hidden {
			for _, p := range absolute(path) {
				for _, top := range r.dirs {
					if rel := below(top, p); rel != "" { // it need not exist yet, the root does
						r.hide(filepath.Join(r.dirs[len(r.dirs)-1], rel))
					}
				}
			}
		}
		s.roots = append(s.roots, r)
	}
	return s, nil
}

// hide hides a path, unless that is known.
func (r *root) hide(path string) {
	if !slices.ContainsFunc(r.hidden, func(h string) bool { return h == path || below(h, path) != "" }) {
		r.hidden = append(r.hidden, path)
	}
}

func openRoot(dir string) (*root, error) {
	if dir == "" {
		return nil, errors.New("is empty: name a directory, . for the working directory")
	}
	dirs := absolute(dir)
	if dirs == nil {
		return nil, errors.New("the working directory is not known")
	}
	opened, err := os.OpenRoot(dirs[0])
	if err != nil {
		return nil, cause(err)
	}
	r := &root{name: filepath.Base(dirs[0]), dirs: dirs, fs: opened}
	if r.name == string(filepath.Separator) {
		r.name = "root"
	}
	return r, nil
}

// absolute returns the absolute path of dir and, if it differs, the path with links resolved.
func absolute(dir string) []string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	if real, err := filepath.EvalSymlinks(abs); err == nil && real != abs {
		return []string{abs, real}
	}
	return []string{abs}
}

// Info declares tools.
func (s *Server) Info() conn.Info {
	return conn.Info{Version: wire.VersionLegacy, Result: json.RawMessage(`{"capabilities":{"tools":{}}}`)}
}

// Call serves tools/list and tools/call. If a tool fails, the result has isError and a text with
// the remedy.
func (s *Server) Call(ctx context.Context, r *conn.Request) (wire.Message, error) {
	if s.lifetime.Err() != nil {
		return wire.Message{}, conn.ErrClosed
	}
	switch r.Method {
	case "tools/list":
		return wire.Message{Result: append(append([]byte(`{"tools":`), definitions()...), '}')}, nil
	case "tools/call":
		name, _ := rawjson.GetString(r.Params, "name")
		args, _ := rawjson.Get(r.Params, "arguments")
		result := s.run(ctx, name, args)
		if cause := context.Cause(ctx); cause != nil {
			return wire.Message{}, cause
		}
		if result == nil {
			return failure(wire.CodeInvalidParams, fmt.Sprintf("unknown tool: %.200q", name)), nil
		}
		if r.Call != nil && r.Call.Origin.Revision >= wire.VersionModern {
			result = rawjson.Set(result, []byte(`"complete"`), "resultType")
		}
		return wire.Message{Result: result}, nil
	}
	return failure(wire.CodeMethodNotFound, "Method not found: "+r.Method), nil
}

func failure(code int, message string) wire.Message {
	return wire.Message{Error: (&wire.Error{Code: code, Message: message}).JSON()}
}

// Send does nothing: the server takes no notifications and makes no requests.
func (s *Server) Send(context.Context, wire.Message) error { return nil }

// Done is closed by Close.
func (s *Server) Done() <-chan struct{} { return s.lifetime.Done() }

// Err returns nil: the connection can't be lost.
func (s *Server) Err() error { return nil }

// Close closes the roots. Calls in progress return a tool error.
func (s *Server) Close() error {
	s.end()
	var errs []error
	for _, r := range s.roots {
		errs = append(errs, r.fs.Close())
	}
	return errors.Join(errs...)
}

const (
	// maxTime bounds one call: a search of a large tree, or for an expensive pattern.
	maxTime = 10 * time.Second
	// maxSearches is how many calls of one principal search at once. Each takes a processor.
	maxSearches = 4
)

// run runs one tool. It returns the result of tools/call, or nil if there is no such tool.
func (s *Server) run(ctx context.Context, name string, args json.RawMessage) json.RawMessage {
	i := slices.IndexFunc(tools, func(t tool) bool { return t.name == name })
	if i < 0 {
		return nil
	}
	text, end := "", "}]}"
	in, err := tools[i].decode(args)
	if err == nil && tools[i].searches {
		var done func()
		if done, err = s.turn(ctx); err == nil {
			defer done()
		}
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, s.limit)
		defer cancel()
		text, err = tools[i].run(s, ctx, in)
	}
	if err != nil {
		text, end = err.Error(), `}],"isError":true}`
	}
	out := rawjson.AppendQuote([]byte(`{"content":[{"type":"text","text":`), text)
	return append(out, end...)
}

// turn waits until a search may begin, at most as long as one takes. The caller calls done after it.
func (s *Server) turn(ctx context.Context) (done func(), err error) {
	done = func() { <-s.searches }
	select {
	case s.searches <- struct{}{}:
		return done, nil
	default:
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("not done: %d searches are under way, as many as may be, and none ended within %s; wait for them, or give each a narrower path or glob", maxSearches, s.limit))
	defer cancel()
	select {
	case s.searches <- struct{}{}:
		return done, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

const maxArguments = 64 << 10 // bytes of the arguments of a call

// input holds the arguments of all tools. The schema of a tool says which of them it takes.
type input struct {
	Path, Pattern, Glob string
	StartLine           float64 `json:"start_line"`
	EndLine             float64 `json:"end_line"`
	Context             float64
	MaxMatches          float64 `json:"max_matches"`
	IgnoreCase          bool    `json:"ignore_case"`
}

// tool is one entry of tools/list and its implementation.
type tool struct {
	name        string
	description string
	properties  json.RawMessage // of inputSchema
	required    string          // the only required argument, "" for none
	searches    bool            // it may read many files
	run         func(*Server, context.Context, input) (string, error)
}

func (t tool) decode(args json.RawMessage) (input, error) {
	in := input{StartLine: 1, EndLine: math.MaxInt32, MaxMatches: 100}
	if len(args) > maxArguments {
		return in, fmt.Errorf("invalid arguments: arguments are %d bytes, the limit is %d", len(args), maxArguments)
	}
	if err := arguments.Decode(t.name, t.properties, args, &in); err != nil {
		return in, fmt.Errorf("invalid arguments: %w", err)
	}
	if t.required == "path" && in.Path == "" || t.required == "pattern" && in.Pattern == "" {
		return in, fmt.Errorf("invalid arguments: %q is required", t.required)
	}
	return in, nil
}

// Every session pays for the definitions in tokens, so a property with a telling name has no
// description.
var tools = []tool{
	{
		name:        "read_file",
		description: "Read a text file, whole or from start_line to end_line (1-based, inclusive).",
		properties: json.RawMessage(`{"path":{"type":"string"},"start_line":{"type":"integer","minimum":1},` +
			`"end_line":{"type":"integer","minimum":1}}`),
		required: "path",
		run:      (*Server).readFile,
	},
	{
		name:        "list_directory",
		description: "List a directory: subdirectories end in /, links in @, files show their size in bytes.",
		properties:  json.RawMessage(`{"path":{"type":"string","default":"."}}`),
		run:         (*Server).listDirectory,
	},
	{
		name:        "search_files",
		description: "Find files by glob, e.g. *.go (at any depth) or src/**/*.{ts,tsx}. Skips what .gitignore excludes.",
		properties:  json.RawMessage(`{"pattern":{"type":"string"},"path":{"type":"string","default":"."}}`),
		required:    "pattern",
		searches:    true,
		run:         (*Server).searchFiles,
	},
	{
		name:        "grep",
		description: "Find lines by RE2 regular expression in a file or directory. Skips binary files and what .gitignore excludes.",
		properties: json.RawMessage(`{"pattern":{"type":"string"},"path":{"type":"string","default":"."},` +
			`"glob":{"type":"string","description":"Only files that match, e.g. *.go"},` +
			`"context":{"type":"integer","minimum":0,"maximum":20,"default":0,"description":"Lines around a match"},` +
			`"max_matches":{"type":"integer","minimum":1,"maximum":1000,"default":100},"ignore_case":{"type":"boolean","default":false}}`),
		required: "pattern",
		searches: true,
		run:      (*Server).grep,
	},
}

// definitions returns the array of tools/list.
func definitions() json.RawMessage {
	var b bytes.Buffer
	for i, t := range tools {
		b.WriteByte("[,"[min(i, 1)])
		required := ""
		if t.required != "" {
			required = `"` + t.required + `"`
		}
		fmt.Fprintf(&b, `{"name":%s,"description":%s,"inputSchema":{"type":"object","properties":%s,"required":[%s],"additionalProperties":false},`+
			`"annotations":{"readOnlyHint":true,"openWorldHint":false}}`,
			rawjson.Quote(t.name), rawjson.Quote(t.description), t.properties, required)
	}
	b.WriteByte(']')
	return b.Bytes()
}
