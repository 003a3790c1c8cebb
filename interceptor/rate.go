package interceptor

import (
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
	// AskBurst is how many questions a server may ask a session at once. Later it may ask noteRate *
	// AskBurst / noteBurst a second, which is four.
	AskBurst = 1000
	// leftOutEvery is how often a record tells the number of messages left out.
	leftOutEvery = 10 * time.Second
)

// What becomes of messages of which a server sends too many.
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
	leftOut int // since the last record of them
	bytes   int64
}

// refill adds the room of the time that has passed, and returns the room.
func (n *rate) refill(now time.Time) int {
	if more := int(min(now.Sub(n.at), time.Hour).Seconds() * noteRate); more > 0 {
		n.room, n.at = min(n.room+more, noteBurst), now
	}
	return n.room
}

// MayAsk reports whether a server may ask a session one more question, of size bytes. busy refuses it
// in any case. A record counts those that are refused.
func (r *Recorder) MayAsk(principal, session, server string, busy bool, size int) bool {
	return r.within(sender{requestsRefused, principal, session, server}, busy, noteBurst/AskBurst, size)
}

// within reports whether a message of size bytes is within the rate of its sender, and takes cost of
// that. A record tells the number of the others after a while.
func (r *Recorder) within(who sender, busy bool, cost, size int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, n := time.Now(), r.rates[who]
	if n == nil {
		maps.DeleteFunc(r.rates, func(_ sender, n *rate) bool { return n.leftOut == 0 && n.refill(now) == noteBurst }) // as good as new
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
	n.bytes += int64(size)
	if n.leftOut++; n.leftOut == 1 {
		time.AfterFunc(leftOutEvery, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tellLeftOut(who, n)
		})
	}
	return false
}

// TellLeftOut records what has been left out since the last record of it. Call it before the journal
// closes.
func (r *Recorder) TellLeftOut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for who, n := range r.rates {
		r.tellLeftOut(who, n)
	}
}

// tellLeftOut records how many messages of a sender have no record. The caller holds mu.
func (r *Recorder) tellLeftOut(who sender, n *rate) {
	if n.leftOut == 0 {
		return
	}
	rec := &trace.Record{
		From: "upstream:" + who.server, To: []string{"foldgate"}, Kind: trace.KindWarning,
		Payload: rawjson.Marshal(map[string]any{"code": who.code, "count": n.leftOut, "bytes": n.bytes}),
		Audit:   &trace.Audit{Principal: who.principal, Server: who.server, LeftOut: n.leftOut, Bytes: n.bytes},
	}
	if who.code == requestsRefused {
		rec.Audit.Decision = &trace.Decision{Result: trace.Blocked, Reason: trace.ReasonLimit, Rule: who.code}
	}
	n.leftOut, n.bytes = 0, 0
	r.Note(rec)
}
