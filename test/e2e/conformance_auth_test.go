//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// suiteClientAt is the variable with the address at which runScenario waits for the suite.
const suiteClientAt = "FOLDGATE_SUITE_CLIENT_AT"

// suiteClient is the program that the suite runs as the client under test: it hands what the suite
// tells it to the test, and ends as the test says.
func suiteClient(at string) int {
	body, _ := json.Marshal(suiteTask{URL: os.Args[len(os.Args)-1], Context: json.RawMessage(os.Getenv("MCP_CONFORMANCE_CONTEXT"))})
	resp, err := http.Post(at, "application/json", bytes.NewReader(body))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer resp.Body.Close()
	_, _ = io.Copy(os.Stderr, resp.Body)
	if resp.StatusCode != http.StatusOK {
		return 1
	}
	return 0
}

// suiteTask is one scenario's server, and what the scenario's client knows.
type suiteTask struct {
	URL     string
	Context json.RawMessage `json:",omitempty"`
	done    chan error
}

// authScenarios are the scenarios of authorization of the official suite, for clients.
var authScenarios = map[string][]string{
	"2025-03-26": {"2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"},
	"2025-11-25": {
		"metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd",
		"scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-step-up", "scope-retry-limit",
		"token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none", "pre-registration",
	},
	"2026-07-28": {
		"metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd",
		"scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-step-up", "scope-retry-limit",
		"token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none", "pre-registration",
		"resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration",
		"iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected", "iss-normalized", "metadata-issuer-mismatch",
	},
	"": {"client-credentials-basic", "client-credentials-jwt", "enterprise-managed-authorization"}, // of extensions
}

// authNotHere are the scenarios of extensions that foldgate does not have.
var authNotHere = map[string]string{
	"dpop":           "foldgate's tokens at upstreams are bearer tokens",
	"dpop-nonce":     "the same",
	"wif-jwt-bearer": "foldgate does not get tokens for a workload's own JSON Web Token",
}

// foldgate's side of upstreams passes the scenarios of authorization of the official suite: each is a
// server with its authorization server, at which a person logs in with foldgate login, and whose tool a
// host then calls.
func TestConformanceOfLogins(t *testing.T) {
	t.Parallel()
	for _, name := range clientScenarioNames(t, `auth/`) {
		run := authNotHere[name] != ""
		for _, list := range authScenarios {
			run = run || slices.Contains(list, name)
		}
		if !run {
			t.Errorf("the suite has the scenario %s, which is not run", name)
		}
	}
	for revision, scenarios := range authScenarios {
		for _, name := range scenarios {
			t.Run(revision+"/"+name, func(t *testing.T) {
				t.Parallel()
				runScenario(t, "auth/"+name, revision, func(task suiteTask) error { return logInAndCall(t, name, task) })
			})
		}
	}
}

// clientScenarioNames returns the names of the suite's scenarios for clients that begin with prefix, without it.
func clientScenarioNames(t *testing.T, prefix string) (names []string) {
	out, err := exec.Command(node(t), module(t, conformanceNextJS), "list").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, out, _ = bytes.Cut(out, []byte("Client scenarios"))
	out, _, _ = bytes.Cut(out, []byte("Authorization server scenarios"))
	for _, m := range regexp.MustCompile(`- `+prefix+`(\S+)`).FindAllSubmatch(out, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

// runScenario runs a scenario of the official suite for clients. play makes the calls that the scenario
// wants to see; all checks must pass.
func runScenario(t *testing.T, scenario, revision string, play func(suiteTask) error) {
	t.Helper()
	tasks := make(chan suiteTask, 1)
	at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		task := suiteTask{done: make(chan error, 1)}
		if err := json.NewDecoder(r.Body).Decode(&task); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		tasks <- task
		if err := <-task.done; err != nil {
			http.Error(w, err.Error(), http.StatusTeapot)
		}
	}))
	defer at.Close()
	out := t.TempDir()
	args := []string{module(t, conformanceNextJS), "client", "--scenario", scenario, "--command", os.Args[0], "--timeout", fmt.Sprint(testTimeout.Milliseconds()), "-o", out}
	if revision != "" {
		args = append(args, "--spec-version", revision)
	}
	cmd := exec.Command(node(t), args...)
	cmd.Env = append(os.Environ(), suiteClientAt+"="+at.URL)
	said := &buffer{}
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var err error
	select {
	case task := <-tasks:
		defer close(task.done) // also if play ends the test
		task.done <- play(task)
		err = <-exited
	case err = <-exited:
	}
	if err != nil {
		t.Errorf("the suite: %v\n%s", err, said.String())
	}
	passed := 0
	files, _ := filepath.Glob(filepath.Join(out, "*", "checks.json"))
	deeper, _ := filepath.Glob(filepath.Join(out, "*", "*", "checks.json")) // the name of the scenario has a slash
	for _, file := range slices.Concat(files, deeper) {
		text := read(t, file)
		var checks []struct{ ID, Status, Description, ErrorMessage string }
		unmarshal(t, text, &checks)
		for _, c := range checks {
			switch c.Status {
			case "SUCCESS":
				passed++
			case "FAILURE", "WARNING":
				t.Errorf("%s %s: %s %s", c.Status, c.ID, c.Description, c.ErrorMessage)
			}
		}
	}
	if passed == 0 {
		t.Error("no check has passed")
	}
	t.Logf("%d checks passed", passed)
}

