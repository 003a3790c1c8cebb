//go:build e2e

package e2e

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// operate runs a command of the operator and returns what it prints, and its exit code.
func (g *gateway) operate(args ...string) (out string, code int) {
	g.t.Helper()
	cmd := g.command(args...)
	cmd.Stderr = nil
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		g.t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// The operator sees the branches of all principals and ends one. Its call in flight ends, its agent is
// told why, and the trace has it. Nobody else can reach the socket.
func TestOperatorEndsABranch(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("fake")+principals())
	at := g.http()
	alice, bob := g.as(t, at, mcpclient.Legacy, "alice"), g.as(t, at, mcpclient.Modern, "bob")
	if out, code := g.operate("branches"); code != 0 || out != "No branch is open.\n" {
		t.Errorf("branches: %d %q", code, out)
	}
	hers, his := create(t, alice, ctx, map[string]any{"description": "look at\nmany files"}), create(t, bob, ctx, map[string]any{})
	inner := create(t, alice, ctx, map[string]any{"parent_branch_id": hers.BranchID})
	tool(t, alice, ctx, "fake__echo", jsonText(map[string]any{"branch_id": hers.BranchID}))
	out, _ := g.operate("branches")
	for _, want := range []string{hers.BranchID, his.BranchID, inner.BranchID, "alice", "bob", "main", "look at"} {
		if !strings.Contains(out, want) {
			t.Errorf("branches has no %s:\n%s", want, out)
		}
	}
	var open []struct {
		ID, Context, Principal string
		Used, Budget, Calls    int
	}
	text, _ := g.operate("branches", "--json")
	if err := json.Unmarshal([]byte(text), &open); err != nil || len(open) != 3 {
		t.Fatalf("branches --json: %v\n%s", err, text)
	}
	if b := open[0]; b.ID != hers.BranchID || b.Calls != 1 || b.Used == 0 || b.Budget != hers.BudgetAllocated {
		t.Errorf("the first branch is %+v", b)
	}
	if b := open[2]; b.Context != hers.BranchID+"/"+inner.BranchID {
		t.Errorf("the inner branch is %+v", b)
	}

	_, wait, err := alice.Send(ctx, "tools/call", `{"name":"fake__slow","arguments":{"ms":50000,"branch_id":"`+hers.BranchID+`"}}`)
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the call is in flight", func() bool {
		text, _ := g.operate("branches", "--json")
		return strings.Contains(text, `"in_flight": 1`)
	})
	if out, code := g.operate("branches", "end", hers.BranchID, "--reason", "it reads the wrong files"); code != 0 || !strings.Contains(out, "of alice has ended") {
		t.Errorf("branches end: %d %s", code, out)
	}
	if m, err := wait(); err != nil || !strings.Contains(string(m.Result), `"isError":true`) || !strings.Contains(string(m.Result), "it reads the wrong files") {
		t.Errorf("the call in flight: %v %s %s", err, m.Error, m.Result)
	}
	if m := tool(t, alice, ctx, "fake__text", `{"text":"x","branch_id":"`+hers.BranchID+`"}`); !strings.Contains(string(m.Result), "ended by the operator: it reads the wrong files") {
		t.Errorf("the next call: %s", m.Result)
	}
	if s := said(t, tool(t, alice, ctx, "branch_status", jsonText(map[string]any{"branch_id": hers.BranchID}))); !strings.Contains(s, "operator") || !strings.Contains(s, "it reads the wrong files") {
		t.Errorf("branch_status: %s", s)
	}
	if out, _ := g.operate("branches"); strings.Contains(out, hers.BranchID) || strings.Contains(out, inner.BranchID) || !strings.Contains(out, his.BranchID) {
		t.Errorf("branches after the end:\n%s", out)
	}
	for _, id := range []string{hers.BranchID, unknownBranch, "br_x/../../reload"} {
		if out, code := g.operate("branches", "end", id); code != 1 || !strings.Contains(out, "is open") {
			t.Errorf("end of %s: %d %s", id, code, out)
		}
	}

	dir := filepath.Join(g.dir, "state", "control")
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, filepath.Join(dir, "socket"): os.ModeSocket | 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, want mode %v", path, info, want)
		}
	}
	if os.Geteuid() == 0 { // only root can become another user
		if err := os.Chmod(g.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Chmod(filepath.Dir(g.dir), 0o755)
		_ = os.Chmod(filepath.Join(g.dir, "state"), 0o755)
		_ = os.Chmod(dir, 0o755) // as if somebody had opened it
		_ = os.Chmod(filepath.Join(dir, "socket"), 0o666)
		_ = os.Chmod(g.config, 0o644)
		_ = os.Chmod(foldgateBin, 0o755)
		_ = os.Chmod(filepath.Dir(foldgateBin), 0o755)
		cmd := g.command("branches")
		cmd.Stderr = nil
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err == nil || strings.Contains(string(out), his.BranchID) {
			t.Errorf("another user's command: %v\n%s", err, out)
		} else {
			t.Logf("another user: %s", out)
		}
	}

	g.stop()
	found := false
	for _, r := range g.trace("--kind", "context/pop") {
		found = found || strings.Contains(string(r.Payload), `"reason":"operator"`) && strings.Contains(string(r.Payload), "it reads the wrong files")
	}
	if !found {
		t.Error("the trace does not say that the operator ended the branch, and why")
	}
	if used := g.trace("--kind", "system/access"); len(used) == 0 || !strings.Contains(string(used[0].Payload), hers.BranchID) || !strings.Contains(string(used[0].Payload), fmt.Sprintf(`"user":"%d"`, os.Getuid())) {
		t.Errorf("the trace does not say who ended the branch: %+v", used)
	}
	if out, code := g.operate("branches"); code != 1 || !strings.Contains(out, "no gateway that takes commands") {
		t.Errorf("without a gateway: %d %s", code, out)
	}
}

