package extract

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/itchyny/gojq"

	"github.com/foldgate/foldgate/internal/pollable"
)

// Limits of a jq program. One step can take any time and memory, and nothing can interrupt it. So
// each program runs in a process of its own.
const (
	MaxJQInput   = 16 << 20  // bytes of the text; as a value it takes some ten times that
	maxJQProgram = 64 << 10  // bytes of the program
	maxJQOutput  = 8 << 20   // bytes of the outputs
	maxFaults    = 64 << 10  // bytes that the process may write beside the outputs
	maxJQGrowth  = 384 << 20 // bytes that the heap may grow by until the program is ended
	maxJQMemory  = 640 << 20 // bytes that the system gives the process, on Linux
	jqAtOnce     = 2         // programs that run at a time
)

// Programs runs jq programs, a few at a time. Make one with [NewPrograms].
type Programs struct {
	slots chan struct{}
	each  int // slots that one caller may have

	mu  sync.Mutex
	own map[string]*callerSlots // of callers with programs that run or wait
}

type callerSlots struct {
	slots    chan struct{}
	programs int // that run or wait; guarded by Programs.mu
}

// NewPrograms returns Programs for a number of callers. If there are several, no caller takes the
// last slot from the others. The process must call [Child] when it starts.
func NewPrograms(callers int) *Programs {
	p := &Programs{slots: make(chan struct{}, jqAtOnce), each: jqAtOnce, own: map[string]*callerSlots{}}
	if callers > 1 {
		p.each = jqAtOnce - 1
	}
	return p
}

// JQ runs a program on a text: JSON, also between lines of other text, XML, YAML, or CSV. If the text
// has several values, such as lines of JSON, the input is an array of them. JQ returns the outputs, one
// a line: strings as they are, other values as compact JSON. If the text is not JSON alone, a line
// before them says how it was read. A program can't reach the environment, files and modules. JQ ends with ctx.
//
// A caller waits for a slot of its own first, so its programs can't fill the queue for all slots.
func (p *Programs) JQ(ctx context.Context, caller, text, program string) (string, error) {
	return p.run(ctx, caller, question{Program: program, Text: text})
}

// JQResults runs a program on results: a JSON array of objects, in which a member "result" that is a
// string is read as JQ reads a text. If that is not JSON alone, its "text" is what it was.
func (p *Programs) JQResults(ctx context.Context, caller, results, program string) (string, error) {
	return p.run(ctx, caller, question{Program: program, Text: results, Results: true})
}

func (p *Programs) run(ctx context.Context, caller string, q question) (string, error) {
	if len(q.Text) > MaxJQInput {
		return "", wrong("jq", "the text has %d bytes, the limit is %d: use grep, search or page", len(q.Text), MaxJQInput)
	}
	own, done := p.of(caller)
	defer done()
	for _, slots := range []chan struct{}{own, p.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return "", wrong("jq", "others took too long: try again, or use grep")
		}
	}
	return runChild(ctx, q)
}

// CheckJQ compiles a program without running it.
func CheckJQ(program string) error {
	_, err := compile(program)
	return err
}

// of returns the slots of one caller, for a program. The caller calls done at its end.
func (p *Programs) of(caller string) (slots chan struct{}, done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := p.own[caller]
	if own == nil {
		own = &callerSlots{slots: make(chan struct{}, p.each)}
		p.own[caller] = own
	}
	own.programs++
	return own.slots, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if own.programs--; own.programs == 0 {
			delete(p.own, caller)
		}
	}
}

const childName = "foldgate-jq" // the first argument of a process that runs one program

// question is the input of such a process, answer its output, both encoded by package gob.
type (
	question struct {
		Program, Text string
		Results       bool // as in JQResults
	}
	answer struct{ Output, Fault string }
)

const tooMuch = "the program took too much memory and was ended: filter before you collect"

func runChild(ctx context.Context, q question) (string, error) {
	self := "/proc/self/exe" // the right program even if its file was replaced
	if runtime.GOOS != "linux" {
		var err error
		if self, err = os.Executable(); err != nil {
			return "", fmt.Errorf("jq: %w", err)
		}
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = []string{childName}
	cmd.Env = []string{"GORACE=" + os.Getenv("GORACE")} // and no secrets
	cmd.WaitDelay = time.Second
	// The process ends with its input. So it also ends if the gateway is killed.
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", fmt.Errorf("jq: %w", err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_ = gob.NewEncoder(in).Encode(q) // if it fails, the process has ended
	}()
	out, faults := limited{max: maxJQOutput + maxFaults}, limited{max: maxFaults}
	cmd.Stdout, cmd.Stderr = &out, &faults
	err = cmd.Run()
	<-written
	var a answer
	if err == nil { // an answer over its limit ends too early
		err = gob.NewDecoder(bytes.NewReader(out.kept)).Decode(&a)
	}
	switch _, ended := errors.AsType[*exec.ExitError](err); {
	case ctx.Err() != nil:
		return "", wrong("jq", "the program took too long and was ended: filter earlier, or ask for less")
	case err == nil && a.Fault != "":
		return "", wrong("jq", "%s", a.Fault)
	case err == nil:
		return a.Output, nil
	case ended && memoryIsLimited && !bytes.HasPrefix(faults.kept, []byte("panic: ")):
		return "", wrong("jq", tooMuch) // the runtime has several other ways to fail then
	}
	return "", fmt.Errorf("jq: its process ended with %v: %.200s", err, faults.kept)
}

