package wire

import (
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/foldgate/foldgate/internal/rawjson"
)

// Error is a JSON-RPC error object that foldgate answers with itself. The
// errors of upstreams are never decoded into one: they pass as bytes.
type Error struct {
	Code    int
	Message string
	// Data is the raw value of the data member; nil leaves it out.
	Data json.RawMessage
}

// Error makes *Error an error, for logs.
func (e *Error) Error() string { return fmt.Sprintf("%s (%d)", e.Message, e.Code) }

// JSONRPCCode is the error's code for telemetry.
func (e *Error) JSONRPCCode() string { return strconv.Itoa(e.Code) }

// JSON renders the error object, as it stands in reply.Error.
func (e *Error) JSON() json.RawMessage {
	b := make([]byte, 0, 32+len(e.Message)+len(e.Data))
	b = strconv.AppendInt(append(b, `{"code":`...), int64(e.Code), 10)
	b = rawjson.AppendQuote(append(b, `,"message":`...), e.Message)
	if e.Data != nil {
		b = append(append(b, `,"data":`...), e.Data...)
	}
	return append(b, '}')
}

// Response renders a whole response for the request with the given id; nil
// stands for a request whose id could not be read.
func (e *Error) Response(id json.RawMessage) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return Message{ID: id, Error: e.JSON()}.Encode()
}

// UnsupportedVersion refuses a protocol revision and lists the ones to try.
func UnsupportedVersion(requested string) *Error {
	return &Error{
		Code:    CodeUnsupportedVersion,
		Message: fmt.Sprintf("protocol version %q is not supported", requested),
		Data: rawjson.Marshal(struct {
			Supported []string `json:"supported"`
			Requested string   `json:"requested"`
		}{Versions, requested}),
	}
}

// ErrorCode reads the code of a raw error object; 0 where there is none.
func ErrorCode(raw json.RawMessage) int {
	v, ok := rawjson.Get(raw, "code")
	if !ok {
		return 0
	}
	code, err := strconv.Atoi(string(v))
	if err != nil {
		return 0
	}
	return code
}

// AnswerError is an upstream's JSON-RPC error object as a Go error, for requests
// of foldgate's own.
type AnswerError struct {
	// Code is the object's code, 0 where it has none.
	Code int64
	raw  json.RawMessage
}

// NewAnswerError reads the code of raw, which it keeps.
func NewAnswerError(raw json.RawMessage) *AnswerError {
	e := &AnswerError{raw: raw}
	if code, ok := rawjson.Get(raw, "code"); ok {
		_ = json.Unmarshal(code, &e.Code) // anything but an integer counts as 0
	}
	return e
}

// Error gives the code and the first 200 characters of the message.
func (e *AnswerError) Error() string {
	msg, _ := rawjson.GetString(e.raw, "message")
	return fmt.Sprintf("error %d: %.200q", e.Code, msg)
}
