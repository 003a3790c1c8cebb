//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// configure writes another configuration. A new file takes the place of the old one, as editors and
// mounted directories do it.
func (g *gateway) configure(config string) {
	g.t.Helper()
	next := filepath.Join(g.dir, "next.yaml")
	write(g.t, next, "state_dir: state\n"+config)
	if err := os.Rename(next, g.config); err != nil {
		g.t.Fatal(err)
	}
}

// reload makes the gateway read its configuration now, and waits for a line of its log.
func (g *gateway) reload(line string) {
	g.t.Helper()
	before := strings.Count(g.log.String(), line)
	if err := syscall.Kill(g.pid, syscall.SIGHUP); err != nil {
		g.t.Fatal(err)
	}
	until(g.t, "the log has: "+line, func() bool { return strings.Count(g.log.String(), line) > before })
}

const reloaded = `msg="configuration reloaded"`

// fakes is the configuration of fake upstreams with these keys.
func fakes(keys ...string) string {
	out := "upstreams:\n"
	for _, key := range keys {
		out += fmt.Sprintf("  %s: {command: [%q]}\n", key, fakeserverBin)
	}
	return out
}

// Reloads that add, change and remove upstreams while 16 hosts call make no call fail. A session sees
// the new tools without starting anew.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("kept", "old"))
	at := g.http()
	watcher := mcpclient.HTTP(at, mcpclient.Legacy)
	var heard atomic.Int32
	watcher.Handle = func(m mcpclient.Message) (result, errObject json.RawMessage) {
		if m.Method == "notifications/tools/list_changed" {
			heard.Add(1)
		}
		return nil, nil
	}
	startHost(t, ctx, watcher)
	g.closes(watcher)
	if err := watcher.Listen(); err != nil {
		t.Fatal(err)
	}
	if list := string(call(t, watcher, ctx, "tools/list", `{}`).Result); !strings.Contains(list, "old__echo") || strings.Contains(list, "new__echo") {
		t.Fatalf("tools before: %.300s", list)
	}
	pid := said(t, tool(t, watcher, ctx, "kept__pid", `{}`))

	var wg sync.WaitGroup
	stop := make(chan struct{})
	var calls, failed atomic.Int64
	for i := range 16 {
		era := []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern}[i%2]
		c := g.dial(ctx, at, era)
		call(t, c, ctx, "tools/list", `{}`)
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := []string{"kept__echo", "turning__echo"}[n%2]
				if n%2 == 1 && !strings.Contains(g.log.String(), reloaded) {
					name = "kept__echo"
				}
				m, err := c.Call(ctx, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":{"n":%d}}`, name, n))
				calls.Add(1)
				if err != nil || m.Error != nil || strings.Contains(string(m.Result), `"isError":true`) {
					failed.Add(1)
					t.Errorf("%s: %v %s %.300s", name, err, m.Error, m.Result)
					return
				}
			}
		})
	}
	turning := func(n int) string {
		return fmt.Sprintf("  turning: {command: [%q], env: {N: \"%d\"}}\n", fakeserverBin, n)
	}
	for n := range 5 { // "turning" is added, and then changed while it is called
		before := calls.Load()
		g.configure(fakes("kept", []string{"new", "old"}[n%2]) + turning(n))
		g.reload(reloaded)
		until(t, "calls go on", func() bool { return calls.Load() > before+50 || failed.Load() > 0 })
	}
	g.configure(fakes("new", "kept") + turning(9))
	g.reload(reloaded)
	before := calls.Load()
	until(t, "calls go on", func() bool { return calls.Load() > before+50 || failed.Load() > 0 })
	close(stop)
	wg.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d calls failed", failed.Load(), calls.Load())
	}
	t.Logf("%d calls", calls.Load())
	if heard.Load() == 0 {
		t.Error("the host was not told that the tools changed")
	}
	until(t, "the list has the new tools", func() bool {
		list := string(call(t, watcher, ctx, "tools/list", `{}`).Result)
		return !strings.Contains(list, "old__echo") && strings.Contains(list, "new__echo") && strings.Contains(list, "turning__echo")
	})
	if now := said(t, tool(t, watcher, ctx, "kept__pid", `{}`)); now != pid {
		t.Errorf("the session's own process of an upstream that did not change was %s and is %s", pid, now)
	}
	if m := tool(t, watcher, ctx, "old__echo", `{}`); !strings.Contains(said(t, m), "Unknown tool") {
		t.Errorf("a tool that was removed: %s", m.Result)
	}
	g.stop()
	var configs []struct{ Event, Config, Version string }
	for _, r := range g.trace("--kind", "system/config") {
		var c struct{ Event, Config, Version string }
		if err := json.Unmarshal(r.Payload, &c); err != nil || c.Version == "" || len(c.Config) != 64 {
			t.Errorf("record %s: %v", r.Payload, err)
		}
		configs = append(configs, c)
	}
	if len(configs) != 7 || configs[0].Event != "start" || configs[6].Event != "reload" || configs[6].Config == configs[0].Config {
		t.Errorf("the trace has these configurations: %v", configs)
	}
}

