package interceptor

import (
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	// What the trace takes of one server's notifications to the hosts of a principal: the bytes of a
	// burst, and the bytes a second after it.
	noteBurst = 4 << 20
	noteRate  = 16 << 10
	// askBurst is how many requests a server may send a session at once. Later it may send noteRate *
	// askBurst / noteBurst a second, which is four.
	askBurst = 1000
	// leftOutEvery is how often a record tells the number of messages left out.
	leftOutEvery = 10 * time.Second
)

// What becomes of messages if a server sends too many.
const (
	notificationsLeftOut = "notifications_left_out" // they are delivered, and not recorded
	requestsRefused      = "requests_refused"
)

// AllowRequest returns an error if a server may not send a session one more request, such as an elicitation, of
// size bytes. busy refuses it in any case. The recorder records how many were refused.
func (r *Recorder) AllowRequest(principal, session, server string, busy bool, size int) error {
	if r.requests.take(sender{principal, session, server}, busy, noteBurst/askBurst, share{session: session}, sum{bytes: int64(size)}, r.tellRefused) {
		return nil
	}
	return errAsksTooOften
}

var errAsksTooOften = fmt.Errorf("too many requests: a server may ask a session %d times at once, and then four times a second; wait", askBurst)

// tellRefused records how many requests were refused since the last record of it, and tellLeftOut how many
// notifications have had no record.
func (r *Recorder) tellRefused() { r.tell(requestsRefused, &r.requests) }
func (r *Recorder) tellLeftOut() { r.tell(notificationsLeftOut, &r.notifications) }

// mayNote reports whether the rate of its server allows a record for a notification.
func (r *Recorder) mayNote(n *Notification, m *Message) bool {
	one := sum{bytes: int64(len(m.Body) + len(m.Extra)), tokens: n.Tokens}
	if n.Refused == "" {
		one.heard = n.Tokens
	}
	if n.Refused == "" || n.Paid {
		one.charged = n.Tokens
	}
	cost := 512 + min(len(n.Method)+len(m.Body)+len(m.Extra), 1<<20) // the journal stores no larger payload
	return n.Server == "" || r.notifications.take(sender{principal: n.Principal, server: n.Server}, false, cost, share{n.Session, n.Team, n.Revision, n.ForTool, n.Context}, one, r.tellLeftOut)
}

// tell records what is beyond the rates of the senders.
func (r *Recorder) tell(code string, beyond *rates) {
	for _, part := range beyond.takeLeftOut() {
		r.Note(r.leftOut(code, part))
	}
}

// leftOut returns the record of messages that have none.
func (r *Recorder) leftOut(code string, l leftOut) *trace.Record {
	rec := &trace.Record{
		From: trace.UpstreamName(l.server), To: []string{"foldgate"}, Kind: trace.KindWarning, Context: l.context,
		Payload: rawjson.Marshal(map[string]any{"code": code, "count": l.messages, "bytes": l.bytes}),
		Audit: &trace.Audit{
			Session: l.share.session, Principal: l.principal, Team: l.team, Server: l.server, ForTool: l.tool, Revision: l.revision, LeftOut: l.messages, Bytes: l.bytes,
		},
	}
	if code == requestsRefused {
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: code}
	}
	if l.tokens > 0 {
		rec.Audit.Tokens = &trace.Tokens{Counter: r.Counter, Out: l.tokens, Delivered: l.heard, Charged: &l.charged}
	}
	return rec
}

// rates has the rate of each sender. It is safe for concurrent use.
type rates struct {
	mu      sync.Mutex
	senders map[sender]*rate
	telling bool // tell runs after a while
}

// sender is who sends messages. session is "" if those to all sessions count together.
type sender struct{ principal, session, server string }

// rate is how much a sender may still send.
type rate struct {
	room    int // bytes, as of at; less than 0 after a large message
	at      time.Time
	leftOut map[share]sum // since the last record of them
}

// share is the part of a sender's messages that belongs to one session, tool and branch: limits count
// by these. A sender has at most maxShares. Its other messages are one more share, without names.
type share struct{ session, team, revision, tool, context string }

const maxShares = 100

// sum adds up the messages of a share.
type sum struct {
	messages               int
	bytes                  int64
	tokens, heard, charged int
}

// leftOut is the sum of a share of a sender's messages that were beyond the rate.
type leftOut struct {
	sender
	share
	sum
}

// refill adds the room of the time that has passed, and returns the room.
func (n *rate) refill(now time.Time) int {
	if more := int(min(now.Sub(n.at), time.Hour).Seconds() * noteRate); more > 0 {
		n.room, n.at = min(n.room+more, noteBurst), now
	}
	return n.room
}

// take reports whether a message is within the rate of its sender, and takes cost of that. If it is beyond
// the rate, or the sender is busy, one is added to what is left out, and tell is called after a while.
func (r *rates) take(who sender, busy bool, cost int, of share, one sum, tell func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, n := time.Now(), r.senders[who]
	if n == nil {
		maps.DeleteFunc(r.senders, func(_ sender, n *rate) bool { return n.leftOut == nil && n.refill(now) == noteBurst }) // as good as new
		if r.senders == nil {
			r.senders = map[sender]*rate{}
		}
		n = &rate{room: noteBurst, at: now}
		r.senders[who] = n
	}
	if n.refill(now) > 0 && !busy {
		n.room -= cost
		return true
	}
	if n.leftOut == nil {
		n.leftOut = map[share]sum{}
	}
	all, known := n.leftOut[of]
	if !known && len(n.leftOut) >= maxShares {
		of = share{}
		all = n.leftOut[of]
	}
	all.messages++
	all.bytes += one.bytes
	all.tokens += one.tokens
	all.heard += one.heard
	all.charged += one.charged
	n.leftOut[of] = all
	if !r.telling {
		r.telling = true
		time.AfterFunc(leftOutEvery, tell)
	}
	return false
}

// takeLeftOut returns what has been left out since the last call.
func (r *rates) takeLeftOut() (all []leftOut) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for who, n := range r.senders {
		for of, s := range n.leftOut {
			all = append(all, leftOut{who, of, s})
		}
		n.leftOut = nil
	}
	r.telling = false
	return all
}
