package upstream

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/proxy/config"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/files"
	"github.com/foldgate/foldgate/proxy/upstream/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Set is what all servers share: the cache of what they said, and the connections that groups share.
type Set struct {
	// Dial opens a connection to a server that is not built in. It is [Open] unless it is replaced
	// before the first connection.
	Dial func(context.Context, Config) (conn.Conn, error)
	// Shared returns the owner of the connections that a group shares. It is called once for each, and
	// set before the first connection.
	Shared func(Group) Owner

	options  Options
	known    *infoCache
	logins   *auth.Logins
	starts   chan struct{} // has room for the processes that may start at once
	patience atomic.Int64  // the least time of an attempt to connect
	lifetime context.Context
	end      context.CancelFunc

	ending sync.WaitGroup // of the ends of shared connections

	mu     sync.Mutex
	shared map[Group]*Connections      // ended by Forget and Keep
	keeps  func(principal string) bool // of the last Keep; nil for everyone
}

// Options configure a [Set].
type Options struct {
	Config config.Config
	Log    *slog.Logger
	// CleanText takes the secrets out of what a server says, for the log or an error; CleanJSON does
	// so for the disk.
	CleanText func(string) string
	CleanJSON func(context.Context, []byte) ([]byte, error)
	// Bridge wraps a connection if hosts and server speak different eras. h takes the server's
	// messages that belong to no request; they go to the returned handler.
	Bridge func(server string, host conn.Host, c conn.Conn, h conn.Handler) (conn.Conn, conn.Handler)
	// TokenOf and LoginTold are those of auth.Logins.
	TokenOf   func(issuer, principal string) string
	LoginTold func(auth.Event)
}

// Owner is for whom connections are held: a host session, or a group that shares them.
type Owner interface {
	// Unsolicited takes a message of s on c that belongs to no request. It is called from a reader,
	// in order, and must not block.
	Unsolicited(s *Server, c conn.Conn, m wire.Message)
	// Undelivered hears of a message of s that goes to no host. It must not block.
	Undelivered(s *Server, r conn.Undelivered)
	// Opened prepares a connection to s before it is used. again means that it is not the first.
	Opened(s *Server, c conn.Conn, again bool)
	// Uses reports whether the connection to s is needed although no call is open: by a subscription,
	// a task or a request to the host.
	Uses(s *Server) bool
	// Retired tells that an idle connection to s was closed, over which s announced changes of its lists.
	Retired(s *Server)
}

// NewSet returns a set without servers, which Servers makes.
func NewSet(o Options) *Set {
	t := &Set{Dial: Open, options: o, logins: auth.New(o.Config, o.Log), shared: map[Group]*Connections{}, starts: make(chan struct{}, max(4, 2*runtime.GOMAXPROCS(0)))}
	t.logins.TokenOf, t.logins.Told = o.TokenOf, o.LoginTold
	t.lifetime, t.end = context.WithCancel(context.Background())
	t.known = openInfoCache(filepath.Join(o.Config.StatePath(), "upstreams.json"), o.Log)
	return t
}

// Servers returns the servers of a configuration, in its order. A server from before that is reached
// in the same way, and hides the same if it is built in, is in it again, with its connections. It starts none.
func (t *Set) Servers(c config.Config, before []*Server) (servers []*Server) {
	private := c.Private()
	for _, key := range c.UpstreamKeys() {
		u := c.Upstreams[key]
		if i := slices.IndexFunc(before, func(s *Server) bool {
			return s.Key == key && reflect.DeepEqual(s.Config.Reach(), u.Reach()) && (!s.Builtin() || slices.Equal(s.hidden, private))
		}); i >= 0 {
			before[i].places.limit(c.MaxConnections(u)) // principals may have come or gone
			servers = append(servers, before[i])
			continue
		}
		s := &Server{Key: key, Name: trace.UpstreamName(key), Config: u, Log: t.options.Log.With("upstream", key), set: t, idle: c.IdleTime(u), hidden: private, usedBy: map[*Connections]struct{}{}}
		s.places.limit(c.MaxConnections(u))
		s.again = slices.ContainsFunc(before, func(b *Server) bool { return b.Key == key })
		known := t.known.get(s)
		s.info = conn.Info{Version: known.Version, Result: known.Result}
		servers = append(servers, s)
	}
	return servers
}

