package extract

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/itchyny/gojq"
)

// Bounds of a jq program. One step of one can take any time and memory, and
// can't be interrupted, so that each runs in a process of its own.
const (
	// maxJQInput is the largest text read as JSON, in bytes: in memory it is
	// some ten times that.
	maxJQInput = 16 << 20
	// maxJQProgram bounds the program itself.
	maxJQProgram = 64 << 10
	// maxJQOutput bounds what a program may write.
	maxJQOutput = 8 << 20
	// maxJQGrowth is by how much its process may grow until the program is
	// ended; maxJQMemory is where the system refuses it more, on Linux.
	maxJQGrowth = 384 << 20
	maxJQMemory = 640 << 20
	// jqAtOnce is how many may run at a time.
	jqAtOnce = 2
)

// childName is the name, as its first argument, of a process that runs one
// program.
const childName = "foldgate-jq"

// The first byte of what such a process writes.
const (
	childOutput = '+' // the outputs follow
	childFault  = '-' // what is wrong with the question follows
)

// Programs runs jq programs, some at a time. Make one with [NewPrograms].
type Programs struct {
	slots chan struct{}
	each  int // how many slots one caller may have

	mu  sync.Mutex
	own map[string]chan struct{} // the slots of each caller
}

// NewPrograms returns what runs programs for so many callers: where there are
// several, none of them takes the last slot from the others. The process that
// uses it must call [Child] when it starts.
func NewPrograms(callers int) *Programs {
	p := &Programs{slots: make(chan struct{}, jqAtOnce), each: jqAtOnce, own: map[string]chan struct{}{}}
	if callers > 1 {
		p.each = jqAtOnce - 1
	}
	return p
}

// of returns the slots of one caller, of whom there are few.
func (p *Programs) of(caller string) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.own[caller] == nil {
		p.own[caller] = make(chan struct{}, p.each)
	}
	return p.own[caller]
}

// JQ runs a program on a text of JSON, of which several values, such as lines
// of JSON, are one array. It returns the outputs, one a line: strings as they
// are, all else as compact JSON. The environment, files and modules are out of
// a program's reach. It ends with ctx. A caller waits for slots of its own first, so
// that of each no more than a few stand in the line that all share.
func (p *Programs) JQ(ctx context.Context, caller, text, program string) (string, error) {
	switch {
	case len(text) > maxJQInput:
		return "", wrong("jq", "the text has %d bytes, the limit is %d: use grep, search or page", len(text), maxJQInput)
	case len(program) > maxJQProgram:
		return "", wrong("jq", "the program has %d bytes, the limit is %d", len(program), maxJQProgram)
	}
	for _, slots := range []chan struct{}{p.of(caller), p.slots} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return "", wrong("jq", "others took too long: try again, or use grep")
		}
	}
	return runChild(ctx, text, program)
}

// runChild has a process of its own run the program.
func runChild(ctx context.Context, text, program string) (string, error) {
	self := "/proc/self/exe" // also where the file was replaced meanwhile
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
	out, fault := &opening{most: maxJQOutput + 1<<10}, &opening{most: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, fault
	err := ask(cmd, text, program)
	said := out.b.String()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", wrong("jq", "the program took too long and was ended: filter earlier, or ask for less")
	case err == nil && strings.HasPrefix(said, string(childOutput)):
		return said[1:], nil
	case err == nil && strings.HasPrefix(said, string(childFault)):
		return "", wrong("jq", "%s", said[1:])
	case errors.As(err, &exit) && memoryIsLimited && !strings.HasPrefix(fault.b.String(), "panic: "):
		return "", wrong("jq", "%s", tooMuch) // the runtime has several ways to fail then
	}
	return "", fmt.Errorf("jq: its process ended with %v: %.200s", err, fault.b.String())
}

// ask runs cmd on a question. Its standard input stays open until it ends, so that
// it ends with this process, however that ends.
func ask(cmd *exec.Cmd, text, program string) error {
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		head := binary.BigEndian.AppendUint32(nil, uint32(len(program)))
		head = binary.BigEndian.AppendUint32(head, uint32(len(text)))
		for _, part := range []string{string(head), program, text} {
			if _, err := io.WriteString(in, part); err != nil {
				return // it has ended, and how says more
			}
		}
	}()
	err = cmd.Wait()
	<-written
	return err
}

const tooMuch = "the program took too much memory and was ended: filter before you collect"

// opening keeps the start of what is written to it.
type opening struct {
	b    bytes.Buffer
	most int
}

func (h *opening) Write(p []byte) (int, error) {
	h.b.Write(p[:min(len(p), max(h.most-h.b.Len(), 0))])
	return len(p), nil
}

// CheckJQ reports what is wrong with a program, without running it.
func CheckJQ(program string) error {
	if len(program) > maxJQProgram {
		return wrong("jq", "the program has %d bytes, the limit is %d", len(program), maxJQProgram)
	}
	query, err := gojq.Parse(program)
	if err == nil {
		_, err = gojq.Compile(query)
	}
	if err != nil {
		return wrong("jq", "%v", err)
	}
	return nil
}
