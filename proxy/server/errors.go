package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

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

// refuse answers a request with an error of the edge's own.
func refuse(w http.ResponseWriter, status int, id json.RawMessage, fault *wire.Error) {
	writeJSON(w, status, fault.Response(id))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h["Content-Type"] = typeJSON
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(status)
	_, _ = w.Write(body) // the host is gone: nobody to tell
}
