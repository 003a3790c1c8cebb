//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// Servers that write ids as floating-point numbers, byte-order marks, or two messages on one line
// are understood.
func TestAnswerSpellings(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"fraction": `{"jsonrpc":"2.0","id":%s.0`,
		"exponent": `{"jsonrpc":"2.0","id":%se0`,
		"mark":     "\ufeff" + `{"jsonrpc":"2.0","id":%s`,
		"two":      `{"jsonrpc":"2.0","method":"notifications/x"}{"jsonrpc":"2.0","id":%s`,
	} {
		for _, transport := range []string{"stdio", "http"} {
			t.Run(name+"-"+transport, func(t *testing.T) {
				upstream := fmt.Sprintf("command: [%q, -answer, %s]", fakeserverBin, jsonText(answer))
				if transport == "http" {
					upstream = fmt.Sprintf("url: %q", fakeserverHTTP(t, "-answer", answer))
				}
				g := newGateway(t, "upstreams:\n  fake: {connect_seconds: 5, "+upstream+"}\n")
				ctx := testContext(t)
				c := g.connect(ctx, "stdio", mcpclient.Legacy)
				if got := text(t, c, ctx, "fake__text", `{"text":"hello"}`); got != "hello" {
					t.Errorf("text = %q", got)
				}
			})
		}
	}
}

// However its host ends it, with a call in flight, the gateway ends with status 0 and leaves no
// process and no damage behind.
func TestStdioEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(pid int, in, out io.Closer){
		"SIGTERM":       func(pid int, _, _ io.Closer) { _ = syscall.Kill(pid, syscall.SIGTERM) },
		"SIGINT":        func(pid int, _, _ io.Closer) { _ = syscall.Kill(pid, syscall.SIGINT) },
		"SIGHUP":        func(pid int, _, _ io.Closer) { _ = syscall.Kill(pid, syscall.SIGHUP) },
		"input closed":  func(_ int, in, _ io.Closer) { in.Close() },
		"output closed": func(_ int, _, out io.Closer) { out.Close() },
		"host killed":   func(_ int, in, out io.Closer) { out.Close(); in.Close() },
		"terminal gone": func(pid int, in, out io.Closer) {
			out.Close()
			in.Close()
			_ = syscall.Kill(pid, syscall.SIGHUP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, "upstreams:\n  fake: {command: [sh, -c, '"+fakeserverBin+"; true']}\n")
			cmd := g.command("run")
			in, out := startPiped(t, cmd)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fake__pid","arguments":{}}}`)
			lines, child := bufio.NewReader(out), 0
			for child == 0 {
				line, err := lines.ReadString('\n')
				if err != nil {
					t.Fatal(err)
				}
				if m := regexp.MustCompile(`"id":2,.*"text":"(\d+)"`).FindStringSubmatch(line); m != nil {
					child, _ = strconv.Atoi(m[1])
				}
			}
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"fake__slow","arguments":{"ms":50000}}}`)
			end(cmd.Process.Pid, in, out.(io.Closer))
			fmt.Fprintln(in, `{"jsonrpc":"2.0","id":4,"method":"ping"}`) // a gateway that can't write learns it now
			exited := make(chan error, 1)
			go func() { exited <- cmd.Wait() }()
			select {
			case err := <-exited:
				if err != nil {
					t.Errorf("foldgate run: %v", err)
				}
			case <-time.After(30 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatal("foldgate runs on")
			}
			until(t, "the child is gone", func() bool { return gone(child) })
			g.output("trace", "verify")
		})
	}
}

// SIGHUP does not end a gateway on HTTP, nor the call that it is making.
func TestHTTPSurvivesHangup(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	ctx := testContext(t)
	c := g.connect(ctx, "http", mcpclient.Legacy)
	text(t, c, ctx, "fake__text", `{"text":"x"}`)
	_, wait, err := c.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":300}}`)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(g.pid, syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	if m, err := wait(); err != nil || m.Error != nil {
		t.Errorf("the call in flight: %s, %v", m.Error, err)
	}
	text(t, c, ctx, "fake__text", `{"text":"y"}`)
}

