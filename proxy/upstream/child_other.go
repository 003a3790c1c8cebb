//go:build !unix

package upstream

import (
	"os"
	"os/exec"
)

type groupSignal bool

// There is one way to end a process here; asking it to is closing its stdin.
const (
	sigTerm groupSignal = false
	sigKill groupSignal = true
)

func prepareChild(*exec.Cmd) {}

// awaitExit reports that waiting without reaping is not to be had here.
func awaitExit(int) bool { return false }

func signalGroup(p *os.Process, s groupSignal) {
	if s == sigKill {
		_ = p.Kill() // it may have ended by itself
	}
}
