//go:build e2e

// Command platforms checks the types of foldgate for other platforms: platforms GOOS/GOARCH...
//
// A build finds the same faults in our code and its imports, but compiles all dependencies for each platform: minutes.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/tools/go/packages"
)

const module = "github.com/foldgate/foldgate"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: platforms GOOS/GOARCH...")
		os.Exit(2)
	}
	failed := false
	for _, platform := range os.Args[1:] {
		fmt.Println("== types for", platform)
		faults, err := check(platform)
		if err != nil {
			faults = append(faults, err)
		}
		for _, f := range faults {
			fmt.Fprintln(os.Stderr, f)
		}
		failed = failed || len(faults) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the faults in the packages of the module, without their tests. Of dependencies it checks all but the bodies
// of functions.
func check(platform string) (faults []error, err error) {
	system, processor, ok := strings.Cut(platform, "/")
	if !ok {
		return nil, fmt.Errorf("platform %q: want GOOS/GOARCH, such as windows/amd64", platform)
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	loaded, err := packages.Load(&packages.Config{
		Mode: packages.NeedName | packages.NeedImports | packages.NeedDeps | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesSizes,
		Env:  append(os.Environ(), "CGO_ENABLED=0", "GOOS="+system, "GOARCH="+processor),
		ParseFile: func(files *token.FileSet, path string, src []byte) (*ast.File, error) {
			f, err := parser.ParseFile(files, path, src, parser.SkipObjectResolution)
			if in, e := filepath.Rel(root, path); err == nil && (e != nil || strings.HasPrefix(in, "..")) {
				dropBodies(f)
			}
			return f, err
		},
	}, "./...")
	if err != nil {
		return nil, err
	}
	packages.Visit(loaded, nil, func(p *packages.Package) {
		for _, e := range p.Errors {
			if strings.HasPrefix(p.PkgPath, module) || !strings.HasSuffix(e.Msg, " and not used") { // an import, in a body that is gone
				faults = append(faults, e)
			}
		}
	})
	return faults, nil
}

// dropBodies replaces the bodies of the functions of a dependency, on which its types don't depend, by an endless
// loop: that needs no return.
func dropBodies(f *ast.File) {
	for _, d := range f.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			f.Body.List = []ast.Stmt{&ast.ForStmt{Body: &ast.BlockStmt{}}}
		}
	}
}
