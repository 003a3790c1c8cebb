// Package workflow groups calls of tools that share no session into workflows, such as: discover,
// activate, ask for the status.
//
// A workflow is a tree of steps. Each tool has a rule with a role. An open tool starts a
// workflow, a link tool adds a step to it, a status tool asks about a step, and a close tool ends
// the workflow. A step has an id, ctx_<unix seconds>_<26 random characters>; the id of the first
// step names the workflow. The path of a step is the ids from the first step down to it, in the
// grammar of package contextpath. It is independent of the branch of the call.
//
// [Compile] makes the rules from the configuration. A call goes through [Engine.Plan],
// [Engine.Begin] and [Engine.End]; see the package's example.
//
// Evidence decides which workflow a call belongs to. The step names its evidence, so that an
// auditor can leave out inferred links. An id that is unknown, expired, closed or of another
// principal is refused with [ErrUnknown] in all four cases.
//
// The store has no arguments and no results, but only hashes of the values that join calls.
package workflow

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/foldgate/foldgate/folding/contextpath"
	"github.com/foldgate/foldgate/internal/rawjson"
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
	// Interrupted is a step that lost its process during the last call. It is unknown whether the
	// call had an effect.
	Interrupted = "interrupted"
)

// Errors of [Engine.Plan] that callers branch on.
var (
	// ErrUnknown is an id that is unknown, expired, closed or not the caller's.
	ErrUnknown = errors.New("unknown or expired")
	// ErrRequired is a call without a workflow although the rules require one.
	ErrRequired = errors.New("belongs to no workflow")
)

// Engine assigns calls to the steps of workflows. It keeps workflows in an SQLite file, which
// several processes can use at a time: hosts start a gateway for each of their windows, and an id
// of one gateway is valid at the others. An Engine is safe for concurrent use. The end of the
// process loses no change.
type Engine struct {
	db     *sql.DB
	now    func() time.Time
	steady func() time.Time // does not jump; for the expiry
}

// Schema is that of the file; "flow" marks it.
var Schema = sqlitedb.Options{Migrations: migrations, ApplicationID: 0x666c6f77}

// Open opens or creates the file at path, readable by its owner only, in a directory that exists.
// Close the Engine to release it. What expires does so by steady, a clock that does not jump; nil means now.
func Open(path string, now, steady func() time.Time) (*Engine, error) {
	if steady == nil {
		steady = now
	}
	db, err := sqlitedb.Open(context.Background(), path, Schema)
	if err != nil {
		return nil, sqlitedb.Explain(err, "database of workflows", path, "to start without any")
	}
	db.SetMaxOpenConns(4)
	return &Engine{db: db, now: now, steady: steady}, nil
}

// Close releases the file.
func (e *Engine) Close() error { return e.db.Close() }

// Request describes a call for [Engine.Plan].
type Request struct {
	Rule               *Rule // of the tool
	Principal, Session string
	Host               string // as records name it
	// ID is the id that the call gives to foldgate. NativeID is the id that it gives to the
	// server, in a parameter of the server's own.
	ID, NativeID string
	Arguments    json.RawMessage
	Secret       func(text string) bool // reports whether it looks like a secret; such an id is unknown
}

