package wire

// Era is one of the two forms of MCP, as far as they differ beyond the transport.
// The servers of hosts decide the era of a session; the rest of the gateway asks
// for capabilities. The zero value is not an era.
type Era struct {
	// OwnConnections means that a session has connections of its own to servers,
	// because servers keep state for a session.
	OwnConnections bool
	// TypedResults means that results need a resultType, and lists a time to
	// live.
	TypedResults bool
	// ServerRequests means that hosts take requests of servers, such as sampling.
	ServerRequests bool
	// UnknownResource is the JSON-RPC error code for an unknown resource.
	UnknownResource int

	removed map[string]bool
}

// Has reports whether the era has a method. Methods that foldgate does not know
// are in both.
func (e Era) Has(method string) bool { return !e.removed[method] }

// The two eras: Legacy are the revisions up to 2025-11-25, with sessions; in
// Modern, from 2026-07-28 on, each request stands alone.
var (
	Legacy = Era{OwnConnections: true, ServerRequests: true, UnknownResource: CodeResourceNotFound}
	Modern = Era{TypedResults: true, UnknownResource: CodeInvalidParams, removed: map[string]bool{
		"initialize": true, "ping": true, "logging/setLevel": true, "resources/subscribe": true, "resources/unsubscribe": true,
	}}
)