// A reload of the policy, or of what it looks at, announces the lists of those who see something else
// now, and of nobody else.
func TestReloadOfPolicy(t *testing.T) {
	t.Parallel()
	config := func(deny, team string) string {
		return fakes("kept") + strings.Replace(principals(), "alice: {", "alice: {team: "+team+", ", 1) +
			"policy:\n  rules:\n    - {name: r, who: {team: blue}, deny: [" + deny + "]}\n"
	}
	g := newGateway(t, config("kept__text", "blue"))
	at := g.http()
	var hers, his noted
	alice, bob := g.as(t, at, mcpclient.Legacy, "alice"), g.as(t, at, mcpclient.Legacy, "bob")
	alice.Handle, bob.Handle = hers.handle(nil), his.handle(nil)
	for _, c := range []*mcpclient.Client{alice, bob} {
		hearsOfTools(t, c, "http", mcpclient.Legacy)
		names(t, c, "tools/list", "tools", "name")
	}
	for i, tt := range []struct {
		config string
		hidden string
	}{{config("kept__echo", "blue"), "kept__echo"}, {config("kept__echo", "red"), ""}, {config("kept__echo", "blue"), "kept__echo"}} {
		g.configure(tt.config)
		g.reload(reloaded)
		until(t, "she is told", func() bool { return hers.has("tools/list_changed") > i })
		if got := names(t, alice, "tools/list", "tools", "name"); slices.Contains(got, "kept__echo") == (tt.hidden == "kept__echo") || !slices.Contains(got, "kept__text") {
			t.Errorf("with %s alice sees %v", tt.config, got)
		}
	}
	if n := his.has("list_changed"); n > 0 {
		t.Errorf("bob, who sees what he saw, was told %d times", n)
	}
}

// begun waits until n calls have their servers: a reload that is faster removes these before.
func (g *gateway) begun(n int) {
	g.t.Helper()
	until(g.t, "the call has begun", func() bool { return len(g.trace("--kind", "mcp/request:tools/call")) >= n })
}

// A call that does not finish in time at an upstream that was removed is told why it failed.
func TestReloadCutsCallsOff(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("kept", "old"))
	c := g.connect(ctx, "http", mcpclient.Legacy)
	_, wait, err := c.Send(ctx, "tools/call", `{"name":"old__slow","arguments":{"ms":55000}}`)
	if err != nil {
		t.Fatal(err)
	}
	g.begun(1)
	g.configure(fakes("kept"))
	g.reload(reloaded)
	if m, err := wait(); err != nil || !strings.Contains(string(m.Result), "a reload of the configuration removed it") {
		t.Errorf("the call that was cut off: %v %s %s", err, m.Error, m.Result)
	}
}

// A call at an upstream that a reload removes goes on to its end.
func TestReloadLetsCallsFinish(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		g := newGateway(t, fakes("kept", "old"))
		c := g.connect(ctx, "http", era)
		tool(t, c, ctx, "old__echo", `{}`)
		end := filepath.Join(t.TempDir(), "end")
		_, wait, err := c.Send(ctx, "tools/call", fmt.Sprintf(`{"name":"old__raw","arguments":{"wait":%q,"result":{"content":[]}}}`, end))
		if err != nil {
			t.Fatal(err)
		}
		g.begun(2)
		g.configure(fakes("kept"))
		g.reload(reloaded)
		write(t, end, "")
		if m, err := wait(); err != nil || m.Error != nil || strings.Contains(string(m.Result), `"isError":true`) {
			t.Errorf("%s: the call at the removed upstream: %v %s %s", era, err, m.Error, m.Result)
		}
		g.stop()
	}
}

// readyz returns the answer of /readyz.
func readyz(t *testing.T, at, token string) (status int, body string) {
	t.Helper()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(at, "/mcp")+"/readyz", nil)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