// Step is a call's place in its workflow. If ID is "", the call belongs to none.
type Step struct {
	// ID is the step's id, Path the ids down to it, Root the id of the workflow.
	ID, Path, Root string
	Foreign        string   // the host's own id for the workflow, if it is not Root
	Name           string   // of the step
	Attempt        int      // number of this call within the step; Begin makes it exact
	Status         string   // a constant from Working on
	Evidence       Evidence // for the workflow
	Ambiguous      bool     // the evidence fits other workflows or steps, too
	New            bool     // the step did not exist before this call
	// Opened and Started are trace records: of the call that opened the workflow, and of its
	// workflow/start.
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

// Plan finds the step of a call. It has no effect. Two calls with one key that are planned at the
// same time both plan a new step; [Engine.Begin] makes them one. The error is [ErrUnknown],
// [ErrRequired] or an error of the database.
func (e *Engine) Plan(ctx context.Context, r Request) (*Step, error) {
	now := e.now()
	s := &Step{Name: r.Rule.Step, Evidence: None, Status: Working, request: r}
	doc := decode(map[string][]byte{"arguments": r.Arguments})
	s.joins = namedValues(r.Rule.join, doc)
	at, err := e.resolve(ctx, s, e.steady().UnixMicro())
	if err != nil {
		return nil, err
	}
	switch role := r.Rule.Role; {
	case at == nil && role == RoleOpen:
		s.ID = NewID(now)
		s.Path, s.Root, s.Attempt, s.New = s.ID, s.ID, 1, true
		return s, nil
	case at == nil && r.Rule.Workflow.Require:
		return nil, ErrRequired
	case at == nil:
		return s, nil
	case role == RoleLink:
		s.key = key(r.Rule.key, doc)
		if err := e.planLink(ctx, s, at, now); err != nil {
			return nil, err
		}
	default:
		if role != RoleStatus { // an open or close call can name a later step
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

// planLink plans the step of a link call. The evidence leads to a step. If that step, or a step above it, has
// the same name, the new step is its sibling. Else the new step is a child of the step of the evidence.
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
	if err != nil || same != nil {
		s.repeat(same)
		return err
	}
	s.ID = NewID(now)
	p, err := contextpath.Path(parent.path).Join(s.ID)
	if err != nil {
		return fmt.Errorf("workflow path: %w", err)
	}
	s.Path, s.Root, s.parent, s.Attempt, s.New = string(p), parent.root, parent.id, 1, true
	return nil
}

// repeat makes s the step of an existing node. An open or link call is one more attempt at it. If
// n is nil, s stays as it is.
func (s *Step) repeat(n *node) {
	if n == nil {
		return
	}
	s.ID, s.Path, s.Root, s.parent, s.Attempt, s.Status = n.id, n.path, n.root, n.parent, n.attempts, n.status
	s.Name, s.New = n.step, false
	if s.request.Rule.Role.acts() {
		s.Attempt++
		s.Status = Working
	}
}

func (e *Engine) mustFind(ctx context.Context, id string) (*node, error) {
	n, err := byID(ctx, e.db, id)
	if n == nil {
		return nil, errors.Join(err, ErrUnknown)
	}
	return n, nil
}

// resolve returns the node that the evidence leads to, or nil. It sets the evidence of s.
func (e *Engine) resolve(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	open := r.Rule.Role == RoleOpen
	for _, evidence := range r.Rule.Workflow.Evidence {
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
			if n, err = lastOf(ctx, e.db, r.Principal, r.Rule.Workflow.Name, r.Session, now); n != nil && !opens(r.Rule, n) {
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
			step, err := e.join(ctx, s, n.id, now)
			if err != nil || step != nil && !s.Ambiguous {
				return step, err
			}
			s.Ambiguous = false // the values fit no step or several, so the call asks about the whole
		}
		return n, nil
	}
	return nil, nil
}

// explicit returns the node with the id that the call gives. If the call may start a workflow
// with that id, it sets Foreign and returns nil.
func (e *Engine) explicit(ctx context.Context, s *Step, now int64) (*node, error) {
	r := s.request
	n, err := e.named(ctx, r, r.ID, now)
	if err != nil || n != nil {
		return n, err
	}
	w := r.Rule.Workflow
	if w.Preserve && r.Rule.Role == RoleOpen && !ValidID(r.ID) && foreignForm().MatchString(r.ID) && (r.Secret == nil || !r.Secret(r.ID)) {
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
		n, err = byAlias(ctx, e.db, r.Principal, r.Rule.Workflow.Name, id)
	}
	if err != nil || n == nil || n.principal != r.Principal || n.workflow != r.Rule.Workflow.Name {
		return nil, err
	}
	root, err := e.mustFind(ctx, n.root)
	if err != nil || root.closed || root.expires <= now || !opens(r.Rule, root) {
		return nil, err
	}
	return n, nil
}

// NewID returns a new id.
func NewID(now time.Time) string {
	return fmt.Sprintf("ctx_%d_%s", now.Unix(), strings.ToLower(rand.Text()))
}

// The forms are compiled when they are first needed: each takes 1 ms, and a start need not wait for them.
var (
	idForm      = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^ctx_[0-9]{10,17}_[a-zA-Z0-9]{6,64}$`) }) // older programs wrote 6 or 8 random characters
	foreignForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-zA-Z0-9_.:-]{8,128}$`) })             // an id of a host or a server
)

// ValidID reports whether s has the form of an id.
func ValidID(s string) bool { return idForm().MatchString(s) }

// StateAlias returns the alias for an opaque state that a host sends back unchanged, such as
// MCP's requestState.
func StateAlias(state string) string { return "state:" + hash(state) }

// opens reports whether the tool that opened a workflow still does so.
func opens(rule *Rule, root *node) bool {
	return slices.ContainsFunc(rule.Workflow.Openers, func(o *Rule) bool { return o.Server == root.server && o.Tool == root.tool })
}

// join returns the newest node that holds a value for each join of the call. If within is not "",
// it looks below that root only. Otherwise a result of the workflow must have held the values: what
// a call only named is no evidence.
func (e *Engine) join(ctx context.Context, s *Step, within string, now int64) (*node, error) {
	r := s.request
	var found []held
	for name, hashes := range s.joins {
		all, err := holding(ctx, e.db, r.Principal, r.Rule.Workflow.Name, name, hashes, now)
		if err != nil {
			return nil, err
		}
		holds := make(map[string]bool, len(all))
		for _, h := range all {
			holds[h.id] = true
		}
		if found == nil {
			found = all
		}
		found = slices.DeleteFunc(found, func(h held) bool {
			if within == "" {
				return !holds[h.id] || !holds[h.root] // the root has the values of results
			}
			return !holds[h.id] || h.root != within || h.id == within
		})
		if len(found) == 0 {
			return nil, nil
		}
	}
	newest := found[0]
	for _, h := range found[1:] {
		sibling := h.id != h.root && newest.id != newest.root
		if h.root != newest.root || sibling && r.Rule.Role == RoleStatus {
			s.Ambiguous = true
		}
	}
	if r.Rule.Role == RoleLink {
		return byID(ctx, e.db, newest.root)
	}
	return byID(ctx, e.db, newest.id)
}

