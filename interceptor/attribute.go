package interceptor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
)

// Source is the evidence by which a call was put into its branch, strongest first.
type Source string

// The attribution sources. The first that applies is used; a call
// is never guessed into a branch.
const (
	// SourceArgument: the branch_id argument that foldgate added to the tool's schema.
	SourceArgument Source = "argument"
	// SourceMeta: _meta["io.github.foldgate/branch_id"].
	SourceMeta Source = "meta"
	// SourceURL: the endpoint /b/<branch_id>/mcp.
	SourceURL Source = "url"
	// SourceResult: the active branch of the stored result that is read.
	SourceResult Source = "result"
	// SourceThread: the one active leaf branch that the host's thread opened, or
	// the branch that a thread which works for another was handed.
	SourceThread Source = "thread"
	// SourceSession: the one active leaf branch of the legacy session, where the
	// host names no thread.
	SourceSession Source = "session"
	// SourceCause: the branch of the call that caused this request.
	SourceCause Source = "cause"
	// SourceMain: no branch.
	SourceMain Source = "main"
)

// named reports whether the agent or its host named the branch.
func (s Source) named() bool { return s == SourceArgument || s == SourceMeta || s == SourceURL }

// Locate fills in which branch c belongs to. It has no effect beyond c, so
// that Trace can record the context before anything happens; a handle that
// names no usable branch is remembered and refused by Attribute.
func Locate(m *folding.Manager, c *Call) {
	if c.Attribution.located {
		return
	}
	c.Attribution.located = true
	caller := c.Caller()
	switch {
	case c.Attribution.Branch != nil: // the causing call's branch
		c.Attribution.Source = SourceCause
	case c.Attribution.BranchID != "":
		b, err := m.Resolve(caller, c.Attribution.BranchID)
		c.Attribution.err = err
		if err == nil || (errors.Is(err, folding.ErrNotActive) && b.ID != "") {
			c.Attribution.Branch = &b
		}
	case c.Attribution.Implicit:
		b, leaves := m.ActiveLeaf(caller)
		switch {
		case leaves == 1:
			if c.Attribution.Branch, c.Attribution.Source = &b, SourceSession; c.Origin.Thread != "" {
				c.Attribution.Source = SourceThread
			}
		case leaves > 1:
			c.Attribution.Ambiguous = true
		}
	}
	if c.Attribution.Branch == nil {
		if c.Attribution.Source == "" {
			c.Attribution.Source = SourceMain
		}
	} else {
		c.Attribution.Context = string(c.Attribution.Branch.Context)
	}
	if c.Attribution.SubContext != "" {
		p, err := below(c.Attribution.Context, c.Attribution.SubContext)
		if err != nil && c.Attribution.err == nil {
			c.Attribution.err = &Refusal{Reason: "invalid", Code: "invalid_context", Status: 400, Message: err.Error(), Err: err}
		} else if err == nil {
			c.Attribution.Context = string(p)
		}
	}
}

// below is the context path at with what the host adds to it for the trace. It
// must not name a branch: an auditor who asks for one asks for what was done in it.
func below(at, sub string) (contextpath.Path, error) {
	p, err := contextpath.Path(at).Join(sub)
	if err == nil && slices.ContainsFunc(strings.Split(sub, "/"), folding.IsBranchID) {
		err = fmt.Errorf("context %q names a branch; a call is put into one by its branch_id", sub)
	}
	return p, err
}

// Attribute refuses a call whose handle names no branch that the caller may
// use. The finding itself is done by [Locate]. A thread that works for another
// and makes a call in a branch that it names is taken to have been handed it:
// it need not name it again.
func Attribute(m *folding.Manager) Middleware {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			Locate(m, c)
			ended := c.Target.Control && errors.Is(c.Attribution.err, folding.ErrNotActive) // its agent may still return from it
			if c.Attribution.err != nil && !ended {
				r := FoldingRefusal(c.Attribution.err)
				c.Outcome.Decision = r.Reason
				return nil, r
			}
			if c.Origin.Spawned && c.Attribution.Implicit && !c.Target.Control && c.Attribution.Branch != nil && c.Attribution.Source.named() {
				m.Join(c.Caller(), c.Attribution.Branch.ID)
			}
			return next(ctx, c)
		}
	}
}
