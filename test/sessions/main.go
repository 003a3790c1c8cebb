// Command sessions plays what agents read of a repository at several thresholds of folding, and prints
// what it costs them. The commits of the repository say which files a session needs, and which
// declarations of them: those that the commit changed. Sizes, previews and parts are made by the
// packages that the gateway uses; there is no model.
//
//		go run ./test/sessions [-repo DIR] [-commits N]
//
//	  - exploring: reads the files of the first package that the commit changed, up to ten, and of each
//	    the declarations that the commit changed. Most files are read in vain.
//	  - reviewing: reads the changed files, and of each the changed declarations.
//	  - editing: reads the changed files, and wants each whole.
//
// Of a file that folds, the first two read the declarations: by the line that the preview shows, or
// after a grep for the name. Editing reads the whole, in one read if it can.
package main

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/interceptor/preview"
	"github.com/foldgate/foldgate/interceptor/preview/extract"
)

const (
	previewTokens = 400 // results.preview_tokens
	readMost      = 8000
	reserve       = 256 // what a read leaves to a branch
	readArguments = 45  // tokens of a branch_read
	fileArguments = 15  // tokens of a read of a file
	newBranch     = 160 // tokens of a branch_create and a branch_return
	guess         = 60  // lines that an agent reads if it does not know the end
	handle        = "res_0123456789abcdefghjkmnpqrs"
)