// foldgate reload says what changed, what needs a restart, and why a file can't be used.
func TestOperatorReloads(t *testing.T) {
	t.Parallel()
	g := newGateway(t, fakes("fake")+"results: {main_threshold: 8000}\n")
	g.http()
	for _, tt := range []struct {
		config string
		code   int
		want   []string
	}{
		{fakes("fake", "more") + "results: {main_threshold: 700}\ntrace: {rotate_mb: 77}\n", 0, []string{"Changed: results.main_threshold, upstreams.more\n", "only after a restart: trace.rotate_mb"}},
		{fakes("fake", "more") + "results: {main_threshold: 700}\n", 0, []string{"Changed: nothing"}},
		{fakes("fake") + "scrub: {rules: foldgate.yaml}\n", 1, []string{"stays in force", "scrub.rules"}},
		{fakes("fake") + "colour: red\n", 2, []string{"stays in force", "colour", "--state-dir"}},
	} {
		g.configure(tt.config)
		out, code := g.operate("reload")
		for _, want := range tt.want {
			if !strings.Contains(out, want) || code != tt.code {
				t.Errorf("reload: %d, without %q:\n%s", code, want, out)
			}
		}
	}
	if out, code := g.operate("reload", "--state-dir", filepath.Join(g.dir, "state")); code != 1 || !strings.Contains(out, "colour") || !strings.Contains(out, "stays in force") {
		t.Errorf("reload of a file that can't be read: %d %s", code, out)
	}
}