// Keep closes the shared connections of principals that are no longer known, and denies them new ones until
// the next Keep. It does not wait for the ends.
func (t *Set) Keep(known func(principal string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lifetime.Err() != nil { // Close ends all
		return
	}
	t.keeps = known
	for g, cs := range t.shared {
		if g.Principal != "" && !known(g.Principal) {
			delete(t.shared, g)
			t.ending.Go(cs.Close)
		}
	}
}

// Groups returns the groups of principals that share connections, open or not.
func (t *Set) Groups() (groups []Group) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for g := range t.shared {
		if g.Principal != "" {
			groups = append(groups, g)
		}
	}
	return groups
}

// Forget ends the connections that a group shares, unless one to a server outside foldgate is open or about
// to be: then it returns false. It does not wait for their end.
func (t *Set) Forget(g Group) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	cs := t.shared[g]
	if cs == nil {
		return true
	}
	if t.lifetime.Err() != nil || cs.open() {
		return false
	}
	delete(t.shared, g)
	t.ending.Go(cs.Close)
	return true
}

// Close ends the connections that hosts share, and waits for their goroutines.
func (t *Set) Close() {
	t.end()
	t.mu.Lock()
	for _, cs := range t.shared {
		t.ending.Go(cs.Close)
	}
	t.mu.Unlock()
	t.ending.Wait()
	t.logins.Close()
}

// Server is one configured server: its configuration, and what its last connection reported. Its
// exported fields never change. Of Config only Reach holds: a reload may have changed the rest.
type Server struct {
	Key    string
	Name   string // in the trace
	Config *config.Upstream
	Log    *slog.Logger
	set    *Set
	places places
	idle   time.Duration // after which an unused connection is closed; 0 for never
	hidden []string      // paths that a built-in server hides
	again  bool          // it replaces a server with the same key
	users  atomic.Int64  // requests that may call it; see Enter

	mu     sync.Mutex
	gone   error                     // why Retire ended it
	usedBy map[*Connections]struct{} // which have a connection to it, or a view of one
	info   conn.Info                 // of the latest connection, or from the cache
	fault  error                     // of the last attempt to connect; nil if it succeeded
	warned map[string]time.Time      // when the log got the causes of the last faults; empty if an attempt has succeeded since
}

// Group are hosts that share connections and lists: those of a principal that can do the same for
// servers. A server may list a tool only for hosts that can answer its questions.
type Group struct {
	Principal    string // "" for everyone
	Capabilities wire.Capabilities
}

// Includes reports whether hosts of the group other share what hosts of g share: a group of everyone includes
// those of all principals.
func (g Group) Includes(other Group) bool {
	return g.Capabilities == other.Capabilities && (g.Principal == "" || g.Principal == other.Principal)
}

// Scope says for whom a connection is used.
type Scope struct {
	Group
	// Own are the connections of the host session. If it is nil, the group shares the connection.
	Own *Connections
}

// views reports whether the scope is a session that shares a connection to s with others.
func (sc Scope) views(s *Server) bool { return sc.Own != nil && s.SharesConnections() }

// SharesConnections reports whether legacy sessions share connections to s.
func (s *Server) SharesConnections() bool { return s.Config.Share == "principal" || s.Everyone() }

// Everyone reports whether all principals share one.
func (s *Server) Everyone() bool { return s.Config.Share == "everyone" }

// reconnector picks the connection of a scope, the only place that does: a session has its own,
// since a legacy server keeps state for a connection, unless the configuration says that it keeps
// none. Everything else is shared by a group, of a principal or of everyone. So is the built-in
// server, which keeps no state.
func (s *Server) reconnector(scope Scope) *reconnector {
	if scope.Own != nil && !s.Builtin() && !s.SharesConnections() {
		return scope.Own.reconnector(s)
	}
	group := scope.Group
	if s.Everyone() {
		group.Principal = ""
	}
	s.set.mu.Lock()
	shared := s.set.shared[group]
	if shared == nil {
		shared = NewConnections(s.set.lifetime, group, s.set.Shared(group))
		shared.shared = true
		if keeps := s.set.keeps; keeps == nil || group.Principal == "" || keeps(group.Principal) {
			s.set.shared[group] = shared
		} else {
			shared.closed = true
		}
	}
	s.set.mu.Unlock()
	return shared.reconnector(s)
}

