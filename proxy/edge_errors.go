package proxy

import (
	"errors"
	"net/http"
)

// statusOf is the HTTP status under which the modern era sends an error of this
// code, as long as the status line is still to be written.
func statusOf(code int) int {
	switch code {
	case codeMethodNotFound:
		return http.StatusNotFound
	case codeParse, codeInvalidRequest, codeInvalidParams,
		codeHeaderMismatch, codeMissingCapability, codeUnsupportedVersion:
		return http.StatusBadRequest
	}
	return http.StatusOK
}

func isNotJSON(err error) bool { return errors.Is(err, errNotJSON) }
