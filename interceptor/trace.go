package interceptor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

// Trace records every call: the request before it is charged or sent, and the response or the refusal
// after it. To find the owner of a tool, foldgate may have started servers and read their lists before;
// those calls have records of their own. Only layers that observe stand outside it, so refusals and
// panics are recorded.
func Trace(r *Recorder) Layer {
	return func(next Handler) Handler {
		return func(ctx context.Context, c *Call) (*Result, error) {
			if err := r.request(c); err != nil {
				remedy := "the operator must free space or repair the state directory"
				if errors.Is(err, trace.ErrFinal) {
					remedy += ", and then restart foldgate"
				}
				return nil, &Refusal{Reason: trace.ReasonTrace, Code: "trace_unavailable", Status: 500, Err: err,
					Message: "the call was not made because its trace record could not be written; " + remedy}
			}
			res, err := next(ctx, c)
			c.Outcome.decide(err)
			c.blockUnsent()
			r.response(c, res, err)
			return res, err
		}
	}
}

// Recorder writes the trace records of calls, notifications and branches, also concurrently.
type Recorder struct {
	Journal  *trace.Journal
	Boundary *Boundary // never nil where calls are recorded
	Payload  bool      // store payloads, scrubbed; else records have none
	// Refuse makes a journal that can't be written refuse calls before they have an effect.
	// Otherwise the fault is only logged.
	Refuse  bool
	Counter string // the name of the token counter
	// Team returns the team of a principal, for records that are no call's; nil for none.
	Team func(principal string) string
	Log  *slog.Logger

	checked [256][2]atomic.Pointer[checkedText] // see withoutSecrets

	notifications, requests rates // of servers

	mu      sync.Mutex
	tallies map[string]occurrences // events that are not recorded each time

	owed     []*trace.Record // wait for the journal; see owe
	owedSize int             // their bytes
}

func (r *Recorder) request(c *Call) error {
	e := r.entry(c)
	defer e.release()
	e.rec.Kind, e.rec.From, e.to[0] = trace.KindRequest+c.Target.Method, c.Origin.From, c.Target.To
	e.rec.ID, e.rec.CorrelationID = c.Outcome.Record, c.Origin.Correlates
	params, extra := c.Target.Params, c.Target.Extra
	e.audit.Bytes = int64(len(params) + len(extra))
	if c.Outcome.weighed {
		e.count, e.audit.Args = c.Outcome.args, &e.count
	}
	if !r.Payload {
		return r.write(&e.rec)
	}
	policy := r.Boundary.Policy(r.Boundary.server(c))
	action := policy.ToServer.taken()
	if c.Origin.Direction == ToHost {
		action = policy.ToHost.taken()
	}
	var member []byte
	if len(params) > 0 {
		found, ok := c.requestFindings(), false
		member = paramsMember
		params, *found, ok = r.check(params, action)
		c.Outcome.paramsClean = ok && len(*found) == 0
	}
	e.method = rawjson.AppendQuote(e.method, r.withoutSecrets(c.Target.Method))
	return r.write(&e.rec, rpcHead, r.id(c.Origin.ID), methodMember, e.method, member, params, r.beside(extra, action), closing)
}

// The fixed pieces of a JSON-RPC payload.
var (
	rpcHead      = []byte(`{"jsonrpc":"2.0","id":`)
	methodMember = []byte(`,"method":`)
	paramsMember = []byte(`,"params":`)
	resultMember = []byte(`,"result":`)
	errorMember  = []byte(`,"error":`)
	closing      = []byte(`}`)
)