// One upstream that sends notifications without end does not fill the disk: the host gets them all,
// the trace a burst and then the number of the others.
func TestNotificationFlood(t *testing.T) {
	t.Parallel()
	const flood = 30_000
	for name, args := range map[string]string{
		"log":     fmt.Sprintf(`{"count":%d,"params":{"level":"info","data":%q}}`, flood, strings.Repeat("all is well ", 20)),
		"unknown": fmt.Sprintf(`{"count":%d,"params":{"n":1.0}}`, flood),
		"touch":   fmt.Sprintf(`{"count":%d}`, flood),
	} {
		for _, transport := range []string{"stdio", "http"} {
			if name == "touch" && transport == "http" {
				continue // the stream of notifications without a call has a limit of its own
			}
			t.Run(name+"-"+transport, func(t *testing.T) {
				g := newGateway(t, fakeConfig(recordFile(t), ""))
				ctx := testContext(t)
				c := g.unstarted(transport, mcpclient.Legacy)
				var got atomic.Int64
				c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
					if m.ID != nil {
						return json.RawMessage(`{}`), nil
					}
					got.Add(1)
					return nil, nil
				}
				startHost(t, ctx, c)
				tool(t, c, ctx, "fake__"+name, args)
				until(t, "all notifications arrive", func() bool { return got.Load() >= flood })
				text(t, c, ctx, "fake__text", `{"text":"y"}`)
				g.stop()
				size, recorded, leftOut := 0, 0, 0
				files, _ := filepath.Glob(filepath.Join(g.dir, "state", "trace", "*.jsonl"))
				for _, file := range files {
					data := read(t, file)
					size += len(data)
					recorded += bytes.Count(data, []byte(`"kind":"mcp/notification:notifications/`))
					for _, m := range regexp.MustCompile(`"left_out":(\d+)`).FindAllSubmatch(data, -1) {
						n, _ := strconv.Atoi(string(m[1]))
						leftOut += n
					}
				}
				if size > 8<<20 {
					t.Errorf("the trace has %d bytes", size)
				}
				if sum := recorded + leftOut; sum < flood || sum > flood+10 || leftOut == 0 {
					t.Errorf("%d recorded and %d left out, want %d in all", recorded, leftOut, flood)
				}
				g.output("trace", "verify")
			})
		}
	}
}

// Whatever stands in the place of a state file, a start ends soon, with the remedy or with a gateway.
func TestStateFilesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"clock.json", "upstreams.json", "pins.json", "pins.json.lock", "foldgate.db", "foldgate.db.lock", "foldgate.db-wal", "foldgate.db-shm", "results.db", "results.db-journal", "workflows.db",
		"trace/head.json", "trace/head.json.tmp", "trace/lock", "trace/trace-000000000000001.jsonl", "trace/trace-000000000000009.jsonl", "trace/index.sqlite",
	} {
		for kind, put := range map[string]func(file string) error{
			"pipe":      func(file string) error { return syscall.Mkfifo(file, 0o600) },
			"directory": func(file string) error { return os.Mkdir(file, 0o700) },
			"device":    func(file string) error { return os.Symlink("/dev/zero", file) },
		} {
			t.Run(kind+" "+name, func(t *testing.T) {
				g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
				file := filepath.Join(g.dir, "state", name)
				if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := put(file); err != nil {
					t.Fatal(err)
				}
				cmd := g.command("run") // its input ends at once
				done := make(chan error, 1)
				go func() { done <- cmd.Run() }()
				select {
				case err := <-done:
					if kind != "directory" && (err == nil || !strings.Contains(g.log.String(), "is not a regular file")) {
						t.Errorf("foldgate run: %v, want an error that names %s", err, name)
					}
				case <-time.After(30 * time.Second):
					_ = cmd.Process.Kill()
					t.Error("foldgate run hangs")
				}
			})
		}
	}
}

