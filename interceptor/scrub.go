package interceptor

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/interceptor/trace"
)

// Scrub passes each call through the boundary: the request on its way out and the response on its
// way back. It is the innermost layer, so that nothing outside it holds an unscrubbed result. A
// message that can't be checked is withheld.
func Scrub(b *Boundary) Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			t, o, toHost := &c.Target, &c.Outcome, c.Origin.Direction == ToHost
			m := Message{Server: b.server(c), Body: t.Forward, Extra: t.Extra, Header: t.Header}
			if o.paramsClean { // Trace found no secret in Params, and Forward is a part of them
				m.Body = nil
			}
			if toHost { // a host's goes to a server
				m.Method = t.Method
			}
			err := b.cross(ctx, c, &m, toHost, "parameters")
			if len(m.Found) > 0 {
				*c.requestFindings() = m.Found
			}
			if err != nil {
				return nil, err
			}
			if t.Extra, t.Header = m.Extra, m.Header; !o.paramsClean {
				t.Forward = m.Body
			}
			res, err := next(ctx, c)
			if err != nil {
				return res, b.scrubError(ctx, err)
			}
			if o.Checked {
				return res, nil
			}
			m = Message{Server: t.Server, Body: res.value(), Extra: res.Extra}
			err = b.cross(ctx, c, &m, !toHost, "result")
			o.Findings, o.Clean = append(o.Findings, m.Found...), m.clean
			switch {
			case err != nil:
				return nil, err
			case m.Verdict == Passed:
				return res, nil
			}
			clean := res.with(m.Body, m.Extra)
			if !toHost && !bytes.Equal(clean.state(), res.state()) {
				return nil, &Refusal{Reason: trace.ReasonUnsafe, Code: "secret_in_state", Status: 403, Message: fmt.Sprintf(
					"%s asks for input, and its requestState contains what looks like a secret. foldgate removes it, and without it the server can't go on. If the host may see it, set scrub: {results: off} for that server", c.serverName())}
			}
			return clean, nil
		}
	}
}

// cross passes the parameters or the result of a call through the boundary, and refuses the call if
// they are withheld or blocked. It hides the engine's error, which may quote the text. A call that
// was cancelled meanwhile fails with the cause.
func (b *Boundary) cross(ctx context.Context, c *Call, m *Message, toHost bool, part string) error {
	if toHost {
		b.ToHost(ctx, m)
	} else {
		b.ToServer(ctx, m)
	}
	switch {
	case m.Verdict < Blocked:
		return nil
	case m.Verdict == Withheld && ctx.Err() != nil: // the call is over, so it was not looked at
		return b.scrubError(ctx, context.Cause(ctx))
	}
	r := &Refusal{Reason: trace.ReasonUnsafe, Code: "scrubbing_failed", Status: 500, Err: m.Err}
	switch {
	case m.Verdict == Withheld:
		r.Message = fmt.Sprintf("the %s of %s could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms", part, c.Target.Method)
	case part == "result":
		r.Code, r.Status = "secret_in_result", 403
		r.Message = fmt.Sprintf("the result contains what looks like a secret (rule %s) and the policy for %s withholds such results", m.Found[0].Rule, c.serverName())
	default:
		r.Code, r.Status = "secret_in_arguments", 403
		r.Message = fmt.Sprintf("the arguments contain what looks like a secret (rule %s) and the policy for %s forbids sending it; remove it and call again", m.Found[0].Rule, c.serverName())
	}
	return r
}

// scrubError removes secrets from the text of an error, and keeps its identity.
func (b *Boundary) scrubError(ctx context.Context, err error) error {
	ctx = context.WithoutCancel(ctx) // the end of the call is often the error
	m := Message{Text: err.Error(), Always: true}
	if b.ToHost(ctx, &m); m.Verdict == Passed {
		return err
	}
	if m.Verdict == Withheld {
		m.Text = "the error message could not be checked for secrets and was withheld"
	}
	r, ok := errors.AsType[*Refusal](err)
	if !ok {
		return &scrubbedError{text: m.Text, err: err}
	}
	safe, read := *r, Message{Text: r.Message, Always: true} // the host reads the message
	if b.ToHost(ctx, &read); read.Verdict == Withheld {
		read.Text = m.Text
	}
	safe.Message = read.Text
	return &safe
}

// scrubbedError shows a clean text and keeps the cause for errors.Is.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }
