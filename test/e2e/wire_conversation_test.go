//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/foldgate/foldgate/test/mcpclient"
)

// A conversation is a txtar file in testdata/wire whose sections are what the
// two sides say, one message a line, with foldgate between them:
//
//	-- host sends --        to foldgate
//	-- upstream gets --     from foldgate
//	-- upstream sends --    to foldgate; "unasked" on the stream of no request
//	-- host gets --         from foldgate
//
// <<name>> stands for an id or token that foldgate makes: where something is
// got it takes the value, later it stands for it. <<META>> stands for what a
// modern request must carry in _meta. Messages are compared token by token.
type conversation struct {
	name  string
	steps []txtar.File
	text  string
}

const modernMeta = `"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{},"sampling":{},"roots":{}},"io.modelcontextprotocol/clientInfo":{"name":"raw","version":"1"}`

func conversations(t *testing.T, dir string) (all []conversation, auto map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "wire", dir, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations in %s: %v", dir, err)
	}
	auto = map[string]string{"notifications/initialized": ""}
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		if name == "server" { // what the upstream is
			for _, f := range a.Files {
				auto[f.Name] = compact(t, f.Data)
			}
			continue
		}
		all = append(all, conversation{name: name, steps: a.Files, text: string(txtar.Format(a))})
	}
	return all, auto
}

// hold plays both sides of the conversation.
func (c conversation) hold(t *testing.T, h *rawHost, p *player) {
	vars := map[string]string{"META": modernMeta}
	for _, f := range c.steps {
		for _, line := range strings.Split(strings.TrimSpace(string(f.Data)), "\n") {
			switch f.Name {
			case "host sends":
				h.write(fill(line, vars))
			case "upstream sends", "upstream sends unasked":
				p.say(fill(line, vars), strings.HasSuffix(f.Name, "unasked"))
			case "upstream gets":
				expect(t, f.Name, p.got, line, vars)
			case "host gets":
				expect(t, f.Name, h.got, line, vars)
			default:
				t.Fatalf("%s: unknown section %q", c.name, f.Name)
			}
		}
	}
}

var variable = regexp.MustCompile(`<<(\w+)>>`)

func fill(line string, vars map[string]string) string {
	return variable.ReplaceAllStringFunc(line, func(v string) string { return vars[v[2:len(v)-2]] })
}

// expect takes the next message and compares it with the expected one.
func expect(t *testing.T, who string, from <-chan string, want string, vars map[string]string) {
	t.Helper()
	var got string
	select {
	case got = <-from:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s nothing within 20 s, want\n%s", who, want)
	}
	var pattern strings.Builder
	var bound []string
	rest := compact(t, fill(variable.ReplaceAllStringFunc(want, func(v string) string {
		if _, known := vars[v[2:len(v)-2]]; known {
			return v
		}
		return `"«` + v[2:len(v)-2] + `»"`
	}), vars))
	for {
		before, after, ok := strings.Cut(rest, `"«`)
		pattern.WriteString(regexp.QuoteMeta(before))
		if !ok {
			break
		}
		name, tail, _ := strings.Cut(after, `»"`)
		bound = append(bound, name)
		pattern.WriteString(`("[^"]*"|\d+)`)
		rest = tail
	}
	m := regexp.MustCompile(`^` + pattern.String() + `$`).FindStringSubmatch(compact(t, got))
	if m == nil {
		t.Fatalf("%s\n%s\nwant\n%s", who, got, want)
	}
	for i, name := range bound {
		vars[name] = m[i+1]
	}
}

// TestConversations holds every conversation between hosts and upstreams on
// every pair of transports, as one session of a gateway with one upstream.
func TestConversations(t *testing.T) {
	t.Parallel()
	for _, era := range []mcpclient.Era{mcpclient.Legacy, mcpclient.Modern} {
		dir := map[mcpclient.Era]string{mcpclient.Legacy: "legacy", mcpclient.Modern: "modern"}[era]
		all, auto := conversations(t, dir)
		for _, host := range []string{"stdio", "http"} {
			for _, upstream := range []string{"stdio", "http", "sse"} {
				if upstream == "sse" && era == mcpclient.Modern {
					continue
				}
				t.Run(fmt.Sprintf("%s host on %s, upstream on %s", dir, host, upstream), func(t *testing.T) {
					p := newPlayer(t, upstream, era, auto)
					h := playedSession(t, p, host, era)
					for _, c := range all {
						for method := range auto {
							p.play(method, strings.Contains(c.text, `"`+method+`"`))
						}
						if !t.Run(c.name, func(t *testing.T) { c.hold(t, h, p) }) {
							return // what follows would be out of step
						}
					}
				})
			}
		}
	}
}

// play says whether the test plays a method itself.
func (p *player) play(method string, own bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.own[method] = own
}

// playedSession starts a gateway in front of p and initializes a session.
func playedSession(t *testing.T, p *player, transport string, era mcpclient.Era) *rawHost {
	t.Helper()
	g := newGateway(t, "upstreams:\n  up: {prefix: \"\", "+p.config+"}\n")
	var h *rawHost
	if transport == "stdio" {
		h = rawStdio(t, g.command("run"), era)
	} else {
		h = rawHTTP(t, g.http(), era)
	}
	if era == mcpclient.Legacy {
		h.write(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{},"sampling":{},"roots":{}},"clientInfo":{"name":"raw","version":"1"}}}`)
		select {
		case <-h.got:
		case <-time.After(20 * time.Second):
			t.Fatal("no answer to initialize within 20 s")
		}
		h.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	}
	return h
}
