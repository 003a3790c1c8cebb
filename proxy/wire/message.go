package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// MaxDepth is how deep a message may nest. encoding/json stops at 10,000; no real message comes
// near 2,000.
const MaxDepth = 2000

// Message is one JSON-RPC 2.0 message. Its fields are byte ranges of Raw, so that unchanged members
// are forwarded as they came.
type Message struct {
	// ID is the id's literal (string or number), nil for a notification.
	ID json.RawMessage
	// Method is "" for a response.
	Method string
	// Params is nil if the message has none.
	Params json.RawMessage
	// Result and Error: a response has exactly one.
	Result, Error json.RawMessage
	// Extra holds top-level members that JSON-RPC does not know, each with a leading comma, to be
	// forwarded with the rest.
	Extra []byte
	// Raw is the whole message.
	Raw []byte
}

// Faults of a message that is not JSON-RPC 2.0.
var (
	ErrNotJSON    = errors.New("not valid JSON")
	errTooDeep    = fmt.Errorf("nests deeper than %d levels", MaxDepth)
	errNotMessage = errors.New("not a JSON-RPC 2.0 message")
)

// ParseMessage splits raw into its members. The message keeps raw: the caller must not change it
// afterwards. The error is ErrNotJSON, errTooDeep, or errNotMessage, wrapped with what is wrong. Of a
// request that nests too deep it returns the id and the method.
func ParseMessage(raw []byte) (Message, error) {
	raw = Trim(raw)
	if !rawjson.Valid(raw, MaxDepth) {
		if !rawjson.Valid(raw, len(raw)) {
			return Message{}, ErrNotJSON
		}
		if id, method := Salvage(raw, nil); method != "" {
			return Message{ID: id, Method: method}, errTooDeep
		}
		return Message{}, errTooDeep
	}
	m := Message{Raw: raw}
	version, odd, named := "", "", false
	for f := range rawjson.Members(raw) {
		switch {
		case f.Is("jsonrpc"):
			version = rawjson.Unquote(f.Value)
		case f.Is("id"):
			m.ID = f.Value
		case f.Is("method"):
			m.Method, named = rawjson.Unquote(f.Value), true
		case f.Is("params"):
			m.Params = f.Value
		case f.Is("result"):
			m.Result = f.Value
		case f.Is("error"):
			m.Error = f.Value
		default:
			if respells(f) {
				odd = f.Name()
			}
			m.Extra = append(m.Extra, ',')
			m.Extra = append(m.Extra, raw[f.Start:f.End]...)
		}
	}
	m.dropNull()
	switch {
	case raw[0] != '{':
		return m, fmt.Errorf("%w: not an object", errNotMessage)
	case odd != "":
		return m, fmt.Errorf("%w: %q is another spelling of a member of JSON-RPC's", errNotMessage, Clip(odd))
	case version != "2.0":
		return m, fmt.Errorf("%w: jsonrpc is %q, want \"2.0\"", errNotMessage, Clip(version))
	case m.ID != nil && rawjson.KindOf(m.ID) != rawjson.String && rawjson.KindOf(m.ID) != rawjson.Number:
		// An error response to an unreadable request carries a null id.
		if rawjson.KindOf(m.ID) != rawjson.Null || m.Error == nil {
			return m, fmt.Errorf("%w: id must be a string or a number", errNotMessage)
		}
	case m.Method == "" && named && (m.ID == nil || (m.Result == nil) == (m.Error == nil)):
		return m, fmt.Errorf("%w: method must be a string that is not empty", errNotMessage)
	case m.Method == "" && m.ID == nil:
		return m, fmt.Errorf("%w: neither method nor id", errNotMessage)
	case m.Method == "" && (m.Result == nil) == (m.Error == nil):
		return m, fmt.Errorf("%w: a response has either result or error", errNotMessage)
	}
	return m, nil
}

// Trim returns raw without the white space around it and the byte-order mark that some programs
// write before it.
func Trim(raw []byte) []byte {
	raw = rawjson.Trim(raw)
	if rest, marked := bytes.CutPrefix(raw, []byte("\ufeff")); marked {
		return rawjson.Trim(rest)
	}
	return raw
}

// OwnID reads an id that foldgate chose, a positive integer, from an answer. Some programs send it
// back as a string, and to many 1, 1.0 and 1e0 are the same number. It returns 0 for anything else.
func OwnID(lit []byte) int64 {
	if rawjson.KindOf(lit) == rawjson.String && len(lit) > 2 {
		lit = lit[1 : len(lit)-1]
	}
	id, err := strconv.ParseFloat(string(lit), 64)
	if err != nil || id != math.Trunc(id) || id < 0 || id >= 1<<53 {
		return 0
	}
	return int64(id)
}

// dropNull takes a null result or error away if the other one is there: in JSON-RPC 1.0 a response had
// both, and some servers still write them. Typed hosts refuse such a response, so their call never ends.
func (m *Message) dropNull() {
	switch {
	case m.Result == nil || m.Error == nil:
	case rawjson.KindOf(m.Error) == rawjson.Null:
		m.Error = nil
	case rawjson.KindOf(m.Result) == rawjson.Null:
		m.Result = nil
	}
}

// respells reports whether f is to some readers, such as Go's, a member of JSON-RPC's: forwarded as
// unknown it would change what the message says.
func respells(f rawjson.Member) bool {
	name := f.Name()
	return slices.ContainsFunc([]string{"jsonrpc", "id", "method", "params", "result", "error"}, func(own string) bool { return strings.EqualFold(name, own) })
}

// IsRequest reports whether m expects a response.
func (m Message) IsRequest() bool { return m.Method != "" && m.ID != nil }

// IsNotification reports whether m is a notification.
func (m Message) IsNotification() bool { return m.Method != "" && m.ID == nil }

// IsResponse reports whether m answers a request.
func (m Message) IsResponse() bool { return m.Method == "" }

// Encode returns m as JSON, built from its fields and not from Raw: set ID, Params,
// Result or Error first to change them.
func (m Message) Encode() []byte { return m.Append(nil) }

// AppendLine appends the message to out as one line, without its end.
func (m Message) AppendLine(out []byte) []byte {
	start := len(out)
	out = m.Append(out)
	OneLine(out[start:])
	return out
}

// Append appends what [Message.Encode] returns to out.
func (m Message) Append(out []byte) []byte {
	out = slices.Grow(out, 48+len(m.ID)+len(m.Method)+len(m.Params)+len(m.Result)+len(m.Error)+len(m.Extra))
	out = append(out, `{"jsonrpc":"2.0"`...)
	if m.ID != nil {
		out = append(append(out, `,"id":`...), m.ID...)
	}
	if m.Method != "" {
		out = rawjson.AppendQuote(append(out, `,"method":`...), m.Method)
	}
	if len(m.Params) > 0 {
		out = append(append(out, `,"params":`...), m.Params...)
	}
	if m.Result != nil {
		out = append(append(out, `,"result":`...), m.Result...)
	}
	if m.Error != nil {
		out = append(append(out, `,"error":`...), m.Error...)
	}
	out = append(out, m.Extra...)
	return append(out, '}')
}

// WithParams returns m with other params, Raw included.
func (m Message) WithParams(params json.RawMessage) Message {
	m.Params = params
	m.Raw = m.Encode()
	return m
}
