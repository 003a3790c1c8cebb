package workflow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
)

// Statuses of a step.
const (
	Working       = "working"
	Completed     = "completed"
	Failed        = "failed"
	Canceled      = "canceled"
	Rejected      = "rejected"
	InputRequired = "input_required"
	// Interrupted is a step whose process died during its last call: nobody
	// knows whether the call had an effect.
	Interrupted = "interrupted"
)

// Errors of [Engine.Plan] that callers branch on.
var (
	// ErrUnknown is a handle that is unknown, expired, closed or not the caller's.
	ErrUnknown = errors.New("unknown or expired")
	// ErrRequired is a call without a workflow where the rules demand one.
	ErrRequired = errors.New("belongs to no workflow")
)

// Engine decides which step of which workflow a call is. Its methods are safe
// for concurrent use, also by several processes on one store.
type Engine struct {
	store *Store
	now   func() time.Time
}

// NewEngine returns an engine on a store that stays the caller's to close.
func NewEngine(store *Store, now func() time.Time) *Engine {
	return &Engine{store: store, now: now}
}

// Request is what [Engine.Plan] needs to know of a call.
type Request struct {
	// Rule is the tool's. Principal and Session say on whose behalf.
	Rule               *Rule
	Principal, Session string
	// Handle is the handle that the call gives for foldgate, Native the one that
	// it gives to the server, in a parameter of the server's own.
	Handle, Native string
	Arguments      json.RawMessage
	// Secret reports whether a text looks like a secret; such a handle is unknown.
	Secret func(text string) bool
}

// Step is what a call is in its workflow. Where ID is "", it belongs to none.
type Step struct {
	Rule *Rule
	// ID is the step's handle, Path its place in the workflow, Root the first
	// handle in it.
	ID, Path, Root string
	// Foreign is the id by which the host knows the workflow, where it is not Root.
	Foreign   string
	Name      string   // of the step
	Attempt   int      // from 1: how often the step was tried
	Status    string   // one of the constants from Working on
	Evidence  Evidence // what the link to the workflow rests on
	Ambiguous bool     // the evidence fits other workflows or steps too
	// New: the step did not exist before this call.
	New bool
	// Opened and Started are the trace records of the call that opened the
	// workflow, and of its workflow/start.
	Opened, Started string

	request Request
	parent  string
	key     string
	joins   map[string][]string
}

// Handle is what the host is to give with later calls.
func (s *Step) Handle() string {
	if s.Foreign != "" && s.ID == s.Root {
		return s.Foreign
	}
	return s.ID
}

// Plan finds out which step a call is, without any effect. Two calls with the
// same key that are planned at the same time both plan a new step; [Engine.Begin]
// makes them one. The error is [ErrUnknown], [ErrRequired], or a fault of the store.
func (e *Engine) Plan(ctx context.Context, r Request) (*Step, error) {
	now := e.now()
	s := &Step{Rule: r.Rule, Name: r.Rule.Step, Evidence: None, Status: Working, request: r}
	doc := requestDocument(r.Arguments)
	s.joins = namedValues(r.Rule.join, doc)
	at, err := e.resolve(ctx, s, now.UnixMicro())
	if err != nil {
		return nil, err
	}
	switch role := r.Rule.Role; {
	case at == nil && role == RoleOpen:
		s.ID = NewID(now)
		s.Path, s.Root, s.Attempt, s.New = s.ID, s.ID, 1, true
		return s, nil
	case at == nil && r.Rule.flow.Require:
		return nil, ErrRequired
	case at == nil:
		return s, nil
	case role == RoleLink:
		s.key = key(r.Rule.key, doc)
		err = e.planLink(ctx, s, at, now)
	default:
		if role != RoleStatus && at.id != at.root { // opened again, or closed, by a step's handle
			if at, err = byID(ctx, e.store.db, at.root); err != nil || at == nil {
				return nil, errors.Join(err, ErrUnknown)
			}
		}
		s.take(at)
		if role == RoleOpen {
			s.Attempt++
			s.Status = Working
		}
	}
	if err != nil {
		return nil, err
	}
	return s, e.rooted(ctx, s)
}

