package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/upstream/auth"
	"github.com/foldgate/foldgate/proxy/wire"
)

// LoginError is why a request has no token that its server accepts. The server has done nothing.
type LoginError = auth.Error

// LoginEvent is a login of a person at a server, or the end of one.
type LoginEvent = auth.Event

// Config says how to reach one server and for whom.
type Config struct {
	// Name is the server's key in the configuration.
	Name string
	// Command starts a child process that speaks MCP on stdio. Env is its whole environment
	// (KEY=value), since foldgate's own may hold secrets. Dir is its working directory.
	Command []string
	Env     []string
	Dir     string
	// URL is a streamable HTTP endpoint. Headers are added to every request. Login gives the tokens;
	// it is nil without a login.
	URL     string
	Headers map[string]string
	Login   *auth.Login
	// Host describes the hosts that use the connection. Its Initialize is repeated word for word to a
	// legacy server. If that is nil, foldgate speaks for itself: the modern era if the server has it,
	// else initialize with params of its own. With Everyone, a message that names no call is dropped:
	// it could be about another principal's call, which was given up.
	Host conn.Host
	// Slow means that the last attempt ended without an answer. The server then gets all of the time for
	// one start: foldgate does not probe for the modern era.
	Slow bool
	// Capabilities are what foldgate declares where it speaks for itself.
	Capabilities wire.Capabilities
	// Handler takes messages of the server that belong to no request.
	Handler conn.Handler
	// MaxMessage is the largest message that is read, in bytes. A larger one fails the call that it
	// belongs to, not the connection. 0 means 64 MiB.
	MaxMessage int
	Log        *slog.Logger
	// Clean takes the secrets out of a text of the server before it is cut for the log or an error:
	// half a secret is not recognised. nil leaves it as it is.
	Clean func(string) string
}

// maxClean is the length of a text that is cleaned before it is cut.
const maxClean = 16 << 10

// clip shortens foreign bytes for the log or an error.
func (c *Config) clip(b []byte) string {
	const most = 200
	text := c.clean(b)
	if len(text) > most || len(b) > maxClean {
		return fmt.Sprintf("%q… (%d bytes)", text[:min(len(text), most)], len(b))
	}
	return fmt.Sprintf("%q", text)
}

// clean returns the beginning of b without secrets.
func (c *Config) clean(b []byte) string {
	text := string(c.Login.Redact(b[:min(len(b), maxClean)]))
	if c.Clean == nil {
		return text
	}
	return c.Clean(text)
}

// Errors of a request on a connection that goes on.
var (
	// errUnreadable means that the server answered this call with something too large, too deeply
	// nested or not JSON-RPC.
	errUnreadable = errors.New("unreadable answer from upstream")
	// errListenEnded means that the server ended a subscriptions/listen, or that its stream broke.
	errListenEnded = errors.New("upstream ended the subscription")
)

// Open connects to the server that cfg names and negotiates a protocol revision. ctx bounds only
// the opening.
func Open(ctx context.Context, cfg Config) (conn.Conn, error) {
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = 64 << 20
	}
	cfg.Log = cfg.Log.With("upstream", cfg.Name)
	switch {
	case len(cfg.Command) > 0:
		return negotiate(ctx, &cfg, func() (opening, error) { return startStdio(&cfg) })
	case cfg.URL != "":
		return openHTTP(ctx, &cfg)
	}
	return nil, errors.New("no command and no URL: set one of them")
}

// openHTTP opens a streamable HTTP connection, or an HTTP+SSE connection if the server knows only
// that.
func openHTTP(ctx context.Context, cfg *Config) (conn.Conn, error) {
	c, err := negotiate(ctx, cfg, func() (opening, error) { return newHTTPConn(cfg), nil })
	status, ok := errors.AsType[*statusError](err)
	if !ok || !slices.Contains([]int{400, 404, 405}, status.code) {
		return c, err
	}
	old, sseErr := openSSE(ctx, cfg)
	if sseErr != nil {
		return nil, fmt.Errorf("%w (nor does it speak HTTP+SSE: %w)", err, sseErr)
	}
	return old, nil
}

