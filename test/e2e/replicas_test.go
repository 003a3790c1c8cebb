//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/mcpclient"
	"github.com/foldgate/foldgate/test/redistest"
)

var replicaKills = flag.Int("replica-kills", 3, "how often TestKilledReplica kills a replica")

// fleet is several replicas on one Redis. url is that of a balancer which gives each request to the next
// of them.
type fleet struct {
	t     *testing.T
	all   []*replica
	store *redistest.Server
	url   string
	turn  atomic.Int64
	hosts *gateway // ends the hosts, before the replicas
}

// replica is a gateway on a port that it keeps over restarts.
type replica struct {
	*gateway
	port   string
	cmd    *exec.Cmd
	exited chan error
}

const replicasKey = "0123456789abcdef0123456789abcdef"

// newFleet starts n replicas with one configuration.
func newFleet(t *testing.T, n int, config string) *fleet {
	t.Helper()
	f := &fleet{t: t, store: redistest.New(t)}
	balancer := httptest.NewServer(&httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			at, _ := url.Parse(f.all[int(f.turn.Add(1))%len(f.all)].url)
			p.SetURL(&url.URL{Scheme: at.Scheme, Host: at.Host})
			body, _ := io.ReadAll(p.In.Body) // else the response could close it before the transport has seen its end
			p.Out.Body = io.NopCloser(bytes.NewReader(body))
		},
	})
	t.Cleanup(balancer.Close) // after the hosts
	f.url = balancer.URL + "/mcp"
	for range n {
		r := &replica{port: freeport.For(t)}
		r.gateway = newGateway(t, fmt.Sprintf("listen: 127.0.0.1:%s\nstore: {url: %q}\nreplicas: {listen: \"127.0.0.1:%s\", key: %s, drain_seconds: 1}\n%s", r.port, f.store.URL(), freeport.For(t), replicasKey, config))
		r.url = "http://127.0.0.1:" + r.port + "/mcp"
		r.start()
		t.Cleanup(r.terminate)
		f.all = append(f.all, r)
	}
	f.hosts = newGateway(t, "")
	f.settled(n)
	return f
}

func (r *replica) start() {
	r.t.Helper()
	r.cmd = r.command("run")
	r.exited = make(chan error, 1)
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	go func(cmd *exec.Cmd, exited chan error) { exited <- cmd.Wait() }(r.cmd, r.exited)
	for deadline := time.Now().Add(time.Minute); ; { // after a kill it reads the trace first
		res, err := http.Get("http://127.0.0.1:" + r.port + "/healthz")
		if err == nil {
			_ = res.Body.Close()
			return
		}
		select {
		case err := <-r.exited:
			r.t.Fatalf("foldgate run ended: %v\n%s", err, r.log.String())
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			r.t.Fatal("the replica does not listen after a minute")
		}
	}
}

func (r *replica) kill() {
	_ = r.cmd.Process.Kill()
	<-r.exited
	r.cmd = nil
}

// terminate stops the replica, if it runs, as an orchestrator does.
func (r *replica) terminate() {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-r.exited:
		if err != nil {
			r.t.Errorf("a replica after SIGTERM: %v", err)
		}
	case <-time.After(50 * time.Second):
		r.t.Error("a replica did not end within 50 s of SIGTERM")
		r.kill()
	}
	r.cmd = nil
}