// response records the answer of a call that was made, as Note does if the request was recorded in any case.
func (r *Recorder) response(c *Call, res *Result, err error) {
	e := r.entry(c)
	e.rec.Kind, e.rec.From, e.to[0] = trace.KindResponse+c.Target.Method, c.Target.To, c.Origin.From
	e.answers[0] = c.Outcome.Record
	e.rec.CorrelationID = e.answers[:]
	a := &e.audit
	if c.Target.Control || c.Outcome.weighed && !c.Outcome.charged {
		e.tokens.Counter, a.Tokens = r.Counter, &e.tokens
		e.count, e.tokens.Charged, e.tokens.InBranch = c.Outcome.Paid, &e.count, c.Outcome.PaidInBranch
	}
	a.MS = float64(time.Since(c.began).Microseconds()) / 1000
	member, body, extra := errorMember, json.RawMessage(nil), []byte(nil)
	switch {
	case err != nil: // its text may quote the agent
		a.IsError, body = true, append(rawjson.AppendQuote([]byte(`{"message":`), r.Boundary.Text(err.Error())), '}')
	case res.Error != nil:
		a.IsError, body, extra = true, res.Error, res.Extra
	default:
		a.IsError, body, extra, member = c.ofTool() && res.Failed(), res.Body, res.Extra, resultMember
	}
	if err == nil {
		a.Bytes = int64(len(body) + len(extra))
		if r.Payload && !c.Outcome.Clean {
			clean, found, _ := r.check(body, trace.LetThrough)
			extra = r.beside(extra, trace.LetThrough)
			if body = clean; len(c.Outcome.Findings) == 0 { // Scrub noted none
				c.Outcome.Findings = found
			}
		}
	}
	a.Scrub = findings(c.Outcome.Findings, c.Outcome.ArgumentFindings)
	payload := [][]byte{rpcHead, r.id(c.Origin.ID), member, body, extra, closing}
	if !r.Refuse {
		_ = r.write(&e.rec, payload...) // logs a fault
	} else if err := r.put(&e.rec, payload...); err != nil {
		if r.Payload {
			e.rec.Payload = slices.Concat(payload...)
		}
		r.owe(&e.rec, err) // and e with it
		return
	}
	e.release()
}

// entry is a record with everything that it points to, in one allocation.
type entry struct {
	rec         trace.Record
	audit       trace.Audit
	tokens      trace.Tokens
	count       int
	to, answers [1]string
	method      []byte // as a JSON string
}

// entries are reused, because the journal keeps nothing of a record.
var entries = sync.Pool{New: func() any { return new(entry) }}

func (e *entry) release() {
	*e = entry{method: e.method[:0]}
	entries.Put(e)
}

// entry begins a record of a call with the facts noted so far. The caller releases it.
func (r *Recorder) entry(c *Call) *entry {
	e, o := entries.Get().(*entry), &c.Outcome
	e.rec.To, e.rec.Context, e.rec.Audit = e.to[:], c.Attribution.Context, &e.audit
	a := &e.audit
	*a = trace.Audit{
		Session: c.Origin.Session, Principal: c.Origin.Principal, Team: c.Origin.Team, Server: c.Target.Server, Method: c.Target.Method,
		Revision: c.Origin.Revision,
		Source:   string(c.Attribution.Source), Thread: c.Origin.Thread, Traceparent: c.Origin.Traceparent,
		Late: o.Late, Ambiguous: c.Attribution.Ambiguous, OverBudget: o.Decision == trace.ReasonLimit, Workflow: c.Target.Workflow.audit(),
		Deprecated: c.Origin.Deprecated, Read: o.Read, Injection: o.Injection, Model: o.Model, ForTool: c.Target.ForTool, Via: c.Target.Via,
	}
	if c.ofTool() {
		a.Tool = c.Target.Name
	}
	if o.Decision != "" {
		a.Decision = &trace.Decision{Result: trace.Blocked, Reason: o.Decision, Rule: o.rule}
		if !o.refused { // the result was cut
			a.Decision.Result = trace.Allowed
		}
	} else if o.Warned != "" {
		a.Decision = &trace.Decision{Result: trace.Allowed, Reason: trace.ReasonPolicy, Rule: o.Warned}
	} else if o.Unconfirmed {
		a.Decision = &trace.Decision{Result: trace.Allowed, Reason: trace.ReasonLimit, Rule: trace.RuleUnavailable}
	}
	if u := o.Tokens; u != (Usage{}) || o.charged {
		a.Tokens = &e.tokens
		e.tokens = trace.Tokens{Counter: r.Counter, In: u.In, Out: u.Out, Delivered: u.Delivered, Used: u.BranchUsed, Budget: u.BranchBudget}
	}
	if o.Fold != "" {
		a.Fold = &trace.Fold{Handle: o.Fold, Saved: o.Saved}
	}
	return e
}

// id returns a request's id for a payload. A string may hold a secret.
func (r *Recorder) id(id json.RawMessage) json.RawMessage {
	if id == nil {
		return json.RawMessage("null")
	}
	if r.Payload && rawjson.KindOf(id) == rawjson.String {
		id, _, _ = r.check(id, trace.LetThrough)
	}
	return id
}

