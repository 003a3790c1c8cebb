package wire

type method struct {
	deciding []string // members of params beside _meta that decide what a server does
	header   bool     // the header Mcp-Name repeats the first of them
	required bool     // a modern request must have the header; one that it may lack routes to the owner of a task
	legacy   bool     // the modern era does not have the method
}

// methods are the methods with members that servers decide by, and the legacy ones.
var methods = map[string]method{
	"initialize":            {legacy: true},
	"ping":                  {legacy: true},
	"logging/setLevel":      {legacy: true},
	"tools/call":            {deciding: []string{"name", "arguments"}, header: true, required: true},
	"prompts/get":           {deciding: []string{"name", "arguments"}, header: true, required: true},
	"completion/complete":   {deciding: []string{"ref"}},
	"resources/read":        {deciding: []string{"uri"}, header: true, required: true},
	"resources/subscribe":   {deciding: []string{"uri"}, legacy: true},
	"resources/unsubscribe": {deciding: []string{"uri"}, legacy: true},
	"tasks/get":             {deciding: []string{"taskId"}, header: true},
	"tasks/update":          {deciding: []string{"taskId"}, header: true},
	"tasks/cancel":          {deciding: []string{"taskId"}, header: true},
	"tasks/result":          {deciding: []string{"taskId"}},
}

// NameMember returns the member of params that the header Mcp-Name repeats, "" if the method has
// none. required means that a modern request must have the header.
func NameMember(name string) (member string, required bool) {
	m := methods[name]
	if !m.header {
		return "", false
	}
	return m.deciding[0], m.required
}

// Era is one of the two forms of MCP, as far as they differ beyond the transport. The servers of
// hosts decide the era of a session; the rest of the gateway asks for capabilities. The zero value
// is not an era.
type Era struct {
	// OwnConnections means that a session has connections of its own to servers, because servers
	// keep state for a session.
	OwnConnections bool
	// TypedResults means that results need a resultType, and lists a time to live.
	TypedResults bool
	// ServerRequests means that hosts take requests of servers, such as sampling.
	ServerRequests bool
	// UnknownResource is the JSON-RPC error code for an unknown resource.
	UnknownResource int

	modern bool
}

// Has reports whether the era has a method. Methods that foldgate does not know are in both.
func (e Era) Has(name string) bool { return !e.modern || !methods[name].legacy }

// The two eras: Legacy are the revisions up to 2025-11-25, with sessions; in Modern, from
// 2026-07-28 on, each request stands alone.
var (
	Legacy = Era{OwnConnections: true, ServerRequests: true, UnknownResource: CodeResourceNotFound}
	Modern = Era{TypedResults: true, UnknownResource: CodeInvalidParams, modern: true}
)
