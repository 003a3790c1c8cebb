//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/foldgate/foldgate/test/bench/allocprobe"
	"github.com/foldgate/foldgate/test/testbin"
)

// rig holds the programs under test and the processes that run.
type rig struct {
	ctx      context.Context
	dir      string // of everything this run writes
	self     string // this program: the upstream
	foldgate string
	minproxy string
	against  string // another foldgate, "" for none
	servers  []*server
}

// server is one process that answers calls.
type server struct {
	rig      *rig
	name     string
	pid      int
	endpoint string // "" on stdio
	p        *pipe
	config   string // of a foldgate
	cmd      *exec.Cmd
	exited   chan struct{}
	log      *tail
}

// tail keeps the end of a process's output, in case it fails.
type tail struct {
	mu   sync.Mutex
	buf  []byte
	more chan struct{}
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 1<<16 {
		t.buf = bytes.Clone(t.buf[len(t.buf)-1<<15:])
	}
	select {
	case t.more <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (t *tail) find(re *regexp.Regexp) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(re.Find(t.buf))
}

var endpointForm = regexp.MustCompile(`http://127\.0\.0\.1:\d+/mcp`)

// start runs a process that serves HTTP. endpoint is where, or "" if it says so itself.
func (r *rig) start(name, endpoint, dir string, env []string, command ...string) (*server, error) {
	cmd := exec.CommandContext(r.ctx, command[0], command[1:]...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), dir
	out := &tail{more: make(chan struct{}, 1)}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{rig: r, name: name, pid: cmd.Process.Pid, endpoint: endpoint, cmd: cmd, exited: make(chan struct{}), log: out}
	go func() { _ = cmd.Wait(); close(s.exited) }()
	r.servers = append(r.servers, s)
	deadline := time.After(30 * time.Second)
	for {
		if endpoint == "" {
			s.endpoint = out.find(endpointForm)
		}
		if s.endpoint != "" && answersHTTP(s.endpoint) {
			return s, nil
		}
		select {
		case <-s.exited:
			return nil, fmt.Errorf("%s ended: %s", name, out.buf)
		case <-deadline:
			return nil, fmt.Errorf("%s does not answer: %s", name, out.find(regexp.MustCompile(`(?s).*`)))
		case <-out.more:
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// close ends the process, and its group where it leaves children behind.
func (s *server) close() {
	if s.p != nil {
		_ = s.p.in.Close()
		<-s.p.ended
		_ = s.p.cmd.Wait()
		return
	}
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.exited:
	case <-time.After(10 * time.Second):
	}
	_ = syscall.Kill(-s.pid, syscall.SIGKILL)
	<-s.exited
}

func (r *rig) close() {
	for _, s := range r.servers {
		s.close()
	}
}

// stdio starts a server that speaks to its parent.
func (r *rig) stdio(name, config string, modern bool, command ...string) (*server, error) {
	p, err := startPipe(r.ctx, modern, command...)
	if err != nil {
		return nil, err
	}
	s := &server{rig: r, name: name, pid: p.cmd.Process.Pid, p: p, config: config}
	r.servers = append(r.servers, s)
	return s, nil
}

// foldgateConfig lets a load through: branches last and have room, and results of any size are
// delivered whole.
const foldgateConfig = `state_dir: state
folding: {default_budget: 1073741824, max_budget: 1073741824, default_timeout_seconds: 3600, max_timeout_seconds: 3600,
  max_concurrent_per_session: 100000, max_concurrent_per_instance: 100000, max_branches_per_minute: 1000000}
results: {tools: {"**": {fold: off}}}
`

// configure writes the configuration of one foldgate.
func (r *rig) configure(name, upstreams, more string) (string, error) {
	dir := filepath.Join(r.dir, "gateways", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, "foldgate.yaml")
	return file, os.WriteFile(file, []byte(foldgateConfig+"upstreams:\n"+upstreams+more), 0o600)
}

func (r *rig) leanStdio() string {
	return fmt.Sprintf("  lean: {command: [%q, upstream, stdio], prefix: \"\"}\n", r.self)
}

// rotated bounds the disk space of a run.
const rotated = "trace: {rotate_mb: 64, retain_files: 2}\n"

// bare leaves the payloads out of the records as well.
const bare = "trace: {payload: none, rotate_mb: 64, retain_files: 2}\n"

// unscrubbed switches the scrubbing of messages off.
const unscrubbed = "scrub: {results: off, arguments: off}\n"

// fiveLimits match each call and let it through. SQLite counts them.
const fiveLimits = `budgets: {limits: [
  {name: a, per: principal, window: 1h, tokens: 1000G}, {name: b, per: team, window: 1d, tokens: 1000G, calls: 1000G},
  {name: c, per: tool, window: 1w, tokens: 1000G}, {name: d, per: server, window: 1mo, tokens: 1000G, calls: 1000G},
  {name: e, per: all, window: rolling 24h, tokens: 1000G}]}
`

// runFoldgate starts a foldgate that serves HTTP.
func (r *rig) runFoldgate(name, upstreams, more string) (*server, error) {
	return r.runBinary(r.foldgate, name, upstreams, more)
}

func (r *rig) runBinary(binary, name, upstreams, more string) (*server, error) {
	file, err := r.configure(name, upstreams, more)
	if err != nil {
		return nil, err
	}
	s, err := r.start(name, "", filepath.Dir(file), nil, binary, "run", "--listen", "127.0.0.1:0", "--config", file)
	if s != nil {
		s.config = file
	}
	return s, err
}

// runChecked starts a foldgate before the lean upstream, after another one with the same
// configuration proved that it does p.
func (r *rig) runChecked(name, more string, p parts) (*server, error) {
	proof, err := r.runFoldgate(name+", proof", r.leanStdio(), more)
	if err != nil {
		return nil, err
	}
	err = check(proof, p)
	proof.close()
	r.servers = slices.DeleteFunc(r.servers, func(s *server) bool { return s == proof })
	if err != nil {
		return nil, err
	}
	return r.runFoldgate(name, r.leanStdio(), more)
}

const foldgatePackage = "github.com/foldgate/foldgate/cmd/foldgate"

// build makes the programs under test.
func (r *rig) build() (err error) {
	if err := os.Setenv(allocprobe.Dir, r.dir); err != nil { // for whatever is started
		return err
	}
	r.foldgate, err = r.buildFoldgate()
	if err == nil {
		r.minproxy, err = testbin.Build(r.dir, "github.com/foldgate/foldgate/test/bench/minproxy")
	}
	if err != nil {
		return err
	}
	r.self, err = os.Executable()
	if err != nil {
		return errors.New("this program can't find itself: build it with make bench")
	}
	return nil
}