// name is the replica's name among the others.
func (r *replica) name() string {
	text, err := os.ReadFile(filepath.Join(r.dir, "state", "replica"))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// settled waits until every replica knows that n are up.
func (f *fleet) settled(n int) {
	f.t.Helper()
	until(f.t, "all replicas know each other", func() bool {
		for _, r := range f.all {
			if _, body := readyz(f.t, r.url, userToken(0)); strings.Count(body, `"state":"up"`) < n+1 { // its own state is there, too
				return false
			}
		}
		return true
	})
}

// host is a client at a URL, of the n-th user.
func (f *fleet) host(at string, era mcpclient.Era, n int, capabilities string) *mcpclient.Client {
	c := mcpclient.HTTP(at, era, "Authorization", "Bearer "+userToken(n))
	c.Capabilities = capabilities
	f.hosts.closes(c)
	return c
}

// A fleet has this many principals: enough that each replica has some. Loads are of the first users of them.
const (
	allUsers = 24
	users    = 8
)

func userToken(n int) string { return fmt.Sprintf("token-of-user-%d-0123456789", n) }

func userPrincipals() string {
	text := "principals:\n"
	for n := range allUsers {
		text += fmt.Sprintf("  user%d: {token: %s}\n", n, userToken(n))
	}
	return text
}

// haproxy starts HAProxy before the fleet and returns its URL. It gives each request to the next replica,
// and asks each every 200 ms whether it is ready.
func (f *fleet) haproxy() string {
	port, servers := freeport.For(f.t), ""
	for i, r := range f.all {
		servers += fmt.Sprintf("  server r%d 127.0.0.1:%s\n", i, r.port)
	}
	conf := filepath.Join(f.t.TempDir(), "haproxy.cfg")
	write(f.t, conf, `defaults
  mode http
  timeout connect 1s
  timeout client 1h
  timeout server 1h
  retries 3
  option redispatch 1
frontend hosts
  bind 127.0.0.1:`+port+`
  default_backend foldgate
backend foldgate
  balance roundrobin
  option httpchk
  http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
  default-server check inter 200ms fall 1 rise 1
`+servers)
	return f.balanced(port, "haproxy", "-db", "-f", conf)
}

// nginx does the same with nginx, which has no checks: it goes on to the next replica if one refuses the
// connection.
func (f *fleet) nginx() string {
	port, servers, dir := freeport.For(f.t), "", f.t.TempDir()
	for _, r := range f.all {
		servers += "    server 127.0.0.1:" + r.port + " max_fails=1 fail_timeout=1s;\n"
	}
	temp := ""
	for _, of := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temp += fmt.Sprintf("  %s_temp_path %s/%s;\n", of, dir, of)
	}
	conf := filepath.Join(dir, "nginx.conf")
	write(f.t, conf, `daemon off;
pid `+dir+`/pid;
error_log stderr;
events { worker_connections 2048; }
http {
  access_log off;
`+temp+`  upstream foldgate {
`+servers+`  }
  server {
    listen 127.0.0.1:`+port+`;
    location / {
      proxy_pass http://foldgate;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $http_host;
      proxy_buffering off;
      proxy_read_timeout 1h;
      client_max_body_size 64m;
    }
  }
}
`)
	return f.balanced(port, "/usr/sbin/nginx", "-p", dir, "-e", "stderr", "-c", conf)
}

func (f *fleet) balanced(port, program string, args ...string) string {
	f.t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Stderr = &f.hosts.log
	if err := cmd.Start(); err != nil {
		f.t.Fatalf("%v: make deps installs it", err)
	}
	f.hosts.ends = append(f.hosts.ends, func() { // after the hosts, which come later
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait() // with whatever status: the replicas are what is tested
	})
	until(f.t, program+" answers", func() bool {
		res, err := http.Get("http://127.0.0.1:" + port + "/healthz")
		if err == nil {
			_ = res.Body.Close()
		}
		return err == nil && res.StatusCode == http.StatusOK
	})
	return "http://127.0.0.1:" + port + "/mcp"
}

// Two replicas behind a balancer that knows nothing of sessions are as one gateway to hosts of both
// eras: sessions, branches, questions, streams and stored results.
func TestReplicasAreOneGateway(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, userPrincipals()+"upstreams:\n  old: {"+fakeUpstream(t, "stdio", "legacy")+"}\n  new: {"+fakeUpstream(t, "stdio", "modern")+"}\nresults: {main_threshold: 500}\n")
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		t.Run(string(era), func(t *testing.T) {
			ctx := testContext(t)
			c := f.host(f.url, era, 0, `{"elicitation":{"form":{}},"sampling":{}}`)
			var heard noted
			answer := echoAnswer(func(string) {})
			c.Handle = heard.handle(answer)
			startHost(t, ctx, c)
			if era == mcpclient.Legacy {
				if !regexp.MustCompile(`^ses_[0-9a-z]{5}_`).MatchString(c.Session()) {
					t.Errorf("session %s does not name its replica", c.Session())
				}
				if err := c.Listen(); err != nil {
					t.Fatal(err)
				}
			} else {
				listens(t, c, `{"toolsListChanged":true}`)
			}
			for _, up := range []string{"old", "new"} {
				eraCalls(t, c, era, up, &heard, answer)
			}
			b := own[created](t, tool(t, c, ctx, "branch_create", `{"description":"behind a balancer"}`))
			if !regexp.MustCompile(`^br_[0-9a-z]{5}_`).MatchString(b.BranchID) || len(b.BranchID) > 50 {
				t.Errorf("branch %s does not name its replica in at most 50 bytes", b.BranchID)
			}
			for i := range 6 {
				if got := text(t, c, ctx, "old__echo", fmt.Sprintf(`{"n":%d,"branch_id":%q}`, i, b.BranchID)); !strings.Contains(got, fmt.Sprintf(`"n":%d`, i)) {
					t.Errorf("echo in a branch = %s", got)
				}
			}
			preview := text(t, c, ctx, "old__huge", fmt.Sprintf(`{"bytes":20000,"branch_id":%q}`, b.BranchID))
			handle := regexp.MustCompile(`res_\w+`).FindString(preview)
			for range 2 {
				if got := text(t, c, ctx, "branch_read", fmt.Sprintf(`{"handle":%q,"lines":"1-2"}`, handle)); got == "" {
					t.Error("an empty branch_read")
				}
			}
			if r := own[returned](t, tool(t, c, ctx, "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, b.BranchID))); !r.Success {
				t.Errorf("branch_return = %+v", r)
			}
			m := call(t, c, ctx, "tools/call", `{"name":"new__raw","arguments":{"result":{"resultType":"task","taskId":"t-1","status":"working","ttl":60000}}}`)
			if want := regexp.MustCompile(`"taskId":"task_\w{5}_t-1"`); era == mcpclient.Modern && !want.Match(m.Result) {
				t.Errorf("a task = %s, want an id that names its replica", m.Result)
			}
			var made struct{ TaskID string }
			_ = json.Unmarshal(m.Result, &made)
			for range 2 {
				if m := call(t, c, ctx, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, made.TaskID)); !strings.Contains(string(m.Result), "completed") {
					t.Errorf("tasks/get = %s", m.Result)
				}
			}
			tool(t, c, ctx, "old__list_changed", `{}`)
			until(t, "a list_changed arrives", func() bool { return heard.has("list_changed") > 0 })
		})
	}
	f.store.Kill() // replicas that know each other go on
	id, _ := f.branchOfUser(t, 1)
	for _, r := range f.all {
		if status, _, body := posted(t, r.url, 1, "old__echo", fmt.Sprintf(`{"n":9,"branch_id":%q}`, id), nil); status != http.StatusOK || !strings.Contains(body, `\"n\":9`) {
			t.Errorf("without the registry: %d %s", status, body)
		}
	}
}

