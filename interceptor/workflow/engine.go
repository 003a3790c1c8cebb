// Package workflow groups calls of tools that share no session into workflows,
// such as: discover, activate, ask for the status.
//
// A workflow is a tree of steps. Each tool has a rule with a role. An open tool
// starts a workflow, a link tool adds a step to it, a status tool asks about a
// step, and a close tool ends the workflow. A step has an id, ctx_<unix
// seconds>_<26 random characters>; the id of the first step names the workflow.
// A step's path is the ids from the first step down to it, in the grammar of
// package contextpath. It is independent of the branch of the call.
//
//	rules, faults := workflow.Compile(specs) // once, from the configuration
//	e, err := workflow.Open(path, time.Now)
//	defer e.Close()
//	step, err := e.Plan(ctx, workflow.Request{Rule: rules.Find(server, tool), ...}) // no effect
//	err = e.Begin(ctx, step, request, record) // the step exists, or has one more attempt
//	err = e.End(ctx, step, workflow.Outcome{Status: workflow.Completed, Result: result})
//
// Evidence decides which workflow a call belongs to, the strongest first: an id
// that the call gives, an id of the server's own, a value that an earlier result
// held, the last workflow of the session. The step says which it was, so that an
// auditor can leave out inferred links. An id that is unknown, expired, closed
// or of another principal is refused with [ErrUnknown] in all four cases.
//
// The store has no arguments and no results: only hashes of the values that
// join calls.
package workflow

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/sqlitedb"
)

// Statuses of a step.
const (
	Working       = "working"
	Completed     = "completed"
	Failed        = "failed"
	Canceled      = "canceled"
	Rejected      = "rejected"
	InputRequired = "input_required"
	// Interrupted is a step whose process died during its last call. It is
	// unknown whether the call had an effect.
	Interrupted = "interrupted"
)

// Errors of [Engine.Plan] that callers branch on.
var (
	// ErrUnknown is an id that is unknown, expired, closed or not the caller's.
	ErrUnknown = errors.New("unknown or expired")
	// ErrRequired is a call without a workflow although the rules require one.
	ErrRequired = errors.New("belongs to no workflow")
)

// Request describes a call for [Engine.Plan].
type Request struct {
	Rule               *Rule // of the tool
	Principal, Session string
	// ID is the id that the call gives to foldgate. NativeID is the id that it
	// gives to the server, in a parameter of the server's own.
	ID, NativeID string
	Arguments    json.RawMessage
	// Secret reports whether a text looks like a secret. Such an id is unknown.
	Secret func(text string) bool
}

// Step is a call's place in its workflow. If ID is "", the call belongs to none.
type Step struct {
	Rule *Rule
	// ID is the step's id, Path the ids down to it, Root the id of the workflow.
	ID, Path, Root string
	// Foreign is the host's own id for the workflow, if it is not Root.
	Foreign   string
	Name      string   // of the step
	Attempt   int      // number of calls of the step, this one included
	Status    string   // a constant from Working on
	Evidence  Evidence // for the workflow
	Ambiguous bool     // the evidence fits other workflows or steps, too
	New       bool     // the step did not exist before this call
	// Opened and Started are trace records: of the call that opened the
	// workflow, and of its workflow/start.
	Opened, Started string

	request Request
	parent  string
	key     string
	joins   map[string][]string
}

// HostID returns the id that the host gives with later calls.
func (s *Step) HostID() string {
	if s.Foreign != "" && s.ID == s.Root {
		return s.Foreign
	}
	return s.ID
}

// Plan finds the step of a call. It has no effect. Two calls with one key that
// are planned at the same time both plan a new step; [Engine.Begin] makes them
// one. The error is [ErrUnknown], [ErrRequired] or an error of the database.
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
	case at == nil && r.Rule.workflow.Require:
		return nil, ErrRequired
	case at == nil:
		return s, nil
	case role == RoleLink:
		s.key = key(r.Rule.key, doc)
		if err := e.planLink(ctx, s, at, now); err != nil {
			return nil, err
		}
	default:
		if role != RoleStatus && at.id != at.root { // an open or close call that names a later step
			if at, err = e.mustFind(ctx, at.root); err != nil {
				return nil, err
			}
		}
		s.repeat(at)
	}
	root, err := e.mustFind(ctx, s.Root)
	if err != nil {
		return nil, err
	}
	s.Opened, s.Started, s.Foreign = root.request, root.record, root.foreign
	return s, nil
}

