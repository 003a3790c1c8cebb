package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/foldgate/foldgate/proxy/conn"
)

// wholeWriter is a pipe's end that takes as much as it likes without waiting.
type wholeWriter struct {
	mu     sync.Mutex
	got    bytes.Buffer
	closed bool
}

func (w *wholeWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, errors.New("written to after its close")
	}
	return w.got.Write(p)
}

func (w *wholeWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return nil
}

// Whatever the pipe takes at once, each message arrives whole, and those of one
// caller in order; close loses none.
func TestOutboxOrder(t *testing.T) {
	const callers, each = 8, 500
	for _, mood := range []string{"never", "always", "part"} {
		t.Run(mood, func(t *testing.T) {
			w := &wholeWriter{}
			try := func(p []byte) (int, error) {
				n := len(p)
				if mood == "part" && rand.IntN(3) == 0 {
					n = rand.IntN(n + 1)
				}
				return w.Write(p[:n])
			}
			if mood == "never" {
				try = nil
			}
			o := newOutbox(1<<20, try)
			drained := make(chan struct{})
			go func() { o.drain(w); close(drained) }()
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := range each {
						if err := o.put(func(b []byte) []byte { return fmt.Appendf(b, "%d %d %s", c, i, strings.Repeat("x", i%50)) }); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			o.close(conn.ErrClosed)
			<-drained
			if err := o.put(func(b []byte) []byte { return b }); err != conn.ErrClosed {
				t.Errorf("put after close: %v, want conn.ErrClosed", err)
			}
			if !w.closed {
				t.Error("drain left the pipe open")
			}
			next := map[string]int{}
			lines := 0
			for line := range strings.Lines(w.got.String()) {
				lines++
				f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
				if len(f) != 3 || f[1] != strconv.Itoa(next[f[0]]) || len(f[2]) != next[f[0]]%50 {
					t.Fatalf("line %d is %q, want message %d of its caller", lines, line, next[f[0]])
				}
				next[f[0]]++
			}
			if lines != callers*each {
				t.Errorf("%d lines, want %d", lines, callers*each)
			}
		})
	}
}

// A pipe that is full keeps nobody waiting, and what it did not take goes out
// in order as soon as somebody reads.
func TestOutboxFullPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := newOutbox(1<<20, tryWriter(w))
	drained := make(chan struct{})
	go func() { o.drain(w); close(drained) }()
	long := strings.Repeat("y", 1000)
	for i := range 500 { // half a megabyte; a pipe holds 64 KiB
		if err := o.put(func(b []byte) []byte { return fmt.Appendf(b, "%d %s", i, long) }); err != nil {
			t.Fatal(err)
		}
	}
	o.close(conn.ErrClosed)
	in := bufio.NewReader(r)
	for i := range 500 {
		if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("%d %s\n", i, long) {
			t.Fatalf("line %d is %.20q, %v", i, line, err)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after the last line: %v, want the end", err)
	}
	<-drained
}

// A pipe that nobody reads any more costs callers nothing: the link learns of
// its end from the other pipe.
func TestOutboxBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	o := newOutbox(1<<20, tryWriter(w))
	drained := make(chan struct{})
	go func() { o.drain(w); close(drained) }()
	for range 3 {
		if err := o.put(func(b []byte) []byte { return append(b, "z"...) }); err != nil {
			t.Fatal(err)
		}
	}
	o.close(conn.ErrClosed)
	<-drained
}

// After a write that failed nothing more is written, also where the pipe would
// take it: a message may have been cut in the middle.
func TestOutboxStopsAtAFault(t *testing.T) {
	w := &wholeWriter{}
	broken := true
	o := newOutbox(1<<20, func(p []byte) (int, error) {
		if broken {
			broken = false
			n, _ := w.Write(p[:2])
			return n, errors.New("the pipe is broken")
		}
		return w.Write(p)
	})
	drained := make(chan struct{})
	go func() { o.drain(w); close(drained) }()
	for range 3 {
		if err := o.put(func(b []byte) []byte { return append(b, "hello"...) }); err != nil {
			t.Fatal(err)
		}
		for owner := ownedByDrain; owner != ownedByNobody; runtime.Gosched() { // until drain has thrown away the rest
			o.mu.Lock()
			owner = o.owner
			o.mu.Unlock()
		}
	}
	o.close(conn.ErrClosed)
	<-drained
	if got := w.got.String(); got != "he" {
		t.Errorf("written: %q, want nothing after the torn message", got)
	}
}
