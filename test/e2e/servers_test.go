//go:build e2e

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/testbin"
)

// fakeserverHTTP runs the fake upstream on HTTP and returns its URL.
func fakeserverHTTP(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(fakeserverBin, append([]string{"-http", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// recorded returns the messages that a fake upstream with -record got.
func recorded(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// recordedMethod returns the recorded messages of one method.
func recordedMethod(t *testing.T, file, method string) []string {
	t.Helper()
	var found []string
	for _, line := range recorded(t, file) {
		var m struct{ Method string }
		if json.Unmarshal([]byte(line), &m) == nil && m.Method == method {
			found = append(found, line)
		}
	}
	return found
}

func node(t *testing.T) string {
	t.Helper()
	bin, err := testbin.Node()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

func module(t *testing.T, file string) string {
	t.Helper()
	p, err := testbin.Module(file)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

const (
	filesystemJS = "@modelcontextprotocol/server-filesystem/dist/index.js"
	memoryJS     = "@modelcontextprotocol/server-memory/dist/index.js"
	everythingJS = "@modelcontextprotocol/server-everything/dist/index.js"
	inspectorJS  = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
)

var boundTo = regexp.MustCompile(`listening on 127\.0\.0\.1:(\d+)`)

// everythingHTTP runs npm's server-everything on streamable HTTP, on loopback.
func everythingHTTP(t *testing.T) string {
	t.Helper()
	preload, err := testbin.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(node(t), "-r", preload, module(t, everythingJS), "streamableHttp")
	cmd.Env = append(os.Environ(), "PORT=0")
	log := &buffer{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	deadline := time.After(30 * time.Second)
	for {
		changed := log.changed()
		if m := boundTo.FindStringSubmatch(log.String()); m != nil {
			return "http://127.0.0.1:" + m[1] + "/mcp"
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("server-everything did not listen within 30 s:\n%s", log.String())
		}
	}
}

// inspector runs the Inspector's command line once and returns its output.
func inspector(t *testing.T, target []string, args ...string) json.RawMessage {
	t.Helper()
	cmd := exec.Command(node(t), append(append([]string{module(t, inspectorJS), "--cli"}, target...), append(args, "--format", "json", "-q")...)...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "MCP_INSPECTOR_SECRET_STORE=memory")
	cmd.Dir = home
	var errs buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("inspector %s: %v\n%s%s", strings.Join(args, " "), err, out, errs.String())
	}
	if !json.Valid(out) {
		t.Fatalf("inspector %s printed no JSON: %q", strings.Join(args, " "), out)
	}
	return out
}

// record returns a file for fakeserver -record.
func recordFile(t *testing.T) string {
	return filepath.Join(t.TempDir(), "record")
}

// A server that can't be reached is logged once, whoever asks for it: the gateway at its start, hosts, their calls.
func TestUnreachableIsLoggedOnce(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams:\n  dead: {url: \"http://127.0.0.1:"+freeport.For(t)+"/mcp\"}\n")
	g.http()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern, mcpclient.Legacy} {
		c := mcpclient.HTTP(g.url, era)
		g.closes(c)
		if _, err := c.Start(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			_, _ = c.Call(testContext(t), "tools/call", `{"name":"dead__x","arguments":{}}`)
		}
	}
	if n := strings.Count(g.log.String(), "can't be reached"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
