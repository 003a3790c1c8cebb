package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/proxy/config"
)

// npx is a program that fails as npx does if the package does not exist.
const npx = `#!/bin/sh
echo 'npm error code E404' >&2
echo 'npm error 404 Not Found - GET https://registry.npmjs.org/@nobody%2fserver - Not found' >&2
echo 'npm error 404' >&2
echo 'npm error 404 Note that you can also install from a' >&2
echo 'npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug.log' >&2
exit 1
`

// mistakes are what people do wrong: a configuration, or a command line in a directory with it. The
// message must have a place and a remedy, both regular expressions. Without args the command is check.
var mistakes = []struct {
	name, config, args string
	place, remedy      string
	code               int
}{
	// What a host calls its servers.
	{"mcpServers pasted", `{"mcpServers": {"github": {"command": "npx", "args": ["-y", "server"]}}}`, "", `line 1: mcpServers: `, `foldgate import claude-code`, 2},
	{"servers of VS Code pasted", `{"servers": {"github": {"type": "stdio", "command": "npx"}}}`, "", `line 1: servers: `, `foldgate import vscode`, 2},
	{"mcpServers below upstreams", "upstreams:\n  mcpServers:\n    github: {command: [npx]}\n", "", `line 3: upstreams.mcpServers: `, `foldgate import claude-code`, 2},
	{"command and args", "upstreams:\n  a:\n    command: npx\n    args: [-y, server]\n", "", `line 4: upstreams.a.args: `, `put them into command: \[npx, -y, server\]`, 2},
	{"command as one text", "upstreams:\n  a: {command: npx -y server}\n", "", `line 2: upstreams.a.command: `, `must be a list, such as \[npx, -y, server\]`, 2},
	{"environment for env", "upstreams:\n  a: {command: [npx], environment: {A: b}}\n", "", `line 2: upstreams.a.environment: `, `write env`, 2},

	// Keys and values.
	{"key mistyped", "folding:\n  max_depht: 3\n", "", `line 2: folding.max_depht: `, `did you mean max_depth\?`, 2},
	{"key of an upstream mistyped", "upstreams:\n  a: {comand: [sh]}\n", "", `line 2: upstreams.a.comand: `, `did you mean command\?`, 2},
	{"top key mistyped", "upstream:\n  a: {command: [sh]}\n", "", `line 1: upstream: `, `did you mean upstreams\?`, 2},
	{"word mistyped", "scrub: {results: redcat}\n", "", `line 1: scrub.results: `, `redact, block, off`, 2},
	{"key twice", "state_dir: a\nstate_dir: b\n", "", `line 2: state_dir: `, `remove one of the two`, 2},
	{"tab", "upstreams:\n\ta: {builtin: files}\n", "", `line 2: `, `has a tab: indent with spaces`, 2},
	{"bracket open", "upstreams:\n  a:\n    command: [sh\n  b: {url: x}\n", "", `line 4: `, `must be specified`, 2},
	{"variable without quotes in a mapping", "principals: {alice: {token: ${NO_SUCH_TOKEN}}}\n", "", `line 1: `, `a variable needs quotes, as in \{token: "\$\{TOKEN\}"\}`, 2},
	{"variable without quotes in a list", "upstreams:\n  a: {command: [sh, ${NO_SUCH_TOKEN}]}\n", "", `line 2: `, `a variable needs quotes`, 2},
	{"variable without quotes, with more text", "store: {url: ${NO_SUCH_URL}/0}\n", "", `line 1: `, `a variable needs quotes`, 2},
	{"number as a word", "folding: {default_budget: lots}\n", "", `line 1: folding.default_budget: `, `must be a whole number`, 2},
	{"days", "folding: {retention: 7d}\n", "", `line 1: folding.retention: `, `such as 90m or 24h`, 2},
	{"list of upstreams", "upstreams: [a, b]\n", "", `line 1: upstreams: `, `must hold keys, each with a value, such as name: \{command: \[npx, -y, server\]\}`, 2},
	{"encoding unknown", "budget: {encoding: gpt99}\n", "", `line 1: budget.encoding: `, `^(.{0,400}such as gpt-4o.{0,200})\n$`, 2},
	{"variable not set", "upstreams: {a: {url: 'https://x.example', headers: {Authorization: 'Bearer ${NO_SUCH_TOKEN}'}}}\n", "", `line 1: upstreams.a.headers.Authorization: `, `NO_SUCH_TOKEN is not set: set it, or put it into the file of env_file`, 2},
	{"variable with a default", "state_dir: '${NO_SUCH_DIR:-x}'\n", "", `line 1: state_dir: `, `set the variable and write`, 2},
	{"variable not closed", "state_dir: '${NO_SUCH_DIR'\n", "", `line 1: state_dir: `, `without the \} that ends it`, 2},

	// Upstreams.
	{"program missing", "upstreams: {a: {command: [no-such-program]}}\n", "", `line 1: upstreams.a.command: `, `install it, or name its path`, 2},
	{"address without https", "upstreams: {a: {url: mcp.example.com/mcp}}\n", "", `line 1: upstreams.a.url: `, `write it with https://`, 2},
	{"command and url", "upstreams: {a: {command: [sh], url: 'https://x.example'}}\n", "", `line 1: upstreams.a: `, `needs exactly one of builtin, command and url`, 2},
	{"no command, no url", "upstreams: {a: {prefix: x}}\n", "", `line 1: upstreams.a: `, `needs exactly one of builtin, command and url`, 2},
	{"builtin unknown", "upstreams: {a: {builtin: file, roots: [.]}}\n", "", `line 1: upstreams.a.builtin: `, `the only one is "files"`, 2},
	{"no roots", "upstreams: {a: {builtin: files}}\n", "", `line 1: upstreams.a.roots: `, `name the directories`, 2},
	{"root missing", "upstreams: {a: {builtin: files, roots: [nodir]}}\n", "", `line 1: upstreams.a.roots\[0\]: `, `is not a directory: create it, or correct the path`, 2},
	{"cwd missing", "upstreams: {a: {command: [sh], cwd: nodir}}\n", "", `line 1: upstreams.a.cwd: `, `is not a directory: create it, or correct the path`, 2},
	{"package missing", "upstreams: {a: {command: [npx, -y, '@nobody/server']}}\n", "", `a: FAILED: .*npm error code E404.*@nobody%2fserver`, `correct the package's name in upstreams.a.command`, 1},
	{"program ends", "upstreams: {a: {command: [sh, -c, 'echo hello; echo API_KEY is missing >&2; exit 3']}}\n", "", `a: FAILED: .*exit status 3.*API_KEY is missing`, `foldgate check -v shows all that it prints`, 1},
	{"nobody listens", "upstreams: {a: {url: 'http://127.0.0.1:1/mcp'}}\n", "", `a: FAILED: .*connection refused`, `start the server, or correct upstreams.a.url`, 1},
	{"one of two is down", "upstreams: {bad: {command: [sh, -c, exit 3]}, files: {builtin: files, roots: [.]}}\n", "", `auto is list.\n\nbad: FAILED: `, `-v shows`, 1},
	{"two with one name", "upstreams: {a: {builtin: files, roots: [.], prefix: ''}, b: {builtin: files, roots: [.], prefix: ''}}\n", "", `clash: read_file is offered by a and by b`, `give b a prefix of its own`, 1},

	{"command in one item", "upstreams: {a: {command: ['npx -y pkg']}}\n", "", `line 1: upstreams.a.command: `, `holds blanks: write \[npx, -y, pkg\], one list item for each word`, 2},
	{"script without its right", "upstreams: {a: {command: [./foldgate.yaml]}}\n", "", `line 1: upstreams.a.command: .*permission denied`, `chmod \+x it$`, 2},
	{"script without its interpreter", "upstreams: {a: {command: [./server.js]}}\n", "", `line 1: upstreams.a.command: .*permission denied`, `chmod \+x it, or write command: \[node, ./server.js\]`, 2},
	{"root below the home directory", "upstreams: {a: {builtin: files, roots: ['~/docs']}}\n", "", `line 1: upstreams.a.roots\[0\]: `, `~ is not expanded: write \$\{HOME\}/docs`, 2},

	// The endpoint, principals, limits.
	{"issuer without a public URL", "auth: {issuers: {corp: {url: 'https://login.example.com'}}}\n", "", `: public_url: is missing`, `such as https://gate.example.com`, 2},
	{"port alone on the command line", "{}\n", "run --listen 8787", `^foldgate: --listen: `, `such as 127.0.0.1:8787`, 2},
	{"open to all", "listen: 0.0.0.0:8787\n", "", `line 1: listen: `, `or use 127.0.0.1:8787`, 2},
	{"port alone", "listen: 8787\n", "", `line 1: listen: `, `such as 127.0.0.1:8787`, 2},
	{"port too large", "listen: 127.0.0.1:99999\n", "", `line 1: listen: `, `use 1 to 65535`, 2},
	{"address of another machine", "listen: 192.0.2.1:8787\nprincipals: {a: {token: 0123456789abcdef}}\n", "run", `listening on 192.0.2.1:8787: this machine has no such address`, `correct it, or use 0.0.0.0`, 1},
	{"token short", "principals: {alice: {token: short}}\n", "", `line 1: principals.alice.token: `, `openssl rand -hex 32`, 2},
	{"token missing", "principals: {alice: {team: x}}\n", "", `line 1: principals.alice: `, `give it token or token_sha256`, 2},
	{"token twice", "principals: {alice: {token: 0123456789abcdef}, bob: {token: 0123456789abcdef}}\n", "", `line 1: principals.bob: `, `give each its own`, 2},
	{"certificate without key", "tls: {cert: a.pem}\n", "", `line 1: tls: `, `needs both cert and key`, 2},
	{"certificate missing", "tls: {cert: a.pem, key: b.pem}\n", "", `line 1: tls: .*a.pem`, `name PEM files that exist`, 2},
	{"store down", "store: {url: 'redis://127.0.0.1:1'}\nbudgets: {wait_ms: 100, limits: [{name: day, per: all, tokens: 5, window: 1d}]}\n", "", `the store of the limits, store.url, can't be used: .*127.0.0.1:1`, `^start the store, or correct store.url; calls are refused meanwhile`, 1},
	{"store of replicas down", "listen: 127.0.0.1:0\nbudgets: {wait_ms: 100}\nstore: {url: 'redis://127.0.0.1:1'}\nreplicas: {listen: '127.0.0.1:0', key: 0123456789abcdef0123456789abcdef}\n", "", `store.url, can't be used: .*127.0.0.1:1`, `^start the store, or correct store.url; replicas use what they knew meanwhile`, 1},
	{"limit per nobody", "budgets: {limits: [{name: x, per: user, tokens: 5, window: 1d}]}\n", "", `line 1: budgets.limits\[0\].per: `, `use session, principal`, 2},
	{"limit of no upstream", "budgets: {limits: [{name: x, per: all, match: {server: nope}, tokens: 5, window: 1d}]}\n", "", `line 1: budgets.limits\[0\].match.server: `, `use a key of upstreams`, 2},
	{"limit of a mistyped upstream", "upstreams: {files: {builtin: files, roots: [.]}}\nbudgets: {limits: [{name: x, per: all, match: {server: fiels}, tokens: 5, window: 1d}]}\n", "", `line 2: budgets.limits\[0\].match.server: limit x: there is no upstream "fiels": `, `did you mean files\? Otherwise use a key of upstreams`, 2},
	{"subject that is no upstream", "upstreams: {files: {builtin: files, roots: [.]}}\nbudgets: {limits: [{name: x, per: server, tokens: 2M, window: 1d, subjects: {fiels: {tokens: 1}}}]}\n", "", `line 2: budgets.limits\[0\].subjects.fiels: limit x: there is no upstream "fiels": `, `did you mean files\? Otherwise use a key of upstreams`, 2},
	{"condition", "policy: {rules: [{name: r, deny: ['*'], when: 'args.x ='}]}\n", "", `line 1: policy.rules\[0\].when: `, `such as args.sql.startsWith\("SELECT"\)`, 2},
	{"workflow of no upstream", "workflows: [{name: x, open: [{tool: nope.y}]}]\n", "", `line 1: workflows\[0\].open\[0\].tool: `, `write <upstream>.<tool>`, 2},
	{"rules missing", "scrub: {rules: nofile.toml}\n", "", `line 1: scrub.rules: .*nofile.toml`, `correct the path, or remove the key`, 2},
	{"rules that are none", "scrub: {rules: foldgate.yaml}\n", "", `line 1: scrub.rules: rules .*foldgate.yaml: line 1: expected '=' after key`, `; correct the file, or remove the key`, 2},
	{"rules that are none, of a gateway", "scrub: {rules: foldgate.yaml}\n", "run", `line 1: scrub.rules: rules .*foldgate.yaml: line 1: `, `; correct the file, or remove the key`, 2},

	// The command line and files.
	{"command mistyped", "", "chek", `"chek"`, `did you mean check\?`, 2},
	{"subcommand mistyped", "", "trace contxts", `"contxts"`, `did you mean contexts\?`, 2},
	{"shell mistyped", "", "completion zsch", `"zsch"`, `did you mean zsh\?`, 2},
	{"help of a command mistyped", "", "help trace verfy", `"verfy" for "foldgate trace"`, `did you mean verify\?`, 2},
	{"flag mistyped", "", "check --confg x", `--confg`, `did you mean --config\?`, 2},
	{"configuration as an argument", "{}\n", "check foldgate.yaml", `check takes no configuration as an argument`, `: foldgate check --config foldgate.yaml$`, 2},
	{"configuration as an argument of a subcommand", "{}\n", "trace contexts foldgate.yaml", `contexts takes no configuration`, `: foldgate trace contexts --config foldgate.yaml$`, 2},
	{"two configurations", "", "run a.yaml b.yaml", `^foldgate: "b.yaml" is one argument too many: `, `foldgate run \[CONFIG\] \[flags\]$`, 2},
	{"port for run", "", "run --port 8080", `--port`, `did you mean --listen 127.0.0.1:8787\?`, 2},
	{"number of a flag", "", "trace --limit x", `^foldgate: --limit: "x" is not a whole number$`, `--help`, 2},
	{"number of a flag too large", "", "trace --depth 99999999999999999999", `^foldgate: --depth: "99999999999999999999" is out of range$`, `--help`, 2},
	{"limit not named", "", "budgets reset", `name the limit`, `: foldgate budgets reset LIMIT \[SUBJECT\]$`, 2},
	{"host not named", "", "connect", `name the host`, `: claude-code, `, 2},
	{"token for its variable", "", "connect cursor --print --url http://127.0.0.1:1/mcp --token-variable 5a0e-7", `--token-variable is not the name`, `such as FOLDGATE_TOKEN`, 2},
	{"host to import not named", "", "import", `name the host`, `: claude-code, `, 2},
	{"log without a directory", "{}\n", "run --log-file nodir/log", `--log-file: .*nodir/log`, `make the directory, or name another file`, 2},
	{"argument too many", "", "count a b", `^foldgate: "b" is one argument too many: `, `foldgate count \[FILE\] \[flags\]$`, 2},
	{"argument of a command without any", "", "stats tool", `^foldgate: "tool" is one argument too many: `, `foldgate stats \[flags\]$`, 2},
	{"second text for a branch", "", "branches end br_1 br_2", `^foldgate: "br_2" is one argument too many: `, `foldgate branches end ID`, 2},
	{"configuration by an empty variable", "", "check --config=", `^foldgate: --config: is empty`, `give it a value, or leave it out$`, 2},
	{"state directory by an empty variable", "", "branches --state-dir=", `^foldgate: --state-dir: is empty`, `leave it out$`, 2},
	{"address by an empty variable", "", "run --listen=", `^foldgate: --listen: is empty`, `leave it out$`, 2},
	{"principal of an issuer", "public_url: http://127.0.0.1:1\nauth: {issuers: {corp: {url: 'http://127.0.0.1:1'}}}\n", "check --as ann", `^foldgate: --as: there is no principal "ann"`, `; there are corp:<claim>$`, 2},
	{"login of nobody", "public_url: http://127.0.0.1:1\nauth: {issuers: {corp: {url: 'http://127.0.0.1:1'}}}\nupstreams: {a: {url: 'https://x.example', auth: {authorization_code: {per: principal}}}}\n", "login a --principal ann", `^foldgate: --principal: there is no principal "ann"`, `; there are corp:<claim>$`, 2},
	{"login without time", "upstreams: {a: {url: 'https://x.example', auth: {authorization_code: {}}}}\n", "login a --wait 0s", `^foldgate: --wait: 0s is no time to wait`, `use one such as 30s$`, 2},
	{"principal without principals", "", "check --as alice", `^foldgate: --as: there is no principal "alice"`, `every host is "local"$`, 2},
	{"scopes of nobody", "", "check --scopes db:read", `^foldgate: --team, --roles and --scopes are of a caller`, `name its principal with --as$`, 2},
	{"principal by an empty variable", "", "check --as=", `^foldgate: --as: is empty`, `leave it out$`, 2},
	{"pins elsewhere", "", "pins --state-dir nodir", `^foldgate: --state-dir: nodir does not exist$`, `does not exist`, 2},
	{"address of a host that is none", "", "connect cursor --print --url gate", `^foldgate: --url: "gate" is not`, `such as http://127.0.0.1:8787/mcp$`, 2},
	{"address of a host without a path", "", "connect cursor --print --url http://gate:8787", `^foldgate: --url: "http://gate:8787" has no path`, `such as http://gate:8787/mcp$`, 2},
	{"address of a host with an empty path", "", "connect cursor --print --url http://gate:8787/", `^foldgate: --url: "http://gate:8787/" has no path`, `such as http://gate:8787/mcp$`, 2},
	{"level without a context", "", "trace --children", `^foldgate: --children: `, `needs --context or --workflow$`, 2},
	{"two shapes of the tree", "", "trace --context br_1 --tree --ancestors", `^foldgate: --ancestors: `, `can't be combined with --tree$`, 2},
	{"end of what is followed", "", "trace --follow --until 1h", `^foldgate: --until `, `can't be combined with --follow`, 2},
	{"export without a record", "", "trace verify --export /dev/null", `^foldgate: there is no record in /dev/null: `, `nothing is proved$`, 1},
	{"export missing", "", "trace verify --export nofile", `^foldgate: --export: .*nofile: no such file`, `name a file with records from a log store, or - for standard input$`, 2},
	{"secrets of an export", "", "trace verify --export /dev/null --secrets", `^foldgate: --secrets `, `can't be combined with --export$`, 2},
	{"export and journal", "", "trace verify --export /dev/null --dir .", `^foldgate: --dir `, `can't be combined with --export$`, 2},
	{"traces to rebuild from", "", "budgets rebuild nodir", `no trace in nodir: `, `or name another directory$`, 1},
	{"trace by its state directory", "", "trace --state-dir .", `unknown flag: --state-dir`, `did you mean --dir\?`, 2},
	{"branches by their directory", "", "branches --dir .", `unknown flag: --dir`, `did you mean --state-dir\?`, 2},
	{"order of the trace", "", "trace --tail 5", `unknown flag: --tail`, `did you mean --newest\?`, 2},
	{"subject of counts", "", "budgets --principal alice", `unknown flag: --principal`, `did you mean --subject\?`, 2},
	{"pattern for files", "", "trace --dir fold*", `--dir: `, `no directory matches "fold\*"`, 2},
	{"trace elsewhere", "", "trace --dir nodir", `--dir: .*/nodir does not exist`, `does not exist$`, 2},
	{"upstream unknown", "upstreams: {github: {url: 'https://x.example'}}\n", "login gitub", `there is no upstream "gitub"; there are github`, `did you mean github\?`, 2},
	{"run left out", "{}", "foldgate.yaml", `foldgate.yaml`, `foldgate run foldgate.yaml`, 2},
	{"format unknown", "", "trace --format xml", `--format: "xml"`, `use table, tree, jsonl`, 2},
	{"time", "", "trace --since yesterday", `--since: `, `an age such as 90m or 3d`, 2},
	{"configuration missing", "", "check --config nofile.yaml", `nofile.yaml: `, `foldgate init nofile.yaml makes one`, 2},
	{"configuration is a directory", "", "check --config .", `\.: `, `name the file in it, such as foldgate.yaml`, 2},
	{"text missing", "", "count nofile", `nofile: `, `or give the text on standard input`, 2},
	{"state not writable", "state_dir: /proc/foldgate\nlisten: 127.0.0.1:0\n", "run", `state_dir: .*/proc/foldgate`, `set state_dir to a directory that you can write`, 1},
	{"no trace", "", "trace", `no trace in .*trace`, `run the gateway first`, 1},
	{"reload of a file that can't be used", "state_dri: x\n", "reload", `^foldgate: no gateway was asked; in one that runs, the configuration of before stays in force: .*line 1: state_dri`, `did you mean state_dir\?`, 2},
	{"no gateway", "", "branches", `no gateway .* the state directory /.*\.foldgate: `, `start one with listen`, 1},
	{"no gateway here", "", "branches --state-dir .", `no gateway that takes commands uses the state directory /.*[^.]: `, `start one with listen`, 1},
	{"host unknown", "upstreams: {a: {builtin: files, roots: [.]}}\n", "connect claude", `"claude"`, `did you mean claude-code\?`, 2},
	{"login without auth", "upstreams: {a: {url: 'https://x.example'}}\n", "login a", `"a"`, `authorization_code: \{\}\} under upstreams$`, 2},
	{"no configuration to connect", "", "connect codex", `no configuration .*foldgate.yaml`, `foldgate init`, 2},
}

