//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

func jsonField(t *testing.T, raw json.RawMessage, key string) json.RawMessage {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%s: %v", raw, err)
	}
	return m[key]
}

// A database that can't be used refuses the start with status 1 and the
// remedy, and is left as it is; put right, its branches are there again.
func TestUnusableDatabase(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, db string, raw []byte) []byte
		says  []string
	}{
		{"damaged", func(_ *testing.T, _ string, raw []byte) []byte {
			for i := 4096; i < len(raw); i++ {
				raw[i] = 0xa5
			}
			return raw
		}, []string{"damaged", "restore"}},
		{"not a database", func(_ *testing.T, _ string, raw []byte) []byte {
			return []byte(strings.Repeat("this is a text file\n", 400))
		}, []string{"not a database", "move"}},
		{"cut off", func(_ *testing.T, _ string, raw []byte) []byte { return raw[:len(raw)/2] }, []string{"damaged", "restore"}},
		{"newer", func(_ *testing.T, _ string, raw []byte) []byte { raw[63] = 99; return raw }, []string{"it was made by a newer foldgate (schema 99, this one knows up to ", "): use that version, or name another state_dir"}},
		{"of another program", func(_ *testing.T, _ string, raw []byte) []byte { raw[68] ^= 0xff; return raw }, []string{"it is the database of another program: name another state_dir"}},
		{"locked", func(t *testing.T, db string, raw []byte) []byte {
			f, err := os.OpenFile(db+".lock", os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil { // as another foldgate does
				t.Fatal(err)
			}
			return raw
		}, []string{"in use by another process", "stop that one"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), ""))
			c := g.connect(ctx, "stdio", mcpclient.Legacy)
			b := create(t, c, ctx, map[string]any{}).BranchID
			own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b, "message": "done"})))
			g.stop()
			db := filepath.Join(g.dir, "state", "foldgate.db")
			good := read(t, db)
			bad := tt.spoil(t, db, bytes.Clone(good))
			write(t, db, bad)
			cmd := exec.Command(foldgateBin, "run", "--config", g.config)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || stdout.Len() > 0 {
				t.Errorf("foldgate run: %v, want status 1; stdout %q", err, stdout.String())
			}
			for _, word := range append(tt.says, "foldgate.db") {
				if !strings.Contains(stderr.String(), word) {
					t.Errorf("stderr %q lacks %q", stderr.String(), word)
				}
			}
			if now, err := os.ReadFile(db); err != nil || !bytes.Equal(now, bad) {
				t.Errorf("the file was changed, %v", err)
			}
			t.Logf("%s", strings.TrimSpace(stderr.String()))
			if tt.name == "locked" {
				return
			}
			write(t, db, good)
			c = g.connect(ctx, "stdio", mcpclient.Legacy)
			if s := statusOf(t, c, ctx, b); s.Status != "completed" {
				t.Errorf("the branch is %+v once the file is restored", s)
			}
		})
	}
}

// After a crash, a start that fails ends no branches: the next one continues them.
func TestFailedStartsKeepBranches(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), `budgets: {limits: [{name: all, per: all, tokens: 1M, window: 1mo}]}
`))
	cmd := g.command("run", "--listen", "127.0.0.1:0")
	out := &buffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it is killed before, unless a step fails
	until(t, "the gateway listens", func() bool { return listening.MatchString(out.String()) })
	c := mcpclient.HTTP(listening.FindStringSubmatch(out.String())[1], mcpclient.Modern)
	startHost(t, ctx, c)
	b := create(t, c, ctx, map[string]any{}).BranchID
	_ = c.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()

	fails := func(says string, args ...string) {
		t.Helper()
		var exit *exec.ExitError
		cmd := g.command(append([]string{"run"}, args...)...)
		cmd.Stderr = nil
		_, err := cmd.Output()
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(exit.Stderr), says) {
			t.Errorf("foldgate run: %v, want status 1 and %q", err, says)
		}
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	fails("another program has this port", "--listen", other.Addr().String())
	limits := filepath.Join(g.dir, "state", "budgets.db")
	good := read(t, limits)
	write(t, limits, strings.Repeat("this is a text file\n", 400))
	fails("budgets.db", "--listen", "127.0.0.1:0")
	write(t, limits, good)

	c = g.connect(ctx, "http", mcpclient.Modern)
	if s := statusOf(t, c, ctx, b); s.Status != "active" {
		t.Errorf("after the starts that failed the branch is %+v, want it active", s)
	}
}