// A bad file leaves everything as it was, and the log, /readyz and the trace say so, until the file is
// good again.
func TestReloadOfABadFile(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]string{
		"unknown key": fakes("kept") + "colour: red\n", "malformed": "upstreams: {kept: [\n", "no such program": "upstreams: {kept: {command: [foldgate-no-such-program]}}\n",
		"all principals gone": fakes("kept"), "scrub rules": fakes("kept") + "scrub: {rules: foldgate.yaml}\n" + principals(),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			g := newGateway(t, fakes("kept")+principals())
			at := g.http()
			c := g.as(t, at, mcpclient.Legacy, "alice")
			g.configure(bad)
			const fault = "the configuration was not reloaded"
			if name == "malformed" { // the gateway finds out by itself
				until(t, "the log has the fault", func() bool { return strings.Contains(g.log.String(), fault) })
			} else {
				g.reload(fault)
			}
			tool(t, c, ctx, "kept__echo", `{}`)
			if status, body := readyz(t, at, tokenOf["alice"]); status != 200 || !strings.Contains(body, `"status":"degraded"`) || !strings.Contains(body, `"config":"`) {
				t.Errorf("readyz: %d %s", status, body)
			}
			g.configure(fakes("kept", "more") + principals())
			if name == "malformed" {
				until(t, "the good file is in force", func() bool { return strings.Contains(g.log.String(), reloaded) })
			} else {
				g.reload(reloaded)
			}
			if _, body := readyz(t, at, tokenOf["alice"]); strings.Contains(body, `"config":"`) {
				t.Errorf("readyz after a good file: %s", body)
			}
			tool(t, c, ctx, "more__echo", `{}`)
			g.stop()
			var events []string
			for _, r := range g.trace("--kind", "system/config") {
				var p struct{ Event string }
				_ = json.Unmarshal(r.Payload, &p)
				events = append(events, p.Event)
			}
			if !slices.Equal(events, []string{"start", "refused", "reload"}) {
				t.Errorf("the trace has %v", events)
			}
		})
	}
}

// A file that is gone is a bad one, also if foldgate has found it by itself: no other file and no defaults
// take its place.
func TestReloadOfAFileThatIsGone(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("kept"))
	file := g.config
	g.config = "" // foldgate takes ./foldgate.yaml
	at := g.http()
	c := g.as(t, at, mcpclient.Legacy, "")
	tool(t, c, ctx, "kept__echo", `{}`)
	if err := os.Rename(file, file+".away"); err != nil {
		t.Fatal(err)
	}
	g.reload("the configuration was not reloaded")
	tool(t, c, ctx, "kept__echo", `{}`)
	if _, body := readyz(t, at, ""); !strings.Contains(body, `"config":"foldgate.yaml: there is no such file`) {
		t.Errorf("readyz: %s", body)
	}
}

// A principal that a reload removes is out at once, in both eras, with its session and its streams. A
// new token works at once, the old one no longer, and the session goes on with the new one.
func TestReloadOfPrincipals(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("kept")+principals())
	at := g.http()
	host := func(principal string) *mcpclient.Client { // its token does not last until the end
		c := mcpclient.HTTP(at, mcpclient.Legacy, "Authorization", "Bearer "+tokenOf[principal])
		startHost(t, ctx, c)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	alice, bob := host("alice"), host("bob")
	tool(t, alice, ctx, "kept__echo", `{}`)
	tool(t, bob, ctx, "kept__echo", `{}`)
	headers := func(token, session string) http.Header {
		h := http.Header{"Authorization": {"Bearer " + token}, "Mcp-Protocol-Version": {"2025-11-25"}}
		if session != "" {
			h.Set("Mcp-Session-Id", session)
		}
		return h
	}
	stream := func(token, session string) (ended chan struct{}) { // a GET stream of its own
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
		req.Header = headers(token, session)
		req.Header.Set("Accept", "text/event-stream")
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("GET: %v %v", err, res)
		}
		ended = make(chan struct{})
		go func() { _, _ = io.Copy(io.Discard, res.Body); res.Body.Close(); close(ended) }()
		return ended
	}
	const ping = `{"jsonrpc":"2.0","id":77,"method":"ping"}`
	fresh := strings.Repeat("alice-has-another-", 2)
	ended := stream(tokenOf["bob"], bob.Session())
	g.configure(fakes("kept") + fmt.Sprintf("principals:\n  alice: {token: %q}\n", fresh))
	g.reload(reloaded)
	<-ended // the stream of the removed principal
	for name, tt := range map[string]struct {
		token, session string
		want           int
	}{
		"removed principal":          {tokenOf["bob"], bob.Session(), 401},
		"revoked token":              {tokenOf["alice"], alice.Session(), 401},
		"revoked token, new session": {tokenOf["alice"], "", 401},
		"new token, old session":     {fresh, alice.Session(), 200},
		"another's session":          {fresh, bob.Session(), 404},
	} {
		body := ping
		if tt.session == "" {
			body = rawInitialize
		}
		status, _, answer := answered(t, http.DefaultClient, http.MethodPost, at, body, headers(tt.token, tt.session))
		if status != tt.want || status == 401 && !strings.Contains(answer, "ask the operator for a new token") {
			t.Errorf("%s: %d %s, want %d", name, status, answer, tt.want)
		}
	}
	if m, err := bob.Call(ctx, "ping", `{}`); err == nil {
		t.Errorf("bob is served: %s", m.Result)
	}
	// The new token is scrubbed, like any that the configuration has.
	status, _, answer := answered(t, http.DefaultClient, http.MethodPost, at,
		fmt.Sprintf(`{"jsonrpc":"2.0","id":78,"method":"tools/call","params":{"name":"kept__echo","arguments":{"say":%q}}}`, fresh), headers(fresh, alice.Session()))
	if status != 200 || strings.Contains(answer, fresh) || !strings.Contains(answer, "foldgate-token") {
		t.Errorf("the new token crosses: %d %s", status, answer)
	}
}

