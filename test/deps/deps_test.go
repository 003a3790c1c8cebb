// Package deps tests the script that installs the tools of the tests. It runs on made-up
// machines: their PATH holds stand-ins that record how they were called.
package deps

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// machine is a directory with a copy of .ci/deps, and a PATH of its own.
type machine struct {
	t              *testing.T
	root, bin, log string
}

func newMachine(t *testing.T, uid string, programs ...string) *machine {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the script is for Debian and its kin")
	}
	root := t.TempDir()
	m := &machine{t: t, root: root, bin: filepath.Join(root, "bin"), log: filepath.Join(root, "log")}
	script, err := os.ReadFile("../../.ci/deps")
	if err != nil {
		t.Fatal(err)
	}
	m.write(".ci/deps", string(script))
	m.write("test/npm/package-lock.json", "{}")
	for _, real := range []string{"sh", "dirname", "touch", "mkdir", "env", "mv"} {
		at, err := exec.LookPath(real)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(m.bin, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(at, filepath.Join(m.bin, real)); err != nil {
			t.Fatal(err)
		}
	}
	m.write("bin/id", "#!/bin/sh\necho "+uid+"\n")
	npm := "#!/bin/sh\necho npm \"$@\" in ${PWD##*/} >>" + m.log + "\nmkdir -p node_modules\ntouch node_modules/.package-lock.json\n"
	m.write("npm", npm)
	for _, p := range programs {
		switch p {
		case "npm":
			m.write("bin/npm", npm)
		case "apt-get": // what it installs appears on the PATH
			m.write("bin/apt-get", "#!/bin/sh\necho apt-get \"$@\" $DEBIAN_FRONTEND >>"+m.log+"\ncase \"$*\" in install*npm*) mv "+root+"/npm "+m.bin+";; esac\n")
		case "broken apt-get":
			m.write("bin/apt-get", "#!/bin/sh\necho apt-get \"$@\" >>"+m.log+"\nexit 100\n")
		case "sudo":
			m.write("bin/sudo", "#!/bin/sh\necho sudo >>"+m.log+"\nexec \"$@\"\n")
		default:
			m.write("bin/"+p, "#!/bin/sh\n")
		}
	}
	return m
}

// write puts a program or a file onto the machine.
func (m *machine) write(name, text string) {
	m.t.Helper()
	file := filepath.Join(m.root, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		m.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		m.t.Fatal(err)
	}
}

// run runs the script. It returns the calls of the stand-ins, the output, and whether the script
// succeeded.
func (m *machine) run() (calls, printed string, ok bool) {
	m.t.Helper()
	_ = os.Remove(m.log)
	cmd := exec.Command(filepath.Join(m.bin, "sh"), filepath.Join(m.root, ".ci", "deps"))
	cmd.Env = []string{"PATH=" + m.bin}
	out, err := cmd.CombinedOutput()
	log, _ := os.ReadFile(m.log) // none: nothing was called
	return string(log), string(out), err == nil
}

const (
	npmCI  = "npm ci --ignore-scripts --no-audit --no-fund --loglevel=error in npm\n"
	update = "apt-get update -qq\n"
)

func install(packages string) string {
	return "apt-get install -y -qq --no-install-recommends " + packages + " noninteractive\n"
}

func TestDeps(t *testing.T) {
	for _, tt := range []struct {
		name, uid string
		programs  []string
		calls     string
		ok        bool
		says      string
	}{
		{"all there", "1000", []string{"gcc", "npm", "redis-server", "glewlwyd"}, npmCI, true, ""},
		{"no compiler", "0", []string{"npm", "redis-server", "glewlwyd", "apt-get"}, update + install("gcc libc6-dev") + npmCI, true, "apt-get install gcc"},
		{"no npm", "0", []string{"gcc", "redis-server", "glewlwyd", "apt-get"}, update + install("nodejs npm") + npmCI, true, ""},
		{"no redis-server", "0", []string{"gcc", "npm", "glewlwyd", "apt-get"}, update + install("redis-server") + npmCI, true, ""},
		{"no glewlwyd", "0", []string{"gcc", "npm", "redis-server", "apt-get"}, update + install("glewlwyd dbconfig-no-thanks") + npmCI, true, ""},
		{"none, not root", "1000", []string{"apt-get", "sudo"}, "sudo\n" + update + "sudo\n" + install("gcc libc6-dev nodejs npm redis-server glewlwyd dbconfig-no-thanks") + npmCI, true, ""},
		{"no apt-get", "0", []string{"npm", "redis-server", "glewlwyd"}, "", false, "deps: install gcc libc6-dev, the tests need them (apt-get is not here)"},
		{"no sudo", "1000", []string{"npm", "apt-get"}, "", false, "(sudo is not here)"},
		{"apt-get fails", "0", []string{"npm", "broken apt-get"}, update, false, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMachine(t, tt.uid, tt.programs...)
			calls, printed, ok := m.run()
			if calls != tt.calls || ok != tt.ok || !strings.Contains(printed, tt.says) {
				t.Errorf("called\n%sand printed\n%ssuccess %t; want the calls\n%ssuccess %t and %q", calls, printed, ok, tt.calls, tt.ok, tt.says)
			}
			if !tt.ok {
				return
			}
			m.write("bin/gcc", "#!/bin/sh\n")
			m.write("bin/redis-server", "#!/bin/sh\n")
			m.write("bin/glewlwyd", "#!/bin/sh\n")
			if calls, printed, ok := m.run(); calls != "" || printed != "" || !ok {
				t.Errorf("a second run called %s and printed %s, want nothing to do", calls, printed)
			}
		})
	}
}
