package interceptor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// foldRule is one rule for all tools.
func foldRule(r FoldRule) func(server, tool string) FoldRule {
	return func(string, string) FoldRule { return r }
}

// testPolicy is the default: results are redacted, arguments reported.
type testPolicy map[string]ScrubPolicy

func (p testPolicy) of(server string) ScrubPolicy {
	if own, ok := p[server]; ok {
		return own
	}
	return ScrubPolicy{ToHost: Redact, ToServer: Report}
}

var testScrubber = sync.OnceValues(func() (*scrub.Scrubber, error) { return scrub.New(scrub.Options{}) })

func testBoundary(t testing.TB) *Boundary {
	t.Helper()
	s, err := testScrubber()
	if err != nil {
		t.Fatal(err)
	}
	return &Boundary{Scrubber: s, Policy: testPolicy{
		"block": {ToHost: Block, ToServer: Block}, "off": {ToHost: Off, ToServer: Off}, "redact": {ToHost: Redact, ToServer: Redact},
	}.of}
}

// secret is one that the rules find, in two pieces so that this file holds none.
const secret = "AK" + "IAQYLPMN5HHHFPZAM2"

// The boundary looks at every part of a message, in both directions, and does
// with it what the policy of the server says.
func TestBoundary(t *testing.T) {
	b := testBoundary(t)
	const gone = "[REDACTED:aws-access-token]"
	type parts struct {
		Body, Text, Extra, Header string
		Verdict                   Verdict
		Found                     int
		clean                     bool
	}
	for _, tc := range []struct {
		server string
		toHost bool
		always bool
		want   parts
	}{
		{"redact", true, false, parts{`{"a":"` + gone + `"}`, gone, `,"x":"` + gone + `"`, gone, Redacted, 4, true}},
		{"redact", false, false, parts{`{"a":"` + gone + `"}`, gone, `,"x":"` + gone + `"`, gone, Redacted, 4, true}},
		{"", false, false, parts{`{"a":"` + secret + `"}`, secret, `,"x":"` + secret + `"`, secret, Passed, 4, false}},
		{"block", true, false, parts{"", withheldText, "", "", Blocked, 2, true}},
		{"off", true, false, parts{`{"a":"` + secret + `"}`, secret, `,"x":"` + secret + `"`, secret, Passed, 0, false}},
		{"off", true, true, parts{`{"a":"` + gone + `"}`, gone, `,"x":"` + gone + `"`, gone, Redacted, 4, true}},
	} {
		m := Message{
			Server: tc.server, Always: tc.always, Body: []byte(`{"a":"` + secret + `"}`), Text: secret,
			Extra: []byte(`,"x":"` + secret + `"`), Header: http.Header{"Mcp-Param-K": {secret}},
		}
		if tc.toHost {
			b.ToHost(t.Context(), &m)
		} else {
			b.ToServer(t.Context(), &m)
		}
		got := parts{string(m.Body), m.Text, string(m.Extra), m.Header.Get("Mcp-Param-K"), m.Verdict, len(m.Found), m.clean}
		if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(parts{})); diff != "" {
			t.Errorf("server %q, toHost %v, always %v (-want +got):\n%s", tc.server, tc.toHost, tc.always, diff)
		}
	}
	m := Message{Server: "redact", Body: []byte(`{"a":"` + secret), Extra: []byte(`,"x":"` + secret + `"`)}
	if b.ToHost(t.Context(), &m); m.Verdict != Withheld || m.Body != nil || m.Extra != nil || m.Err == nil {
		t.Errorf("a message that can't be read is %+v, want it withheld", m)
	}
	if got := b.server(&Call{Target: Target{Candidates: []string{"off", "block", "redact"}}}); got != "block" {
		t.Errorf("the strictest policy is that of %q, want block", got)
	}
}

// boundaryUsers are the files that may call the scrubber or write to the
// journal, each with its reason.
var boundaryUsers = map[string]string{
	"interceptor/boundary.go": "the boundary",
	"interceptor/trace.go":    "the recorder; it checks what the boundary lets pass with secrets",
	"proxy/engine/engine.go":  "the messages of a branch, before they are stored",
	"cmd/foldgate/text.go":    "the command that scrubs files",
	"cmd/foldgate/connect.go": "the command that shows what it changes in a host's file",
	"cmd/foldgate/trace.go":   "the command that looks for secrets in a trace",
	"proxy/config/load.go":    "the faults of a configuration, which are found without a gateway",
}