// What a host asks for and does not exist comes back short.
func TestEchoesAreShort(t *testing.T) {
	t.Parallel()
	everyHost(t, func(t *testing.T, transport string, era mcpclient.Era) {
		g := newGateway(t, "upstreams:\n  files: {builtin: files, roots: [.]}\n")
		ctx := testContext(t)
		c := g.connect(ctx, transport, era)
		long := strings.Repeat("x", 1<<20)
		if transport == "http" && era == mcpclient.Modern {
			long = long[:8<<10] // names are repeated in headers
		}
		for what, params := range map[string]string{
			"tools/call":                     `{"name":"` + long + `","arguments":{}}`,
			"tools/call of a server":         `{"name":"files__` + long + `","arguments":{}}`,
			"prompts/get":                    `{"name":"` + long + `"}`,
			"resources/read":                 `{"uri":"none://` + long + `"}`,
			"completion/complete":            `{"ref":{"type":"ref/prompt","name":"` + long + `"},"argument":{"name":"a","value":"b"}}`,
			"tools/call of a branch":         `{"name":"files__read_file","arguments":{"branch_id":"` + long + `"}}`,
			"tools/call of an argument":      `{"name":"branch_status","arguments":{"` + long + `":1}}`,
			"tools/call, refused, a list":    `{"name":"files__read_file","arguments":{"branch_id":["` + long + `"]}}`,
			"tools/call of a path":           `{"name":"files__read_file","arguments":{"path":"` + long + `"}}`,
			"tools/call of a glob":           `{"name":"files__search_files","arguments":{"pattern":"[` + long + `"}}`,
			"tools/call of a pattern":        `{"name":"files__grep","arguments":{"pattern":"(` + long + `"}}`,
			"tools/call of a handle":         `{"name":"branch_read","arguments":{"handle":"` + long + `"}}`,
			"tools/call, refused, a context": `{"name":"files__read_file","arguments":{"path":"."},"_meta":{"io.github.foldgate/context":"` + long + `"}}`,
			"tools/list":                     `{"cursor":"` + long + `"}`,
			"logging/setLevel":               `{"level":"` + long + `"}`,
			"x/" + long[:4<<10]:              `{}`,
		} {
			method, _, _ := strings.Cut(what, " ")
			m, err := c.Call(ctx, strings.Trim(method, ","), params)
			if n := len(m.Result) + len(m.Error); err != nil || n > 4096 {
				t.Errorf("%s: %d bytes, %v", what, n, err)
			}
			if method == "tools/call" && !parseResult(t, m).IsError {
				t.Errorf("%s = %s %s, want a tool result with isError", what, m.Result, m.Error)
			}
		}
	})
}

// A server that asks without end does not fill the host's screen or the trace: a burst reaches the
// host, the others are refused, and a record counts them.
func TestQuestionFlood(t *testing.T) {
	t.Parallel()
	const flood, burst, open = 20_000, 1000, 1000
	for _, method := range []string{"elicitation/create", "sampling/createMessage", "roots/list", "x/unknown"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			file := recordFile(t)
			g := newGateway(t, fakeConfig(file, ""))
			ctx := testContext(t)
			c := g.unstarted("stdio", mcpclient.Legacy)
			var got atomic.Int64
			c.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
				if m.Method == method {
					got.Add(1)
				}
				return json.RawMessage(`{}`), nil
			}
			startHost(t, ctx, c)
			var lines strings.Builder
			for n := range flood {
				fmt.Fprintf(&lines, `{"jsonrpc":"2.0","id":"q%d","method":%q,"params":{"message":"?"}}`+"\n", n, method)
			}
			tool(t, c, ctx, "fake__noise", fmt.Sprintf(`{"text":%s}`, jsonText(lines.String())))
			until(t, "the host is asked", func() bool { return got.Load() >= 500 })
			text(t, c, ctx, "fake__text", `{"text":"the call after the flood"}`)
			if n := got.Load(); n > burst+100 {
				t.Errorf("the host was asked %d times, want at most %d", n, burst)
			}
			g.stop()
			files, _ := filepath.Glob(filepath.Join(g.dir, "state", "trace", "*.jsonl"))
			size, refused := 0, 0
			for _, file := range files {
				data := read(t, file)
				size += len(data)
				for _, m := range regexp.MustCompile(`"left_out":(\d+)`).FindAllSubmatch(data, -1) {
					n, _ := strconv.Atoi(string(m[1]))
					refused += n
				}
			}
			if size > 8<<20 || refused < flood-burst-open {
				t.Errorf("the trace has %d bytes and %d refused requests of %d", size, refused, flood)
			}
			g.output("trace", "verify")
		})
	}
}

