package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/foldgate/foldgate/internal/openfiles"
)

const (
	// exitDelay bounds the moments around a child's end: from the end of its stdout to its status,
	// from its own end to the end of its group, and the rest of its input and output.
	exitDelay = 400 * time.Millisecond
	// stopGrace is how long a child has to end after its stdin was closed, and again after SIGTERM.
	stopGrace = 2 * time.Second
)

// child is a process in a process group of its own, so that the processes that it started (npx, sh
// -c) end with it.
type child struct {
	cmd                   *exec.Cmd
	stdin, stdout, stderr *os.File // our ends
	// quiet is closed by the reader of stdout, at its end.
	quiet chan struct{}

	exited chan struct{} // closed when the process has ended
	reaped chan struct{} // closed when its group is killed and its status is read
	status error         // how it ended; set before reaped is closed

	mu   sync.Mutex
	free bool // guarded by mu: the process number may belong to another process
}

// startChild starts cfg.Command. After success the caller must read stdout and stderr, close quiet,
// and call stop.
func startChild(cfg *Config) (*child, error) {
	cmd := exec.Command(cfg.Command[0], cfg.Command[1:]...)
	cmd.Env = append([]string{}, cfg.Env...) // nil would mean ours
	cmd.Dir = cfg.Dir
	c := &child{
		cmd:    cmd,
		quiet:  make(chan struct{}),
		exited: make(chan struct{}),
		reaped: make(chan struct{}),
	}
	theirs, err := c.pipes()
	if err == nil {
		started := make(chan error)
		go c.keep(started)
		err = <-started
	}
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		c.closePipes()
		if openfiles.Exceeded(err) {
			err = fmt.Errorf("%w; %s", err, openfiles.Remedy)
		}
		return nil, fmt.Errorf("start %q: %w", cfg.Command[0], err)
	}
	return c, nil
}

// pipes makes the three pipes and returns the child's ends. They are files, so that os/exec starts
// no goroutines to copy, and our ends have deadlines.
func (c *child) pipes() (theirs []*os.File, err error) {
	inR, inW, err1 := os.Pipe()
	outR, outW, err2 := os.Pipe()
	errR, errW, err3 := os.Pipe()
	c.stdin, c.stdout, c.stderr = inW, outR, errR
	theirs = []*os.File{inR, outW, errW}
	if err := errors.Join(err1, err2, err3); err != nil {
		return theirs, err // closing a nil file is harmless
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = inR, outW, errW
	return theirs, nil
}

func (c *child) closePipes() {
	for _, f := range []*os.File{c.stdin, c.stdout, c.stderr} {
		f.Close()
	}
}

// keep starts the process and reaps it. It holds its thread: the kernel sends the parent-death
// signal when the thread that started the child ends.
func (c *child) keep(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	prepareChild(c.cmd)
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(c.reaped)
	waits := awaitExit(c.cmd.Process.Pid)
	if waits {
		// Until it is reaped no other process gets the child's number, so that signals to its group
		// reach no other process.
		c.signal(syscall.SIGTERM)
		close(c.exited)
		select {
		case <-c.quiet:
		case <-time.After(exitDelay):
		}
	} else {
		c.reap()
		close(c.exited)
	}
	c.signal(syscall.SIGKILL)
	c.mu.Lock()
	c.free = true
	c.mu.Unlock()
	if waits {
		c.reap()
	}
}

// reap waits for the process and notes how it ended.
func (c *child) reap() {
	c.status = fmt.Errorf("process ended: %w", cmp.Or(c.cmd.Wait(), errors.New("exit status 0")))
}

// signal sends s to the whole group, unless that is gone.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.free {
		signalGroup(c.cmd.Process, s)
	}
}

// stop ends the process group: first by the end of its stdin, which the caller closes, then by
// SIGTERM, then by SIGKILL. It returns when the process is reaped. Reads of its output end soon
// after.
func (c *child) stop() {
	// A child that does not read does not get all that is queued.
	_ = c.stdin.SetWriteDeadline(time.Now().Add(exitDelay))
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		select {
		case <-c.exited:
		case <-time.After(stopGrace):
			c.signal(s)
		}
	}
	<-c.reaped
	// A process that left the group may hold the pipes open for ever.
	deadline := time.Now().Add(exitDelay)
	_ = c.stdout.SetReadDeadline(deadline)
	_ = c.stderr.SetReadDeadline(deadline)
}
