package wire

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// MetaPrefix begins the keys of _meta that are foldgate's own. They are never forwarded.
const MetaPrefix = "io.github.foldgate/"

// Keys of _meta that a host may set for foldgate.
const (
	MetaBranchID    = MetaPrefix + "branch_id"
	MetaContext     = MetaPrefix + "context"
	MetaCorrelation = MetaPrefix + "correlationId"
	// MetaCorrelationLater is the later name of MetaCorrelation.
	MetaCorrelationLater = MetaPrefix + "correlation_id"
)

// SuspendedState begins the requestState of a call that foldgate has suspended.
const SuspendedState = "foldgate-suspended:"

// Meta is params._meta of a request. Each member is nil if it is absent.
type Meta struct {
	Raw json.RawMessage // the whole _meta

	// Members of MCP.
	ProtocolVersion, ClientCapabilities, ClientInfo json.RawMessage
	// Traceparent is the W3C trace context.
	Traceparent json.RawMessage
	// Thread and Turn are written by Codex: the thread of a call, and its metadata.
	Thread, Turn json.RawMessage
	// Members of foldgate; see MetaBranchID and the others.
	BranchID, Context, Correlation, CorrelationLater json.RawMessage
}

// ReadMeta reads params._meta in one pass. Of duplicate keys the last one counts.
func ReadMeta(params json.RawMessage) Meta {
	var m Meta
	raw, ok := rawjson.Get(params, "_meta")
	if !ok {
		return m
	}
	m.Raw = raw
	members := [...]struct {
		name  string
		value *json.RawMessage
	}{
		{MetaProtocolVersion, &m.ProtocolVersion}, {MetaClientCapabilities, &m.ClientCapabilities},
		{MetaClientInfo, &m.ClientInfo}, {"traceparent", &m.Traceparent},
		{"threadId", &m.Thread}, {"x-codex-turn-metadata", &m.Turn},
		{MetaBranchID, &m.BranchID}, {MetaContext, &m.Context},
		{MetaCorrelation, &m.Correlation}, {MetaCorrelationLater, &m.CorrelationLater},
	}
	for f := range rawjson.Members(raw) {
		for _, member := range members {
			if f.Is(member.name) {
				*member.value = f.Value
			}
		}
	}
	return m
}

// CheckUnambiguous refuses params that have _meta, its progressToken or a deciding member of the method
// twice or in two spellings. Of two members some servers read the first and some the last, and servers in
// Go read "Name" as "name". So a server could do something that foldgate neither allowed nor recorded, or
// report progress to another call.
func CheckUnambiguous(method string, params json.RawMessage) error {
	var all [3]string
	all[0] = "_meta"
	err := checkMembers("params", params, all[:1+copy(all[1:], methods[method].deciding)])
	if meta, ok := rawjson.Get(params, "_meta"); ok && err == nil {
		err = checkMembers("params._meta", meta, []string{"progressToken"})
	}
	if err != nil || method != "completion/complete" {
		return err
	}
	ref, _ := rawjson.Get(params, "ref")
	return checkMembers("params.ref", ref, []string{"type", "name", "uri"})
}

// checkMembers refuses an object that has one of at most three names twice or in two spellings.
func checkMembers(what string, object json.RawMessage, names []string) error {
	var seen [3]bool
members:
	for f := range rawjson.Members(object) {
		for i, name := range names {
			if f.Is(name) && !seen[i] {
				seen[i] = true
				continue members
			}
		}
		own := f.Name()
		for _, name := range names {
			if strings.EqualFold(own, name) {
				return &Error{Code: CodeInvalidParams, Message: fmt.Sprintf("%s has %q twice or in two spellings (%q): servers differ in which they read", what, name, own)}
			}
		}
	}
	return nil
}

// DropMeta removes the members of params._meta for which drop holds, and _meta itself if nothing
// else was in it.
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

// WithoutReservedMeta returns params without the keys of _meta that modern requests carry for one
// hop. A legacy server does not know them.
func WithoutReservedMeta(params json.RawMessage) json.RawMessage {
	return DropMeta(params, func(key string) bool {
		return key == MetaProtocolVersion || key == MetaClientInfo || key == MetaClientCapabilities || key == MetaLogLevel
	})
}

// ResourceUpdated returns the notification that a resource may have changed.
func ResourceUpdated(uri string) Message {
	return Message{Method: MethodResourceUpdated, Params: rawjson.Marshal(map[string]string{"uri": uri})}
}

// CancelledParams returns the params of a notifications/cancelled.
func CancelledParams(id json.RawMessage, reason string) json.RawMessage {
	out := append([]byte(`{"requestId":`), id...)
	return append(rawjson.AppendQuote(append(out, `,"reason":`...), reason), '}')
}

// TokenKey makes equal progress tokens equal strings, however a string is escaped. It is "" for none.
func TokenKey(lit []byte) string {
	if rawjson.KindOf(lit) == rawjson.String {
		return `"` + rawjson.Unquote(lit)
	}
	return string(lit)
}
