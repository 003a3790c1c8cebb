package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// FuzzLineReader: lines of at most max bytes come out whole, longer ones as
// their ends and their true size, and nothing is lost between them.
func FuzzLineReader(f *testing.F) {
	f.Add([]byte("{}\n\nnoise\r\n"), uint16(1), uint16(9))
	f.Add([]byte("x"), uint16(40000), uint16(50000))
	f.Fuzz(func(t *testing.T, in []byte, times, limit uint16) {
		max := int(limit) + 1
		in = bytes.Repeat(in, int(times)%(1+200_000/(len(in)+1)))
		r := NewLineReader(bytes.NewReader(in), max)
		for rest := in; ; {
			l, err := r.Next()
			if err == io.EOF {
				if len(rest) != 0 {
					t.Fatalf("%d bytes lost", len(rest))
				}
				return
			}
			line, more, found := bytes.Cut(rest, []byte{'\n'})
			size := len(rest) - len(more)
			if l.Size != size {
				t.Fatalf("size = %d, want %d", l.Size, size)
			}
			if (l.Tail != nil) != (size > max) {
				t.Fatalf("line of %d bytes, limit %d: cut is %v", size, max, l.Tail != nil)
			}
			line = bytes.TrimRight(line, "\r")
			if l.Tail == nil && !bytes.Equal(l.Head, line) {
				t.Fatalf("data = %q, want %q", l.Head, line)
			}
			if l.Tail != nil && (!bytes.HasPrefix(rest, l.Head) || !bytes.HasSuffix(rest[:size], l.Tail) || len(l.Tail) > lineEdge || len(l.Head) > lineEdge) {
				t.Fatalf("ends of %q: %q, %q", line, l.Head, l.Tail)
			}
			rest = more
			if !found {
				rest = nil
			}
		}
	})
}

func literal(s string) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, s...) }
}

// Each message arrives whole, and those of one caller in order; Close loses none.
func TestLineWriterOrder(t *testing.T) {
	const callers, each = 8, 500
	var got bytes.Buffer
	w := NewLineWriter(&got, 1<<20)
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range each {
				if err := w.Offer(func(b []byte) []byte { return fmt.Appendf(b, "%d %d %s", c, i, strings.Repeat("x", i%50)) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	w.Close()
	<-w.Done()
	if err := w.Offer(literal("x")); err != ErrWriterClosed {
		t.Errorf("Offer after Close: %v, want %v", err, ErrWriterClosed)
	}
	next := map[string]int{}
	lines := 0
	for line := range strings.Lines(got.String()) {
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
}

// A pipe that is full keeps no caller of Offer waiting, and what it did not take
// goes out in order as soon as it is read.
func TestLineWriterFullPipe(t *testing.T) {
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w := NewLineWriter(out, 1<<20)
	long := strings.Repeat("y", 1000)
	for i := range 500 { // half a megabyte; a pipe holds 64 KiB
		if err := w.Offer(func(b []byte) []byte { return fmt.Appendf(b, "%d %s", i, long) }); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	go func() { <-w.Done(); out.Close() }()
	in := bufio.NewReader(r)
	for i := range 500 {
		if line, err := in.ReadString('\n'); err != nil || line != fmt.Sprintf("%d %s\n", i, long) {
			t.Fatalf("line %d is %.20q, %v", i, line, err)
		}
	}
	if _, err := in.ReadByte(); err != io.EOF {
		t.Errorf("after the last line: %v, want the end", err)
	}
}

// tornWriter fails its first write in the middle.
type tornWriter struct{ got bytes.Buffer }

var errTorn = errors.New("the pipe is broken")

func (w *tornWriter) Write(p []byte) (int, error) {
	if w.got.Len() == 0 {
		n, _ := w.got.Write(p[:2])
		return n, errTorn
	}
	return w.got.Write(p)
}

// After a write that failed nothing more is written: a message may have been cut
// in the middle.
func TestLineWriterStopsAtAFault(t *testing.T) {
	torn := &tornWriter{}
	w := NewLineWriter(torn, 1<<20)
	if err := w.Offer(literal("hello")); err != nil {
		t.Fatal(err)
	}
	<-w.Done()
	for range 3 {
		if err := w.Offer(literal("hello")); err != errTorn {
			t.Errorf("Offer after a fault: %v, want %v", err, errTorn)
		}
	}
	w.Close()
	<-w.Done()
	if got := torn.got.String(); got != "he" || w.Err() != errTorn {
		t.Errorf("written: %q, %v, want nothing after the torn message", got, w.Err())
	}
}

// blockedWriter writes nothing until it is opened.
type blockedWriter struct{ open chan struct{} }

func (w blockedWriter) Write(p []byte) (int, error) { <-w.open; return len(p), nil }

// Offer refuses what a full queue can't take. Write waits for room, until Hurry.
func TestLineWriterFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := blockedWriter{make(chan struct{})}
		w := NewLineWriter(out, 3)
		fill := func() {
			for _, line := range []string{"first", "wait"} { // the first is being written
				if err := w.Offer(literal(line)); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
			}
		}
		fill()
		var full *QueueFullError
		if err := w.Offer(literal("x")); !errors.As(err, &full) || full.Waiting != len("wait\n") {
			t.Errorf("Offer to a full queue: %v", err)
		}
		wrote := make(chan error, 1)
		go func() { wrote <- w.Write(literal("x")) }()
		synctest.Wait()
		select {
		case err := <-wrote:
			t.Errorf("Write to a full queue did not wait: %v", err)
		default:
		}
		close(out.open)
		if err := <-wrote; err != nil {
			t.Errorf("Write after there is room: %v", err)
		}
		w.Close()
		<-w.Done()

		out = blockedWriter{make(chan struct{})}
		w = NewLineWriter(out, 3)
		fill()
		go func() { wrote <- w.Write(literal("x")) }()
		synctest.Wait()
		w.Hurry()
		if err := <-wrote; !errors.As(err, &full) {
			t.Errorf("Write after Hurry: %v", err)
		}
		close(out.open)
		w.Close()
		<-w.Done()
	})
}