// posted sends a modern tools/call of the n-th user, and returns the status, the head and the body of the answer.
func posted(t *testing.T, at string, n int, name, arguments string, header http.Header) (int, http.Header, string) {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, name, arguments)
	h := http.Header{
		"Authorization": {"Bearer " + userToken(n)}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"tools/call"}, "Mcp-Name": {name},
	}
	for k, v := range header {
		h[k] = v
	}
	return answered(t, http.DefaultClient, http.MethodPost, at, body, h)
}

// branchOfUser opens a branch for the n-th user and returns its id and the name of its replica.
func (f *fleet) branchOfUser(t *testing.T, n int) (id, replica string) {
	t.Helper()
	_, _, body := posted(t, f.url, n, "branch_create", `{"description":"owned"}`, nil)
	id = regexp.MustCompile(`br_\w{5}_[0-9a-f-]{36}`).FindString(body)
	if id == "" {
		t.Fatalf("branch_create: %s", body)
	}
	return id, id[3:8]
}

// Ids of two replicas in one request are refused, with both names. Requests for a replica that was killed
// are refused with the time to try again; others go on. When it is back, its branches and results are
// there. What tells of replicas knows them.
func TestReplicaDownAndBack(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, userPrincipals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "both")+"}\n")
	branches, owner := map[string]string{}, map[string]int{} // by replica
	for n := 0; n < allUsers && (n < users || len(branches) < 2); n++ {
		id, replica := f.branchOfUser(t, n)
		branches[replica], owner[replica] = id, n
	}
	a, b := f.all[0].name(), f.all[1].name()
	if len(branches) != 2 {
		t.Fatalf("all %d principals are at one replica", allUsers)
	}
	status, _, body := posted(t, f.url, owner[a], "fake__echo", fmt.Sprintf(`{"branch_id":%q,"handle":"res_%s_00000000000000000000000000"}`, branches[a], b), nil)
	if status != http.StatusConflict || !strings.Contains(body, a) || !strings.Contains(body, b) {
		t.Errorf("a branch of %s with a result of %s: %d %s", a, b, status, body)
	}
	status, _, body = posted(t, f.url, owner[a], "fake__echo", fmt.Sprintf(`{"branch_id":%q}`, branches[a]), http.Header{"Mcp-Session-Id": {"ses_" + b + "_x"}})
	if status != http.StatusConflict || !strings.Contains(body, "session") {
		t.Errorf("a session of %s with a branch of %s: %d %s", b, a, status, body)
	}

	f.all[0].kill()
	waited := make(chan string, 1)
	go func() { // it waits for the replica, and is answered when it is back
		status, _, body := posted(t, f.all[1].url, owner[a], "fake__echo", fmt.Sprintf(`{"n":1,"branch_id":%q}`, branches[a]), nil)
		waited <- fmt.Sprint(status, " ", body)
	}()
	// If the other replica has not seen yet that the connection is closed, a call may have been sent.
	const sent = "went away before it had answered"
	failed := 2
	for n := range users {
		status, _, body := posted(t, f.all[1].url, n, "fake__echo", `{"n":2}`, nil)
		if status == http.StatusBadGateway && strings.Contains(body, sent) && failed == 2 {
			failed++
			status, _, body = posted(t, f.all[1].url, n, "fake__echo", `{"n":2}`, nil)
		}
		if status != http.StatusOK || !strings.Contains(body, `\"n\":2`) {
			t.Errorf("user%d while the other replica is down: %d %s", n, status, body)
		}
	}
	status, head, body := posted(t, f.all[1].url, owner[a], "branch_status", fmt.Sprintf(`{"branch_id":%q}`, branches[a]), nil)
	if status != http.StatusServiceUnavailable || head.Get("Retry-After") == "" || !strings.Contains(body, "replica "+a) || !strings.Contains(body, "down") {
		t.Errorf("a branch of a replica that is down: %d, Retry-After %q, %s", status, head.Get("Retry-After"), body)
	}
	if got := <-waited; !strings.HasPrefix(got, "503 ") && !(strings.HasPrefix(got, "502 ") && strings.Contains(got, sent)) {
		t.Errorf("a call for a replica that does not come back: %s", got)
	}
	if out, _ := f.all[1].operate("doctor"); !regexp.MustCompile(`warn +replicas +`+a+` at 127\.0\.0\.1:\d+ is down for`).MatchString(out) || !strings.Contains(out, "1 of 2 are up") {
		t.Errorf("foldgate doctor: %s", out)
	}

	go func() {
		status, _, body := posted(t, f.all[1].url, owner[a], "fake__echo", fmt.Sprintf(`{"n":3,"branch_id":%q}`, branches[a]), nil)
		waited <- fmt.Sprint(status, " ", body)
	}()
	f.all[0].start()
	if got := <-waited; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `\"n\":3`) {
		t.Errorf("a call that waited for its replica: %s", got)
	}
	f.settled(2)
	if _, body := readyz(t, f.all[1].url, userToken(0)); !strings.Contains(body, fmt.Sprintf(`"failed":%d`, failed)) || !strings.Contains(body, a) {
		t.Errorf("/readyz: %s", body)
	}
	for _, r := range f.all {
		r.terminate()
		r.output("trace", "verify")
	}
}