// An operator or auditor needs no secrets of servers, and no files but the state.
func TestOperatorWithoutVariables(t *testing.T) {
	t.Setenv("FOLDGATE_TEST_TOKEN", strings.Repeat("t", 40))
	g := newGateway(t, "principals: {alice: {token: \"${FOLDGATE_TEST_TOKEN}\"}}\nenv_file: values.env\n"+fakes("fake")+"  api: {url: \"${FOLDGATE_TEST_URL}\"}\n")
	write(t, filepath.Join(g.dir, "values.env"), "FOLDGATE_TEST_URL=http://127.0.0.1:9/mcp\n")
	g.http()
	if err := errors.Join(os.Unsetenv("FOLDGATE_TEST_TOKEN"), os.Remove(filepath.Join(g.dir, "values.env"))); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"branches"}, {"trace"}, {"trace", "verify"}, {"stats"}, {"pins"}} {
		if out, code := g.operate(args...); code != 0 {
			t.Errorf("%s: %d %s", args, code, out)
		}
	}
	if out, code := g.operate("reload"); code != 1 || !strings.Contains(out, "values.env") || !strings.Contains(out, "stays in force") { // the gateway needs them
		t.Errorf("reload: %d %s", code, out)
	}
	if out, code := g.operate("check"); code != 2 || !strings.Contains(out, "values.env") {
		t.Errorf("check: %d %s", code, out)
	}
}

// A gateway on standard input and output takes no commands and reloads nothing: its agent could use
// both.
func TestNoOperatorOnStdio(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	g := newGateway(t, fakes("fake")+"results: {main_threshold: 8000}\n")
	c := g.stdio(mcpclient.Legacy)
	startHost(t, ctx, c)
	create(t, c, ctx, map[string]any{})
	for _, args := range [][]string{{"branches"}, {"reload"}, {"branches", "end", unknownBranch}} {
		if out, code := g.operate(args...); code != 1 || !strings.Contains(out, "A gateway on standard input and output takes none") {
			t.Errorf("%v: %d %s", args, code, out)
		}
	}
	if _, err := os.Stat(filepath.Join(g.dir, "state", "control")); err == nil {
		t.Error("there is a socket")
	}
}

