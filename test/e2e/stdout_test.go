//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// On stdio, standard output carries nothing but protocol, for any output of an upstream. The
// client is strict: a line that is no message, or a response to no request, fails the test.
func TestStdoutPurity(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakeConfig(recordFile(t), "  noisy: {command: [sh, -c, 'echo Starting up...; echo; echo \"{}\"; printf \"\\\\000\\\\377\\\\n\"; exec \"$0\"', "+fakeserverBin+"]}\n"))
			c := g.connect(ctx, "stdio", era)
			call(t, c, ctx, "tools/list", `{}`)
			for _, noise := range []string{
				`npm warn deprecated`, `{"jsonrpc":"2.0"}`, `{"jsonrpc":"2.0","id":77,"result":{}}`, `[]`, `{`, `null`, `\u0000`,
				strings.Repeat("x", 100000),
			} {
				args := `{"text":` + jsonText(noise) + `}`
				if got := text(t, c, ctx, "fake__noise", args); !strings.Contains(got, "noise") {
					t.Errorf("after the noise %.60q: %q", noise, got)
				}
			}
			if got := text(t, c, ctx, "noisy__pid", `{}`); got == "" {
				t.Error("the upstream that starts with noise does not answer")
			}
			text(t, c, ctx, "fake__stderr", `{"text":"a word on stderr"}`)
			until(t, "the child's stderr is in the log", func() bool { return strings.Contains(g.log.String(), "a word on stderr") })
		})
	}
}

// A gateway that waits for its host has no thread in a read of standard input: see package pollable.
func TestInputIsPolled(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	cmd := g.command("run")
	in, out := startPiped(t, cmd)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"ping"}`)
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	until(t, "no thread reads standard input", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			t.Fatal("the threads of the gateway are not to be seen", err)
		}
		return !slices.ContainsFunc(threads, func(name string) bool {
			call, _ := os.ReadFile(name)
			return bytes.HasPrefix(call, fmt.Appendf(nil, "%d 0x0 ", syscall.SYS_READ))
		})
	})
	_ = in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// Garbage from the host gets an error or nothing, and the connection goes on.
func TestGarbageFromTheHost(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	cmd := g.command("run")
	in, out := startPiped(t, cmd)
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	for _, line := range []string{"", "garbage", "{", `{"jsonrpc":"1.0","id":5,"method":"ping"}`, `[]`, `{"jsonrpc":"2.0","id":{},"method":"ping"}`, strings.Repeat("[", 100000)} {
		fmt.Fprintln(in, line)
	}
	fmt.Fprintln(in, `{"jsonrpc":"2.0","id":"last","method":"ping"}`)
	_ = in.Close()
	answered := map[string]bool{}
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		m, err := mcpclient.Parse(sc.Bytes())
		if err != nil {
			t.Errorf("stdout: %v", err)
		}
		answered[string(m.ID)] = m.Result != nil
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("foldgate run: %v", err)
	}
	if !answered["1"] || !answered[`"last"`] {
		t.Errorf("answered %v, want 1 and \"last\"", answered)
	}
}
