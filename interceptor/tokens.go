package interceptor

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"

	"github.com/foldgate/foldgate/budget"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// free are the members of foreign messages that cost nothing, because programs read them and hosts
// show no model what they say. All others are counted, also those that no revision of the protocol
// knows. In one message so much of them is free as freeBytes holds: no server can hide text there.
var free = map[string]bool{
	// The outcome of a call. A model learns it from the host, not in these words.
	"isError": true, "resultType": true,
	// How to decode, cache or draw what stands beside them.
	"mimeType": true, "ttlMs": true, "cacheScope": true, "level": true, "role": true,
	// Where a message belongs, which the host resolves.
	"progressToken": true, "progress": true, "total": true, "requestState": true, "nextCursor": true, "requestId": true,
	"io.modelcontextprotocol/subscriptionId": true, "io.modelcontextprotocol/related-task": true,
	// The state of a task, which the host polls.
	"taskId": true, "status": true, "createdAt": true, "lastUpdatedAt": true, "ttl": true, "pollInterval": true, "pollIntervalMs": true,
	// Who made an answer.
	"io.modelcontextprotocol/serverInfo": true, "model": true, "stopReason": true,
	// What foldgate itself says, to programs.
	MetaContextID: true, foldMeta: true,
}

const freeBytes = 512

// TokenMeter counts the tokens of results, messages and arguments as a model reads them. It is safe
// for concurrent use.
type TokenMeter struct {
	Counter     *budget.Counter
	ImageTokens int // an estimate for an image or audio block: model and pixels decide the real cost
}

// request counts what a request brings: the arguments of a tool and the answers to a server's
// questions, or all of a question itself, which a model or a person reads.
func (tm TokenMeter) request(c *Call) (n int) {
	if c.Origin.Direction == ToHost {
		return tm.Sent(c.Target.Method, c.Target.Params, c.Target.Extra)
	}
	if args := c.Target.Arguments; len(args) > 0 {
		n = tm.Counter.CountBytes(rawjson.Compact(args))
	}
	if bytes.Contains(c.Target.Params, []byte(`"inputResponses"`)) {
		answers, _ := rawjson.Get(c.Target.Params, "inputResponses")
		for m := range rawjson.Members(answers) {
			n += tm.Message(m.Value, nil)
		}
	}
	return n
}

// Result counts a result once, for all layers.
func (tm TokenMeter) Result(r *Result) int {
	switch {
	case r.counted:
	case r.Error != nil:
		r.tokens = tm.Counter.CountBytes(rawjson.Compact(r.Error)) + tm.Message(nil, r.Extra)
	default:
		r.tokens = tm.Message(r.Body, r.Extra)
	}
	r.counted = true
	return r.tokens
}

// Message counts a result or params, and extra members beside it: every text in it that is not
// free. Of content blocks and structured content it takes the larger, because hosts show one of
// them.
func (tm TokenMeter) Message(body json.RawMessage, extra []byte) int {
	t := tally{TokenMeter: tm, free: freeBytes}
	n := t.object(body, message)
	if len(extra) > 0 {
		n += t.object(objectOf(extra), meta)
	}
	return n
}

// Sent counts a request or notification of a server. A short method is free.
func (tm TokenMeter) Sent(method string, params json.RawMessage, extra []byte) int {
	n := tm.Message(params, extra)
	if len(method) > freeBytes {
		n += tm.Counter.Count(method)
	}
	return n
}

// tally counts one message.
type tally struct {
	TokenMeter
	free  int // bytes that are left for free members
	depth int // of objects in objects
}

// maxNested is the deepest nesting that MCP has: task, question, sampling message, block, resource. What is
// deeper counts as JSON, because each level is read again.
const maxNested = 7

// The meaning of an object.
type meaning int

const (
	message  meaning = iota // a result, params, or a message of a conversation
	block                   // of content
	resource                // the contents of a resource
	meta
)

// object counts an object by its meaning, and any other value as it is.
func (t *tally) object(v []byte, as meaning) int {
	if rawjson.KindOf(v) != rawjson.Object || t.depth == maxNested {
		return t.text(v)
	}
	blocks, structured, rest, kind, paid := 0, 0, 0, "", false
	if as == block {
		switch kind, _ = rawjson.GetString(v, "type"); kind {
		case "image", "audio":
			rest, paid = t.ImageTokens, true
		case "text", "resource":
		default:
			return t.Counter.CountBytes(rawjson.Compact(v))
		}
	}
	t.depth++
	for m := range rawjson.Members(v) {
		switch {
		case m.Is("_meta"):
			rest += t.object(m.Value, meta)
		case as == message && m.Is("content"):
			blocks += t.list(m.Value, block)
		case as == message && m.Is("contents"):
			blocks += t.list(m.Value, resource)
		case as == message && m.Is("messages"):
			blocks += t.list(m.Value, message)
		case as == message && m.Is("structuredContent"):
			structured += t.Counter.CountBytes(rawjson.Compact(m.Value))
		case as == message && (m.Is("task") || m.Is("result") || m.Is("params")): // of a task, of a question
			rest += t.object(m.Value, message)
		case as == message && m.Is("inputRequests") && rawjson.KindOf(m.Value) == rawjson.Object:
			for q := range rawjson.Members(m.Value) {
				rest += t.text(q.Key) + t.object(q.Value, message)
			}
		case as == block && m.Is("type") && rawjson.Unquote(m.Value) == kind: // decides how the block is counted
		case paid && m.Is("data") && rawjson.KindOf(m.Value) == rawjson.String:
			paid = false // once
		case as == block && m.Is("resource"):
			rest += t.object(m.Value, resource) // hosts show its text whatever type stands there
		case (as == block || as == resource) && m.Is("text"):
			rest += t.text(m.Value)
		case as == resource && m.Is("blob"):
			if mime, _ := rawjson.GetString(v, "mimeType"); strings.HasPrefix(mime, "image/") && rawjson.KindOf(m.Value) == rawjson.String {
				rest += t.ImageTokens
			} else {
				rest += t.Counter.CountBytes(m.Value)
			}
		default:
			rest += t.member(m)
		}
	}
	t.depth--
	return max(blocks, structured) + rest
}

// list counts what a list holds, or the single element that stands in its place.
func (t *tally) list(v []byte, as meaning) (n int) {
	if rawjson.KindOf(v) != rawjson.Array {
		return t.object(v, as)
	}
	for e := range rawjson.Elements(v) {
		n += t.object(e, as)
	}
	return n
}

// member counts a member by its name and value, unless it is free.
func (t *tally) member(m rawjson.Member) int {
	if len(m.Key) > 2 && free[string(m.Key[1:len(m.Key)-1])] {
		if t.free -= len(m.Key) + len(m.Value); t.free >= 0 {
			return 0
		}
	}
	return t.text(m.Key) + t.text(m.Value)
}

// texts are buffers for unescaped texts. Larger ones than maxTextKept are not kept.
var texts = sync.Pool{New: func() any { return new([]byte) }}

const maxTextKept = 2 << 20

// text counts a string as the text it stands for, and any other value as compact JSON.
func (t *tally) text(lit []byte) int {
	if rawjson.KindOf(lit) != rawjson.String {
		return t.Counter.CountBytes(rawjson.Compact(lit))
	}
	buf := texts.Get().(*[]byte)
	text := rawjson.AppendUnquote((*buf)[:0], lit)
	n := t.Counter.CountBytes(text)
	if cap(text) <= maxTextKept {
		*buf = text
		texts.Put(buf)
	}
	return n
}
