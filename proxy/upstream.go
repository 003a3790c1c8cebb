package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/files"
	remote "github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// upstream is one configured server: how to reach it, and what is known of it.
type upstream struct {
	key, prefix string
	cfg         *config.Upstream
	gw          *Gateway
	log         *slog.Logger

	mu    sync.Mutex
	seats map[string]*seat // by principal
	// said is what the upstream last said of itself; kept across restarts.
	said conn.Info
	// fault is why the last attempt to reach it failed; nil when it is up.
	fault error
}

// Defaults of an upstream's limits.
const (
	defaultConnect = 30 * time.Second
	// maxMessage is the largest message of an upstream or a host.
	maxMessage = 64 << 20
)

func newUpstream(g *Gateway, key string, cfg *config.Upstream) *upstream {
	return &upstream{key: key, prefix: cfg.NamePrefix(key), cfg: cfg, gw: g, log: g.log.With("upstream", key)}
}

// slot returns a supervised place for a link to u.
func (u *upstream) slot(ctx context.Context, dial func(context.Context) (conn.Conn, error), up func(conn.Conn, bool)) *slot {
	timeout := time.Duration(u.cfg.ConnectSeconds) * time.Second
	if timeout == 0 {
		timeout = defaultConnect
	}
	return &slot{name: u.key, timeout: timeout, ctx: ctx, up: up, dial: func(ctx context.Context) (conn.Conn, error) {
		l, err := dial(ctx)
		u.mu.Lock()
		u.fault = err
		if err == nil {
			u.said = l.Info()
		}
		u.mu.Unlock()
		if err != nil {
			u.log.Warn("upstream can't be reached", "err", err)
			return nil, err
		}
		u.gw.known.put(u)
		return l, nil
	}}
}

// dial opens one link. initialize holds a legacy host's own params, nil for
// foldgate's; handler takes what belongs to no call.
func (u *upstream) dial(ctx context.Context, initialize json.RawMessage, shared bool, handler conn.Handler) (conn.Conn, error) {
	if u.cfg.Builtin != "" {
		roots := make([]string, len(u.cfg.Roots))
		for i, r := range u.cfg.Roots {
			roots[i] = u.gw.cfg.Path(r)
		}
		// The state directory often lies below a root. It is hidden, since the trace
		// in it has the calls of every principal.
		c, err := files.Open(roots, u.gw.cfg.StatePath())
		if err != nil {
			return nil, fmt.Errorf("roots: %w", err)
		}
		return c, nil
	}
	env := childEnv()
	for _, k := range slices.Sorted(maps.Keys(u.cfg.Env)) {
		env = append(env, k+"="+u.cfg.Env[k])
	}
	header := http.Header{}
	for k, v := range u.cfg.Headers {
		header.Set(k, v)
	}
	return u.gw.openLink(ctx, remote.Config{
		Name: u.key, Command: u.cfg.Command, Env: env, Dir: u.gw.cfg.Path(u.cfg.Cwd), URL: u.cfg.URL, Headers: header,
		Initialize: initialize, Shared: shared, Handler: handler, MaxMessage: maxMessage, Log: u.gw.log, Clean: scrubLog{s: u.gw.scrubber}.text,
	})
}

// inherited are the variables of foldgate's own environment that a child gets:
// what programs need to run at all, and none that holds somebody's secret.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
	"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"NPM_CONFIG_REGISTRY", "npm_config_registry", "npm_config_cache", "UV_INDEX_URL", "PIP_INDEX_URL", "VIRTUAL_ENV", "NVM_DIR", "GOPROXY",
}

func childEnv() []string {
	var env []string
	for _, k := range inherited {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// about returns what u last said of itself; ok is false if it never did.
func (u *upstream) about() (conn.Info, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.said, u.said.Version != ""
}

// capability returns the raw capability object called name, nil if u has none.
func (u *upstream) capability(name string) []byte {
	said, _ := u.about()
	v, ok := rawjson.Get(said.Result, "capabilities", name)
	if !ok || rawjson.KindOf(v) == rawjson.Null {
		return nil
	}
	return v
}

// status is what /readyz and check say about an upstream.
func (u *upstream) status() (state string, fault error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.fault != nil:
		return "failed", u.fault
	case u.said.Version != "":
		return "ready", nil
	}
	return "idle", nil
}

// linkFor returns the link over which s reaches u: its own in the legacy era,
// its principal's in the modern era and for servers that live inside foldgate.
func (s *session) linkFor(ctx context.Context, u *upstream, modern bool) (conn.Conn, error) {
	if modern || u.cfg.Builtin != "" {
		return s.seat(u).shared.get(ctx)
	}
	s.mu.Lock()
	sl := s.slots[u.key]
	if sl == nil && !s.closed {
		initialize := s.initialize
		sl = u.slot(s.ctx, func(ctx context.Context) (conn.Conn, error) {
			return u.dial(ctx, initialize, false, ownHandler{s, u})
		}, func(l conn.Conn, again bool) { s.ownUp(u, l, again) })
		s.slots[u.key] = sl
	}
	s.mu.Unlock()
	if sl == nil {
		return nil, errSessionClosed
	}
	return sl.get(ctx)
}

// ownHandler takes messages of a session's own link that belong to no request.
type ownHandler struct {
	s *session
	u *upstream
}

// Unsolicited takes a message.
func (h ownHandler) Unsolicited(m wire.Message) { h.s.fromOwn(h.u, m) }

// slow is the slot's: whether s would likely wait in vain for u.
func (s *session) slow(u *upstream, modern bool) error {
	sl := s.seat(u).shared
	if !modern && u.cfg.Builtin == "" {
		s.mu.Lock()
		sl = s.slots[u.key]
		s.mu.Unlock()
	}
	if sl == nil {
		return nil
	}
	return sl.slow()
}

// own returns s's own live link to u, or nil.
func (s *session) own(u *upstream) conn.Conn {
	s.mu.Lock()
	sl := s.slots[u.key]
	s.mu.Unlock()
	if sl == nil {
		return nil
	}
	return sl.peek()
}