const (
	// probeTimeout is how long a server may stay silent on server/discover. Then it is taken for a
	// legacy server.
	probeTimeout = 2 * time.Second
	// bootTimeout is how long a server that was silent may take to answer initialize: on a busy machine
	// programs start slowly. Then it is taken for confused, and started again.
	bootTimeout = 8 * time.Second
)

var errSilent = fmt.Errorf("no answer to %s within %v", wire.MethodDiscover, probeTimeout)

// opening is a connection that has not negotiated yet.
type opening interface {
	conn.Conn
	// setInfo says which revision is in force. It is called before the handshake with a provisional
	// value, and after it with the final one.
	setInfo(conn.Info)
	// start begins what only an initialized connection does.
	start()
	explain(error) error
}

// negotiate opens a connection with dial and agrees on a protocol revision. It calls dial again if
// the server may be confused by the probe of the modern era: a child process that stays silent or
// ended.
func negotiate(ctx context.Context, cfg *Config, dial func() (opening, error)) (conn.Conn, error) {
	var closing sync.WaitGroup
	defer closing.Wait()
	c, err := dial()
	if err != nil {
		return nil, err
	}
	var unreachable *dialError
	var login *LoginError
	params := cfg.Host.Initialize
	if params == nil && cfg.Slow {
		params = ownInitialize(cfg.Capabilities)
	}
	if params != nil {
		err = initialize(ctx, cfg, c, params)
		if refused(err, refusalsOfLegacy) && discover(ctx, c) == nil {
			err = nil
		}
	} else if err = discover(ctx, c); err != nil && ctx.Err() == nil && !errors.As(err, &unreachable) && !errors.As(err, &login) {
		cfg.Log.Debug("no modern era, falling back to initialize", "because", err)
		because := err
		if errors.Is(err, errSilent) {
			because = initializeSlow(ctx, cfg, c)
		}
		if because != nil && ctx.Err() == nil && !refused(because, refusalsOfModern) {
			silent := c
			closing.Go(func() { _ = silent.Close() }) // it may take its time to end
			if c, err = dial(); err != nil {
				return nil, err
			}
		}
		if err = nil; because != nil {
			err = initialize(ctx, cfg, c, ownInitialize(cfg.Capabilities))
		}
	}
	if err != nil {
		_ = c.Close()
		return nil, c.explain(err)
	}
	c.start()
	return c, nil
}

// initializeSlow initializes a server that may be starting still, and leaves time to start it again.
func initializeSlow(ctx context.Context, cfg *Config, c opening) error {
	limit := bootTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	booting, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := initialize(booting, cfg, c, ownInitialize(cfg.Capabilities))
	if refused(err, refusalsOfLegacy) {
		return discover(ctx, c)
	}
	return err
}

// discover performs the modern handshake: one request that every server of that era answers. It
// fails if the server has no modern revision that foldgate knows.
func discover(ctx context.Context, c opening) error {
	c.setInfo(conn.Info{Version: wire.VersionModern})
	probe, cancel := context.WithTimeoutCause(ctx, probeTimeout, errSilent)
	defer cancel()
	result, err := conn.Ask(probe, c, wire.MethodDiscover, nil)
	if supports(err, wire.VersionModern) {
		result, err = conn.Ask(probe, c, wire.MethodDiscover, nil)
	}
	if err != nil {
		return err
	}
	var found struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	_ = json.Unmarshal(result, &found) // other values count as no versions
	if !slices.Contains(found.SupportedVersions, wire.VersionModern) {
		return fmt.Errorf("%s: upstream does not list %s", wire.MethodDiscover, wire.VersionModern)
	}
	if result, err = boundInfo(result); err != nil {
		return fmt.Errorf("%s: %w", wire.MethodDiscover, err)
	}
	c.setInfo(conn.Info{Version: wire.VersionModern, Result: result})
	return nil
}

// maxInfo bounds what a server says of itself, in bytes: it is kept as long as the connection. maxInstructions bounds
// the instructions in it, which models read.
const maxInfo, maxInstructions = 1 << 20, 64 << 10