// Info returns the last description that s gave of itself; ok is false if it never gave one.
func (s *Server) Info() (info conn.Info, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.info, s.info.Version != ""
}

// InfoFor is [Server.Info] for the hosts of a scope: if each principal has a login of its own, s may say to one what others
// must not read.
func (s *Server) InfoFor(scope Scope) (info conn.Info, ok bool) {
	if !s.Config.Auth.PerPrincipal() {
		return s.Info()
	}
	info = s.reconnector(scope).said()
	return info, info.Version != ""
}

// private reports whether a list of s depends on the principal who asks: by the login, or by what the principal has there.
func (s *Server) private(method string) bool {
	return !s.Everyone() && (s.Config.Auth.PerPrincipal() || method == "resources/list")
}

// StoredList returns a list that s gave under this configuration to hosts of g, perhaps to an earlier process, or else to
// those of any principal, as one page; nil if none is stored.
func (s *Server) StoredList(method string, g Group) json.RawMessage {
	lists := s.set.known.get(s).Lists
	if page, ok := lists[listKey(method, g)]; ok || s.private(method) {
		return page
	}
	return lists[listKey(method, Group{Capabilities: g.Capabilities})]
}

// Hosts returns the capabilities of the hosts that last asked s for a list, all if none did.
func (s *Server) Hosts() wire.Capabilities {
	if hosts := s.set.known.get(s).Hosts; hosts != nil {
		return wire.ReadCapabilities(hosts)
	}
	return wire.AllCapabilities
}

// StoreList keeps a list of s for [Server.StoredList], unless it has secrets or more than 1 MiB. Other principals do not get it
// if changed is set: s has changed the list since it was first read, perhaps because of a call.
func (s *Server) StoreList(ctx context.Context, method string, g Group, changed bool, page json.RawMessage) {
	if clean, err := s.set.options.CleanJSON(ctx, page); err == nil && bytes.Equal(clean, page) {
		s.set.known.putList(s, method, g, s.Everyone() || !changed && !s.private(method), page)
	}
}

// Enter counts a request that is going to call s, and Leave ends it.
func (s *Server) Enter() { s.users.Add(1) }

// Leave is the end of Enter.
func (s *Server) Leave() { s.users.Add(-1) }

const (
	retireAfter = time.Second // for requests that are still on their way to a server
	retireLimit = 30 * time.Second
)

// Retire ends s, which the configuration no longer has: its connections are closed when no request
// uses it, at the latest after 30 seconds or when ctx ends. Then calls that are still at it fail, and
// their error says because. Retire returns when its processes have ended.
func (s *Server) Retire(ctx context.Context, because error) {
	waiting, done := context.WithTimeout(ctx, retireLimit)
	defer done()
	for pause := retireAfter; waiting.Err() == nil; pause = retireAfter / 10 {
		select {
		case <-time.After(pause):
			if s.users.Load() == 0 {
				done()
			}
		case <-waiting.Done():
		}
	}
	s.mu.Lock()
	s.gone = because
	usedBy := maps.Clone(s.usedBy)
	s.mu.Unlock()
	var closing sync.WaitGroup
	for cs := range usedBy {
		closing.Go(func() { cs.closeTo(s) })
	}
	closing.Wait()
}

// Gone returns why Retire ended s, nil if it has not.
func (s *Server) Gone() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// Status returns the state that check shows: failed, ready or idle. fault is why the
// last attempt to connect failed.
func (s *Server) Status() (state string, fault error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.fault != nil:
		return "failed", s.fault
	case s.info.Version != "":
		return "ready", nil
	}
	return "idle", nil
}

var errPrivate = errors.New("a principal could not connect; foldgate's log says why")

// PublicStatus is Status for all principals: if each has a login of its own, the fault does not say what s said to one.
func (s *Server) PublicStatus() (state string, fault error) {
	if state, fault = s.Status(); fault != nil && s.Config.Auth.PerPrincipal() {
		fault = errPrivate
	}
	return state, fault
}

// Builtin reports whether s lives inside foldgate.
func (s *Server) Builtin() bool { return s.Config.Builtin != "" }

// Network is the transport of s in the terms of OpenTelemetry's conventions: "" inside foldgate,
// else tcp or pipe.
func (s *Server) Network() string {
	switch {
	case s.Builtin():
		return ""
	case s.Config.URL != "":
		return "tcp"
	}
	return "pipe"
}

