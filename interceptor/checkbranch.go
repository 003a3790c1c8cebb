package interceptor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/foldgate/foldgate/folding"
	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/interceptor/trace"
)

// CheckBranch refuses a call if [Locate] found that its branch_id names no branch the caller may use.
//
// If a thread that another thread started names a branch, its later calls need not name it.
func CheckBranch(m *folding.Manager) Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			a := &c.Attribution
			// An agent may still return from a branch that has ended.
			if a.err != nil && !(c.Target.Control && errors.Is(a.err, folding.ErrNotActive)) {
				return nil, refuse(c, a.err)
			}
			if c.Origin.Spawned && a.Implicit && !c.Target.Control && a.Branch != nil && a.Source.Named() {
				m.Join(c.Caller(), a.Branch.ID)
			}
			return next(ctx, c)
		}
	}
}

// Source is the evidence by which a call was put into its branch.
type Source string

// The attribution sources, strongest first. The first that applies is used; none is a guess.
const (
	SourceArgument Source = "argument" // the branch_id argument that foldgate adds to the schema
	SourceMeta     Source = "meta"     // _meta["io.github.foldgate/branch_id"]
	SourceURL      Source = "url"      // the endpoint /b/<branch_id>/mcp
	SourceResult   Source = "result"   // the active branch of the stored result that is read
	// SourceThread is the only active leaf branch that the host's thread opened or joined.
	SourceThread Source = "thread"
	// SourceSession is the only active leaf branch of a legacy session. Its host names no threads.
	SourceSession Source = "session"
	SourceCause   Source = "cause" // the branch of the call that caused this request
	SourceMain    Source = "main"  // no branch
)

// Named reports whether the sender named the branch.
func (s Source) Named() bool { return s == SourceArgument || s == SourceMeta || s == SourceURL }

// Locate looks up the branch of a call. If the handle names no usable branch, CheckBranch refuses the
// call later.
func Locate(m *folding.Manager, c *Call) {
	a, caller := &c.Attribution, c.Caller()
	switch {
	case a.Branch != nil: // the branch of the call that caused this one
		a.Source = SourceCause
	case a.BranchID != "":
		b, err := m.Resolve(caller, a.BranchID)
		a.err = err
		if err == nil || (errors.Is(err, folding.ErrNotActive) && b.ID != "") {
			a.Branch = &b
		}
	case a.Implicit:
		b, leaves := m.ActiveLeaf(caller)
		if a.Ambiguous = leaves > 1; leaves == 1 {
			a.Branch = new(b)
			if a.Source = SourceSession; caller.Thread != "" {
				a.Source = SourceThread
			}
		}
	}
	if a.Branch != nil {
		a.Context = a.Branch.Context
	} else if a.Source == "" {
		a.Source = SourceMain
	}
	if a.SubContext == "" {
		return
	}
	switch p, err := below(a.Context, a.SubContext); {
	case err == nil:
		a.Context = p
	case a.err == nil:
		a.err = &Refusal{Reason: trace.ReasonInvalid, Code: "invalid_context", Status: 400, Message: err.Error(), Err: err}
	}
}

// below returns the context path of sub below at. sub must not name a branch, because an auditor
// who asks for a branch expects only the calls made in it. The levels of at do not count against
// those of sub, which its host may use whether or not a branch is open.
func below(at, sub string) (string, error) {
	err := contextpath.Validate(sub)
	if err == nil && trace.BranchOf(sub) != "" {
		err = fmt.Errorf("context %q has a part that begins with br_, as ids of branches do; to put a call into a branch, give its branch_id", sub)
	}
	return strings.TrimPrefix(at+"/"+sub, "/"), err
}
