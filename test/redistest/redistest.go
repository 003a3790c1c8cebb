// Package redistest starts Redis servers for tests.
package redistest

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/freeport"
)

// Server is a redis-server on the loopback interface, with a directory of its own.
type Server struct {
	Port string
	args []string
	cmd  *exec.Cmd
}

// New starts a server, which ends with the test. The arguments stand before those that it has
// anyway. Without redis-server the test is skipped.
func New(t testing.TB, args ...string) *Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(`there is no redis-server: install it, for example by "apt-get install redis-server"`)
	}
	s := &Server{Port: freeport.For(t)}
	// It writes each operation before it confirms it. With everysec it can be late, and lose the
	// operation when it is killed.
	s.args = append(args, "--port", s.Port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--appendonly", "yes", "--appendfsync", "no", "--save", "")
	s.Start(t)
	t.Cleanup(s.Kill)
	return s
}

// Sentinel starts a sentinel that calls its master budgets. More are lines of its configuration.
func Sentinel(t testing.TB, master *Server, more ...string) *Server {
	t.Helper()
	conf := filepath.Join(t.TempDir(), "sentinel.conf")
	lines := append([]string{"sentinel monitor budgets 127.0.0.1 " + master.Port + " 1"}, more...)
	if err := os.WriteFile(conf, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return New(t, conf, "--sentinel")
}

// Start starts a killed server again, with its data, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	var out bytes.Buffer
	s.cmd = exec.Command("redis-server", s.args...)
	s.cmd.Stdout, s.cmd.Stderr = &out, &out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !s.answers(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Kill() // then nothing writes to out
			t.Fatalf("redis-server does not answer: %s", out.String())
		}
	}
}

// answers reports whether the server has loaded its data. It can ask for a password.
func (s *Server) answers() bool {
	c, err := net.Dial("tcp", "127.0.0.1:"+s.Port)
	if err != nil {
		return false
	}
	defer c.Close()
	answer := make([]byte, 5)
	_, err = fmt.Fprint(c, "PING\r\n")
	_, err2 := io.ReadFull(c, answer)
	return err == nil && err2 == nil && (string(answer) == "+PONG" || string(answer) == "-NOAU")
}

// Kill ends the server at once.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Signal sends the server a signal, such as SIGSTOP.
func (s *Server) Signal(sig syscall.Signal) { _ = s.cmd.Process.Signal(sig) }

// URL is the address for `store.url`.
func (s *Server) URL() string { return "redis://127.0.0.1:" + s.Port }

// CLI runs a command of redis-cli and returns what it prints.
func (s *Server) CLI(args ...string) (string, error) {
	out, err := exec.Command("redis-cli", append([]string{"-p", s.Port}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("redis-cli %v: %w: %s", args, err, out)
	}
	return strings.TrimSpace(string(out)), err
}
