package trace

import (
	"bytes"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// lineHeader is what the index needs of a line, read without decoding it all.
type lineHeader struct {
	id, ts, hash []byte
	text         [numCols][]byte
	flags        uint16
	correlations []string
	rpc          []string // JSON-RPC ids on either side
}

// parse reads a line; one that is no record gives an empty header.
func (h *lineHeader) parse(line []byte) {
	*h = lineHeader{correlations: h.correlations[:0], rpc: h.rpc[:0]}
	var payload, audit []byte
	rawjson.Members(line, func(m rawjson.Member) bool {
		switch string(m.Key) {
		case `"id"`:
			h.id = text(m.Value)
		case `"ts"`:
			h.ts = text(m.Value)
		case `"hash"`:
			h.hash = text(m.Value)
		case `"from"`:
			h.text[colFrom] = text(m.Value)
		case `"kind"`:
			h.text[colKind] = text(m.Value)
		case `"context"`:
			h.text[colContext] = text(m.Value)
		case `"to"`:
			h.text[colTo] = joined(m.Value)
		case `"correlationId"`:
			rawjson.Elements(m.Value, func(e []byte) bool {
				h.correlations = append(h.correlations, string(text(e)))
				return true
			})
		case `"payload"`:
			payload = m.Value
		case `"audit"`:
			audit = m.Value
		}
		return true
	})
	if len(h.correlations) > 0 {
		h.flags |= flagCorrelates
	}
	if bytes.HasPrefix(h.text[colKind], []byte(KindReject)) {
		h.flags |= flagBlocked
	}
	h.addRPC(payload, "id")
	h.parseAudit(audit)
}

func (h *lineHeader) parseAudit(audit []byte) {
	rawjson.Members(audit, func(m rawjson.Member) bool {
		switch string(m.Key) {
		case `"session"`:
			h.text[colSession] = text(m.Value)
		case `"principal"`:
			h.text[colPrincipal] = text(m.Value)
		case `"server"`:
			h.text[colServer] = text(m.Value)
		case `"tool"`:
			h.text[colTool] = text(m.Value)
		case `"hops"`:
			h.addRPC(m.Value, "host_id")
			h.addRPC(m.Value, "upstream_id")
		case `"decision"`:
			h.decision(m.Value)
		case `"scrub"`:
			h.flags |= flagScrubbed
		case `"deprecated"`:
			h.flags |= flagDeprecated
		case `"workflow"`:
			h.flags |= flagWorkflow
		case `"overbudget"`:
			h.flags |= flagOverBudget
		case `"ambiguous"`:
			h.flags |= flagAmbiguous
		case `"late"`:
			h.flags |= flagLate
		case `"is_error"`:
			h.flags |= flagError
		}
		return true
	})
}

func (h *lineHeader) decision(v []byte) {
	if result, _ := rawjson.GetString(v, "result"); result == Blocked {
		h.flags |= flagBlocked
	}
	if reason, _ := rawjson.GetString(v, "reason"); reason != "" {
		h.flags |= flagDecision
		if budgetReason(reason) {
			h.flags |= flagOverBudget
		}
	}
}

func (h *lineHeader) addRPC(obj []byte, name string) {
	v, ok := rawjson.Get(obj, name)
	if !ok {
		return
	}
	if id := string(text(v)); !slices.Contains(h.rpc, id) {
		h.rpc = append(h.rpc, id)
	}
}

// text is a string literal's content; any other value as it stands.
func text(v []byte) []byte {
	if len(v) < 2 || v[0] != '"' {
		return v
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return v[1 : len(v)-1]
	}
	return []byte(rawjson.Unquote(v))
}

func joined(list []byte) []byte {
	var out []string
	rawjson.Elements(list, func(e []byte) bool {
		out = append(out, string(text(e)))
		return true
	})
	return []byte(strings.Join(out, "\x00"))
}
