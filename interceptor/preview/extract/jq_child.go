package extract

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/itchyny/gojq"
)

// watchEvery is how often the memory of a program's process is looked at.
const watchEvery = 5 * time.Millisecond

// Child runs a jq program and ends the process, where it was started for
// that; else it does nothing. Whoever uses [Programs] calls it before all
// else, in main, and in TestMain of the tests.
func Child() {
	if len(os.Args) == 1 && os.Args[0] == childName {
		os.Exit(serveChild(os.Stdin, os.Stdout, func() { os.Exit(1) }))
	}
}

// serveChild reads the question, and writes the answer. It returns the exit code.
// Where in ends before that, nobody waits for the answer: it calls left.
func serveChild(in io.Reader, out io.Writer, left func()) int {
	if err := limitMemory(maxJQMemory); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	program, text, err := readQuestion(in)
	if err != nil {
		fmt.Fprintln(os.Stderr, "no question:", err)
		return 1
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		left()
	}()
	said, answer := byte(childOutput), ""
	v, err := value(text)
	if err == nil {
		answer, err = jq(context.Background(), v, string(program), maxJQGrowth)
	}
	if err != nil {
		var e *Error
		if !errors.As(err, &e) {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		said, answer = childFault, e.Text
	}
	if _, err := io.WriteString(out, string(said)+answer); err != nil {
		return 1
	}
	return 0
}

// readQuestion reads a program and the text it is for, after the lengths of both.
func readQuestion(in io.Reader) (program, text []byte, err error) {
	var sizes [2]uint32
	if err := binary.Read(in, binary.BigEndian, &sizes); err != nil {
		return nil, nil, err
	}
	if sizes[0] > maxJQProgram || sizes[1] > maxJQInput {
		return nil, nil, fmt.Errorf("%d bytes of a program and %d of a text", sizes[0], sizes[1])
	}
	both := make([]byte, sizes[0]+sizes[1])
	_, err = io.ReadFull(in, both)
	return both[:sizes[0]], both[sizes[0]:], err
}

// value reads a text as JSON. Several values become one array.
func value(text []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber() // large integers keep their digits
	var all []any
	for {
		var v any
		err := dec.Decode(&v)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, wrong("jq", "the text is not JSON (%v): use grep, search or lines", err)
		}
		all = append(all, v)
	}
	switch len(all) {
	case 0:
		return nil, wrong("jq", "the text is empty")
	case 1:
		return all[0], nil
	}
	return all, nil
}

// jq runs a program on a value, until it makes the process grow by so much.
func jq(ctx context.Context, v any, program string, growth uint64) (string, error) {
	query, err := gojq.Parse(program)
	if err != nil {
		return "", wrong("jq", "%v", err)
	}
	code, err := gojq.Compile(query)
	if err != nil {
		return "", wrong("jq", "%v", err)
	}
	ctx, stop := watch(ctx, growth)
	defer stop()
	var out bytes.Buffer
	iter := code.RunWithContext(ctx, v)
	for {
		v, ok := iter.Next()
		if !ok {
			break
		}
		if err, failed := v.(error); failed {
			var halt *gojq.HaltError
			switch {
			case ctx.Err() != nil:
				return "", wrong("jq", "%s", tooMuch)
			case errors.As(err, &halt) && halt.Value() == nil:
				return trimEnd(&out), nil
			}
			if out.Len() == 0 {
				return "", wrong("jq", "%v", err)
			}
			return "", wrong("jq", "%v (the first outputs were: %s)", err, clip(trimEnd(&out), 200))
		}
		if s, isText := v.(string); isText {
			out.WriteString(s)
		} else {
			b, err := gojq.Marshal(v)
			if err != nil {
				return "", wrong("jq", "%v", err)
			}
			out.Write(b)
		}
		out.WriteByte('\n')
		if out.Len() > maxJQOutput {
			return "", wrong("jq", "the output is over %d bytes: select less", maxJQOutput)
		}
	}
	if out.Len() == 0 {
		return "[jq: no output]", nil
	}
	return trimEnd(&out), nil
}

func trimEnd(b *bytes.Buffer) string { return strings.TrimSuffix(b.String(), "\n") }

// watch returns a context that ends when the heap has grown by so many bytes.
// stop waits for the watcher.
func watch(ctx context.Context, growth uint64) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	heap := func() uint64 {
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	limit := heap() + growth
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if heap() > limit {
					cancel()
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(); <-done }
}