// The operator sees what a limit has left, and resets it. A limit that a reload changes holds for the
// next call of a session that exists, and what was used stays.
func TestOperatorAndLimits(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	limits := func(calls int) string {
		return fakes("fake") + principals() + fmt.Sprintf("budgets:\n  limits:\n    - {name: some, per: principal, calls: %d, window: 1d}\n    - {name: many, per: all, tokens: 100k, window: 1mo}\n    - {name: own, per: session, calls: 1000}\n", calls)
	}
	g := newGateway(t, limits(2))
	at := g.http()
	alice := g.as(t, at, mcpclient.Legacy, "alice")
	// allowed makes calls until one is refused, at most ten, and returns the number before that.
	allowed := func() (n int) {
		t.Helper()
		for n < 10 && !strings.Contains(string(tool(t, alice, ctx, "fake__echo", `{}`).Result), `"isError":true`) {
			n++
		}
		return n
	}
	if allowed() != 2 {
		t.Fatal("the limit does not hold at 2 calls")
	}
	out, code := g.operate("budgets")
	if code != 0 || !regexp.MustCompile(`(?m)^some +alice +calls +2 +0 +2 +refuse +20`).MatchString(out) || !regexp.MustCompile(`(?m)^many +all +tokens +\d+ +9\d+ +100000 +refuse`).MatchString(out) {
		t.Errorf("budgets: %d\n%s", code, out)
	}
	g.configure(limits(3))
	if out, code := g.operate("reload"); code != 0 || !strings.Contains(out, "Changed: budgets.limits\n") {
		t.Errorf("reload: %d %s", code, out)
	}
	if allowed() != 1 {
		t.Error("the changed limit does not hold at 3 calls")
	}
	tool(t, g.as(t, at, mcpclient.Modern, "bob"), ctx, "fake__echo", `{}`) // of no session
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"some", "eve"}, 1, `limit some has no count of "eve": use one of "alice", "bob"`}, {[]string{"few"}, 2, `there is no limit "few": use one of some, many`}, {[]string{"some", "alice"}, 0, "1 count of limit some set to 0."},
		{[]string{"own", "alice"}, 1, `use one of "principal bob", "ses_`}, {[]string{"own", "bob"}, 0, "1 count of limit own set to 0."}, {[]string{"own", "principal", "bob"}, 1, `no count of "principal bob": use one of "ses_`}, {[]string{"many", "all"}, 0, "1 count of limit many set to 0."},
	} {
		if out, code := g.operate(append([]string{"budgets", "reset"}, tt.args...)...); code != tt.code || !strings.Contains(out, tt.want) {
			t.Errorf("budgets reset %v: %d %s", tt.args, code, out)
		}
	}
	if allowed() != 3 {
		t.Error("after the reset there are not 3 calls")
	}
	for _, tt := range []struct {
		args []string
		code int
		want string // the limits and subjects, else the message
	}{
		{nil, 0, "some alice|some bob|many all|own " + alice.Session()}, {[]string{"--limit", "some"}, 0, "some alice|some bob"}, {[]string{"--subject", "alice"}, 0, "some alice"}, {[]string{"--subject", "all"}, 0, "many all"}, {[]string{"--subject", "alice", "--limit", "many"}, 0, `No limit "many" has been used by "alice" in its window.`},
		{[]string{"--limit", "few"}, 2, `there is no limit "few": use one of some, many`}, {[]string{"--subject", ""}, 2, "--subject: is empty"}, {[]string{"--subject", alice.Session()}, 0, "own " + alice.Session()}, {[]string{"--limit", "few", "--json"}, 2, `no limit "few"`}, {[]string{"--limit", "many", "--subject", "eve", "--json"}, 0, "[]"},
	} {
		out, code := g.operate(append([]string{"budgets"}, tt.args...)...)
		var rows []string
		for _, line := range strings.Split(out, "\n")[1:] {
			if f := strings.Fields(line); len(f) > 1 {
				rows = append(rows, f[0]+" "+f[1])
			}
		}
		if got := cmp.Or(strings.Join(rows, "|"), strings.TrimSpace(out)); code != tt.code || got != tt.want && (code == 0 || !strings.Contains(got, tt.want)) {
			t.Errorf("budgets %v: %d %q, want %q", tt.args, code, got, tt.want)
		}
	}
	var did []string
	for _, r := range traceAs[struct {
		Kind, From string
		Payload    struct {
			Method, Path, Query, User, Limit, Subject string
			Used                                      int `json:"calls_used"`
		}
	}](g) {
		switch p := r.Payload; r.Kind {
		case "system/access":
			did = append(did, fmt.Sprint(r.From, " ", p.Method, " ", p.Path, " ", p.Query, " ", p.User == fmt.Sprint(os.Getuid())))
		case "budget/reset":
			did = append(did, fmt.Sprint(p.Limit, " of ", p.Subject, ": ", p.Used))
		}
	}
	if len(did) > 0 && strings.HasPrefix(did[0], "operator POST /v1/reload") {
		did = did[1:]
	} else {
		t.Error("the trace has no reload by the operator")
	}
	if want := []string{"operator DELETE /v1/budgets/some subject=eve true", "operator DELETE /v1/budgets/few  true", "operator DELETE /v1/budgets/some subject=alice true", "some of alice: 3",
		"operator DELETE /v1/budgets/own subject=alice true", "operator DELETE /v1/budgets/own subject=bob true", "own of principal bob: 1",
		"operator DELETE /v1/budgets/own subject=principal bob true", "operator DELETE /v1/budgets/many subject=all true", "many of : 0"}; !slices.Equal(did, want) {
		t.Errorf("the trace has %q, want %q", did, want)
	}
	var states []struct {
		Limit, Subject string
		CallsUsed      int `json:"calls_used"`
	}
	out, _ = g.operate("budgets", "--json")
	if err := json.Unmarshal([]byte(out), &states); err != nil || len(states) != 4 || states[0].CallsUsed != 3 {
		t.Errorf("budgets --json: %v %+v\n%s", err, states, out)
	}
}
