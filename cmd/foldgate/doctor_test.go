package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/filelock"
	"github.com/foldgate/foldgate/internal/sqlitedb"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/test/freeport"
)

// patient is a machine with a home directory, a host that starts foldgate, and a configuration.
type patient struct {
	t                     *testing.T
	dir, config, state    string
	foldgate, claude, bin string
}

// unwritable returns a directory in which nobody can make a file.
func (p *patient) unwritable() string {
	const dir = "/sys/power" // of root
	if info, err := os.Stat(dir); err != nil || !ownedByMe(info) {
		p.t.Skip(dir + " is not there, or not ours")
	}
	return dir
}

func (p *patient) write(path, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	write(p.t, path, text)
}

// configure adds text to a configuration that is in order.
func (p *patient) configure(text string) {
	p.write(p.config, "state_dir: state\n"+text+"\n")
}

// connect writes the host's entry.
func (p *patient) connect(entry string) {
	p.write(p.claude, `{"mcpServers": {"foldgate": `+entry+`}}`)
}

// log lets the host's foldgate log to a file; with a text, it exists.
func (p *patient) log(text string) {
	file := filepath.Join(p.dir, "gate.log")
	p.connect(`{"type": "stdio", "command": "` + p.foldgate + `", "args": ["run", "--config", "` + p.config + `", "--log-file", "` + file + `"]}`)
	if text != "" {
		p.write(file, text)
	}
}

func (p *patient) program(name, script string) {
	p.write(filepath.Join(p.bin, name), "#!/bin/sh\n"+script)
	if err := os.Chmod(filepath.Join(p.bin, name), 0o700); err != nil {
		p.t.Fatal(err)
	}
}

// record appends records to the trace.
func (p *patient) record(records ...*trace.Record) {
	p.t.Helper()
	j, err := trace.Open(filepath.Join(p.state, "trace"), trace.Options{})
	if err != nil {
		p.t.Fatal(err)
	}
	for _, r := range records {
		if err := j.Append(r); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		p.t.Fatal(err)
	}
}

// database makes a database with a mark and the number of a schema in the state directory.
func (p *patient) database(name string, mark, schema int) {
	p.t.Helper()
	p.record(called("a", 1, 0)...)
	db, err := sqlitedb.Open(p.t.Context(), filepath.Join(p.state, name), sqlitedb.Options{ApplicationID: mark, Migrations: []string{"CREATE TABLE t (id)"}})
	if err == nil {
		_, err = db.ExecContext(p.t.Context(), fmt.Sprint("PRAGMA user_version = ", schema))
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// serve starts an MCP server whose one tool has a description of that length, and whose clock is off.
func (p *patient) serve(length int, skew time.Duration) (url string) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
		w.Header().Set("Content-Type", "application/json")
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		reply := map[string]any{"jsonrpc": "2.0", "id": m.ID}
		switch {
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		case m.ID == nil:
			w.WriteHeader(http.StatusAccepted)
			return
		case m.Method == "initialize":
			reply["result"] = map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]any{"name": "x", "version": "1"}}
		case m.Method == "tools/list":
			reply["result"] = map[string]any{"tools": []any{map[string]any{"name": "tool", "description": strings.Repeat("word ", length), "inputSchema": map[string]any{"type": "object"}}}}
		default:
			reply["error"] = map[string]any{"code": -32601, "message": "no such method"}
		}
		_ = json.NewEncoder(w).Encode(reply)
	}))
	p.t.Cleanup(srv.Close)
	return srv.URL
}

// refuse starts a server that answers everything with a status.
func (p *patient) refuse(status int) (url string) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	p.t.Cleanup(srv.Close)
	return srv.URL
}

// called returns records of calls of a server, of which some failed.
func called(server string, calls, failed int) (records []*trace.Record) {
	for i := range calls {
		r := &trace.Record{From: "upstream:" + server, To: []string{"host:x"}, Kind: trace.KindResponse + "tools/call", Audit: &trace.Audit{Server: server, Tool: "t", IsError: i < failed}}
		if i < failed {
			r.Payload = json.RawMessage(`{"result":{"content":[{"type":"text","text":"quota is used up\nand more"}],"isError":true}}`)
		}
		records = append(records, r)
	}
	return records
}

