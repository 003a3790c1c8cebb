//go:build e2e

package previews

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/testbin"
)

// The corpus has the outputs that previews are improved for, the held-out one those that they are not.
var (
	//go:embed outputs.txt
	outputScripts string
	//go:embed heldout/outputs.txt
	heldOutScripts string
)

// The history that the outputs of git show, so that their figures stay.
const history = "b8389e5a28eac541f8c38234d23d502234f272da"

const (
	makeTimeout = 40 * time.Second // of one script
	maxBytes    = 250_000          // of one output; the rest is cut, as the file server would
	absent      = 77               // exit status of a script whose program is not installed
)

// prelude is what every script starts with.
const prelude = `m() { awk -v p="$1" '$1 == p {print $2; exit}' "$MODULES"; }
`

// An output is one text as a program printed it, or as a package has it.
type output struct {
	sort, name, script string

	text string
	err  error         // why it could not be made here
	cpu  time.Duration // to make it
}

func (o *output) String() string { return o.sort + "/" + o.name }

// file is the name of the file that has the output.
func (o *output) file() string { return o.sort + "." + o.name }

// parseOutputs returns the scripts of a text that prepare, and those that make outputs.
func parseOutputs(t *testing.T, scripts string) (prepare, outputs []*output) {
	t.Helper()
	seen := map[string]bool{}
	for i, line := range strings.Split(scripts, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		part := strings.SplitN(line, "\t", 3)
		if len(part) != 3 {
			part = strings.SplitN(strings.Replace(line, " ", "\t", 1), "\t", 3)
		}
		if len(part) != 3 || seen[part[0]+"/"+part[1]] {
			t.Fatalf("outputs.txt:%d: want a new sort and name, and a script, with tabs between them: %q", i+1, line)
		}
		o := &output{sort: part[0], name: part[1], script: part[2]}
		seen[o.String()] = true
		if o.sort == "prepare" {
			prepare = append(prepare, o)
		} else {
			outputs = append(outputs, o)
		}
	}
	return prepare, outputs
}

// A maker runs scripts.
type maker struct {
	dir     string
	env     []string
	prepare []*output
}

var prepared *maker // of all tests

// newMaker runs the scripts that prepare, once for all tests.
func newMaker(t *testing.T) *maker {
	t.Helper()
	if prepared == nil {
		m := unprepared(t)
		m.prepare, _ = parseOutputs(t, outputScripts)
		m.runAll(t.Context(), m.prepare)
		prepared = m
	}
	for _, o := range prepared.prepare {
		if o.err != nil {
			t.Logf("%s: %v", o, o.err)
		}
	}
	return prepared
}

func unprepared(t *testing.T) *maker {
	t.Helper()
	dir, err := os.MkdirTemp(workDir, "maker-")
	if err != nil {
		t.Fatal(err)
	}
	root, err := testbin.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := func(program string, args ...string) string {
		t.Helper()
		cmd := exec.Command(program, args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
	node, err := testbin.Node()
	if err != nil {
		t.Fatal(err)
	}
	modules, err := filepath.EvalSymlinks(filepath.Join(root, "test", "npm", "node_modules"))
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "modules")
	write(t, list, run("go", "list", "-deps", "-test", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}", "./..."))
	at := history
	if exec.Command("git", "-C", root, "cat-file", "-e", history+"^{commit}").Run() != nil {
		at = "HEAD"
	}
	ready := filepath.Join(dir, "prepared")
	if err := os.Mkdir(ready, 0o700); err != nil {
		t.Fatal(err)
	}
	return &maker{dir: dir, env: append(os.Environ(),
		"LC_ALL=C.UTF-8", "GOPROXY=off", "GIT_PAGER=cat", "NO_COLOR=1", "GIT_CONFIG_COUNT=0",
		"PATH="+filepath.Dir(node)+string(filepath.ListSeparator)+os.Getenv("PATH"),
		"G="+run("go", "env", "GOROOT"), "N="+modules, "R="+root, "T="+ready, "H="+at, "MODULES="+list)}
}

// runAll runs scripts beside each other.
func (m *maker) runAll(ctx context.Context, all []*output) {
	next := make(chan *output)
	var wg sync.WaitGroup
	for range cmp.Or(runtime.NumCPU(), 2) + 1 {
		wg.Go(func() {
			for o := range next {
				m.run(ctx, o)
			}
		})
	}
	for _, o := range all {
		next <- o
	}
	close(next)
	wg.Wait()
}

// run runs the script of o in a directory of its own. Its process group ends with it.
func (m *maker) run(ctx context.Context, o *output) {
	dir := filepath.Join(m.dir, "prepared")
	if o.sort != "prepare" {
		if dir, o.err = os.MkdirTemp(m.dir, "w"); o.err != nil {
			return
		}
	}
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", prelude+o.script)
	cmd.Dir, cmd.Env = dir, append(slices.Clip(m.env), "W="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	group(cmd)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if s := cmd.ProcessState; s != nil {
		o.cpu = s.UserTime() + s.SystemTime()
	}
	switch {
	case ctx.Err() != nil:
		o.err = fmt.Errorf("not ready after %v", makeTimeout)
	case cmd.ProcessState == nil:
		o.err = err
	case cmd.ProcessState.ExitCode() == absent:
		o.err = fmt.Errorf("its program is not installed")
	}
	// A program that fails is no fault: most failing tests and builds do.
	text := out.Bytes()
	o.text = strings.ToValidUTF8(string(text[:min(len(text), maxBytes)]), "\uFFFD")
}

// makeOutputs makes the outputs whose name has the part only. Those that failed have an err.
func makeOutputs(t *testing.T, scripts, only string) (outputs []*output) {
	t.Helper()
	_, all := parseOutputs(t, scripts)
	var toMake []*output
	for _, o := range all {
		if !strings.Contains(o.String(), only) {
			continue
		}
		outputs = append(outputs, o)
		text, err := os.ReadFile(filepath.Join(*kept, o.file()))
		if o.text = string(text); *kept == "" || err != nil {
			toMake = append(toMake, o)
		}
	}
	if len(toMake) > 0 {
		newMaker(t).runAll(t.Context(), toMake)
	}
	return outputs
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
