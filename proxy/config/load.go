package config

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/internal/faults"
	"github.com/foldgate/foldgate/internal/shellword"
	"github.com/foldgate/foldgate/proxy/memory"
)

// Error is a configuration that can't be used, with every fault found.
type Error struct {
	// File is the path as given, or "configuration" if it was not read from a file.
	File   string
	Faults []Fault
}

// Error lists the faults, one a line, each after the file's name.
func (e *Error) Error() string {
	lines := make([]string, len(e.Faults))
	for i, f := range e.Faults {
		lines[i] = e.File + ": " + f.Error()
	}
	return strings.Join(lines, "\n")
}

// Fault is one error in a configuration.
type Fault = faults.Fault

// scrubber redacts the secrets that faults quote. It is made for the first fault: most configurations have none.
var scrubber = sync.OnceValues(func() (*scrub.Scrubber, error) { return scrub.New(scrub.Options{}) })

// NewError returns the error of a file with these faults. They may quote any value of the file, so
// secrets are redacted.
func NewError(file string, faults ...Fault) *Error {
	s, err := scrubber()
	for i, f := range faults {
		var text string
		var found []scrub.Finding
		if err == nil {
			text, found, err = s.Text(context.Background(), f.Error())
		}
		if err != nil {
			faults[i] = Fault{Line: f.Line, Msg: fmt.Sprintf("the fault is not shown, because it may hold a secret: %v", err)}
		} else if len(found) > 0 {
			faults[i] = Fault{Msg: short(text)}
		} else {
			faults[i].Key, faults[i].Msg = short(f.Key), short(f.Msg)
		}
	}
	return &Error{file, faults}
}

// short leaves out the middle of a text with a key or value of many bytes. The ends have the place and
// the remedy.
func short(text string) string {
	const head, tail = 500, 300
	if len(text) <= head+tail {
		return text
	}
	return strings.ToValidUTF8(text[:head], "") + "…" + strings.ToValidUTF8(text[len(text)-tail:], "")
}

// UserFile returns the path of a user's configuration, for hosts that start foldgate anywhere.
func UserFile() (string, error) {
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "foldgate", "foldgate.yaml"), err
}

// Locate returns the path of the configuration that commands use: file, or, if that is "", the first
// that exists of ./foldgate.yaml and [UserFile]. Without one it is "".
func Locate(file string) (string, error) {
	if file != "" {
		return file, nil
	}
	candidates := []string{"foldgate.yaml"}
	if file, err := UserFile(); err == nil {
		candidates = append(candidates, file)
	}
	for _, c := range candidates {
		if _, err := os.Stat(c); err == nil || !errors.Is(err, os.ErrNotExist) {
			return c, err
		}
	}
	return "", nil
}

// Find returns the configuration that [Locate] finds, else the built-in defaults.
func Find(file string) (Config, error) { return find(file, false) }

// FindState is [Find] for commands that use the state directory, and no servers. Outside of state_dir, trace
// and scrub, variables may be unset: their values stay as they are written. Programs and other files may be
// missing, and env_file, if state_dir, trace and scrub have no variables.
func FindState(file string) (Config, error) { return find(file, true) }

func find(file string, lenient bool) (Config, error) {
	file, err := Locate(file)
	if err != nil {
		return Config{}, err
	}
	if file != "" {
		return load(file, lenient)
	}
	c := Default()
	c.Dir, err = os.Getwd()
	return c, err
}

// Load reads a YAML file over the defaults. Unknown keys, duplicate keys, unset ${VARIABLES} and
// impossible values are faults of an [*Error], each with its key and line.
func Load(file string) (Config, error) { return load(file, false) }