// take makes s the step of an existing node.
func (s *Step) take(n *node) {
	s.ID, s.Path, s.Root, s.parent, s.Attempt, s.Status = n.id, n.path, n.root, n.parent, n.attempts, n.status
	s.Name, s.New = n.step, false
}

// rooted reads what s needs of its root.
func (e *Engine) rooted(ctx context.Context, s *Step) error {
	root, err := byID(ctx, e.store.db, s.Root)
	if err != nil || root == nil {
		return errors.Join(err, ErrUnknown)
	}
	s.Opened, s.Started, s.Foreign = root.request, root.record, root.foreign
	return nil
}

// planLink finds the step that a link call makes or repeats: beside a step of
// the same name, else below the one that the evidence leads to.
func (e *Engine) planLink(ctx context.Context, s *Step, at *node, now time.Time) error {
	parent := at
	for n := at; n.parent != ""; {
		up, err := byID(ctx, e.store.db, n.parent)
		if err != nil || up == nil {
			return errors.Join(err, ErrUnknown)
		}
		if n.step == s.Name {
			parent = up
		}
		n = up
	}
	same, err := byKey(ctx, e.store.db, parent.id, s.Name, s.key)
	if err != nil {
		return err
	}
	if same != nil {
		s.take(same)
		s.Attempt++
		s.Status = Working
		return nil
	}
	s.ID = NewID(now)
	p, err := contextpath.Path(parent.path).Join(s.ID)
	if err != nil {
		return fmt.Errorf("workflow path: %w", err)
	}
	s.Path, s.Root, s.parent, s.Attempt, s.New = string(p), parent.root, parent.id, 1, true
	return nil
}

// Begin makes the planned step exist, or counts one more attempt at it, and
// moves the workflow's expiry on. request is the trace record of the call,
// record the one that tells of the step.
func (e *Engine) Begin(ctx context.Context, s *Step, request, record string) error {
	if s.ID == "" {
		return nil
	}
	now, r := e.now().UnixMicro(), s.request
	return e.store.update(ctx, func(tx *sql.Tx) error {
		if s.New {
			same, err := byKey(ctx, tx, s.parent, s.Name, s.key)
			if err != nil {
				return err
			}
			if same != nil { // made since it was planned
				s.take(same)
				s.Attempt++
			}
		}
		switch {
		case s.New:
			n := &node{
				id: s.ID, path: s.Path, root: s.Root, parent: s.parent, workflow: r.Rule.Workflow(), principal: r.Principal, session: r.Session,
				server: r.Rule.Server, tool: r.Rule.Tool, step: s.Name, key: s.key, status: Working, attempts: 1,
				request: request, record: record, foreign: s.Foreign, created: now, used: now,
			}
			if s.ID == s.Root {
				n.expires = now + r.Rule.TTL().Microseconds()
			}
			if err := insert(ctx, tx, n); err != nil {
				return err
			}
		case r.Rule.Role == RoleOpen || r.Rule.Role == RoleLink:
			if err := attempt(ctx, tx, s.ID, now); err != nil {
				return err
			}
		}
		if r.Rule.Role == RoleLink {
			if err := addJoins(ctx, tx, s.ID, s.joins); err != nil {
				return err
			}
		}
		for _, alias := range []string{s.Foreign, r.Native} {
			if r.Rule.Role == RoleOpen && alias != "" && validForeign(alias) {
				if err := addAlias(ctx, tx, r.Principal, r.Rule.Workflow(), alias, s.Root); err != nil {
					return err
				}
			}
		}
		return touch(ctx, tx, s.Root, now, r.Rule.TTL())
	})
}