// boundInfo returns the result of a handshake, with a notice in place of instructions that are too long.
func boundInfo(result json.RawMessage) (json.RawMessage, error) {
	if own, _ := rawjson.GetString(result, "instructions"); len(own) > maxInstructions {
		notice := fmt.Sprintf("foldgate leaves out the instructions of this server: they have %d bytes, and at most %d are passed on.", len(own), maxInstructions)
		result = rawjson.Set(result, rawjson.Quote(notice), "instructions")
	}
	if len(result) > maxInfo {
		return nil, fmt.Errorf("upstream describes itself in %d bytes, at most %d are kept", len(result), maxInfo)
	}
	return result, nil
}

// supports reports whether err refuses a revision and lists version as supported: the protocol wants
// another attempt then. The server that refused may be one of several behind an address.
func supports(err error, version string) bool {
	if !refused(err, []int{wire.CodeUnsupportedVersion}) {
		return false
	}
	e, _ := errors.AsType[*wire.AnswerError](err)
	listed, _ := rawjson.Get(e.Raw, "data", "supported")
	var versions []string
	return json.Unmarshal(listed, &versions) == nil && slices.Contains(versions, version)
}

// initialize performs the legacy handshake with exactly these params.
func initialize(ctx context.Context, cfg *Config, c opening, params json.RawMessage) error {
	c.setInfo(conn.Info{})
	result, err := conn.Ask(ctx, c, wire.MethodInitialize, params)
	if err != nil {
		return err
	}
	revision, ok := rawjson.GetString(result, "protocolVersion")
	if !ok || revision == "" {
		return fmt.Errorf("%s: upstream names no protocolVersion", wire.MethodInitialize)
	}
	if cfg.clean([]byte(revision)) != revision { // it goes to a file, reports and spans
		return fmt.Errorf("%s: upstream names a protocolVersion with a secret", wire.MethodInitialize)
	}
	if result, err = boundInfo(result); err != nil {
		return fmt.Errorf("%s: %w", wire.MethodInitialize, err)
	}
	c.setInfo(conn.Info{Version: revision, Result: result})
	if err := c.Send(ctx, wire.Message{Method: wire.MethodInitialized}); err != nil {
		return fmt.Errorf("%s: %w", wire.MethodInitialized, err)
	}
	return nil
}

var (
	// refusalsOfLegacy are the codes with which a modern server answers initialize: it knows no
	// such revision, no such method, or misses what a modern request must carry.
	refusalsOfLegacy = []int{wire.CodeUnsupportedVersion, wire.CodeMethodNotFound, wire.CodeInvalidParams, wire.CodeHeaderMismatch}
	// refusalsOfModern are the codes of an orderly refusal of server/discover, after which
	// initialize may follow on the same connection.
	refusalsOfModern = []int{wire.CodeMethodNotFound, wire.CodeInvalidParams, wire.CodeInvalidRequest, wire.CodeUnsupportedVersion}
)

// refused reports whether err is an answer of the server with one of the codes.
func refused(err error, codes []int) bool {
	e, ok := errors.AsType[*wire.AnswerError](err)
	return ok && slices.Contains(codes, wire.ErrorCode(e.Raw))
}

// ownInitialize returns the params with which foldgate speaks for itself, or for hosts that share the
// connection.
func ownInitialize(c wire.Capabilities) json.RawMessage {
	return fmt.Appendf(nil, `{"protocolVersion":%q,"capabilities":%s,"clientInfo":%s}`, wire.VersionLegacy, c.JSON(), clientInfo())
}

// clientInfo is how foldgate introduces itself to a server.
func clientInfo() json.RawMessage {
	return rawjson.Marshal(map[string]string{"name": "foldgate", "version": version.String()})
}

// completeMeta returns params with the reserved members of _meta that a modern request must carry and that
// its own lacks. A host's own values stay. params is not changed.
func completeMeta(params json.RawMessage, c wire.Capabilities) json.RawMessage {
	has := wire.ReadMeta(params)
	if has.ProtocolVersion == nil {
		params = rawjson.Set(params, rawjson.Quote(wire.VersionModern), "_meta", wire.MetaProtocolVersion)
	}
	if has.ClientCapabilities == nil {
		params = rawjson.Set(params, c.JSON(), "_meta", wire.MetaClientCapabilities)
	}
	if has.ClientInfo == nil {
		params = rawjson.Set(params, clientInfo(), "_meta", wire.MetaClientInfo)
	}
	return params
}
