package files

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/foldgate/foldgate/proxy/conn"
)

// tree writes files into a new directory: a name that ends in / is a
// directory, a value that starts with "->" a symbolic link to the rest.
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		p := filepath.Join(dir, filepath.FromSlash(name))
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(p, 0o755))
			continue
		}
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		if target, ok := strings.CutPrefix(content, "->"); ok {
			must(t, os.Symlink(target, p))
			continue
		}
		must(t, os.WriteFile(p, []byte(content), 0o644))
	}
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func serve(t testing.TB, roots ...string) *Server {
	t.Helper()
	s, err := New(roots)
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// result is what a client reads of a tools/call result.
type result struct {
	Content []struct {
		Type, Text string
	}
	IsError bool
}

// call runs a tool and returns its text, with "error: " before a failure.
func call(t testing.TB, s *Server, name, args string) string {
	t.Helper()
	return callCtx(t, t.Context(), s, name, args)
}

func callCtx(t testing.TB, ctx context.Context, s *Server, name, args string) string {
	t.Helper()
	raw := s.run(ctx, name, json.RawMessage(args))
	if raw == nil {
		t.Fatalf("there is no tool %s", name)
	}
	var r result
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("Call(%s, %s) = %s: %v", name, args, raw, err)
	}
	if len(r.Content) != 1 || r.Content[0].Type != "text" {
		t.Fatalf("Call(%s, %s) = %s, want one text block", name, args, raw)
	}
	if r.IsError {
		return "error: " + r.Content[0].Text
	}
	return r.Content[0].Text
}