// A host may start the same configuration twice on stdio: the second process
// works in a directory of its own. A second HTTP server is a mistake.
func TestSecondProcess(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	first, second := g.connect(ctx, "stdio", mcpclient.Legacy), g.connect(ctx, "stdio", mcpclient.Legacy)
	for _, c := range []*mcpclient.Client{first, second} {
		call(t, c, ctx, "tools/list", `{}`)
		b := create(t, c, ctx, map[string]any{}).BranchID
		tool(t, c, ctx, "fake__text", jsonText(map[string]any{"text": "hello", "branch_id": b}))
		if s := statusOf(t, c, ctx, b); s.Status != "active" || s.BudgetUsed <= tokens(t, "work") {
			t.Errorf("branch_status = %+v", s)
		}
	}
	own := filepath.Join(g.dir, "state", "instance-2")
	if _, err := os.Stat(filepath.Join(own, "foldgate.db")); err != nil {
		t.Error(err)
	}
	if n := strings.Count(g.log.String(), "their branches are not shared"); n != 1 || !strings.Contains(g.log.String(), "own="+own) {
		t.Errorf("the log says %d times that another gateway runs", n)
	}
	out, err := exec.Command(foldgateBin, "run", "--config", g.config, "--listen", "127.0.0.1:0").CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "in use by another process") {
		t.Errorf("an HTTP server on the same state_dir: %v, %s", err, out)
	}
}

// A database that an earlier start has made is missed if it is gone or empty, and so is a trace. The first start misses none.
func TestLostDatabases(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, limited(t, "    - {name: all, per: all, tokens: 1M, window: 1w}\n"))
	files := []string{"foldgate.db", "results.db", "budgets.db", "trace"}
	lost := func() (names []string) {
		for _, line := range strings.Split(g.log.String(), "\n") {
			if strings.Contains(line, "is gone or empty") {
				names = append(names, files[slices.IndexFunc(files, func(name string) bool { return strings.Contains(line, name) })])
			}
		}
		return names
	}
	start := func() {
		t.Helper()
		tool(t, g.connect(ctx, "stdio", mcpclient.Legacy), ctx, "fake__text", `{"text":"x"}`)
		g.stop()
	}
	start()
	start()
	if names := lost(); names != nil {
		t.Errorf("lost without a loss: %q", names)
	}
	var want []string
	check := func(name string, lose func(path string) error) {
		t.Helper()
		if err := lose(filepath.Join(g.dir, "state", name)); err != nil {
			t.Fatal(err)
		}
		start()
		start()
		want = append(want, name)
		if names := lost(); !slices.Equal(names, want) {
			t.Fatalf("lost %q, want %q", names, want)
		}
	}
	for _, name := range files {
		check(name, os.RemoveAll)
		if name != "trace" {
			check(name, func(path string) error { return os.Truncate(path, 0) })
		}
	}
	if !strings.Contains(g.log.String(), "foldgate budgets rebuild") {
		t.Error("the log has no remedy for the counts of limits")
	}
	c := g.connect(ctx, "stdio", mcpclient.Legacy)
	tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	g.losesLimits()
	g.stop() // gives back what is in reserve
	if !strings.Contains(g.log.String(), "removed or replaced") {
		t.Error("the log does not have that the counts were removed meanwhile")
	}
}