// limited keeps the first bytes that are written to it, at most max.
type limited struct {
	kept []byte
	max  int
}

func (l *limited) Write(p []byte) (int, error) {
	l.kept = append(l.kept, p[:min(len(p), l.max-len(l.kept))]...)
	return len(p), nil
}

// Child runs a jq program and ends the process, if the process was started for that. Otherwise it
// does nothing. A program that uses [Programs] calls Child first in main, and in TestMain of tests.
func Child() {
	if len(os.Args) != 1 || os.Args[0] != childName {
		return
	}
	if err := serveChild(pollable.File(os.Stdin), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serveChild reads the question and writes the answer. If in ends first, the process ends.
func serveChild(in io.Reader, out io.Writer) error {
	if err := limitMemory(maxJQMemory); err != nil {
		return err
	}
	var q question
	if err := gob.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("no question: %w", err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, in)
		os.Exit(1)
	}()
	var a answer
	var err error
	var once sync.Once // the answer is written
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Nothing can interrupt the reading of the text.
	go watchHeap(ctx, func() {
		once.Do(func() {
			_ = gob.NewEncoder(out).Encode(answer{Fault: "the text takes too much memory to be read: use grep, search or lines"})
			os.Exit(0)
		})
	}, heap()+maxJQGrowth)
	input, note, err := readInput(q.Text, MaxConvert)
	if q.Results {
		note = readResults(input)
	}
	cancel()
	if err == nil {
		a.Output, err = runJQ(q.Program, input)
	}
	if err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return err
		}
		a.Fault = e.Text
	}
	if note != "" {
		a.Output = note + "\n" + a.Output
	}
	once.Do(func() { err = gob.NewEncoder(out).Encode(a) })
	return err
}

func runJQ(program string, input any) (string, error) {
	code, err := compile(program)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go watchHeap(ctx, cancel, heap()+maxJQGrowth)
	var out strings.Builder
	outputs := func() string { return strings.TrimSuffix(out.String(), "\n") }
	iter := code.RunWithContext(ctx, input)
	for v, ok := iter.Next(); ok; v, ok = iter.Next() {
		switch v := v.(type) {
		case error:
			switch halt, halted := errors.AsType[*gojq.HaltError](v); {
			case ctx.Err() != nil:
				return "", wrong("jq", tooMuch)
			case halted && halt.Value() == nil:
				return outputs(), nil
			case out.Len() == 0:
				return "", wrong("jq", "%v", v)
			}
			return "", wrong("jq", "%v (the first outputs were: %s)", v, words(outputs(), 200))
		case string:
			out.WriteString(v)
		default:
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
	return outputs(), nil
}

var errEmpty = wrong("jq", "the text is empty")

// decode reads a text as JSON. Several values become one array. Large integers keep their digits. An error tells
// what keeps the text from being JSON.
func decode(text string) (any, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var all []any
	for {
		if at := int(dec.InputOffset()); at > 0 && at < len(text) && !strings.ContainsRune(" \t\r\n{[", rune(text[at])) {
			return nil, fmt.Errorf("after %.20q", text[max(0, at-20):at]) // such as a date
		}
		var v any
		switch err := dec.Decode(&v); {
		case err == nil:
			all = append(all, v)
		case !errors.Is(err, io.EOF):
			return nil, err
		case len(all) == 0:
			return nil, errEmpty
		case len(all) == 1:
			return all[0], nil
		default:
			return all, nil
		}
	}
}

func compile(program string) (code *gojq.Code, err error) {
	if len(program) > maxJQProgram {
		return nil, wrong("jq", "the program has %d bytes, the limit is %d", len(program), maxJQProgram)
	}
	query, err := gojq.Parse(program)
	if err == nil {
		code, err = gojq.Compile(query)
	}
	if err != nil {
		return nil, wrong("jq", "%v", err)
	}
	return code, nil
}

// watchHeap calls end once the heap has more than limit bytes. It returns when ctx ends.
func watchHeap(ctx context.Context, end func(), limit uint64) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for heap() <= limit {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	end()
}

func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
