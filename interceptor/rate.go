package interceptor

import (
	"fmt"
	"maps"
	"time"

	"github.com/foldgate/foldgate/interceptor/trace"
	"github.com/foldgate/foldgate/internal/rawjson"
)

const (
	// What the trace takes of one server's notifications to the hosts of a principal: the bytes of a
	// burst, and the bytes a second after it.
	noteBurst = 4 << 20
	noteRate  = 16 << 10
	// askBurst is how many questions a server may ask a session at once. Later it may ask noteRate *
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

// sender is who sends messages of a kind. session is "" if those to all sessions count together.
type sender struct{ code, principal, session, server string }

// rate is how much a sender may still send. It is guarded by Recorder.mu.
type rate struct {
	room    int // bytes, as of at; less than 0 after a large message
	at      time.Time
	leftOut map[share]sum // since the last record of them
}

// share is the part of a sender's messages that belongs to one session, tool and branch: limits count
// by these. A sender has at most maxShares. Its other messages are one more share, without names.
type share struct{ session, team, revision, tool, context string }

const maxShares = 100

// sum is what the messages of a share come to.
type sum struct {
	messages               int
	bytes                  int64
	tokens, heard, charged int
}

// refill adds the room of the time that has passed, and returns the room.
func (n *rate) refill(now time.Time) int {
	if more := int(min(now.Sub(n.at), time.Hour).Seconds() * noteRate); more > 0 {
		n.room, n.at = min(n.room+more, noteBurst), now
	}
	return n.room
}

// MayAsk returns an error if a server may not ask a session one more question, of size bytes. busy
// refuses it in any case. A record counts those that are refused.
func (r *Recorder) MayAsk(principal, session, server string, busy bool, size int) error {
	if r.within(sender{requestsRefused, principal, session, server}, busy, noteBurst/askBurst, share{session: session}, sum{bytes: int64(size)}) {
		return nil
	}
	return errAsksTooOften
}

var errAsksTooOften = fmt.Errorf("too many requests: a server may ask a session %d times at once, and then four times a second; wait", askBurst)

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
	return n.Server == "" || r.within(sender{code: notificationsLeftOut, principal: n.Principal, server: n.Server}, false, cost, share{n.Session, n.Team, n.Revision, n.ForTool, n.Context}, one)
}

// within reports whether a message is within the rate of its sender, and takes cost of that. A record
// tells of the others after a while.
func (r *Recorder) within(who sender, busy bool, cost int, of share, one sum) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, n := time.Now(), r.rates[who]
	if n == nil {
		maps.DeleteFunc(r.rates, func(_ sender, n *rate) bool { return n.leftOut == nil && n.refill(now) == noteBurst }) // as good as new
		if r.rates == nil {
			r.rates = map[sender]*rate{}
		}
		n = &rate{room: noteBurst, at: now}
		r.rates[who] = n
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
		time.AfterFunc(leftOutEvery, r.TellLeftOut)
	}
	return false
}

// TellLeftOut records what has been left out since the last record of it. Call it before the journal
// closes.
func (r *Recorder) TellLeftOut() {
	r.mu.Lock()
	var records []*trace.Record
	for who, n := range r.rates {
		for of, all := range n.leftOut {
			records = append(records, r.leftOut(who, of, all))
		}
		n.leftOut = nil
	}
	r.telling = false
	r.mu.Unlock()
	for _, rec := range records {
		r.Note(rec)
	}
}

// leftOut returns the record of messages that have none.
func (r *Recorder) leftOut(who sender, of share, all sum) *trace.Record {
	rec := &trace.Record{
		From: "upstream:" + who.server, To: []string{"foldgate"}, Kind: trace.KindWarning, Context: of.context,
		Payload: rawjson.Marshal(map[string]any{"code": who.code, "count": all.messages, "bytes": all.bytes}),
		Audit: &trace.Audit{
			Session: of.session, Principal: who.principal, Team: of.team, Server: who.server, ForTool: of.tool, Revision: of.revision, LeftOut: all.messages, Bytes: all.bytes,
		},
	}
	if who.code == requestsRefused {
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: who.code}
	}
	if all.tokens > 0 {
		rec.Audit.Tokens = &trace.Tokens{Counter: r.Counter, Out: all.tokens, Delivered: all.heard, Charged: &all.charged}
	}
	return rec
}
