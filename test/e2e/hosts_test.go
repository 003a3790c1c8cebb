//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/fixtures"
	"github.com/foldgate/foldgate/test/llmstub"
)

// host is the command line of an agent host, as it comes from npm.
type host interface {
	// run runs the prompt of r to its end.
	run(t *testing.T, r *hostRun)
	// use is the call with which its model uses a tool of an MCP server.
	use(server, tool, arguments string) llmstub.Call
	// delegate returns the model's turns that have a subagent of the host follow the prompt, and
	// read its answer.
	delegate(prompt func(llmstub.Request) string) []llmstub.Turn
	// note reports whether the host itself added a message to the main context
	// to tell that a subagent has ended. It may come a turn later.
	note(llmstub.Message) bool
	// handedLimit is the largest cost, in tokens, of a subagent that is handed a branch.
	handedLimit() int
	// named is how many of its reads must name their branch: of a subagent that
	// was handed it, and of one that opened it.
	named() (handed, own int)
	// overHTTP reports whether foldgate runs by itself, over HTTP. It must if the host's
	// subagents start their own MCP servers.
	overHTTP() bool
	// half is the one of a result's two halves that its model reads.
	half(text, structured string) string
	// check checks the sentences of docs/hosts.md about this host alone. threads holds the host's
	// thread ids by branch.
	check(t *testing.T, r *hostRun, threads map[string][]string)
}

// mcpServer is an MCP server in a host's configuration: a command or a URL.
type mcpServer struct {
	command []string
	url     string
}

// hostRun is one run of a host on a scripted model.
type hostRun struct {
	stub       *llmstub.Server
	home, work string
	servers    map[string]mcpServer
}

// startModel starts a model for the time of the test.
func startModel(t *testing.T, agents ...llmstub.Agent) *llmstub.Server {
	t.Helper()
	stub, err := llmstub.Start(agents...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stub.Close(); err != nil {
			t.Error(err)
		}
		for _, fault := range stub.Faults() {
			t.Error("the model: " + fault)
		}
	})
	return stub
}

// newHostRun starts the model. The working directory has the fixtures.
func newHostRun(t *testing.T, agents ...llmstub.Agent) *hostRun {
	t.Helper()
	stub := startModel(t, agents...)
	// A short name, as directories of projects have: errors quote it.
	work, err := os.MkdirTemp("", "shop")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(work) })
	r := &hostRun{stub: stub, home: t.TempDir(), work: work, servers: map[string]mcpServer{}}
	if err := fixtures.Write(r.work, fixtures.Secret()); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(r.work, "note.txt"), "a note of 17 bytes")
	return r
}

// command runs a host to its end, in an environment that has nothing of this
// one but the PATH.
func (r *hostRun) command(t *testing.T, bin string, args []string, env ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Dir = r.work
	cmd.Env = append(env, hostToken+"="+tokenOf["alice"], "PATH="+os.Getenv("PATH"), "GORACE="+os.Getenv("GORACE"), "HOME="+r.home,
		"XDG_CONFIG_HOME="+filepath.Join(r.home, "config"), "XDG_DATA_HOME="+filepath.Join(r.home, "data"),
		"XDG_CACHE_HOME="+filepath.Join(r.home, "cache"), "XDG_STATE_HOME="+filepath.Join(r.home, "state"),
		// A request that would leave this machine fails at once.
		"HTTPS_PROXY=http://127.0.0.1:9", "HTTP_PROXY=http://127.0.0.1:9", "NO_PROXY=127.0.0.1,localhost")
	// A host that hangs is ended with all that it started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil || len(r.stub.Faults()) > 0 {
		t.Errorf("%s after %s: %v\n%s", filepath.Base(bin), time.Since(start), err, out)
	}
	t.Logf("%s ran for %s", filepath.Base(bin), time.Since(start).Round(10*time.Millisecond))
}

// platform picks the name that npm's packages have for this machine.
func platform(t *testing.T, names map[string]string) string {
	t.Helper()
	name := names[runtime.GOOS+"/"+runtime.GOARCH]
	if name == "" {
		t.Fatalf("the host's package for %s/%s is not known here", runtime.GOOS, runtime.GOARCH)
	}
	return name
}

// job is a part of the main agent's work, with the limit of its cost to the context.
type job struct {
	name  string
	limit int // tokens; 0 for none
	turns []llmstub.Turn
}

// mainAgent plays the jobs one after the other.
func mainAgent(jobs []job) llmstub.Agent {
	var turns []llmstub.Turn
	for _, j := range jobs {
		turns = append(turns, j.turns...)
	}
	return llmstub.Agent{Name: "main", Play: llmstub.Script(append(turns, llmstub.Say("done"))...)}
}