// planLink plans the step of a link call. If the evidence leads to a step of the
// same name or below one, the new step stands beside that, else below the step
// that the evidence leads to.
func (e *Engine) planLink(ctx context.Context, s *Step, at *node, now time.Time) error {
	parent := at
	for n := at; n.parent != ""; {
		up, err := e.mustFind(ctx, n.parent)
		if err != nil {
			return err
		}
		if n.step == s.Name {
			parent = up
		}
		n = up
	}
	same, err := byKey(ctx, e.db, parent.id, s.Name, s.key)
	if err != nil {
		return err
	}
	if same != nil {
		s.repeat(same)
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

// repeat makes s the step of an existing node. An open or link call is one more
// attempt at it.
func (s *Step) repeat(n *node) {
	s.ID, s.Path, s.Root, s.parent, s.Attempt, s.Status = n.id, n.path, n.root, n.parent, n.attempts, n.status
	s.Name, s.New = n.step, false
	if s.Rule.Role == RoleOpen || s.Rule.Role == RoleLink {
		s.Attempt++
		s.Status = Working
	}
}

// mustFind returns the node with an id that another node names.
func (e *Engine) mustFind(ctx context.Context, id string) (*node, error) {
	n, err := byID(ctx, e.db, id)
	if n == nil {
		return nil, errors.Join(err, ErrUnknown)
	}
	return n, nil
}

// resolve returns the node that the evidence leads to, nil if there is none. It
// sets the evidence of s.
func (e *Engine) resolve(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	open := r.Rule.Role == RoleOpen
	for _, evidence := range r.Rule.workflow.Evidence {
		var n *node
		var err error
		switch {
		case evidence == Explicit && r.ID != "":
			if n, err = e.explicit(ctx, s, now); err == nil && n == nil && s.Foreign != "" {
				s.Evidence = Explicit // of a new workflow with the host's id
				return nil, nil
			}
		case evidence == Native && r.NativeID != "":
			n, err = e.named(ctx, r, r.NativeID, now)
		case evidence == Join && !open && len(s.joins) > 0:
			n, err = e.join(ctx, s, "", now)
		case evidence == Session && !open && r.Session != "":
			if n, err = lastOf(ctx, e.db, r.Principal, r.Rule.Workflow(), r.Session, now); n != nil && !opens(r.Rule, n) {
				n = nil
			}
		}
		if err != nil {
			return nil, err
		}
		if n == nil {
			continue
		}
		s.Evidence = evidence
		if evidence != Join && r.Rule.Role == RoleStatus && n.id == n.root && len(s.joins) > 0 {
			return e.narrow(ctx, s, n, now)
		}
		return n, nil
	}
	return nil, nil
}

// explicit returns the node with the id that the call gives. If the call may
// start a workflow with that id, it sets Foreign and returns nil.
func (e *Engine) explicit(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	n, err := e.named(ctx, r, r.ID, now)
	if err != nil || n != nil {
		return n, err
	}
	w := r.Rule.workflow
	if w.Preserve && r.Rule.Role == RoleOpen && !ValidID(r.ID) && validForeign(r.ID) && (r.Secret == nil || !r.Secret(r.ID)) {
		taken, err := byAlias(ctx, e.db, r.Principal, w.Name, r.ID)
		if err != nil {
			return nil, err
		}
		if taken == nil { // the alias of an expired workflow is not given to another
			s.Foreign = r.ID
			return nil, nil
		}
	}
	if w.Remint {
		return nil, nil
	}
	return nil, ErrUnknown
}

// named returns the node with an id or alias in a live workflow of the caller.
func (e *Engine) named(ctx context.Context, r Request, id string, now int64) (*node, error) {
	var n *node
	var err error
	if ValidID(id) {
		n, err = byID(ctx, e.db, id)
	}
	if err == nil && n == nil {
		n, err = byAlias(ctx, e.db, r.Principal, r.Rule.Workflow(), id)
	}
	if err != nil || n == nil || n.principal != r.Principal || n.workflow != r.Rule.Workflow() {
		return nil, err
	}
	root := n
	if n.id != n.root {
		if root, err = byID(ctx, e.db, n.root); err != nil || root == nil {
			return nil, err
		}
	}
	if root.closed || root.expires <= now || !opens(r.Rule, root) {
		return nil, nil
	}
	return n, nil
}

// opens reports whether the tool that opened a workflow still does so.
func opens(rule *Rule, root *node) bool {
	return slices.ContainsFunc(rule.workflow.openers, func(o *Rule) bool { return o.Server == root.server && o.Tool == root.tool })
}

// join returns the newest node that holds a value for each join of the call. If
// within is not "", it looks below that root only.
func (e *Engine) join(ctx context.Context, s *Step, within string, now int64) (*node, error) {
	r := s.request
	var found []*node
	first := true
	for name, hashes := range s.joins {
		nodes, err := holding(ctx, e.db, r.Principal, r.Rule.Workflow(), name, hashes, now)
		if err != nil {
			return nil, err
		}
		if first {
			found, first = nodes, false
			continue
		}
		found = slices.DeleteFunc(found, func(n *node) bool {
			return !slices.ContainsFunc(nodes, func(o *node) bool { return o.id == n.id })
		})
	}
	if within != "" {
		found = slices.DeleteFunc(found, func(n *node) bool { return n.root != within || n.id == within })
	}
	if len(found) == 0 {
		return nil, nil
	}
	newest := found[0]
	for _, n := range found[1:] {
		sibling := n.id != n.root && newest.id != newest.root
		if n.root != newest.root || sibling && r.Rule.Role == RoleStatus {
			s.Ambiguous = true
		}
	}
	if r.Rule.Role == RoleLink && newest.id != newest.root {
		return byID(ctx, e.db, newest.root)
	}
	return newest, nil
}

// narrow returns the one step below root that holds the values of a status
// call, or root if there is none or more than one.
func (e *Engine) narrow(ctx context.Context, s *Step, root *node, now int64) (*node, error) {
	n, err := e.join(ctx, s, root.id, now)
	if err != nil || n == nil || s.Ambiguous {
		s.Ambiguous = false
		return root, err
	}
	return n, nil
}

// Begin stores a planned step, or counts one more attempt at it, and postpones
// the expiry of the workflow. request is the trace record of the call, record
// that of the step.
func (e *Engine) Begin(ctx context.Context, s *Step, request, record string) error {
	if s.ID == "" {
		return nil
	}
	now, r := e.now().UnixMicro(), s.request
	return sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		if s.New {
			same, err := byKey(ctx, tx, s.parent, s.Name, s.key)
			if err != nil {
				return err
			}
			if same != nil { // stored since s was planned
				s.repeat(same)
			}
		}
		var err error
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
			err = insert(ctx, tx, n)
		case r.Rule.Role == RoleOpen || r.Rule.Role == RoleLink:
			err = exec(ctx, tx, "UPDATE nodes SET attempts = attempts + 1, status = ?, used_at = ? WHERE id = ?", Working, now, s.ID)
		}
		if err == nil && r.Rule.Role == RoleLink {
			err = addJoins(ctx, tx, s.ID, s.joins)
		}
		if r.Rule.Role == RoleOpen {
			err = errors.Join(err, addAlias(ctx, tx, s, s.Foreign), addAlias(ctx, tx, s, r.NativeID))
		}
		if err != nil {
			return err
		}
		return exec(ctx, tx, "UPDATE nodes SET used_at = ?, expires_at = ? WHERE id = ?", now, now+r.Rule.TTL().Microseconds(), s.Root)
	})
}

