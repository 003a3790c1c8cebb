package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/foldgate/foldgate/interceptor/preview/extract"
	"github.com/foldgate/foldgate/interceptor/trace"
)

func TestMain(m *testing.M) {
	extract.Child()
	testscript.Main(m, map[string]func(){
		"foldgate": func() {
			os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
		"converse": converse,
		"paces":    printPaces,
	})
}

// converse is the command "converse COMMAND...": it runs a server on stdio as a host does. It
// sends the lines of its input, and closes the server's input once each request has its reply.
// A server whose input is closed earlier drops slow replies.
func converse() {
	requests, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	server := exec.Command(os.Args[1], os.Args[2:]...)
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if err := server.Start(); err != nil {
		log.Fatal(err)
	}
	if _, err := in.Write(requests); err != nil {
		log.Fatal(err)
	}
	waiting := bytes.Count(requests, []byte(`"id":`))
	lines := bufio.NewReader(out)
	for err == nil {
		if waiting == 0 {
			in.Close()
		}
		var line []byte
		line, err = lines.ReadBytes('\n')
		os.Stdout.Write(line)
		if bytes.Contains(line, []byte(`"id":`)) && !bytes.Contains(line, []byte(`"method":`)) {
			waiting--
		}
	}
	if err := server.Wait(); err != nil || waiting != 0 {
		log.Fatalf("%v: %v, %d replies are missing", os.Args[1:], err, waiting)
	}
}

// exits runs a command that must end with the exit code given first.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits code command...")
	}
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || strconv.Itoa(exit.ExitCode()) != args[0] {
		ts.Fatalf("%v: %v, want exit code %s", args[1:], err, args[0])
	}
}

// TestScripts drives the commands as a shell would: testdata/script/*.txtar.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script", RequireExplicitExec: true,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

// write writes a file that a test reads.
func write[T string | []byte](t *testing.T, file string, text T) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// full is a file on a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// A command whose output is lost has failed, and says so.
func TestLostOutput(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gate.yaml")
	write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	journal, err := trace.Open(filepath.Join(dir, ".foldgate", "trace"), trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := journal.Append(called("files", 1, 0)[0]); err != nil {
		t.Fatal(err)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"stats", "stats --json", "check", "doctor", "trace", "trace --format jsonl", "trace verify", "trace contexts", "trace erase --tool t", "pins", "version", "--help", "count " + file, "completion bash"} {
		var said strings.Builder
		if code := run(t.Context(), append(strings.Fields(command), "--config", file), strings.NewReader(""), full{}, &said); code != exitFailed || !strings.HasSuffix(said.String(), "foldgate: no space left on device\n") {
			t.Errorf("%s: code %d, %s", command, code, said.String())
		}
	}
}