// A method with a secret blocks its message, as the trace says, unless nothing is scrubbed.
func TestMethodWithASecret(t *testing.T) {
	for action, want := range map[Action]Verdict{Redact: Blocked, Block: Blocked, Off: Passed} {
		b := testBoundary(t)
		b.Policy = testPolicy{"db": {ToHost: action}}.of
		m := Message{Server: "db", Method: "notifications/" + secret, Body: json.RawMessage(`{}`)}
		b.ToHost(t.Context(), &m)
		if m.Verdict != want || want == Blocked && (len(m.Found) != 1 || m.Found[0].Action != trace.Blocked) {
			t.Errorf("%s: verdict %d, want %d; findings %v", action, m.Verdict, want, m.Found)
		}
	}
}

// Nothing but the boundary calls the scrubber, and nothing but the recorder
// writes to the journal, with the exceptions that boundaryUsers names.
func TestOnlyTheBoundaryScrubs(t *testing.T) {
	const module = "github.com/foldgate/foldgate/"
	list := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,Dir,GoFiles", module+"...")
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	type pkg struct {
		ImportPath, Export, Dir string
		GoFiles                 []string
	}
	exports, ours := map[string]string{}, []pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		switch own := strings.TrimPrefix(p.ImportPath, module); {
		case own == p.ImportPath, own == "interceptor/scrub", own == "interceptor/trace": // the engines themselves
		case strings.HasPrefix(own, "test/"):
		default:
			ours = append(ours, p)
		}
	}
	fset := token.NewFileSet()
	conf := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	used := map[string]bool{}
	for _, p := range ours {
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
		info := &types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
		if _, err := conf.Check(p.ImportPath, fset, files, info); err != nil {
			t.Fatal(err)
		}
		for sel, what := range info.Selections {
			if what.Kind() == types.FieldVal {
				continue
			}
			switch recv := types.TypeString(what.Recv(), nil); {
			case strings.HasSuffix(recv, "interceptor/scrub.Scrubber"):
			case strings.HasSuffix(recv, "interceptor/trace.Journal") && sel.Sel.Name == "Append":
			default:
				continue
			}
			at := fset.Position(sel.Pos())
			name := strings.TrimPrefix(p.ImportPath, module) + "/" + filepath.Base(at.Filename)
			if used[name] = true; boundaryUsers[name] == "" {
				t.Errorf("%s:%d uses %s: take the boundary (boundary.go) or the recorder (trace.go)", name, at.Line, sel.Sel.Name)
			}
		}
	}
	for name, why := range boundaryUsers {
		if !used[name] {
			t.Errorf("%s (%s) uses neither the scrubber nor the journal: take it out of the list", name, why)
		}
	}
}

// Parameters that Trace could not check are not taken for checked: Scrub looks
// again and withholds them.
func TestUncheckedParametersAreWithheld(t *testing.T) {
	b := testBoundary(t)
	j, err := trace.Open(filepath.Join(t.TempDir(), "trace"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	chain := NewChain(func(context.Context, *Call) {}, Trace(&Recorder{Journal: j, Boundary: b, Payload: true, Log: slog.New(slog.DiscardHandler)}), Scrub(b))
	for params, want := range map[string]string{`{"a":"` + secret: "scrubbing_failed", `{"a":"` + secret + `"}`: "secret_in_arguments", `{"a":"b"}`: ""} {
		_, err := chain(t.Context(), &Call{Target: Target{Server: "block", Method: "x", Params: []byte(params), Forward: []byte(params)}},
			func(context.Context, *Call) (*Result, error) { return &Result{Body: []byte(`{}`)}, nil })
		var r *Refusal
		if errors.As(err, &r); (r == nil) != (want == "") || r != nil && r.Code != want {
			t.Errorf("%.8q…: %v, want %q", params, err, want)
		}
	}
}

// A call that is cancelled before its parameters or its result are looked at fails with the cause, in both
// directions. It is no call that a secret or the scrubber stopped.
func TestCancelledCallIsNotUnsafe(t *testing.T) {
	b, cause := testBoundary(t), errors.New("cancelled by the host")
	for _, direction := range []Direction{FromHost, ToHost} {
		for _, when := range []string{"before", "during"} {
			ctx, cancel := context.WithCancelCause(t.Context())
			if when == "before" {
				cancel(cause)
			}
			c := &Call{Target: Target{Server: "block", Method: "x", Params: []byte(`{}`), Forward: []byte(`{}`)}, Origin: Origin{Direction: direction}}
			res, err := Scrub(b)(func(context.Context, *Call) (*Result, error) {
				cancel(cause)
				return &Result{Body: []byte(`{"a":"` + secret + `"}`)}, nil
			})(ctx, c)
			c.Outcome.decide(err)
			if res != nil || !errors.Is(err, cause) || c.Outcome.Decision != "" {
				t.Errorf("direction %v, cancelled %s: %v, %v, decision %q; want the cause and no decision", direction, when, res, err, c.Outcome.Decision)
			}
		}
	}
}
