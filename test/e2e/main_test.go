//go:build e2e

// Package e2e drives the real binary: as a host on stdio and on HTTP in both eras of the
// protocol, in front of its own upstreams and of upstreams from npm. Its clients check the bytes
// on the wire, and share no code with the product.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/testbin"
)

// Paths of the programs under test, set once by TestMain.
var foldgateBin, fakeserverBin, demoserverBin string

func TestMain(m *testing.M) {
	if at := os.Getenv(suiteClientAt); at != "" {
		os.Exit(suiteClient(at))
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "foldgate-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if os.Getenv("GORACE") == "" {
		// By default a program with the race detector sleeps for a second when it ends.
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	if foldgateBin, err = testbin.Build(dir, "github.com/foldgate/foldgate/cmd/foldgate"); err == nil { // only the product needs the race detector
		fakeserverBin, err = testbin.Build(dir, "github.com/foldgate/foldgate/test/fakeserver", "-race=false")
	}
	if err == nil {
		demoserverBin, err = testbin.Build(dir, "github.com/foldgate/foldgate/test/demoserver", "-race=false")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// testTimeout bounds one conversation with the binary.
const testTimeout = 60 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// gateway is one configuration, with the log and the state of the runs of the binary on it.
type gateway struct {
	t      *testing.T
	dir    string // of the configuration
	config string
	env    []string // more variables of the environment
	log    buffer   // standard error of all runs
	ends   []func()
	pid    int    // of the newest run on HTTP
	url    string // of the same
}

// newGateway writes config, with state_dir first, and returns the gateway.
func newGateway(t *testing.T, config string) *gateway {
	t.Helper()
	dir := t.TempDir()
	g := &gateway{t: t, dir: dir, config: filepath.Join(dir, "foldgate.yaml")}
	write(t, g.config, "state_dir: state\n"+config)
	t.Cleanup(func() {
		g.stop()
		if t.Failed() {
			t.Logf("log of foldgate:\n%s", g.log.String())
		}
	})
	return g
}

// write writes a file that a test reads.
func write[T string | []byte](t testing.TB, file string, text T) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// unmarshal decodes JSON.
func unmarshal(t testing.TB, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%v: %.500s", err, raw)
	}
}

// read returns what a file holds.
func read(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// command is the binary with the gateway's configuration. Without one it looks for a file by itself.
func (g *gateway) command(args ...string) *exec.Cmd {
	if g.config != "" {
		args = append(args, "--config", g.config)
	}
	cmd := exec.Command(foldgateBin, args...)
	cmd.Dir = g.dir
	cmd.Stderr = &g.log
	cmd.Env = append(os.Environ(), g.env...)
	return cmd
}

// output runs a subcommand to its end and returns its standard output.
func (g *gateway) output(args ...string) string {
	g.t.Helper()
	out, err := g.command(args...).Output()
	if err != nil {
		g.t.Fatalf("foldgate %s: %v\n%s%s", strings.Join(args, " "), err, out, g.log.String())
	}
	return string(out)
}

// stdio runs the gateway as a host does that configures a command.
func (g *gateway) stdio(era mcpclient.Era) *mcpclient.Client {
	g.t.Helper()
	c, err := mcpclient.Stdio(g.command("run"), era)
	if err != nil {
		g.t.Fatal(err)
	}
	g.closes(c)
	return c
}

// stop ends every connection and process of the gateway, newest first.
func (g *gateway) stop() {
	for len(g.ends) > 0 {
		end := g.ends[len(g.ends)-1]
		g.ends = g.ends[:len(g.ends)-1]
		end()
	}
}

// closes ends the client with the gateway, and holds both sides to a clean end.
func (g *gateway) closes(c *mcpclient.Client) {
	g.ends = append(g.ends, func() {
		if err := c.Close(); err != nil {
			g.t.Errorf("closing the connection: %v", err)
		}
		for _, fault := range c.Faults() {
			g.t.Errorf("protocol: %s", fault)
		}
	})
}

var listening = regexp.MustCompile(`foldgate listens on (https?://127\.0\.0\.1:\d+/mcp)\n`)

// http runs the gateway on a port of its own and returns its URL.
func (g *gateway) http() string {
	g.t.Helper()
	var said []string
	g.pid, said = g.background(listening, "run", "--listen", "127.0.0.1:0")
	g.url = said[1]
	return g.url
}

// background runs the binary until the gateway ends, and returns its process id and what a pattern finds in
// its output. It is ended by SIGTERM, and must then exit with status 0.
func (g *gateway) background(pattern *regexp.Regexp, args ...string) (pid int, said []string) {
	g.t.Helper()
	cmd := g.command(args...)
	out := &buffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	g.ends = append(g.ends, func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-exited:
			if err != nil {
				g.t.Errorf("foldgate %s after SIGTERM: %v", args[0], err)
			}
		case <-time.After(30 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
			g.t.Errorf("foldgate %s did not end within 30 s of SIGTERM", args[0])
		}
	})
	deadline := time.After(60 * time.Second)
	for {
		changed := out.changed() // before the look, or what comes between goes unseen
		if said := pattern.FindStringSubmatch(out.String()); said != nil {
			return cmd.Process.Pid, said
		}
		select {
		case <-changed:
		case err := <-exited:
			exited <- err
			g.t.Fatalf("foldgate %s ended: %v", args[0], err)
		case <-deadline:
			g.t.Fatalf("foldgate %s printed no address within 60 s", args[0])
		}
	}
}

// startHost opens the session of a host.
func startHost(t testing.TB, ctx context.Context, c *mcpclient.Client) {
	t.Helper()
	if _, err := c.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// connect returns a started client of the given kind: "stdio" or "http".
func (g *gateway) connect(ctx context.Context, transport string, era mcpclient.Era) *mcpclient.Client {
	g.t.Helper()
	c := g.unstarted(transport, era)
	if _, err := c.Start(ctx); err != nil {
		g.t.Fatalf("start over %s, %s: %v", transport, era, err)
	}
	return c
}

// unstarted returns a client that has not declared its capabilities yet.
func (g *gateway) unstarted(transport string, era mcpclient.Era) *mcpclient.Client {
	g.t.Helper()
	if transport == "stdio" {
		return g.stdio(era)
	}
	c := mcpclient.HTTP(g.http(), era)
	g.closes(c)
	return c
}

// answering returns a started host on stdio that answers every question of a server.
func (g *gateway) answering(ctx context.Context, era mcpclient.Era) *mcpclient.Client {
	g.t.Helper()
	c := g.stdio(era)
	c.Capabilities = `{"elicitation":{},"sampling":{}}`
	c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
		if m.ID == nil {
			return nil, nil
		}
		return json.RawMessage(`{"action":"accept","content":{},"role":"assistant","model":"m"}`), nil
	}
	if _, err := c.Start(ctx); err != nil {
		g.t.Fatal(err)
	}
	return c
}

// everyHost runs f once for each way in which a host reaches the gateway.
func everyHost(t *testing.T, f func(t *testing.T, transport string, era mcpclient.Era)) {
	for _, transport := range []string{"stdio", "http"} {
		for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
			t.Run(transport+"-"+string(era), func(t *testing.T) { f(t, transport, era) })
		}
	}
}

// buffer is a bytes.Buffer for one writer and several readers.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	wake chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake != nil {
		close(b.wake)
		b.wake = nil
	}
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// changed returns a channel that is closed with the next write.
func (b *buffer) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wake == nil {
		b.wake = make(chan struct{})
	}
	return b.wake
}
