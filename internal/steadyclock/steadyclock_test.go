package steadyclock

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// machine is a machine whose clock can be set.
type machine struct {
	t      *testing.T
	file   string
	boot   string
	passed time.Duration
	shows  time.Time
	is     time.Time // the right time
	c      *Clock
}

func (m *machine) runs(d time.Duration) {
	m.passed, m.shows, m.is = m.passed+d, m.shows.Add(d), m.is.Add(d)
}

func (m *machine) sets(d time.Duration) { m.shows = m.shows.Add(d) }

// start starts a process after the one before has stopped.
func (m *machine) start() {
	if m.c != nil {
		m.c.save()
	}
	m.c = open(m.file, time.Time{}, slog.New(slog.DiscardHandler), func() time.Time { return m.shows }, m.boot, func() time.Duration { return m.passed })
}

func (m *machine) wants(want time.Time, when string) {
	m.t.Helper()
	if off := m.c.Now().Sub(want); off.Abs() > slack {
		m.t.Errorf("%s it is %v off", when, off)
	}
}

// later checks that what begins now is not older than by either clock.
func (m *machine) later() {
	m.t.Helper()
	now := m.c.Now()
	if at := m.c.Stamp(); at.Before(now) || at.Before(m.shows) || !at.Equal(now) && !at.Equal(m.shows) {
		m.t.Errorf("what begins at %v, when the clock of the machine shows %v, gets %v", now, m.shows, at)
	}
}

func newMachine(t *testing.T, boot string) *machine {
	begin := time.Date(2026, 11, 29, 9, 0, 0, 0, time.UTC)
	m := &machine{t: t, file: filepath.Join(t.TempDir(), "clock.json"), boot: boot, passed: time.Hour, shows: begin, is: begin}
	m.start()
	return m
}

const day = 24 * time.Hour

func TestSteps(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, -time.Hour, 12 * 365 * day, -40 * 365 * day} {
		m := newMachine(t, "a")
		for range 30 { // slewed by NTP
			m.runs(time.Hour)
			m.sets(2 * time.Second)
		}
		m.wants(m.shows, "after small steps")
		m.is = m.shows
		m.sets(step)
		m.wants(m.is, "after a step")
		m.later()
		m.runs(23 * time.Hour)
		m.wants(m.is, "23 hours after a step")
		m.start()
		m.wants(m.is, "after a restart")
		m.runs(day / 2)
		m.wants(m.shows, "after a day")
		m.sets(-step)
		m.wants(m.shows.Add(step), "after the step back")
		m.runs(day)
		m.wants(m.is, "a day after the step back")
	}
}

// A step that is undone leaves nothing behind, and a second one begins another day.
func TestStepsThatDoNotLast(t *testing.T) {
	m := newMachine(t, "a")
	m.sets(365 * day)
	m.wants(m.is, "after a step")
	m.runs(20 * time.Hour)
	m.sets(365 * day)
	m.wants(m.is, "after the second step")
	m.runs(20 * time.Hour)
	m.wants(m.is, "20 hours after the second step")
	m.sets(-2 * 365 * day)
	m.wants(m.is, "once the clock is right")
	if m.c.state.Lasted != 0 || !m.c.state.Time.Equal(m.shows) {
		t.Errorf("a step is left: %+v", m.c.state)
	}
}

// What passes without a process is known while the machine runs. After it was started anew, up to a day is believed.
func TestStops(t *testing.T) {
	m := newMachine(t, "a")
	m.runs(40 * day)
	m.start()
	m.wants(m.is, "after a long stop")
	m.runs(time.Hour)
	m.sets(10 * day)
	m.start()
	m.wants(m.is, "after a step during a stop")
	m.sets(-10 * day)
	m.start()

	m.boot, m.passed = "b", 0
	m.runs(16 * time.Hour)
	m.start()
	m.wants(m.is, "after a night")
	m.boot, m.passed = "c", 0
	m.runs(40 * day)
	m.start()
	m.wants(m.is.Add(-40*day), "after 40 days without the machine")
	for range 3 { // it runs for some hours a day
		m.runs(9 * time.Hour)
		m.start()
		m.boot, m.passed = m.boot+"c", 0
		m.runs(15 * time.Hour)
		m.start()
	}
	m.wants(m.is, "days later")

	m = newMachine(t, "") // it has no name for a start
	m.passed = 0
	m.runs(16 * time.Hour)
	m.start()
	m.wants(m.is, "after a night")
	m.sets(-2 * day)
	m.start()
	m.wants(m.is, "after a step back during a stop")
}

// Without its file the clock is the wall clock, or goes on from what is known.
func TestWithoutItsFile(t *testing.T) {
	m := newMachine(t, "a")
	m.start()
	m.sets(90 * day)
	if err := os.WriteFile(m.file, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	passed := func() time.Duration { return m.passed }
	for _, known := range []time.Time{m.is, m.is.Add(-30 * day)} {
		m.c = open(m.file, known, m.c.log, func() time.Time { return m.shows }, m.boot, passed)
		m.wants(known, "with a known time")
	}
	m.c = open(m.file, time.Time{}, m.c.log, func() time.Time { return m.shows }, m.boot, passed)
	m.wants(m.shows, "without a known time")
}

// The system's own functions.
func TestKeep(t *testing.T) {
	file := filepath.Join(t.TempDir(), "clock.json")
	c := Open(file, time.Time{}, slog.New(slog.DiscardHandler))
	c.Keep()
	at := c.passed()
	time.Sleep(20 * time.Millisecond)
	if passed := c.passed() - at; passed < 15*time.Millisecond || passed > 10*time.Second {
		t.Errorf("20 ms take %v", passed)
	}
	if off := time.Since(c.Now()); off.Abs() > time.Second {
		t.Errorf("it is %v off", off)
	}
	c.Close()
	c.Close()
	if info, err := os.Stat(file); err != nil || info.Size() < 50 {
		t.Errorf("the file: %v, %v", info, err)
	}
}

// rests starts the machine and a process after its clock has moved by d.
func (m *machine) rests(d time.Duration) {
	m.sets(d)
	m.boot, m.passed = "another", 0
	m.start()
}

// A machine that was off for a weekend looks like one whose clock was set ahead. Nobody is warned of that.
func TestStep(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(m *machine)
		want time.Duration
	}{
		{"none", func(m *machine) { m.runs(time.Hour) }, 0},
		{"ahead", func(m *machine) { m.sets(3 * day) }, 3 * day},
		{"ahead, and a restart", func(m *machine) { m.sets(3 * day); m.c.Now(); m.start() }, 3 * day},
		{"back", func(m *machine) { m.sets(-3 * day) }, -3 * day},
		{"a weekend", func(m *machine) { m.rests(3 * day) }, 0},
		{"a weekend, and a restart", func(m *machine) {
			m.rests(3 * day)
			m.runs(time.Hour)
			m.c.Now()
			m.start()
		}, 0},
		{"a weekend, and ahead", func(m *machine) {
			m.rests(3 * day)
			m.runs(time.Hour)
			m.c.Now()
			m.sets(day)
		}, 4 * day},
		{"back while it was off", func(m *machine) { m.rests(-3 * day) }, -3 * day},
	} {
		m := newMachine(t, "one")
		c.do(m)
		if off := (m.c.Step() - c.want).Abs(); off > slack {
			t.Errorf("%s: a step of %v, want %v", c.name, m.c.Step(), c.want)
		}
	}
}
