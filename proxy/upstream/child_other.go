//go:build !unix

package upstream

import (
	"os"
	"os/exec"
)

type groupSignal bool

// A process can only be killed here. The end of its stdin asks it to end.
const (
	sigTerm groupSignal = false
	sigKill groupSignal = true
)

func prepareChild(*exec.Cmd) {}

// awaitExit returns false: waiting without reaping is not supported here.
func awaitExit(int) bool { return false }

func signalGroup(p *os.Process, s groupSignal) {
	if s == sigKill {
		_ = p.Kill() // it may have ended by itself
	}
}
