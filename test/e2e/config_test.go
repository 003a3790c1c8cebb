//go:build e2e

package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A bad configuration ends the program with status 2 and a word on the key and
// the line, before anything is started.
func TestBadConfiguration(t *testing.T) {
	t.Parallel()
	started := filepath.Join(t.TempDir(), "started")
	starts := "  first: {command: [touch, " + started + "]}\n"
	for name, tt := range map[string]struct {
		config string
		want   []string // regular expressions that the message must match
	}{
		"unknown key":         {"upstreams:\n" + starts + "colour: red\n", []string{`colour`, `\b3\b`}},
		"unknown nested key":  {"upstreams:\n" + starts + "folding:\n  default_budget: 1000\n  depth: 2\n", []string{`depth`, `\b5\b`}},
		"unset variable":      {"upstreams:\n" + starts + "  second:\n    command: [cat]\n    env: {TOKEN: \"${FOLDGATE_TEST_UNSET}\"}\n", []string{`FOLDGATE_TEST_UNSET`, `second\.env`, `\b5\b`}},
		"same prefix":         {"upstreams:\n" + starts + "  second: {command: [cat], prefix: first}\n", []string{`first`, `second`, `\b3\b`}},
		"unreachable command": {"upstreams:\n" + starts + "  second:\n    command: [foldgate-no-such-program]\n", []string{`foldgate-no-such-program`, `second`, `\b4\b`}},
		"malformed YAML":      {"upstreams:\n" + starts + "folding: {max_depth: [\n", []string{`\b[34]\b`}},
		"wrong type":          {"upstreams:\n" + starts + "folding: {max_depth: deep}\n", []string{`max_depth|deep`, `\b3\b`}},
		"impossible value":    {"upstreams:\n" + starts + "folding: {max_depth: -1}\n", []string{`max_depth`, `\b3\b`}},
		"public address":      {"listen: 0.0.0.0:8787\nupstreams:\n" + starts, []string{`listen`, `0\.0\.0\.0`, `\b1\b`}},
		"two kinds":           {"upstreams:\n" + starts + "  second: {command: [cat], url: \"http://127.0.0.1:1/mcp\"}\n", []string{`second`, `\b3\b`}},
		"no such root":        {"upstreams:\n" + starts + "  second: {builtin: files, roots: [no-such-directory]}\n", []string{`no-such-directory`, `second`, `\b3\b`}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, command := range []string{"run", "check"} {
				dir := t.TempDir()
				file := filepath.Join(dir, "foldgate.yaml")
				write(t, file, tt.config)
				cmd := exec.Command(foldgateBin, command, "--config", file)
				cmd.Dir = dir
				var stdout, stderr strings.Builder
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				err := cmd.Run()
				var exit *exec.ExitError
				if !errors.As(err, &exit) || exit.ExitCode() != 2 {
					t.Errorf("foldgate %s: %v, want exit status 2\n%s", command, err, stderr.String())
				}
				for _, re := range tt.want {
					if !regexp.MustCompile(re).MatchString(strings.ReplaceAll(stderr.String(), dir, "")) {
						t.Errorf("foldgate %s says %q, want it to match %s", command, stderr.String(), re)
					}
				}
				if stdout.Len() > 0 && command == "run" {
					t.Errorf("foldgate run wrote to stdout: %q", stdout.String())
				}
				if _, err := os.Stat(started); err == nil {
					t.Errorf("foldgate %s started an upstream", command)
					_ = os.Remove(started)
				}
				if command == "run" {
					t.Logf("%s", strings.TrimSpace(stderr.String()))
				}
			}
		})
	}
	t.Run("no such file", func(t *testing.T) {
		out, err := exec.Command(foldgateBin, "run", "--config", filepath.Join(t.TempDir(), "nowhere.yaml")).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "nowhere.yaml") {
			t.Errorf("foldgate run with a missing file: %v, %q", err, out)
		}
	})
}

// Usage errors have status 2 as well, and standard output stays empty.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"no-such-command"}, {"run", "--no-such-flag"}, {"trace", "--format", "xml"}} {
		cmd := exec.Command(foldgateBin, args...)
		cmd.Dir = t.TempDir()
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || len(out) > 0 || stderr.Len() == 0 {
			t.Errorf("foldgate %s: %v, stdout %q, stderr %q, want status 2 and a word on stderr", strings.Join(args, " "), err, out, stderr.String())
		}
	}
}

// count and scrub use the engines of the proxy; version names the product.
func TestSmallCommands(t *testing.T) {
	t.Parallel()
	g := newGateway(t, "upstreams: {files: {builtin: files, roots: [.]}}\n")
	secret := "ghp_" + "Zx81Kq47Lm20Pw93Rt56Yu12Bn78Vc34Xs90"
	sample := filepath.Join(g.dir, "sample.txt")
	body := "héllo <world> 😀\ntoken = " + secret + "\n"
	write(t, sample, body)
	if got, want := strings.TrimSpace(g.output("count", sample)), jsonText(map[string]any{"tokens": tokens(t, body), "bytes": len(body), "encoding": "o200k_base"}); !sameJSON(t, got, want) {
		t.Errorf("count = %s, want %s", got, want)
	}
	clean := g.output("scrub", sample)
	if strings.Contains(clean, secret) || !strings.HasPrefix(clean, "héllo <world> 😀\ntoken = ") {
		t.Errorf("scrub = %q", clean)
	}
	if !strings.Contains(g.log.String(), `"rule"`) || strings.Contains(g.log.String(), secret) {
		t.Errorf("scrub reported %q", g.log.String())
	}
	if out, err := exec.Command(foldgateBin, "version").Output(); err != nil || !strings.Contains(string(out), "foldgate") {
		t.Errorf("version = %q, %v", out, err)
	}
}