// Behind HAProxy and nginx three replicas pass the conformance suites of both eras as the server itself
// does, fold the main job, ask 64 times at once, and hold a limit to the token.
func TestReplicasBehindBalancers(t *testing.T) {
	t.Parallel()
	server := everythingServer(t)
	balancers := map[string]func(*fleet) string{"haproxy": (*fleet).haproxy, "nginx": (*fleet).nginx}
	for _, s := range suites[1:] {
		direct := s.direct(t)
		f := newFleet(t, 3, fmt.Sprintf("upstreams:\n  conformance: {prefix: \"\", command: [%q]}\n", server))
		for name, start := range balancers {
			t.Run(name+" conformance "+s.name, func(t *testing.T) {
				got := s.run(t, strings.Replace(start(f), "127.0.0.1", "localhost", 1))
				t.Logf("direct %d passed of %d, through three replicas %d of %d", passed(direct), len(direct), passed(got), len(got))
				compare(t, name, direct, got)
			})
		}
	}
	for name, start := range balancers {
		t.Run(name+" jobs", func(t *testing.T) {
			dir := t.TempDir()
			if err := fixtures.Write(dir, fixtures.Secret()); err != nil {
				t.Fatal(err)
			}
			const limit = 8000
			f := newFleet(t, 3, userPrincipals()+fakeConfig(recordFile(t), "")+fmt.Sprintf("  old: {%s}\n  files: {builtin: files, roots: [%q]}\nfolding: {max_budget: 131072}\nbudgets:\n  limits:\n    - {name: each, match: {principal: user2}, per: principal, tokens: 8k, window: 1mo}\n", fakeUpstream(t, "stdio", "legacy"), dir))
			at := start(f)
			for n, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
				f.mainJob(t, f.host(at, era, n, "{}"))
				f.crowd(t, at, era, n)
			}
			ctx := testContext(t)
			var all []*spender
			for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern, mcpclient.Modern} {
				s := &spender{c: f.host(at, era, 2, "{}")}
				startHost(t, ctx, s.c)
				all = append(all, s)
			}
			spendAll(t, ctx, all)
			sum := int64(0)
			for _, s := range all {
				sum += s.spent.Load()
			}
			exactly(t, ctx, all[0].c, "each", sum, limit)
		})
	}
}

// mainJob reads ten files in a branch, and checks what they cost.
func (f *fleet) mainJob(t *testing.T, c *mcpclient.Client) {
	t.Helper()
	ctx := testContext(t)
	startHost(t, ctx, c)
	b := own[created](t, tool(t, c, ctx, "branch_create", jsonText(map[string]any{"description": mainDescription, "prompt": mainPrompt, "budget": 100000})))
	used := tokens(t, mainDescription+"\n"+mainPrompt)
	for _, name := range fixtures.Names {
		m := tool(t, c, ctx, "files__read_file", jsonText(map[string]any{"path": name, "branch_id": b.BranchID}))
		used += resultTokens(t, m) + tokens(t, jsonText(map[string]any{"path": name}))
	}
	if r := own[returned](t, tool(t, c, ctx, "branch_return", jsonText(map[string]any{"branch_id": b.BranchID, "message": mainSummary}))); !r.Success || r.TokensUsed != used || used < 40000 {
		t.Errorf("branch_return = %+v, want %d tokens used, over 40000", r, used)
	}
}