// load reads a file. With lenient it reads it as [FindState] does.
func load(file string, lenient bool) (Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		msg := readError(err)
		if info, wrong := os.Stat(file); wrong == nil && info.IsDir() {
			msg = "is a directory: name the file in it, such as foldgate.yaml"
		} else if errors.Is(err, os.ErrNotExist) {
			msg += "; foldgate init " + shellword.Quote(file) + " makes one"
		} else if errors.Is(err, os.ErrPermission) {
			msg += "; run the command as the file's owner, such as with sudo -u"
		}
		return Config{}, NewError(file, Fault{Msg: msg})
	}
	c, faults := parse(filepath.Dir(file), data, os.LookupEnv, lenient)
	c.Sum = Sum(data)
	abs, err := filepath.Abs(file)
	if err != nil {
		return Config{}, err
	}
	c.File, c.Dir = abs, filepath.Dir(abs)
	if len(faults) == 0 && !lenient {
		faults = c.Locate(c.missing())
	}
	if len(faults) > 0 {
		return c, NewError(file, faults...)
	}
	return c, nil
}

// Check returns the error of the text of a configuration in a directory, whose variables env has; nil if a
// gateway could start with it.
func Check(dir string, data []byte, env func(string) (string, bool)) error {
	c, faults := parse(dir, data, env, false)
	if c.Dir = dir; len(faults) == 0 {
		faults = c.missing()
	}
	if len(faults) == 0 {
		return nil
	}
	return NewError("configuration", faults...)
}

// Sum returns the SHA-256 of a file's text in hexadecimal digits, as sha256sum does.
func Sum(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }

// parse decodes and checks the text of a file in dir, "" for the working directory.
func parse(dir string, data []byte, env func(string) (string, bool), lenient bool) (c Config, faults []Fault) {
	d := newDocument(env)
	d.lenient, c = lenient, Default()
	faults = d.parse(data, func(body ast.Node) []Fault { // an empty file is the defaults
		if d.envFile = d.readEnvFile(body, dir); d.envFile.Msg != "" && !d.lenient {
			return []Fault{d.envFile}
		}
		faults := d.decode(body, &c)
		if c.order, c.lines = d.order, d.lines; len(faults) > 0 {
			return faults
		}
		faults = c.Locate(c.Validate())
		if d.unset { // the rest may follow from values that are not there
			faults = slices.DeleteFunc(faults, func(f Fault) bool { return !stateKeys.MatchString(f.Key) })
		}
		return faults
	})
	return c, faults
}

// document reads a file's text into a configuration, or another value.
type document struct {
	env    func(string) (string, bool) // nil: ${NAME} is a text like others
	lines  map[string]int              // by key
	order  []string                    // the keys of the upstreams
	named  map[string]ast.Node         // by anchor
	faults []Fault

	lenient bool  // see FindState
	unset   bool  // there is a value with a variable that is unset, and that is no fault
	envFile Fault // of env_file
}

func newDocument(env func(string) (string, bool)) *document {
	return &document{env: env, lines: map[string]int{}, named: map[string]ast.Node{}}
}

// parse calls read with what a text holds, unless it is empty, and returns the faults.
func (d *document) parse(data []byte, read func(body ast.Node) []Fault) (faults []Fault) {
	// Editors of Windows write a byte order mark.
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return []Fault{{Key: "syntax", Msg: "is not UTF-8: save the file in this encoding"}}
	}
	defer func() { // the YAML library panics on some malformed files
		if p := recover(); p != nil {
			faults = []Fault{{Key: "syntax", Msg: fmt.Sprintf("malformed YAML: %v", p)}}
		}
	}()
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return []Fault{explain(err)}
	}
	var body ast.Node
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case body != nil:
			return []Fault{{Key: "file", Line: line(doc.Body), Msg: "holds more than one YAML document: remove the line --- between them, or the second one"}}
		default:
			body = doc.Body
		}
	}
	if body == nil {
		return nil
	}
	return read(body)
}

