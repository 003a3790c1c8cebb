package atomicfile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/foldgate/foldgate/internal/atomicfile"
)

// Writers at the same time leave one whole file with its mode, and nothing else.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := atomicfile.Write(path, bytes.Repeat([]byte{byte('a' + i)}, 1<<16), 0o640); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	data, err := os.ReadFile(path)
	if err != nil || len(data) != 1<<16 || len(bytes.Trim(data, string(data[:1]))) > 0 {
		t.Errorf("the file has %d bytes of several writers, err %v", len(data), err)
	}
	if info, err := os.Stat(path); err != nil || runtime.GOOS != "windows" && info.Mode() != 0o640 {
		t.Errorf("mode %v, err %v", info.Mode(), err)
	}
	only(t, dir, "state.json")
}

// A write that fails leaves the old file.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	if err := atomicfile.Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := errors.New("wrong")
	if err := atomicfile.WriteAs(path, []byte("new"), 0o600, func(*os.File) error { return wrong }); !errors.Is(err, wrong) {
		t.Errorf("err %v", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, "none", "x"), nil, 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a directory: err %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != "old" {
		t.Errorf("the file is %q", data)
	}
	only(t, dir, "state.json")
}

// A write removes what a process has left that was killed while it wrote, not the file of one that writes, and not
// one of somebody else.
func TestWriteTidies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[ab]*") // no pattern
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "state.json")
	killed, running, foreign := path+".foldgate-1.new", path+".foldgate-2.new", path+".1.new"
	for other, age := range map[string]time.Duration{killed: 2 * time.Hour, running: time.Minute, foreign: 2 * time.Hour} {
		if err := errors.Join(os.WriteFile(other, nil, 0o600), os.Chtimes(other, time.Time{}, time.Now().Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := atomicfile.Write(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, filepath.Join(dir, e.Name()))
	}
	if want := []string{path, foreign, running}; err != nil || !slices.Equal(left, want) {
		t.Errorf("there are %q, %v; want %q", left, err, want)
	}
}

func only(t *testing.T, dir, name string) {
	t.Helper()
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 || filepath.Base(left[0]) != name {
		t.Errorf("the directory has %v", left)
	}
}