// crowd lets 64 calls of a host ask at once.
func (f *fleet) crowd(t *testing.T, at string, era mcpclient.Era, n int) {
	t.Helper()
	ctx := testContext(t)
	c := f.host(at, era, n, `{"elicitation":{}}`)
	answer := echoAnswer(func(string) {})
	c.Handle = answer
	startHost(t, ctx, c)
	var asking sync.WaitGroup
	for i := range crowd {
		asking.Go(func() {
			message := fmt.Sprintf("call %d", i)
			if got := elicits(t, c, ctx, "old__elicit", message, answer); !strings.Contains(got, fmt.Sprintf(`"said":%q`, message)) {
				t.Errorf("%s: the upstream got %s", message, got)
			}
		})
	}
	asking.Wait()
}

// load makes calls of all users until ctx ends: modern ones with and without a branch, those that ask, and those of legacy
// sessions, which begin anew if the session is gone. It counts what came of them.
type load struct {
	f    *fleet
	at   string
	skip func(err error) bool // whether an error is expected; nil for none

	calls, failed, sessions atomic.Int64
	texts, tokens           atomic.Int64 // calls of fake__text that were answered, and the tokens of these
	mu                      sync.Mutex
	branches                map[string]int // open, and their users
}

func (l *load) run(ctx context.Context) (wait func()) {
	var wg sync.WaitGroup
	for n := range users {
		wg.Go(func() { l.modern(ctx, n) })
		wg.Go(func() { l.legacy(ctx, n) })
	}
	return wg.Wait
}

func (l *load) note(what string, err error) bool {
	l.calls.Add(1)
	if err == nil || l.skip != nil && l.skip(err) {
		return err == nil
	}
	l.failed.Add(1)
	l.f.t.Errorf("%s: %v", what, err)
	return false
}

func (l *load) modern(ctx context.Context, n int) {
	c := mcpclient.HTTP(l.at, mcpclient.Modern, "Authorization", "Bearer "+userToken(n))
	c.Capabilities = `{"elicitation":{}}`
	defer c.Close()
	s := spender{c: c}
	for i := 0; ctx.Err() == nil && !l.f.t.Failed(); i++ {
		l.note("a call", l.text(c, ""))
		said, _, err := s.call(l.f.t.Context(), "branch_create", `{"description":"load"}`, "")
		if !l.note("branch_create", err) {
			continue
		}
		var b created
		if err := json.Unmarshal([]byte(said), &b); err != nil {
			l.note(said, err)
			continue
		}
		if i%8 == 7 { // it stays open
			l.mu.Lock()
			if l.branches == nil {
				l.branches = map[string]int{}
			}
			l.branches[b.BranchID] = n
			l.mu.Unlock()
			continue
		}
		for range 3 {
			l.note("a call in a branch", l.text(c, b.BranchID))
		}
		if i%4 == 0 {
			answer := echoAnswer(func(string) {})
			if l.skip == nil {
				l.calls.Add(1)
				elicits(l.f.t, c, l.f.t.Context(), "fake__elicit", "load", answer)
			}
		}
		_, _, err = s.call(l.f.t.Context(), "branch_return", fmt.Sprintf(`{"branch_id":%q,"message":"done"}`, b.BranchID), "")
		l.note("branch_return", err)
	}
}

// text makes a call of fake__text.
func (l *load) text(c *mcpclient.Client, branch string) error {
	s := spender{c: c}
	_, _, err := s.call(l.f.t.Context(), "fake__text", `{"text":"@@","fill":20}`, branch)
	if err == nil {
		l.texts.Add(1)
		l.tokens.Add(s.spent.Load())
	}
	return err
}

