package interceptor

import (
	"context"
	"errors"
	"fmt"
)

// Scrub passes each call through the boundary: the request on its way out and
// the response on its way back. It is the innermost layer, so that nothing
// outside it ever holds an unscrubbed result. If the engine fails, the message
// is withheld.
func Scrub(b *Boundary) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if err := b.request(ctx, c); err != nil {
				return nil, err
			}
			res, err := next(ctx, c)
			if err != nil {
				return res, b.scrubError(ctx, err)
			}
			if c.Outcome.Clean {
				return res, nil
			}
			return b.response(ctx, c, res)
		}
	}
}

// request passes what c sends on through the boundary.
func (b *Boundary) request(ctx context.Context, c *Call) error {
	t, o := &c.Target, &c.Outcome
	m := Message{Server: t.Server, Body: t.Forward, Extra: t.Extra, Header: t.Header}
	known := o.paramsScrubbed && len(o.ArgumentFindings) == 0 && len(o.Findings) == 0
	if known {
		m.Body = nil // Forward is Params less what foldgate added, and Params are clean
	}
	found := &o.ArgumentFindings
	if c.Origin.Direction == FromUpstream { // its parameters are what a model reads
		found = &o.Findings
		b.Inbound(ctx, &m)
	} else {
		if t.Server == "" && len(t.Candidates) > 0 {
			m.Server = b.strictest(t.Candidates)
		}
		b.Outbound(ctx, &m)
	}
	if len(m.Found) > 0 {
		*found = m.Found
	}
	switch m.Verdict {
	case Withheld:
		return withhold(c, "parameters of "+t.Method, m.err)
	case Blocked:
		o.Decision = "unsafe"
		return &Refusal{Reason: "unsafe", Code: "secret_in_arguments", Status: 403, Message: fmt.Sprintf(
			"the arguments contain what looks like a secret (rule %s) and the policy for %s forbids sending it; remove it and call again", m.Found[0].Rule, serverName(c))}
	}
	if t.Extra, t.Header = m.Extra, m.Header; !known {
		t.Forward = m.Body
	}
	return nil
}

// response passes what came back through the boundary.
func (b *Boundary) response(ctx context.Context, c *Call, res *Result) (*Result, error) {
	m := Message{Server: c.Target.Server, Body: res.Body, Extra: res.Extra}
	if res.Error != nil {
		m.Body = res.Error
	}
	if c.Origin.Direction == FromUpstream { // what the host answers goes to the server
		b.Outbound(ctx, &m)
	} else {
		b.Inbound(ctx, &m)
	}
	c.Outcome.Findings = append(c.Outcome.Findings, m.Found...)
	c.Outcome.resultScrubbed = m.clean
	switch m.Verdict {
	case Passed:
		return res, nil
	case Withheld:
		return nil, withhold(c, "result of "+c.Target.Method, m.err)
	case Blocked:
		c.Outcome.Decision = "unsafe"
		return nil, &Refusal{Reason: "unsafe", Code: "secret_in_result", Status: 403, Message: fmt.Sprintf(
			"the result contains what looks like a secret (rule %s) and the policy for %s withholds such results", m.Found[0].Rule, serverName(c))}
	}
	if res.Error != nil {
		return &Result{Error: m.Body, Extra: m.Extra}, nil
	}
	return &Result{Body: m.Body, Extra: m.Extra}, nil
}

// withhold refuses a message that could not be checked. The engine's error may
// quote the text it failed on, so the message does not repeat it.
func withhold(c *Call, what string, err error) error {
	c.Outcome.Decision = "unsafe"
	return &Refusal{Reason: "unsafe", Code: "scrub_failed", Status: 500, Err: err, Message: fmt.Sprintf(
		"the %s could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms", what)}
}

// scrubError takes secrets out of a Go error's text and keeps its identity.
func (b *Boundary) scrubError(ctx context.Context, err error) error {
	ctx = context.WithoutCancel(ctx) // the end of the call is often the error
	m := Message{Text: err.Error(), Always: true}
	if b.Inbound(ctx, &m); m.Verdict == Passed {
		return err
	}
	if m.Verdict == Withheld {
		m.Text = "the error message could not be checked for secrets and was withheld"
	}
	var r *Refusal
	if !errors.As(err, &r) {
		return &scrubbedError{text: m.Text, err: err}
	}
	safe, read := *r, Message{Text: r.Message, Always: true} // which is what the host reads
	if b.Inbound(ctx, &read); read.Verdict == Withheld {
		read.Text = m.Text
	}
	safe.Message = read.Text
	return &safe
}

// scrubbedError shows a cleaned text and keeps the cause for errors.Is.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }

// serverName names the server of c in messages and metrics.
func serverName(c *Call) string {
	if c.Target.Server == "" {
		return "foldgate"
	}
	return c.Target.Server
}