// decode reads a value into what v points to, and returns the faults, in the order of their lines.
func (d *document) decode(n ast.Node, v any) []Fault {
	d.read(n, "", reflect.ValueOf(v).Elem())
	slices.SortStableFunc(d.faults, func(a, b Fault) int { return cmp.Or(a.Line-b.Line, strings.Compare(a.Key, b.Key)) })
	return d.faults
}

// stateKeys match the keys whose values [FindState] needs.
var stateKeys = regexp.MustCompile(`^(state_dir|trace|scrub)\b`)

func (d *document) fault(n ast.Node, key, msg string) {
	d.faults = append(d.faults, Fault{Key: key, Line: line(n), Msg: msg})
}

// read reads a value into v. It notes the faults, and reads on. null empties a map, and leaves all else as it is.
func (d *document) read(n ast.Node, key string, v reflect.Value) {
	switch node := n.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		if v.Kind() == reflect.Map {
			v.Set(reflect.MakeMap(v.Type()))
		}
		return
	case *ast.AnchorNode:
		d.read(node.Value, key, v)
		d.named[node.Name.String()] = node.Value
		return
	case *ast.AliasNode:
		if value, ok := d.named[node.Value.String()]; ok {
			d.read(value, key, v)
		} else {
			d.fault(n, key, isAlias)
		}
		return
	case *ast.TagNode: // v says what the value is
		d.read(node.Value, key, v)
		return
	case *ast.LiteralNode: // a block, after | or >
		d.read(node.Value, key, v)
		return
	}
	mapping, isMapping := n.(*ast.MappingNode)
	list, isList := n.(*ast.SequenceNode)
	switch kind := v.Kind(); {
	case kind == reflect.Pointer:
		value := reflect.New(v.Type().Elem())
		d.read(n, key, value.Elem())
		v.Set(value)
	case kind == reflect.Interface && isMapping:
		value := reflect.ValueOf(&map[string]any{}).Elem()
		d.read(n, key, value)
		v.Set(value)
	case kind == reflect.Interface && isList:
		value := reflect.ValueOf(&[]any{}).Elem()
		d.read(n, key, value)
		v.Set(value)
	case isText(v):
		d.scalar(n, key, v)
	case kind == reflect.Slice && isList:
		v.Set(reflect.MakeSlice(v.Type(), len(list.Values), len(list.Values)))
		for i, value := range list.Values {
			at := fmt.Sprintf("%s[%d]", key, i)
			d.lines[at] = line(value)
			d.read(value, at, v.Index(i))
		}
	case kind == reflect.Slice && isMapping:
		d.fault(n, key, "must be a list, and is a mapping")
	case kind == reflect.Slice && strings.HasSuffix(key, ".command"):
		d.fault(n, key, "must be a list, such as [npx, -y, server]")
	case kind == reflect.Slice:
		d.fault(n, key, "must be a list, such as [first, second]")
	case isMapping:
		if kind == reflect.Map {
			v.Set(reflect.MakeMap(v.Type()))
		}
		d.entries(mapping, key, v)
	case key == "upstreams":
		d.fault(n, key, "must hold keys, each with a value, such as name: {command: [npx, -y, server]}")
	case kind == reflect.Map:
		d.fault(n, key, "must hold keys, each with a value")
	default:
		d.fault(n, key, "must hold keys: "+keysOf(v.Type()))
	}
}

// isText reports whether v is written as one text.
func isText(v reflect.Value) bool {
	_, ok := v.Addr().Interface().(encoding.TextUnmarshaler)
	return ok || !slices.Contains([]reflect.Kind{reflect.Struct, reflect.Map, reflect.Slice}, v.Kind())
}

