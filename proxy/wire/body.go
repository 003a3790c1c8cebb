package wire

import (
	"errors"
	"io"
	"strings"
)

// ErrTooLarge is the fault of a body that has more bytes than allowed.
var ErrTooLarge = errors.New("the body is too large")

// MaxPromised is the length of a body up to which [ReadBody] believes its sender: the memory is there before the bytes.
const MaxPromised = 1 << 20

// ReadBody reads an HTTP body of at most max bytes into new memory. length is the one that its sender named, negative
// for none. With an error, body is what came before it.
func ReadBody(r io.Reader, length, max int64) (body []byte, err error) {
	switch {
	case length > max:
		return nil, ErrTooLarge
	case length >= 0 && length <= MaxPromised:
		body = make([]byte, length)
		var n int
		n, err = io.ReadFull(r, body)
		body = body[:n]
	default: // a length is only a promise: memory grows with the bytes that arrive
		if body, err = io.ReadAll(io.LimitReader(r, max+1)); err == nil && int64(len(body)) > max {
			err = ErrTooLarge
		}
	}
	return body, err
}

// MediaType returns a media type of a header in lower case, without its parameters.
func MediaType(value string) string {
	value, _, _ = strings.Cut(value, ";")
	return strings.ToLower(strings.TrimSpace(value))
}
