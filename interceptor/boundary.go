package interceptor

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/foldgate/foldgate/interceptor/scrub"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// Boundary removes secrets from every message between hosts and servers, by one method for each
// direction. No message gets past it. It is safe for concurrent use.
type Boundary struct {
	Scrubber *scrub.Scrubber
	Policy   func(server string) ScrubPolicy // by the server's key; "" is foldgate

	learned atomic.Int64 // number of the rules in force: texts that were checked by others are checked again
}

// ScrubPolicy has the actions for secrets in messages to a host and to a server. The configuration calls
// them results and arguments.
type ScrubPolicy struct{ ToHost, ToServer Action }

// Action is the treatment of a message with a secret.
type Action string

// The actions. Report is not for messages to a host: they pass unscrubbed only if Off is configured.
const (
	Redact Action = "redact" // replaces the secret by [REDACTED:<rule>]
	Report Action = "report" // lets the message pass and records the finding
	Block  Action = "block"  // refuses the whole message
	Off    Action = "off"    // does not look for secrets
)

// Message is a message at the boundary, or a part of one. The boundary cleans its parts.
type Message struct {
	// Server is the key of the server that sends or receives the message, "" for foldgate itself.
	// Its policy holds, unless Always demands to redact: for text that foldgate writes or stores.
	Server string
	Always bool
	// Method is the name of the method. It is never redacted: a message whose method holds a secret is
	// Blocked, unless the policy is Off.
	Method string
	// Body is the params, result or error. Text is outside of JSON: a reason, a name, a fault.
	Body json.RawMessage
	Text string
	// Extra are the members beside the body, each after a comma. Header has the HTTP headers. If
	// a part of these must not pass, it is left out, and the rest of the message passes.
	Extra  []byte
	Header http.Header

	// The boundary sets the rest. Err is the reason for Withheld. It may quote the message.
	Verdict Verdict
	Found   []trace.Finding
	Err     error

	crossed bool // the boundary has decided
	clean   bool // no secret that can be found is left
}

// Verdict is the boundary's decision on a message.
type Verdict int

// The verdicts. Of a message that is Blocked or Withheld only a notice is left, as its Text.
const (
	Passed   Verdict = iota
	Redacted         // secrets were removed
	Blocked          // it holds a secret, and the policy forbids that
	Withheld         // it could not be checked
)

// withheldText replaces text that could not be checked, or must not be shown.
const withheldText = "(withheld: could not be checked for secrets)"

// Relearn makes the boundary find secrets by the rules of s from now on.
func (b *Boundary) Relearn(s *scrub.Scrubber) {
	b.Scrubber.Replace(s)
	b.learned.Add(1) // after it: a text that is checked meanwhile has the number from before
}

// Text returns foldgate's own text without secrets. A notice replaces text that can't be checked.
func (b *Boundary) Text(text string) string {
	m := Message{Text: text, Always: true}
	b.ToHost(context.Background(), &m)
	return m.Text
}

// ToHost scrubs a message to a host, or to the model of a branch: from a server, or from foldgate itself.
func (b *Boundary) ToHost(ctx context.Context, m *Message) {
	b.pass(ctx, m, b.Policy(m.Server).ToHost)
}

// ToServer scrubs a message from a host to a server.
func (b *Boundary) ToServer(ctx context.Context, m *Message) {
	b.pass(ctx, m, b.Policy(m.Server).ToServer)
}

func (b *Boundary) pass(ctx context.Context, m *Message, a Action) {
	if m.Always {
		a = Redact
	}
	if m.crossed = true; a == Off {
		return
	}
	m.clean = true
	if m.Method != "" {
		judge(ctx, m, Block, b.Scrubber.Text, m.Method)
	}
	if len(m.Body) > 0 {
		m.Body = judge(ctx, m, a, b.Scrubber.JSON, []byte(m.Body))
	}
	if m.Text != "" {
		m.Text = judge(ctx, m, a, b.Scrubber.Text, m.Text)
	}
	if m.Verdict >= Blocked {
		*m = Message{Server: m.Server, Text: withheldText, Verdict: m.Verdict, Found: m.Found, Err: m.Err, crossed: true, clean: true}
		return
	}
	beside := Message{clean: true} // the parts that are left out if they must not pass
	if len(m.Extra) > 0 {
		m.Extra = extraOf(judge(ctx, &beside, a, b.Scrubber.JSON, objectOf(m.Extra)))
	}
	if len(m.Header) > 0 {
		all := m.Header
		m.Header = make(http.Header, len(all))
		for name, values := range all {
			for _, v := range values {
				if line := judge(ctx, &beside, a, b.Scrubber.Text, name+": "+v); line != "" {
					m.Header[name] = append(m.Header[name], strings.TrimPrefix(line, name+": "))
				}
			}
		}
	}
	m.Found, m.clean = append(m.Found, beside.Found...), m.clean && beside.clean
	if m.Verdict == Passed && beside.Verdict != Passed {
		m.Verdict = Redacted
	}
}

// judge scrubs a part of m and notes the findings on m. It returns what may pass: the part, its
// clean form or nothing.
func judge[T string | []byte](ctx context.Context, m *Message, a Action, look func(context.Context, T) (T, []scrub.Finding, error), part T) (kept T) {
	clean, found, err := look(ctx, part)
	m.Found = noted(m.Found, found, a.taken())
	switch {
	case err != nil:
		m.Verdict, m.Err = Withheld, err
	case len(found) == 0:
		return part
	case a == Block:
		m.Verdict = max(m.Verdict, Blocked)
	case a == Redact:
		m.Verdict = max(m.Verdict, Redacted)
		return clean
	default:
		m.clean = false
		return part
	}
	return kept
}

// taken returns the trace's word for what the action does with a secret.
func (a Action) taken() string {
	switch a {
	case Redact:
		return trace.Redacted
	case Block:
		return trace.Blocked
	}
	return trace.LetThrough
}

// noted appends findings to those of a message, with the action taken.
func noted(all []trace.Finding, found []scrub.Finding, action string) []trace.Finding {
	for _, f := range found {
		all = append(all, trace.Finding{Rule: f.Rule, Field: f.Field, Action: action})
	}
	return all
}

// server returns the key of the server with the policy for a call's request. Of several that may be
// asked it is the strictest.
func (b *Boundary) server(c *Call) string {
	if t := &c.Target; t.Server != "" || len(t.Candidates) == 0 || c.Origin.Direction == ToHost {
		return t.Server
	}
	order := []Action{Off, Report, Redact, Block}
	strictness := func(server string) int { return slices.Index(order, b.Policy(server).ToServer) }
	return slices.MaxFunc(c.Target.Candidates, func(x, y string) int { return cmp.Compare(strictness(x), strictness(y)) })
}