// The branches and the batches of a principal that a reload removes end: the call in flight is cancelled,
// and the server gets no further one. Those of others go on.
func TestReloadEndsBatches(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		for _, given := range []bool{false, true} { // a branch for the batch, or one of its own
			t.Run(fmt.Sprintf("%s-%v", era, given), func(t *testing.T) {
				ctx := testContext(t)
				const run = "run: {allow: [\"fake__*\"]}\n"
				g := newGateway(t, fakes("fake")+run+principals())
				at := g.http()
				alice := g.as(t, at, era, "alice")
				bob := mcpclient.HTTP(at, era, "Authorization", "Bearer "+tokenOf["bob"]) // its token does not last until the end
				startHost(t, ctx, bob)
				t.Cleanup(func() { _ = bob.Close() })
				kept := create(t, alice, ctx, map[string]any{}).BranchID
				in := ""
				if given {
					in = `,"branch_id":"` + create(t, bob, ctx, map[string]any{}).BranchID + `"`
				}
				_, wait, err := bob.Send(ctx, "tools/call", `{"name":"branch_run","arguments":{"tool":"fake__slow","parallel":1,"each":[{"ms":20000},{"ms":1},{"ms":2}]`+in+`}}`)
				if err != nil {
					t.Fatal(err)
				}
				open := func() (branches []struct {
					Principal string
					InFlight  int `json:"in_flight"`
				}) {
					text, _ := g.operate("branches", "--json")
					if err := json.Unmarshal([]byte(text), &branches); err != nil {
						t.Fatal(err, text)
					}
					return branches
				}
				until(t, "the batch calls", func() bool {
					all := open()
					return len(all) == 2 && all[0].InFlight+all[1].InFlight > 0
				})
				g.configure(fakes("fake") + run + fmt.Sprintf("principals:\n  alice: {token: %q}\n", tokenOf["alice"]))
				g.reload(reloaded)
				until(t, "only alice has a branch", func() bool {
					all := open()
					return len(all) == 1 && all[0].Principal == "alice"
				})
				// A batch in a branch of its host's may be refused as a whole, before it has its answer.
				if m, err := wait(); err == nil && era == mcpclient.Modern && !strings.Contains(string(m.Result), "may no longer use foldgate") && !(given && strings.Contains(string(m.Result), "failed (operator)")) {
					t.Errorf("the batch answered %s%s", m.Result, m.Error)
				}
				if s := statusOf(t, alice, ctx, kept); s.Status != "active" {
					t.Errorf("alice's branch is %s", s.Status)
				}
				g.stop()
				for _, r := range g.trace() {
					if r.Audit.Tool == "slow" && strings.HasPrefix(r.Kind, "mcp/response") && !r.Audit.IsError {
						t.Errorf("a call of the batch has a result: %s", r.Payload)
					}
				}
			})
		}
	}
}