// Outcome is how a call ended.
type Outcome struct {
	Status string
	// Result is the result that the host gets, nil if there is none. NativeID is
	// the id of the server's own in it.
	Result   json.RawMessage
	NativeID string
}

// End stores how a call ended, and the values that can join later calls to it.
func (e *Engine) End(ctx context.Context, s *Step, o Outcome) error {
	if s.ID == "" {
		return nil
	}
	r := s.request
	var captured map[string][]string
	if r.Rule.Role == RoleOpen && o.Result != nil {
		captured = namedValues(r.Rule.capture, resultDocument(r.Arguments, o.Result))
	}
	if r.Rule.Role == RoleOpen || r.Rule.Role == RoleLink {
		s.Status = o.Status
	}
	return sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		if err := exec(ctx, tx, "UPDATE nodes SET status = ? WHERE id = ?", s.Status, s.ID); err != nil {
			return err
		}
		if r.Rule.Role == RoleClose && o.Status == Completed {
			if err := exec(ctx, tx, "UPDATE nodes SET closed = 1 WHERE id = ?", s.Root); err != nil {
				return err
			}
		}
		if r.Rule.Role == RoleOpen {
			if err := addAlias(ctx, tx, s, o.NativeID); err != nil {
				return err
			}
		}
		return addJoins(ctx, tx, s.Root, captured)
	})
}

