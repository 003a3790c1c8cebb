package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/internal/replicaid"
	"github.com/foldgate/foldgate/proxy/replicas"
	"github.com/foldgate/foldgate/proxy/wire"
)

// ownerID is an id in a request that names a replica.
type ownerID struct{ kind, id, replica string }

// maxOwnerIDs bounds the ids that are looked at.
const maxOwnerIDs = 64

// forwardToOwner passes a request that belongs to another replica on to it. It returns true if the request is
// answered: by its owner, or with a refusal. req is nil for a request without a message of its own, such as a
// batch. body was read.
func (x *exchange) forwardToOwner(req *Request, body []byte) (answered bool) {
	set := x.srv.opts.Replicas
	if set == nil {
		return false
	}
	var id json.RawMessage
	opens := false
	if req != nil {
		id, opens = req.Msg.ID, req.Msg.Method == wire.MethodInitialize && !modern(req.Meta)
	}
	stopping := opens && set.Leaving()
	if replicas.Forwarded(x.r) { // at most one hop
		if stopping {
			x.refuseShutdown(id)
		}
		return stopping
	}
	if set.Leaving() {
		x.w.Header().Set("Connection", "close") // the next request shall go to another replica
	}
	// A name that no replica has says nothing: hosts invent ids, such as ses_agent_1.
	named := slices.DeleteFunc(ownerIDs(x.r.Header.Get(wire.HeaderSession), x.branch, req, body), func(o ownerID) bool { return !set.Known(o.replica) })
	to := replicas.Target{Principal: x.caller.Principal}
	for _, o := range named {
		if to.Replica == "" {
			to.Replica = o.replica
		}
		if o.replica != to.Replica {
			x.refuse(http.StatusConflict, id, invalid(wire.CodeInvalidRequest, fmt.Sprintf(
				"409 Conflict: %s %.60s is at replica %s, but %s %.60s at replica %s, and a request can be served by one only: leave out one of them, or make it anew where the other one is",
				named[0].kind, named[0].id, to.Replica, o.kind, o.id, o.replica)))
			return true
		}
	}
	if !hasRequest(req, body) { // such as a cancellation, which lets a request end
		if !x.srv.run() {
			x.refuseShutdown(id)
			return true
		}
		defer x.srv.running.Done()
	} else { // a batch is one here: it takes one connection to its owner, which counts its requests
		if !x.enter(id, len(body)) {
			return true
		}
		defer x.counted.leave()
	}
	ctx, done := x.forwardContext(req)
	defer done()
	forwarded, err := set.Forward(ctx, slowWriter{x.w}, x.r, body, to)
	if err != nil {
		x.refuseForward(id, named, err)
	}
	if !forwarded && stopping {
		x.refuseShutdown(id)
	}
	return forwarded || stopping
}

// hasRequest reports whether a message, or a batch if req is nil, has a request, or what is no message and is
// answered, too. No body has none.
func hasRequest(req *Request, body []byte) bool {
	if req != nil {
		return req.Msg.IsRequest()
	}
	if body != nil && !rawjson.Valid(body, wire.MaxDepth) {
		return true
	}
	n := 0
	for v := range rawjson.Elements(body) {
		if m, err := wire.ParseMessage(v); err != nil || m.IsRequest() || n == batchMax {
			return true
		}
		n++
	}
	return false
}

// refuseForward answers a request that its owner did not. named are the ids in it.
func (x *exchange) refuseForward(id json.RawMessage, named []ownerID, err error) {
	down, ok := errors.AsType[*replicas.DownError](err)
	switch {
	case ok && down.Absent && named[0].kind == kindSession && named[0].id == x.r.Header.Get(wire.HeaderSession):
		x.refuse(http.StatusNotFound, id, invalid(wire.CodeInvalidRequest, "no such session: its replica "+down.Replica+" is down; send initialize again"))
	case ok:
		x.w.Header().Set("Retry-After", strconv.Itoa(int(down.Retry.Seconds())))
		x.refuse(http.StatusServiceUnavailable, id, invalid(wire.CodeInternal, fmt.Sprintf("503 Service Unavailable: %s %.60s: %v; nothing was done", named[0].kind, named[0].id, down)))
	case errors.Is(err, replicas.ErrHung):
		x.refuse(http.StatusGatewayTimeout, id, invalid(wire.CodeInternal, "504 Gateway Timeout: "+err.Error()))
	default:
		x.refuse(http.StatusBadGateway, id, invalid(wire.CodeInternal, "502 Bad Gateway: "+err.Error()))
	}
}