// Every command shows an example in its help.
func TestHelpHasExamples(t *testing.T) {
	root := newRoot(&app{})
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Example == "" {
			t.Errorf("%s --help has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			of := strings.Contains(line, "foldgate") && strings.Contains(line, c.Name()) || slices.Contains(strings.Fields(line), "claude")
			if c.HasParent() && !of {
				t.Errorf("%s: the example %q is not of this command", c.CommandPath(), line)
			}
		}
		for _, c := range c.Commands() {
			walk(c)
		}
	}
	walk(root)
}

// The configuration of init can be used, and each of its keys that is commented out can be turned on.
func TestTemplate(t *testing.T) {
	t.Setenv("API_KEY", "x")
	t.Setenv("GITHUB_TOKEN", "x")
	dir := t.TempDir()
	file := filepath.Join(dir, "foldgate.yaml")
	on := regexp.MustCompile(`(?m)^( *)# ((?: {2,}[a-z-]|[a-z_]+:).*)$`)
	if n := len(on.FindAllString(template, -1)); n < 15 {
		t.Errorf("%d lines are commented out", n)
	}
	all := on.ReplaceAllString(template, "$1$2")
	all = strings.Replace(all, "command: [npx,", "command: [sh,", 1)
	for name, text := range map[string]string{"as written": template, "with all keys": all} {
		for path, text := range map[string]string{file: text, filepath.Join(dir, "foldgate.env"): "A=b\n"} {
			write(t, path, text)
		}
		c, err := config.Load(file)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		if name == "with all keys" && (len(c.Upstreams) != 3 || c.EnvFile == "" || c.Listen == "" || len(c.Budgets.Limits) != 1 || len(c.Policy.Rules) != 1) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

// Every mistake gets a message with its place and its remedy.
func TestMistakes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the programs are shell scripts")
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "npx"), []byte(npx), 0o700); err != nil {
		t.Fatal(err)
	}
	foldgate, err := exec.LookPath("foldgate")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			dir, args := t.TempDir(), strings.Fields(m.args)
			write(t, filepath.Join(dir, "server.js"), "")
			if m.config != "" {
				write(t, filepath.Join(dir, "foldgate.yaml"), m.config)
			}
			if len(args) == 0 {
				args = []string{"check"}
			}
			cmd := exec.Command(foldgate, args...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "FOLDGATE_CONFIG=")
			out, err := cmd.CombinedOutput()
			exit, ok := errors.AsType[*exec.ExitError](err)
			if !ok || exit.ExitCode() != m.code {
				t.Errorf("%v, want exit code %d", err, m.code)
			}
			for what, want := range map[string]string{"place": m.place, "remedy": m.remedy} {
				if !regexp.MustCompile("(?m)" + want).Match(out) {
					t.Errorf("the %s is missing, %s:\n%s", what, want, out)
				}
			}
		})
	}
}