func (l *load) legacy(ctx context.Context, n int) {
	for ctx.Err() == nil && !l.f.t.Failed() {
		c := mcpclient.HTTP(l.at, mcpclient.Legacy, "Authorization", "Bearer "+userToken(n))
		_, err := c.Start(l.f.t.Context())
		for err == nil && ctx.Err() == nil {
			if err = l.text(c, ""); err == nil {
				l.calls.Add(1)
			}
		}
		if l.sessions.Add(1); err != nil && !strings.Contains(err.Error(), "no such session") { // it ended with its replica
			l.note("a call in a session", err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// All replicas are restarted one after the other under load. Branches that are open go on, and no call
// fails: neither behind HAProxy, which asks replicas whether they are ready, nor behind nginx, which learns
// that a replica stops from connections that are refused.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*fleet) string{"haproxy": (*fleet).haproxy, "nginx": (*fleet).nginx} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, userPrincipals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\nfolding: {max_branches_per_minute: 100000, max_branches_per_minute_per_principal: 100000, max_concurrent_per_session: 10000, max_concurrent_per_instance: 10000}\n")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := &load{f: f, at: start(f)}
			wait := l.run(ctx)
			until(t, "there is load", func() bool { return l.calls.Load() > 200 })
			for _, r := range f.all {
				r.terminate()
				before := l.calls.Load()
				r.start()
				f.settled(3)
				until(t, "calls go on", func() bool { return l.calls.Load() > before+50 })
			}
			cancel()
			wait()
			for id, n := range l.branches {
				if status, _, body := posted(t, l.at, n, "branch_status", fmt.Sprintf(`{"branch_id":%q}`, id), nil); status != http.StatusOK || !strings.Contains(body, `\"active\"`) {
					t.Errorf("branch %s after the restart: %d %s", id, status, body)
				}
			}
			t.Logf("%d calls, %d failed; %d legacy sessions; %d branches went on", l.calls.Load(), l.failed.Load(), l.sessions.Load(), len(l.branches))
			for _, r := range f.all {
				r.terminate()
				r.output("trace", "verify")
			}
		})
	}
}

// A replica that stops goes on to answer over a connection that a balancer keeps open, and says that it closes
// it. One that waits for a request is closed at the end, without a reset.
func TestKeptConnectionsOfAStop(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, userPrincipals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "legacy")+"}\n")
	r := f.all[0]
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", "127.0.0.1:"+r.port)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c, bufio.NewReader(c)
	}
	closes := func(c net.Conn, in *bufio.Reader) bool {
		t.Helper()
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
		_, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", userToken(0), len(body), body)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(in, nil)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
		}
		if err != nil {
			t.Fatalf("a request over a connection that is kept: %v", err)
		}
		return res.Close
	}
	used, usedIn := dial()
	idle, idleIn := dial()
	if closes(used, usedIn) || closes(idle, idleIn) {
		t.Fatal("a replica that runs closes a connection after a reply")
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.terminate()
	}()
	t.Cleanup(func() { <-stopped })
	for !closes(used, usedIn) { // until it has the signal
	}
	if !closes(dial()) { // it still listens, or dial fails
		t.Error("a replica that stops keeps a new connection open after its reply")
	}
	for name, in := range map[string]*bufio.Reader{"used": usedIn, "idle": idleIn} {
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("the %s connection ends with %v, want EOF", name, err)
		}
	}
}

