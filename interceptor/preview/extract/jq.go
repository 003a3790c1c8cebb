package extract

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/metrics"
	"strings"
	"time"

	"github.com/itchyny/gojq"
)

const (
	// maxJQInput is the largest text read as JSON, in bytes: in memory it is
	// some ten times that.
	maxJQInput = 32 << 20
	// maxJQOutput bounds what a program may write.
	maxJQOutput = 8 << 20
	// maxJQGrowth is by how much the process may grow while a program runs.
	maxJQGrowth = 512 << 20
	// watchEvery is how often that is looked at.
	watchEvery = 5 * time.Millisecond
)

// errGrowth ends a program that takes too much memory.
var errGrowth = errors.New("took too much memory")

// Value reads a text as JSON for [JQ]. Several values, such as lines of JSON,
// become one array.
func Value(text string) (any, error) {
	if len(text) > maxJQInput {
		return nil, wrong("jq", "the text has %d bytes, the limit is %d: use grep, search or page", len(text), maxJQInput)
	}
	dec := json.NewDecoder(strings.NewReader(text))
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

// JQ runs a program on a value made by [Value] and returns its outputs, one a
// line: strings as they are, all else as compact JSON. The environment, files
// and modules are out of a program's reach. It ends with ctx, and when it
// makes the process grow beyond bounds.
func JQ(ctx context.Context, v any, program string) (string, error) {
	return jq(ctx, v, program, maxJQGrowth)
}

// jq is JQ with its own bound for the growth of the process.
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
			switch cause := context.Cause(ctx); {
			case cause != nil && errors.Is(cause, errGrowth):
				return "", wrong("jq", "the program %v and was ended: filter before you collect", errGrowth)
			case cause != nil:
				return "", wrong("jq", "the program took too long and was ended: filter earlier, or ask for less")
			case errors.As(err, &halt) && halt.Value() == nil:
				return trimEnd(&out), nil
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
// Others share the heap, so this is a guard against the absurd, not an
// account. stop waits for the watcher.
func watch(ctx context.Context, growth uint64) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
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
				if n := heap(); n > limit {
					cancel(fmt.Errorf("%w: %d bytes", errGrowth, n))
					return
				}
			}
		}
	}()
	return ctx, func() { cancel(nil); <-done }
}

// CheckJQ reports what is wrong with a program, without running it.
func CheckJQ(program string) error {
	query, err := gojq.Parse(program)
	if err == nil {
		_, err = gojq.Compile(query)
	}
	if err != nil {
		return wrong("jq", "%v", err)
	}
	return nil
}