// growth measures and prints the tokens that each job added to the main context, and checks them
// against its limit. It returns the main requests, and the index at which each job begins.
func (r *hostRun) growth(t *testing.T, h host, jobs []job) (main []llmstub.Request, begin map[string]int, grown map[string]int) {
	t.Helper()
	main, begin, grown = r.stub.Requests("main"), map[string]int{}, map[string]int{}
	total := 0
	for _, j := range jobs {
		total += len(j.turns)
	}
	if len(main) != total+1 {
		t.Fatalf("the main agent made %d requests, want one for each of %d turns", len(main), total+1)
	}
	var notes []string // what the host said of subagents belongs to their jobs
	for _, m := range main[total].Messages {
		if h.note(m) {
			notes = append(notes, reads(m))
		}
	}
	at := 0
	for _, j := range jobs {
		begin[j.name] = at
		before, after := spoken(h, main[at]), spoken(h, main[at+len(j.turns)])
		at += len(j.turns)
		n := tokens(t, after) - tokens(t, before)
		calls, results := shares(t, h, main[at].Messages[len(main[at-len(j.turns)].Messages):])
		if strings.HasPrefix(j.name, "P1 subagent") && len(notes) > 0 {
			n += tokens(t, notes[0])
			after, notes = after+notes[0], notes[1:]
		}
		grown[j.name] = n
		t.Logf("%-28s %6d tokens: calls of MCP tools %d, their results as shown %d, the host's own %d", j.name, n, calls, results, n-calls-results)
		if j.limit > 0 && n > j.limit {
			t.Errorf("%s cost the main context %d tokens, want %d at most; it grew by\n%s", j.name, n, j.limit, after[len(before):])
		}
	}
	return main, begin, grown
}

// shares returns the tokens of new messages that are calls of MCP tools, and those of their
// results with the host's additions. The rest is the host's own.
func shares(t *testing.T, h host, messages []llmstub.Message) (calls, results int) {
	t.Helper()
	served := map[string]bool{}
	for _, m := range messages {
		switch {
		case h.note(m):
		case m.Role == "tool" && served[m.CallID]:
			results += tokens(t, reads(m))
		case len(m.Calls) > 0 && (strings.Contains(reads(m), readTool) || strings.Contains(reads(m), "foldgate")):
			calls += tokens(t, reads(m))
			for _, c := range m.Calls {
				served[c.ID] = true
			}
		}
	}
	return calls, results
}

// spoken returns the text that a model reads of its context, without the notes of its host.
func spoken(h host, r llmstub.Request) string {
	return reads(slices.DeleteFunc(slices.Clone(r.Messages), h.note)...)
}

// reads returns the text that a model reads of messages: roles and texts, names and arguments of
// its calls, and the results. It leaves out ids that only the wire has.
func reads(messages ...llmstub.Message) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "%s\n%s\n", m.Role, m.Text)
		for _, c := range m.Calls {
			fmt.Fprintf(&b, "%s.%s %s%s\n", c.Namespace, c.Name, c.Arguments, c.Input)
		}
	}
	return b.String()
}

// fixtureLines are the lines of the ten files that are long enough to be told
// from anything else.
func (r *hostRun) fixtureLines(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, name := range fixtures.Names {
		text := read(t, filepath.Join(r.work, name))
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); len(line) >= 16 {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// shows counts the lines that a request holds, as they are or in JSON within
// JSON, and returns the first.
func shows(r llmstub.Request, lines []string) (n int, first string) {
	once := unquote.Replace(string(r.Body))
	twice := unquote.Replace(once)
	for _, line := range lines {
		if strings.Contains(once, line) || strings.Contains(twice, line) {
			if n++; n == 1 {
				first = line
			}
		}
	}
	return n, first
}

var unquote = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n", `\t`, "\t", `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

func filesystemCommand(t *testing.T, dir string) []string {
	t.Helper()
	return []string{node(t), module(t, filesystemJS), dir}
}

// hostToken is the variable from which a host takes its token.
const hostToken = "FOLDGATE_TOKEN"

// behindGateway puts foldgate, with the file server behind it, into the host's
// configuration as its only MCP server.
func (r *hostRun) behindGateway(t *testing.T, http bool) *gateway {
	t.Helper()
	who := ""
	if http { // over HTTP hosts have a token, like those of people who share a foldgate
		who = principals()
	}
	g := newGateway(t, who+fmt.Sprintf("upstreams:\n  fs: {command: %s, cwd: %q, prefix: \"\"}\n  fake: {command: [%q, -era, both]}\nresults: {main_threshold: 1000}\n",
		jsonText(filesystemCommand(t, r.work)), r.work, fakeserverBin)+fmt.Sprintf("folding: {max_branches_per_minute: 20}\nllm: {api: openai, url: %q, model: m}\n", r.stub.URL()))
	if http {
		r.servers["foldgate"] = mcpServer{url: g.http()}
		return g
	}
	r.servers["foldgate"] = mcpServer{command: []string{foldgateBin, "run", "--config", g.config, "--log-file", filepath.Join(g.dir, "log")}}
	t.Cleanup(func() {
		if log, err := os.ReadFile(filepath.Join(g.dir, "log")); t.Failed() && err == nil {
			t.Logf("log of foldgate:\n%s", log)
		}
	})
	return g
}
