//go:build unix

package upstream

import (
	"os"
	"testing"
)

// With try, a message that the pipe takes needs no other goroutine and no
// memory.
func TestOutboxAlone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	try := tryWriter(w)
	if try == nil {
		t.Fatal("a pipe cannot be written to without waiting")
	}
	o := newOutbox(1<<20, try) // and no drain
	buf := make([]byte, 16)
	put := func() {
		if err := o.put(func(b []byte) []byte { return append(b, "hello"...) }); err != nil {
			t.Fatal(err)
		}
		if n, err := r.Read(buf); err != nil || string(buf[:n]) != "hello\n" {
			t.Fatalf("read %q, %v", buf[:n], err)
		}
	}
	put()
	if allocs := testing.AllocsPerRun(100, put); allocs > 0 {
		t.Errorf("a message costs %v allocations, want none", allocs)
	}
}
