package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor"
	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
	"github.com/foldgate/foldgate/proxy/conn"
	"github.com/foldgate/foldgate/proxy/engine"
	"github.com/foldgate/foldgate/proxy/server"
	"github.com/foldgate/foldgate/proxy/upstream"
	"github.com/foldgate/foldgate/proxy/wire"
)

// refusal returns the reply to a request that foldgate refuses or fails.
func (rt *Router) refusal(r *request, err error) (reply server.Reply) {
	_, rpc := errors.AsType[*wire.Error](err)
	ref, refused := errors.AsType[*interceptor.Refusal](err)
	if cause := context.Cause(r.lifetime); cause != nil && errors.Is(err, cause) && !rpc && !refused { // no server is to blame
		err = &interceptor.Refusal{Code: "session_ended", Status: 503,
			Message: fmt.Sprintf("the request was cut off with its session (%v). It may have had an effect; ask again in another session", cause)}
	}
	if refused {
		reply.MissingScopes = ref.Scopes
	}
	if invitation, ok := r.invite(err); ok {
		reply.Message = engine.Clean(rt.Boundary, invitation)
	} else {
		reply.Message = engine.Refusal(rt.Boundary, r.Msg.Method, r.s.Era.TypedResults, err)
	}
	return reply
}

// loginInput is the key of an invitation to log in among the input requests of a modern call.
const loginInput = "foldgate_login"

// showURL is an elicitation in the mode url.
var showURL = wire.Message{Method: "elicitation/create", Params: json.RawMessage(`{"mode":"url"}`)}

// invite answers a call that needs a login with a URL at which a person can log in. ok is false if the
// host can't show one, if the person has declined, or if the person may be another one than the caller:
// the page is on this machine, so it is only for hosts on it that need no token.
func (r *request) invite(err error) (reply wire.Message, ok bool) {
	login, lacking := errors.AsType[*upstream.LoginError](err)
	cfg := &r.s.rt.Settings().Config
	if !lacking || !r.s.Capabilities.Answers(showURL) || cfg.Authenticates() || cfg.Exposed() {
		return reply, false
	}
	if r.s.Era.TypedResults && !slices.Contains([]string{"tools/call", "prompts/get", "resources/read"}, r.Msg.Method) {
		return reply, false // no other method can ask for input
	}
	if _, answered := rawjson.Get(r.Msg.Params, "inputResponses", loginInput); answered {
		return reply, false // the person has the URL, or does not want it
	}
	at, ok := login.Invite()
	if !ok {
		return reply, false
	}
	params := map[string]string{"mode": "url", "url": at, "message": "Log in, so that the tools of this server can be called. " + login.Error()}
	if r.s.Era.TypedResults {
		return wire.Message{Result: rawjson.Marshal(map[string]any{"resultType": "input_required", "inputRequests": map[string]any{
			loginInput: map[string]any{"method": "elicitation/create", "params": params},
		}})}, true
	}
	params["elicitationId"] = at[strings.LastIndexByte(at, '/')+1:]
	return wire.Message{Error: (&wire.Error{Code: wire.CodeURLElicitation, Message: login.Error(), Data: rawjson.Marshal(map[string]any{"elicitations": []any{params}})}).JSON()}, true
}

// withoutLogin takes the answer to an invitation out of params: it is foldgate's, not the server's.
func withoutLogin(params json.RawMessage) json.RawMessage {
	if !bytes.Contains(params, []byte(loginInput)) {
		return params
	}
	responses, _ := rawjson.Get(params, "inputResponses")
	if _, ok := rawjson.Get(responses, loginInput); !ok {
		return params // the words are in an argument
	}
	if rest := rawjson.Delete(responses, loginInput); string(rest) != "{}" {
		return rawjson.Set(params, rest, "inputResponses")
	}
	return rawjson.Delete(params, "inputResponses")
}