// entries reads the entries of a mapping into v, a struct or a map. Its own replace those that it merges.
func (d *document) entries(n *ast.MappingNode, key string, v reflect.Value) {
	for _, entry := range n.Values {
		if !entry.Key.IsMergeKey() {
			continue
		}
		from := entry.Value
		switch node := from.(type) {
		case *ast.AliasNode:
			from = d.named[node.Value.String()]
		case *ast.AnchorNode:
			from = node.Value
			d.named[node.Name.String()] = from
		}
		if merged, ok := from.(*ast.MappingNode); ok {
			d.entries(merged, key, v)
		} else {
			d.fault(entry.Value, join(key, "<<"), "must hold keys, each with a value")
		}
	}
	for _, entry := range n.Values {
		if entry.Key.IsMergeKey() {
			continue
		}
		var name string
		if err := yaml.NodeToValue(entry.Key, &name); err != nil {
			d.fault(entry.Key, key, explain(err).Msg)
			continue
		}
		if key == "upstreams" {
			d.order = append(d.order, name)
		}
		at := join(key, name)
		d.lines[at] = line(entry.Key)
		if v.Kind() == reflect.Map {
			value := reflect.New(v.Type().Elem()).Elem()
			d.read(entry.Value, at, value)
			v.SetMapIndex(reflect.ValueOf(name), value)
		} else if field := fieldOf(v, name); field.IsValid() {
			d.read(entry.Value, at, field)
		} else {
			unknown := unknownKey(at, keysOf(v.Type()))
			d.fault(entry.Key, unknown.Key, unknown.Msg)
		}
	}
}

// fieldOf returns the field of a struct for a key. It is not valid if there is none.
func fieldOf(v reflect.Value, key string) (field reflect.Value) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		if tag := f.Tag.Get("yaml"); tag == key && tag != "" && tag != "-" {
			field = v.FieldByIndex(f.Index)
		}
	}
	return field
}

// scalar reads a value of one text into v.
func (d *document) scalar(n ast.Node, key string, v reflect.Value) {
	text := n.GetToken().Value
	switch s := n.(type) {
	case *ast.StringNode:
		var ok bool
		if text, ok = d.expand(s, key); !ok && v.Kind() != reflect.String && v.Kind() != reflect.Interface {
			return
		}
		expanded := *s
		expanded.Value, n = text, &expanded
	case *ast.SequenceNode:
		text = "[...]"
	case *ast.MappingNode:
		text = "{...}"
	}
	if msg := unfit(v.Type(), text); msg != "" {
		d.fault(n, key, msg)
	} else if err := yaml.NodeToValue(n, v.Addr().Interface()); err != nil {
		d.fault(n, key, explain(err).Msg)
	}
}

// expand returns a text with ${NAME} replaced. ok is false if that is a fault, or a variable may be unset and is.
func (d *document) expand(n *ast.StringNode, key string) (text string, ok bool) {
	if ok = true; d.env == nil {
		return n.Value, ok
	}
	isState := stateKeys.MatchString(key)
	text = variable.ReplaceAllStringFunc(n.Value, func(m string) string {
		if memoryArguments.MatchString(key) && memory.IsName(strings.Trim(m, "${}")) {
			return m // stands for something of a branch
		}
		v, fault := substitute(m, d.env)
		switch {
		case m != "$$" && d.lenient && isState && d.envFile.Msg != "": // its values count before others
			d.faults, ok = append(d.faults, d.envFile), false
		case fault == "":
		case d.lenient && !isState:
			d.unset, ok = true, false
			return m
		default:
			d.fault(n, key, fault)
			ok = false
		}
		return v
	})
	return text, ok
}

// unfit returns what is wrong with a text for a value of type t, "" for nothing or if the decoder says it.
func unfit(t reflect.Type, text string) string {
	switch of := reflect.New(t).Interface().(type) {
	case *time.Duration:
		if _, err := time.ParseDuration(text); err != nil {
			return "must be " + describe(t) + "; there is no unit for days"
		}
	case *time.Time:
		if of.UnmarshalText([]byte(text)) != nil {
			return "must be " + describe(t)
		}
	case encoding.TextUnmarshaler:
		if err := of.UnmarshalText([]byte(text)); err != nil {
			return err.Error()
		}
	case *int, *float64: // the decoder cuts fractions
		// YAML spells infinity and NaN with a dot, and allows _ between digits.
		goText := strings.NewReplacer("_", "", ".inf", "inf", ".nan", "nan").Replace(strings.ToLower(text))
		switch f, err := strconv.ParseFloat(goText, 64); {
		case err != nil:
		case math.IsInf(f, 0), math.IsNaN(f), t.Kind() == reflect.Int && f != math.Trunc(f):
			return "must be " + describe(t)
		case t.Kind() == reflect.Int && math.Abs(f) >= 1<<63:
			return "is too large"
		}
	}
	return ""
}