// Notification describes a message that expects no answer.
type Notification struct {
	From, To           string
	Session, Principal string
	Team, Server       string   // Server is "" for foldgate itself
	ForTool            string   // during whose call the server sent it; "" if that is not known
	Revision           string   // the revision, if its requests have no session
	Context            string   // the branch's path, "" for main
	Correlates         []string // ids of the records that caused it
	Method             string
	Branch             string // id of the branch that pays for it, "" for main
	Tokens             int    // of the text that a model can read
	Refused            string // the rule by which it is not delivered, "" if it is
	Paid               bool   // limits were charged the tokens
	Unconfirmed        bool   // limits were charged without their store, which could not be reached
}

// Notification records a notification once the boundary has decided on its params, m. Those that are
// refused before go to Rejected. Of a server that sends too many, a record counts those that have none.
func (r *Recorder) Notification(n Notification, m *Message) error {
	if !r.mayNote(&n, m) {
		return nil
	}
	rec := &trace.Record{
		From: n.From, To: []string{n.To}, Kind: trace.KindNotification + n.Method, CorrelationID: n.Correlates, Context: n.Context,
		Audit: &trace.Audit{Session: n.Session, Principal: n.Principal, Team: n.Team, Server: n.Server, ForTool: n.ForTool, Revision: n.Revision, Method: n.Method, Bytes: int64(len(m.Body) + len(m.Extra))},
	}
	if n.Tokens > 0 {
		rec.Audit.Tokens = &trace.Tokens{Counter: r.Counter, Out: n.Tokens, Delivered: n.Tokens}
	}
	if n.Unconfirmed {
		rec.Audit.Decision = &trace.Decision{Result: trace.Allowed, Reason: trace.ReasonLimit, Rule: trace.RuleUnavailable}
	}
	if n.Refused != "" {
		charged := 0
		if n.Paid {
			charged = n.Tokens
		}
		rec.Audit.Tokens.Delivered, rec.Audit.Tokens.Charged = 0, &charged
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: n.Refused}
	}
	switch m.Verdict {
	case Blocked:
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonUnsafe, Rule: "secret_in_notification"}
	case Withheld:
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonUnsafe, Rule: "scrubbing_failed"}
	}
	if r.Payload {
		action, found := "", []trace.Finding(nil) // unknown before the message goes to each server
		if m.crossed {
			action = trace.LetThrough
		}
		msg, extra := rawjson.AppendQuote([]byte(`{"jsonrpc":"2.0","method":`), r.withoutSecrets(n.Method)), m.Extra
		if params := m.Body; params != nil {
			if !m.clean {
				params, found, _ = r.check(params, action)
			}
			msg = append(append(msg, `,"params":`...), params...)
		}
		if !m.clean {
			extra = r.beside(extra, action)
		}
		if rec.Payload = append(append(msg, extra...), '}'); len(m.Found) == 0 {
			m.Found = found
		}
	}
	rec.Audit.Scrub = findings(m.Found)
	return r.write(rec)
}

// check scrubs JSON for the record only: the boundary has not seen it yet, or lets its secrets pass.
// action is what the policy does with secrets. The record shows [REDACTED:…] where the message does,
// else [SECRET:…]. ok is false if the JSON could not be checked; the record then has a notice instead.
func (r *Recorder) check(raw json.RawMessage, action string) (clean json.RawMessage, found []trace.Finding, ok bool) {
	clean, secrets, err := r.Boundary.Scrubber.JSON(context.Background(), raw)
	if err != nil {
		return rawjson.Quote(withheldRecord), nil, false
	}
	if found = noted(nil, secrets, action); len(found) > 0 && action != trace.Redacted {
		clean = bytes.ReplaceAll(clean, []byte("[REDACTED:"), []byte("[SECRET:"))
	}
	return clean, found, true
}

const withheldRecord = "withheld: could not be checked for secrets"

// beside returns the members beside params or a result for a payload, without secrets.
func (r *Recorder) beside(extra []byte, action string) []byte {
	if len(extra) == 0 {
		return nil
	}
	object, _, ok := r.check(objectOf(extra), action)
	if !ok {
		return append([]byte(`,"withheld":`), object...)
	}
	return extraOf(object)
}

// withoutSecrets returns a text that a host or a server chooses, such as a name, a method or an id, as records
// show it: without secrets. Equal texts stay equal. The texts of a session recur, so it remembers
// the last ones.
func (r *Recorder) withoutSecrets(text string) string {
	if text == "" || r.Boundary == nil {
		return text
	}
	// Two places, or one of some 20 sessions would have two texts that displace each other in each call.
	places := &r.checked[maphash.String(checkedSeed, text)%uint64(len(r.checked))]
	learned := r.Boundary.learned.Load()
	for i := range places {
		if known := places[i].Load(); known != nil && known.text == text && known.learned == learned {
			return known.clean
		}
	}
	clean := strings.ReplaceAll(r.Boundary.Text(text), "[REDACTED:", "[SECRET:")
	if len(text) <= maxExamined {
		places[1].Store(places[0].Swap(&checkedText{text, clean, learned}))
	}
	return clean
}