// Of many principals those that have not called for longest are forgotten: foldgate reads their lists anew.
func TestManyPrincipalsAreForgotten(t *testing.T) {
	t.Parallel()
	const principals = 1100
	config := "upstreams:\n  fake: {share: everyone, " + fakeUpstream(t, "stdio", "legacy") + "}\nprincipals:\n"
	for n := range principals {
		config += fmt.Sprintf("  user%d: {token: %s}\n", n, userToken(n))
	}
	g := newGateway(t, config)
	at := g.http()
	list := func(n int) {
		c := mcpclient.HTTP(at, mcpclient.Modern, "Authorization", "Bearer "+userToken(n))
		defer c.Close()
		if m := call(t, c, testContext(t), "tools/list", "{}"); !strings.Contains(string(m.Result), "fake__echo") {
			t.Fatalf("user%d lists %.300s %s", n, m.Result, m.Error)
		}
	}
	read := func(n int) (times int) { // how often foldgate read the list for a principal
		for _, r := range g.trace("--principal", fmt.Sprint("user", n), "--server", "fake") {
			if r.From == "foldgate" && strings.Contains(r.Kind, "request") {
				times++
			}
		}
		return times
	}
	for n := range principals {
		list(n)
	}
	list(0)
	list(principals - 1)
	until(t, "the list is read again for the one who was away", func() bool { return read(0) == 2 })
	if n := read(principals - 1); n != 1 {
		t.Errorf("the list was read %d times for the last principal, want once", n)
	}
}

// A host can't make foldgate keep large messages for as long as its session lasts.
func TestKeptMessagesAreSmall(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	at := g.http()
	_, header, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, nil)
	legacy := http.Header{"Mcp-Session-Id": header["Mcp-Session-Id"]}
	modern := http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"subscriptions/listen"}}
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	large := strings.Repeat("x", 1<<20)
	for name, one := range map[string]struct {
		body   string
		header http.Header
	}{
		"initialize":     {strings.Replace(rawInitialize, `"raw"`, `"`+large+`"`, 1), nil},
		"log level":      {`{"jsonrpc":"2.0","id":2,"method":"logging/setLevel","params":{"level":"info","x":"` + large + `"}}`, legacy},
		"subscription":   {`{"jsonrpc":"2.0","id":3,"method":"resources/subscribe","params":{"uri":"fake://` + large[:8<<10] + `"}}`, legacy},
		"listen":         {`{"jsonrpc":"2.0","id":4,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["fake://` + large + `"]},` + meta + `}}`, modern},
		"id of a listen": {`{"jsonrpc":"2.0","id":"` + large + `","method":"subscriptions/listen","params":{"notifications":{},` + meta + `}}`, modern},
	} {
		_, h, said := answered(t, http.DefaultClient, "POST", at, one.body, one.header)
		if !strings.Contains(said, "can have at most") || h.Get("Mcp-Session-Id") != "" {
			t.Errorf("%s: %.300s", name, said)
		}
	}
}

// A host that closes its half of the connection while its call runs has left: nothing that it reads looks like an answer.
func TestHalfClosedConnection(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	at, err := url.Parse(g.http())
	if err != nil {
		t.Fatal(err)
	}
	_, header, _ := answered(t, http.DefaultClient, "POST", g.url, rawInitialize, nil)
	conn, err := net.Dial("tcp", at.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fake__slow","arguments":{"ms":300}}}`
	fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nMcp-Session-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
		at.Host, header.Get("Mcp-Session-Id"), len(body), body)
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if said, err := io.ReadAll(conn); err != nil || strings.HasPrefix(string(said), "HTTP/1.1 200") {
		t.Errorf("the host reads %q, %v", said, err)
	}
}

// However many notifications of a server find no host that waits for them, or of a host go to no server, the log has a few
// lines about it, and they count what was dropped.
func TestDroppedNotificationsAreCounted(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakeConfig(recordFile(t), ""))
	at := g.http()
	_, header, _ := answered(t, http.DefaultClient, "POST", at, rawInitialize, nil)
	session := http.Header{"Mcp-Session-Id": header["Mcp-Session-Id"]} // without a GET stream
	answered(t, http.DefaultClient, "POST", at, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fake__log","arguments":{"ms":1,"count":100000,"params":{"level":"error","data":"x"}}}}`, session)
	for range 500 { // a host's own, of a method that is no notification
		answered(t, http.DefaultClient, "POST", at, `{"jsonrpc":"2.0","method":"x/y"}`, session)
	}
	if n := strings.Count(g.log.String(), "notifications of hosts dropped"); n == 0 || n > 50 {
		t.Errorf("%d lines about 500 notifications of a host", n)
	}
	const said = "notifications were dropped"
	until(t, "the log tells of dropped notifications", func() bool { return strings.Contains(g.log.String(), said) })
	answered(t, http.DefaultClient, "DELETE", at, "", session)
	g.stop()
	if n := strings.Count(g.log.String(), said); n > 3 {
		t.Errorf("%d lines about dropped notifications", n)
	}
}