// want fails unless got is want; a want that ends in "…" is a prefix, one that
// starts with it a part.
func want(t testing.TB, what, got, want string) {
	t.Helper()
	if part, ok := strings.CutPrefix(want, "…"); ok {
		if !strings.Contains(got, part) {
			t.Errorf("%s = %q, want it to contain %q", what, got, part)
		}
		return
	}
	if head, ok := strings.CutSuffix(want, "…"); ok {
		if !strings.HasPrefix(got, head) {
			t.Errorf("%s = %q, want it to start with %q", what, got, head)
		}
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestConfinement(t *testing.T) {
	outside := tree(t, map[string]string{"secret.txt": "OUTSIDE", "dir/more.txt": "OUTSIDE"})
	dir := tree(t, map[string]string{
		"in.txt":           "inside\n",
		"sub/deep.txt":     "deep\n",
		"link":             "->in.txt",
		"sub/up":           "->../in.txt",
		"out-file":         "->" + outside + "/secret.txt",
		"out-dir":          "->" + outside,
		"out-relative":     "->../../../../../../../../etc/passwd",
		"sub/out-chain":    "->../out-dir",
		"loop":             "->loop",
		"dangling":         "->nowhere",
		"back-in-absolute": "->/proc/self/cwd",
	})
	s := serve(t, dir)
	for _, tt := range []struct{ path, want string }{
		{"in.txt", "inside\n"},
		{"./sub/../in.txt", "inside\n"},
		{"link", "inside\n"},
		{"sub/up", "inside\n"},
		{filepath.Join(dir, "sub", "deep.txt"), "deep\n"},
		{"..", "error: path .. leads out…"},
		{"../" + filepath.Base(dir) + "/in.txt", "error: path ../…"},
		{"sub/../../in.txt", "error: path sub/../../in.txt leads out…"},
		{"/etc/passwd", "error: path /etc/passwd is outside…"},
		{outside + "/secret.txt", "error: path /…"},
		{dir + "/../x", "error: path /…"},
		{dir + "x/in.txt", "error: path /…"},
		{"out-file", "error: out-file is or passes a symbolic link…"},
		{"out-dir/secret.txt", "error: out-dir/secret.txt is or passes a symbolic link…"},
		{"out-relative", "error: out-relative is or passes a symbolic link…"},
		{"sub/out-chain/dir/more.txt", "error: sub/out-chain/dir/more.txt is or passes a symbolic link…"},
		{"back-in-absolute/x", "error: back-in-absolute/x is or passes a symbolic link…"},
		{"loop", "error: loop: too many levels of symbolic links"},
		{"dangling", "error: dangling does not exist…"},
		{"in.txt/x", "error: in.txt/x does not exist…"},
		{"in\x00.txt", "error: path \"in\\x00.txt\" contains a NUL byte"},
		{"", "error: invalid arguments: \"path\" is required"},
		{"sub", "error: sub is a directory: use list_directory"},
	} {
		args, _ := json.Marshal(map[string]string{"path": tt.path})
		want(t, "read_file "+tt.path, call(t, s, "read_file", string(args)), tt.want)
	}
	for _, tool := range []string{"list_directory", "search_files", "grep"} {
		for _, p := range []string{"out-dir", "sub/out-chain/dir", "..", outside} {
			args, _ := json.Marshal(map[string]string{"path": p, "pattern": "OUTSIDE"})
			if tool == "list_directory" {
				args, _ = json.Marshal(map[string]string{"path": p})
			}
			got := call(t, s, tool, string(args))
			if !strings.HasPrefix(got, "error: ") || strings.Contains(got, "more.txt") {
				t.Errorf("%s %s = %q, want an error", tool, p, got)
			}
		}
	}
	want(t, "grep", call(t, s, "grep", `{"pattern":"OUTSIDE"}`), "(no match in 2 text files)")
}

// What is hidden is neither listed nor searched nor read, by whatever path.
func TestHidden(t *testing.T) {
	dir := tree(t, map[string]string{
		"a.txt": "needle", "state/trace/1.jsonl": "needle", "state2/b": "needle", "sub/state/c": "needle",
		"link": "->state", "deep": "->state/trace", "here": "->.",
	})
	s, err := New([]string{dir}, filepath.Join(dir, "state"), filepath.Join(dir, "not", "there"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	for _, path := range []string{"state", "state/trace", "state/trace/1.jsonl", "./sub/../state/trace/1.jsonl", "link/trace/1.jsonl", "deep/1.jsonl", "state/nope", filepath.Join(dir, "state", "trace", "1.jsonl")} {
		for tool, member := range map[string]string{"read_file": "", "list_directory": "", "grep": `,"pattern":"needle"`, "search_files": `,"pattern":"*"`} {
			got := call(t, s, tool, fmt.Sprintf(`{"path":%q%s}`, path, member))
			if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, "foldgate's own and may not") {
				t.Errorf("%s of %s: %q, want a refusal", tool, path, got)
			}
		}
	}
	want(t, "list", call(t, s, "list_directory", `{}`), "a.txt 6\ndeep@\nhere@\nlink@\nstate2/\nsub/")
	want(t, "list through a link", call(t, s, "list_directory", `{"path":"here"}`), "a.txt 6\ndeep@\nhere@\nlink@\nstate2/\nsub/")
	want(t, "search", call(t, s, "search_files", `{"pattern":"**"}`), "a.txt\nstate2/b\nsub/state/c")
	want(t, "grep", call(t, s, "grep", `{"pattern":"needle"}`), "a.txt\n1:needle\n\nstate2/b\n1:needle\n\nsub/state/c\n1:needle")
	want(t, "search through a link", call(t, s, "search_files", `{"path":"here","pattern":"**"}`), "here/a.txt\nhere/state2/b\nhere/sub/state/c")
	want(t, "grep through a link", call(t, s, "grep", `{"path":"here/here","pattern":"needle","glob":"state*/**"}`), "here/here/state2/b\n1:needle")
	// A file can be hidden, under each of its names.
	must(t, os.WriteFile(filepath.Join(dir, "sub", "keys.env"), []byte("needle"), 0o600))
	must(t, os.Link(filepath.Join(dir, "sub", "keys.env"), filepath.Join(dir, "hard")))
	file, err := New([]string{dir}, filepath.Join(dir, "sub", "keys.env"))
	must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	for _, path := range []string{"sub/keys.env", "here/sub/keys.env", "hard"} {
		if got := call(t, file, "read_file", fmt.Sprintf(`{"path":%q}`, path)); !strings.Contains(got, "foldgate's own and may not") {
			t.Errorf("read_file of %s: %q, want a refusal", path, got)
		}
	}
	want(t, "grep beside a hidden file", call(t, file, "grep", `{"path":"sub","pattern":"needle"}`), "sub/state/c\n1:needle")
	must(t, os.Remove(filepath.Join(dir, "hard")))
	// A hidden directory may be made later, and the root may be named through a link.
	late, err := New([]string{filepath.Join(dir, "here")}, filepath.Join(dir, "here", "later"))
	must(t, err)
	t.Cleanup(func() { _ = late.Close() })
	must(t, os.Mkdir(filepath.Join(dir, "later"), 0o755))
	want(t, "list with a late directory", call(t, late, "list_directory", `{}`), "a.txt 6\ndeep@\nhere@\nlink@\nstate/\nstate2/\nsub/")
	// A root that is hidden itself was asked for.
	s, err = New([]string{filepath.Join(dir, "state", "trace")}, filepath.Join(dir, "state"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	want(t, "a root in it", call(t, s, "read_file", `{"path":"1.jsonl"}`), "needle")
}

// A link that changes between a lookup and an open must not let anything out:
// the property is that no call ever returns the content from outside.
func TestSymlinkRace(t *testing.T) {
	outside := tree(t, map[string]string{"f": "OUTSIDE"})
	dir := tree(t, map[string]string{"real/f": "inside", "d": "->real"})
	s := serve(t, dir)
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := []string{"real", outside}[i%2]
			tmp := filepath.Join(dir, "tmp")
			_ = os.Symlink(target, tmp)
			_ = os.Rename(tmp, filepath.Join(dir, "d"))
		}
	}()
	inside := 0
	for range 3000 {
		switch got := call(t, s, "read_file", `{"path":"d/f"}`); {
		case got == "inside":
			inside++
		case !strings.HasPrefix(got, "error: "):
			t.Fatalf("read_file d/f = %q", got)
		}
	}
	close(stop)
	<-done
	t.Logf("%d of 3000 reads met the link while it led inside", inside)
}

// A link that leads into a hidden directory only after the lookup does not open it.
func TestHiddenDirectoryRace(t *testing.T) {
	dir := tree(t, map[string]string{"state/trace/1": "SECRET", "state/": "", "f": "->state/trace/1", "d": "->state", "here": "->.", "a.txt": "x"})
	s, err := New([]string{dir}, filepath.Join(dir, "state"))
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	for _, rel := range []string{"f", "d", "d/trace", "d/trace/1", "state", "state/trace/1", "here/state", "here/d/trace/1", "here/here/f"} {
		f, _, err := s.open(place{s.roots[0], rel}) // what a call does after its lookup
		if err == nil {
			_ = f.Close()
			t.Errorf("%s was opened", rel)
		} else if !strings.Contains(err.Error(), "foldgate's own and may not") {
			t.Errorf("open(%s) = %v, want a refusal", rel, err)
		}
	}
	for _, rel := range []string{".", "a.txt", "here", "here/a.txt"} {
		f, _, err := s.open(place{s.roots[0], rel})
		must(t, err)
		_ = f.Close()
	}
}

func TestSpecialFiles(t *testing.T) {
	dir := tree(t, map[string]string{"a.txt": "x\n"})
	must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	s := serve(t, dir)
	want(t, "read_file", call(t, s, "read_file", `{"path":"pipe"}`), "error: pipe is neither a regular file nor a directory…")
	want(t, "grep", call(t, s, "grep", `{"pattern":"x"}`), "a.txt\n1:x")
	want(t, "list_directory", call(t, s, "list_directory", `{}`), "a.txt 2\npipe")
	must(t, os.Chmod(filepath.Join(dir, "a.txt"), 0))
	if os.Getuid() != 0 {
		want(t, "read_file", call(t, s, "read_file", `{"path":"a.txt"}`), "error: a.txt may not be read: permission denied")
	}
}

func TestSeveralRoots(t *testing.T) {
	one, two := tree(t, map[string]string{"x/a.txt": "one\n"}), tree(t, map[string]string{"x/a.txt": "two\n"})
	s := serve(t, one+"/x", two+"/x")
	want(t, "list", call(t, s, "list_directory", `{}`), "x/\nx-2/")
	want(t, "list", call(t, s, "list_directory", `{"path":"x-2"}`), "a.txt 4")
	want(t, "read", call(t, s, "read_file", `{"path":"x-2/a.txt"}`), "two\n")
	want(t, "read", call(t, s, "read_file", fmt.Sprintf(`{"path":%q}`, two+"/x/a.txt")), "two\n")
	want(t, "read", call(t, s, "read_file", `{"path":"a.txt"}`), "error: path a.txt is in no root: start it with one of the roots x/, x-2/")
	want(t, "read", call(t, s, "read_file", `{"path":"."}`), "error: . is a directory: use list_directory")
	want(t, "search", call(t, s, "search_files", `{"pattern":"*.txt"}`), "x/a.txt\nx-2/a.txt")
	want(t, "search", call(t, s, "search_files", `{"pattern":"x-2/*.txt"}`), "x-2/a.txt")
	want(t, "grep", call(t, s, "grep", `{"pattern":"t?wo|one"}`), "x/a.txt\n1:one\n\nx-2/a.txt\n1:two")
}

func TestNewFails(t *testing.T) {
	dir := tree(t, map[string]string{"f": ""})
	for _, roots := range [][]string{nil, {""}, {dir + "/f"}, {dir, dir + "/nowhere"}} {
		s, err := New(roots)
		if err == nil {
			_ = s.Close()
			t.Errorf("New(%q) succeeded, want an error", roots)
		} else if len(roots) > 0 && !strings.Contains(err.Error(), roots[len(roots)-1]) {
			t.Errorf("New(%q) = %q, want it to name the root", roots, err)
		}
	}
}

func TestCloseAndUnknownTool(t *testing.T) {
	s := serve(t, tree(t, map[string]string{"f": "x"}))
	m, err := s.Call(t.Context(), &conn.Request{Method: "tools/call", Params: json.RawMessage(`{"name":"write_file"}`)})
	if err != nil || !strings.Contains(string(m.Error), `unknown tool: \"write_file\"`) {
		t.Errorf("Call(write_file) = %s, %v, want an unknown tool", m.Error, err)
	}
	must(t, s.Close())
	want(t, "read_file", call(t, s, "read_file", `{"path":"f"}`), "error: the file server is shutting down")
	if _, err := s.Call(t.Context(), &conn.Request{Method: "tools/list"}); !errors.Is(err, conn.ErrClosed) {
		t.Errorf("Call after Close = %v, want ErrClosed", err)
	}
}

func TestCancelled(t *testing.T) {
	s := serve(t, tree(t, map[string]string{"f": "x\n", "d/g": "y\n"}))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), -1)
	defer cancel()
	for tool, args := range map[string]string{
		"read_file": `{"path":"f"}`, "list_directory": `{}`, "search_files": `{"pattern":"*"}`, "grep": `{"pattern":"x"}`,
	} {
		want(t, tool, callCtx(t, cancelled, s, tool, args), "error: stopped before the end: cancelled")
		want(t, tool, callCtx(t, late, s, tool, args), "error: stopped before the end: timed out…")
	}
	want(t, "grep one file", callCtx(t, cancelled, s, "grep", `{"pattern":"x","path":"f"}`), "error: stopped before the end: cancelled")
}