// A replica is killed again and again under load. Calls fail only if they were at that replica. Its
// branches go on when it is back; the traces are whole and have each call that was answered; a limit has
// counted what the traces say, and no more than the replicas had in hand when they were killed.
func TestKilledReplica(t *testing.T) {
	t.Parallel()
	config := userPrincipals() + "upstreams:\n  fake: {" + fakeUpstream(t, "stdio", "legacy") + "}\nfolding: {max_branches_per_minute: 100000, max_branches_per_minute_per_principal: 100000, max_concurrent_per_session: 10000, max_concurrent_per_instance: 10000, default_timeout_seconds: 3600, max_timeout_seconds: 3600}\nbudgets:\n  limits:\n    - {name: all, per: all, calls: 1G, tokens: 1G, window: 1mo}\n"
	f := newFleet(t, 3, config)
	lost := regexp.MustCompile(`502|503|EOF|reset|refused|broken|shutting down|without a response`)
	var excused atomic.Int64
	l := &load{f: f, at: f.haproxy(), skip: func(err error) bool {
		if lost.MatchString(err.Error()) {
			excused.Add(1)
			return true
		}
		return errors.Is(err, context.Canceled)
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := l.run(ctx)
	checked := 0
	for k := range *replicaKills {
		before := l.calls.Load()
		until(t, "there is load", func() bool { return l.calls.Load() > before+100 })
		victim := f.all[rand.IntN(len(f.all))]
		name := victim.name()
		victim.kill()
		l.mu.Lock()
		theirs, others := map[string]int{}, map[string]int{}
		for id, n := range l.branches {
			if id[3:8] == name {
				if len(theirs) < 20 {
					theirs[id] = n
				}
			} else {
				others[id] = n
			}
		}
		l.mu.Unlock()
		for id, n := range others { // nothing of it is at the replica that is down
			for _, r := range f.all {
				if r != victim {
					if status, _, body := posted(t, r.url, n, "fake__text", fmt.Sprintf(`{"text":"@@","branch_id":%q}`, id), nil); status != http.StatusOK || strings.Contains(body, `"isError":true`) {
						t.Errorf("kill %d: a call in branch %s of a replica that is up: %d %s", k, id, status, body)
					}
				}
			}
			break
		}
		victim.start()
		f.settled(3)
		for id, n := range theirs {
			if status, _, body := posted(t, l.at, n, "fake__text", fmt.Sprintf(`{"text":"@@","branch_id":%q}`, id), nil); status != http.StatusOK || strings.Contains(body, `"isError":true`) {
				t.Errorf("kill %d: a call in branch %s of the replica that was killed: %d %s", k, id, status, body)
			}
			checked++
		}
		if t.Failed() {
			t.Fatalf("after kill %d", k)
		}
	}
	cancel()
	wait()
	t.Logf("%d kills, %d calls, %d lost with their replica; %d branches of killed replicas went on", *replicaKills, l.calls.Load(), excused.Load(), checked)
	records, lostCalls, dirs := int64(0), int64(0), []string{}
	for _, r := range f.all {
		r.terminate()
		r.output("trace", "verify")
		for line := range strings.Lines(r.output("trace", "--no-index", "--kind", "mcp/response:tools/call", "--format", "jsonl")) {
			if strings.Contains(line, `"lost":true`) {
				lostCalls++
			} else if strings.Contains(line, `"tool":"text"`) {
				records++
			}
		}
		dirs = append(dirs, filepath.Join(r.dir, "state", "trace"))
	}
	if answered := l.texts.Load(); records < answered {
		t.Errorf("the traces have %d calls, but %d were answered", records, answered)
	}
	f.all[0].start()
	counted := f.all[0].usedOfLimit()
	again := newGateway(t, fmt.Sprintf("store: {url: %q, prefix: rebuilt}\n%s", f.store.URL(), config))
	again.output(append([]string{"budgets", "rebuild"}, dirs...)...)
	again.http()
	traced := again.usedOfLimit()
	t.Logf("%d calls of a tool were answered, the traces have %d, and %d that a kill ended; tokens delivered %d, by the traces %d, counted %d", l.texts.Load(), records, lostCalls, l.tokens.Load(), traced, counted)
	// A call that a kill ended may be recorded and not charged yet, or charged and not answered.
	if least := max(l.tokens.Load(), traced-lostCalls*callArguments); counted < least || counted > traced+lostCalls*callTokens {
		t.Errorf("of a limit %d tokens are counted; the traces have %d, of which %d were delivered; want at least %d, and at most %d", counted, traced, l.tokens.Load(), least, traced+lostCalls*callTokens)
	}
}

// The most tokens that the arguments of a call of the test have, and a call with its result.
const callArguments, callTokens = 60, 200

// usedOfLimit returns the tokens that the only limit has counted.
func (g *gateway) usedOfLimit() int64 {
	g.t.Helper()
	var states []control.Budget
	if err := json.Unmarshal([]byte(g.output("budgets", "--json")), &states); err != nil || len(states) != 1 {
		g.t.Fatalf("budgets: %+v, %v", states, err)
	}
	return states[0].TokensUsed
}

// An id with a name that no replica has leaves a request with the replica of its principal. One that was
// invented with the name of a replica is answered by that one as the id of another principal is. The ids in
// a batch count like those of a single request.
func TestReplicasAndInventedIDs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, userPrincipals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "both")+"}\n")
	a, b := f.all[0].name(), f.all[1].name()
	branches := map[string]string{} // by replica
	for n := 0; n < allUsers && (n < users || len(branches) < 2); n++ {
		id, owner := f.branchOfUser(t, n)
		branches[owner] = id
		for _, r := range f.all {
			for _, invented := range []string{"ses_agent_1", "ses_zzzzz_0b8d6f0e-1c7a-4c55-8d0a-8b1f4c2d9e10"} {
				_, _, body := posted(t, r.url, n, "branch_create", fmt.Sprintf(`{"description":"invented","session_id":%q}`, invented), nil)
				if id := regexp.MustCompile(`br_\w{5}_`).FindString(body); id != "br_"+owner+"_" {
					t.Errorf("user%d of %s with %s: %q in %.300s", n, owner, invented, id, body)
				}
			}
		}
	}
	if branches[a] == "" || branches[b] == "" {
		t.Fatalf("all %d principals are at one replica", allUsers)
	}
	f.tellsNothing(t, branches[b])
	batch := fmt.Sprintf(`[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fake__echo","arguments":{"branch_id":%q}}},{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"fake__echo","arguments":{"branch_id":%q}}}]`, branches[a], branches[b])
	h := http.Header{"Authorization": {"Bearer " + userToken(0)}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Protocol-Version": {"2025-03-26"}}
	if status, _, body := answered(t, http.DefaultClient, http.MethodPost, f.url, batch, h); status != http.StatusConflict || !strings.Contains(body, a) || !strings.Contains(body, b) {
		t.Errorf("a batch with branches of both replicas: %d %s", status, body)
	}
}