// memoryArguments are the keys of the arguments of memory tools.
var memoryArguments = regexp.MustCompile(`^folding\.(memory|remember)\.arguments\b`)

var variable = regexp.MustCompile(`\$\$|\$\{[^}]*\}?`)

// substitute returns the replacement of one match of variable, or its fault.
func substitute(m string, env func(string) (string, bool)) (value, fault string) {
	if m == "$$" {
		return "$", ""
	}
	name, closed := strings.CutSuffix(m[2:], "}")
	if !closed { // the rest may be a secret
		return "", "has ${ without the } that ends it (write $${ for the text itself)"
	}
	if v, ok := env(name); ok {
		return v, ""
	}
	if name, _, extra := strings.Cut(name, ":"); extra {
		return "", fmt.Sprintf("${%s:...} is more than the name of a variable: there are no defaults here; set the variable and write ${%[1]s}", name)
	}
	return "", fmt.Sprintf("the environment variable %s is not set: set it, or put it into the file of env_file (write $${%[1]s} for the text itself)", name)
}

const isAlias = "is read as an alias: put a text that begins with * into quotes"

// explain turns an error of the YAML library into a fault. The fault never quotes the value, which may be a secret.
func explain(err error) Fault {
	f := Fault{Key: "syntax", Msg: err.Error()}
	ye, ok := errors.AsType[yaml.Error](err)
	if !ok || ye.GetToken() == nil {
		return f
	}
	f.Line, f.Msg = ye.GetToken().Position.Line, ye.GetMessage()
	switch e := ye.(type) {
	case *yaml.TypeError:
		f.Msg = "must be " + describe(e.DstType)
	case *yaml.OverflowError:
		f.Msg = "is too large"
	case *yaml.SyntaxError:
		switch {
		case strings.Contains(f.Msg, "already defined"):
			f.Key, f.Msg = e.Token.Value, f.Msg+": remove one of the two"
		case strings.Contains(f.Msg, "character '\t'"), strings.Contains(f.Msg, "tab character"):
			f.Msg = "has a tab: indent with spaces"
		case strings.HasPrefix(f.Msg, "could not find alias"): // it quotes the value
			f.Msg = isAlias
		case strings.HasSuffix(f.Msg, "is a reserved character"):
			f.Msg += ": put the text that begins with it into quotes"
		case strings.HasSuffix(f.Msg, "must be specified") && bareVariable(e.Token):
			f.Msg += ": inside of { } and [ ] a variable needs quotes, as in {token: \"${TOKEN}\"}"
		default:
			f.Msg += ": correct the indentation, the brackets or the quotes, here or in the line before"
		}
	}
	return f
}

// bareVariable reports whether a ${NAME} without quotes is on a token's line, before it. YAML reads its
// { as the begin of a mapping.
func bareVariable(t *token.Token) bool {
	for line := t.Position.Line; t.Prev != nil && t.Position.Line == line; t = t.Prev {
		if t.Type == token.MappingStartType && strings.HasSuffix(t.Prev.Value, "$") {
			return true
		}
	}
	return false
}

// keysOf lists the keys that a struct has.
func keysOf(t reflect.Type) string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if tag := f.Tag.Get("yaml"); tag != "" && tag != "-" {
			names = append(names, tag)
		}
	}
	return strings.Join(names, ", ")
}

