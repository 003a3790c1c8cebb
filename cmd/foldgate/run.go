package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/foldgate/foldgate/internal/pollable"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
)

func newRun(a *app) *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:   "run [CONFIG]",
		Short: "Run the gateway",
		Long: `Run the gateway. With an address, from --listen or from the configuration, it
serves streamable HTTP on /mcp (and /b/<branch_id>/mcp, /healthz, /readyz).
Without one it serves the host that started it on standard input and output.

OpenTelemetry spans and metrics go where the OTEL_* variables say; without them
there are none. See docs/telemetry.md.

It stops on SIGINT and SIGTERM, on standard input and output also on SIGHUP and
when the host closes either: open branches are returned to their parents,
upstream servers and their children end with it. With an address, it takes a
changed configuration file over, at once on SIGHUP; see docs/operations.md.`,
		Example: `  foldgate run --config foldgate.yaml
  foldgate run --listen 127.0.0.1:8787
  foldgate run foldgate.yaml
  claude mcp add foldgate -- foldgate run --config /path/to/foldgate.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.takeConfig(cmd, args); err != nil { // some hosts take --config for their own
				return err
			}
			file, err := config.Locate(a.config)
			if err != nil {
				return err
			}
			a.config = file // a reload takes no other file if this one is gone
			load := func() (config.Config, error) {
				cfg, err := config.Find(a.config)
				if cmd.Flags().Changed("listen") {
					cfg.Listen = listen
					if err == nil {
						err = checkListen(cfg)
					}
				}
				return cfg, err
			}
			cfg, err := load()
			if err != nil {
				return err
			}
			return a.serve(cmd.Context(), cfg, load, cmd.InOrStdin(), a.raw, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVarP(&listen, "listen", "l", "", "serve HTTP on this host:port")
	return cmd
}

// checkListen returns why a configuration can't listen on the address that the command line gave it.
func checkListen(cfg config.Config) error {
	for _, f := range cfg.Validate() {
		if f.Key == "listen" {
			return usagef("--listen: %s", f.Msg)
		}
	}
	return nil
}

// closeWait bounds the shutdown of branches, upstreams and state.
const closeWait = 40 * time.Second

// serve runs a gateway, with the configuration that load read, until ctx is done or the host on stdio closes its input.
func (a *app) serve(ctx context.Context, cfg config.Config, load func() (config.Config, error), in io.Reader, out, errOut io.Writer) (err error) {
	paceCollector()
	ctx, hangups, release := handleSignals(ctx, cfg.Listen == "")
	defer release()
	log, done, err := a.logger(errOut)
	if err != nil {
		return err
	}
	defer done()
	exportLog := slog.New(variableHider{log.Handler()})
	self := sync.OnceValue(func() *resource.Resource { return serviceResource(ctx, exportLog) })
	telemetry, flush := startTelemetry(ctx, self, errOut, exportLog)
	defer flush()
	g, err := proxy.New(cfg, log, append(telemetry, proxy.WithSource(load))...)
	if err != nil {
		return err
	}
	endExport := exportRecords(ctx, self, g.Journal.Dir(), errOut, exportLog)
	defer func() {
		stop, cancel := context.WithTimeout(context.Background(), closeWait)
		defer cancel()
		err = errors.Join(err, g.Close(stop))
		endExport()
	}()
	mode := modeOf(in)
	if cfg.Listen == "" {
		switch {
		case isTerminal(in):
			fmt.Fprintln(errOut, "foldgate waits for a host on standard input. Hosts start it themselves: see docs/hosts.md. To serve HTTP: foldgate run --listen 127.0.0.1:8787")
		case mode&fs.ModeCharDevice != 0: // /dev/null
			fmt.Fprintln(errOut, "Standard input is closed: no host has started foldgate. To serve HTTP: foldgate run --listen 127.0.0.1:8787")
		}
		if f, ok := in.(*os.File); ok {
			in = pollable.File(f)
		}
		return g.RunStdio(ctx, in, out)
	}
	go func() {
		for range hangups {
			_, _ = g.Reload() // logs its error
		}
	}()
	return g.RunHTTP(ctx, func(addr net.Addr) {
		at := origin(cfg.Secure(), addr.String())
		if mode&(fs.ModeNamedPipe|fs.ModeSocket) != 0 { // of a host, also Node.js, which takes standard output for messages
			out = errOut
			fmt.Fprintln(errOut, "foldgate has an address to listen on, and does not read standard input. A host that starts foldgate needs a configuration without listen, or the address: foldgate connect HOST")
		}
		greet(out, at+"/mcp", cmp.Or(strings.TrimSuffix(cfg.PublicURL, "/"), at)+"/mcp", len(cfg.Principals) > 0)
	})
}

// modeOf returns the mode of a stream of the process, 0 if it is none.
func modeOf(stream any) fs.FileMode {
	if f, ok := stream.(*os.File); ok {
		if info, err := f.Stat(); err == nil {
			return info.Mode()
		}
	}
	return 0
}

// origin returns the URL under which clients on this machine reach a server that listens on an address: a
// server on all addresses has none of its own.
func origin(secure bool, listen string) string {
	name, port, err := net.SplitHostPort(listen)
	if ip := net.ParseIP(name); err == nil && (name == "" || ip.IsUnspecified()) {
		listen = net.JoinHostPort("127.0.0.1", port)
	}
	if secure {
		return "https://" + listen
	}
	return "http://" + listen
}

// handleSignals keeps SIGHUP and SIGPIPE from killing the gateway. On stdio SIGHUP ends ctx, on HTTP
// it goes to hangups, unless it was ignored from the start, as by nohup. A write to a closed pipe
// fails as any other write. The signals are caught and not ignored, because a child process would
// inherit that. release closes hangups.
func handleSignals(ctx context.Context, stdio bool) (_ context.Context, hangups <-chan os.Signal, release func()) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	hup := make(chan os.Signal, 1)
	switch {
	case signal.Ignored(syscall.SIGHUP):
	case stdio:
		ctx, release := signal.NotifyContext(ctx, syscall.SIGHUP)
		return ctx, nil, release
	default:
		signal.Notify(hup, syscall.SIGHUP)
	}
	return ctx, hup, func() { signal.Stop(hup); close(hup) }
}

// greet prints where the gateway listens, and how to add it to a host, which reaches it at url. If
// tokens is set, hosts must send one. At an issuer, hosts log in by themselves.
func greet(w io.Writer, listens, url string, tokens bool) {
	hosts := `Add it to your agent host:
  Claude Code  claude mcp add --transport http foldgate %[1]s
  VS Code      code --add-mcp '{"name":"foldgate","type":"http","url":"%[1]s"}'
  Cursor       ~/.cursor/mcp.json      {"mcpServers":{"foldgate":{"url":"%[1]s"}}}
  Codex        codex mcp add foldgate --url %[1]s
  opencode     opencode.json           {"mcp":{"foldgate":{"type":"remote","url":"%[1]s"}}}
