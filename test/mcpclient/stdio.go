package mcpclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"

	"github.com/foldgate/foldgate/test/testbin"
)

// stdioTransport speaks to a child process, one message a line.
type stdioTransport struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	read chan struct{} // closed when stdout is at its end

	mu sync.Mutex // guards writes to in
}

// Stdio starts cmd and speaks to its standard input and output. Every line of
// its output must be a message: anything else is a fault.
func Stdio(cmd *exec.Cmd, era Era) (*Client, error) {
	c := newClient(era)
	in, out, err := testbin.Start(cmd)
	if err != nil {
		return nil, err
	}
	t := &stdioTransport{cmd: cmd, in: in, read: make(chan struct{})}
	c.t = t
	go func() {
		defer close(t.read)
		br := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := br.ReadBytes('\n')
			if len(line) > 0 {
				c.receive(line, "")
			}
			if err != nil {
				c.hangUp(fmt.Errorf("server's output ended: %w", err))
				return
			}
		}
	}()
	return c, nil
}

func (t *stdioTransport) perRequest() bool { return false }

func (t *stdioTransport) send(_ context.Context, m Message) error {
	line, err := encode(m)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, err = t.in.Write(append(line, '\n'))
	return err
}

func (t *stdioTransport) close() error {
	t.mu.Lock()
	err := t.in.Close()
	t.mu.Unlock()
	<-t.read
	return errors.Join(err, t.cmd.Wait())
}

// encode writes m without touching the bytes of its raw members.
func encode(m Message) ([]byte, error) {
	out := []byte(`{"jsonrpc":"2.0"`)
	add := func(key string, raw json.RawMessage) {
		if raw != nil {
			out = append(append(out, `,"`+key+`":`...), raw...)
		}
	}
	add("id", m.ID)
	if m.Method != "" {
		quoted, err := json.Marshal(m.Method)
		if err != nil {
			return nil, err
		}
		add("method", quoted)
	}
	add("params", m.Params)
	add("result", m.Result)
	add("error", m.Error)
	return append(out, '}'), nil
}
