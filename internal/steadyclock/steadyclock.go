// Package steadyclock tells the time for what ends or is deleted by its age. A wall clock that is set wrong, by NTP, by
// hand or because a machine was resumed, must not delete what is young, nor keep what is old.
package steadyclock

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/foldgate/foldgate/internal/atomicfile"
)

// File is the name of the file of a Clock in a state directory.
const File = "clock.json"

const (
	// slack is the largest step of the wall clock that counts at once.
	slack = time.Minute
	// lasts is how long the wall clock must run on after a larger step until that counts.
	lasts = 24 * time.Hour
	// maxStop bounds the time without a process that is believed on another start of the machine, where only the
	// wall clock has measured it.
	maxStop = 24 * time.Hour

	lookEvery = time.Minute
	saveEvery = 10 // looks
)

// Clock is the wall clock, but a step of it counts only once it has lasted for a day. Until then the Clock goes on by
// the time that passes. Its file has what the next process needs to know. A Clock is safe for concurrent use.
//
// Compare what [Clock.Stamp] returned with [Clock.Now]: whichever clock is right in the end, nothing is too old.
type Clock struct {
	path string
	log  *slog.Logger
	wall func() time.Time
	boot string // of the machine; "" is unknown
	// passed is the time since the machine was started, also that in which it was suspended.
	passed func() time.Duration

	mu    sync.Mutex
	known time.Time // see Known
	state state
	seen  time.Time     // the wall clock at the last look, with Go's monotonic reading
	stop  chan struct{} // nil if Keep was not called
	done  chan struct{}
}

// state is what a Clock knew when it looked last.
type state struct {
	Wall   time.Time     `json:"wall"` // the wall clock
	Time   time.Time     `json:"time"` // the Clock
	Boot   string        `json:"boot,omitempty"`
	Passed time.Duration `json:"passed"`           // since the machine was started
	Lasted time.Duration `json:"lasted,omitempty"` // since the last step; 0 if Time is Wall
	Idle   bool          `json:"idle,omitempty"`   // the step may be a long time in which no process looked
}

// Open returns the Clock that the file at path describes. If there is no such file, the wall clock showed the time
// known when it was looked at last; zero is unknown, and the wall clock is believed.
func Open(path string, known time.Time, log *slog.Logger) *Clock {
	at, began := sinceBoot(), time.Now()
	return open(path, known, log, time.Now, bootID(), func() time.Duration {
		return at + max(sinceBoot()-at, time.Since(began)) // not every system tells the first
	})
}

func open(path string, known time.Time, log *slog.Logger, wall func() time.Time, boot string, passed func() time.Duration) *Clock {
	c := &Clock{path: path, log: log, wall: wall, boot: boot, passed: passed}
	var data []byte
	info, err := os.Stat(path)
	if err == nil && info.Mode().IsRegular() { // a pipe would never end
		data, err = os.ReadFile(path)
	}
	if err != nil || json.Unmarshal(data, &c.state) != nil || c.state.Wall.IsZero() || c.state.Time.IsZero() {
		if known.IsZero() {
			known = wall()
		}
		c.state = state{Wall: known, Time: known}
	} else {
		c.known = c.state.Time
	}
	at, stopped := passed(), wall().Sub(c.state.Wall)
	switch since := at - c.state.Passed; {
	case boot != "" && boot == c.state.Boot && since >= 0:
		stopped = since
	case stopped < 0 || stopped > maxStop:
		stopped = 0
	}
	c.state.Passed = at - stopped
	c.look(at)
	return c
}

// Now returns the time.
func (c *Clock) Now() time.Time {
	now, _ := c.both()
	return now
}

// Step returns by how much the clock of the machine was set, as long as that does not count. It returns 0 if it may as
// well be right: if the step is ahead, and no process has looked for over a day.
func (c *Clock) Step() time.Duration {
	now, wall := c.both()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Idle {
		return 0
	}
	return wall.Sub(now)
}

// Known returns the time at which the process before stored its file, in its last ten minutes; zero without one.
func (c *Clock) Known() time.Time { return c.known }

// Stamp returns the time for something that begins now: as long as a step does not count, the later of the two.
func (c *Clock) Stamp() time.Time {
	now, wall := c.both()
	if wall.After(now) {
		return wall
	}
	return now
}

func (c *Clock) both() (now, wall time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall = c.wall()
	// Most calls need no system call to know that there was no step.
	if passed := wall.Sub(c.seen); c.state.Lasted == 0 && passed >= 0 && passed < time.Second && (wall.Round(0).Sub(c.state.Wall)-passed).Abs() <= slack {
		return wall.Round(0), wall.Round(0)
	}
	c.look(c.passed())
	return c.state.Time, c.state.Wall
}

// look brings the state up to date, so much time after the machine was started. c.mu is held, or c is new.
func (c *Clock) look(at time.Duration) {
	was, passed, first := c.state, at-c.state.Passed, c.seen.IsZero()
	c.seen = c.wall()
	now := c.seen.Round(0)
	c.state = state{Wall: now, Time: was.Time.Add(passed), Boot: c.boot, Passed: at}
	step, off := now.Sub(was.Wall)-passed, now.Sub(c.state.Time)
	switch {
	case off.Abs() <= slack:
		c.state.Time = now
		if was.Lasted > 0 {
			c.log.Info("the clock of the machine shows again what it should after its step")
		}
	case step.Abs() > slack || was.Lasted == 0:
		c.state.Lasted, c.state.Idle = 1, first && off > 0
		level, what := slog.LevelWarn, "the clock of the machine was set"
		if c.state.Idle {
			level, what = slog.LevelInfo, "foldgate has not run for over a day, or the clock of the machine was set"
		}
		c.log.Log(context.Background(), level, what+": until that clock has run on for a day, nothing ends or is deleted sooner or later for it",
			"shows", now.UTC().Format(time.RFC3339), "expected", c.state.Time.UTC().Format(time.RFC3339))
	case was.Lasted+passed >= lasts:
		c.state.Time = now
		c.log.Info("the clock of the machine has run on for a day after its step, which counts now", "step", off.Round(time.Second).String())
	default:
		c.state.Lasted, c.state.Idle = was.Lasted+passed, was.Idle
	}
}

// Keep keeps the file up to date until Close. It is for the one process that may write it.
func (c *Clock) Keep() {
	c.stop, c.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(c.done)
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		jumped := false
		for n := 0; ; n++ {
			c.Now()
			c.mu.Lock()
			now := c.state.Lasted > 0
			c.mu.Unlock()
			if now != jumped || n%saveEvery == 0 {
				c.save()
			}
			jumped = now
			select {
			case <-c.stop:
				return
			case <-ticker.C:
			}
		}
	}()
}

// Close writes the file, if Keep was called.
func (c *Clock) Close() {
	if c.stop == nil {
		return
	}
	close(c.stop)
	<-c.done
	c.stop = nil
	c.Now()
	c.save()
}

func (c *Clock) save() {
	c.mu.Lock()
	data, err := json.Marshal(c.state)
	c.mu.Unlock()
	if err == nil {
		err = atomicfile.Write(c.path, data, 0o600)
	}
	if err != nil {
		c.log.Warn("the state of the clock was not stored", "file", c.path, "err", err)
	}
}
