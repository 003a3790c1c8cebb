package wire

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// MetaPrefix begins the keys of _meta that are foldgate's own. They are never
// forwarded.
const MetaPrefix = "io.github.foldgate/"

// UnambiguousMeta returns params._meta. It refuses params that have _meta, the target or the
// arguments of the method twice or in two spellings: of two members servers take the first or
// the last, and servers in Go also take "Name" for "name". Such a server could do something
// that foldgate neither allowed nor recorded.
func UnambiguousMeta(method string, params json.RawMessage) (meta []byte, err error) {
	names := make([]string, 1, 3)
	names[0] = "_meta"
	if m := methods[method]; m.target != "" {
		names = append(names, m.target)
		if m.arguments {
			names = append(names, "arguments")
		}
	}
	var seen [3]bool
	rawjson.Members(params, func(f rawjson.Member) bool {
		for i, name := range names {
			if f.Is(name) && !seen[i] {
				seen[i] = true
				if i == 0 {
					meta = f.Value
				}
				return true
			}
		}
		own := f.Name()
		for _, name := range names {
			if strings.EqualFold(own, name) {
				err = &Error{Code: CodeInvalidParams, Message: fmt.Sprintf("params has %q twice or in two spellings (%q): servers differ in which they read", name, own)}
				return false
			}
		}
		return true
	})
	return meta, err
}

// DropMeta removes the members of params._meta for which drop holds, and _meta
// itself if nothing else was in it.
func DropMeta(params json.RawMessage, drop func(key string) bool) json.RawMessage {
	meta, ok := rawjson.Get(params, "_meta")
	if !ok {
		return params
	}
	kept := rawjson.DeleteFunc(meta, func(m rawjson.Member) bool { return drop(m.Name()) })
	switch {
	case len(kept) == len(meta):
		return params
	case string(kept) == "{}":
		return rawjson.Delete(params, "_meta")
	}
	return rawjson.Set(params, kept, "_meta")
}

// WithoutOwnMeta returns params without the keys of _meta that are foldgate's own.
func WithoutOwnMeta(params json.RawMessage) json.RawMessage {
	return DropMeta(params, func(key string) bool { return strings.HasPrefix(key, MetaPrefix) })
}

// WithoutReservedMeta returns params without the keys of _meta that modern
// requests carry for one hop. A legacy server does not know them.
func WithoutReservedMeta(params json.RawMessage) json.RawMessage {
	return DropMeta(params, func(key string) bool {
		return key == MetaProtocolVersion || key == MetaClientInfo || key == MetaClientCapabilities || key == MetaLogLevel
	})
}

// CancelledParams returns the params of a notifications/cancelled.
func CancelledParams(id json.RawMessage, reason string) json.RawMessage {
	out := append([]byte(`{"requestId":`), id...)
	return append(rawjson.AppendQuote(append(out, `,"reason":`...), reason), '}')
}
