//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"sync"

	"github.com/foldgate/foldgate/test/testbin"
)

// pipe is a server on stdio that several callers share.
type pipe struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	modern bool
	ended  chan struct{}

	mu      sync.Mutex
	waiting map[int]chan []byte
	dead    error
}

func startPipe(ctx context.Context, modern bool, command ...string) (*pipe, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	in, out, err := testbin.Start(cmd)
	if err != nil {
		return nil, err
	}
	p := &pipe{cmd: cmd, in: in, modern: modern, waiting: map[int]chan []byte{}, ended: make(chan struct{})}
	go p.read(bufio.NewReaderSize(out, 1<<20))
	return p, nil
}

func (p *pipe) read(r *bufio.Reader) {
	defer close(p.ended)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			break
		}
		p.mu.Lock()
		id := responseID(line)
		ch := p.waiting[id]
		delete(p.waiting, id)
		p.mu.Unlock()
		if ch != nil {
			ch <- line
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = errors.New("the server's output ended")
	for _, ch := range p.waiting {
		close(ch)
	}
}

// responseID finds the id, which every server here writes among the first members.
func responseID(line []byte) int {
	_, rest, _ := bytes.Cut(line, []byte(`"id":`))
	id := 0
	for _, b := range rest {
		if b < '0' || b > '9' {
			break
		}
		id = 10*id + int(b-'0')
	}
	return id
}

// stdioCaller is one of the callers of a pipe.
type stdioCaller struct {
	p   *pipe
	ch  chan []byte
	req []byte
}

func (c *stdioCaller) close() {}

func (c *stdioCaller) call(id int, method, name, arguments string) ([]byte, error) {
	c.req = append(message(c.req[:0], id, method, name, arguments, c.p.modern), '\n')
	c.p.mu.Lock()
	if c.p.dead != nil {
		c.p.mu.Unlock()
		return nil, c.p.dead
	}
	c.p.waiting[id] = c.ch
	c.p.mu.Unlock()
	if _, err := c.p.in.Write(c.req); err != nil { // one write: os.File does not mix lines
		return nil, err
	}
	line, ok := <-c.ch
	if !ok {
		return nil, c.p.dead
	}
	return line, nil
}