// tellsNothing compares the answers for ids of another principal with those for invented ids of the same
// replica. They differ in the ids only.
func (f *fleet) tellsNothing(t *testing.T, branch string) {
	t.Helper()
	owner, other := -1, -1
	for n := range allUsers {
		if _, _, body := posted(t, f.url, n, "branch_status", fmt.Sprintf(`{"branch_id":%q}`, branch), nil); strings.Contains(body, `\"active\"`) {
			owner = n
		} else {
			other = n
		}
	}
	_, _, body := posted(t, f.url, owner, "fake__huge", fmt.Sprintf(`{"bytes":50000,"branch_id":%q}`, branch), nil)
	handle := regexp.MustCompile(`res_\w+`).FindString(body)
	c := f.host(f.url, mcpclient.Legacy, owner, "{}")
	if _, err := c.Start(testContext(t)); err != nil || handle == "" {
		t.Fatalf("%v, no handle in %s", err, body)
	}
	for _, id := range []string{branch, handle, c.Session()} {
		invented := id[:len(id)-1] + map[bool]string{true: "1", false: "0"}[strings.HasSuffix(id, "0")]
		ask := func(id string) string {
			var status int
			var body string
			switch {
			case strings.HasPrefix(id, "br_"):
				status, _, body = posted(t, f.url, other, "fake__echo", fmt.Sprintf(`{"branch_id":%q}`, id), nil)
			case strings.HasPrefix(id, "res_"):
				status, _, body = posted(t, f.url, other, "branch_read", fmt.Sprintf(`{"handle":%q}`, id), nil)
			default:
				status, _, body = answered(t, http.DefaultClient, http.MethodPost, f.url, `{"jsonrpc":"2.0","id":1,"method":"ping"}`, http.Header{
					"Authorization": {"Bearer " + userToken(other)}, "Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {"2025-11-25"}})
			}
			return fmt.Sprint(status, " ", strings.ReplaceAll(body, id, "ID"))
		}
		if real, made := ask(id), ask(invented); real != made || !strings.Contains(real, "error") {
			t.Errorf("%s of another principal: %s; an invented one: %s", id, real, made)
		}
	}
}

// A replica that hangs: requests for it end within a bound, with the time to try again; requests of its
// principals without ids go to the other one. When it goes on, so do its branches.
func TestHungReplica(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, userPrincipals()+"upstreams:\n  fake: {"+fakeUpstream(t, "stdio", "both")+"}\n")
	hung, other := f.all[0], f.all[1]
	id, n := "", 0
	for ; n < allUsers; n++ {
		if branch, owner := f.branchOfUser(t, n); owner == hung.name() {
			id = branch
			break
		}
	}
	if id == "" {
		t.Fatalf("all %d principals are at one replica", allUsers)
	}
	inBranch := func() (int, http.Header, string) {
		return posted(t, other.url, n, "fake__echo", fmt.Sprintf(`{"n":1,"branch_id":%q}`, id), nil)
	}
	if status, _, body := inBranch(); status != http.StatusOK {
		t.Fatalf("before it hangs: %d %s", status, body)
	}
	_ = hung.cmd.Process.Signal(syscall.SIGSTOP)
	until(t, "each thread of the replica has stopped", func() bool { // on a busy machine that takes a moment
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", hung.cmd.Process.Pid))
		for _, thread := range threads {
			stat, readErr := os.ReadFile(thread)
			err = errors.Join(err, readErr)
			if !bytes.Contains(stat, []byte(") T ")) {
				return false
			}
		}
		return err == nil && len(threads) > 0
	})
	resume := sync.OnceFunc(func() { _ = hung.cmd.Process.Signal(syscall.SIGCONT) })
	t.Cleanup(resume)
	for i := 1; ; i++ { // over an old connection, of which there may be two, and then over a new one
		began := time.Now()
		status, head, body := inBranch()
		t.Logf("call %d: %d after %s, Retry-After %q: %s", i, status, time.Since(began).Round(100*time.Millisecond), head.Get("Retry-After"), body)
		sent := status == http.StatusGatewayTimeout
		if !sent && (i == 1 || status != http.StatusServiceUnavailable) || sent && i > 2 || (head.Get("Retry-After") == "") != sent || !strings.Contains(body, "replica") {
			t.Fatalf("call %d: %d, Retry-After %q, %s; want 504 once or twice, and then 503", i, status, head.Get("Retry-After"), body)
		}
		if !sent {
			break
		}
	}
	if status, _, body := posted(t, other.url, n, "fake__echo", `{"n":2}`, nil); status != http.StatusOK {
		t.Errorf("a call without ids: %d %s", status, body)
	}
	resume()
	f.settled(2)
	if status, _, body := inBranch(); status != http.StatusOK {
		t.Errorf("after it goes on: %d %s", status, body)
	}
}
