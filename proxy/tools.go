package proxy

import (
	"encoding/json"

	"github.com/foldgate/foldgate/interceptor"
)

// ownInstructions tell the model when to branch. They are paid for in every
// session, so they state one rule and the three steps.
const ownInstructions = "foldgate isolates subtasks. When a task needs more than two reads or searches, open a branch: " +
	"branch_create, pass its branch_id to every call you make for the subtask (or hand it to a subagent), then branch_return with a short summary of the findings. " +
	"For many similar calls use branch_run. Large results arrive as previews; branch_read shows the rest. Secrets are replaced by [REDACTED:rule]."

// foldTool is one of foldgate's own tools.
type foldTool struct {
	name       string
	definition json.RawMessage
	// place finds the branch that pays for a call; nil for the tools that
	// manage branches, which are never charged or refused for budget.
	place func(fl *inbound, c *interceptor.Call)
}

// alwaysLoad asks hosts that load tools on demand to show these from the start.
const alwaysLoad = `"_meta":{"anthropic/alwaysLoad":true}`

// ownTools are listed to every host, whatever the state of its branches.
var ownTools = []*foldTool{
	{name: "branch_create", definition: json.RawMessage(`{"name":"branch_create",` +
		`"description":"Open an isolated branch for a subtask. Pass its branch_id to the calls made for it, which its token budget pays. End it with branch_return.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"description":{"type":"string","description":"What the branch will do","maxLength":500},` +
		`"prompt":{"type":"string","description":"Detailed instructions","maxLength":10000},` +
		`"budget":{"type":"number","description":"Token budget"},` +
		`"timeout_seconds":{"type":"number"},` +
		`"parent_branch_id":{"type":"string","description":"Branch to nest in"},` +
		`"session_id":{"type":"string"}},"required":["description"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_return", definition: json.RawMessage(`{"name":"branch_return",` +
		`"description":"End a branch and hand its result to the parent. Branches opened inside it are closed first.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},` +
		`"message":{"type":"string","description":"Short summary of the findings","maxLength":50000}},"required":["branch_id","message"],"additionalProperties":false},` +
		`"annotations":{"destructiveHint":false,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_status", definition: json.RawMessage(`{"name":"branch_status",` +
		`"description":"State and budget of a branch, or of the session's active branch.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"branch_id":{"type":"string"},"session_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_read", place: placeRead, definition: json.RawMessage(`{"name":"branch_read",` +
		`"description":"Read part of a folded result by its handle: lines, grep (with context lines), jq, ranked search, or page by page.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"handle":{"type":"string"},` +
		`"lines":{"type":"string","description":"120-140, 120- or -50; also limits grep"},` +
		`"grep":{"type":"string","description":"RE2"},` +
		`"context":{"type":"number"},` +
		`"jq":{"type":"string"},"search":{"type":"string"},"page":{"type":"number"},"max_tokens":{"type":"number"},` +
		`"branch_id":{"type":"string"}},"required":["handle"],"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true,"openWorldHint":false},` + alwaysLoad + `}`)},
	{name: "branch_run", place: placeRun, definition: json.RawMessage(`{"name":"branch_run",` +
		`"description":"Make many read-only calls at once and get only what grep or jq lets through. Give tool and each (its arguments, one object a call), or steps.",` +
		`"inputSchema":{"type":"object","properties":{` +
		`"tool":{"type":"string"},"each":{"type":"array","items":{"type":"object"}},` +
		`"steps":{"type":"array","items":{"type":"object","properties":{"tool":{"type":"string"},"arguments":{"type":"object"}}}},` +
		`"grep":{"type":"string"},"jq":{"type":"string","description":"Input: [{step,tool,arguments,result|error}]"},` +
		`"max_tokens":{"type":"number"},"parallel":{"type":"number"},` +
		`"description":{"type":"string"},"branch_id":{"type":"string"}},"additionalProperties":false},` +
		`"annotations":{"readOnlyHint":true},` + alwaysLoad + `}`)},
}

// answer returns what serves the tool. It is no field of ownTools: a batch calls
// tools, which are found in a list that has these.
func (t *foldTool) answer() answer {
	switch t.name {
	case "branch_create":
		return branchCreate
	case "branch_return":
		return branchReturn
	case "branch_status":
		return branchStatus
	case "branch_read":
		return branchRead
	}
	return branchRun
}

// ownTool returns the own tool called name, or nil.
func ownTool(name string) *foldTool {
	for _, t := range ownTools {
		if t.name == name {
			return t
		}
	}
	return nil
}

// refused records why an own tool said no.
func refused(c *interceptor.Call, err error) error {
	r := badQuestion(err)
	if r == nil {
		r = interceptor.FoldingRefusal(err)
	}
	c.Outcome.Decision = r.Reason
	return r
}
