package interceptor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/foldgate/foldgate/interceptor/scrub"
)

// Action says what happens to a message in which a secret was found.
type Action string

// The actions. Results are never merely reported: a result that is let through
// unscrubbed must be configured as off, on purpose.
const (
	// Redact replaces the secret by [REDACTED:<rule>].
	Redact Action = "redact"
	// Report lets the message pass and records the finding.
	Report Action = "report"
	// Block refuses the whole message.
	Block Action = "block"
	// Off does not look.
	Off Action = "off"
)

// ScrubPolicy is what Scrub does with what flows to a model (Results) and with
// what an agent sends to a server (Arguments).
type ScrubPolicy struct{ Results, Arguments Action }

// Scrub takes the secrets out of everything that flows back towards a model,
// and by policy out of what flows to a server. It is the innermost layer, so
// that nothing outside it ever holds an unscrubbed result; if the engine
// fails, the message is withheld.
func Scrub(s *scrub.Scrubber, policy func(server string) ScrubPolicy) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			p := policy(c.Target.Server)
			outward, inward := p.Arguments, p.Results
			if c.Origin.Direction == FromUpstream { // its parameters are what a model reads
				outward, inward = p.Results, p.Arguments
			}
			if err := scrubForward(ctx, s, c, outward); err != nil {
				return nil, err
			}
			res, err := next(ctx, c)
			if err != nil || c.Outcome.Clean {
				return res, scrubError(ctx, s, err)
			}
			return scrubResult(ctx, s, c, res, inward)
		}
	}
}

// scrubForward applies the policy to what is sent on.
func scrubForward(ctx context.Context, s *scrub.Scrubber, c *Call, a Action) error {
	if a == Off || len(c.Target.Forward) == 0 {
		return nil
	}
	if c.Outcome.paramsScrubbed && len(c.Outcome.ArgumentFindings) == 0 && len(c.Outcome.Findings) == 0 {
		return nil // Forward is Params less what foldgate added, and Params are clean
	}
	clean, found, err := s.JSON(ctx, c.Target.Forward)
	if err != nil {
		return withhold(c, "parameters of "+c.Target.Method, err)
	}
	c.Outcome.ArgumentFindings = found
	if len(found) == 0 {
		return nil
	}
	switch a {
	case Redact:
		c.Target.Forward = clean
	case Block:
		c.Outcome.Decision = "unsafe"
		return &Refusal{Reason: "unsafe", Code: "secret_in_arguments", Status: 403, Message: fmt.Sprintf(
			"the arguments contain what looks like a secret (rule %s) and the policy for %s forbids sending it; remove it and call again", found[0].Rule, serverName(c))}
	}
	return nil
}

// scrubResult applies the policy to what came back.
func scrubResult(ctx context.Context, s *scrub.Scrubber, c *Call, res *Result, a Action) (*Result, error) {
	if a == Off {
		return res, nil
	}
	raw := res.Body
	if res.Error != nil {
		raw = res.Error
	}
	clean, found, err := s.JSON(ctx, raw)
	if err != nil {
		return nil, withhold(c, "result of "+c.Target.Method, err)
	}
	c.Outcome.Findings = append(c.Outcome.Findings, found...)
	c.Outcome.resultScrubbed = len(found) == 0 || a != Report
	if len(found) == 0 || a == Report {
		return res, nil
	}
	if a == Block {
		c.Outcome.Decision = "unsafe"
		return nil, &Refusal{Reason: "unsafe", Code: "secret_in_result", Status: 403, Message: fmt.Sprintf(
			"the result contains what looks like a secret (rule %s) and the policy for %s withholds such results", found[0].Rule, serverName(c))}
	}
	if res.Error != nil {
		return &Result{Error: clean, Extra: res.Extra}, nil
	}
	return &Result{Body: clean, Extra: res.Extra}, nil
}

// withhold is the closed end of failing closed. The engine's error may quote
// the text it failed on, so the message does not repeat it.
func withhold(c *Call, what string, err error) error {
	c.Outcome.Decision = "unsafe"
	return &Refusal{Reason: "unsafe", Code: "scrub_failed", Status: 500, Err: err, Message: fmt.Sprintf(
		"the %s could not be checked for secrets and was withheld; ask for less at a time, or raise scrub.timeout_ms", what)}
}

// scrubError takes secrets out of a Go error's text, keeping its identity.
func scrubError(ctx context.Context, s *scrub.Scrubber, err error) error {
	if err == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // the end of the call is often the error
	clean, found, serr := s.Text(ctx, err.Error())
	if serr != nil {
		clean = "the error message could not be checked for secrets and was withheld"
	} else if len(found) == 0 {
		return err
	}
	var r *Refusal
	if !errors.As(err, &r) {
		return &scrubbedError{text: clean, err: err}
	}
	safe := *r // its message is what the host reads
	if safe.Message, _, serr = s.Text(ctx, r.Message); serr != nil {
		safe.Message = clean
	}
	return &safe
}

// scrubbedError shows a cleaned text and keeps the cause for errors.Is.
type scrubbedError struct {
	text string
	err  error
}

func (e *scrubbedError) Error() string { return e.text }
func (e *scrubbedError) Unwrap() error { return e.err }

func serverName(c *Call) string {
	if c.Target.Server == "" {
		return "foldgate"
	}
	return c.Target.Server
}

// cleanParams returns the call's parameters as the trace may store them.
func cleanParams(ctx context.Context, s *scrub.Scrubber, c *Call) json.RawMessage {
	if len(c.Target.Params) == 0 {
		return nil
	}
	if !c.Outcome.paramsScrubbed {
		c.Outcome.paramsScrubbed = true
		clean, found, err := s.JSON(ctx, c.Target.Params)
		if err != nil {
			clean = json.RawMessage(`"withheld: could not be checked for secrets"`)
		}
		c.Outcome.scrubbedParams = clean
		if c.Origin.Direction == FromUpstream {
			c.Outcome.Findings = found
		} else {
			c.Outcome.ArgumentFindings = found
		}
	}
	return c.Outcome.scrubbedParams
}
