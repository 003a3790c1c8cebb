//go:build e2e

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/foldgate/foldgate/"

// The packages that a call passes.
var patterns = []string{"./proxy/...", "./interceptor"}

// Bounds of the path of one call.
const (
	maxFunctions = 23
	maxFiles     = 12
)

// TestPathOfOneCall runs one call with coverage. Each function that docs/design.md
// lists has run; no other function of these packages that ran passes the call on.
func TestPathOfOneCall(t *testing.T) {
	listed := documented(t)
	files := map[string]bool{}
	for _, file := range listed {
		files[file] = true
	}
	if len(listed) > maxFunctions || len(files) > maxFiles {
		t.Errorf("the path of one call has %d functions in %d files, want at most %d in %d", len(listed), len(files), maxFunctions, maxFiles)
	}
	ran := covered(t)
	for name, file := range listed {
		if !slices.Contains(ran, file+" "+name) {
			t.Errorf("%s in %s did not run", name, file)
		}
	}
	for f, callees := range calls(t, listed) {
		file, name, _ := strings.Cut(f, " ")
		if _, is := listed[name]; is && listed[name] == file || !slices.Contains(ran, f) {
			continue
		}
		t.Errorf("%s passes the call on to %s: list it in docs/design.md, or take it out of the path", f, strings.Join(callees, ", "))
	}
}

// documented returns the functions that docs/design.md lists, with their files.
func documented(t *testing.T) map[string]string {
	page, err := os.ReadFile("../../docs/design.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "## The path of one call")
	section, _, ok2 := strings.Cut(section, "\n## ")
	if !ok || !ok2 {
		t.Fatal("docs/design.md has no section about the path of one call")
	}
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|").FindAllStringSubmatch(section, -1) {
		listed[row[1]] = row[2]
	}
	if len(listed) == 0 {
		t.Fatal("docs/design.md lists no function")
	}
	return listed
}

// covered runs one call and returns the functions that ran, each as its file and
// its name.
func covered(t *testing.T) (ran []string) {
	dir := t.TempDir()
	program, server, data := filepath.Join(dir, "callpath"), filepath.Join(dir, "fakeserver"), filepath.Join(dir, "coverage")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	output(t, "go", "build", "-o", server, "../fakeserver")
	output(t, "go", "build", "-tags", "e2e", "-cover", "-covermode=atomic", "-coverpkg=.,"+module+"proxy/...,"+module+"interceptor", "-o", program, ".")
	output(t, program, data, server)
	for line := range strings.Lines(output(t, "go", "tool", "covdata", "func", "-i="+data)) {
		place, name, share := "", "", ""
		if n, _ := fmt.Sscan(line, &place, &name, &share); n == 3 && share != "0.0%" {
			file, _, _ := strings.Cut(strings.TrimPrefix(place, module), ":")
			ran = append(ran, file+" "+strings.TrimPrefix(name, "*"))
		}
	}
	if len(ran) == 0 {
		t.Fatal("no function ran")
	}
	return ran
}

// calls returns the functions of these packages that call a listed one, directly or
// through an interface, with those that they call.
func calls(t *testing.T, listed map[string]string) map[string][]string {
	type info struct {
		ImportPath, Dir, Export string
		GoFiles                 []string
	}
	exports := map[string]string{}
	var packages []info
	dec := json.NewDecoder(strings.NewReader(output(t, "go", append([]string{"list", "-C", "../..", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles"}, patterns...)...)))
	for {
		var p info
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		room := strings.TrimPrefix(p.ImportPath, module)
		if room == "interceptor" || room == "proxy" || strings.HasPrefix(room, "proxy/") {
			packages = append(packages, p)
		}
	}
	fset := token.NewFileSet()
	imports := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	found := map[string][]string{}
	for _, p := range packages {
		var files []*ast.File
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		uses := &types.Info{Uses: map[*ast.Ident]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}}
		if _, err := (&types.Config{Importer: imports}).Check(p.ImportPath, fset, files, uses); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			for _, decl := range f.Decls {
				fn, ok := decl.(*ast.FuncDecl)
				if !ok || fn.Body == nil {
					continue
				}
				file := strings.TrimPrefix(p.ImportPath, module) + "/" + filepath.Base(fset.Position(fn.Pos()).Filename)
				ast.Inspect(fn.Body, func(n ast.Node) bool {
					if call, ok := n.(*ast.CallExpr); ok {
						if callee := calleeOf(call, uses, listed); callee != "" {
							found[file+" "+nameOf(fn)] = append(found[file+" "+nameOf(fn)], callee)
						}
					}
					return true
				})
			}
		}
	}
	return found
}

// calleeOf returns the listed function that a call expression calls, "" if it
// calls another. A call through an interface of these packages counts if a listed
// method has its name. A call of a variable counts if its function returns the
// result of a call, as the next layer does.
func calleeOf(call *ast.CallExpr, info *types.Info, listed map[string]string) string {
	var id *ast.Ident
	switch fun := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = fun
	case *ast.SelectorExpr:
		id = fun.Sel
	default:
		return ""
	}
	if v, ok := info.Uses[id].(*types.Var); ok && answersCall(v.Type()) {
		return v.Name()
	}
	fn, ok := info.Uses[id].(*types.Func)
	if !ok || fn.Pkg() == nil || !strings.HasPrefix(fn.Pkg().Path(), module) {
		return ""
	}
	recv := fn.Signature().Recv()
	if recv == nil {
		if file, ok := listed[fn.Name()]; ok && strings.HasPrefix(module+file, fn.Pkg().Path()+"/") {
			return fn.Name()
		}
		return ""
	}
	typ := recv.Type()
	if p, ok := typ.(*types.Pointer); ok {
		typ = p.Elem()
	}
	if types.IsInterface(typ) {
		for name := range listed {
			if _, method, _ := strings.Cut(name, "."); method == fn.Name() {
				return name
			}
		}
		return ""
	}
	name := typ.(*types.Named).Obj().Name() + "." + fn.Name()
	if file, ok := listed[name]; ok && strings.HasPrefix(module+file, fn.Pkg().Path()+"/") {
		return name
	}
	return ""
}

// answersCall reports whether typ is a function that returns an *interceptor.Result.
func answersCall(typ types.Type) bool {
	f, ok := typ.Underlying().(*types.Signature)
	return ok && f.Results().Len() > 0 && f.Results().At(0).Type().String() == "*"+module+"interceptor.Result"
}

// nameOf returns the name of a function, for a method with its type.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	typ := fn.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	return typ.(*ast.Ident).Name + "." + fn.Name.Name
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("%s %v: %v\n%s", name, args, err, exit.Stderr)
		}
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return string(out)
}
