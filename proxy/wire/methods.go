package wire

// method is what foldgate knows of a request beyond its name.
type method struct {
	target    string // the member of params that names the target of the request
	arguments bool   // params have the member arguments, too
	header    use    // of the header Mcp-Name, which repeats the target
	legacy    bool   // the modern era does not have the method
}

// use says whether a modern request has the header Mcp-Name.
type use int

const (
	never use = iota
	may       // the header routes to the server that has the task
	must
)

// methods are the methods with members that servers decide by, and the legacy ones.
var methods = map[string]method{
	"initialize":            {legacy: true},
	"ping":                  {legacy: true},
	"logging/setLevel":      {legacy: true},
	"tools/call":            {target: "name", arguments: true, header: must},
	"prompts/get":           {target: "name", arguments: true, header: must},
	"completion/complete":   {target: "ref"},
	"resources/read":        {target: "uri", header: must},
	"resources/subscribe":   {target: "uri", legacy: true},
	"resources/unsubscribe": {target: "uri", legacy: true},
	"tasks/get":             {target: "taskId", header: may},
	"tasks/update":          {target: "taskId", header: may},
	"tasks/cancel":          {target: "taskId", header: may},
	"tasks/result":          {target: "taskId"},
}

// NameMember returns the member of params that the header Mcp-Name repeats, "" if the method
// has none. required means that a modern request must have the header.
func NameMember(name string) (member string, required bool) {
	m := methods[name]
	if m.header == never {
		return "", false
	}
	return m.target, m.header == must
}

// Era is one of the two forms of MCP, as far as they differ beyond the transport. The servers
// of hosts decide the era of a session; the rest of the gateway asks for capabilities. The zero
// value is not an era.
type Era struct {
	// OwnConnections means that a session has connections of its own to servers, because
	// servers keep state for a session.
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