// ErrNoAnswer means that the server did not answer within connect_seconds.
var ErrNoAnswer = errors.New("no answer")

// StartsAtOnce returns how many processes may start at once; the others wait for them.
func (t *Set) StartsAtOnce() int { return cap(t.starts) }

// Patience sets the least time that later attempts to connect have. connect_seconds can give them more.
func (t *Set) Patience(d time.Duration) { t.patience.Store(int64(d)) }

// defaultConnect bounds one attempt to connect if connect_seconds is not set.
const defaultConnect = 30 * time.Second

// startShare is how long a process that starts can keep another from starting.
const startShare = 10 * time.Second

// awaitStart waits until a process may start: too many at once would all time out. The
// caller calls done when the process answers.
func (t *Set) awaitStart(lifetime context.Context) (done func()) {
	select {
	case t.starts <- struct{}{}:
	case <-lifetime.Done():
		return func() {}
	}
	free := sync.OnceFunc(func() { <-t.starts })
	timer := time.AfterFunc(startShare, free)
	return func() { timer.Stop(); free() }
}

// dial opens one connection and notes what s says of itself, or the fault.
func (s *Server) dial(cs *Connections, handler conn.Handler, host conn.Host, login *auth.Login) (conn.Conn, error) {
	lifetime := cs.lifetime
	timeout, limit := cmp.Or(time.Duration(s.Config.ConnectSeconds)*time.Second, defaultConnect), "connect_seconds"
	if least := time.Duration(s.set.patience.Load()); least > timeout {
		timeout, limit = least, "more than connect_seconds"
	}
	if s.Network() == "pipe" {
		defer s.set.awaitStart(lifetime)()
	}
	ctx, cancel := context.WithTimeoutCause(lifetime, timeout, fmt.Errorf("%w within %s (%s)", ErrNoAnswer, timeout, limit))
	defer cancel()
	s.mu.Lock()
	slow := errors.Is(s.fault, ErrNoAnswer)
	s.mu.Unlock()
	c, err := s.open(ctx, Config{Host: host, Slow: slow, Capabilities: cs.group.Capabilities, Handler: handler, Login: login})
	if lifetime.Err() != nil && err != nil {
		return nil, err // the host is gone, which is no fault of s
	}
	s.mu.Lock()
	if !s.Config.Auth.PerPrincipal() || !MayLogIn(err) { // a login that one principal lacks is no fault of s
		s.fault = err
	}
	level := s.levelOf(err)
	if err == nil {
		s.info = c.Info()
	}
	s.mu.Unlock()
	if err != nil {
		s.Log.Log(ctx, level, "upstream can't be reached", "err", err)
		return nil, err
	}
	if clean, err := s.set.options.CleanJSON(s.set.lifetime, c.Info().Result); err == nil {
		s.set.known.putInfo(s, conn.Info{Version: c.Info().Version, Result: clean})
	}
	return c, nil
}

// repeatWarning is the time after which a server that still can't be reached is logged again, maxWarnings
// the number of different causes that are logged in that time. A cause may name a port or a time.
const (
	repeatWarning = time.Minute
	maxWarnings   = 4
)

// levelOf returns the level at which the result of an attempt to connect is logged. Each scope of hosts
// makes its own attempts; one line in the log is enough for a cause that they share. The caller holds mu.
func (s *Server) levelOf(err error) slog.Level {
	if err == nil {
		s.warned = nil
		return slog.LevelDebug
	}
	cause := err
	for next := err; next != nil; next = errors.Unwrap(next) {
		cause = next
	}
	text := cause.Error()
	maps.DeleteFunc(s.warned, func(_ string, at time.Time) bool { return time.Since(at) > repeatWarning })
	if _, ok := s.warned[text]; ok || len(s.warned) == maxWarnings {
		return slog.LevelDebug
	}
	if s.warned == nil {
		s.warned = map[string]time.Time{}
	}
	s.warned[text] = time.Now()
	return slog.LevelWarn
}

// MayLogIn reports whether err is the lack of a login that a person can make at any time.
func MayLogIn(err error) bool {
	login, ok := errors.AsType[*LoginError](err)
	return ok && login.Code != auth.CodeFailed
}