func describe(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "a time with its unit, such as 90m or 24h"
	case t == reflect.TypeFor[time.Time]():
		return "a time such as 2030-12-31T00:00:00Z"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() == reflect.Int:
		return "a whole number"
	case t.Kind() == reflect.Float64:
		return "a number"
	}
	return "one text"
}

func line(n ast.Node) int {
	if t := n.GetToken(); t != nil && t.Position != nil {
		return t.Position.Line
	}
	return 0
}

// Locate adds to each fault the line of its key, or of the nearest key above it.
func (c Config) Locate(faults []Fault) []Fault {
	for i := range faults {
		for key := faults[i].Key; key != "" && faults[i].Line == 0; {
			faults[i].Line = c.lines[key]
			key = key[:max(strings.LastIndexAny(key, ".["), 0)] // "a.b[0]" → "a.b" → "a" → ""
		}
	}
	return faults
}

// missing returns a fault for every program, file and directory that c names and that does not
// exist. The check happens when the file is read, so that a typing error shows at once and not
// when the agent needs the tool.
func (c Config) missing() []Fault {
	var k checker
	if c.Secure() {
		if _, err := c.Certificate(c.TLS); err != nil {
			k.Add("tls", "%v; name PEM files that exist and belong together", err)
		}
	}
	if c.Scrub.Rules != "" {
		if _, err := os.Stat(c.RulesFile()); err != nil {
			k.Add("scrub.rules", "%q: %s; correct the path, or remove the key", c.RulesFile(), readError(err))
		} else if err := scrub.CheckRules(c.RulesFile()); err != nil {
			k.Add("scrub.rules", "%v; correct the file, or remove the key", err)
		}
	}
	directory := func(key, path string) {
		if info, err := os.Stat(c.Path(path)); err != nil || !info.IsDir() {
			remedy := "create it, or correct the path"
			if rest, home := strings.CutPrefix(path, "~/"); home {
				remedy = "~ is not expanded: write ${HOME}/" + rest
			}
			k.Add(key, "%q is not a directory: %s", c.Path(path), remedy)
		}
	}
	for _, key := range c.UpstreamKeys() {
		u, at := c.Upstreams[key], "upstreams."+key
		for i, root := range u.Roots {
			directory(fmt.Sprintf("%s.roots[%d]", at, i), root)
		}
		if u.Cwd != "" {
			directory(at+".cwd", u.Cwd)
		}
		if len(u.Command) == 0 {
			continue
		}
		program := u.Command[0]
		if u.Cwd != "" && strings.ContainsRune(program, filepath.Separator) && !filepath.IsAbs(program) {
			program = filepath.Join(c.Path(u.Cwd), program) // relative to the child's working directory
		}
		if _, err := exec.LookPath(program); err != nil {
			k.Add(at+".command", "%q can't be run: %v; %s", u.Command[0], errors.Unwrap(err), programRemedy(u.Command[0], err))
		}
	}
	return k.List
}

// programRemedy returns what to do about a program that can't be run.
func programRemedy(program string, err error) string {
	words := strings.Fields(program)
	if len(words) > 1 {
		return "it holds blanks: write [" + strings.Join(words, ", ") + "], one list item for each word"
	}
	if errors.Is(err, os.ErrPermission) {
		if runtime := runtimes[filepath.Ext(program)]; runtime != "" {
			return "chmod +x it, or write command: [" + runtime + ", " + program + "]"
		}
		return "chmod +x it"
	}
	return "install it, or name its path"
}

// runtimes are the programs that run scripts, by the ending of the script's name.
var runtimes = map[string]string{".js": "node", ".mjs": "node", ".cjs": "node", ".py": "python3", ".sh": "sh"}

// readError returns the text of a file's error without the file's name.
func readError(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "there is no such file"
	}
	if p, ok := errors.AsType[*os.PathError](err); ok {
		err = p.Err
	}
	return err.Error()
}
