//go:build linux

package main

import (
	"fmt"

	"github.com/foldgate/foldgate/test/freeport"
	"github.com/foldgate/foldgate/test/testbin"
)

// target is something to be measured.
type target struct {
	name  string
	start func(r *rig) (*server, error)
	// fits returns "" if the target can run a scenario, else the reason. "-" leaves the target
	// out of the table.
	fits func(sc scenario) string
	// peer marks a program of others: if it fails it is skipped.
	peer bool
}

func forwards(sc scenario) string {
	if sc.host == "stdio" || sc.upstream == "http" {
		return "stands between HTTP hosts and stdio servers only"
	}
	return ""
}

// againstName is the target that -against adds.
const againstName = "foldgate, against"

// limitedName is foldgate with limits that match each call.
const limitedName = "foldgate, five limits"

// not leaves a target out of the scenarios for which f holds.
func not(f func(sc scenario) bool, t target) target {
	t.fits = func(sc scenario) string {
		if f(sc) {
			return "-"
		}
		return ""
	}
	return t
}

// only is a target for one pair of transports, such as "stdiostdio".
func only(want string, t target) target {
	return not(func(sc scenario) bool { return sc.host+sc.upstream != want }, t)
}

// targets returns the targets in the order in which they take turns. Ratios refer to direct and
// minproxy.
func targets(peers bool, against string) []target {
	all := []target{
		not(func(sc scenario) bool { return sc.host == "stdio" }, target{name: "direct", start: func(r *rig) (*server, error) {
			return r.start("direct", "", r.dir, nil, r.self, "upstream", "http")
		}}),
		only("stdiostdio", target{name: "direct", start: func(r *rig) (*server, error) { return r.stdio("direct", "", false, r.self, "upstream", "stdio") }}),
	}
	all = append(all, foldgates()...)
	all = append(all, minproxies()...)
	if against != "" {
		all = append(all, only("httpstdio", target{name: againstName, start: func(r *rig) (*server, error) {
			return r.runBinary(r.against, "foldgate-against", r.leanStdio(), rotated)
		}}))
	}
	if peers {
		all = append(all, forwarders()...)
	}
	return all
}

// foldgates are foldgate with everything on, with parts switched off in its configuration, and on
// other transports. Counting and the records themselves have no switch.
func foldgates() []target {
	less := func(name, more string, p parts) target {
		return only("httpstdio", target{name: name, start: func(r *rig) (*server, error) { return r.runChecked(name, more, p) }})
	}
	return []target{
		only("httpstdio", target{name: "foldgate", start: func(r *rig) (*server, error) { return r.runFoldgate("foldgate", r.leanStdio(), rotated) }}),
		only("httpstdio", target{name: limitedName, start: func(r *rig) (*server, error) {
			return r.runFoldgate("foldgate-limited", r.leanStdio(), rotated+fiveLimits)
		}}),
		less("foldgate, payload none", bare, parts{scrubs: true}),
		less("foldgate, payload none, scrubbing off", bare+unscrubbed, parts{}), // with payloads the trace would scan them
		only("httphttp", target{name: "foldgate", start: func(r *rig) (*server, error) {
			up, err := r.start("lean", "", r.dir, nil, r.self, "upstream", "http")
			if err != nil {
				return nil, err
			}
			return r.runFoldgate("foldgate-http", fmt.Sprintf("  lean: {url: %q, prefix: \"\"}\n", up.endpoint), rotated)
		}}),
		only("stdiostdio", target{name: "foldgate", start: func(r *rig) (*server, error) {
			file, err := r.configure("foldgate-stdio", r.leanStdio(), rotated)
			if err != nil {
				return nil, err
			}
			return r.stdio("foldgate", file, false, r.foldgate, "run", "--config", file)
		}}),
	}
}

// minproxies are the go-sdk's smallest forwarder in its forms. It serves the modern era only without sessions.
func minproxies() []target {
	minproxy := func(name string, modern bool, args ...string) target {
		return target{name: name, start: func(r *rig) (*server, error) {
			return r.start(name, "", r.dir, nil, append(append([]string{r.minproxy}, args...), r.self, "upstream", "stdio")...)
		}, fits: func(sc scenario) string {
			if sc.modern != modern {
				return "-"
			}
			return forwards(sc)
		}}
	}
	return []target{
		minproxy("minproxy", false), minproxy("minproxy, JSON", false, "-json"),
		minproxy("minproxy", true, "-stateless"), minproxy("minproxy, JSON", true, "-stateless", "-json"),
	}
}

// forwarders are those from npm.
func forwarders() []target {
	return []target{
		{name: "mcp-proxy", peer: true, fits: forwards, start: func(r *rig) (*server, error) {
			return r.peer("mcp-proxy", "mcp-proxy/dist/bin/mcp-proxy.mjs", func(port string) []string {
				return []string{"--host", "127.0.0.1", "--port", port, "--server", "stream", "--", r.self, "upstream", "stdio"}
			})
		}},
		{name: "supergateway", peer: true, start: func(r *rig) (*server, error) {
			return r.peer("supergateway", "supergateway/dist/index.js", func(port string) []string {
				return []string{"--stdio", r.self + " upstream stdio", "--outputTransport", "streamableHttp", "--stateful", "--port", port, "--logLevel", "none"}
			})
		}, fits: func(sc scenario) string {
			if sc.modern {
				return "speaks no " + modernVersion
			}
			return forwards(sc)
		}},
	}
}

// peer starts a forwarder from npm in front of the lean upstream.
func (r *rig) peer(name, script string, args func(port string) []string) (*server, error) {
	node, err := testbin.Node()
	if err != nil {
		return nil, err
	}
	file, err := testbin.Module(script)
	if err != nil {
		return nil, err
	}
	loopback, err := testbin.Loopback()
	if err != nil {
		return nil, err
	}
	port, err := freeport.Get()
	if err != nil {
		return nil, err
	}
	return r.start(name, "http://127.0.0.1:"+port+"/mcp", r.dir, []string{"NODE_ENV=production"},
		append([]string{node, "-r", loopback, file}, args(port)...)...)
}
