package main

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/config"
)

func TestErase(t *testing.T) {
	file := auditState(t)
	state := filepath.Join(filepath.Dir(file), "state")
	text := func() string {
		var all strings.Builder
		for n := 1; n <= 3; n++ {
			files, err := filepath.Glob(filepath.Join(config.InstanceDir(state, n), "trace", "trace-*"))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			for _, f := range files {
				data, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				all.Write(data)
			}
		}
		return all.String()
	}
	before := text()
	succeeds(t, file, "trace", "--tool", "read_file") // makes the indexes
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "name the records by a filter"}, {[]string{"--yes"}, "name the records by a filter"},
		{[]string{"--journal", "--yes"}, "name the records by a filter"}, {[]string{"--verbose", "--yes"}, "name the records by a filter"},
		{[]string{"--main=false", "--yes"}, "name the records by a filter"}, {[]string{"--depth", "0", "--yes"}, "--depth: 0 is main: use --main"}, {[]string{"--tool", "read_file", "--depth", "0", "--yes"}, "use --main"},
		{[]string{"--principal", "", "--yes"}, "--principal: is empty"}, {[]string{"--tool", "read_file", "--since", "", "--yes"}, "--since: is empty"},
		{[]string{"--tool", "", "--yes"}, "--tool: is empty"},
		{[]string{"--principal", "nobody", "--yes"}, `"nobody"`}, {[]string{"--seq", "3-2", "--yes"}, "--seq"}, {[]string{"--seq", "0"}, "--seq"},
	} {
		if _, errOut, code := runs(t, append([]string{"trace", "erase", "--config", file}, c.args...)...); code != exitUsage || !strings.Contains(errOut, c.want) {
			t.Errorf("erase %q: code %d, %s", c.args, code, errOut)
		}
	}
	if out := succeeds(t, file, "trace", "erase", "--principal", "alice"); strings.Count(out, "would erase") != 3 || !strings.Contains(out, "add --yes") || text() != before {
		t.Errorf("a dry run: %s", out)
	}
	second := filepath.Join(config.InstanceDir(state, 2), "trace")
	running, err := trace.Open(second, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	before = text()
	if _, errOut, code := runs(t, "trace", "erase", "--principal", "alice", "--yes", "--config", file); code != 1 || !strings.Contains(errOut, "stop it, erase, and start it again") {
		t.Errorf("while a gateway runs: code %d, %s", code, errOut)
	}
	if text() != before {
		t.Error("an erasure that was refused for one trace changed others")
	}
	if err := running.Close(); err != nil {
		t.Fatal(err)
	}
	out := succeeds(t, file, "trace", "erase", "--principal", "alice", "--yes")
	if strings.Count(out, "erased 2 payloads, seq ") != 3 {
		t.Errorf("erase: %s", out)
	}
	after := text()
	for i, path := range []string{"secrets/0.env", "secrets/1.env", "secrets/2.env", "secrets/3.env", "secrets/4.env", "secrets/5.env"} {
		if alice := i%2 == 0; strings.Contains(after, path) == alice {
			t.Errorf("%s of alice: %v, in the files: %v", path, alice, !alice)
		}
	}
	if out := succeeds(t, file, "trace", "verify"); strings.Count(out, "2 payloads erased: ok") != 3 || !strings.Contains(out, " erased payloads of 2 records from ") {
		t.Errorf("verify: %s", out)
	}
	if out := succeeds(t, file, "trace", "show", "env_q0"); !strings.Contains(out, "payload\n  erased\n") {
		t.Errorf("show: %s", out)
	}
	if out := succeeds(t, file, "trace", "--principal", "alice"); strings.Count(out, "erased") != 6 {
		t.Errorf("table: %s", out)
	}
	if out := succeeds(t, file, "trace", "verify"); strings.Count(out, ": ok") != 4 { // with the new index
		t.Errorf("verify: %s", out)
	}
	if out := succeeds(t, file, "trace", "--kind", "system/journal", "--format", "jsonl"); strings.Count(out, `"event":"erased"`) != 3 || !strings.Contains(out, `"by":"`) {
		t.Errorf("the record of the erasure: %s", out)
	}
	if out := succeeds(t, file, "trace", "erase", "--seq", "2-5", "--instance", "1", "--yes"); !strings.Contains(out, "erased 1 payload, seq 4 to 4") {
		t.Errorf("by number: %s", out)
	}
}

// TestEraseWithoutWriting: who can't write the trace is told what to do, and that nothing was erased.
func TestEraseWithoutWriting(t *testing.T) {
	file := auditState(t)
	lock := filepath.Join(config.InstanceDir(filepath.Join(filepath.Dir(file), "state"), 1), "trace", "lock")
	if err := cmp.Or(os.RemoveAll(lock), os.Mkdir(lock, 0o700)); err != nil {
		t.Fatal(err)
	}
	_, errOut, code := runs(t, "trace", "erase", "--principal", "alice", "--yes", "--config", file)
	if code != exitFailed || !strings.Contains(errOut, "can't be written: make room on the disk, or mount it for writing, and erase again (nothing was erased): ") {
		t.Errorf("code %d, %s", code, errOut)
	}
}