func (s *Server) open(ctx context.Context, c Config) (conn.Conn, error) {
	o := s.set.options
	if s.Builtin() {
		roots := make([]string, len(s.Config.Roots))
		for i, r := range s.Config.Roots {
			roots[i] = o.Config.Path(r)
		}
		// These often lie below a root. The trace in the state directory has the calls of every principal.
		built, err := files.New(roots, s.hidden...)
		if err != nil {
			return nil, fmt.Errorf("roots: %w", err)
		}
		return built, nil
	}
	var env []string
	for _, k := range inherited {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(s.Config.Env)) {
		env = append(env, k+"="+s.Config.Env[k])
	}
	c.Name, c.Command, c.Env, c.Dir, c.URL, c.Headers = s.Key, s.Config.Command, env, o.Config.Path(s.Config.Cwd), s.Config.URL, s.Config.Headers
	c.Log, c.Clean = o.Log, o.CleanText
	return s.set.Dial(ctx, c)
}

// inherited are the variables of foldgate's own environment that a child process gets: the ones
// that programs need to run, and no secrets.
var inherited = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR",
	"XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE", "SSL_CERT_DIR",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
	"NPM_CONFIG_REGISTRY", "npm_config_registry", "npm_config_cache", "UV_INDEX_URL", "PIP_INDEX_URL", "VIRTUAL_ENV", "NVM_DIR", "GOPROXY",
}

var errSessionEnded = errors.New("the host's session ended")

// Connections are the connections of one host session, or the ones that a group shares: at most one to
// each server.
type Connections struct {
	owner    Owner
	group    Group
	shared   bool
	lifetime context.Context

	mu         sync.Mutex
	initialize json.RawMessage
	servers    map[*Server]*reconnector
	views      map[*Server]*view // of connections that others share, too
	closed     bool
}

// NewConnections returns an empty set of connections for hosts of a group. They are opened as long
// as lifetime lasts, and ended by Close. If lifetime has ended, the set is closed.
func NewConnections(lifetime context.Context, group Group, owner Owner) *Connections {
	return &Connections{owner: owner, group: group, lifetime: lifetime, servers: map[*Server]*reconnector{}, views: map[*Server]*view{}, closed: lifetime.Err() != nil}
}

// Initialize sets the params of the host's initialize, which connections opened later repeat word
// for word. Without them foldgate speaks for itself.
func (cs *Connections) Initialize(params json.RawMessage) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.initialize = params
}

// reconnector returns the connection to a server. It is a closed one if cs is closed.
func (cs *Connections) reconnector(server *Server) *reconnector {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	r := cs.servers[server]
	if r == nil {
		r = &reconnector{server: server, of: cs, closed: !cs.enter(server)}
		if !r.closed {
			cs.servers[server] = r
		}
	}
	return r
}

// enter notes that cs uses a server. It returns false if cs or the server has ended. The caller holds mu.
func (cs *Connections) enter(server *Server) bool {
	server.mu.Lock()
	defer server.mu.Unlock()
	if cs.closed || server.gone != nil {
		return false
	}
	server.usedBy[cs] = struct{}{}
	return true
}

// open reports whether a connection to a server outside foldgate is open, or about to be.
func (cs *Connections) open() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for server, r := range cs.servers {
		r.mu.Lock()
		busy := r.open() || r.trying != nil
		r.mu.Unlock()
		if busy && !server.Builtin() {
			return true
		}
	}
	return false
}

// closeTo ends the connection to a server that the configuration no longer has, and the view of one.
func (cs *Connections) closeTo(server *Server) {
	cs.mu.Lock()
	r, v := cs.servers[server], cs.views[server]
	delete(cs.servers, server)
	delete(cs.views, server)
	cs.mu.Unlock()
	server.mu.Lock()
	delete(server.usedBy, cs)
	server.mu.Unlock()
	if v != nil {
		_ = v.Close()
	}
	if r != nil {
		r.close()
	}
}

// Close ends the connections and waits for their goroutines.
func (cs *Connections) Close() {
	cs.mu.Lock()
	cs.closed = true
	used := slices.AppendSeq(slices.Collect(maps.Keys(cs.servers)), maps.Keys(cs.views))
	cs.mu.Unlock()
	var closing sync.WaitGroup
	for _, server := range used {
		closing.Go(func() { cs.closeTo(server) })
	}
	closing.Wait()
}