// checkedText is a text and its clean form by the rules of that number; see Boundary.learned.
type checkedText struct {
	text, clean string
	learned     int64
}

// A record shows maxShort bytes of a text that a host or a server chooses. It examines some more, to
// know a secret that the cut would divide.
const maxShort, maxExamined = 512, 4096

var checkedSeed = maphash.MakeSeed()

// Short returns a text that a host or a server chooses as the members of records show it: without secrets. What is
// long is cut, and says so.
func (r *Recorder) Short(text string) string {
	clean := r.withoutSecrets(text[:min(len(text), maxExamined)])
	if len(clean) <= maxShort {
		return clean
	}
	return fmt.Sprintf("%s [cut: %d bytes]", strings.ToValidUTF8(clean[:maxShort], ""), len(text))
}

// Secret reports whether a text that a host chooses holds a secret, or can't be checked for one.
func (r *Recorder) Secret(text string) bool { return r.withoutSecrets(text) != text }

// cleanNames removes secrets from the names and ids in a record, which hosts or servers choose, and bounds
// them.
func (r *Recorder) cleanNames(rec *trace.Record) {
	a := rec.AuditOrEmpty()
	for _, text := range [...]*string{&rec.From, &rec.Kind, &rec.Context, &a.Session, &a.Tool, &a.ForTool, &a.Method} {
		*text = r.Short(*text)
	}
	for _, list := range [...][]string{rec.To, rec.CorrelationID} {
		for i, text := range list {
			if !trace.IsID(text) {
				list[i] = r.Short(text)
			}
		}
	}
}

// maxPlaces bounds the places that a record names for its findings.
const maxPlaces = 200

// findings counts findings of one rule at one place. Beyond [maxPlaces] it counts those of one rule.
func findings(lists ...[]trace.Finding) (out []trace.Finding) {
	places := map[trace.Finding]int{}
	for _, f := range slices.Concat(lists...) {
		i, known := places[f]
		if !known && len(out) >= maxPlaces {
			f.Field = ""
			i, known = places[f]
		}
		if !known {
			i, out = len(out), append(out, f)
			places[f] = i
		}
		out[i].Count++
	}
	return out
}

// occurrences counts the events of one kind in a minute.
type occurrences struct {
	minute int64
	n      int
}

// count counts an event, and reports whether to record it: each of the first few, then those with a
// number such as 20 or 300. So hosts can't flood the trace.
func (r *Recorder) count(kind string, minute int64, few int) (n int, due bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tallies[kind]
	if t.minute != minute {
		t = occurrences{minute: minute}
	}
	t.n++
	if r.tallies == nil {
		r.tallies = map[string]occurrences{}
	}
	r.tallies[kind] = t
	for n = t.n; n > few; n /= 10 {
		if n%10 != 0 {
			return t.n, false
		}
	}
	return t.n, true
}

// Deprecated records and logs a use of a deprecated form, by its code: the first, the tenth, the
// hundredth, …
func (r *Recorder) Deprecated(o *Origin, code string) {
	n, due := r.count(code, 0, 1)
	if !due {
		return
	}
	r.Log.Warn("a host uses a deprecated form", "code", code, "count", n)
	r.Note(&trace.Record{
		From: "foldgate", To: []string{o.From}, Kind: trace.KindWarning, Payload: rawjson.Marshal(map[string]any{"code": code, "count": n}),
		Audit: &trace.Audit{Session: o.Session, Principal: o.Principal, Deprecated: []string{code}},
	})
}

// Rejected records a message that was refused before it was a call, the rule that decided, and the
// answer. For each rule, server and minute it records the first ten, then a few with the count so far. It
// reports how many there were, and whether it recorded this one.
func (r *Recorder) Rejected(n Notification, reason, rule, answer string) (count int, due bool) {
	if count, due = r.count("reject:"+rule+" "+n.Server, time.Now().Unix()/60, 10); !due {
		return count, false
	}
	r.Note(&trace.Record{
		From: n.From, To: []string{"foldgate"}, Kind: trace.KindReject + n.Method, CorrelationID: n.Correlates, Context: n.Context,
		Payload: rawjson.Marshal(map[string]any{"count": count, "error": map[string]string{"message": r.Short(answer)}}),
		Audit: &trace.Audit{
			Session: n.Session, Principal: n.Principal, Server: n.Server, Revision: n.Revision, Method: n.Method, IsError: true,
			Decision: &trace.Decision{Result: trace.Blocked, Reason: reason, Rule: rule},
		},
	})
	return count, true
}

