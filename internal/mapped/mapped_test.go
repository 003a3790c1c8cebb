package mapped

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// What Do writes is in the file. It says so of a place that the file does not have, and goes on.
func TestDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func(b []byte) bool { return copy(b, "text") == len(b) }
	if Memory(nil).Do(0, 4, write) {
		t.Error("wrote without memory")
	}
	m := Open(f, 1<<20)
	if m == nil && runtime.GOOS != "linux" {
		t.Skip("no memory of files here")
	}
	defer m.Close()
	if !m.Do(10, 4, write) || m.Do(1<<20-3, 4, write) {
		t.Error("the bounds of the memory are not kept")
	}
	if raw, err := os.ReadFile(path); err != nil || string(raw[10:14]) != "text" || len(raw) != 100 {
		t.Errorf("the file has %q, %v", raw, err)
	}
	if m.Do(64<<10, 4, write) {
		t.Error("wrote behind the end of the file")
	}
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if m.Do(10, 4, write) {
		t.Error("wrote to a file that was cut")
	}
}