// Interrupt marks steps whose process has died during a call. It leaves a step
// alone that another process has ended since.
func (e *Engine) Interrupt(ctx context.Context, ids []string) error {
	return sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		for _, id := range ids {
			if err := exec(ctx, tx, "UPDATE nodes SET status = ? WHERE id = ? AND status = ?", Interrupted, id, Working); err != nil {
				return err
			}
		}
		return nil
	})
}

// Ended is a workflow that is over.
type Ended struct {
	Workflow, Principal, Session string
	ID                           string
	// Records are the trace records of its start and of its steps.
	Records []string
	Steps   int
}

// expireLimit bounds the work of one Expire, because calls wait for it.
const expireLimit = 32

// keepClosed is how long the rows of an ended workflow are kept.
const keepClosed = 24 * time.Hour

// Expire ends workflows that are past their TTL, a few at a time, and deletes
// those that ended a day ago. Each ended workflow is returned once, to one of
// the processes.
func (e *Engine) Expire(ctx context.Context) (ended []Ended, err error) {
	now := e.now().UnixMicro()
	due, err := one(ctx, e.db, "WHERE n.parent = '' AND n.closed = 0 AND n.expires_at <= ?", now)
	if err != nil || due == nil {
		return nil, err // the usual case, without a write
	}
	err = sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		roots, err := many(ctx, tx, "WHERE n.parent = '' AND n.closed = 0 AND n.expires_at <= ? LIMIT ?", now, expireLimit)
		if err != nil {
			return err
		}
		for _, root := range roots {
			x, err := ending(ctx, tx, root)
			if err != nil {
				return err
			}
			ended = append(ended, x)
			if err := exec(ctx, tx, "UPDATE nodes SET closed = 1 WHERE id = ?", root.id); err != nil {
				return err
			}
		}
		return exec(ctx, tx, "DELETE FROM nodes WHERE root IN (SELECT id FROM nodes WHERE parent = '' AND closed = 1 AND expires_at <= ? LIMIT ?)",
			now-keepClosed.Microseconds(), expireLimit)
	})
	return ended, err
}

// Ending describes the workflow that a step belongs to.
func (e *Engine) Ending(ctx context.Context, s *Step) (Ended, error) {
	root, err := byID(ctx, e.db, s.Root)
	if err != nil || root == nil {
		return Ended{}, err
	}
	return ending(ctx, e.db, root)
}

func ending(ctx context.Context, q querier, root *node) (Ended, error) {
	nodes, err := many(ctx, q, "WHERE n.root = ? ORDER BY n.created_at, n.rowid", root.id)
	x := Ended{Workflow: root.workflow, Principal: root.principal, Session: root.session, ID: root.id, Steps: len(nodes) - 1}
	for _, n := range nodes {
		x.Records = append(x.Records, n.record)
	}
	return x, err
}
