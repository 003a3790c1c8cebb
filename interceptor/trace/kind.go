package trace

import "strings"

// Kinds of records; docs/trace.md tells what each correlates to. MCP messages
// have a prefix and their method, such as "mcp/request:tools/call".
const (
	KindRequest      = "mcp/request:"
	KindResponse     = "mcp/response:"
	KindNotification = "mcp/notification:"
	KindReject       = "mcp/reject:"
	KindPush         = "context/push"
	KindPop          = "context/pop"
	KindStatus       = "context/status"
	KindReflection   = "reflection"
	KindConclusion   = "conclusion"
	KindFlowStart    = "workflow/start"
	KindFlowProceed  = "workflow/proceed"
	KindFlowComplete = "workflow/complete"
	KindWarning      = "system/warning"
)

// canonicalKind returns the name this package writes for a kind in any of the
// forms it understands: mcp.request is mcp/request, reasoning/thought is
// reflection, reasoning/conclusion is conclusion. What follows a colon is kept.
func canonicalKind(kind string) string {
	head, method, has := strings.Cut(kind, ":")
	if strings.IndexByte(head, '.') >= 0 {
		head = strings.ReplaceAll(head, ".", "/")
	}
	switch head {
	case "reasoning/thought":
		head = KindReflection
	case "reasoning/conclusion":
		head = KindConclusion
	}
	if has {
		return head + ":" + method
	}
	return head
}

// matchKind reports whether a kind matches a pattern, both canonical.
func matchKind(pattern, kind string) bool {
	if glob(pattern, kind) {
		return true
	}
	head, _, has := strings.Cut(kind, ":")
	return has && strings.IndexByte(pattern, ':') < 0 && glob(pattern, head)
}

// glob matches s against a pattern of *, ? and literal bytes in time
// proportional to the product of their lengths.
func glob(pattern, s string) bool {
	p, i, star, mark := 0, 0, -1, 0
	for i < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, i
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == s[i]):
			p++
			i++
		case star >= 0:
			mark++
			p, i = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
