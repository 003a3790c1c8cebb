package folding

import (
	"fmt"
	"strings"
	"time"
)

const (
	// maxTools bounds the tools that an Activity counts one by one.
	maxTools = 8
	// maxToolName and maxLastError are in characters.
	maxToolName  = 64
	maxLastError = 200
)

// record counts one call that came back.
func (a *Activity) record(o CallOutcome) {
	a.Calls++
	if o.Err != "" {
		a.Failed++
		a.LastError = o.Err
	}
	for i := range a.Tools {
		if a.Tools[i].Tool == o.Tool {
			a.Tools[i].Calls++
			return
		}
	}
	if o.Tool != "" && len(a.Tools) < maxTools {
		a.Tools = append(a.Tools, ToolCount{Tool: o.Tool, Calls: 1})
	}
}

// clone returns a copy that shares nothing with a.
func (a Activity) clone() Activity {
	a.Tools = append([]ToolCount(nil), a.Tools...)
	return a
}

// digest sums up what was done in a branch that ended by force: the same
// branch always gives the same words.
func digest(b Branch) string {
	var s strings.Builder
	a := b.Activity
	fmt.Fprintf(&s, "%d of %d tokens used; %s", b.BudgetUsed, b.BudgetTotal, plural(a.Calls, "call"))
	for i, t := range a.Tools {
		sep := ", "
		if i == 0 {
			sep = " ("
		}
		fmt.Fprintf(&s, "%s%s %d", sep, t.Tool, t.Calls)
	}
	if len(a.Tools) > 0 {
		s.WriteString(")")
	}
	if a.Failed > 0 {
		fmt.Fprintf(&s, ", %d failed", a.Failed)
	}
	if a.InFlight > 0 {
		fmt.Fprintf(&s, ", %d cancelled in flight", a.InFlight)
	}
	if a.Lost > 0 {
		fmt.Fprintf(&s, ", %d lost in a restart", a.Lost)
	}
	if a.LastError != "" {
		fmt.Fprintf(&s, "; last error: %s", a.LastError)
	}
	return s.String()
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// explain is the sentence for a Reason.
func explain(reason string, b Branch) string {
	switch reason {
	case ReasonTimeout:
		return fmt.Sprintf("timeout after %v", b.ExpiresAt.Sub(b.CreatedAt).Round(time.Second))
	case ReasonBudgetExhausted:
		return "budget exhausted"
	case ReasonParentReturning:
		return "parent returning"
	case ReasonParentEnded:
		return "parent ended"
	case ReasonSessionEnded:
		return "session ended"
	case ReasonShutdown:
		return "foldgate is shutting down"
	case ReasonStorageFailed:
		return "the branch could not be stored"
	}
	return reason
}