`
	if tokens {
		hosts = `Each host sends the token of a principal. With it in FOLDGATE_TOKEN:
  Claude Code  claude mcp add --transport http foldgate %[1]s --header 'Authorization: Bearer ${FOLDGATE_TOKEN}'
  VS Code      .vscode/mcp.json        {"inputs":[{"type":"promptString","id":"foldgate","description":"foldgate's token","password":true}],
                                        "servers":{"foldgate":{"type":"http","url":"%[1]s","headers":{"Authorization":"Bearer ${input:foldgate}"}}}}
  Cursor       ~/.cursor/mcp.json      {"mcpServers":{"foldgate":{"url":"%[1]s","headers":{"Authorization":"Bearer ${env:FOLDGATE_TOKEN}"}}}}
  Codex        codex mcp add foldgate --url %[1]s --bearer-token-env-var FOLDGATE_TOKEN
  opencode     opencode.json           {"mcp":{"foldgate":{"type":"remote","url":"%[1]s","oauth":false,"headers":{"Authorization":"Bearer {env:FOLDGATE_TOKEN}"}}}}
`
	}
	fmt.Fprintf(w, "foldgate listens on %s\n\n", listens)
	fmt.Fprintf(w, hosts+"\nPress Ctrl-C to stop.\n", url)
}

// spareHeap is the garbage that paceCollector lets gather, in bytes.
const spareHeap = 32 << 20

// paceCollector lets garbage gather up to spareHeap before a collection, or up to the live heap if
// that is larger, as Go does by default. A gateway has a few megabytes live: by default Go collects
// dozens of times a second under load. This saves about 8 % CPU a call at 4 KB and 16 clients, for
// 23 MB of memory. If the environment sets a pace or a limit, paceCollector does nothing.
func paceCollector() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		pace(0)
	}
}

// pace sets GOGC for the live heap, now and after each collection: its sentinel is garbage for
// the next one. percent is the value that is set, 0 if none is.
func pace(percent int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	want := gcPercent(live[0].Value.Uint64())
	if d := want - percent; d > percent/8 || -d > percent/8 { // a change stops the world for microseconds
		percent = want
		debug.SetGCPercent(want)
	}
	runtime.AddCleanup(&sentinel{}, pace, percent)
}

// sentinel has a pointer: small objects without one share a block and its lifetime.
type sentinel struct{ _ *sentinel }

// gcPercent returns GOGC for a heap with that many live bytes.
func gcPercent(live uint64) int {
	const least, most = 100, 400
	return int(min(max(spareHeap*100/max(live, 1), least), most))
}
