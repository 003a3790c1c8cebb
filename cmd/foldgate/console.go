package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/foldgate/foldgate/internal/publicip"
	"github.com/foldgate/foldgate/proxy"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/console"
	"github.com/foldgate/foldgate/proxy/control"
)

// consoleListen is where the console listens without console.listen.
const consoleListen = "127.0.0.1:8788"

func newConsole(a *app) *cobra.Command {
	t := &traceFlags{app: a}
	var listen string
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Show the trace, branches and limits as web pages",
		Long: `Show the trace of the configuration's state directory, or of any directory such as
a copy, as web pages: what agents did, what it cost, what was refused, and whether
the trace is whole. A gateway may be running meanwhile.

Without console.listen in the configuration the pages are for a browser on this
machine: the link that is printed works once. With it they are for those who log in
and have the role auth.auditor; those who also have auth.operator may end branches,
reset limits and approve definitions. The first start on a long trace reads the
whole of it. See docs/console.md.`,
		Example: "  foldgate console\n  foldgate console --dir /srv/copy/trace --listen 127.0.0.1:0",
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, done, err := a.logger(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			defer done()
			o, cfg, err := t.consoleOptions(log)
			if err != nil {
				return err
			}
			address, secure := listen, (*tls.Config)(nil)
			if cfg.Console.Listen != "" && !cmd.Flags().Changed("listen") {
				address, o.Hosts, o.Login = cfg.Console.Listen, cfg.Console.AllowedHosts, tokenLogin(cfg, log, o.Operates)
				if cfg.Console.TLS.Cert != "" {
					certificate, err := cfg.Certificate(cfg.Console.TLS)
					if err != nil {
						return usageError{err}
					}
					secure = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
				}
			} else if host, _, err := net.SplitHostPort(address); err != nil || !publicip.Loopback(host) {
				return usagef("--listen: %q is not a loopback address with a port, such as %s; for other addresses set console.listen in the configuration", address, consoleListen)
			}
			c, err := console.New(cmd.Context(), o)
			if err != nil {
				return err
			}
			err = serveConsole(cmd.Context(), c, address, secure, log, func(addr net.Addr) {
				path, once := c.Link(), "The link works once. "
				if o.Login != nil {
					path, once = "/login", ""
				}
				fmt.Fprintf(cmd.OutOrStdout(), "foldgate console: open %s%s\n%sPress Ctrl-C to stop.\n", origin(secure != nil, addr.String()), path, once)
			})
			return errors.Join(err, c.Close())
		},
	}
	t.placeFlags(cmd)
	cmd.Flags().StringVarP(&listen, "listen", "l", consoleListen, "serve on this loopback address and port, with a one-time link; port 0 is any")
	return cmd
}

// consoleOptions returns the options of a console on the journals that the flags select, and the configuration, which
// is the default one if the flags name directories.
func (t *traceFlags) consoleOptions(log *slog.Logger) (o console.Options, cfg config.Config, err error) {
	if o.Dirs, err = t.journals(); err != nil {
		return o, cfg, err
	}
	cfg = config.Default()
	if len(t.dirs) == 0 {
		if cfg, err = config.Find(t.app.config); err != nil {
			return o, cfg, fmt.Errorf(readAnyway, err)
		}
		o.State = cfg.StatePath()
	} else if dir, err := filepath.Abs(o.Dirs[0]); err == nil && len(o.Dirs) == 1 && filepath.Base(dir) == "trace" {
		o.State = filepath.Dir(dir)
	}
	counter, err := cfg.Budget.Counter()
	if err != nil {
		return o, cfg, err
	}
	o.Log, o.User, o.Shown, o.Count = log, userName(), cfg.ShownName, counter.Count
	if len(cfg.Budgets.Limits) > 0 {
		o.Budgets = func(ctx context.Context) ([]control.Budget, error) { return proxy.StoredBudgets(ctx, cfg, "", log) }
	}
	info, err := os.Stat(o.State)
	o.Operates = err == nil && ownedByMe(info)
	if o.Operates && len(t.dirs) == 0 { // else it is a copy, or would get files of another user
		o.RecordRead = func(by, part, name string) error { return proxy.RecordRead(cfg, by, part, name) }
	}
	return o, cfg, nil
}

// tokenLogin returns the login of the console, which finds the account of a token. operates says whether this process
// can change anything.
func tokenLogin(cfg config.Config, log *slog.Logger, operates bool) func(context.Context, string) (console.Account, error) {
	who := proxy.NewAuthenticator(cfg, log, nil)
	return func(ctx context.Context, token string) (console.Account, error) {
		caller, failure := who.Authenticate(ctx, http.Header{"Authorization": {"Bearer " + strings.TrimSpace(token)}}, "/mcp")
		if failure != nil {
			said := failure.Message
			if failure.Rule == "principals" { // what it says is for hosts
				said = "it is neither that of a principal nor an access token of an issuer; ask the operator for another"
			}
			return console.Account{}, errors.New("the token was refused: " + said)
		}
		id := cfg.Complete(caller.Identity)
		if !slices.Contains(id.Roles, cfg.Auth.Auditor) {
			return console.Account{}, fmt.Errorf("%s does not have the role %s", id.Principal, cfg.Auth.Auditor)
		}
		operator := cfg.Auth.Operator != "" && slices.Contains(id.Roles, cfg.Auth.Operator)
		return console.Account{Principal: id.Principal, Operator: operator && operates, Expires: caller.Expires}, nil
	}
}

// serveConsole serves c until ctx is done.
func serveConsole(ctx context.Context, c *console.Console, listen string, secure *tls.Config, log *slog.Logger, ready func(net.Addr)) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listening on %s: another program has this port: choose another with --listen", listen)
	}
	if err != nil {
		return fmt.Errorf("listening on %s: %w; choose an address of this machine, and a port that you may use", listen, err)
	}
	if secure != nil {
		ln = tls.NewListener(ln, secure)
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	running.Go(func() { c.Watch(ctx) })
	srv := &http.Server{
		Handler: c, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	running.Go(func() {
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if srv.Shutdown(limit) != nil {
			_ = srv.Close()
		}
	})
	ready(ln.Addr())
	if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
