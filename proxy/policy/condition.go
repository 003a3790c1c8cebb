package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Bounds of a condition.
const (
	maxCost      = 1_000_000 // of one evaluation, in steps of CEL
	maxArguments = 1 << 20   // bytes of arguments that conditions read
	maxDepth     = 100       // nesting of arguments that conditions read
)

// truth is the value of a condition. It is unknown if it depends on something that is not known.
type truth int

const (
	no truth = iota
	yes
	unknown
)

var errNoList = errors.New("the list of its server, which has the tool's annotations, is not there; try again in a few seconds")

// condition is a compiled expression.
type condition struct {
	program   cel.Program
	readsArgs bool              // it reads arguments
	names     map[string]string // the members that it reads, by their folded names
}

// environment is the CEL environment of all conditions.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	dynamic := cel.MapType(cel.StringType, cel.DynType)
	return cel.NewEnv(
		cel.Variable("principal", cel.StringType), cel.Variable("team", cel.StringType),
		cel.Variable("roles", cel.ListType(cel.StringType)), cel.Variable("scopes", cel.ListType(cel.StringType)),
		cel.Variable("server", cel.StringType), cel.Variable("tool", cel.StringType), cel.Variable("branch", cel.StringType),
		cel.Variable("annotations", dynamic), cel.Variable("args", dynamic),
		cel.CrossTypeNumericComparisons(true),
	)
})

func compile(expression string) (*condition, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	checked, issues := env.Compile(expression)
	if err := issues.Err(); err != nil {
		text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "ERROR: <input>:"), "\n")
		return nil, fmt.Errorf("is not a condition in CEL, such as args.sql.startsWith(\"SELECT\"): %s", text)
	}
	if out := checked.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("is %s, and must be true or false", out)
	}
	c := &condition{names: map[string]string{}}
	name := func(e ast.Expr) {
		if text, ok := e.AsLiteral().(types.String); ok {
			c.names[fold(string(text))] = string(text)
		}
	}
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.IdentKind:
			c.readsArgs = c.readsArgs || e.AsIdent() == "args"
		case ast.SelectKind:
			field := e.AsSelect().FieldName()
			c.names[fold(field)] = field
		case ast.CallKind:
			switch call := e.AsCall(); {
			case call.FunctionName() == operators.Index && call.Args()[1].Kind() == ast.LiteralKind:
				name(call.Args()[1])
			case call.FunctionName() == operators.In && call.Args()[0].Kind() == ast.LiteralKind:
				name(call.Args()[0])
			}
		}
	}))
	c.program, err = env.Program(checked, cel.EvalOptions(cel.OptOptimize, cel.OptPartialEval), cel.CostLimit(maxCost))
	return c, err
}

// input is a request as conditions read it. The arguments are decoded once.
type input struct {
	*Request
	vars      map[string]any
	arguments map[string]any
	keys      map[string]bool // the names of members at any depth
	err       error           // why the arguments can't be read
	decoded   bool
}

// eval evaluates the condition. It fails if it is neither true nor false.
func (c *condition) eval(in *input) (truth, error) {
	if in.vars == nil {
		in.vars = map[string]any{
			"principal": in.Principal, "team": in.Team, "roles": append([]string{}, in.Roles...), "scopes": append([]string{}, in.Scopes...),
			"server": in.Server, "tool": in.Name, "branch": in.Branch, "annotations": annotations(in.Annotations), "args": map[string]any{},
		}
	}
	var missing []*cel.AttributePatternType
	if in.Listing {
		missing = append(missing, cel.AttributePattern("args"), cel.AttributePattern("branch"))
	} else if c.readsArgs {
		if err := in.decode(); err != nil {
			return no, err
		}
		for key := range in.keys {
			if own, ok := c.names[fold(key)]; ok && own != key {
				return no, fmt.Errorf("the arguments have %q, which some servers read as %q: write %[2]q", key, own)
			}
		}
		in.vars["args"] = in.arguments
	}
	if in.Unlisted {
		missing = append(missing, cel.AttributePattern("annotations"))
	}
	vars, err := cel.PartialVars(in.vars, missing...)
	if err != nil {
		return no, err
	}
	out, _, err := c.program.Eval(vars)
	switch v := out.(type) {
	case nil:
	case types.Bool:
		if v {
			return yes, nil
		}
		return no, nil
	case *types.Unknown:
		return unknown, nil
	default:
		if err == nil {
			err = fmt.Errorf("the condition is %s, not true or false", out.Type().TypeName())
		}
	}
	if err == nil {
		err = errors.New("the condition has no value")
	}
	return no, errors.New(shorten(err.Error()))
}

// annotations returns the annotations of a tool with the defaults that the protocol has for hints.
func annotations(raw []byte) map[string]any {
	all := map[string]any{}
	_ = json.Unmarshal(raw, &all) // what is no object says nothing
	if all == nil {
		all = map[string]any{}
	}
	for hint, value := range map[string]bool{"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true} {
		if _, ok := all[hint].(bool); !ok {
			all[hint] = value
		}
	}
	return all
}

// decode reads the arguments. A member that is there twice is an error, since servers differ in
// which of the two they read.
func (in *input) decode() error {
	if in.decoded {
		return in.err
	}
	in.decoded, in.keys, in.arguments = true, map[string]bool{}, map[string]any{}
	raw := bytes.TrimSpace(in.Arguments)
	if len(raw) > maxArguments {
		in.err = fmt.Errorf("the arguments have %d bytes, and conditions read at most %d", len(raw), maxArguments)
	}
	if len(raw) == 0 || string(raw) == "null" || in.err != nil {
		return in.err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	value, err := in.value(d, 0)
	if _, more := d.Token(); err == nil && more != io.EOF {
		err = errors.New("the arguments are not one JSON value")
	}
	var ok bool
	if in.arguments, ok = value.(map[string]any); err == nil && !ok {
		err = errors.New("the arguments are not an object")
	}
	in.err = err
	return err
}

func (in *input) value(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, errors.New("the arguments are not JSON")
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("the arguments are nested deeper than %d", maxDepth)
	}
	switch t := token.(type) {
	case json.Number:
		return number(string(t))
	case json.Delim:
		if t == '[' {
			list := []any{}
			for d.More() {
				v, err := in.value(d, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		object := map[string]any{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, errors.New("the arguments are not JSON")
			}
			name, _ := key.(string)
			if _, twice := object[name]; twice {
				return nil, fmt.Errorf("the arguments have %q twice: servers differ in which they read", shorten(name))
			}
			in.keys[name] = true
			if object[name], err = in.value(d, depth+1); err != nil {
				return nil, err
			}
		}
		_, err := d.Token()
		return object, err
	}
	return token, nil
}

// number keeps whole numbers exact.
func number(text string) (any, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("the number %s is too large", shorten(text))
	}
	return f, nil
}

// fold folds case as encoding/json does. A Go server treats names with equal results as one name.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}
