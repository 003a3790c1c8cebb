package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/control"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/upstream"
)

// WithSource lets an HTTP gateway read its configuration again, by load: when the text of its file
// changes, and when [Gateway.Reload] is called.
func WithSource(load func() (config.Config, error)) Option {
	return func(g *Gateway, _ *engine.Options) { g.load = load }
}

// Reload reads the configuration again and puts it in force without ending a session. If it can't be
// used, Reload returns why, and the old configuration stays in force.
func (g *Gateway) Reload() (done control.Reloaded, err error) {
	if g.Start.Listen == "" || g.load == nil {
		return done, errors.New("a gateway on standard input and output does not reload, because its agent runs as the same user and could lift its own limits: restart it")
	}
	g.reloading.Lock()
	defer g.reloading.Unlock()
	if g.lifetime.Err() != nil {
		return done, errors.New("the gateway is shutting down")
	}
	next, err := g.load()
	g.tried = next.Sum
	if err == nil {
		done, err = g.apply(next)
	}
	if err != nil {
		err = errors.New(g.Boundary.Text(err.Error()))
		g.reloadFault.Store(&err)
		g.Log.Error("the configuration was not reloaded, and the one of before stays in force", "err", err)
		g.Recorder.Configuration(configured{Event: "refused", Version: version.String(), Config: next.Sum})
		return done, err
	}
	g.reloadFault.Store(nil)
	g.Log.Info("configuration reloaded", "changed", done.Changed, "sha256", done.Config)
	if len(done.Restart) > 0 {
		g.Log.Warn("these keys take effect only after a restart, and stay as they were", "keys", done.Restart)
	}
	g.tellOnlyRecords()
	g.Recorder.Configuration(configured{"reload", version.String(), done.Config, done.Changed, done.Restart})
	return done, nil
}

// configured is the payload of a record about a configuration.
type configured struct {
	Event   string   `json:"event"` // start, reload, or refused: a reload that failed
	Version string   `json:"version"`
	Config  string   `json:"config,omitempty"` // the SHA-256 of the file
	Changed []string `json:"changed,omitempty"`
	Restart []string `json:"restart,omitempty"`
}

// apply puts a configuration in force. The caller holds g.reloading.
func (g *Gateway) apply(next config.Config) (done control.Reloaded, err error) {
	before := g.settings.Load()
	next, done.Changed, done.Restart = next.Over(before.Config)
	done.Config = next.Sum
	if faults := next.Validate(); len(faults) > 0 {
		return done, config.NewError("configuration with the keys that need a restart as they were", faults...)
	}
	if next.Sum == config.Sum(nil) && before.Config.Sum != next.Sum {
		return done, errors.New("the file is empty: a reload takes that for a file that is being written")
	}
	if !next.Authenticates() && before.Config.Authenticates() {
		return done, errors.New("principals and auth: a reload can't remove all of them, since everybody who reaches the gateway could use it then: restart it for that")
	}
	scrubber, err := engine.NewScrubber(next)
	if err != nil {
		return done, err
	}
	var cert *tls.Certificate
	if next.Secure() {
		if cert, err = readCertificate(next); err != nil {
			return done, err
		}
	}
	now := newSettings(next, before.access.Auth, g.Log)
	if err := g.openLimits(now); err != nil {
		return done, err
	}
	if err := g.Branches.Configure(next.Folding, next.PrincipalCount()); err != nil {
		return done, err
	}
	g.certificate.Store(cert)
	g.Boundary.Relearn(scrubber) // knows the new tokens before they are used
	now.Servers = g.servers.Servers(next, before.Servers)
	// Before the new settings let principals in. The principal of warm may be one that no host can be.
	g.servers.Keep(func(principal string) bool { return next.Knows(principal) || principal == anyone(&next) })
	g.settings.Store(now)
	if l := before.Limits; l != nil && l != now.Limits {
		g.wg.Go(func() { l.Close(g.lifetime) })
	}
	g.router.Reloaded(&before.Settings)
	if g.http != nil {
		g.http.Recheck()
	}
	g.wg.Go(func() { g.endBranches(&next) })
	g.retire(before, now)
	return done, nil
}

// endBranches ends the branches of principals that a configuration does not know, and with them their
// batches.
func (g *Gateway) endBranches(next *config.Config) {
	for _, b := range g.Branches.Active() {
		if next.Knows(b.Principal) {
			continue
		}
		if _, err := g.Branches.End(g.lifetime, b.ID, folding.ReasonOperator, "its principal may no longer use foldgate"); err != nil && !errors.Is(err, folding.ErrNotFound) {
			g.Log.Error("branch of a principal that was removed", "branch_id", b.ID, "err", err)
		}
	}
}

// readCertificate reads the files of tls, which may be new.
func readCertificate(c config.Config) (*tls.Certificate, error) {
	cert, err := c.Certificate(c.TLS)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return &cert, nil
}

// retire ends the servers that are no longer in force and connects the new ones.
func (g *Gateway) retire(before, now *settings) {
	for _, srv := range before.Servers {
		if slices.Contains(now.Servers, srv) {
			continue
		}
		because := errors.New("a reload of the configuration removed it")
		if now.Server(srv.Key) != nil {
			because = errors.New("a reload of the configuration replaced it")
		}
		g.wg.Go(func() { srv.Retire(g.lifetime, because) })
	}
	g.warm(slices.DeleteFunc(slices.Clone(now.Servers), func(srv *upstream.Server) bool { return slices.Contains(before.Servers, srv) }))
}

// watchEvery is the pause between two looks at the configuration file. A change takes effect when two
// looks see the same text, so that a file which is being written is not read in half.
const watchEvery = 2 * time.Second

// watch reloads the configuration whenever the text of its file changes, until the gateway ends. It reads
// the file, since a mounted directory may be swapped as a whole, without an event for the file.
func (g *Gateway) watch() {
	look := func() string {
		data, err := os.ReadFile(g.Start.File)
		if err != nil {
			return err.Error()
		}
		return config.Sum(data)
	}
	seen, unread := g.Start.Sum, "" // at the last look; a fault that was reported
	g.every(watchEvery, func() {
		before := seen
		seen = look()
		g.reloading.Lock()
		known := seen == g.tried // also if SIGHUP or the operator was faster
		g.reloading.Unlock()
		if seen == before && !known && seen != unread {
			unread = seen
			_, _ = g.Reload() // logs its error
		}
	})
}