func main() {
	repo := flag.String("repo", ".", "a git repository of Go files")
	commits := flag.Int("commits", 60, "how many commits")
	flag.Parse()
	if err := run(*repo, *commits); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// session is what one commit makes an agent read.
type session struct{ explore, changed []*file }

// file is a Go file before the commit.
type file struct {
	text    string
	tokens  int
	needs   []declaration
	preview string
}

type declaration struct {
	name     string
	from, to int // lines
}

type player struct {
	counter *budget.Counter
	files   map[string]*file // by commit and path
}

func run(repo string, commits int) error {
	counter, err := budget.NewCounter("o200k_base")
	if err != nil {
		return err
	}
	p := &player{counter, map[string]*file{}}
	sessions, err := p.sessions(repo, commits)
	if err != nil {
		return err
	}
	var sizes []int
	for _, f := range p.files {
		sizes = append(sizes, f.tokens)
	}
	slices.Sort(sizes)
	fmt.Printf("%d sessions, %d files, of %d tokens in the median, %d at 90 %%\n\n", len(sessions), len(sizes), sizes[len(sizes)/2], sizes[len(sizes)*9/10])
	fmt.Println("| in | whole up to | exploring: tokens | calls | reviewing: tokens | calls | editing: tokens | calls |")
	fmt.Println("|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, s := range []struct {
		budget    int // of each branch, 0 for main
		threshold int
	}{
		{0, 1000}, {0, 2000}, {0, 4000}, {0, 8000}, {0, 16000}, {0, math.MaxInt / 2},
		{8192, 512}, {8192, 1024}, {8192, 2048}, {8192, 4096}, {8192, 8192},
		{16384, 2048}, {16384, 4096}, {32768, 4096}, {32768, 8192},
	} {
		where := "main"
		if s.budget > 0 {
			where = fmt.Sprintf("branches of %d", s.budget)
		}
		upTo := strconv.Itoa(s.threshold)
		if s.threshold > 1<<30 {
			upTo = "all"
		}
		fmt.Printf("| %s | %s", where, upTo)
		for _, kind := range []string{"exploring", "reviewing", "editing"} {
			tokens, calls := 0, 0
			for _, session := range sessions {
				a := agent{p: p, threshold: s.threshold + s.threshold/4, budget: s.budget}
				a.play(kind, session)
				tokens, calls = tokens+a.tokens, calls+a.calls
			}
			fmt.Printf(" | %d | %.1f", tokens/len(sessions), float64(calls)/float64(len(sessions)))
		}
		fmt.Println(" |")
	}
	return nil
}

// agent reads in main, or in branches: if what is left of one is too little, it opens another.
type agent struct {
	p                      *player
	threshold, budget      int
	tokens, calls, charged int // charged to the branch that is open
}

func (a *agent) left() int {
	if a.budget == 0 {
		return math.MaxInt / 2
	}
	return a.budget - a.charged
}

// pay counts a call.
func (a *agent) pay(tokens int) {
	if a.left() < tokens+2*reserve && a.charged > 0 {
		a.charged, a.tokens = 0, a.tokens+newBranch
	}
	a.calls, a.tokens, a.charged = a.calls+1, a.tokens+tokens, a.charged+tokens
}

func (a *agent) play(kind string, s session) {
	files := s.changed
	if kind == "exploring" {
		files = s.explore
	}
	for _, f := range files {
		if f.tokens <= a.threshold && f.tokens+fileArguments+reserve <= max(a.left(), a.budget-reserve) {
			a.pay(fileArguments + f.tokens)
			continue
		}
		a.pay(fileArguments + a.p.counter.Count(f.preview))
		if kind == "editing" {
			a.whole(f)
			continue
		}
		for _, d := range f.needs {
			a.part(f, d)
		}
	}
}

// whole reads a file in as few reads as there can be.
func (a *agent) whole(f *file) {
	for rest := f.tokens; rest > 0; {
		n := min(rest, readMost)
		if a.budget > 0 {
			n = min(n, max(a.left()-reserve-readArguments, (a.budget-reserve)/2))
		}
		a.pay(readArguments + n)
		rest -= n
	}
}

// part reads a declaration: from the line that the preview shows, or that a grep finds.
func (a *agent) part(f *file, d declaration) {
	end := d.from + guess - 1
	if at := strings.Index(f.preview, fmt.Sprintf("\n%d: ", d.from)); at >= 0 {
		if next := strings.IndexByte(f.preview[at+1:], '\n'); next >= 0 { // the preview's next entry may be the end
			number, _, _ := strings.Cut(f.preview[at+2+next:], ":")
			if n, err := strconv.Atoi(number); err == nil && n > d.from {
				end = min(n-1, d.from+2*guess)
			}
		}
	} else if found, err := extract.Grep(context.Background(), f.text, extract.Pattern{Expr: `\b` + d.name + `\b`}); err == nil {
		a.pay(readArguments + min(a.p.counter.Count(found), 2000))
	}
	for from := d.from; from <= d.to; from, end = end+1, end+guess {
		text, err := extract.Lines(f.text, fmt.Sprintf("%d-%d", from, end))
		if err != nil {
			return
		}
		a.pay(readArguments + a.p.counter.Count(text))
	}
}

// sessions returns those of the last commits that changed Go files.
func (p *player) sessions(repo string, commits int) (all []session, err error) {
	git := func(args ...string) string {
		out, failed := exec.Command("git", append([]string{"-C", repo}, args...)...).Output()
		if failed != nil {
			err = fmt.Errorf("git %s: %w", strings.Join(args, " "), failed)
		}
		return string(out)
	}
	for _, commit := range strings.Fields(git("log", "--no-merges", "--format=%H", "--diff-filter=M", "-n", strconv.Itoa(commits), "--", "*.go")) {
		var s session
		hunks := changes(git("diff", "-U0", "--diff-filter=M", commit+"^", commit, "--", "*.go"))
		for _, h := range hunks {
			if len(s.changed) < 10 {
				s.changed = append(s.changed, p.file(git("show", commit+"^:"+h.path), commit+h.path, h.lines))
			}
		}
		if len(hunks) == 0 {
			continue
		}
		dir := path.Dir(hunks[0].path)
		for _, name := range strings.Fields(git("ls-tree", "--name-only", commit+"^", dir+"/")) {
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || len(s.explore) == 10 {
				continue
			}
			var lines []int
			for _, h := range hunks {
				if h.path == name {
					lines = h.lines
				}
			}
			s.explore = append(s.explore, p.file(git("show", commit+"^:"+name), commit+name, lines))
		}
		if all = append(all, s); err != nil {
			return nil, err
		}
	}
	if all == nil && err == nil {
		err = fmt.Errorf("%s has no commits that change Go files", repo)
	}
	return all, err
}

// change is a file and the lines that a commit changed in it.
type change struct {
	path  string
	lines []int
}

func changes(diff string) (all []change) {
	for l := range strings.Lines(diff) {
		if name, ok := strings.CutPrefix(l, "--- a/"); ok {
			all = append(all, change{path: strings.TrimSpace(name)})
		}
		var from, n int
		if _, err := fmt.Sscanf(l, "@@ -%d,%d", &from, &n); err != nil {
			if _, err := fmt.Sscanf(l, "@@ -%d", &from); err != nil {
				continue
			}
			n = 1
		}
		for i := range max(n, 1) {
			all[len(all)-1].lines = append(all[len(all)-1].lines, from+i)
		}
	}
	return all
}

// file returns a file with the declarations that have one of the lines.
func (p *player) file(text, key string, lines []int) *file {
	if f := p.files[key]; f != nil {
		return f
	}
	f := &file{text: text, tokens: p.counter.Count(text)}
	p.files[key] = f
	if made, ok := preview.Make(preview.Source{Text: text, Tokens: f.tokens, Handle: handle, Whole: f.tokens}, previewTokens, p.counter.Count); ok {
		f.preview = made.Text
	}
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return f
	}
	for _, d := range parsed.Decls {
		need := declaration{from: set.Position(d.Pos()).Line, to: set.Position(d.End()).Line}
		switch d := d.(type) {
		case *ast.FuncDecl:
			need.name = d.Name.Name
		case *ast.GenDecl:
			if t, ok := d.Specs[0].(*ast.TypeSpec); ok {
				need.name = t.Name.Name
			} else {
				need.name = d.Tok.String()
			}
		}
		if slices.ContainsFunc(lines, func(l int) bool { return l >= need.from && l <= need.to }) {
			f.needs = append(f.needs, need)
		}
	}
	return f
}