// ailments are what can be wrong with a machine. The finding must have the level and the topic; its text
// and remedy are regular expressions.
var ailments = []struct {
	name                       string
	infect                     func(p *patient)
	level, topic, text, remedy string
}{
	{"key mistyped", func(p *patient) { p.configure("foldin: {}") }, levelFault, "configuration", `line 2: foldin: .*did you mean folding\?`, `correct it`},
	{"program missing", func(p *patient) { p.configure("upstreams: {a: {command: [no-such-program]}}") }, levelFault, "configuration", `upstreams.a.command: "no-such-program" can't be run`, `correct it`},
	{"no such configuration", func(p *patient) { _, _ = os.Remove(p.config), os.Remove(p.claude) }, levelFault, "configuration", `there is no such file; foldgate init .* makes one`, `correct it`},

	{"host starts nothing", func(p *patient) { p.connect(`{"command": "/nowhere/foldgate", "args": ["run"]}`) }, levelFault, "host", `Claude Code starts /nowhere/foldgate, which can't be run`, `foldgate connect claude-code --config /`},
	{"host's configuration missing", func(p *patient) {
		p.connect(`{"command": "` + p.foldgate + `", "args": ["run", "--config", "/nowhere.yaml"]}`)
	}, levelFault, "host", `with /nowhere.yaml, which does not exist`, `foldgate connect claude-code`},
	{"host's configuration as an argument", func(p *patient) { p.connect(`{"command": "` + p.foldgate + `", "args": ["run", "/nowhere.yaml"]}`) }, levelFault, "host", `with /nowhere.yaml, which does not exist`, `foldgate connect claude-code`},
	{"host's path is relative", func(p *patient) {
		p.connect(`{"command": "` + p.foldgate + `", "args": ["run", "--config=foldgate.yaml"]}`)
	}, levelFault, "host", `with foldgate.yaml, which depends on the directory`, `foldgate connect claude-code`},
	{"host's file broken", func(p *patient) { p.write(p.claude, `{"mcpServers": {`) }, levelFault, "host", `Claude Code: .*.claude.json: `, `correct the file`},
	{"host calls nobody", func(p *patient) { p.connect(`{"type": "http", "url": "http://127.0.0.1:1/mcp"}`) }, levelFault, "host", `calls http://127.0.0.1:1/mcp, where no foldgate answers: .*refused`, `foldgate run --config .*gate.yaml starts the gateway`},
	{"host calls another server", func(p *patient) { p.connect(`{"type": "http", "url": "` + p.refuse(404) + `/mcp"}`) }, levelFault, "host", `where no foldgate answers: 404`, `foldgate run`},
	{"host calls another path", func(p *patient) {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", func(http.ResponseWriter, *http.Request) {})
		srv := httptest.NewServer(mux)
		p.t.Cleanup(srv.Close)
		p.connect(`{"type": "http", "url": "` + srv.URL + `"}`)
	}, levelFault, "host", `where no foldgate answers: 404 Not Found; the path of its address is /mcp`, `foldgate connect claude-code`},
	{"host starts an address", func(p *patient) { p.configure("listen: 127.0.0.1:" + freeport.For(p.t)) }, levelFault, "host", `Claude Code starts a foldgate that listens on 127.0.0.1:\d+, and does not answer the host`, `foldgate connect claude-code --config .*gate.yaml lets it call the address.*take listen out of .*gate.yaml`},
	{"host starts an address by a flag", func(p *patient) {
		p.connect(`{"command": "` + p.foldgate + `", "args": ["run", "--config", "` + p.config + `", "--listen", "127.0.0.1:8787"]}`)
	}, levelFault, "host", `listens on 127.0.0.1:8787`, `take --listen out of the entry`},
	{"entry turned off", func(p *patient) { p.connect(`{"command": "` + p.foldgate + `", "args": ["run"], "disabled": true}`) }, levelFault, "host", `can't use the entry in .*: it is turned off`, `foldgate connect claude-code`},
	{"servers beside foldgate", func(p *patient) {
		p.write(p.claude, `{"mcpServers": {"fg": {"command": "`+p.foldgate+`", "args": ["run", "--config", "`+p.config+`"]}, "github": {"command": "sh"}, "off": {"command": "x", "disabled": true}}}`)
	}, levelWarn, "host", `also starts github itself: the model can go around`, `foldgate import claude-code`},
	{"server that can't be moved", func(p *patient) {
		p.write(p.claude, `{"mcpServers": {"foldgate": {"command": "`+p.foldgate+`", "args": ["run", "--config", "`+p.config+`"]}, "chat": {"type": "ws", "url": "ws://x.example"}}}`)
	}, levelWarn, "host", `foldgate import can't take: .*: chat: its type is "ws"`, `by hand, and take it out of .*.claude.json`},
	{"server that can't be run", func(p *patient) {
		p.write(p.claude, `{"mcpServers": {"foldgate": {"command": "`+p.foldgate+`", "args": ["run", "--config", "`+p.config+`"]}, "chat": {"command": "/nowhere/chat"}}}`)
	}, levelWarn, "host", `Claude Code has a server that foldgate can't start: chat: its program "/nowhere/chat" can't be run here: install it`, `^correct it; foldgate import claude-code then moves it .*take it out of .*.claude.json`},
	{"another configuration", func(p *patient) {
		other := filepath.Join(p.dir, "other.yaml")
		p.write(other, "{}")
		p.connect(`{"command": "` + p.foldgate + `", "args": ["run", "-c", "` + other + `"]}`)
	}, levelWarn, "host", `another configuration, .*other.yaml`, `foldgate doctor --config .*other.yaml`},
	{"no host", func(p *patient) { _ = os.Remove(p.claude) }, levelWarn, "host", `none of the known hosts`, `foldgate connect NAME --print`},
	{"host without foldgate", func(p *patient) { p.write(p.claude, `{"mcpServers": {"a": {"command": "x"}}}`) }, levelWarn, "host", `no host uses foldgate`, `foldgate import claude-code`},

	{"old program", func(p *patient) {
		p.program("node", "echo v12.1.0")
		p.configure("upstreams: {a: {command: [node, server.js]}}")
	}, levelWarn, "program", `node is version 12.1.0`, `install version 18`},
	{"broken program", func(p *patient) {
		p.program("uvx", "exit 127")
		p.configure("upstreams: {a: {command: [uvx, server]}}")
	}, levelFault, "program", `uvx --version fails: exit status 127`, `upstreams.a.command`},

	{"relative program", func(p *patient) {
		p.program("node", "echo v22.1.0")
		p.configure("upstreams: {a: {command: [./bin/node, server]}}")
	}, levelWarn, "program", `^./bin/node of a counts from the directory`, `absolute path in upstreams.a.command, or set cwd`},
	{"program relative to cwd", func(p *patient) {
		p.program("node", "exit 7")
		p.configure("upstreams: {a: {command: [./node, server], cwd: bin}}")
	}, levelFault, "program", `bin/node --version fails: exit status 7`, `upstreams.a.command`},

	{"log with errors", func(p *patient) {
		line := func(age time.Duration, text string) string {
			return time.Now().Add(-age).Format("time="+time.RFC3339Nano) + " " + text + "\n"
		}
		p.log(line(48*time.Hour, `level=ERROR msg=old`) + line(time.Hour, `level=INFO msg=fine`) + line(time.Hour, `level=ERROR msg="the trace is full"`))
	}, levelWarn, "log", `has 1 error in 24 hours; the last: msg="the trace is full"`, `read .*gate.log`},
	{"log of JSON with errors", func(p *patient) {
		at := time.Now().Add(-time.Hour).Format(time.RFC3339Nano)
		p.log(`{"time":"` + at + `","level":"INFO","msg":"fine"}` + "\n" + `{"time":"` + at + `","level":"ERROR","msg":"the trace is full"}` + "\n")
	}, levelWarn, "log", `has 1 error in 24 hours; the last: "msg":"the trace is full"`, `read .*gate.log`},
	{"log is a directory", func(p *patient) { p.log(""); _ = os.Mkdir(filepath.Join(p.dir, "gate.log"), 0o700) }, levelFault, "log", `gate.log: is a directory`, `--log-file`},
	{"log has no directory", func(p *patient) {
		p.connect(`{"type": "stdio", "command": "` + p.foldgate + `", "args": ["run", "--config", "` + p.config + `", "--log-file=` + p.dir + `/nodir/gate.log"]}`)
	}, levelFault, "log", `nodir/gate.log can't be made`, `create the directory`},

	{"package missing", func(p *patient) {
		p.program("npx", strings.ReplaceAll(npx, "#!/bin/sh\n", "[ $1 = --version ] && echo 10.8.2 && exit\n"))
		p.configure("upstreams: {a: {command: [npx, -y, '@nobody/server']}}")
	}, levelFault, "upstream", `^a: .*npm error code E404`, `package's name in upstreams.a.command`},
	{"nobody listens", func(p *patient) { p.configure("upstreams: {a: {url: 'http://127.0.0.1:1/mcp'}}") }, levelFault, "upstream", `^a: .*connection refused`, `start the server`},
	{"server without TLS", func(p *patient) {
		p.configure("upstreams: {a: {url: '" + strings.Replace(p.refuse(404), "http:", "https:", 1) + "/mcp'}}")
	}, levelFault, "upstream", `^a: .*HTTP response to HTTPS client`, `speaks no TLS: write http:// in upstreams.a.url`},
	{"token wrong", func(p *patient) { p.configure("upstreams: {a: {url: '" + p.refuse(401) + "/mcp'}}") }, levelFault, "upstream", `^a: .*401`, `headers or auth under upstreams.a`},
	{"token in headers refused", func(p *patient) {
		p.configure("upstreams: {a: {url: '" + p.refuse(401) + "/mcp', headers: {Authorization: 'Bearer x'}}}")
	}, levelFault, "upstream", `^a: .*401.*: the server does not accept upstreams.a.headers$`, `^Correct upstreams.a.headers: a token there is wrong`},
	{"token in headers lacks a right", func(p *patient) {
		p.configure("upstreams: {a: {url: '" + p.refuse(403) + "/mcp', headers: {X-Key: x}}}")
	}, levelFault, "upstream", `^a: .*403 Forbidden$`, `^Correct upstreams.a.headers: .* lacks a right`},
	{"server has a fault", func(p *patient) { p.configure("upstreams: {a: {url: '" + p.refuse(503) + "/mcp'}}") }, levelFault, "upstream", `^a: .*503`, `a fault of its own`},
	{"login fails", func(p *patient) {
		p.configure("upstreams: {a: {url: '" + p.refuse(401) + "/mcp', auth: {client_credentials: {client_id: x, private_key_file: nokey.pem}, issuer: 'http://127.0.0.1:1'}}}")
	}, levelFault, "upstream", `^a: .*login: `, `Correct upstreams.a.auth, or the client`},
	{"path wrong", func(p *patient) { p.configure("upstreams: {a: {url: '" + p.refuse(404) + "/mcp'}}") }, levelFault, "upstream", `^a: .*404`, `correct upstreams.a.url`},
	{"login missing", func(p *patient) {
		p.configure("upstreams: {a: {url: '" + p.refuse(401) + "/mcp', auth: {authorization_code: {}}}}")
	}, levelFault, "upstream", `^a: .*foldgate login a`, `check again`},
	{"two with one name", func(p *patient) {
		p.configure("upstreams: {a: {builtin: files, roots: [.], prefix: ''}, b: {builtin: files, roots: [.], prefix: '', tools: {deny: [read_file, grep, search_files]}}}")
	}, levelFault, "names", `list_directory is offered by a and by b`, `give b a prefix`},
	{"glob fits nothing", func(p *patient) { p.configure("run: {allow: [nope]}") }, levelWarn, "names", `run.allow: "nope" fits no tool`, `correct the key`},
	{"limit of no tool", func(p *patient) {
		p.configure("budgets: {limits: [{name: x, per: all, match: {tool: 'filez__*'}, tokens: 5, window: 1d}]}")
	}, levelWarn, "names", `budgets.limits\[0\].match.tool: "filez__\*" fits no tool`, `correct the key`},
	{"amount of no tool", func(p *patient) {
		p.configure("budgets: {limits: [{name: x, per: tool, tokens: 5, window: 1d, subjects: {files__gerp: {tokens: 9}, branch_read: {tokens: 9}}}]}")
	}, levelWarn, "names", `budgets.limits\[0\].subjects: "files__gerp" fits no tool`, `correct the key`},
	{"rule of nobody", func(p *patient) { p.configure("policy: {rules: [{name: r, who: {team: dta}, deny: ['files__grep']}]}") }, levelWarn, "configuration", `policy.rules\[0\].who: rule r fits no principal`, `correct the key`},
	{"memory tool fits nothing", func(p *patient) { p.configure("folding: {remember: {tool: nosuch__x}}") }, levelWarn, "names", `folding.remember.tool: "nosuch__x" fits no tool`, `correct the key`},
	{"policy only records", func(p *patient) { p.configure("policy: {action: warn}") }, levelWarn, "configuration", `line 2: policy.action: is warn: the policy hides and refuses nothing`, `foldgate trace --reason policy`},
	{"principals on stdio", func(p *patient) { p.configure("principals: {alice: {token: 0123456789abcdef}}") }, levelWarn, "configuration", `line 2: principals: alice can't call: on stdio every host is the principal "local"`, `set listen`},
	{"tokens ended", func(p *patient) {
		p.configure("listen: 127.0.0.1:0\nprincipals: {alice: {tokens: [{token: 0123456789abcdef, expires: 2026-01-02T00:00:00Z}]}, bob: {token: fedcba9876543210, tokens: [{token: 0123456789abcdefg, expires: 2026-01-02T00:00:00Z}]}}")
		p.write(p.claude, "{}")
	}, levelWarn, "configuration", `line 3: principals.alice: can't call: all its tokens have ended`, `add a token to its tokens`},
	{"port of another program", func(p *patient) {
		p.configure("listen: " + strings.TrimPrefix(p.refuse(404), "http://"))
		p.write(p.claude, "{}")
	}, levelFault, "listen", `^another program has 127.0.0.1:\d+, and no gateway runs on .*/state$`, `choose another port`},
	{"address of another machine", func(p *patient) {
		p.configure("listen: 192.0.2.1:8787\nprincipals: {a: {token: 0123456789abcdef}}")
		p.connect(`{"command": "` + p.foldgate + `", "args": ["run"]}`)
	}, levelFault, "listen", `^192.0.2.1:8787 can't be used: .*assign`, `correct listen`},
	{"tools cost much", func(p *patient) { p.configure("upstreams: {a: {url: '" + p.serve(30_000, 0) + "'}}") }, levelWarn, "definitions", `the definitions of 6 tools cost a host 3\d{4} tokens`, `tools: \{allow: \[...\]\} under upstreams.a`},

	{"store away", func(p *patient) {
		p.configure("store: {url: 'redis://127.0.0.1:1'}\nbudgets: {wait_ms: 100, limits: [{name: day, per: all, tokens: 5, window: 1d}]}")
	}, levelFault, "budget store", `in Redis: .*127.0.0.1:1`, `start the store, or correct store.url; calls are refused`},
	{"counts can't be opened", func(p *patient) {
		p.configure("budgets: {limits: [{name: day, per: all, tokens: 5, window: 1d}]}")
		_ = os.MkdirAll(filepath.Join(p.state, "budgets.db"), 0o700)
	}, levelFault, "budget store", `budgets.db: is a directory; make room on the disk`, `^do as it says; calls are refused meanwhile`},
	{"trace not writable", func(p *patient) {
		_ = os.Mkdir(p.state, 0o700)
		_ = os.Symlink(p.unwritable(), filepath.Join(p.state, "trace"))
	}, levelFault, "state", `/state/trace can't be written: `, `mount it for writing`},
	{"state is a file", func(p *patient) { p.write(p.state, "x") }, levelFault, "state", `is not a directory`, `remove the file`},
	{"state not writable at all", func(p *patient) {
		p.write(p.config, "state_dir: "+p.unwritable()+"\n")
	}, levelFault, "state", `^/sys/power can't be written: `, `set state_dir to another`},
	{"state open to all", func(p *patient) { _ = os.Mkdir(p.state, 0o700); _ = os.Chmod(p.state, 0o755) }, levelWarn, "state", `mode 755`, `chmod 700 /`},
	{"state not writable", func(p *patient) { _ = os.Mkdir(p.state, 0o500) }, levelFault, "state", `mode 500`, `chmod 700 /`},
	{"state below a file", func(p *patient) { p.write(p.config, "state_dir: gate.yaml/a/state\n") }, levelFault, "state", `a/state can't be made: .*gate.yaml is not a directory`, `set state_dir`},
	{"state can't be made", func(p *patient) { p.write(p.config, "state_dir: /proc/foldgate\n") }, levelFault, "state", `^/proc/foldgate can't be made: `, `a directory that you can write`},
	{"database damaged", func(p *patient) {
		p.record(called("a", 1, 0)...)
		p.write(filepath.Join(p.state, "results.db"), strings.Repeat("no database ", 1000))
	}, levelFault, "state", `results.db is damaged, so foldgate does not start: file is not a database`, `restore it from a backup, or move it`},
	{"database of an early build", func(p *patient) { p.database("foldgate.db", 0x666f6c64, 4) }, levelFault, "state",
		`foldgate.db has an early form, so foldgate does not start: it has schema 4: a build of foldgate before the first release wrote it`, `^name another state_dir$`},
	{"database of a newer foldgate", func(p *patient) { p.database("foldgate.db", 0x666f6c64, 99) }, levelFault, "state",
		`foldgate.db is too new, so foldgate does not start: it was made by a newer foldgate \(schema 99, this one knows up to \d+\)$`, `^use that version, or name another state_dir$`},
	{"database of another program", func(p *patient) { p.database("foldgate.db", 7, 99) }, levelFault, "state",
		`foldgate.db is not foldgate's, so foldgate does not start: it is the database of another program$`, `^name another state_dir$`},
	{"counts damaged", func(p *patient) {
		p.configure("budgets: {limits: [{name: day, per: all, tokens: 5, window: 1d}]}")
		p.write(filepath.Join(p.state, "budgets.db"), strings.Repeat("no database ", 1000))
	}, levelFault, "state", `budgets.db is damaged`, `restore it .*, or move it .* away and run "foldgate budgets rebuild"$`},
	{"state of another user", func(p *patient) {
		_ = os.Mkdir(p.state, 0o700)
		if os.Chown(p.state, 12345, 12345) != nil {
			p.t.Skip("only root can give a directory away")
		}
	}, levelFault, "state", `belongs to another user`, `sudo -u`},

	{"clock behind the trace", func(p *patient) {
		r := called("a", 1, 0)[0]
		r.TS = time.Now().Add(time.Hour).UTC().Format(trace.TimeFormat)
		p.record(r)
	}, levelFault, "clock", `the trace has a record that is (59m|1h)`, `set the clock`},
	{"clock that jumped", func(p *patient) {
		p.write(filepath.Join(p.state, "clock.json"), `{"wall":"2099-01-01T00:00:00Z","time":"2099-01-01T00:00:00Z","boot":"another","passed":1}`)
	}, levelWarn, "clock", `off what foldgate expects by the time that has passed`, `if that is wrong, set the clock`},
	{"clock unlike a server's", func(p *patient) { p.configure("upstreams: {a: {url: '" + p.serve(1, -2*time.Hour) + "'}}") }, levelWarn, "clock", `it is 2h0m0?\d?s ahead of that of a`, `set the clock`},

	{"calls fail", func(p *patient) { p.record(called("github", 5, 4)...) }, levelWarn, "errors", `of 5 calls of github 4 failed`, `foldgate trace --errors --since 24h --server github`},
	{"warnings", func(p *patient) {
		p.record(&trace.Record{From: "foldgate", To: []string{"host:x"}, Kind: trace.KindWarning, Payload: json.RawMessage(`{"code":"too_many"}`)})
	}, levelWarn, "errors", `^1 warning too_many`, `foldgate trace --kind system/warning`},
	{"trace broken", func(p *patient) {
		p.record(called("a", 2, 0)...)
		p.write(filepath.Join(p.state, "trace", trace.SegmentName(1)), "{broken\n{broken\n")
	}, levelFault, "errors", `the trace in .*trace lacks the end: [23] records`, `foldgate trace verify`},
	{"trace of a running gateway away", func(p *patient) {
		_ = os.Mkdir(p.state, 0o700)
		unlock, err := filelock.Wait(p.t.Context(), filepath.Join(p.state, "foldgate.db.lock"))
		if err != nil {
			p.t.Fatal(err)
		}
		p.t.Cleanup(unlock)
	}, levelFault, "errors", `a gateway runs, and its trace in .*trace is missing`, `restart the gateway`},
	{"trace is a file", func(p *patient) { p.write(filepath.Join(p.state, "trace"), "x") }, levelFault, "errors", `trace: not a directory`, `as one user`},
	{"trace not readable", func(p *patient) {
		p.record(called("a", 1, 0)...)
		dir := filepath.Join(p.state, "trace")
		p.t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		if err := os.Chmod(dir, 0); err != nil || os.Getuid() == 0 {
			p.t.Skip("root reads every directory")
		}
	}, levelFault, "errors", `the trace in .*trace is not readable for you`, `sudo -u`},
	{"trace cut off", func(p *patient) {
		p.record(called("a", 9, 0)...)
		file := filepath.Join(p.state, "trace", trace.SegmentName(1))
		info, err := os.Stat(file)
		if err != nil || os.Truncate(file, info.Size()/2) != nil {
			p.t.Fatal(err)
		}
	}, levelFault, "errors", `the trace in .*trace lacks the end: [4-7] records`, `foldgate trace verify`},
}

