package interceptor

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/interceptor/scrub"
)

// Boundary takes the secrets out of everything that crosses between hosts and
// servers. It has one method for each direction; nothing reaches a host or a
// server without one of them. It is safe for concurrent use.
type Boundary struct {
	Scrubber *scrub.Scrubber
	Policies Policies
}

// Policies has the scrubbing policy of each server.
type Policies interface {
	// ScrubPolicy returns the policy for a server, by its key; "" is foldgate.
	ScrubPolicy(server string) ScrubPolicy
}

// ScrubPolicy is what happens to secrets in what flows to a model (Results) and
// in what an agent sends to a server (Arguments).
type ScrubPolicy struct{ Results, Arguments Action }

// Action is what happens to a message in which a secret was found.
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

// Message is a message at the boundary, or the part of one that has to cross.
// The boundary replaces the parts by clean ones.
type Message struct {
	// Server is the key of the server that sent the message or gets it, which
	// decides the policy; "" for foldgate itself. Always redacts whatever the
	// policy: for text that foldgate writes itself, or stores.
	Server string
	Always bool
	// Body is the message's params, result or error. Text is text outside of
	// JSON, such as a reason, a name or the text of a fault.
	Body json.RawMessage
	Text string
	// Extra are the members beside the body, each with a comma before it, and
	// Header the HTTP headers. If a part of these must not pass, it is left out
	// and the rest of the message passes.
	Extra  []byte
	Header http.Header

	// Verdict and Found are set by the boundary.
	Verdict Verdict
	Found   []scrub.Finding

	err   error // why it was withheld
	clean bool  // no secret that can be found is left
}

// Verdict is the boundary's decision on a message.
type Verdict int

// The verdicts. A message that is Blocked or Withheld has lost all its parts;
// its Text is a notice.
const (
	Passed   Verdict = iota
	Redacted         // secrets were taken out
	Blocked          // it holds a secret, and the policy forbids that
	Withheld         // it could not be checked
)

// Err returns why a message was withheld, nil for any other verdict. It may
// quote the message.
func (m *Message) Err() error { return m.err }

// withheldText stands for what could not be checked, or must not be shown.
const withheldText = "(withheld: could not be checked for secrets)"

// Inbound scrubs a message from a server, or from foldgate itself, to a host.
func (b *Boundary) Inbound(ctx context.Context, m *Message) {
	b.pass(ctx, m, b.Policies.ScrubPolicy(m.Server).Results)
}

// Outbound scrubs a message from a host to a server.
func (b *Boundary) Outbound(ctx context.Context, m *Message) {
	b.pass(ctx, m, b.Policies.ScrubPolicy(m.Server).Arguments)
}

// Text returns a text of foldgate's own without secrets, for hosts and stores:
// what can't be checked is replaced by a notice.
func (b *Boundary) Text(text string) string {
	m := Message{Text: text, Always: true}
	b.Inbound(context.Background(), &m)
	return m.Text
}

// pass applies an action to all parts of m.
func (b *Boundary) pass(ctx context.Context, m *Message, a Action) {
	if m.Always {
		a = Redact
	}
	if a == Off {
		return
	}
	m.clean = true
	if len(m.Body) > 0 {
		clean, found, err := b.Scrubber.JSON(ctx, m.Body)
		m.Body = m.judge(a, m.Body, clean, found, err)
	}
	if m.Text != "" {
		clean, found, err := b.Scrubber.Text(ctx, m.Text)
		if text := m.judge(a, []byte(m.Text), []byte(clean), found, err); len(found) > 0 || err != nil {
			m.Text = string(text)
		}
	}
	if m.Verdict >= Blocked {
		*m = Message{Server: m.Server, Text: withheldText, Verdict: m.Verdict, Found: m.Found, err: m.err, clean: true}
		return
	}
	if len(m.Extra) > 0 {
		var beside Message
		object := append(append([]byte{'{'}, m.Extra[1:]...), '}')
		clean, found, err := b.Scrubber.JSON(ctx, object)
		object = beside.judge(a, object, clean, found, err)
		m.note(&beside)
		if m.Extra = nil; len(object) > len("{}") {
			m.Extra = append([]byte{','}, object[1:len(object)-1]...)
		}
	}
	if len(m.Header) > 0 {
		b.header(ctx, m, a)
	}
}

// header scrubs the headers of m, each value with its name.
func (b *Boundary) header(ctx context.Context, m *Message, a Action) {
	out := make(http.Header, len(m.Header))
	for name, values := range m.Header {
		for _, v := range values {
			var beside Message
			text := name + ": " + v
			clean, found, err := b.Scrubber.Text(ctx, text)
			kept := beside.judge(a, []byte(text), []byte(clean), found, err)
			m.note(&beside)
			if kept != nil {
				out[name] = append(out[name], strings.TrimPrefix(string(kept), name+": "))
			}
		}
	}
	m.Header = out
}

// judge notes on m what was found in a part, and returns what may go on of it:
// the part, its clean form, or nil.
func (m *Message) judge(a Action, part, clean []byte, found []scrub.Finding, err error) []byte {
	m.Found = append(m.Found, found...)
	switch {
	case err != nil:
		m.Verdict, m.err = Withheld, err
		return nil
	case len(found) == 0:
		return part
	case a == Block:
		m.Verdict = max(m.Verdict, Blocked)
		return nil
	case a == Redact:
		m.Verdict = max(m.Verdict, Redacted)
		return clean
	}
	m.clean = false
	return part
}

// note adds the findings of a part beside the body.
func (m *Message) note(part *Message) {
	m.Found = append(m.Found, part.Found...)
	if part.Verdict != Passed && m.Verdict == Passed {
		m.Verdict = Redacted
	}
}

// strictest returns the one of servers with the strictest policy for arguments.
func (b *Boundary) strictest(servers []string) string {
	order := []Action{Off, Report, Redact, Block}
	return slices.MaxFunc(servers, func(x, y string) int {
		return slices.Index(order, b.Policies.ScrubPolicy(x).Arguments) - slices.Index(order, b.Policies.ScrubPolicy(y).Arguments)
	})
}