// forwardContext returns the context of a request that is passed on: it ends with its host and with the
// server, and if it only waits for messages, when the server begins to shut down. done must be called.
func (x *exchange) forwardContext(req *Request) (ctx context.Context, done func()) {
	ctx, cancel := context.WithCancel(x.r.Context())
	stop := context.AfterFunc(x.srv.lifetime, cancel)
	if x.r.Method == http.MethodGet || req != nil && req.Msg.Method == wire.MethodListen {
		go func() {
			select {
			case <-x.srv.drain:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, func() { stop(); cancel() }
}

const (
	kindSession = "session"
	kindBranch  = "branch"
	kindResult  = "stored result"
)

// ownerIDs returns the ids of a request that name a replica, in this order: session, branch, stored result,
// task, suspended call. Those of a batch are in the order of its messages. session and branch are of the head.
func ownerIDs(session, branch string, req *Request, body []byte) (all []ownerID) {
	add := func(kind, begins, id string) {
		if name, _, _ := replicaid.Cut(begins, id); name != "" && len(all) < maxOwnerIDs {
			all = append(all, ownerID{kind, id, name})
		}
	}
	if req == nil || req.Msg.Method != wire.MethodInitialize { // which opens another session
		add(kindSession, "ses_", session)
	}
	if req == nil {
		if add(kindBranch, "br_", branch); rawjson.Valid(body, wire.MaxDepth) {
			for v := range rawjson.Elements(body) {
				if m, err := wire.ParseMessage(v); err == nil && len(all) < maxOwnerIDs {
					all = append(all, ownerIDs("", branch, NewRequest(m), nil)...) // its session is there already
				}
			}
		}
		return all[:min(len(all), maxOwnerIDs)]
	}
	arguments, _ := rawjson.Get(req.Msg.Params, "arguments")
	inner, _ := rawjson.Get(arguments, "arguments") // of call_tool
	text := func(object []byte, name string) string { s, _ := rawjson.GetString(object, name); return s }
	for _, a := range [][]byte{arguments, inner} {
		add(kindSession, "ses_", text(a, "session_id"))
	}
	add(kindBranch, "br_", cmp.Or(rawjson.Unquote(req.Meta.BranchID), branch)) // _meta wins over the URL
	for _, a := range [][]byte{arguments, inner} {
		add(kindBranch, "br_", text(a, "branch_id"))
		add(kindBranch, "br_", text(a, "parent_branch_id"))
	}
	for _, a := range [][]byte{arguments, inner} {
		add(kindResult, "res_", text(a, "handle"))
		handles, _ := rawjson.Get(a, "handles")
		for h := range rawjson.Elements(handles) {
			add(kindResult, "res_", rawjson.Unquote(h))
		}
	}
	if strings.HasPrefix(req.Msg.Method, "tasks/") {
		add("task", kindTask, text(req.Msg.Params, "taskId"))
		add("task", "br_", text(req.Msg.Params, "taskId")) // as a legacy host sees it
	}
	add("suspended call", wire.SuspendedState, text(req.Msg.Params, "requestState"))
	return all
}

// slowWriter gives each piece of a response a deadline of its own: a response that is passed on may last
// as long as its host reads.
type slowWriter struct{ http.ResponseWriter }

func (w slowWriter) Write(p []byte) (int, error) {
	if err := writeChunked(w.ResponseWriter, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Unwrap lets [http.ResponseController] reach the connection.
func (w slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
