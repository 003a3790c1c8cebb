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

// Rung is the evidence by which a call was put into its branch, strongest first.
type Rung string

// The rungs of the attribution ladder. The first that applies is used; a call
// is never guessed into a branch.
const (
	// RungArgument: the branch_id argument that foldgate added to the tool's schema.
	RungArgument Rung = "argument"
	// RungMeta: _meta["io.github.foldgate/branch_id"].
	RungMeta Rung = "meta"
	// RungURL: the endpoint /b/<branch_id>/mcp.
	RungURL Rung = "url"
	// RungResult: the active branch of the stored result that is read.
	RungResult Rung = "result"
	// RungThread: the one active leaf branch that the host's thread opened, or
	// the branch that a thread which works for another was handed.
	RungThread Rung = "thread"
	// RungSession: the one active leaf branch of the legacy session, where the
	// host names no thread.
	RungSession Rung = "session"
	// RungCause: the branch of the call that caused this request.
	RungCause Rung = "cause"
	// RungMain: no branch.
	RungMain Rung = "main"
)

// named reports whether the agent or its host named the branch.
func (r Rung) named() bool { return r == RungArgument || r == RungMeta || r == RungURL }

// Locate fills in which branch c belongs to. It has no effect beyond c, so
// that Trace can record the context before anything happens; a handle that
// names no usable branch is remembered and refused by Attribute.
func Locate(m *folding.Manager, c *Call) {
	if c.located {
		return
	}
	c.located = true
	caller := c.Caller()
	switch {
	case c.Branch != nil: // the causing call's branch
		c.Rung = RungCause
	case c.Handle != "":
		b, err := m.Resolve(caller, c.Handle)
		c.Rung, c.locateErr = c.HandleRung, err
		if err == nil || (errors.Is(err, folding.ErrNotActive) && b.ID != "") {
			c.Branch = &b
		}
	case c.Implicit:
		b, leaves := m.ActiveLeaf(caller)
		switch {
		case leaves == 1:
			if c.Branch, c.Rung = &b, RungSession; c.Thread != "" {
				c.Rung = RungThread
			}
		case leaves > 1:
			c.Ambiguous = true
		}
	}
	if c.Branch == nil {
		if c.Rung == "" {
			c.Rung = RungMain
		}
	} else {
		c.Context = string(c.Branch.Context)
	}
	if c.SubContext != "" {
		p, err := below(c.Context, c.SubContext)
		if err != nil && c.locateErr == nil {
			c.locateErr = &Refusal{Reason: "invalid", Code: "invalid_context", Status: 400, Message: err.Error(), Err: err}
		} else if err == nil {
			c.Context = string(p)
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
			ended := c.Control && errors.Is(c.locateErr, folding.ErrNotActive) // its agent may still return from it
			if c.locateErr != nil && !ended {
				r := FoldingRefusal(c.locateErr)
				c.Decision = r.Reason
				return nil, r
			}
			if c.Spawned && c.Implicit && !c.Control && c.Branch != nil && c.Rung.named() {
				m.Join(c.Caller(), c.Branch.ID)
			}
			return next(ctx, c)
		}
	}
}