// doctor finds and names each fault, and no other, in a machine that is otherwise in order.
func TestDoctor(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("the programs are shell scripts")
	}
	foldgate, err := exec.LookPath("foldgate")
	if err != nil {
		t.Fatal(err)
	}
	examine := func(t *testing.T, infect func(*patient)) (d doctor) {
		dir := t.TempDir()
		p := &patient{t: t, dir: dir, config: filepath.Join(dir, "gate.yaml"), state: filepath.Join(dir, "state"), foldgate: foldgate, claude: filepath.Join(dir, ".claude.json"), bin: filepath.Join(dir, "bin")}
		p.configure("upstreams: {files: {builtin: files, roots: [.]}}")
		p.connect(`{"type": "stdio", "command": "` + foldgate + `", "args": ["run", "--config", "` + p.config + `"]}`)
		infect(p)
		cmd := exec.Command(foldgate, "doctor", "--json", "--config", p.config)
		cmd.Dir = dir // where files of a project and of the user can be the same
		cmd.Env = append(os.Environ(), "PATH="+p.bin+string(os.PathListSeparator)+os.Getenv("PATH"), "HOME="+dir, "XDG_CONFIG_HOME="+dir, "CLAUDE_CONFIG_DIR=", "CODEX_HOME=")
		out, err := cmd.Output()
		if jsonErr := json.Unmarshal(out, &d); jsonErr != nil {
			t.Fatalf("%v, %v\n%s", jsonErr, err, out)
		}
		exit, _ := errors.AsType[*exec.ExitError](err)
		if (err != nil) != (d.Faults > 0) || err != nil && exit.ExitCode() != exitFailed {
			t.Errorf("%d faults: %v", d.Faults, err)
		}
		return d
	}
	t.Run("in order", func(t *testing.T) {
		d := examine(t, func(p *patient) {
			p.record(called("files", 9, 1)...)
			p.write(filepath.Join(p.dir, ".codex", "config.toml"), "[mcp_servers.foldgate]\ncommand = '"+foldgate+"'\nargs = ['run', '--config', '"+p.config+"']\n")
		})
		for _, f := range d.Findings {
			if f.Level != levelOK && f.Topic != "disk" { // that of the machine with the test
				t.Errorf("a machine in order: %+v", f)
			}
		}
		topics := fmt.Sprint(d.Findings)
		if n := strings.Count(topics, "Codex starts"); n != 1 {
			t.Errorf("Codex is there %d times: %s", n, topics)
		}
		for _, topic := range []string{"version", "configuration", "host", "upstreams", "definitions", "state", "errors", "clock"} {
			if !strings.Contains(topics, "{ok "+topic+" ") {
				t.Errorf("nothing about %s: %s", topic, topics)
			}
		}
		if !strings.Contains(topics, "of 9 calls in 24 hours 1 failed, and foldgate refused 0; the last: quota is used up") {
			t.Errorf("the errors: %s", topics)
		}
	})
	for _, a := range ailments {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			d := examine(t, a.infect)
			found := false
			for _, f := range d.Findings {
				if f.Level == a.level && f.Topic == a.topic && regexp.MustCompile(a.text).MatchString(f.Text) && regexp.MustCompile(a.remedy).MatchString(f.Remedy) {
					found = true
				} else if f.Level == levelFault && f.Topic != "upstream" && f.Topic != "disk" { // a program that is no server is no upstream either
					t.Errorf("another fault: %+v", f)
				}
				if strings.TrimSpace(f.Text) != f.Text {
					t.Errorf("a finding about nothing: %+v", f)
				}
				if (f.Level != levelOK) != (f.Remedy != "") {
					t.Errorf("a fault without a remedy, or the reverse: %+v", f)
				}
			}
			if !found {
				t.Errorf("not found; there are:\n%+v", d.Findings)
			}
		})
	}
}