// unavailable is the error of a call that never left.
func unavailable(ctx context.Context, srv *upstream.Server, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, upstream.ErrFull) {
		return &interceptor.Refusal{Reason: trace.ReasonLimit, Code: "too_many_connections", Status: 429, RetryAfter: 10, Err: err,
			Message: fmt.Sprintf("%v. Nothing was sent; try again when other calls at %s are over, or have max_connections raised", err, srv.Key)}
	}
	if login := noLogin(srv, err); login != nil {
		return login
	}
	return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_unavailable", Status: 502, Err: err,
		Message: fmt.Sprintf("%v. Nothing was sent; try again in a few seconds, or go on without the tools of %s", err, srv.Key)}
}

// noLogin returns the refusal of a call for which foldgate has no login that the server accepts, nil if
// err is about something else.
func noLogin(srv *upstream.Server, err error) error {
	login, ok := errors.AsType[*upstream.LoginError](err)
	if !ok {
		return nil
	}
	return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: login.Code, Status: 502, Err: err,
		Message: fmt.Sprintf("upstream %s: %v. The call had no effect", srv.Key, login)}
}

// callFault is the error of a call that left and has no response.
func callFault(ctx context.Context, srv *upstream.Server, c *interceptor.Call, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if _, ok := errors.AsType[*interceptor.Refusal](err); ok {
		return err
	}
	switch login := noLogin(srv, err); {
	case login != nil:
		return login
	case errors.Is(err, conn.ErrClosed) && srv.Gone() != nil:
		return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_removed", Status: 502, Err: err,
			Message: fmt.Sprintf("upstream %s: %v while it handled %s. The call may have had an effect", srv.Key, srv.Gone(), c.Target.NameOrMethod())}
	case errors.Is(err, conn.ErrClosed):
		return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_crashed", Status: 502, Err: err,
			Message: fmt.Sprintf("upstream %s ended while it handled %s: %v. The call may have had an effect; the upstream is started again with the next call", srv.Key, c.Target.NameOrMethod(), err)}
	}
	return &interceptor.Refusal{Reason: trace.ReasonUpstream, Code: "upstream_failed", Status: 502, Err: err, Message: fmt.Sprintf("upstream %s: %v", srv.Key, err)}
}

// refuse returns the handler of a call that is refused. The call runs down the chain, so that the
// trace has it.
func refuse(err error) interceptor.Handler {
	return func(context.Context, *interceptor.Call) (*interceptor.Result, error) { return nil, err }
}

// refuseParams returns the handler of a request with params that can't be understood.
func (r *request) refuseParams(err error) interceptor.Handler {
	r.call.Target.Metered = false
	return refuse(err)
}

func invalidParams(format string, args ...any) error {
	return &wire.Error{Code: wire.CodeInvalidParams, Message: fmt.Sprintf(format, args...)}
}

// duplicateID is a request that was refused because its id is in use.
type duplicateID struct {
	s   *Session
	msg wire.Message
	err *wire.Error
}

func (p duplicateID) Serve() server.Reply {
	p.s.rt.Recorder.Rejected(p.s.fromHost(p.msg.Method, ""), trace.ReasonInvalid, p.err.JSONRPCCode(), p.err.Message)
	return server.Reply{Message: engine.Clean(p.s.rt.Boundary, wire.Message{ID: p.msg.ID, Error: p.err.JSON()})}
}

func (duplicateID) Sent() {}

// Rejected records a message that the server rejected. It implements [server.Router].
func (rt *Router) Rejected(r server.Rejection) {
	n := interceptor.Notification{From: r.From, Principal: r.Principal, Method: "message"}
	reason, rule := trace.ReasonInvalid, fmt.Sprint("http_", r.Status)
	switch r.Status {
	case http.StatusBadRequest:
		rule = r.Fault.JSONRPCCode()
	case http.StatusForbidden:
		reason = trace.ReasonPolicy
	case http.StatusRequestEntityTooLarge, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		reason = trace.ReasonLimit
	}
	if r.Rule != "" { // no login
		n.Method, reason, rule = "login", trace.ReasonPolicy, r.Rule
		rt.Telemetry.LoginFailed(rule)
	}
	if count, due := rt.Recorder.Rejected(n, reason, rule, r.Fault.Message); due && r.Rule != "" {
		rt.Log.Warn("a login failed", "from", r.From, "rule", rule, "count", count, "answer", r.Fault.Message)
	}
}