// Begin stores a planned step, or counts one more attempt at it, and postpones the expiry of the
// workflow. request is the trace record of the call, record that of the step.
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
			s.repeat(same) // stored since s was planned
		}
		var err error
		switch {
		case s.New:
			n := &node{
				id: s.ID, path: s.Path, root: s.Root, parent: s.parent, workflow: r.Rule.Workflow.Name, principal: r.Principal, session: r.Session,
				server: r.Rule.Server, tool: r.Rule.Tool, step: s.Name, key: s.key, status: Working, attempts: 1,
				request: request, record: record, foreign: s.Foreign, host: r.Host, created: now,
			}
			if s.ID == s.Root {
				n.expires = now + r.Rule.Workflow.TTL.Microseconds()
			}
			fields := n.fields()
			err = exec(ctx, tx, "INSERT INTO nodes ("+strings.ReplaceAll(nodeColumns, "n.", "")+") VALUES (?"+strings.Repeat(",?", len(fields)-1)+")", fields...)
		case r.Rule.Role.acts():
			err = tx.QueryRowContext(ctx, "UPDATE nodes SET attempts = attempts + 1, status = ? WHERE id = ? RETURNING attempts", Working, s.ID).Scan(&s.Attempt)
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
		return exec(ctx, tx, "UPDATE nodes SET expires_at = ? WHERE id = ?", now+r.Rule.Workflow.TTL.Microseconds(), s.Root)
	})
}

// Outcome is how a call ended.
type Outcome struct {
	Status   string
	Result   json.RawMessage // that the host gets, or nil
	NativeID string          // the id of the server's own in Result
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
	if r.Rule.Role.acts() {
		s.Status = o.Status
	}
	return sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		err := exec(ctx, tx, "UPDATE nodes SET status = ? WHERE id = ?", s.Status, s.ID)
		if err == nil && r.Rule.Role == RoleClose && o.Status == Completed {
			err = exec(ctx, tx, "UPDATE nodes SET closed = 1 WHERE id = ?", s.Root)
		}
		if err == nil && r.Rule.Role == RoleOpen {
			err = addAlias(ctx, tx, s, o.NativeID)
		}
		if err == nil {
			err = addJoins(ctx, tx, s.Root, captured)
		}
		return err
	})
}

// Interrupt marks steps of a process that died during a call. It leaves a step that another process
// has ended since.
func (e *Engine) Interrupt(ctx context.Context, ids []string) error {
	_, err := e.db.ExecContext(ctx, "UPDATE nodes SET status = ? WHERE status = ? AND id IN (SELECT value FROM json_each(?))",
		Interrupted, Working, string(rawjson.Marshal(ids)))
	return err
}

// Ended is a workflow that is over.
type Ended struct {
	Workflow, Principal, Session, ID string
	Host                             string   // that started it
	Foreign                          string   // the host's own id for it, or ""
	Records                          []string // the trace records of its start and of its steps
	Steps                            int
}

const (
	expireLimit = 32             // workflows of one Expire, because calls wait for it
	keepClosed  = 24 * time.Hour // the life of the rows of an ended workflow, from its expiry on
)

// Expire ends workflows that are past their TTL, a few at a time, and deletes ended ones a day
// after that. Each workflow that it ends is returned once, to one of the processes.
func (e *Engine) Expire(ctx context.Context) (ended []Ended, err error) {
	if roots, err := due(ctx, e.db, e.steady()); err != nil || len(roots) == 0 {
		return nil, err // the usual case, without a write
	}
	err = sqlitedb.Update(ctx, e.db, func(tx *sql.Tx) error {
		roots, err := due(ctx, tx, e.steady())
		for _, root := range roots {
			statement := "DELETE FROM nodes WHERE root = ?"
			if !root.closed {
				statement = "UPDATE nodes SET closed = 1 WHERE id = ?"
				x, err := ending(ctx, tx, root.id)
				if err != nil {
					return err
				}
				ended = append(ended, x)
			}
			if err := exec(ctx, tx, statement, root.id); err != nil {
				return err
			}
		}
		return err
	})
	return ended, err
}

// Ending describes the workflow that a step belongs to.
func (e *Engine) Ending(ctx context.Context, s *Step) (Ended, error) {
	return ending(ctx, e.db, s.Root)
}

func ending(ctx context.Context, q sqlitedb.Querier, root string) (x Ended, err error) {
	nodes, err := many(ctx, q, "WHERE n.root = ? ORDER BY n.created_at, n.rowid", root)
	for i, n := range nodes {
		if n.id == root {
			x.Workflow, x.Principal, x.Session, x.ID, x.Host, x.Foreign = n.workflow, n.principal, n.session, n.id, n.host, n.foreign
		}
		x.Records, x.Steps = append(x.Records, n.record), i
	}
	return x, err
}