// The free space is judged in three steps, and beside the size of a trace that keeps all.
func TestDoctorDisk(t *testing.T) {
	for _, c := range []struct {
		free, traces int64
		level        string
	}{{leastFree - 1, 0, levelFault}, {scantFree - 1, 0, levelWarn}, {2 << 30, 3 << 30, levelWarn}, {3 << 30, 2 << 30, levelOK}} {
		d := &doctor{}
		if d.space(c.free, c.traces); len(d.Findings) != 1 || d.Findings[0].Level != c.level {
			t.Errorf("%d bytes free, a trace of %d: %+v", c.free, c.traces, d.Findings)
		}
	}
	d := &doctor{}
	if d.space(-1, 0); len(d.Findings) > 0 {
		t.Errorf("unknown free space: %+v", d.Findings)
	}
}

// One thing has no plural, and no time to wait is a mistake of the command line.
func TestDoctorWords(t *testing.T) {
	var out strings.Builder
	d := &doctor{app: &app{raw: &out}}
	d.add(levelFault, "host", "do", "bad")
	d.print(&out)
	if text := out.String(); !strings.HasSuffix(text, "\n1 fault, 0 warnings\n") {
		t.Errorf("%q", text)
	}
	for _, command := range []string{"doctor", "check"} {
		if _, errOut, code := runs(t, command, "--wait", "0"); code != exitUsage || !strings.Contains(errOut, "use one such as 30s") {
			t.Errorf("%s --wait 0: code %d, %s", command, code, errOut)
		}
	}
}

