package trace

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// TestKill: a process that is killed with SIGKILL in the middle of its writes
// loses no record that Append has returned for.
func TestKill(t *testing.T) {
	if dir := os.Getenv("TRACE_TEST_KILL_DIR"); dir != "" {
		writeForEver(dir)
		return
	}
	dir := t.TempDir()
	var acknowledged []string
	for round := range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKill$")
		cmd.Env = append(os.Environ(), "TRACE_TEST_KILL_DIR="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if id, ok := strings.CutPrefix(lines.Text(), "id "); ok {
				acknowledged = append(acknowledged, id)
			}
			if n == 300+round*50 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the child ended by itself")
		}
	}
	j := open(t, dir, Options{})
	closeJournal(t, j)
	there := map[string]bool{}
	for _, r := range query(t, dir, pick{}) {
		there[r.ID] = true
	}
	if len(acknowledged) < 900 {
		t.Fatalf("only %d records were acknowledged", len(acknowledged))
	}
	for _, id := range acknowledged {
		if !there[id] {
			t.Errorf("acknowledged record %s is lost", id)
		}
	}
	if r := verify(t, dir); !r.OK() {
		t.Errorf("faults = %v", r.Faults)
	}
}

// writeForEver is the child of TestKill: four writers, each id printed once it
// is acknowledged.
func writeForEver(dir string) {
	j, err := Open(dir, Options{RotateBytes: 50_000})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				r := &Record{Kind: "k", Payload: []byte(`"0123456789012345678901234567890123456789"`)}
				if err := j.Append(r); err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				fmt.Println("id " + r.ID)
			}
		})
	}
	wg.Wait()
}
