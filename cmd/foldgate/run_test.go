package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"
)

func TestGCPercent(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 8 << 20: 400, 16 << 20: 200, 32 << 20: 100, 1 << 30: 100} {
		if got := gcPercent(live); got != want {
			t.Errorf("gcPercent(%d) = %d, want %d", live, got, want)
		}
	}
}

// printPaces is the command "paces" of testdata/script/collect.txtar: a
// process of its own, since a pace is the whole process's and paceCollector never
// ends. It prints the pace, as in GOGC, with little on the heap and with much.
func printPaces() {
	runtime.GC()
	paceCollector()
	little := currentPace()
	much := make([]byte, 64<<20)
	for range 3 {
		runtime.GC()
	}
	// What follows a collection runs some time after it. A pace is left alone
	// within an eighth of what it should be.
	for os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" && currentPace() > 112 {
		runtime.GC()
	}
	fmt.Printf("little %d\nmuch %d\n", little, currentPace())
	runtime.KeepAlive(much)
}

// currentPace reads the percentage without setting it: between setting it and setting
// it back, what paceCollector sets would be lost.
func currentPace() uint64 {
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// The address that the greeting names is one that a host can reach.
func TestOrigin(t *testing.T) {
	for listen, want := range map[string]string{":80": "127.0.0.1:80", "0.0.0.0:80": "127.0.0.1:80", "[::]:80": "127.0.0.1:80", "127.0.0.1:80": "127.0.0.1:80", "[::1]:80": "[::1]:80", "10.1.2.3:80": "10.1.2.3:80"} {
		if got := origin(false, listen); got != "http://"+want {
			t.Errorf("%s is named %s, want http://%s", listen, got, want)
		}
		if got := origin(true, listen); got != "https://"+want {
			t.Errorf("%s with TLS is named %s, want https://%s", listen, got, want)
		}
	}
}

// The greeting says where foldgate listens, and gives hosts the URL at which they reach it.
func TestGreeting(t *testing.T) {
	for _, tokens := range []bool{false, true} {
		var out strings.Builder
		greet(&out, "http://127.0.0.1:80/mcp", "https://gate.example.com/mcp", tokens)
		first, hosts, _ := strings.Cut(out.String(), "\n")
		if first != "foldgate listens on http://127.0.0.1:80/mcp" {
			t.Errorf("the first line is %q", first)
		}
		if n := strings.Count(hosts, "https://gate.example.com/mcp"); n != 5 || strings.Contains(hosts, "127.0.0.1") {
			t.Errorf("%d of 5 hosts have the public URL:\n%s", n, hosts)
		}
	}
}

// A host that starts a configuration with an address reads on standard error that foldgate does not answer it.
// Without a pipe as its input, foldgate greets on standard output, as for a terminal or a service.
func TestAddressForAHost(t *testing.T) {
	foldgate, err := exec.LookPath("foldgate")
	if err != nil {
		t.Fatal(err)
	}
	for _, piped := range []bool{true, false} {
		cmd := exec.Command(foldgate, "run", "--listen", "127.0.0.1:0")
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "HOME="+cmd.Dir, "XDG_CONFIG_HOME="+cmd.Dir, "FOLDGATE_CONFIG=")
		var other strings.Builder
		read := cmd.StdoutPipe
		cmd.Stderr = &other
		if piped {
			read, cmd.Stdout, cmd.Stderr = cmd.StderrPipe, &other, nil
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
		}
		out, err := read()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		var said string
		for lines := bufio.NewScanner(out); !strings.HasPrefix(lines.Text(), "Press Ctrl-C") && lines.Scan(); {
			said += lines.Text() + "\n"
		}
		_ = cmd.Process.Kill()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		if !strings.Contains(said, "foldgate listens on http://127.0.0.1:") || strings.Contains(said, "foldgate connect HOST") != piped {
			t.Errorf("a pipe %t: it says\n%s", piped, said)
		}
		if strings.Contains(other.String(), "listens on") || piped && other.Len() > 0 {
			t.Errorf("a pipe %t: on the other stream\n%s", piped, other.String())
		}
	}
}