// check does not need the state directory, and says that a gateway could not make or write it.
func TestCheckLooksAtTheStateDirectory(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "foldgate.yaml")
	if err := os.Mkdir(filepath.Join(dir, "read"), 0o500); err != nil {
		t.Fatal(err)
	}
	for state, warned := range map[string]bool{"foldgate.yaml": true, "foldgate.yaml/state": true, "a/b/state": false, ".": false, "read": true} {
		write(t, file, "state_dir: "+filepath.Join(dir, state)+"\n")
		out := succeeds(t, file, "check")
		if strings.Contains(out, "warning: state_dir: "+filepath.Join(dir, state)) != warned {
			t.Errorf("%s: %s", state, out)
		}
		if _, err := os.Stat(filepath.Join(dir, "a")); err == nil {
			t.Error("check has made the state directory")
		}
	}
}

// A user's configuration is found from any directory, after the one that is there.
func TestLocate(t *testing.T) {
	home := t.TempDir()
	for name, value := range map[string]string{"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, ".config"), "AppData": home} {
		t.Setenv(name, value)
	}
	t.Chdir(home)
	user, err := config.UserFile()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"", user, "foldgate.yaml"} {
		if want != "" {
			if _, errOut, code := runs(t, "init", "--config", want); code != 0 {
				t.Fatalf("init %s: code %d, %s", want, code, errOut)
			}
		}
		file, err := config.Locate("")
		if c, found := config.Find(""); err != nil || found != nil || file != want || (c.File == "") != (want == "") {
			t.Errorf("%q is found, %v, %v; want %q", file, err, found, want)
		}
	}
}