var runLogin = regexp.MustCompile("`foldgate login suite(?: --scopes \"([^\"`]*)\")?`")

// logInAndCall does what a person and a host do: the person runs what foldgate's answers say, twice at
// most. It returns an error if foldgate can't log in, or the call fails to the end.
func logInAndCall(t *testing.T, scenario string, task suiteTask) error {
	var context struct {
		ID     string `json:"client_id"`
		Secret string `json:"client_secret"`
		Key    string `json:"private_key_pem"`
		IDP    string `json:"idp_client_id"`
		Token  string `json:"idp_id_token"`
		At     string `json:"idp_token_endpoint"`
	}
	if len(task.Context) > 0 {
		unmarshal(t, task.Context, &context)
	}
	auth := `authorization_code: {client_metadata_url: "https://conformance-test.local/client-metadata.json"}`
	switch {
	case context.Key != "":
		key := filepath.Join(t.TempDir(), "key.pem")
		write(t, key, context.Key)
		auth = fmt.Sprintf("client_credentials: {client_id: %q, private_key_file: %q}\n      issuer: %q", context.ID, key, issuerOf(t, task.URL))
	case context.IDP != "":
		auth = fmt.Sprintf("enterprise:\n        client: {client_id: %q, client_secret: %q}\n        provider: {issuer: %q, client_id: %q}\n      issuer: %q",
			context.ID, context.Secret, providerOf(t, context.Token, context.At), context.IDP, issuerOf(t, task.URL))
	case context.Secret != "":
		kind := "authorization_code"
		if strings.HasPrefix(scenario, "client-credentials") {
			kind = "client_credentials"
		}
		auth = fmt.Sprintf("%s: {client_id: %q, client_secret: %q}\n      issuer: %q", kind, context.ID, context.Secret, issuerOf(t, task.URL))
	}
	g := newGateway(t, fmt.Sprintf("upstreams:\n  suite:\n    url: %q\n    auth:\n      %s\n", task.URL, auth))
	ctx := testContext(t)
	c := g.connect(ctx, "stdio", mcpclient.Modern)
	for logins := 0; ; logins++ {
		m := call(t, c, ctx, "tools/call", `{"name":"suite__test-tool","arguments":{}}`)
		got := parseResult(t, m)
		if !got.IsError {
			if scenario == "authorization-server-migration" && logins < 2 {
				continue // the second call finds that the server has another issuer
			}
			g.stop()
			return nil
		}
		say := strings.ReplaceAll(said(t, m), `\"`, `"`)
		command := runLogin.FindStringSubmatch(say)
		if command == nil || logins == 2 {
			g.stop()
			return fmt.Errorf("the call fails: %s", say)
		}
		args := []string{"suite"}
		if command[1] != "" {
			args = append(args, "--scopes", command[1])
		}
		if out, err := g.login(args...); err != nil {
			g.stop()
			return fmt.Errorf("foldgate login: %w: %s", err, out)
		}
	}
}

// providerOf is the identity provider of a scenario, with what the suite's own lacks: a page to log in,
// which gives the ID token that the suite has made. Exchanges go to the suite's.
func providerOf(t *testing.T, id, exchange string) string {
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		switch {
		case r.URL.Path == "/.well-known/oauth-authorization-server":
			answerJSON(w, 200, map[string]any{"issuer": srv.URL, "authorization_endpoint": srv.URL + "/authorize", "token_endpoint": srv.URL + "/token", "code_challenge_methods_supported": []string{"S256"}})
		case r.URL.Path == "/authorize":
			http.Redirect(w, r, r.FormValue("redirect_uri")+"?code=code&state="+r.FormValue("state"), http.StatusFound)
		case r.FormValue("grant_type") == "authorization_code":
			answerJSON(w, 200, map[string]any{"access_token": "unused", "token_type": "Bearer", "id_token": id})
		default:
			resp, err := http.PostForm(exchange, r.PostForm)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer resp.Body.Close()
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(resp.StatusCode)
			_, _ = io.Copy(w, resp.Body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

// issuerOf is what the operator of a confidential client knows: who gave the secret.
func issuerOf(t *testing.T, upstream string) string {
	resp, err := http.Get(strings.TrimSuffix(upstream, "/mcp") + "/.well-known/oauth-protected-resource/mcp")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var m struct {
		Servers []string `json:"authorization_servers"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil || len(m.Servers) != 1 {
		t.Fatalf("metadata of the suite's server: %v, %v", m, err)
	}
	return m.Servers[0]
}
