package upstream

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/version"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/wire"
)

// Errors of a request on a connection that goes on.
var (
	// errUnreadable means that the upstream answered this call with something
	// too large, too deeply nested or not JSON-RPC.
	errUnreadable = errors.New("unreadable answer from upstream")
	// errListenEnded means that the upstream ended a subscriptions/listen, or
	// that its stream broke.
	errListenEnded = errors.New("upstream ended the subscription")
)

const (
	// defaultMaxMessage bounds a message where Config.MaxMessage is 0.
	defaultMaxMessage = 64 << 20
)

// Open connects to the upstream that cfg names and negotiates a protocol
// revision; see Config.Initialize for who speaks. ctx bounds the opening
// only: the link lives until it is closed or dies.
func Open(ctx context.Context, cfg Config) (conn.Conn, error) {
	if cfg.MaxMessage <= 0 {
		cfg.MaxMessage = defaultMaxMessage
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = cfg.Log.With("upstream", cfg.Name)
	if cfg.Handler == nil {
		cfg.Handler = dropAll{}
	}
	var l conn.Conn
	var err error
	switch {
	case len(cfg.Command) > 0:
		l, err = negotiate(ctx, &cfg, func() (opening, error) { return startStdio(&cfg) })
	case cfg.URL != "":
		l, err = openHTTP(ctx, &cfg)
	default:
		err = errors.New("no command and no URL: set one of them")
	}
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", cfg.Name, err)
	}
	return l, nil
}

// dropAll is the Handler of a Config that names none.
type dropAll struct{}

// Unsolicited drops the message.
func (dropAll) Unsolicited(wire.Message) {}

// clientInfo is how foldgate introduces itself to an upstream.
func clientInfo() json.RawMessage {
	return rawjson.Marshal(struct {
		Name    string `json:"name"`
		Version string `json:"version"`
	}{"foldgate", version.String()})
}

// ownMeta holds the reserved members that a modern request must carry, for
// requests that foldgate makes itself.
type ownMeta struct{ members []metaMember }

type metaMember struct {
	key   string
	value json.RawMessage
}

func newOwnMeta(version string) *ownMeta {
	return &ownMeta{members: []metaMember{
		{wire.MetaProtocolVersion, rawjson.Quote(version)},
		{wire.MetaClientCapabilities, json.RawMessage(`{}`)},
		{wire.MetaClientInfo, clientInfo()},
	}}
}

// complete returns params with the members of o that its _meta lacks. What is
// there, a host's own values, stays. params is not changed.
func (o *ownMeta) complete(params json.RawMessage) json.RawMessage {
	meta, _ := rawjson.Get(params, "_meta")
	var missing []byte
	for _, m := range o.members {
		if _, ok := rawjson.Get(meta, m.key); ok {
			continue
		}
		missing = append(missing, ',')
		missing = append(rawjson.AppendQuote(missing, m.key), ':')
		missing = append(missing, m.value...)
	}
	if missing == nil {
		return params
	}
	// Splice in one go: three times Set would copy large arguments three times.
	if rawjson.KindOf(meta) == rawjson.Object {
		if body := rawjson.Trim(meta[1 : len(meta)-1]); len(body) == 0 {
			missing = missing[1:]
		}
		out := make([]byte, 0, len(meta)+len(missing))
		out = append(append(append(out, meta[:len(meta)-1]...), missing...), '}')
		return rawjson.Set(params, out, "_meta")
	}
	out := append(append([]byte{'{'}, missing[1:]...), '}')
	if len(params) == 0 {
		params = json.RawMessage(`{}`)
	}
	return rawjson.Set(params, out, "_meta")
}

// appendRequest appends a request (or with a nil id a notification) to dst as
// one line without its newline.
func appendRequest(dst []byte, id []byte, method string, params json.RawMessage, extra []byte) []byte {
	start := len(dst)
	dst = append(dst, `{"jsonrpc":"2.0"`...)
	if id != nil {
		dst = append(append(dst, `,"id":`...), id...)
	}
	dst = rawjson.AppendQuote(append(dst, `,"method":`...), method)
	if len(params) > 0 {
		dst = append(append(dst, `,"params":`...), params...)
	}
	dst = append(append(dst, extra...), '}')
	oneLine(dst[start:])
	return dst
}

// oneLine turns line ends into spaces, in place. JSON has them between tokens
// only, never inside, so this makes any message fit for a line-based transport.
func oneLine(b []byte) {
	for _, c := range []byte{'\n', '\r'} {
		for i := 0; ; i++ {
			n := bytes.IndexByte(b[i:], c)
			if n < 0 {
				break
			}
			i += n
			b[i] = ' '
		}
	}
}