// Colors are for terminals, and not for those who want none.
func TestDoctorColors(t *testing.T) {
	show := func() string {
		var out strings.Builder
		d := &doctor{app: &app{raw: &out}}
		d.add(levelFault, "host", "do \x1b[2J", "bad \x1b]0;x\x07")
		d.print(&out)
		return out.String()
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	if text := show(); strings.Contains(text, "\x1b") {
		t.Errorf("without a terminal: %q", text)
	}
	onTerminal(t)
	if text := show(); !strings.Contains(text, "\x1b[31mfault\x1b[0m") || strings.Count(text, "\x1b") != 2 {
		t.Errorf("on a terminal: %q", text)
	}
	t.Setenv("NO_COLOR", "1")
	if text := show(); strings.Contains(text, "\x1b") {
		t.Errorf("with NO_COLOR: %q", text)
	}
}

// Damaged counts are one fault.
func TestDoctorDamagedCounts(t *testing.T) {
	newHome(t)
	file := filepath.Join(t.TempDir(), "gate.yaml")
	write(t, file, "upstreams: {files: {builtin: files, roots: [.]}}\nstate_dir: .\nbudgets: {limits: [{name: day, per: all, tokens: 5, window: 1d}]}\n")
	write(t, filepath.Join(filepath.Dir(file), "budgets.db"), strings.Repeat("no database ", 1000))
	out, _, code := runs(t, "doctor", "--config", file)
	if code != exitFailed || !strings.Contains(out, "\n1 fault, ") {
		t.Errorf("code %d\n%s", code, out)
	}
}