// Another threshold is in force with the next call of a session that exists. A key that needs a restart
// stays as it was, and the log says so.
func TestReloadOfThresholds(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("kept")+"results: {main_threshold: 8000}\n")
	c := g.connect(ctx, "http", mcpclient.Legacy)
	args := fmt.Sprintf(`{"text":%q}`, strings.Repeat("some words that are read. ", 300))
	if got := said(t, tool(t, c, ctx, "kept__echo", args)); strings.Contains(got, "res_") {
		t.Fatalf("folded below the threshold: %.300s", got)
	}
	g.configure(fakes("kept") + "results: {main_threshold: 500, quota_mb: 77}\nfolding: {default_budget: 4321}\n")
	g.reload(`keys=[results.quota_mb]`)
	if got := said(t, tool(t, c, ctx, "kept__echo", args)); !strings.Contains(got, "res_") {
		t.Errorf("not folded over the new threshold: %.300s", got)
	}
	if b := create(t, c, ctx, map[string]any{}); b.BudgetAllocated != 4321 {
		t.Errorf("a new branch has a budget of %d, want 4321", b.BudgetAllocated)
	}
}

// A text that becomes a secret by a reload or a restart leaves the lists that foldgate keeps, and the words
// that the trace repeats.
func TestNewSecretsLeaveKeptTexts(t *testing.T) {
	t.Parallel()
	const token, phrase = "blue-harbour-of-eleven-ships", "copper lantern"
	ctx := testContext(t)
	upstreams := fmt.Sprintf("upstreams:\n  fake: {command: [%q, -leak, %q]}\n", fakeserverBin, " "+token+" "+phrase)
	g := newGateway(t, upstreams+principals())
	start := func() *mcpclient.Client {
		t.Helper()
		c := mcpclient.HTTP(g.http(), mcpclient.Legacy, "Authorization", "Bearer "+tokenOf["alice"])
		c.Name = "agent-of-" + token
		startHost(t, ctx, c)
		g.closes(c)
		return c
	}
	c := start()
	list := func() string {
		t.Helper()
		return string(call(t, c, ctx, "tools/list", `{}`).Result)
	}
	if got := list(); !strings.Contains(got, token+" "+phrase) {
		t.Fatalf("the list lacks the text: %.500s", got)
	}
	more := fmt.Sprintf("  carol: {token: %q}\n", token)
	g.configure(upstreams + principals() + more)
	g.reload(reloaded)
	if got := list(); strings.Contains(got, token) || !strings.Contains(got, "] "+phrase) {
		t.Errorf("after the reload the list is %.500s", got)
	}
	g.stop()
	journal := read(t, filepath.Join(g.dir, "state", "trace", "trace-000000000000001.jsonl"))
	before, after, found := strings.Cut(string(journal), `"event":"reload"`)
	if !found || !strings.Contains(before, c.Name) || strings.Contains(after, token) {
		t.Errorf("the trace has a reload: %v, the text before it: %v, after it: %v", found, strings.Contains(before, c.Name), strings.Contains(after, token))
	}

	stored, err := os.ReadFile(filepath.Join(g.dir, "state", "upstreams.json"))
	if err != nil || !strings.Contains(string(stored), phrase) {
		t.Fatalf("no list is stored: %v", err)
	}
	write(t, filepath.Join(g.dir, "rules.toml"), "[[rules]]\nid = \"lantern\"\nregex = '''"+phrase+"'''\n")
	g.configure(upstreams + principals() + more + "scrub: {rules: rules.toml}\n")
	c = start()
	if got := list(); strings.Contains(got, phrase) || !strings.Contains(got, "[REDACTED:lantern]") {
		t.Errorf("after the restart the list is %.500s", got)
	}
}

// The subscriptions at an upstream that a reload removes end with it. A later upstream of the name does not
// get them, nor does a restart of that one.
func TestReloadEndsSubscriptions(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	file := recordFile(t)
	g := newGateway(t, fakeConfig(file, fakes("kept")[len("upstreams:\n"):]))
	c := g.connect(ctx, "http", mcpclient.Legacy)
	call(t, c, ctx, "tools/list", `{}`)
	call(t, c, ctx, "resources/subscribe", `{"uri":"fake://doc"}`)
	g.configure(fakes("kept"))
	g.reload(reloaded)
	g.configure(fakeConfig(file, ""))
	g.reload(reloaded)
	until(t, "the upstream is back", func() bool { return strings.Contains(string(call(t, c, ctx, "tools/list", `{}`).Result), "fake__text") })
	tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	tool(t, c, ctx, "fake__crash", `{}`)
	tool(t, c, ctx, "fake__text", `{"text":"x"}`)
	if got := recordedMethod(t, file, "resources/subscribe"); len(got) != 1 {
		t.Errorf("the upstream was asked %d times, want once: %s", len(got), got)
	}
}