// Configuration records a start or a reload: facts are its payload, with the hash of the
// configuration.
func (r *Recorder) Configuration(facts any) {
	r.Note(&trace.Record{From: "foldgate", Kind: trace.KindConfig, Payload: rawjson.Marshal(facts)})
}

// Definition records that a definition of a server is new, changed or approved; held means that hosts do
// not get it. facts are the payload. In a minute it records the first ten of one server and state, and
// some of the others.
func (r *Recorder) Definition(server, kind, name, state string, held bool, facts any) {
	if _, due := r.count("definition:"+state+" "+server, time.Now().Unix()/60, 10); !due {
		return
	}
	a := &trace.Audit{Server: server}
	if kind == "tool" {
		a.Tool = name
	}
	if held {
		a.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonPolicy, Rule: "definition_" + state}
	}
	payload, _, _ := r.check(rawjson.Marshal(facts), trace.LetThrough) // it may quote the definition
	r.Note(&trace.Record{From: "foldgate", To: []string{"operator"}, Kind: trace.KindDefinition + state, Payload: payload, Audit: a})
}

// Note records an event that has already happened. If the journal does not accept it now, such as on a full disk, it is
// recorded once it does. A fault is only logged.
func (r *Recorder) Note(rec *trace.Record) {
	r.writeOwed() // in order
	r.owe(rec, r.put(rec))
}

// maxOwed bounds the memory for records that wait for the journal, in bytes.
const maxOwed = 16 << 20

// owe keeps a record that the journal did not accept because of err, for writeOwed.
func (r *Recorder) owe(rec *trace.Record, err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	size := len(rec.Payload) + 1<<10
	if final := r.Journal.Err() == nil || errors.Is(err, trace.ErrFinal) || errors.Is(err, trace.ErrClosed); final || r.owedSize+size > maxOwed {
		r.Log.Error("record lost", "kind", rec.Kind, "err", err)
		return
	}
	if len(r.owed) == 0 {
		time.AfterFunc(time.Second, r.writeOwed)
	}
	r.owed, r.owedSize = append(r.owed, rec), r.owedSize+size
}

// Flush records what has been counted only, and writes the records that wait for the journal. Call it before the
// journal closes.
func (r *Recorder) Flush() {
	r.tellLeftOut()
	r.tellRefused()
	r.writeOwed()
}

// writeOwed writes the records that wait for the journal.
func (r *Recorder) writeOwed() {
	r.mu.Lock()
	owed := r.owed
	r.owed, r.owedSize = nil, 0
	r.mu.Unlock()
	for i, rec := range owed {
		err := r.Journal.Append(rec)
		r.owe(rec, err)
		if err != nil && r.Journal.Err() != nil {
			for _, rec := range owed[i+1:] {
				r.owe(rec, err)
			}
			return
		}
	}
}

// Keeps reports whether records are written now, with their payloads.
func (r *Recorder) Keeps() bool { return r.Payload && r.Journal.Err() == nil }

// write writes one record as put does. Without Refuse a fault is logged, and nil returned.
func (r *Recorder) write(rec *trace.Record, payload ...[]byte) error {
	err := r.put(rec, payload...)
	if err != nil && r.Refuse {
		return fmt.Errorf("the trace can't be written: %w", err)
	}
	if err != nil {
		r.Log.Error("trace record lost", "kind", rec.Kind, "err", err)
	}
	return nil
}

// put writes one record. If there are pieces of payload, they replace the record's; see
// [trace.Journal.Append].
func (r *Recorder) put(rec *trace.Record, payload ...[]byte) error {
	if !r.Payload && rec.Kind != trace.KindConfig && rec.Kind != trace.KindAccess { // these are the operator's own words
		rec.Payload, payload = nil, nil
	}
	if a := rec.Audit; a != nil && a.Team == "" && r.Team != nil {
		a.Team = r.Team(a.Principal)
	}
	r.cleanNames(rec)
	return r.Journal.Append(rec, payload...)
}
