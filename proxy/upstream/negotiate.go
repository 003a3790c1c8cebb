package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// probeTimeout is how long an upstream may stay silent on server/discover
// before it is taken for one that does not know the modern era.
const probeTimeout = 2 * time.Second

// opening is a link on which nothing is negotiated yet.
type opening interface {
	conn.Conn
	// settle says which revision is in force from here on. It is called before
	// the handshake with a provisional value and after it with the final one.
	settle(conn.Info)
	// start begins whatever only an initialized link does.
	start()
}

// negotiate opens a link with dial and agrees on a protocol revision. dial is
// called a second time where the first link may be confused by the probe of
// the modern era: a child process that went silent or died of it.
func negotiate(ctx context.Context, cfg *Config, dial func() (opening, error)) (conn.Conn, error) {
	var aside sync.WaitGroup
	defer aside.Wait()
	l, err := dial()
	if err != nil {
		return nil, err
	}
	if cfg.Initialize != nil {
		err = initialize(ctx, l, cfg.Initialize)
		if refusesLegacy(err) && discover(ctx, l) == nil {
			err = nil
		}
	} else if err = discover(ctx, l); err != nil && ctx.Err() == nil && !unreachable(err) {
		cfg.Log.Debug("no modern era, falling back to initialize", "because", err)
		if !refusesModern(err) {
			silent := l
			aside.Go(func() { _ = silent.Close() }) // it may take its time to end
			if l, err = dial(); err != nil {
				return nil, err
			}
		}
		err = initialize(ctx, l, ownInitialize())
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	l.start()
	return l, nil
}

// discover performs the modern handshake: one request that any server of that
// era answers. It fails with errors of call, *wire.AnswerError, or where the upstream
// speaks no modern revision that foldgate knows.
func discover(ctx context.Context, l opening) error {
	l.settle(conn.Info{Version: wire.VersionModern})
	probe, cancel := context.WithTimeoutCause(ctx, probeTimeout,
		fmt.Errorf("no answer to %s within %v", wire.MethodDiscover, probeTimeout))
	defer cancel()
	m, err := l.Call(probe, &conn.Request{Method: wire.MethodDiscover, Params: newOwnMeta(wire.VersionModern).complete(nil)})
	if err != nil {
		return fmt.Errorf("%s: %w", wire.MethodDiscover, err)
	}
	if m.Error != nil {
		return fmt.Errorf("%s: %w", wire.MethodDiscover, wire.NewAnswerError(m.Error))
	}
	if !listsVersion(m.Result, "supportedVersions", wire.VersionModern) {
		return fmt.Errorf("%s: upstream does not list %s", wire.MethodDiscover, wire.VersionModern)
	}
	l.settle(conn.Info{Version: wire.VersionModern, Result: m.Result})
	return nil
}

// listsVersion reports whether the array obj[key] holds version.
func listsVersion(obj json.RawMessage, key, version string) bool {
	list, _ := rawjson.Get(obj, key)
	found := false
	rawjson.Elements(list, func(v []byte) bool {
		found = rawjson.Unquote(v) == version
		return !found
	})
	return found
}

// initialize performs the legacy handshake with exactly these params.
func initialize(ctx context.Context, l opening, params json.RawMessage) error {
	l.settle(conn.Info{})
	m, err := l.Call(ctx, &conn.Request{Method: wire.MethodInitialize, Params: params})
	if err != nil {
		return fmt.Errorf("%s: %w", wire.MethodInitialize, err)
	}
	if m.Error != nil {
		return fmt.Errorf("%s: %w", wire.MethodInitialize, wire.NewAnswerError(m.Error))
	}
	version, ok := rawjson.GetString(m.Result, "protocolVersion")
	if !ok || version == "" {
		return fmt.Errorf("%s: upstream names no protocolVersion", wire.MethodInitialize)
	}
	l.settle(conn.Info{Version: version, Result: m.Result})
	if err := l.Notify(ctx, wire.Message{Method: wire.MethodInitialized}); err != nil {
		return fmt.Errorf("%s: %w", wire.MethodInitialized, err)
	}
	return nil
}

// ownInitialize returns the params with which foldgate speaks for itself. It
// offers all that a host may have, since hosts of the modern era say what they
// have with each request: what one lacks is refused when it is asked for.
func ownInitialize() json.RawMessage {
	out := append([]byte(`{"protocolVersion":`), rawjson.Quote(wire.VersionLegacy)...)
	out = append(out, `,"capabilities":{"elicitation":{"form":{},"url":{}},"sampling":{"context":{},"tools":{}},"roots":{}},"clientInfo":`...)
	return append(append(out, clientInfo()...), '}')
}

// refusesLegacy reports whether err may be how an upstream of the modern era
// only answers initialize: it knows no such revision, no such method, or misses
// what a modern request must carry.
func refusesLegacy(err error) bool {
	var e *wire.AnswerError
	if errors.As(err, &e) {
		switch e.Code {
		case wire.CodeUnsupportedVersion, wire.CodeMethodNotFound, wire.CodeInvalidParams, wire.CodeHeaderMismatch:
			return true
		}
	}
	return false
}

// refusesModern reports whether err is an orderly refusal of server/discover,
// after which initialize may follow on the same link.
func refusesModern(err error) bool {
	var e *wire.AnswerError
	if errors.As(err, &e) {
		switch e.Code {
		case wire.CodeMethodNotFound, wire.CodeInvalidParams, wire.CodeInvalidRequest, wire.CodeUnsupportedVersion:
			return true
		}
	}
	return false
}

// unreachable reports whether err says that there is no upstream to talk to,
// so that another attempt in another era is pointless.
func unreachable(err error) bool {
	var d *dialError
	return errors.As(err, &d)
}
