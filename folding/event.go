package folding

import (
	"fmt"
	"time"
)

// EventKind names a moment in a branch's life.
type EventKind string

// The kinds of events, in the order in which one branch can meet them.
const (
	// EventCreated: the branch has its place and is being stored. If that
	// fails, EventEnded follows.
	EventCreated EventKind = "created"
	// EventRecovered: the branch was active when the process died and goes on.
	EventRecovered EventKind = "recovered"
	// EventWarned: 80 % of the budget are used.
	EventWarned EventKind = "warned"
	// EventExhausted: the budget is used up; EventEnded follows.
	EventExhausted EventKind = "exhausted"
	// EventConcluded: the branch was returned by its agent.
	EventConcluded EventKind = "concluded"
	// EventEnded: the branch was ended by force.
	EventEnded EventKind = "ended"
	// EventLate: a return came after a forced end; its message was kept.
	EventLate EventKind = "late"
)

// Event is one moment in a branch's life. Events of one branch come in order,
// and those of its children's ends before its own.
type Event struct {
	Kind EventKind
	Time time.Time
	// Branch is the branch just after the event.
	Branch Branch
	// Children are the ids of the branches that this end closed on its way,
	// in the order of their ends.
	Children []string
	// Cause is, on EventCreated, CreateRequest.Cause.
	Cause any
}

// emit queues an event. m.mu is held.
func (m *Manager) emit(kind EventKind, now time.Time, b Branch, children []string) {
	m.events = append(m.events, Event{Kind: kind, Time: now, Branch: b, Children: children})
}

// unlock releases m.mu and delivers what was queued under it. When it returns
// every event queued before has been delivered, by this goroutine or another.
func (m *Manager) unlock() {
	pending := len(m.events) > 0
	m.mu.Unlock()
	if pending {
		m.publish()
	}
}

// publish delivers queued events, one goroutine at a time to keep their order.
func (m *Manager) publish() {
	m.publishing.Lock()
	defer m.publishing.Unlock()
	m.mu.Lock()
	events := m.events
	m.events = nil
	m.mu.Unlock()
	for _, e := range events {
		m.deliver(e)
	}
}

// deliver keeps a panicking handler from taking the other events with it.
func (m *Manager) deliver(e Event) {
	defer func() {
		if r := recover(); r != nil {
			m.log.Error("event handler panicked", "event", e.Kind, "branch_id", e.Branch.ID, "panic", fmt.Sprint(r))
		}
	}()
	m.telemetry.observe(e)
	if m.opts.OnEvent != nil {
		m.opts.OnEvent(e)
	}
}
