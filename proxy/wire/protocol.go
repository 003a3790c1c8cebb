// Package wire is what both sides of the gateway share of the Model Context Protocol: messages as
// ranges of the bytes that they came as, JSON-RPC errors, the protocol's own words (revisions,
// methods, reserved keys, headers, codes), the codec of headers, and lines on stdio. It knows no
// session.
package wire

// Protocol revisions. Revisions are dates, so they compare as strings.
const (
	// VersionModern is the first revision without sessions: every request carries its version and
	// capabilities in _meta.
	VersionModern = "2026-07-28"
	// VersionLegacy is the newest revision that starts with initialize.
	VersionLegacy = "2025-11-25"
)

// LegacyVersions are the revisions that foldgate agrees to in initialize.
var LegacyVersions = Versions[1:]

// Versions lists every revision spoken with hosts, newest first.
var Versions = []string{VersionModern, VersionLegacy, "2025-06-18", "2025-03-26", "2024-11-05"}

// Methods that foldgate knows by name on both sides.
const (
	MethodInitialize  = "initialize"
	MethodInitialized = "notifications/initialized"
	MethodDiscover    = "server/discover"
	MethodCancelled   = "notifications/cancelled"
	MethodProgress    = "notifications/progress"
	MethodListen      = "subscriptions/listen"
	// MethodAcknowledged is the first notification of a listen.
	MethodAcknowledged    = "notifications/subscriptions/acknowledged"
	MethodResourceUpdated = "notifications/resources/updated"
	MethodLogMessage      = "notifications/message"
	MethodRootsChanged    = "notifications/roots/list_changed"
	TaskNews              = "notifications/tasks" // begins the notifications about tasks
)

// Lists are the capabilities of servers whose lists can change.
var Lists = []string{"tools", "prompts", "resources"}

// ListChanged returns the method of the notification that the list of a capability changed.
func ListChanged(capability string) string { return "notifications/" + capability + "/list_changed" }

// LogLevels are the levels of logging/setLevel, the least severe first.
var LogLevels = []string{"debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"}

// Keys of _meta that the protocol reserves. They are owned per hop.
const (
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities"
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"
	MetaServerInfo         = "io.modelcontextprotocol/serverInfo"
	MetaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"
	MetaRelatedTask        = "io.modelcontextprotocol/related-task"
)

// TasksExtension names the extension of the modern era for tasks, in capabilities.
const TasksExtension = "io.modelcontextprotocol/tasks"

// JSON-RPC and MCP error codes that foldgate itself answers with.
const (
	CodeParse              = -32700
	CodeInvalidRequest     = -32600
	CodeMethodNotFound     = -32601
	CodeInvalidParams      = -32602
	CodeInternal           = -32603
	CodeHeaderMismatch     = -32020
	CodeMissingCapability  = -32021
	CodeUnsupportedVersion = -32022
	// CodeResourceNotFound is the legacy era's; the modern era uses CodeInvalidParams.
	CodeResourceNotFound = -32002
	// CodeURLElicitation is the legacy era's: a person has to open a URL before the request succeeds.
	CodeURLElicitation = -32042
)

// Headers of the streamable HTTP transport, in canonical form.
const (
	HeaderSession   = "Mcp-Session-Id"
	HeaderVersion   = "Mcp-Protocol-Version"
	HeaderMethod    = "Mcp-Method"
	HeaderName      = "Mcp-Name"
	HeaderParam     = "Mcp-Param-" // a prefix
	HeaderLastEvent = "Last-Event-Id"
)
