package proxy

// This file holds the words of the Model Context Protocol that edges, core and
// links share: revisions, methods, reserved keys of _meta, headers, error codes.

// Protocol revisions. Revisions are dates, so they compare as strings.
const (
	// versionModern is the first revision without sessions: every request
	// carries its version and capabilities in _meta.
	versionModern = "2026-07-28"
	// versionLegacy is the newest revision that starts with initialize.
	versionLegacy = "2025-11-25"
)

// supportedVersions lists every revision spoken with hosts, newest first.
var supportedVersions = []string{versionModern, versionLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}

// Methods that foldgate knows by name on both sides.
const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
	methodDiscover    = "server/discover"
	methodCancelled   = "notifications/cancelled"
	methodProgress    = "notifications/progress"
	methodListen      = "subscriptions/listen"
)

// Keys of _meta that the protocol reserves. They are owned per hop.
const (
	metaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	metaClientInfo         = "io.modelcontextprotocol/clientInfo"
	metaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	metaLogLevel           = "io.modelcontextprotocol/logLevel"
	metaServerInfo         = "io.modelcontextprotocol/serverInfo"
	metaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
)

// JSON-RPC and MCP error codes that foldgate itself answers with.
const (
	codeParse              = -32700
	codeInvalidRequest     = -32600
	codeMethodNotFound     = -32601
	codeInvalidParams      = -32602
	codeInternal           = -32603
	codeHeaderMismatch     = -32020
	codeMissingCapability  = -32021
	codeUnsupportedVersion = -32022
)

// Headers of the streamable HTTP transport, in canonical form.
const (
	headerSession   = "Mcp-Session-Id"
	headerVersion   = "Mcp-Protocol-Version"
	headerMethod    = "Mcp-Method"
	headerName      = "Mcp-Name"
	headerParam     = "Mcp-Param-" // a prefix
	headerLastEvent = "Last-Event-Id"
)
