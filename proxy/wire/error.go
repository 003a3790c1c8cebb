package wire

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Error is a JSON-RPC error of foldgate's own. The errors of upstreams are never decoded into one:
// they pass as bytes.
type Error struct {
	Code    int
	Message string
	// Data is the raw value of the member data. If it is nil, the member is left out.
	Data json.RawMessage
}

// Error makes *Error an error, for logs.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// JSONRPCCode is the error's code for telemetry.
func (e *Error) JSONRPCCode() string { return strconv.Itoa(e.Code) }

// JSON renders the error object.
func (e *Error) JSON() json.RawMessage {
	b := make([]byte, 0, 32+len(e.Message)+len(e.Data))
	b = strconv.AppendInt(append(b, `{"code":`...), int64(e.Code), 10)
	b = rawjson.AppendQuote(append(b, `,"message":`...), e.Message)
	if e.Data != nil {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// Reply returns the response to the request with this id. The id is nil if it could not be read.
func (e *Error) Reply(id json.RawMessage) Message {
	if id == nil {
		id = json.RawMessage("null")
	}
	return Message{ID: id, Error: e.JSON()}
}

// Response renders the [Error.Reply].
func (e *Error) Response(id json.RawMessage) []byte { return e.Reply(id).Encode() }

// UnsupportedVersion refuses a protocol revision and lists the supported ones.
func UnsupportedVersion(requested string) *Error {
	return &Error{
		Code:    CodeUnsupportedVersion,
		Message: fmt.Sprintf("protocol version %q is not supported", Clip(requested)),
		Data: rawjson.Marshal(struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{Versions, Clip(requested)}),
	}
}

// ErrorCode reads the code of a raw error object. It is 0 if there is no integer.
func ErrorCode(raw json.RawMessage) int {
	v, _ := rawjson.Get(raw, "code")
	code, err := strconv.Atoi(string(v))
	if err != nil {
		return 0
	}
	return code
}

// ReadableError returns a raw error that typed hosts accept: an object with an integer for its code and a
// string for its message. If raw is another one, it becomes the data of an error of foldgate's, which has its
// code if that is an integer: the call of a host that can't read a response never ends.
func ReadableError(raw json.RawMessage) json.RawMessage {
	code, _ := rawjson.Get(raw, "code")
	message, _ := rawjson.Get(raw, "message")
	n, err := strconv.ParseFloat(string(code), 64)
	integer := err == nil && n == math.Trunc(n)
	if integer && rawjson.KindOf(message) == rawjson.String {
		return raw
	}
	e := Error{Code: CodeInternal, Message: "the server's error is none of JSON-RPC 2.0; data has what it sent", Data: raw}
	if integer && math.Abs(n) < 1<<53 {
		e.Code = int(n)
	}
	return e.JSON()
}

// ReadableResult returns the response m as one that typed hosts accept: its result is an object. Some servers write null
// for an empty one. Any other result becomes the data of an error of foldgate's.
func (m Message) ReadableResult() Message {
	switch rawjson.KindOf(m.Result) {
	case rawjson.Object:
	case rawjson.Null:
		m.Result = json.RawMessage(`{}`)
	default:
		e := Error{Code: CodeInternal, Message: "the server's result is not an object; data has what it sent", Data: m.Result}
		m.Result, m.Error = nil, e.JSON()
	}
	return m
}

// AnswerError is an upstream's JSON-RPC error object as a Go error, for requests of foldgate's own.
type AnswerError struct{ Raw json.RawMessage }

// Error gives the code and the beginning of the message.
func (e *AnswerError) Error() string {
	msg, _ := rawjson.GetString(e.Raw, "message")
	return fmt.Sprintf("error %d: %q", ErrorCode(e.Raw), Clip(msg))
}

const maxClip = 200 // bytes of a foreign text in an error

// Clip shortens a foreign text for an error, which is searched for secrets later. It cuts at a blank, or
// behind a letter of a language without blanks: a part of a secret is not found.
func Clip(text string) string {
	if len(text) <= maxClip {
		return text
	}
	words := strings.TrimRightFunc(text[:maxClip+1], func(r rune) bool {
		return !unicode.IsSpace(r) && !unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana)
	})
	return fmt.Sprintf("%s… (%d bytes)", words, len(text))
}
