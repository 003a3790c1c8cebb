package edge

import (
	"errors"
	"net/http"

	"github.com/foldgate/foldgate/proxy/wire"
)

// statusOf is the HTTP status under which the modern era sends an error of this
// code, as long as the status line is still to be written.
func statusOf(code int) int {
	switch code {
	case wire.CodeMethodNotFound:
		return http.StatusNotFound
	case wire.CodeParse, wire.CodeInvalidRequest, wire.CodeInvalidParams,
		wire.CodeHeaderMismatch, wire.CodeMissingCapability, wire.CodeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

func isNotJSON(err error) bool { return errors.Is(err, wire.ErrNotJSON) }
